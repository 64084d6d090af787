//! The raft log and the state machine on both stores: openraft's own suite, and what it leaves out.

use std::io;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use meta::command::Command;
use meta::raft::entry::{Entry, LeaderId, LogId, Vote};
use meta::raft::log::{LogHandle, LogOptions, LogStore};
use meta::raft::machine::{ApplyMode, Machine};
use meta::raft::snapshot::{Import, SnapshotData};
use meta::raft::types::{Proposal, TypeConfig};
use meta::state::{Effect, check};
use meta::steps::{APPLY_STEPS, StepOptions, Steps};
use meta::store::memory::MemoryStore;
use meta::store::rocks::RocksStore;
use meta::store::{Batch, Family, Store, View};
use openraft::storage::{IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, RaftLogReader, RaftSnapshotBuilder, StorageError};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};

in_each_column!(
    suite_in_memory_inline,
    suite_in_memory_threaded,
    suite_in_memory_each,
    suite_in_memory_position_apart,
    suite_on_rocksdb_inline,
    suite_on_rocksdb_threaded,
    a_log_is_there_after_reopening,
    a_state_and_its_snapshot_travel,
);

/// The node whose store it is.
pub const NODE: u64 = 1;

/// Makes stores for openraft's suite.
struct Builder<R> {
    in_memory: bool,
    mode: ApplyMode,
    runtime: PhantomData<fn() -> R>,
}

/// Ends a store when a case of the suite is over.
pub struct Guard {
    log: LogHandle,
    store: Arc<dyn Store>,
    _dir: Option<TempDir>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.log.close();
        self.store.close();
    }
}

impl<R: Runtime> StoreBuilder<TypeConfig<R>, LogStore<R>, Machine<R>, Guard> for Builder<R> {
    async fn build(&self) -> Result<(Guard, LogStore<R>, Machine<R>), StorageError<TypeConfig<R>>> {
        let dir = (!self.in_memory).then(|| TempDir::new().expect("a directory"));
        let store: Arc<dyn Store> = match &dir {
            Some(dir) => Arc::new(RocksStore::open(dir.path(), NODE).expect("opens")),
            None => Arc::new(MemoryStore::new()),
        };
        // few enough entries in memory for the store to be read as well
        let options = LogOptions { tail_entries: 4, ..LogOptions::default() };
        let log = LogStore::<R>::open(store.clone(), options).expect("opens");
        let machine = machine::<R>(&store, self.mode).0;
        Ok((Guard { log: log.handle(), store, _dir: dir }, log, machine))
    }
}

/// A state machine, and what watchers are told.
pub fn machine<R: Runtime>(
    store: &Arc<dyn Store>,
    mode: ApplyMode,
) -> (Machine<R>, Arc<Mutex<Vec<Effect>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    let sink = Arc::new(move |new| sink.lock().expect("lock").extend::<Vec<_>>(new));
    let steps = Arc::new(Steps::new(&APPLY_STEPS, 1, StepOptions::default()));
    let machine = Machine::new(store.clone(), sink, mode, steps);
    (machine.expect("a thread"), told)
}

fn suite<R: Runtime>(options: &RunOptions, in_memory: bool, mode: ApplyMode) {
    run::<R, _, _>(options, move || async move {
        let builder = Builder::<R> { in_memory, mode, runtime: PhantomData };
        Suite::test_all(builder).await.expect("the suite");
    });
}

fn suite_in_memory_inline<R: Runtime>(options: &RunOptions) {
    suite::<R>(options, true, ApplyMode::Inline);
}

fn suite_in_memory_threaded<R: Runtime>(options: &RunOptions) {
    suite::<R>(options, true, ApplyMode::Thread);
}

fn suite_in_memory_each<R: Runtime>(options: &RunOptions) {
    suite::<R>(options, true, ApplyMode::Each);
}

fn suite_in_memory_position_apart<R: Runtime>(options: &RunOptions) {
    suite::<R>(options, true, ApplyMode::PositionApart);
}

fn suite_on_rocksdb_inline<R: Runtime>(options: &RunOptions) {
    suite::<R>(options, false, ApplyMode::Inline);
}

fn suite_on_rocksdb_threaded<R: Runtime>(options: &RunOptions) {
    suite::<R>(options, false, ApplyMode::Thread);
}

/// A position of term 1.
pub fn position(index: u64) -> LogId {
    LogId { leader_id: LeaderId { term: 1, node_id: NODE }, index }
}

