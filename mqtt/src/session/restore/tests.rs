use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use smallvec::SmallVec;

use super::super::message::{Draft, Message};
use super::super::outgoing::{Delivery, PubRecOutcome, QueueBounds, QueueFull, Queued, Step};
use super::super::place::Progress;
use super::super::stored::ReadAhead;
use super::*;
use crate::wire::{PacketId, QoS};

const BOUNDS: QueueBounds =
    QueueBounds { max_messages: 40, max_bytes: 1 << 20, when_full: QueueFull::DropOld };

fn queued(payload: u64, qos: QoS) -> Queued {
    let message = Message::keep(&Draft {
        topic: "t",
        payload: &payload.to_be_bytes(),
        owner: None,
        properties: &[],
        qos,
        retain: false,
        expires_at_ms: None,
        origin: 0,
    });
    let delivery = Delivery { qos, retain: false, subscription_ids: SmallVec::new(), share: None };
    Queued { place: Place::PENDING, ..Queued::new(Arc::new(message), delivery) }
}

fn numbered(next_seq: u64) -> Outgoing {
    let mut outgoing = Outgoing::default();
    outgoing.start_numbers(next_seq);
    outgoing
}

/// What lies in the log alone comes back, as its payload says.
fn read(outgoing: &mut Outgoing) {
    let mut wanted = Vec::new();
    outgoing.wanted(ReadAhead { messages: 3, bytes: 1_000 }, &mut wanted);
    for (seq, place) in wanted {
        assert!(place.position().is_some());
        outgoing.load(seq, queued(seq, QoS::AtMostOnce).message);
    }
}

/// The next packet: identifier, duplicate, number; a PUBREL has no duplicate flag.
fn step(outgoing: &mut Outgoing, stored: Place) -> Option<(u16, Option<bool>, u64)> {
    read(outgoing);
    let (mut expired, mut progress) = (0, Vec::new());
    let step = outgoing.next_step(500, &BOUNDS, stored, 0, &mut expired, &mut progress)?;
    assert!(progress.is_empty() && expired == 0);
    Some(match step {
        Step::Publish { id, dup, queued } => {
            assert_eq!(queued.message.draft().payload, queued.seq.to_be_bytes());
            (id.get(), Some(dup), queued.seq)
        }
        Step::Release(id) => (id.get(), None, 0),
    })
}

#[test]
fn the_identifier_follows_from_the_number() {
    let mut outgoing = numbered(65_534);
    for seq in 65_534..65_540 {
        outgoing.enqueue(queued(seq, QoS::AtLeastOnce), &BOUNDS, &mut Vec::new()).unwrap();
    }
    let ids: Vec<_> = std::iter::from_fn(|| step(&mut outgoing, Place::PENDING)).collect();
    let expected = [65_535, 1, 2, 3, 4, 5].into_iter().zip(65_534..);
    assert!(ids.into_iter().eq(expected.map(|(id, seq)| (id, Some(false), seq))));
}

#[test]
fn an_identifier_under_way_holds_back_its_next_number() {
    let mut outgoing = numbered(7);
    let send = |outgoing: &mut Outgoing, seq| {
        outgoing.enqueue(queued(seq, QoS::AtLeastOnce), &BOUNDS, &mut Vec::new()).unwrap();
    };
    send(&mut outgoing, 7);
    assert_eq!(step(&mut outgoing, Place::PENDING), Some((8, Some(false), 7)));
    outgoing.next_seq = 7 + 65_535; // as if all others had come and gone
    send(&mut outgoing, 65_542);
    send(&mut outgoing, 65_543);
    assert_eq!(step(&mut outgoing, Place::PENDING), None);
    let direct = outgoing.send_at_once(queued(0, QoS::AtLeastOnce), 9, &BOUNDS, Place::PENDING, 0);
    assert!(direct.is_err());
    assert!(outgoing.on_puback(PacketId::new(8).unwrap(), &mut Vec::new()));
    assert_eq!(step(&mut outgoing, Place::PENDING), Some((8, Some(false), 65_542)));
    assert_eq!(step(&mut outgoing, Place::PENDING), Some((9, Some(false), 65_543)));
}

