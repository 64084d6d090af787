//! The store in RocksDB.
//!
//! A directory holds `FORMAT` (whose it is, and which version), the database in `db`, and
//! `snapshots`, where checkpoints live as long as they are read. Nothing is written into a directory
//! that is not known to be ours: see `format`.
//!
//! Writes are never synced by themselves: [`Store::sync`] syncs the write-ahead log, which holds the
//! writes of all families in their order. A power failure therefore loses writes from some point on,
//! and never one in the middle.

mod format;
mod frozen;
mod view;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rocksdb::{
    BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, DBWithThreadMode, LogLevel,
    MultiThreaded, Options, WriteBatch,
};

use super::{Batch, Change, Checkpoint, Family, Frozen, Record, Store, StoreError, View, Visitor};
use crate::codec;
use crate::record::NodeId;
use view::{DbView, OwnedCheckpoint};

pub use frozen::{Inspection, inspect};

type Database = DBWithThreadMode<MultiThreaded>;

/// Where the database lies below the store's directory.
pub const DB_DIR: &str = "db";

const LOG: &str = "log";
const META: &str = "meta";
/// The state's family has a number in its name, which grows with every state that is replaced.
const STATE: &str = "state.";
/// Key in [`Family::Meta`]: the number of the state in use.
const GENERATION: &[u8] = b"generation";

const WRITE_BUFFER_BYTES: usize = 16 << 20;
const ALL_WRITE_BUFFERS_BYTES: usize = 96 << 20;
const CACHE_BYTES: usize = 32 << 20;
const MAX_WAL_BYTES: u64 = 256 << 20;
const MAX_OPEN_FILES: i32 = 256;
/// How long closing waits for reads that are under way.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// See the module's head.
pub struct RocksStore {
    dir: PathBuf,
    node: NodeId,
    open: RwLock<Option<Arc<Open>>>,
    /// The first write or sync that failed. What came of it is unknown, so no other may succeed.
    failed: OnceLock<StoreError>,
    /// Numbers the directories of checkpoints.
    checkpoints: AtomicU64,
    /// The number of the state that is being imported.
    import: Mutex<Option<u64>>,
}

struct Open {
    db: Database,
    cache: Cache,
    /// The number of the state in use; held while it must not change.
    generation: RwLock<u64>,
}

impl RocksStore {
    /// Opens the store of node `node` in `dir`, or makes one when `dir` is empty or not there.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] when something else lies there, another node's store, or one of a
    /// newer format; [`StoreError::Damaged`] when RocksDB cannot read it; [`StoreError::Failed`]
    /// when another process has it open, or the system says no. Nothing is changed then.
    pub fn open(dir: &Path, node: NodeId) -> Result<Self, StoreError> {
        let found = format::inspect(dir, node)?;
        let cache = Cache::new_lru_cache(CACHE_BYTES);
        let path = dir.join(DB_DIR);
        let new = found == format::Found::Nothing;
        let mut options = database_options();
        options.create_if_missing(new);
        options.create_missing_column_families(new);
        let families = if new {
            vec![LOG.to_owned(), META.to_owned(), state_name(0)]
        } else {
            Database::list_cf(&options, &path).map_err(|error| refused(dir, &error))?
        };
        let described = families.iter().map(|name| (name.as_str(), family_options(name, &cache)));
        let db = Database::open_cf_with_opts(&options, &path, described)
            .map_err(|error| refused(dir, &error))?;
        let open = Open { db, cache, generation: RwLock::new(0) };
        if new {
            open.found(node)?;
        }
        open.identify(dir, node)?;
        if new {
            format::finish(dir, node)?;
        }
        open.drop_other_states(&families)?;
        // Only now, that RocksDB's lock says that nobody else is here.
        match std::fs::remove_dir_all(dir.join("snapshots")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::failed("removing old checkpoints", error));
            }
            _ => {}
        }
        Ok(Self {
            dir: dir.to_owned(),
            node,
            open: RwLock::new(Some(Arc::new(open))),
            failed: OnceLock::new(),
            checkpoints: AtomicU64::new(0),
            import: Mutex::new(None),
        })
    }

    fn reader(&self) -> Result<Arc<Open>, StoreError> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| StoreError::failed(self.what("using"), "it is closed"))
    }

    fn writer(&self) -> Result<Arc<Open>, StoreError> {
        match self.failed.get() {
            Some(error) => Err(error.clone()),
            None => self.reader(),
        }
    }

    fn importing(&self) -> MutexGuard<'_, Option<u64>> {
        self.import.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one, below this store's.
    fn checkpoint_dir(&self) -> PathBuf {
        let number = self.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.dir.join("snapshots").join(number.to_string())
    }

    fn what(&self, doing: &str) -> String {
        format!("{doing} the metadata in {}", self.dir.display())
    }

    /// An error of a write or a sync, which is the last one.
    fn fatal(&self, doing: &str, error: impl fmt::Display) -> StoreError {
        let error = StoreError::failed(self.what(doing), error);
        self.failed.get_or_init(|| error).clone()
    }
}

