use mqtt::session::{QueueBounds, QueueFull, ReadAhead, Step};
use mqtt::wire::QoS;

use super::super::message_of;
use super::super::record::{Done, encode_moved, encode_publish, encode_sent, encode_target};
use super::*;

const BOUNDS: QueueBounds =
    QueueBounds { max_messages: 100, max_bytes: 1 << 20, when_full: QueueFull::DropNew };

/// A log in the making.
struct Log {
    replay: Replay,
    position: u64,
    records: HashMap<u64, Vec<u8>>,
}

impl Log {
    fn new() -> Self {
        Self { replay: Replay::new(), position: 4096, records: HashMap::new() }
    }

    fn push(&mut self, bytes: &[u8]) -> u64 {
        self.position += 64;
        self.replay.visit(self.position, bytes).expect("a record");
        self.records.insert(self.position, bytes.to_vec());
        self.position
    }

    fn publish(&mut self, payload: &str, origin: Option<Origin>, targets: &[(u64, u64)]) -> u64 {
        self.message(payload, origin, targets, None)
    }

    /// A publish, or one that was moved: its sessions were sent messages up to a number.
    fn message(
        &mut self,
        payload: &str,
        origin: Option<Origin>,
        targets: &[(u64, u64)],
        moved: Option<u64>,
    ) -> u64 {
        let head = PublishHead {
            qos: QoS::ExactlyOnce,
            retain: false,
            expires_at_ms: Some(6_000),
            origin,
            topic: "t",
            properties: &[],
            payload: payload.as_bytes(),
        };
        let (qos, retain, share) = (QoS::ExactlyOnce, false, None);
        let delivery = Delivery { qos, retain, subscription_ids: Default::default(), share };
        let (mut encoded, mut out) = (Vec::new(), Vec::new());
        for &(generation, seq) in targets {
            encode_target(Done { generation, seq }, &delivery, &mut encoded);
            if let Some(sent_seq) = moved {
                encode_sent(sent_seq, &mut encoded);
            }
        }
        match moved {
            None => encode_publish(&head, targets.len(), &encoded, &mut out),
            Some(_) => encode_moved(&head, targets.len(), &encoded, &mut out),
        }
        self.push(&out)
    }

    fn record(&mut self, record: Record<'_>) -> u64 {
        let mut out = Vec::new();
        record.encode(&mut out);
        self.push(&out)
    }

    /// Reads everything that is wanted. The wall clock is 1,000 ahead.
    fn read(&self, outgoing: &mut Outgoing) {
        let mut wanted = Vec::new();
        outgoing.wanted(ReadAhead { messages: 2, bytes: 1 << 20 }, &mut wanted);
        for (seq, place) in wanted {
            let record = &self.records[&place.position().expect("recorded")];
            outgoing.load(seq, Arc::new(message_of(record, 1_000).expect("a message")));
        }
    }

    /// What a client of the session gets after a start, as text.
    fn owed(&mut self, generation: u64) -> Vec<String> {
        let Some(recorded) = self.replay.take(generation) else { return Vec::new() };
        let (mut outgoing, _) = recorded.into_halves();
        outgoing.resume();
        let (mut expired, mut progress, mut owed) = (0, Vec::new(), Vec::new());
        let everything = Place::PENDING;
        loop {
            self.read(&mut outgoing);
            let step =
                outgoing.next_step(100, &BOUNDS, everything, 2_000, &mut expired, &mut progress);
            let Some(step) = step else { break };
            owed.push(match step {
                Step::Release(id) => format!("release {id}"),
                Step::Publish { id, dup, queued } => {
                    let payload =
                        String::from_utf8_lossy(queued.message.draft().payload).into_owned();
                    format!("{payload} {id}{}", if dup { " again" } else { "" })
                }
            });
        }
        owed
    }
}

fn done(generation: u64, seq: u64) -> Done {
    Done { generation, seq }
}

fn origin(generation: u64, id: u16) -> Origin {
    Origin { generation, id: PacketId::new(id).expect("not 0") }
}

#[test]
fn what_is_not_done_is_owed_in_the_order_of_numbers() {
    let mut log = Log::new();
    log.publish("a", None, &[(1, 1), (2, 1)]);
    log.publish("c", None, &[(1, 3)]);
    log.publish("b", None, &[(1, 2)]);
    log.publish("d", None, &[(1, 4), (1, 5)]);
    log.record(Record::Sent(done(1, 2)));
    log.record(Record::Received(done(1, 1)));
    log.record(Record::Done(vec![done(1, 4), done(2, 1)]));
    assert_eq!(log.replay.messages(), 4);
    assert_eq!(log.owed(1), ["release 2", "b 3 again", "c 4", "d 6"]);
    assert_eq!(log.owed(2), [""; 0]);
    assert_eq!(log.replay.messages(), 0);
}

