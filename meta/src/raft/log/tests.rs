use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::EntryPayload;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rt_abstract::Shared;

use super::io::{Io, Operation};
use super::reader::LogReader;
use super::tail::Tail;
use crate::command::Command;
use crate::raft::entry::{Entry, LeaderId, LogId, Vote};
use crate::raft::types::Proposal;
use crate::store::memory::{Fault, MemoryStore};
use crate::store::{Store, StoreError};

fn position(term: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id: 1 }, index }
}

fn entry(term: u64, index: u64) -> Arc<Entry> {
    let commands = vec![Command::Unretain { topic: format!("topic/{index}") }];
    let payload = EntryPayload::Normal(Proposal { commands });
    Arc::new(Entry { log_id: position(term, index), payload })
}

fn entries(term: u64, indexes: std::ops::Range<u64>) -> Vec<Arc<Entry>> {
    indexes.map(|index| entry(term, index)).collect()
}

fn start(store: &Arc<MemoryStore>) -> Arc<Io> {
    Io::start(store.clone(), Box::new(|_| {})).expect("threads")
}

fn load(store: &Arc<MemoryStore>) -> Result<Tail, StoreError> {
    Tail::load(&**store, 8, usize::MAX)
}

fn wait(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it does not happen");
        std::thread::yield_now();
    }
}

/// Everything that is in the log, read through `tail`.
fn contents(tail: Tail, store: &Arc<MemoryStore>) -> Vec<LogId> {
    let reader = LogReader::<()>::new(Shared::new(tail), store.clone());
    let all = reader.read(0, u64::MAX, usize::MAX, usize::MAX).expect("reads");
    all.iter().map(|entry| entry.log_id).collect()
}

#[test]
fn a_tail_keeps_what_is_not_written_and_drops_what_is() {
    let store = Arc::new(MemoryStore::new());
    let mut tail = load(&store).expect("empty");
    tail.append(&entries(1, 1..21), 1, 0).expect("fits");
    assert_eq!(tail.in_memory(), 20);
    tail.append(&entries(1, 21..23), 2, 1).expect("fits");
    assert_eq!((tail.in_memory(), tail.first()), (8, 1));
    let plan = tail.plan(0, u64::MAX, usize::MAX, usize::MAX);
    assert_eq!((plan.stored, plan.entries.len()), (1..15, 8));
    let plan = tail.plan(16, 19, usize::MAX, usize::MAX);
    assert_eq!((plan.stored.is_empty(), plan.entries.len()), (true, 3));
    let plan = tail.plan(16, 19, 2, usize::MAX);
    assert_eq!(plan.entries.len(), 2);
    let plan = tail.plan(16, 19, usize::MAX, 1);
    assert_eq!(plan.entries.len(), 1);
    assert!(tail.append(&entries(1, 24..25), 3, 2).is_err());
    assert_eq!(tail.last, Some(position(1, 22)));
}

#[test]
fn a_tail_is_cut_at_both_ends() {
    let store = Arc::new(MemoryStore::new());
    let mut tail = load(&store).expect("empty");
    tail.append(&entries(1, 1..21), 1, 0).expect("fits");
    tail.append(&entries(1, 21..23), 2, 1).expect("fits");
    assert_eq!(tail.truncate(Some(position(1, 30))), None);
    assert_eq!(tail.truncate(Some(position(1, 20))), Some(21));
    assert_eq!(tail.truncate(Some(position(1, 12))), Some(13));
    assert_eq!((tail.in_memory(), tail.last), (0, Some(position(1, 12))));
    tail.append(&entries(2, 13..15), 5, 4).expect("fits");
    let plan = tail.plan(12, 20, usize::MAX, usize::MAX);
    assert_eq!((plan.stored, plan.entries.len()), (12..13, 2));
    assert_eq!(tail.purge(position(1, 13)), (1, position(1, 13)));
    assert_eq!((tail.first(), tail.last, tail.in_memory()), (14, Some(position(2, 14)), 1));
    assert_eq!(tail.purge(position(2, 20)), (14, position(2, 20)));
    assert_eq!(tail.purge(position(2, 15)), (21, position(2, 20)));
    assert_eq!((tail.last, tail.purged), (None, Some(position(2, 20))));
    assert!(tail.append(&entries(2, 20..21), 6, 6).is_err());
    tail.append(&entries(2, 21..22), 6, 6).expect("fits");
    assert_eq!(tail.truncate(None), Some(21));
    assert_eq!((tail.last, tail.purged), (None, Some(position(2, 20))));
}