impl View for RocksStore {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let open = self.reader()?;
        open.view()?.get(family, key)
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        let open = self.reader()?;
        open.view()?.scan(family, from, to, visit)
    }
}

impl Store for RocksStore {
    fn last(&self, family: Family) -> Result<Option<Record>, StoreError> {
        let open = self.reader()?;
        open.view()?.last(family)
    }

    fn write(&self, batch: Batch) -> Result<(), StoreError> {
        let open = self.writer()?;
        let generation = open.generation.read().unwrap_or_else(PoisonError::into_inner);
        let batch = open.batch(batch, *generation)?;
        open.db.write(batch).map_err(|error| self.fatal("writing", error))
    }

    fn sync(&self) -> Result<(), StoreError> {
        let open = self.writer()?;
        open.db.flush_wal(true).map_err(|error| self.fatal("syncing", error))
    }

    fn with_snapshot(&self, read: &mut dyn FnMut(&dyn View)) {
        let Ok(open) = self.reader() else {
            return read(&view::Closed);
        };
        match open.view() {
            Ok(view) => {
                let snapshot = open.db.snapshot();
                read(&view.at(&snapshot));
            }
            Err(_) => read(&view::Closed),
        }
    }

    fn checkpoint(&self) -> Result<Checkpoint, StoreError> {
        let open = self.reader()?;
        let dir = self.checkpoint_dir();
        // so that the family whose name we take is the one in the checkpoint
        let generation = open.generation.read().unwrap_or_else(PoisonError::into_inner);
        let checkpoint = OwnedCheckpoint::make(&open.db, dir, state_name(*generation))?;
        Ok(Box::new(checkpoint))
    }

    fn freeze(&self) -> Result<Frozen, StoreError> {
        let open = self.reader()?;
        // so that the state in use is not dropped meanwhile
        let _generation = open.generation.read().unwrap_or_else(PoisonError::into_inner);
        frozen::freeze(&open.db, self.checkpoint_dir(), self.node)
    }

    fn begin_import(&self) -> Result<(), StoreError> {
        let open = self.writer()?;
        let mut importing = self.importing();
        let next = *open.generation.read().unwrap_or_else(PoisonError::into_inner) + 1;
        let name = state_name(next);
        if open.db.cf_handle(&name).is_some() {
            open.db.drop_cf(&name).map_err(|error| self.fatal("writing", error))?;
        }
        open.db
            .create_cf(&name, &family_options(&name, &open.cache))
            .map_err(|error| self.fatal("writing", error))?;
        *importing = Some(next);
        Ok(())
    }

    fn import(&self, records: Vec<Record>) -> Result<(), StoreError> {
        let open = self.writer()?;
        let next = self.importing().ok_or_else(no_import)?;
        let changes =
            records.into_iter().map(|(key, value)| Change::Put(Family::State, key, value));
        let batch = open.batch(Batch { changes: changes.collect() }, next)?;
        open.db.write(batch).map_err(|error| self.fatal("writing", error))
    }

    fn finish_import(&self, mut batch: Batch) -> Result<(), StoreError> {
        let open = self.writer()?;
        let next = self.importing().take().ok_or_else(no_import)?;
        let mut generation = open.generation.write().unwrap_or_else(PoisonError::into_inner);
        let before = state_name(*generation);
        batch.put(Family::Meta, GENERATION, codec::encode(&next));
        let batch = open.batch(batch, next)?;
        open.db.write(batch).map_err(|error| self.fatal("writing", error))?;
        open.db.flush_wal(true).map_err(|error| self.fatal("syncing", error))?;
        *generation = next;
        // Left behind by a crash here, it goes when the store is opened.
        open.db.drop_cf(&before).map_err(|error| self.fatal("writing", error))
    }

    fn close(&self) {
        let open = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut open) = open else { return };
        open.db.cancel_all_background_work(true);
        let begin = Instant::now();
        loop {
            match Arc::try_unwrap(open) {
                Ok(open) => return drop(open),
                Err(_) if begin.elapsed() > CLOSE_WAIT => {
                    tracing::warn!("{}: a read does not end", self.what("closing"));
                    return;
                }
                Err(shared) => open = shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl fmt::Debug for RocksStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RocksStore({})", self.dir.display())
    }
}

impl Drop for RocksStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Open {
    fn view(&self) -> Result<DbView<'_>, StoreError> {
        let generation = *self.generation.read().unwrap_or_else(PoisonError::into_inner);
        DbView::new(&self.db, &state_name(generation))
    }

