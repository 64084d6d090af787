//! What happens when the disk fails, is full or slow, and when a store's directory is not what it
//! should be.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meta::raft::entry::Vote;
use meta::raft::log::{LogOptions, LogStore};
use meta::raft::machine::ApplyMode;
use meta::raft::types::TypeConfig;
use meta::store::memory::{Fault, MemoryStore};
use meta::store::rocks::RocksStore;
use meta::store::{Batch, Family, Store, StoreError, View};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::store::{NODE, append, apply, entry, machine, open_log, state_of};

in_each_column!(
    nothing_is_acknowledged_after_a_failure,
    a_slow_disk_holds_appending_back,
    a_vote_waits_for_its_sync,
    a_full_disk_stops_applying,
    a_closed_log_answers,
);

fn nothing_is_acknowledged_after_a_failure<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        for (fault, text) in [
            (Fault::Write(1, "No space left on device".into()), "No space left on device"),
            (Fault::Sync(1, "Input/output error".into()), "Input/output error"),
        ] {
            let memory = Arc::new(MemoryStore::new());
            memory.inject(fault);
            let told = Arc::new(Mutex::new(Vec::new()));
            let hook = told.clone();
            let on_failure = Box::new(move |error: &StoreError| {
                hook.lock().expect("lock").push(error.to_string());
            });
            let options = LogOptions { on_failure, ..LogOptions::default() };
            let mut log = LogStore::<R>::open(memory.clone(), options).expect("opens");
            append(&mut log, vec![entry(1)]).await.expect("durable");
            for index in 2..5 {
                let error = append(&mut log, vec![entry(index)]).await.expect_err("failed");
                assert!(error.to_string().contains(text), "{error}");
            }
            let error = log.save_vote(&Vote::new(9, NODE)).await.expect_err("failed");
            assert!(error.to_string().contains(text), "{error}");
            assert!(log.purge(crate::store::position(1)).await.is_err());
            let handle = log.handle();
            assert!(handle.failed().expect("failed").to_string().contains(text));
            assert_eq!(told.lock().expect("lock").len(), 1);
            drop(log);
            R::spawn_blocking(move || handle.close()).await.expect("closes");
            memory.crash(0);
            let store: Arc<dyn Store> = memory;
            let mut log = open_log::<R>(&store);
            let last = log.get_log_state().await.expect("reads").last_log_id;
            assert_eq!(last.map(|last| last.index), Some(1));
        }
    });
}

fn a_slow_disk_holds_appending_back<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let memory = Arc::new(MemoryStore::new());
        memory.inject(Fault::HoldSync);
        let options = LogOptions { max_waiting: 3, ..LogOptions::default() };
        let mut log = LogStore::<R>::open(memory.clone(), options).expect("opens");
        let mut flushed = Vec::new();
        for index in 1..4 {
            let (done, told) = TypeConfig::<R>::oneshot();
            log.append([entry(index)], IOFlushed::signal(done)).await.expect("is taken");
            flushed.push(told);
        }
        let late = R::spawn(async move {
            append(&mut log, vec![entry(4)]).await.expect("durable");
            log
        });
        for _ in 0..100 {
            R::yield_now().await;
        }
        // what is appended and not durable can be read, and is not acknowledged
        for told in &mut flushed {
            let now = futures_util::future::poll_immediate(told).await;
            assert!(now.is_none());
        }
        memory.clear_faults();
        for told in flushed {
            told.await.expect("is told").expect("durable");
        }
        let mut log = late.await.expect("no panic");
        let last = log.get_log_state().await.expect("reads").last_log_id;
        assert_eq!(last.map(|last| last.index), Some(4));
    });
}