/// An entry that sets a key of the configuration.
pub fn entry(index: u64) -> Entry {
    let key = format!("key/{}", index % 100);
    let command = Command::SetConfig { key, expected: None, value: Some(vec![7; 40]) };
    let payload = EntryPayload::Normal(Proposal { commands: vec![command] });
    Entry { log_id: position(index), payload }
}

/// Appends and waits until it is durable.
pub async fn append<R: Runtime>(log: &mut LogStore<R>, entries: Vec<Entry>) -> io::Result<()> {
    let (done, flushed) = TypeConfig::<R>::oneshot();
    log.append(entries, IOFlushed::signal(done)).await?;
    flushed.await.expect("the callback is called")
}

/// Opens the log, which reports failures to nobody.
pub fn open_log<R: Runtime>(store: &Arc<dyn Store>) -> LogStore<R> {
    LogStore::open(store.clone(), LogOptions::default()).expect("opens")
}

async fn close<R: Runtime>(log: LogStore<R>, store: Arc<dyn Store>) {
    let handle = log.handle();
    drop(log);
    R::spawn_blocking(move || {
        handle.close();
        store.close();
    })
    .await
    .expect("closes");
}

fn open(dir: &Path) -> Arc<dyn Store> {
    Arc::new(RocksStore::open(dir, NODE).expect("opens"))
}

fn a_log_is_there_after_reopening<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let store = open(dir.path());
        let mut log = open_log::<R>(&store);
        append(&mut log, (1..2_001).map(entry).collect()).await.expect("appends");
        log.save_vote(&Vote::new_committed(1, NODE)).await.expect("saves");
        log.truncate_after(Some(position(1_900))).await.expect("truncates");
        log.purge(position(50)).await.expect("purges");
        log.save_committed(Some(position(1_800))).await.expect("notes");
        append(&mut log, (1_901..1_911).map(entry).collect()).await.expect("appends");
        close(log, store).await;

        let store = open(dir.path());
        let mut log = open_log::<R>(&store);
        let state = log.get_log_state().await.expect("reads");
        assert_eq!(state.last_purged_log_id, Some(position(50)));
        assert_eq!(state.last_log_id, Some(position(1_910)));
        assert_eq!(log.read_committed().await.expect("reads"), Some(position(1_800)));
        let mut reader = log.get_log_reader().await;
        let vote = reader.read_vote().await.expect("reads");
        assert_eq!(vote, Some(Vote::new_committed(1, NODE)));
        let all = reader.try_get_log_entries(..).await.expect("reads");
        assert_eq!(all, (51..1_911).map(entry).collect::<Vec<_>>());
        let some = reader.limited_get_log_entries(51, 1_911).await.expect("reads");
        assert_eq!(some, (51..51 + some.len() as u64).map(entry).collect::<Vec<_>>());
        assert!(some.len() < all.len());
        append(&mut log, vec![entry(1_911)]).await.expect("appends");
        let handle = log.handle();
        close(log, store).await;
        assert!(handle.failed().is_none());
    });
}

/// Applies entries that nobody waits for.
pub async fn apply<R: Runtime>(machine: &mut Machine<R>, entries: Vec<Entry>) -> io::Result<()> {
    let entries = entries.into_iter().map(|entry| Ok((entry, None)));
    machine.apply(futures_util::stream::iter(entries)).await
}

fn a_state_and_its_snapshot_travel<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let (from_dir, to_dir) = (TempDir::new(), TempDir::new());
        let (from_dir, to_dir) = (from_dir.expect("a directory"), to_dir.expect("a directory"));
        let (from, to) = (open(from_dir.path()), open(to_dir.path()));
        let (mut source, _) = machine::<R>(&from, ApplyMode::Thread);
        let (mut target, told) = machine::<R>(&to, ApplyMode::Inline);
        apply(&mut source, (1..3_001).map(entry).collect()).await.expect("applies");
        apply(&mut target, (1..11).map(entry).collect()).await.expect("applies");
        assert!(source.get_current_snapshot().await.expect("reads").is_none());
        let mut builder = source.try_create_snapshot_builder(true).await.expect("a builder");
        let built = builder.build_snapshot().await.expect("builds");
        assert_eq!(built.meta.last_log_id, Some(position(3_000)));

        let snapshot = source.get_current_snapshot().await.expect("makes one").expect("one");
        let SnapshotData::Local(local) = snapshot.snapshot else { panic!("no data") };
        // the snapshot does not change while the state goes on
        apply(&mut source, (3_001..3_051).map(entry).collect()).await.expect("applies");
        let mut import = Import::begin(to.clone()).expect("begins");
        while !import.progress().is_finished() {
            let chunk = local.chunk(import.progress().last_key(), 512).expect("reads");
            let sequence = import.progress().next_sequence();
            import.accept(&chunk.encode(sequence)).expect("fits");
        }
        drop(local);
        let data = import.finish().expect("whole");
        target.install_snapshot(&snapshot.meta, data).await.expect("installs");
        assert_eq!(told.lock().expect("lock").last(), Some(&Effect::Replaced));
        assert_eq!(target.applied_state().await.expect("reads").0, Some(position(3_000)));
        check(&*to).expect("consistent");
        let left = std::fs::read_dir(from_dir.path().join("snapshots")).expect("reads").count();
        assert_eq!(left, 0, "the checkpoint is removed");
        to.close();

        // a replaced state is there after reopening, and goes on
        drop(target);
        let to = open(to_dir.path());
        let (mut target, _) = machine::<R>(&to, ApplyMode::Inline);
        apply(&mut target, (3_001..3_051).map(entry).collect()).await.expect("applies");
        assert_eq!(state_of(&*to), state_of(&*from));
        drop((source, target));
        from.close();
        to.close();
    });
}