#[test]
fn a_read_joins_the_store_and_the_memory() {
    let store = Arc::new(MemoryStore::new());
    let io = start(&store);
    let mut tail = load(&store).expect("empty");
    for (operation, range) in [(1, 1..11), (2, 11..21)] {
        let written = io.written();
        tail.append(&entries(1, range.clone()), operation, written).expect("fits");
        io.give(Operation::Append(entries(1, range)));
        wait(|| io.written() == operation);
    }
    assert_eq!(tail.in_memory(), 10);
    let reader = LogReader::<()>::new(Shared::new(tail), store.clone());
    let indexes = |from, to, count, bytes| -> Vec<u64> {
        let read = reader.read(from, to, count, bytes).expect("reads");
        read.iter().map(|entry| entry.log_id.index).collect()
    };
    assert_eq!(indexes(0, u64::MAX, usize::MAX, usize::MAX), (1..21).collect::<Vec<_>>());
    assert_eq!(indexes(8, 13, usize::MAX, usize::MAX), [8, 9, 10, 11, 12]);
    assert_eq!(indexes(8, 13, 4, usize::MAX), [8, 9, 10, 11]);
    assert_eq!(indexes(8, 13, usize::MAX, 1), [8]);
    assert_eq!(indexes(9, 13, usize::MAX, 3 * 512), [9, 10, 11]);
    assert_eq!(indexes(30, 40, 1, 1), [0_u64; 0]);
    io.end();
    io.join();
}

#[test]
fn nothing_is_durable_before_its_sync() {
    let store = Arc::new(MemoryStore::new());
    store.inject(Fault::HoldSync);
    let io = start(&store);
    io.give(Operation::Append(entries(1, 1..3)));
    io.give(Operation::Append(entries(1, 3..5)));
    wait(|| io.written() == 2);
    assert_eq!(io.synced(), 0);
    store.clear_faults();
    wait(|| io.synced() == 2);
    io.end();
    io.join();
    store.crash(0);
    assert_eq!(load(&store).expect("loads").last, Some(position(1, 4)));
}