fn a_vote_waits_for_its_sync<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let memory = Arc::new(MemoryStore::new());
        memory.inject(Fault::SlowSync(Duration::from_millis(20)));
        let store: Arc<dyn Store> = memory.clone();
        let mut log = open_log::<R>(&store);
        log.save_vote(&Vote::new(3, NODE)).await.expect("saves");
        memory.crash(0);
        let found = store.get(Family::Meta, b"vote").expect("reads").expect("is there");
        let vote = meta::raft::entry::decode_vote(&found).expect("reads");
        assert_eq!(vote, Vote::new(3, NODE));
    });
}

fn a_full_disk_stops_applying<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        for mode in
            [ApplyMode::Inline, ApplyMode::Thread, ApplyMode::Each, ApplyMode::PositionApart]
        {
            let memory = Arc::new(MemoryStore::new());
            let store: Arc<dyn Store> = memory.clone();
            let (mut machine, told) = machine::<R>(&store, mode);
            apply(&mut machine, (1..11).map(entry).collect()).await.expect("applies");
            let before = (state_of(&*store), told.lock().expect("lock").len());
            memory.inject(Fault::Write(0, "No space left on device".into()));
            let error = apply(&mut machine, vec![entry(11)]).await.expect_err("full");
            assert!(error.to_string().contains("No space left"), "{error}");
            assert!(apply(&mut machine, vec![entry(11)]).await.is_err(), "for ever");
            assert_eq!((state_of(&*store), told.lock().expect("lock").len()), before);
        }
    });
}

fn a_closed_log_answers<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let mut log = open_log::<R>(&store);
        append(&mut log, vec![entry(1)]).await.expect("durable");
        let handle = log.handle();
        R::spawn_blocking(move || handle.close()).await.expect("closes");
        assert!(append(&mut log, vec![entry(2)]).await.is_err());
        assert!(log.save_vote(&Vote::new(1, NODE)).await.is_err());
    });
}

/// The files below a directory with what they hold; what RocksDB notes for people may change.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for item in fs::read_dir(dir).expect("lists") {
            let path = item.expect("lists").path();
            let name = path.display().to_string();
            if path.is_dir() {
                dirs.push(path);
            } else if !name.contains("/LOG") {
                found.push((name, fs::read(path).expect("reads")));
            }
        }
    }
    found.sort();
    found
}

/// Opening `dir` is refused with a message that has `words`, and changes nothing.
fn refused(dir: &Path, node: u64, words: &[&str]) -> StoreError {
    let before = files(dir);
    let error = RocksStore::open(dir, node).expect_err("refused");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    assert!(text.contains(&dir.display().to_string()), "no path in: {text}");
    assert!(files(dir) == before, "something was changed: {text}");
    error
}

/// A store with a record, closed.
fn store_with_a_record() -> TempDir {
    let dir = TempDir::new().expect("a directory");
    let store = RocksStore::open(dir.path(), NODE).expect("opens");
    let mut batch = Batch::new();
    batch.put(Family::State, *b"key", *b"value");
    store.write(batch).expect("writes");
    store.sync().expect("syncs");
    store.close();
    dir
}

fn assert_record(dir: &Path) {
    let store = RocksStore::open(dir, NODE).expect("opens");
    assert_eq!(store.get(Family::State, b"key").expect("reads"), Some(b"value".to_vec()));
    store.close();
}

#[test]
fn a_directory_of_somebody_else_is_left_alone() {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("thesis.txt"), "years of work").expect("writes");
    let error = refused(dir.path(), NODE, &["not empty", "thesis.txt", "nothing was changed"]);
    assert!(matches!(error, StoreError::Foreign(_)));
    fs::write(dir.path().join("CURRENT"), "MANIFEST-000004\n").expect("writes");
    refused(dir.path(), NODE, &["no Gearbox metadata"]);
    fs::write(dir.path().join("FORMAT"), "ext4\n").expect("writes");
    refused(dir.path(), NODE, &["not Gearbox's"]);
}

