//! Reading from RocksDB: the database as it is, a moment of it, or a checkpoint.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BoundColumnFamily, DBRawIteratorWithThreadMode, Options, ReadOptions, SnapshotWithThreadMode,
};

use super::{Database, LOG, META};
use crate::store::{Family, Record, StoreError, View, Visitor};

/// Families with their handles, and the moment to read.
pub(super) struct DbView<'a> {
    db: &'a Database,
    /// `None` in a checkpoint, which has the state alone.
    log: Option<Arc<BoundColumnFamily<'a>>>,
    meta: Option<Arc<BoundColumnFamily<'a>>>,
    state: Arc<BoundColumnFamily<'a>>,
    snapshot: Option<&'a SnapshotWithThreadMode<'a, Database>>,
}

/// A checkpoint on disk, which goes when it is dropped.
pub(super) struct OwnedCheckpoint {
    /// Always there; closed before the directory is removed.
    db: Option<Database>,
    state: String,
    dir: PathBuf,
}

/// What a closed store shows.
pub(super) struct Closed;

impl<'a> DbView<'a> {
    pub(super) fn new(db: &'a Database, state: &str) -> Result<Self, StoreError> {
        Ok(Self {
            db,
            log: db.cf_handle(LOG),
            meta: db.cf_handle(META),
            state: db.cf_handle(state).ok_or_else(|| no_family(state))?,
            snapshot: None,
        })
    }

    pub(super) fn at<'b>(&'b self, snapshot: &'b SnapshotWithThreadMode<'b, Database>) -> DbView<'b>
    where
        'a: 'b,
    {
        DbView {
            db: self.db,
            log: self.log.clone(),
            meta: self.meta.clone(),
            state: self.state.clone(),
            snapshot: Some(snapshot),
        }
    }

    /// The last key of a family with its value.
    pub(super) fn last(&self, family: Family) -> Result<Option<Record>, StoreError> {
        let Some(family) = self.family(family) else { return Ok(None) };
        let mut iterator = self.iterator(family, ReadOptions::default());
        iterator.seek_to_last();
        let last = iterator.item().map(|(key, value)| (key.to_vec(), value.to_vec()));
        iterator.status().map_err(|error| unreadable(&error))?;
        Ok(last)
    }

    fn family(&self, family: Family) -> Option<&Arc<BoundColumnFamily<'a>>> {
        match family {
            Family::Log => self.log.as_ref(),
            Family::Meta => self.meta.as_ref(),
            Family::State => Some(&self.state),
        }
    }

    fn iterator(
        &self,
        family: &Arc<BoundColumnFamily<'a>>,
        options: ReadOptions,
    ) -> DBRawIteratorWithThreadMode<'_, Database> {
        match self.snapshot {
            Some(snapshot) => snapshot.raw_iterator_cf_opt(family, options),
            None => self.db.raw_iterator_cf_opt(family, options),
        }
    }
}

impl View for DbView<'_> {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(family) = self.family(family) else { return Ok(None) };
        let value = match self.snapshot {
            Some(snapshot) => snapshot.get_cf(family, key),
            None => self.db.get_cf(family, key),
        };
        value.map_err(|error| unreadable(&error))
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        let Some(family) = self.family(family) else { return Ok(()) };
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let mut options = ReadOptions::default();
        if let Some(to) = to {
            options.set_iterate_upper_bound(to);
        }
        let mut iterator = self.iterator(family, options);
        iterator.seek(from);
        while let Some((key, value)) = iterator.item() {
            if visit(key, value).is_break() {
                return Ok(());
            }
            iterator.next();
        }
        iterator.status().map_err(|error| unreadable(&error))
    }
}

impl OwnedCheckpoint {
    /// Makes one in `dir`, which must not be there.
    pub(super) fn make(db: &Database, dir: PathBuf, state: String) -> Result<Self, StoreError> {
        let failed = |reason: String| {
            StoreError::failed(format!("making a checkpoint in {}", dir.display()), reason)
        };
        if let Some(parent) = dir.parent() {
            fs::create_dir_all(parent).map_err(|error| failed(error.to_string()))?;
        }
        Checkpoint::new(db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(&dir))
            .map_err(|error| failed(error.to_string()))?;
        let opened = Database::open_cf_for_read_only(&Options::default(), &dir, [&state], false);
        match opened {
            Ok(db) => Ok(Self { db: Some(db), state, dir }),
            Err(error) => {
                let error = failed(error.to_string());
                fs::remove_dir_all(&dir).ok();
                Err(error)
            }
        }
    }

    fn view(&self) -> Result<DbView<'_>, StoreError> {
        let db = self.db.as_ref().ok_or_else(|| no_family(&self.state))?;
        DbView::new(db, &self.state)
    }
}

impl View for OwnedCheckpoint {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.view()?.get(family, key)
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        self.view()?.scan(family, from, to, visit)
    }
}

impl Drop for OwnedCheckpoint {
    fn drop(&mut self) {
        self.db = None;
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!("removing the checkpoint {}: {error}", self.dir.display());
        }
    }
}

impl View for Closed {
    fn get(&self, _: Family, _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Err(closed())
    }

    fn scan(
        &self,
        _: Family,
        _: &[u8],
        _: Option<&[u8]>,
        _: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        Err(closed())
    }
}

pub(super) fn no_family(name: &str) -> StoreError {
    StoreError::Damaged(format!("the column family {name} is missing"))
}

fn closed() -> StoreError {
    StoreError::failed("reading the metadata", "the store is closed")
}

fn unreadable(error: &rocksdb::Error) -> StoreError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => StoreError::Damaged(error.to_string()),
        _ => StoreError::failed("reading the metadata", error),
    }
}