type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// All records of the state.
pub fn state_of(view: &dyn View) -> Records {
    scan(view, Family::State, b"", None, usize::MAX)
}

fn scan(view: &dyn View, family: Family, from: &[u8], to: Option<&[u8]>, count: usize) -> Records {
    let mut all = Records::new();
    view.scan(family, from, to, &mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        if all.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .expect("scans");
    all
}

#[test]
fn both_stores_do_the_same() {
    let dir = TempDir::new().expect("a directory");
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), open(dir.path())];
    let [memory, rocks] = stores.map(|store| transcript(&*store));
    assert_eq!(memory, rocks);
}

fn transcript(store: &dyn Store) -> Vec<Records> {
    let mut seen = Vec::new();
    for family in [Family::Log, Family::State] {
        let mut batch = Batch::new();
        for number in 0..50_u8 {
            batch.put(family, [number % 7, number], [number; 3]);
        }
        batch.delete(family, [3, 3]);
        batch.delete(family, [200]);
        batch.delete_range(family, [4], [5, 12]);
        batch.delete_range(family, [9], [2]);
        batch.put(family, [4, 200], [1]);
        store.write(batch).expect("writes");
        seen.push(scan(store, family, b"", None, usize::MAX));
        seen.push(scan(store, family, &[2], Some(&[3, 10]), usize::MAX));
        seen.push(scan(store, family, &[3], Some(&[3]), usize::MAX));
        seen.push(scan(store, family, &[5], Some(&[2]), usize::MAX));
        seen.push(scan(store, family, &[1, 9], None, 4));
        seen.push(store.last(family).expect("reads").into_iter().collect());
        seen.push(vec![(vec![], store.get(family, &[4, 200]).expect("reads").unwrap_or_default())]);
        assert_eq!(store.get(family, &[3, 3]).expect("reads"), None);
    }
    store.sync().expect("syncs");
    let checkpoint = store.checkpoint().expect("makes one");
    let mut change = Some(Batch::new());
    store.with_snapshot(&mut |view| {
        if let Some(mut batch) = change.take() {
            batch.put(Family::State, [0], [0]);
            batch.put(Family::Log, [0], [0]);
            store.write(batch).expect("writes");
        }
        seen.push(scan(view, Family::State, b"", Some(&[1]), usize::MAX));
        seen.push(scan(view, Family::Log, b"", Some(&[1]), usize::MAX));
    });
    seen.push(scan(&*checkpoint, Family::State, b"", None, usize::MAX));
    seen.push(state_of(store));

    assert!(store.import(vec![]).is_err());
    store.begin_import().expect("begins");
    store.import(vec![(vec![1], vec![1])]).expect("imports");
    store.begin_import().expect("begins again");
    store.import(vec![(vec![2], vec![1]), (vec![3], vec![1])]).expect("imports");
    seen.push(state_of(store));
    let mut batch = Batch::new();
    batch.put(Family::State, [3], [2]);
    batch.put(Family::Meta, [1], [1]);
    store.finish_import(batch).expect("finishes");
    seen.push(state_of(store));
    assert_eq!(store.get(Family::Meta, &[1]).expect("reads"), Some(vec![1]));
    assert!(store.finish_import(Batch::new()).is_err());
    seen.push(scan(&*checkpoint, Family::State, b"", None, usize::MAX));
    drop(checkpoint);
    store.close();
    assert!(store.write(Batch::new()).is_err() && store.sync().is_err());
    assert!(store.get(Family::State, &[1]).is_err());
    store.with_snapshot(&mut |view| assert!(view.get(Family::State, &[1]).is_err()));
    seen
}
