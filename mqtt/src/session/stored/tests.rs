use proptest::prelude::*;
use smallvec::SmallVec;

use super::super::message::Draft;
use super::super::outgoing::{Delivery, PubRecOutcome, QueueBounds, QueueFull, Queued, Step};
use super::*;
use crate::wire::{PacketId, QoS};

const AHEAD: ReadAhead = ReadAhead { messages: 4, bytes: 600 };

fn queued(number: u64, event: &New) -> Queued {
    let message = Message::keep(&Draft {
        topic: "t",
        payload: &number.to_be_bytes(),
        owner: None,
        properties: &[],
        qos: QoS::ExactlyOnce,
        retain: false,
        expires_at_ms: event.expires.then_some(number.max(1)).and_then(|at| at.try_into().ok()),
        origin: 0,
    });
    let delivery = Delivery {
        qos: if event.exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce },
        retain: event.exactly_once,
        subscription_ids: SmallVec::from_slice(&[7, 8][..usize::from(event.expires) * 2]),
        share: event.shared.then(|| Arc::from("$share/g/t")),
    };
    let place = if event.recorded { Place::PENDING } else { Place::NONE };
    Queued { place, ..Queued::new(Arc::new(message), delivery) }
}

#[derive(Clone, Debug)]
struct New {
    exactly_once: bool,
    shared: bool,
    expires: bool,
    recorded: bool,
}

#[derive(Clone, Debug)]
enum Event {
    New(New),
    /// All records get their places, and are stored.
    Store,
    /// Sends as much as there is in memory.
    Send(u16),
    Answer(u8),
    Reconnect,
    Away,
    /// Some of what is wanted is read.
    Read(u8),
    LeaveShare,
    StopNumbers,
    StartNumbers,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let new = any::<[bool; 4]>().prop_map(|[exactly_once, shared, a, b]| {
        Event::New(New { exactly_once, shared, expires: a && b, recorded: a || b })
    });
    let event = prop_oneof![
        8 => new,
        4 => Just(Event::Store),
        4 => (1..9_u16).prop_map(Event::Send),
        4 => any::<u8>().prop_map(Event::Answer),
        1 => Just(Event::Reconnect),
        2 => Just(Event::Away),
        4 => any::<u8>().prop_map(Event::Read),
        1 => Just(Event::LeaveShare),
    ];
    let rare =
        prop_oneof![30 => event, 1 => Just(Event::StopNumbers), 1 => Just(Event::StartNumbers)];
    prop::collection::vec(rare, 1..150)
}

/// One that keeps all in memory, as a model, and one that does not.
struct Both {
    plain: Outgoing,
    lean: Outgoing,
    /// By record.
    log: Vec<Arc<Message>>,
    untold: Vec<(u64, Place)>,
    bounds: QueueBounds,
    answers: Vec<(PacketId, bool, bool)>,
    now_ms: u64,
    /// They numbered no more for a while.
    stopped: bool,
}