#[test]
fn what_was_moved_is_owed_once_and_as_it_was() {
    // The begin of the log may be there still, or not.
    for begins in [true, false] {
        let mut log = Log::new();
        if begins {
            log.publish("a", Some(origin(9, 1)), &[(1, 1), (2, 1)]);
            log.publish("b", None, &[(1, 2)]);
            log.record(Record::Sent(done(1, 1)));
            log.record(Record::Taken(origin(9, 1)));
            log.record(Record::Done(vec![done(2, 1)]));
        }
        log.publish("c", None, &[(1, 3)]);
        log.message("a", None, &[(1, 1)], Some(1));
        log.message("b", None, &[(1, 2)], Some(1));
        log.replay.finish();
        assert_eq!(log.replay.take(9).is_some(), begins, "no exchange of it is open by a move");
        assert_eq!(log.owed(1), ["a 2 again", "b 3", "c 4"]);
        assert_eq!(log.owed(2), [""; 0]);
    }
    let mut log = Log::new();
    log.message("a", None, &[(1, 1)], Some(70));
    let (outgoing, _) = log.replay.take(1).expect("recorded").into_halves();
    assert_eq!(outgoing.next_seq(), 71 + SKIPPED, "numbers that were used are not used again");
}

#[test]
fn what_is_untaken_stays_known_where_it_is_told_last() {
    let mut log = Log::new();
    log.publish("a", Some(origin(9, 1)), &[(1, 1), (2, 1)]);
    log.publish("b", Some(origin(9, 2)), &[(1, 2)]);
    let again = Place::at(log.record(Record::Untaken(origin(9, 1), 1)));
    log.record(Record::Untaken(origin(9, 2), 1));
    log.record(Record::Taken(origin(9, 2)));
    log.replay.finish();
    let recorded = log.replay.take(1).expect("recorded");
    assert_eq!(recorded.unsettled, [(origin(9, 1), again)]);
    assert_eq!(log.replay.take(2).expect("recorded").unsettled.len(), 1);
}

#[test]
fn numbers_go_on_above_all_that_were_used() {
    let mut log = Log::new();
    log.record(Record::Sent(done(1, 70)));
    log.publish("a", None, &[(1, 60)]);
    log.record(Record::Done(vec![done(1, 60)]));
    let (outgoing, _) = log.replay.take(1).expect("recorded").into_halves();
    assert_eq!(outgoing.next_seq(), 71 + SKIPPED);
}

#[test]
fn expiry_follows_the_wall_clock() {
    let mut log = Log::new();
    log.publish("a", None, &[(1, 1)]);
    let (mut outgoing, _) = log.replay.take(1).expect("recorded").into_halves();
    log.read(&mut outgoing);
    let (mut expired, mut progress) = (0, Vec::new());
    let step = outgoing.next_step(9, &BOUNDS, Place::PENDING, 5_000, &mut expired, &mut progress);
    assert!(step.is_none(), "6,000 by the wall clock is 5,000 here");
    assert_eq!((expired, progress.len()), (1, 1));
}

#[test]
fn identifiers_are_open_until_released() {
    let mut log = Log::new();
    log.record(Record::Taken(origin(1, 7)));
    let place = log.record(Record::Taken(origin(1, 8)));
    log.record(Record::Released(origin(1, 7)));
    let (_, incoming) = log.replay.take(1).expect("recorded").into_halves();
    assert_eq!(incoming.len(), 1);
    assert_eq!(incoming.place(origin(1, 8).id), Some(Place::at(place)));
}

#[test]
fn a_publish_that_was_not_taken_is_remembered_for_those_who_have_it() {
    let mut log = Log::new();
    log.publish("a", Some(origin(9, 1)), &[(1, 1), (2, 1)]);
    log.record(Record::Taken(origin(9, 1)));
    log.record(Record::Released(origin(9, 1)));
    let b = Place::at(log.publish("b", Some(origin(9, 1)), &[(1, 2)]));
    let c = Place::at(log.publish("c", Some(origin(9, 2)), &[(2, 2), (3, 1)]));
    log.record(Record::Done(vec![done(2, 2)])); // QoS 1, acknowledged at once
    log.record(Record::Ended(3));
    log.replay.finish();
    let unsettled = |log: &mut Log, generation| {
        log.replay.take(generation).map(|recorded| recorded.unsettled).unwrap_or_default()
    };
    assert_eq!(unsettled(&mut log, 1), [(origin(9, 1), b)]);
    assert_eq!(unsettled(&mut log, 2), [(origin(9, 2), c)]);
    assert_eq!(unsettled(&mut log, 3), []);
    assert_eq!(log.replay.take_rest(), [9], "the publisher is not here");
}

#[test]
fn a_session_that_left_and_came_back_begins_anew() {
    let mut log = Log::new();
    log.publish("old", None, &[(1, 1)]);
    log.record(Record::Taken(origin(1, 1)));
    log.record(Record::Ended(1));
    log.publish("new", None, &[(1, 1)]);
    assert_eq!(log.owed(1), ["new 2"]);
}

#[test]
fn a_foreign_record_is_an_error() {
    let mut replay = Replay::new();
    let error = replay.visit(4096, b"\x7fwhatever").expect_err("refused");
    assert!(error.to_string().contains("0x7f"), "{error}");
}
