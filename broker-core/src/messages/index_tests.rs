//! A checkpoint and what comes behind it are as good as all records, whatever they are and wherever
//! checkpoints were made, and segments released.

use std::collections::BTreeMap;

use mqtt::wire::PacketId;
use proptest::prelude::*;

use super::super::record::{Done, PublishHead, Record, encode_publish, encode_target};
use super::*;

/// A record's position is a multiple of this.
const DISTANCE: u64 = 100;

type State = (BTreeMap<u64, Recorded>, BTreeMap<Origin, Vec<(u64, Place)>>);

fn state(replay: Replay) -> State {
    (replay.sessions.into_iter().collect(), replay.unsettled.into_iter().collect())
}

fn at(index: usize) -> u64 {
    (index as u64 + 1) * DISTANCE
}

/// What a checkpoint is for the ones who read: all of it, or an error.
fn load(blocks: &[Vec<u8>], replay: &mut Replay) {
    for block in blocks {
        replay.load(block).expect("own blocks");
    }
}

/// As `checkpoint::make` does it.
fn make(earlier: Option<&[Vec<u8>]>, records: &[(u64, Vec<u8>)], oldest: u64) -> Vec<Vec<u8>> {
    let mut since = Replay::new();
    since.is_change = earlier.is_some();
    let mut blocks = earlier.unwrap_or_default();
    while let Some((first, rest)) = blocks.split_first()
        && since.load_unsettled(first).expect("own blocks")
    {
        blocks = rest;
    }
    for (position, record) in records {
        since.visit(*position, record).expect("own records");
    }
    let mut merge = Merge::new(since, oldest);
    let mut made = Vec::new();
    for block in blocks {
        merge.add(block).expect("own blocks");
        made.extend(std::iter::from_fn(|| merge.take_block()));
    }
    while merge.rest() {
        made.extend(std::iter::from_fn(|| merge.take_block()));
    }
    made.extend(std::iter::from_fn(|| merge.take_block()));
    let mut read = Replay::new();
    load(&made, &mut read);
    assert_eq!(read.messages(), merge.messages());
    made
}

#[derive(Clone, Debug)]
enum Event {
    /// To sessions, each with a number, and whether with identifiers and a share group; an exchange.
    Publish(Vec<(u64, u64, bool)>, Option<(u64, u16)>),
    Done(Vec<(u64, u64)>),
    Received(u64, u64),
    Sent(u64, u64),
    Taken(u64, u16),
    Released(u64, u16),
    Ended(u64),
    /// A checkpoint is made of all so far.
    Checkpoint,
    /// So many of the records go that nobody is owed.
    Release(usize),
    /// A start, which reads the checkpoint and what is behind.
    Start,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let session = || 1..6_u64;
    let seq = || prop_oneof![4 => 1..12_u64, 1 => 1_000..1_003_u64];
    let targets = prop::collection::vec((session(), seq(), any::<bool>()), 1..4);
    let origin = || (session(), 1..4_u16);
    let event = prop_oneof![
        8 => (targets, prop::option::of(origin())).prop_map(|(to, by)| Event::Publish(to, by)),
        4 => prop::collection::vec((session(), seq()), 1..4).prop_map(Event::Done),
        2 => (session(), seq()).prop_map(|(to, seq)| Event::Received(to, seq)),
        2 => (session(), seq()).prop_map(|(to, seq)| Event::Sent(to, seq)),
        3 => origin().prop_map(|(by, id)| Event::Taken(by, id)),
        2 => origin().prop_map(|(by, id)| Event::Released(by, id)),
        1 => session().prop_map(Event::Ended),
        2 => Just(Event::Checkpoint),
        2 => (0..20_usize).prop_map(Event::Release),
        2 => Just(Event::Start),
    ];
    prop::collection::vec(event, 1..80)
}

fn done((generation, seq): (u64, u64)) -> Done {
    Done { generation, seq }
}

fn origin((generation, id): (u64, u16)) -> Origin {
    Origin { generation, id: PacketId::new(id).expect("not 0") }
}