#[test]
fn a_newer_format_and_another_nodes_store_are_refused() {
    let dir = store_with_a_record();
    refused(dir.path(), 2, &["belongs to node 1", "this is node 2"]);
    let format = dir.path().join("FORMAT");
    let text = fs::read_to_string(&format).expect("reads");
    assert_eq!(text, "gearbox-meta 1\nnode 1\n");
    fs::write(&format, "gearbox-meta 2\nowner 1\n").expect("writes");
    refused(dir.path(), NODE, &["format 2", "format 1 only"]);
    fs::write(&format, "gearbox-meta 1\n").expect("writes");
    refused(dir.path(), NODE, &["whose metadata"]);
    // the database knows its node as well
    fs::write(&format, "gearbox-meta 1\nnode 2\n").expect("writes");
    let error = RocksStore::open(dir.path(), 2).expect_err("swapped").to_string();
    assert!(error.contains("belongs to node 1"), "{error}");
    fs::write(&format, text).expect("writes");
    assert_record(dir.path());
}

#[test]
fn a_damaged_database_is_refused_and_not_made_anew() {
    let dir = store_with_a_record();
    let db = dir.path().join("db");
    let current = db.join("CURRENT");
    let manifest = fs::read_to_string(&current).expect("reads");
    let manifest = db.join(manifest.trim_end());
    for path in [&current, &manifest] {
        let good = fs::read(path).expect("reads");
        fs::remove_file(path).expect("removes");
        refused(dir.path(), NODE, &[]);
        let mut flipped = good.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 0x55;
        for bad in [b"garbage".to_vec(), Vec::new(), flipped] {
            fs::write(path, bad).expect("writes");
            let error = refused(dir.path(), NODE, &["nothing was changed"]);
            assert!(matches!(error, StoreError::Damaged(_)), "{error}");
        }
        fs::write(path, good).expect("writes");
    }
    assert_record(dir.path());
    // the whole database is gone
    fs::rename(&db, dir.path().join("elsewhere")).expect("renames");
    refused(dir.path(), NODE, &[]);
    fs::rename(dir.path().join("elsewhere"), &db).expect("renames");
    assert_record(dir.path());
}

#[test]
fn an_interrupted_making_is_taken_up_again() {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("CREATING"), "").expect("writes");
    RocksStore::open(dir.path(), NODE).expect("opens").close();
    assert!(!dir.path().join("CREATING").exists());
    // all was made but for the last file
    fs::rename(dir.path().join("FORMAT"), dir.path().join("CREATING")).expect("renames");
    RocksStore::open(dir.path(), NODE).expect("opens").close();
    refused(dir.path(), 2, &["belongs to node 1"]);
}

#[test]
fn a_directory_that_cannot_be_made_is_told() {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("file"), "").expect("writes");
    let error = RocksStore::open(&dir.path().join("file/meta"), NODE).expect_err("no directory");
    assert!(error.to_string().contains("file/meta"), "{error}");
}

#[test]
fn two_processes_do_not_share_a_store() {
    let data = TempDir::new().expect("a directory");
    let dir = data.path().join("meta");
    let mut program = Command::new(env!("CARGO_BIN_EXE_gearbox"))
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "off", "--shards", "1", "--data-dir"])
        .arg(data.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(program.stdout.take().expect("piped")).lines();
    let ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains(" ready "));
    let error = RocksStore::open(&dir, NODE).map(drop).map_err(|error| error.to_string());
    let killed = program.kill().and_then(|()| program.wait());
    assert!(ready, "the program does not start");
    let error = error.expect_err("is in use");
    assert!(error.contains("another process"), "{error}");
    killed.expect("the program ends");
    let store = RocksStore::open(&dir, NODE).expect("is free");
    let error = RocksStore::open(&dir, NODE).expect_err("is in use").to_string();
    assert!(error.contains("has it open"), "{error}");
    let mut checked = Err("not read".to_owned());
    store.with_snapshot(&mut |view| checked = meta::state::check(view).map(drop));
    checked.expect("nothing was harmed");
}
