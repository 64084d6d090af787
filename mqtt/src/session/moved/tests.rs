use std::sync::Arc;

use super::super::{Draft, Message, QueueBounds, QueueFull, ReadAhead, Reference, Restored};
use super::*;
use crate::wire::QoS;

const BOUNDS: QueueBounds =
    QueueBounds { max_messages: 1_000, max_bytes: 1 << 20, when_full: QueueFull::DropNew };

fn delivery(qos: QoS) -> Delivery {
    Delivery { qos, retain: false, subscription_ids: Default::default(), share: None }
}

fn message() -> Arc<Message> {
    Arc::new(Message::keep(&Draft {
        topic: "t",
        payload: b"hi",
        owner: None,
        properties: &[],
        qos: QoS::ExactlyOnce,
        retain: false,
        expires_at_ms: None,
        origin: 0,
    }))
}

/// Messages 1 to 6, at 10 to 60: 1 has its PUBREC at 15, 2 was sent, the others wait, the last one in
/// memory.
fn outgoing() -> Outgoing {
    let reference = |seq| {
        let place = Place::at(seq * 10);
        Restored::Message(Reference::new(delivery(QoS::ExactlyOnce), 3, seq, place))
    };
    let first = Restored::Release { seq: 1, place: Place::at(15) };
    let entries = [first].into_iter().chain((2..=5).map(reference));
    let mut outgoing = Outgoing::restore(entries, 2, 6);
    let queued =
        Queued { place: Place::at(60), ..Queued::new(message(), delivery(QoS::AtLeastOnce)) };
    outgoing.enqueue(queued, &BOUNDS, &mut Vec::new()).expect("room");
    outgoing
}

fn before(outgoing: &Outgoing, end: u64, at_once: usize) -> Vec<(u64, u64, bool)> {
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        let mut most = at_once;
        let next = outgoing.recorded_before(Place::at(end), from, &mut most, |it| {
            found.push((it.seq, it.place.position().unwrap(), it.message_bytes.is_some()));
        });
        let Some(next) = next else { break };
        assert!(next > from);
        from = next;
    }
    found.sort_unstable();
    found
}

#[test]
fn what_lies_before_a_place_is_found_in_any_number_of_steps() {
    let outgoing = outgoing();
    let all =
        [(1, 15, false), (2, 20, true), (3, 30, true), (4, 40, true), (5, 50, true), (6, 60, true)];
    for at_once in [1, 2, 100] {
        for (count, end) in [(0, 15), (1, 20), (3, 40), (6, 61)] {
            assert_eq!(before(&outgoing, end, at_once), all[..count], "{end} {at_once}");
        }
    }
}

#[test]
fn a_record_moves_once_and_only_while_it_is_owed() {
    let mut outgoing = outgoing();
    for (seq, received, from) in [(1, true, 15), (2, false, 20), (3, false, 30), (6, false, 60)] {
        let (from, to) = (Place::at(from), Place::at(100 + seq));
        assert_eq!(outgoing.delivery_at(seq, from).is_some(), !received);
        assert!(!outgoing.move_place(seq, !received, from, to));
        assert!(outgoing.move_place(seq, received, from, to));
        assert!(!outgoing.move_place(seq, received, from, to), "it is not there any more");
        assert_eq!(outgoing.delivery_at(seq, from), None);
        assert_eq!(outgoing.delivery_at(seq, to).is_some(), !received);
    }
    assert_eq!(before(&outgoing, 100, 1), [(4, 40, true), (5, 50, true)]);
    let mut progress = Vec::new();
    assert!(!outgoing.lose(4, Place::at(30), &mut progress), "another record could not be read");
    assert!(outgoing.lose(4, Place::at(40), &mut progress));
    assert!(!outgoing.move_place(4, false, Place::at(40), Place::at(99)));
    assert!(!outgoing.expire(5, Place::at(40), &mut progress));
    assert!(outgoing.expire(5, Place::at(50), &mut progress));
    assert!(!outgoing.expire(6, Place::at(106), &mut progress), "it is in memory");
    assert!(!outgoing.expire(2, Place::at(102), &mut progress), "it was sent");
    let done = |seq: u64| Progress::Done { seq, place: Place::at(seq * 10) };
    assert_eq!(progress, [done(4), done(5)]);
    // What was sent is found under its identifier, what is read meanwhile keeps its new place.
    outgoing.resume();
    let mut wanted = Vec::new();
    outgoing.wanted(ReadAhead { messages: 9, bytes: 999 }, &mut wanted);
    assert_eq!(wanted, [(2, Place::at(102)), (3, Place::at(103))]);
}

#[test]
fn identifiers_move_with_their_records() {
    let (id, other) = (PacketId::MIN, PacketId::MAX);
    let mut incoming = Incoming::default();
    for id in [id, other] {
        incoming.take(id);
    }
    incoming.set_place(id, Place::at(10));
    assert!(incoming.recorded_before(Place::at(10)).next().is_none());
    assert!(incoming.recorded_before(Place::PENDING).eq([(id, Place::at(10))]));
    assert!(!incoming.move_place(id, Place::at(9), Place::at(20)));
    assert!(incoming.move_place(id, Place::at(10), Place::at(20)));
    assert_eq!(incoming.place(id), Some(Place::at(20)));
    // Released, and taken anew by another exchange.
    incoming.release(id);
    incoming.take(id);
    assert!(!incoming.move_place(id, Place::at(20), Place::at(30)));
    assert_eq!(incoming.place(id), Some(Place::NONE));
}