fn encoded(event: &Event) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match event {
        Event::Publish(targets, by) => {
            let head = PublishHead {
                qos: QoS::ExactlyOnce,
                retain: false,
                expires_at_ms: None,
                origin: by.map(origin),
                topic: "t",
                properties: &[],
                payload: &vec![b'x'; targets.len() * 50],
            };
            let mut encoded = Vec::new();
            for &(generation, seq, more) in targets {
                let delivery = Delivery {
                    qos: if more { QoS::AtLeastOnce } else { QoS::ExactlyOnce },
                    retain: more,
                    subscription_ids: SmallVec::from_slice(if more { &[1, 70_000] } else { &[] }),
                    share: more.then(|| Arc::from("$share/g/t")),
                };
                encode_target(done((generation, seq)), &delivery, &mut encoded);
            }
            encode_publish(&head, targets.len(), &encoded, &mut out);
        }
        Event::Done(all) => {
            Record::Done(all.iter().copied().map(done).collect()).encode(&mut out);
        }
        Event::Received(to, seq) => Record::Received(done((*to, *seq))).encode(&mut out),
        Event::Sent(to, seq) => Record::Sent(done((*to, *seq))).encode(&mut out),
        Event::Taken(by, id) => Record::Taken(origin((*by, *id))).encode(&mut out),
        Event::Released(by, id) => Record::Released(origin((*by, *id))).encode(&mut out),
        Event::Ended(session) => Record::Ended(*session).encode(&mut out),
        Event::Checkpoint | Event::Release(_) | Event::Start => return None,
    }
    Some(out)
}

/// The first position that something is owed at; `end` when there is none.
fn first_owed(replay: &Replay, end: u64) -> u64 {
    let sessions = replay.sessions.values();
    let messages = sessions.flat_map(|session| {
        let messages = session.messages.values().flatten().map(Restored::place);
        messages.chain(session.taken.values().copied())
    });
    let unsettled = replay.unsettled.values().flatten().map(|(_, place)| *place);
    messages.chain(unsettled).filter_map(Place::position).min().unwrap_or(end)
}

/// What sessions are owed, and exchanges: all but numbers, of which a checkpoint may know more than the
/// records that are left.
fn owed(replay: Replay) -> State {
    let (mut sessions, unsettled) = state(replay);
    for session in sessions.values_mut() {
        (session.sent_seq, session.last_seq) = (0, 0);
        session.mentioned = Place::NONE;
    }
    sessions.retain(|_, session| *session != Recorded::default());
    (sessions, unsettled)
}

proptest! {
    #[test]
    fn a_checkpoint_and_the_rest_are_as_good_as_all(events in events()) {
        // What nobody ever forgets.
        let mut all = Replay::new();
        let mut records: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut oldest = 0;
        let mut checkpoint: Option<(usize, Vec<Vec<u8>>)> = None;
        for event in events {
            match &event {
                Event::Checkpoint => {
                    let earlier = checkpoint.take();
                    // One that ends in what was released says nothing about the rest.
                    let earlier = earlier.filter(|(end, _)| *end > 0 && at(end - 1) >= oldest);
                    let begin = match &earlier {
                        Some((end, _)) => *end,
                        None => records.partition_point(|(position, _)| *position < oldest),
                    };
                    let earlier = earlier.as_ref().map(|(_, blocks)| &blocks[..]);
                    let made = make(earlier, &records[begin..], oldest);
                    checkpoint = (records.len() > begin || earlier.is_some())
                        .then_some((records.len(), made));
                }
                Event::Release(count) => {
                    let wanted = oldest.max(*count as u64 * DISTANCE);
                    oldest = wanted.min(first_owed(&all, at(records.len()))).max(oldest);
                }
                Event::Start => {
                    let left = || records.iter().filter(|(position, _)| *position >= oldest);
                    let mut rest = Replay::new();
                    for (position, record) in left() {
                        rest.visit(*position, record).expect("own records");
                    }
                    let mut started = Replay::new();
                    if let Some((end, blocks)) = &checkpoint
                        && *end > 0
                        && at(end - 1) >= oldest
                    {
                        load(blocks, &mut started);
                        for (position, record) in &records[*end..] {
                            started.visit(*position, record).expect("own records");
                        }
                    } else {
                        checkpoint = None; // as a start does
                        for (position, record) in left() {
                            started.visit(*position, record).expect("own records");
                        }
                    }
                    started.forget_before(oldest);
                    // Numbers go on above all that are found in what is left.
                    for (generation, session) in &rest.sessions {
                        let started = &started.sessions[generation];
                        prop_assert!(started.last_seq >= session.last_seq);
                        prop_assert!(started.sent_seq >= session.sent_seq);
                        prop_assert_eq!(started.mentioned, session.mentioned);
                    }
                    let started = owed(started);
                    prop_assert_eq!(&started, &owed(rest), "what is left");
                }
                event => {
                    let record = encoded(event).expect("a record");
                    let position = at(records.len());
                    all.visit(position, &record).expect("own records");
                    records.push((position, record));
                }
            }
        }
    }

    /// Nothing is released: then it is the same to the last number.
    #[test]
    fn checkpoints_upon_checkpoints_lose_nothing(events in events(), cuts in prop::collection::vec(0..80_usize, 0..6)) {
        let records: Vec<_> = events.iter().filter_map(encoded).enumerate()
            .map(|(index, record)| (at(index), record)).collect();
        let mut all = Replay::new();
        for (position, record) in &records {
            all.visit(*position, record).expect("own records");
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| (*cut).min(records.len())).collect();
        cuts.sort_unstable();
        let (mut begin, mut checkpoint) = (0, None);
        for cut in cuts {
            checkpoint = Some(make(checkpoint.as_deref(), &records[begin..cut], 0));
            begin = cut;
        }
        let mut started = Replay::new();
        load(checkpoint.as_deref().unwrap_or_default(), &mut started);
        for (position, record) in &records[begin..] {
            started.visit(*position, record).expect("own records");
        }
        prop_assert_eq!(state(started), state(all));
    }

    #[test]
    fn hostile_blocks_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 1..3_u8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        let _ = Replay::new().load(&bytes);
        let mut merge = Merge::new(Replay::new(), 0);
        if merge.add(&bytes).is_ok() {
            // Whatever is read can be written again.
            while merge.rest() {}
            let mut read = Replay::new();
            load(&Vec::from_iter(std::iter::from_fn(|| merge.take_block())), &mut read);
            prop_assert_eq!(read.messages(), merge.messages());
        }
    }
}