    fn batch(&self, batch: Batch, generation: u64) -> Result<WriteBatch, StoreError> {
        let [log, meta, state] = [LOG, META, state_name(generation).as_str()]
            .map(|name| self.db.cf_handle(name).ok_or_else(|| view::no_family(name)));
        let (log, meta, state) = (log?, meta?, state?);
        let family = |family| match family {
            Family::Log => &log,
            Family::Meta => &meta,
            Family::State => &state,
        };
        let mut out = WriteBatch::default();
        for change in batch.changes {
            match change {
                Change::Put(at, key, value) => out.put_cf(family(at), key, value),
                Change::Delete(at, key) => out.delete_cf(family(at), key),
                Change::DeleteRange(at, from, to) if from < to => {
                    out.delete_range_cf(family(at), from, to);
                }
                Change::DeleteRange(..) => {}
            }
        }
        Ok(out)
    }

    /// Writes a new store's identity, unless that was as far as an interrupted making came.
    fn found(&self, node: NodeId) -> Result<(), StoreError> {
        if DbView::new(&self.db, &state_name(0))?.get(Family::Meta, format::KEY)?.is_some() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.put(Family::Meta, format::KEY, format::record(node));
        batch.put(Family::Meta, GENERATION, codec::encode(&0_u64));
        let failed = |error| StoreError::failed("writing the new metadata", error);
        self.db.write(self.batch(batch, 0)?).map_err(failed)?;
        self.db.flush_wal(true).map_err(failed)
    }

    /// Is the database the one that `FORMAT` speaks of? Finds the state in use.
    fn identify(&self, dir: &Path, node: NodeId) -> Result<(), StoreError> {
        let meta = self.db.cf_handle(META).ok_or_else(|| format::foreign_database(dir))?;
        let get = |key: &[u8]| self.db.get_cf(&meta, key).map_err(|error| refused(dir, &error));
        let record = get(format::KEY)?.ok_or_else(|| format::foreign_database(dir))?;
        format::check_record(dir, node, &record)?;
        let generation = get(GENERATION)?.ok_or_else(|| format::no_generation(dir))?;
        let generation: u64 = codec::decode(&generation)?;
        for name in [LOG, state_name(generation).as_str()] {
            if self.db.cf_handle(name).is_none() {
                return Err(StoreError::Damaged(format!(
                    "{}: the column family {name} is missing",
                    dir.display()
                )));
            }
        }
        *self.generation.write().unwrap_or_else(PoisonError::into_inner) = generation;
        Ok(())
    }

    /// Drops what an unfinished import left, or a finished one replaced.
    fn drop_other_states(&self, families: &[String]) -> Result<(), StoreError> {
        let generation = *self.generation.read().unwrap_or_else(PoisonError::into_inner);
        let used = state_name(generation);
        for name in families.iter().filter(|name| name.starts_with(STATE) && **name != used) {
            self.db
                .drop_cf(name)
                .map_err(|error| StoreError::failed("dropping an old state", error))?;
        }
        Ok(())
    }
}

fn state_name(generation: u64) -> String {
    format!("{STATE}{generation}")
}

fn no_import() -> StoreError {
    StoreError::failed("importing a state", "none was begun")
}

/// Why RocksDB does not open what lies in `dir`.
fn refused(dir: &Path, error: &rocksdb::Error) -> StoreError {
    let text = error.to_string();
    let dir = dir.display();
    match error.kind() {
        rocksdb::ErrorKind::IOError if text.contains("/LOCK: ") => StoreError::failed(
            format!("opening the metadata in {dir}"),
            format!("another process, or another part of this one, has it open ({text})"),
        ),
        rocksdb::ErrorKind::Corruption
        | rocksdb::ErrorKind::InvalidArgument
        | rocksdb::ErrorKind::NotFound => StoreError::Damaged(format!(
            "RocksDB cannot read the metadata in {dir}: {text}; nothing was changed"
        )),
        // a file that is missing in the middle is told as an I/O error
        _ if text.contains("No such file") => StoreError::Damaged(format!(
            "a file of the metadata in {dir} is missing: {text}; nothing was changed"
        )),
        _ => StoreError::failed(format!("opening the metadata in {dir}"), text),
    }
}

fn database_options() -> Options {
    let mut options = Options::default();
    options.set_db_write_buffer_size(ALL_WRITE_BUFFERS_BYTES);
    options.set_max_total_wal_size(MAX_WAL_BYTES);
    options.set_max_open_files(MAX_OPEN_FILES);
    options.set_max_background_jobs(2);
    // A torn tail is what a crash leaves: stop there. Tracking the logs in the manifest would tell of
    // a lost one, but a checkpoint with tracked logs, opened for reading, ends the process (11.8).
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options
}

fn family_options(name: &str, cache: &Cache) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_format_version(5);
    if name.starts_with(STATE) {
        // most sessions that are asked for are not there
        blocks.set_bloom_filter(10.0, false);
    }
    let mut options = Options::default();
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(3);
    options
}
