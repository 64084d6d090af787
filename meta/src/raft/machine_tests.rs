use std::ops::ControlFlow;
use std::sync::Mutex;

use openraft::EntryPayload;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::command::{Command, OpenSession, Reply};
use crate::raft::entry::{LeaderId, Membership};
use crate::raft::types::{Peer, Proposal};
use crate::record::{ClientKey, StoredMessage, StoredSubscription};
use crate::state::check;
use crate::steps::{APPLY_STEPS, StepOptions};
use crate::store::memory::{Fault, MemoryStore};
use crate::store::{Family, View};

type Dump = Vec<(Vec<u8>, Vec<u8>)>;

fn applier(store: Arc<MemoryStore>) -> (Applier, Arc<Mutex<Vec<Effect>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    let effects: EffectSink = Arc::new(move |new| sink.lock().expect("lock").extend(new));
    let steps = Arc::new(Steps::new(&APPLY_STEPS, 1, StepOptions::default()));
    let clock = || Duration::ZERO;
    (Applier { store, effects, steps, clock, cpu_clock: clock, position_apart: false }, told)
}

fn dump(view: &dyn View) -> Dump {
    let mut all = Dump::new();
    view.scan(Family::State, b"", None, &mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .expect("scans");
    all
}

fn entry(index: u64, payload: EntryPayload<Proposal, u64, Peer>) -> Entry {
    let leader_id = LeaderId { term: 1 + index / 10, node_id: 1 };
    Entry { log_id: LogId { leader_id, index }, payload }
}

fn proposal(commands: Vec<Command>) -> EntryPayload<Proposal, u64, Peer> {
    EntryPayload::Normal(Proposal { commands })
}

fn command(random: &mut SmallRng, index: u64) -> Command {
    let client = ClientKey {
        tenant: ["", "t"][random.random_range(0..2)].into(),
        client_id: format!("c{}", random.random_range(0..4)),
    };
    // often one that is too old, or was never given
    let epoch = random.random_range(index.saturating_sub(3)..=index);
    let topic = format!("topic/{}", random.random_range(0..6));
    match random.random_range(0..7) {
        0 | 1 => Command::OpenSession(OpenSession {
            client,
            clean_start: random.random_range(0..4) == 0,
            node: random.random_range(1..4),
            expiry_interval_s: 60,
            will: None,
            now_ms: index * 1000,
        }),
        2 => Command::EndSession { client, epoch, node: 1 },
        3 | 4 => {
            let subscription = StoredSubscription { filter: topic, options: 1, id: 0 };
            Command::Subscribe { client, epoch, subscriptions: vec![subscription] }
        }
        5 => Command::Retain(StoredMessage {
            topic,
            properties: Vec::new(),
            payload: vec![7; random.random_range(1..20)],
            qos: 1,
            expires_at_ms: None,
        }),
        _ => Command::Unretain { topic },
    }
}

fn entries(random: &mut SmallRng, count: u64) -> Vec<Entry> {
    let make = |index| match random.random_range(0..8) {
        0 => entry(index, EntryPayload::Blank),
        1 => {
            let voters = [1, 2, 3].into_iter().take(1 + index as usize % 3).collect();
            let membership = Membership::new_with_defaults(vec![voters], []);
            entry(index, EntryPayload::Membership(membership))
        }
        _ => {
            let count = random.random_range(1..4);
            entry(index, proposal((0..count).map(|_| command(random, index)).collect()))
        }
    };
    (1..=count).map(make).collect()
}

#[test]
fn what_a_crash_leaves_is_some_entries_whole_and_all_that_were_synced() {
    for seed in 0..150 {
        crash_once(seed);
    }
}

fn crash_once(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let count = random.random_range(1..40);
    let all = entries(&mut random, count);

    let reference = Arc::new(MemoryStore::new());
    let (one_by_one, effects_of_one) = applier(reference.clone());
    let mut after = vec![dump(&*reference)];
    let mut expected = Vec::new();
    for entry in &all {
        expected.extend(one_by_one.apply(vec![entry.clone()], None).expect("applies"));
        after.push(dump(&*reference));
    }

    let store = Arc::new(MemoryStore::new());
    let (mut batches, effects) = applier(store.clone());
    batches.position_apart = seed % 2 == 1;
    let (mut replies, mut synced, mut rest) = (Vec::new(), 0, all.as_slice());
    while !rest.is_empty() {
        let (batch, more) = rest.split_at(random.random_range(1..=rest.len().min(8)));
        replies.extend(batches.apply(batch.to_vec(), None).expect("applies"));
        rest = more;
        if random.random_range(0..3) == 0 {
            store.sync().expect("syncs");
            synced = all.len() - rest.len();
        }
    }
    assert_eq!(replies, expected, "seed {seed}: the size of a batch must not show");
    let told = |effects: &Mutex<Vec<Effect>>| format!("{:?}", effects.lock().expect("lock"));
    assert_eq!(told(&effects), told(&effects_of_one), "seed {seed}");
    assert_eq!(dump(&*store), after[all.len()], "seed {seed}");

    store.crash(random.random_range(0..=store.unsynced()));
    let position = Position::read(&*store).expect("reads");
    let applied = position.applied.map_or(0, |applied| applied.index as usize);
    assert!(applied >= synced, "seed {seed}");
    assert_eq!(dump(&*store), after[applied], "seed {seed}: half an entry");
    check(&*store).expect("consistent");
    let membership = all[..applied].iter().rev().find_map(|entry| match &entry.payload {
        EntryPayload::Membership(membership) => Some((entry.log_id, membership.clone())),
        _ => None,
    });
    let membership = membership.map(|(at, membership)| StoredMembership::new(Some(at), membership));
    assert_eq!(position.membership, membership.unwrap_or_default(), "seed {seed}");
}

#[test]
fn a_refusal_is_a_reply_and_stops_nothing() {
    let (applier, told) = applier(Arc::new(MemoryStore::new()));
    let remove = Command::RemoveUser { name: "nobody".into() };
    let set = Command::SetConfig { key: "k".into(), expected: Some(0), value: Some(vec![1]) };
    let commands = proposal(vec![remove, set.clone(), set]);
    let replies = applier.apply(vec![entry(1, commands)], None).expect("applies");
    let [Reply::Refused(_), Reply::Config { .. }, Reply::Refused(_)] = &replies[0].replies[..]
    else {
        panic!("{replies:?}");
    };
    assert_eq!(told.lock().expect("lock").len(), 1);
}

#[test]
fn a_failed_write_applies_nothing_and_tells_nobody() {
    let store = Arc::new(MemoryStore::new());
    let (applier, told) = applier(store.clone());
    let mut random = SmallRng::seed_from_u64(1);
    applier.apply(entries(&mut random, 10), None).expect("applies");
    let before = (dump(&*store), told.lock().expect("lock").len());
    store.inject(Fault::Write(0, "No space left on device".into()));
    for _ in 0..2 {
        let more = entry(11, proposal(vec![command(&mut random, 11), command(&mut random, 11)]));
        let error = applier.apply(vec![more], None).expect_err("full").to_string();
        assert!(error.contains("No space"), "{error}");
    }
    assert_eq!((dump(&*store), told.lock().expect("lock").len()), before);
}

#[test]
fn a_received_snapshot_is_whole_or_nothing() {
    use crate::raft::snapshot::{Import, ImportError};
    use crate::state::export::export;
    let from = Arc::new(MemoryStore::new());
    let mut random = SmallRng::seed_from_u64(5);
    applier(from.clone()).0.apply(entries(&mut random, 39), None).expect("applies");
    let checkpoint = from.checkpoint().expect("checkpoint");

    let to = Arc::new(MemoryStore::new());
    applier(to.clone()).0.apply(entries(&mut random, 5), None).expect("applies");
    let old = dump(&*to);
    let mut import = Import::begin(to.clone()).expect("begins");
    let mut last = false;
    while !last {
        let chunk = export(&*checkpoint, import.progress().last_key(), 200).expect("exports");
        last = chunk.last;
        let bytes = chunk.encode(import.progress().next_sequence());
        let mut damaged = bytes.clone();
        damaged[20] ^= 1;
        assert!(matches!(import.accept(&damaged), Err(ImportError::Chunk(_))));
        import.accept(&bytes).expect("fits");
    }
    assert_eq!(dump(&*to), old);
    let SnapshotData::Received(received) = import.finish().expect("whole") else {
        panic!("another kind");
    };
    assert!(format!("{received:?}").contains("index: 39"), "{received:?}");
    to.finish_import(crate::store::Batch::new()).expect("installs");
    assert_eq!(dump(&*to), dump(&*from));
    check(&*to).expect("consistent");

    let mut import = Import::begin(to).expect("begins");
    let chunk = export(&*checkpoint, None, 200).expect("exports");
    import.accept(&chunk.encode(0)).expect("fits");
    assert!(import.finish().expect_err("half").to_string().contains("last piece"));
}