#[test]
fn qos_2_and_what_is_behind_it_wait_for_the_record() {
    let mut outgoing = numbered(1);
    for (seq, qos) in [(1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce), (3, QoS::AtLeastOnce)] {
        outgoing.enqueue(queued(seq, qos), &BOUNDS, &mut Vec::new()).unwrap();
    }
    let stored = Place::at(100);
    assert_eq!(step(&mut outgoing, stored), Some((2, Some(false), 1)), "QoS 1 does not wait");
    assert_eq!(step(&mut outgoing, stored), None);
    assert_eq!(outgoing.set_place(2, false, Place::at(100)), Some(Place::PENDING));
    assert_eq!(step(&mut outgoing, stored), None);
    let stored = Place::at(101);
    assert_eq!(step(&mut outgoing, stored), Some((3, Some(false), 2)));
    assert_eq!(step(&mut outgoing, stored), Some((4, Some(false), 3)));
    // A PUBREL that is owed again waits for the record of its PUBREC.
    let id = PacketId::new(3).unwrap();
    let mut progress = Vec::new();
    assert_eq!(outgoing.on_pubrec(id, false, &mut progress), PubRecOutcome::Release);
    assert_eq!(progress, [Progress::Received { seq: 2, place: Place::at(100) }]);
    outgoing.resume();
    assert_eq!(step(&mut outgoing, stored), Some((2, Some(true), 1)));
    assert_eq!(step(&mut outgoing, stored), None);
    assert_eq!(outgoing.set_place(2, false, Place::at(150)), None, "it was received");
    assert_eq!(outgoing.set_place(2, true, Place::at(200)), Some(Place::PENDING));
    assert_eq!(step(&mut outgoing, Place::at(201)), Some((3, None, 0)));
}

#[test]
fn a_session_that_numbers_no_more_goes_on_with_free_identifiers() {
    let mut outgoing = numbered(1);
    for seq in 1..4 {
        outgoing.enqueue(queued(seq, QoS::AtLeastOnce), &BOUNDS, &mut Vec::new()).unwrap();
    }
    assert_eq!(step(&mut outgoing, Place::PENDING), Some((2, Some(false), 1)));
    outgoing.stop_numbers(|place| assert_eq!(place, Place::PENDING));
    assert!(outgoing.places().all(|place| place == Place::NONE));
    let ids: Vec<_> =
        std::iter::from_fn(|| step(&mut outgoing, Place::PENDING)).map(|got| got.0).collect();
    assert_eq!(ids, [3, 4]);
    outgoing.start_numbers(1);
    assert!(outgoing.next_seq() > 4);
}

/// What happens to a session.
#[derive(Clone, Debug)]
enum Event {
    Enqueue(bool),
    /// Everything recorded so far is on disk.
    Store,
    Send(u8),
    /// The client answers one of the exchanges that it knows.
    Answer(u8),
    Reconnect,
    /// Everything that can goes out of memory.
    Spill,
    /// The process ends; the number that tells what was sent may be late.
    Crash(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => any::<bool>().prop_map(Event::Enqueue),
        3 => Just(Event::Store),
        4 => (1..9_u8).prop_map(Event::Send),
        4 => any::<u8>().prop_map(Event::Answer),
        1 => Just(Event::Reconnect),
        1 => Just(Event::Spill),
        1 => (0..4_u8).prop_map(Event::Crash),
    ];
    prop::collection::vec(event, 1..200)
}

/// The broker's records, and what a client that follows the protocol knows.
struct World {
    outgoing: Outgoing,
    /// Number to (QoS 2, received): what a new process would find. Everything is stored at once, but
    /// `stored` says what the session may rely on.
    records: BTreeMap<u64, (bool, bool)>,
    next_place: u64,
    stored: u64,
    /// Identifier to number: PUBLISH seen, not answered or, at QoS 2, not released.
    held: BTreeMap<u16, u64>,
    /// Identifiers of PUBLISHes on this connection: others are not answered before they come again.
    seen: BTreeSet<u16>,
    /// Identifiers of PUBRELs not answered.
    released: Vec<u16>,
    /// QoS 2 numbers delivered to the application.
    delivered: Vec<u64>,
    last_first_send: u64,
}

impl World {
    fn settle(&mut self, progress: Vec<Progress>) {
        for step in progress {
            match step {
                Progress::Done { seq, .. } => assert!(self.records.remove(&seq).is_some()),
                Progress::Received { seq, .. } => {
                    self.place(seq, true);
                    self.records.get_mut(&seq).expect("recorded").1 = true;
                }
            }
        }
    }

    fn place(&mut self, seq: u64, received: bool) {
        self.next_place += 1;
        self.outgoing.set_place(seq, received, Place::at(self.next_place));
    }

    fn enqueue(&mut self, exactly_once: bool) {
        let seq = self.outgoing.next_seq();
        let qos = if exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let mut progress = Vec::new();
        let _ = self.outgoing.enqueue(queued(seq, qos), &BOUNDS, &mut progress);
        self.records.insert(seq, (exactly_once, false));
        self.settle(progress);
        self.place(seq, false);
    }

    fn send(&mut self) {
        let Some((id, dup, seq)) = step(&mut self.outgoing, Place::at(self.stored)) else {
            return;
        };
        let Some(dup) = dup else {
            self.held.remove(&id);
            self.seen.remove(&id);
            self.released.push(id);
            return;
        };
        assert_eq!(u64::from(id), seq % 65_535 + 1);
        let (exactly_once, received) = self.records[&seq];
        assert!(!received, "PUBLISH after PUBREC");
        if !dup {
            assert!(seq > self.last_first_send || !exactly_once, "{seq} again without DUP");
            self.last_first_send = self.last_first_send.max(seq);
        }
        if exactly_once && self.held.get(&id) != Some(&seq) {
            assert!(!self.delivered.contains(&seq), "{seq} is delivered twice");
            self.delivered.push(seq);
        }
        self.held.insert(id, seq);
        self.seen.insert(id);
    }