impl Both {
    fn new_message(&mut self, number: u64, new: &New) {
        let queued = queued(number, new);
        let seq = self.plain.next_seq();
        let mut queued = queued;
        if seq == 0 {
            queued.place = Place::NONE;
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let plain = self.plain.enqueue(queued.clone(), &self.bounds, &mut a);
        let lean = self.lean.enqueue(queued.clone(), &self.bounds, &mut b);
        assert_eq!(plain, lean);
        self.same(&a, &b);
        if self.plain.next_seq() > seq && queued.place == Place::PENDING {
            self.log.push(queued.message);
            self.untold.push((seq, Place::at(self.log.len() as u64)));
        }
    }

    /// What is told of either is the same, but for records that are dead.
    fn same(&self, plain: &[Progress], lean: &[Progress]) {
        assert!(self.stopped || plain == lean, "{plain:?} is not {lean:?}");
    }

    fn store(&mut self) {
        for (seq, place) in std::mem::take(&mut self.untold) {
            let plain = self.plain.set_place(seq, false, place);
            assert_eq!(self.lean.set_place(seq, false, place), plain);
            if plain.is_some() {
                self.lean.spill(seq, AHEAD);
            }
        }
    }

    fn read(&mut self, most: u8) {
        let mut wanted = Vec::new();
        self.lean.wanted(AHEAD, &mut wanted);
        assert!(wanted.len() <= AHEAD.messages);
        for (seq, place) in wanted.into_iter().take(usize::from(most)) {
            let at = place.position().expect("it can be read") as usize - 1;
            self.lean.load(seq, self.log[at].clone());
        }
    }

    /// The next packet of both; false when there is none.
    fn send(&mut self, window: u16) -> bool {
        let stored = Place::at(self.log.len() as u64 + 1);
        let (mut expired, mut progress) = ([0, 0], [Vec::new(), Vec::new()]);
        let [a, b] = &mut progress;
        let (now_ms, bounds) = (self.now_ms, self.bounds);
        // The lean one first: it may have to wait for what is read.
        let lean = self.lean.next_step(window, &bounds, stored, now_ms, &mut expired[1], b);
        let lean = lean.map(|step| text(&step));
        if lean.is_none() && self.lean.has_stored() {
            assert!(self.lean.owes() || self.lean.inflight() > 0);
            // The other one may not go on, but drops what has expired before this.
            for _ in 0..expired[1] {
                let dropped = self.plain.queue.pop().expect("it has them too");
                let Owed::Here(queued) = dropped else { panic!("{dropped:?}") };
                assert!(queued.message.expires_at_ms().is_some());
                Progress::done(queued.seq, queued.place, a);
            }
            let (a, b) = (std::mem::take(a), std::mem::take(b));
            self.same(&a, &b);
            return false;
        }
        let plain = self.plain.next_step(window, &bounds, stored, now_ms, &mut expired[0], a);
        assert_eq!(plain.map(|step| text(&step)), lean);
        if let Some((id, exactly_once, _)) = lean {
            self.answers.push((id, exactly_once, false));
            return true;
        }
        false
    }

    fn answer(&mut self, at: u8) {
        if self.answers.is_empty() {
            return;
        }
        let at = usize::from(at) % self.answers.len();
        let (id, exactly_once, received) = self.answers.remove(at);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        if !exactly_once {
            let plain = self.plain.on_puback(id, &mut a);
            assert_eq!(plain, self.lean.on_puback(id, &mut b));
        } else if received {
            let plain = self.plain.on_pubcomp(id, &mut a);
            assert_eq!(plain, self.lean.on_pubcomp(id, &mut b));
        } else {
            let plain = self.plain.on_pubrec(id, false, &mut a);
            assert_eq!(plain, self.lean.on_pubrec(id, false, &mut b));
            if let [Progress::Received { seq, .. }] = b[..] {
                let place = Place::at(self.log.len() as u64);
                self.plain.set_place(seq, true, place);
                self.lean.set_place(seq, true, place);
            }
            if plain == PubRecOutcome::Release {
                self.answers.push((id, true, true));
            }
        }
        self.same(&a, &b);
    }

    fn leave_share(&mut self) {
        let plain = self.plain.take_queued_of("$share/g/t");
        let lean = self.lean.take_queued_of("$share/g/t");
        let all =
            |owed: &[Owed]| -> Vec<_> { owed.iter().map(|o| (o.seq(), o.size_bytes())).collect() };
        assert_eq!(all(&plain), all(&lean));
    }
}

fn text(step: &Step<'_>) -> (PacketId, bool, String) {
    match step {
        Step::Publish { id, dup, queued } => {
            let exactly_once = queued.delivery.qos == QoS::ExactlyOnce;
            let text = format!("{dup} {:?} {:?}", queued.message.draft().payload, queued.delivery);
            (*id, exactly_once, text)
        }
        Step::Release(id) => (*id, true, "release".into()),
    }
}

proptest! {
    #[test]
    fn nobody_can_tell_where_messages_are(events in events(), drop_old: bool) {
        let when_full = if drop_old { QueueFull::DropOld } else { QueueFull::DropNew };
        let bounds = QueueBounds { max_messages: 20, max_bytes: 1 << 20, when_full };
        let mut both = Both {
            plain: Outgoing::default(),
            lean: Outgoing::default(),
            log: Vec::new(),
            untold: Vec::new(),
            bounds,
            answers: Vec::new(),
            now_ms: 0,
            stopped: false,
        };
        both.plain.start_numbers(1);
        both.lean.start_numbers(1);
        for (number, event) in events.into_iter().enumerate() {
            both.now_ms = number as u64 / 2; // half of those with an expiry expire
            match event {
                Event::New(new) => both.new_message(number as u64, &new),
                Event::Store => both.store(),
                Event::Send(window) => while both.send(window) {},
                Event::Answer(at) => both.answer(at),
                Event::Reconnect | Event::Away => {
                    if matches!(event, Event::Away) {
                        both.lean.spill_all();
                    }
                    both.plain.resume();
                    both.lean.resume();
                    both.answers.clear();
                }
                Event::Read(most) => both.read(most % 5),
                Event::LeaveShare => both.leave_share(),
                Event::StopNumbers => {
                    both.untold.clear();
                    both.stopped = true;
                    both.plain.stop_numbers(|_| ());
                    both.lean.stop_numbers(|_| ());
                }
                Event::StartNumbers if both.plain.next_seq() > 0 => {}
                Event::StartNumbers => {
                    both.plain.start_numbers(1);
                    both.lean.start_numbers(1);
                }
            }
            let (plain, lean) = (&both.plain, &both.lean);
            prop_assert_eq!(plain.queued(), lean.queued());
            prop_assert_eq!(plain.queued_bytes(), lean.queued_bytes());
            prop_assert_eq!((plain.inflight(), plain.inflight_bytes), (lean.inflight(), lean.inflight_bytes));
            prop_assert_eq!(lean.stored(), lean.stored_places().count());
            prop_assert!(lean.queued_here_bytes() <= lean.queued_bytes());
        }
        // All of it comes in the end.
        both.store();
        both.plain.resume();
        both.lean.resume();
        both.answers.clear();
        for _ in 0..200 {
            both.read(9);
            while both.send(50) {}
            while !both.answers.is_empty() {
                both.answer(0);
            }
        }
        prop_assert_eq!((both.lean.queued(), both.lean.inflight(), both.lean.stored()), (0, 0, 0));
        prop_assert_eq!((both.lean.queued_bytes(), both.lean.inflight_bytes), (0, 0));
    }
}

#[test]
fn a_message_that_cannot_be_read_is_lost_alone() {
    let new = New { exactly_once: false, shared: false, expires: false, recorded: true };
    let bounds = QueueBounds { max_messages: 9, max_bytes: 1 << 20, when_full: QueueFull::DropNew };
    let mut out = Outgoing::default();
    out.start_numbers(1);
    for seq in 1..5 {
        out.enqueue(queued(seq, &new), &bounds, &mut Vec::new()).unwrap();
        out.set_place(seq, false, Place::at(seq));
    }
    let (mut expired, mut progress) = (0, Vec::new());
    let sent = out.next_step(9, &bounds, Place::PENDING, 0, &mut expired, &mut progress);
    assert!(sent.is_some());
    out.spill_all();
    out.resume();
    assert_eq!((out.stored(), out.queued_here_bytes()), (4, 0));
    let mut wanted = Vec::new();
    out.wanted(ReadAhead { messages: 3, bytes: 1 << 20 }, &mut wanted);
    assert_eq!(wanted, [1, 2, 3].map(|seq| (seq, Place::at(seq))));
    for seq in [1, 3, 7] {
        assert_eq!(out.lose(seq, Place::at(seq), &mut progress), seq < 7);
    }
    let done = |seq| Progress::Done { seq, place: Place::at(seq) };
    assert_eq!(progress, [done(1), done(3)]);
    for seq in [2, 4] {
        out.load(seq, queued(seq, &new).message);
        let step = out.next_step(9, &bounds, Place::PENDING, 0, &mut expired, &mut progress);
        assert!(
            matches!(step, Some(Step::Publish { dup: false, queued, .. }) if queued.seq == seq)
        );
    }
    assert_eq!((out.inflight(), out.stored()), (2, 0));
}

#[test]
fn reading_ahead_is_bounded_by_bytes_and_never_stuck() {
    let new = New { exactly_once: false, shared: false, expires: false, recorded: true };
    let bounds =
        QueueBounds { max_messages: 99, max_bytes: 1 << 20, when_full: QueueFull::DropNew };
    let mut out = Outgoing::default();
    out.start_numbers(1);
    for seq in 1..50 {
        out.enqueue(queued(seq, &new), &bounds, &mut Vec::new()).unwrap();
        out.set_place(seq, false, Place::at(seq));
        out.spill(seq, ReadAhead { messages: 10, bytes: 1 << 20 });
    }
    assert_eq!(out.stored(), 39, "the first ones stay");
    let size = queued(1, &new).size_bytes();
    let mut wanted = Vec::new();
    out.wanted(ReadAhead { messages: 10, bytes: 1 << 20 }, &mut wanted);
    assert!(wanted.is_empty());
    out.spill_all();
    out.wanted(ReadAhead { messages: 10, bytes: 5 * size }, &mut wanted);
    assert_eq!(wanted.len(), 5);
    wanted.clear();
    out.wanted(ReadAhead { messages: 10, bytes: 0 }, &mut wanted);
    assert_eq!(wanted.len(), 1);
}