#[test]
fn a_failure_is_the_end() {
    for fault in [
        Fault::Write(1, "No space left on device".into()),
        Fault::Sync(1, "Input/output error".into()),
    ] {
        let store = Arc::new(MemoryStore::new());
        store.inject(fault.clone());
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let hook = told.clone();
        let hook = move |error: &StoreError| hook.lock().expect("lock").push(error.to_string());
        let io = Io::start(store.clone(), Box::new(hook)).expect("threads");
        io.give(Operation::Vote(Vote::new(1, 1)));
        wait(|| io.synced() == 1);
        io.give(Operation::Append(entries(1, 1..3)));
        wait(|| io.finished());
        io.give(Operation::Append(entries(1, 3..5)));
        io.join();
        assert_eq!(io.synced(), 1);
        let failed = io.failed().expect("failed").to_string();
        assert_eq!(*told.lock().expect("lock"), std::slice::from_ref(&failed)[..]);
        assert!(failed.contains("space") || failed.contains("Input"), "{failed}");
        store.crash(0);
        let tail = load(&store).expect("loads");
        assert_eq!((tail.last, tail.vote), (None, Some(Vote::new(1, 1))), "{fault:?}");
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    use crate::store::{Batch, Family};
    let store = Arc::new(MemoryStore::new());
    let mut batch = Batch::new();
    batch.put(Family::Meta, super::PURGED, crate::raft::entry::encode_position(&position(1, 4)));
    batch.put(Family::Log, super::key(6), crate::raft::entry::encode_entry(&entry(1, 6)));
    store.write(batch).expect("write");
    let error = load(&store).expect_err("a hole").to_string();
    assert!(error.contains("purged up to entry 4 and begins with entry 6"), "{error}");
    let mut batch = Batch::new();
    batch.put(Family::Log, super::key(5), crate::raft::entry::encode_entry(&entry(1, 5)));
    batch.put(Family::Log, super::key(7), crate::raft::entry::encode_entry(&entry(1, 8)));
    store.write(batch).expect("write");
    assert!(load(&store).expect_err("misplaced").to_string().contains("entry 8"));
    let mut batch = Batch::new();
    batch.put(Family::Log, super::key(8), crate::raft::entry::encode_entry(&entry(1, 8)));
    batch.delete(Family::Log, super::key(7));
    store.write(batch).expect("write");
    let tail = load(&store).expect("its ends look well");
    let reader = LogReader::<()>::new(Shared::new(tail), store);
    let error = reader.read(0, 20, usize::MAX, usize::MAX).expect_err("a hole").to_string();
    assert!(error.contains("log entry 7 is missing"), "{error}");
}

/// The log after each operation: the votes and entries that a crash may leave are one of these.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    vote: Option<Vote>,
    purged: Option<LogId>,
    entries: Vec<LogId>,
}

#[test]
fn a_crash_leaves_a_state_that_was_and_none_older_than_what_was_told() {
    for seed in 0..150 {
        crash_once(seed);
    }
}

fn crash_once(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let store = Arc::new(MemoryStore::new());
    let io = start(&store);
    let mut tail = load(&store).expect("empty");
    let mut states = vec![Model::default()];
    let mut term = 1;
    for number in 1..random.random_range(2..60) {
        let mut model = states.last().cloned().unwrap_or_default();
        let next = tail.last.or(tail.purged).map_or(1, |last| last.index + 1);
        let operation = match random.random_range(0..10) {
            0 => {
                term += 1;
                let vote = Vote::new(term, 1);
                model.vote = Some(vote);
                Operation::Vote(vote)
            }
            1 if tail.last.is_some() => {
                let keep = random.random_range(0..model.entries.len());
                let after = keep.checked_sub(1).map(|at| model.entries[at]).or(tail.purged);
                model.entries.truncate(keep);
                let from = tail.truncate(after).expect("something goes");
                Operation::Truncate(from)
            }
            2 if tail.last.is_some() => {
                let upto = model.entries[random.random_range(0..model.entries.len())];
                model.entries.retain(|one| one.index > upto.index);
                model.purged = Some(upto);
                let (from, upto) = tail.purge(upto);
                Operation::Purge(from, upto)
            }
            _ => {
                let new = entries(term, next..next + random.random_range(1..5));
                model.entries.extend(new.iter().map(|one| one.log_id));
                tail.append(&new, number, io.written()).expect("fits");
                Operation::Append(new)
            }
        };
        io.give(operation);
        states.push(model);
        if random.random_range(0..4) == 0 {
            std::thread::yield_now();
        }
        if random.random_range(0..20) == 0 {
            wait(|| io.written() == number);
        }
    }
    let newest = states.last().cloned().unwrap_or_default();
    assert_eq!(contents(tail, &store), newest.entries, "seed {seed}");
    store.close();
    let told = usize::try_from(io.synced()).expect("small");
    io.end();
    io.join();
    store.crash(random.random_range(0..=store.unsynced()));
    let tail = load(&store).expect("loads");
    let found = Model { vote: tail.vote, purged: tail.purged, entries: Vec::new() };
    let found = Model { entries: contents(tail, &store), ..found };
    assert!(states[told..].contains(&found), "seed {seed}: told {told}, found {found:?}");
}