    fn answer(&mut self, at: u8) {
        let mut progress = Vec::new();
        if at & 1 == 1
            && let Some(id) = self.released.pop()
        {
            self.outgoing.on_pubcomp(PacketId::new(id).unwrap(), &mut progress);
        } else if !self.seen.is_empty() {
            let at = usize::from(at >> 1) % self.seen.len();
            let id = self.seen.iter().copied().nth(at).expect("below its length");
            self.seen.remove(&id);
            let seq = self.held[&id];
            let known = self.records.get(&seq).copied();
            let packet_id = PacketId::new(id).unwrap();
            if known.is_some_and(|(exactly_once, _)| exactly_once) {
                let outcome = self.outgoing.on_pubrec(packet_id, false, &mut progress);
                assert_eq!(outcome, PubRecOutcome::Release);
                // PUBREL leaves once the record is stored; the client forgets when it comes.
                self.settle(std::mem::take(&mut progress));
                self.stored = self.next_place + 1;
                self.held.remove(&id);
                self.released.push(id);
            } else {
                self.outgoing.on_puback(packet_id, &mut progress);
                self.held.remove(&id);
            }
        }
        self.settle(progress);
    }

    fn crash(&mut self, late: u8) {
        let sent = self.outgoing.sent_seq().saturating_sub(late.into());
        // QoS 1 may be sent before it is stored; its flag may be lost, its number is not.
        let next = self.outgoing.next_seq();
        let records = &self.records;
        let entries = records.iter().map(|(&seq, &(exactly_once, received))| {
            let place = Place::at(seq + 1);
            if received {
                return Restored::Release { seq, place };
            }
            let qos = if exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
            Restored::Message(Reference::to(Queued { seq, place, ..queued(seq, qos) }))
        });
        self.outgoing = Outgoing::restore(entries, sent, next);
        self.last_first_send = self.last_first_send.min(sent);
        self.next_place = next + 1;
        self.stored = self.next_place + 1;
        self.reconnect();
    }

    fn reconnect(&mut self) {
        self.outgoing.resume();
        self.released.clear();
        self.seen.clear();
    }
}

#[test]
fn what_is_taken_out_after_the_last_number_has_no_record() {
    let mut outgoing = numbered(7);
    for seq in 7..9 {
        let share = Some(Arc::from("$share/g/t"));
        let message = queued(seq, QoS::AtLeastOnce);
        let message = Queued { delivery: Delivery { share, ..message.delivery }, ..message };
        outgoing.enqueue(message, &BOUNDS, &mut Vec::new()).unwrap();
    }
    assert_eq!(step(&mut outgoing, Place::PENDING), Some((8, Some(false), 7)));
    outgoing.stop_numbers(|_| ());
    let taken = outgoing.take_shared();
    let taken: Vec<_> = taken.iter().map(|owed| (owed.seq(), owed.place())).collect();
    assert_eq!(taken, [(7, Place::NONE), (8, Place::NONE)]);
}

proptest! {
    #[test]
    fn a_client_gets_all_in_order_and_qos_2_once(events in events(), first in 1..200_000_u64) {
        let mut world = World {
            outgoing: numbered(first),
            records: BTreeMap::new(),
            next_place: 1,
            stored: 1,
            held: BTreeMap::new(),
            seen: BTreeSet::new(),
            released: Vec::new(),
            delivered: Vec::new(),
            last_first_send: 0,
        };
        for event in events {
            match event {
                Event::Enqueue(exactly_once) => world.enqueue(exactly_once),
                Event::Store => world.stored = world.next_place + 1,
                Event::Send(count) => (0..count).for_each(|_| world.send()),
                Event::Answer(at) => world.answer(at),
                Event::Reconnect => world.reconnect(),
                // Not of those that were sent on this connection.
                Event::Spill => {
                    world.outgoing.spill_all();
                    world.reconnect();
                }
                Event::Crash(late) => world.crash(late),
            }
            prop_assert_eq!(
                world.outgoing.queued() + world.outgoing.inflight(),
                world.records.len()
            );
        }
        // A client that answers everything ends with nothing owed.
        world.stored = u64::MAX;
        world.crash(0);
        for _ in 0..400 {
            world.send();
            world.answer(0);
            world.answer(1);
        }
        prop_assert_eq!((world.outgoing.queued(), world.outgoing.inflight()), (0, 0));
        prop_assert!(world.records.is_empty());
        prop_assert!(world.delivered.is_sorted(), "{:?}", world.delivered);
    }
}
