//! The key-value store below the raft log and the state machine.
//!
//! [`Store`] is all that the rest of this crate knows about it. `rocks` keeps it in RocksDB;
//! `memory` keeps it in memory with the same crash semantics: what was written and not synced may
//! be gone after a crash, and then everything written later is gone too.

pub mod memory;
pub mod rocks;
pub mod thread;

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

pub use memory::MemoryStore;
pub use rocks::{DB_DIR, Inspection, RocksStore, inspect};

/// A group of keys with an order and a life of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Log entries, by big-endian index.
    Log,
    /// Vote, purge position, format and identity of the store.
    Meta,
    /// The state machine's tables, and what it has applied. Replaced as a whole by a snapshot.
    State,
}

/// Changes that take effect together or not at all, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The changes.
    pub changes: Vec<Change>,
}

/// One change of a [`Batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets a key.
    Put(Family, Vec<u8>, Vec<u8>),
    /// Removes a key, if it is there.
    Delete(Family, Vec<u8>),
    /// Removes all keys from the first (included) to the second (excluded).
    DeleteRange(Family, Vec<u8>, Vec<u8>),
}

/// Why the store could not do what it was asked. Final for writes and syncs: what became of them is
/// unknown, so the node must stop rather than go on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The system, or RocksDB, said so.
    #[error("{what}: {reason}")]
    Failed {
        /// What was being done, with the path.
        what: String,
        /// What was said.
        reason: String,
    },
    /// What lies there is not a Gearbox store, a newer one, or another node's.
    #[error("{0}")]
    Foreign(String),
    /// A record cannot be read.
    #[error("damaged: {0}")]
    Damaged(String),
}

/// Reads of one moment.
pub trait View {
    /// The value of a key.
    ///
    /// # Errors
    /// As the store says.
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Calls `visit` for each key in order, from `from` (included) to `to` (excluded; `None`: the
    /// end), until it breaks.
    ///
    /// # Errors
    /// As the store says.
    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError>;
}

/// A key with its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// Is shown keys with their values, one after the other, until it breaks.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// See [`Store::checkpoint`].
pub type Checkpoint = Box<dyn View + Send + Sync>;

/// Everything of one moment, as files that nobody changes. They go when this is dropped, which blocks
/// on the disk.
#[derive(Debug)]
pub struct Frozen {
    dir: PathBuf,
    files: Vec<PathBuf>,
}

/// See the module's head. Calls block: for microseconds usually, as long as the disk takes at
/// worst. All of them may come from any thread.
pub trait Store: View + fmt::Debug + Send + Sync + 'static {
    /// The last key of a family with its value.
    ///
    /// # Errors
    /// As the store says.
    fn last(&self, family: Family) -> Result<Option<Record>, StoreError>;

    /// Makes all of `batch` visible at once. Durable only after a later [`Store::sync`].
    ///
    /// # Errors
    /// As the store says; final.
    fn write(&self, batch: Batch) -> Result<(), StoreError>;

    /// Makes everything durable that was written before this call began.
    ///
    /// # Errors
    /// As the store says; final.
    fn sync(&self) -> Result<(), StoreError>;

    /// Runs `read` on a view that no write changes.
    fn with_snapshot(&self, read: &mut dyn FnMut(&dyn View));

    /// A view of [`Family::State`] alone, of this moment, that lives on its own: for snapshots. It
    /// keeps what was replaced since from being freed, so it is not to be kept for long.
    ///
    /// # Errors
    /// As the store says.
    fn checkpoint(&self) -> Result<Checkpoint, StoreError>;

    /// Everything as it is at this moment, as files to be copied: for backups. A store whose
    /// directory holds copies of them is this one.
    ///
    /// # Errors
    /// As the store says; also when it has no files.
    fn freeze(&self) -> Result<Frozen, StoreError>;

    /// Begins to gather a new state beside the one in use, dropping what an earlier, unfinished one
    /// gathered.
    ///
    /// # Errors
    /// As the store says.
    fn begin_import(&self) -> Result<(), StoreError>;

    /// Adds records to the new state.
    ///
    /// # Errors
    /// As the store says; also when none was begun.
    fn import(&self, records: Vec<Record>) -> Result<(), StoreError>;

    /// Puts the new state in the place of the old one, durably, together with `batch`. What the
    /// batch does to [`Family::State`] is done to the new one.
    ///
    /// # Errors
    /// As the store says; also when none was begun.
    fn finish_import(&self, batch: Batch) -> Result<(), StoreError>;

    /// Ends the store's own threads and closes it; later calls fail.
    fn close(&self);
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key.
    pub fn put(&mut self, family: Family, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.changes.push(Change::Put(family, key.into(), value.into()));
    }

    /// Removes a key.
    pub fn delete(&mut self, family: Family, key: impl Into<Vec<u8>>) {
        self.changes.push(Change::Delete(family, key.into()));
    }

    /// Removes keys from `from` (included) to `to` (excluded).
    pub fn delete_range(
        &mut self,
        family: Family,
        from: impl Into<Vec<u8>>,
        to: impl Into<Vec<u8>>,
    ) {
        self.changes.push(Change::DeleteRange(family, from.into(), to.into()));
    }
}

impl StoreError {
    /// What the system said while `what` was being done.
    pub fn failed(what: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self::Failed { what: what.into(), reason: reason.to_string() }
    }
}

impl Frozen {
    /// Where they are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Their names below it.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    fn with_files(mut self, files: Vec<PathBuf>) -> Self {
        self.files = files;
        self
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!("removing the checkpoint {}: {error}", self.dir.display());
            }
            _ => {}
        }
    }
}

impl From<StoreError> for std::io::Error {
    fn from(error: StoreError) -> Self {
        Self::other(error)
    }
}
