use smallvec::SmallVec;

use super::super::message::{Draft, Message};
use super::super::outgoing::Delivery;
use super::*;
use crate::wire::QoS;

fn queued(seq: u64, place: Place) -> Queued {
    let message = Message::keep(&Draft {
        topic: "t",
        payload: &seq.to_be_bytes(),
        owner: None,
        properties: &[],
        qos: QoS::AtLeastOnce,
        retain: false,
        expires_at_ms: None,
        origin: 0,
    });
    let delivery = Delivery {
        qos: QoS::AtLeastOnce,
        retain: false,
        subscription_ids: SmallVec::new(),
        share: None,
    };
    Queued { seq, place, ..Queued::new(Arc::new(message), delivery) }
}

fn order(mut queue: Queue) -> Vec<(u64, bool)> {
    let all = std::iter::from_fn(|| queue.pop())
        .map(|owed| (owed.seq(), matches!(owed, Owed::Here(_))))
        .collect();
    assert_eq!((queue.bytes(), queue.here_bytes(), queue.len()), (0, 0, 0));
    all
}

#[test]
fn the_order_is_that_of_numbers_wherever_messages_are() {
    let mut queue = Queue::default();
    for seq in 1..8 {
        // 3 is at a level that records nothing, 7 is not appended yet.
        let place = match seq {
            3 => Place::NONE,
            7 => Place::PENDING,
            _ => Place::at(seq * 10),
        };
        queue.push(queued(seq, place));
    }
    queue.push(queued(0, Place::NONE)); // numbered no more
    let bytes = queue.bytes();
    queue.spill(5);
    queue.spill(2);
    queue.spill(3);
    queue.spill(7);
    assert_eq!((queue.len(), queue.stored(), queue.here(), queue.ahead()), (8, 2, 6, 1));
    assert_eq!(queue.bytes(), bytes);
    assert!(queue.here_bytes() < bytes);
    assert_eq!(queue.first_here().map(|first| first.seq), Some(1));
    assert!(queue.pop_here().is_some() && queue.pop_here().is_none(), "2 has to be read");
    queue.load(2, queued(2, Place::NONE).message);
    queue.load(9, queued(9, Place::NONE).message);
    queue.spill_all();
    queue.load(4, queued(4, Place::NONE).message);
    assert_eq!(queue.set_place(5, Place::at(99)), Some(Place::at(50)));
    assert_eq!(queue.set_place(7, Place::at(70)), Some(Place::PENDING));
    assert_eq!(queue.set_place(3, Place::at(70)), None);
    assert_eq!(
        order(queue),
        [(2, false), (3, true), (4, true), (5, false), (6, false), (7, true), (0, true)]
    );
}