#[test]
fn a_long_session_is_several_entries_and_blocks() {
    let mut replay = Replay::new();
    let mut position = 0;
    for seq in 1..=200_000 {
        position += 64;
        let record = encoded(&Event::Publish(vec![(7, seq, seq % 1_000 == 0)], None));
        replay.visit(position, &record.expect("a record")).expect("own records");
    }
    let messages = replay.sessions[&7].messages.clone();
    let mut merge = Merge::new(replay, 0);
    while merge.rest() {}
    let blocks: Vec<_> = std::iter::from_fn(|| merge.take_block()).collect();
    assert!(blocks.len() > 2, "{}", blocks.len());
    let bytes: usize = blocks.iter().map(Vec::len).sum();
    assert!(blocks.iter().all(|block| block.len() < 2 * BLOCK_BYTES));
    assert!(bytes < 200_000 * 8, "{bytes} bytes");
    let mut read = Replay::new();
    load(&blocks, &mut read);
    assert_eq!(read.sessions[&7].messages, messages);
    // and a change in the middle of it
    let record = encoded(&Event::Done((1..150_000).map(|seq| (7, seq)).collect()));
    let blocks = make(Some(&blocks), &[(position + 64, record.expect("a record"))], 0);
    let mut read = Replay::new();
    load(&blocks, &mut read);
    assert_eq!(read.messages(), 50_001);
}

#[test]
fn sessions_are_in_order_and_the_rest_of_one_that_was_released_is_forgotten() {
    let record = |event| encoded(&event).expect("a record");
    let records: Vec<_> = [
        record(Event::Sent(9, 5)),
        record(Event::Publish(vec![(3, 1, false)], None)),
        record(Event::Publish(vec![(5, 1, true)], Some((2, 1)))),
    ]
    .into_iter()
    .enumerate()
    .map(|(index, record)| (at(index), record))
    .collect();
    let blocks = make(None, &records, 0);
    assert_eq!(blocks.len(), 2, "exchanges apart from sessions");
    let sessions = |blocks: &[Vec<u8>]| {
        let mut replay = Replay::new();
        load(blocks, &mut replay);
        state(replay).0.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(sessions(&blocks), [3, 5, 9]);
    assert_eq!(sessions(&make(Some(&blocks), &[], at(1))), [3, 5]);
    let mut merge = Merge::new(Replay::new(), 0);
    merge.add(&blocks[1]).expect("in order");
    assert!(merge.add(&blocks[1]).is_err(), "3 behind 9");
}

#[test]
fn a_message_is_short() {
    assert_eq!(size_of::<Option<Restored>>(), 32);
}
