//! What RocksDB alone does with the same batches: one thread that writes, unsynced, what a group
//! of commits stores, and syncs the WAL behind each group.

use std::time::{Duration, Instant};

use meta::store::{Batch, Family, RocksStore, Store};
use tempfile::TempDir;

use super::figures::{Applied, Figures};
use super::load::VALUE_BYTES;
use super::nodes;

/// A database of its own.
pub struct Ceiling {
    store: RocksStore,
    _dir: TempDir,
}

impl Ceiling {
    pub fn open() -> Self {
        let dir = nodes::directory();
        let store = RocksStore::open(&dir.path().join("ceiling"), 1).expect("the store opens");
        Self { store, _dir: dir }
    }

    /// Commits `count` changes, or a few more, in batches of `size`, and returns how long `count`
    /// took.
    pub fn run(&self, count: u64, size: usize, figures: &mut Figures) -> Duration {
        let batches = count.div_ceil(size as u64);
        let start = Instant::now();
        for index in 0..batches {
            let begin = Instant::now();
            self.store.write(batch(index, size)).expect("the store writes");
            self.store.sync().expect("the store syncs");
            figures.add(begin.elapsed(), None);
        }
        let took = start.elapsed();
        figures.add_run(batches * size as u64, took);
        took.mul_f64(count as f64 / (batches * size as u64) as f64)
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        self.store.close();
    }
}

/// A log entry with so many changes, and what each of them stores.
fn batch(index: u64, size: usize) -> Batch {
    let mut batch = Batch::new();
    let value = vec![b'x'; VALUE_BYTES];
    let mut entry = Vec::with_capacity(size * (VALUE_BYTES + 16));
    for proposer in 0..size {
        let key = Applied::key(proposer).into_bytes();
        entry.extend_from_slice(&key);
        entry.extend_from_slice(&value);
        batch.put(Family::State, key, value.clone());
    }
    batch.put(Family::Log, index.to_be_bytes(), entry);
    batch
}
