//! The store as it is at one moment, as files: to be copied, or looked at where they lie.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use rocksdb::checkpoint::Checkpoint;

use super::view::DbView;
use super::{
    DB_DIR, Database, GENERATION, META, database_options, family_options, format, refused,
    state_name,
};
use crate::codec;
use crate::raft::snapshot::Position;
use crate::record::{NodeId, Totals};
use crate::state;
use crate::store::{Family, Frozen, StoreError};

/// What a store holds that nobody has open.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The node that it belongs to.
    pub node: NodeId,
    /// The version of its layout.
    pub format: u32,
    /// Index of the last log entry that was applied.
    pub applied: Option<u64>,
    /// Index of the last log entry.
    pub last_log: Option<u64>,
    /// The members of the cluster, with their addresses.
    pub members: Vec<(NodeId, String)>,
    /// Counted by [`state::check`], or what it found wrong.
    pub totals: Result<Totals, String>,
    /// The generations of the sessions, as far as they can be read, in no order.
    pub generations: Vec<u64>,
}

/// Looks at the store in `dir`, which nobody may have open. `None` when there is none, or one that
/// was never finished. Changes nothing.
///
/// # Errors
/// As for opening.
pub fn inspect(dir: &Path) -> Result<Option<Inspection>, StoreError> {
    let Some((node, version)) = format::read(dir)? else { return Ok(None) };
    let path = dir.join(DB_DIR);
    let cache = rocksdb::Cache::new_lru_cache(super::CACHE_BYTES);
    let options = database_options();
    let families = Database::list_cf(&options, &path).map_err(|error| refused(dir, &error))?;
    let described = families.iter().map(|name| (name.as_str(), family_options(name, &cache)));
    let db = Database::open_cf_with_opts_for_read_only(&options, &path, described, false)
        .map_err(|error| refused(dir, &error))?;
    let meta = db.cf_handle(META).ok_or_else(|| format::foreign_database(dir))?;
    let get = |key: &[u8]| db.get_cf(&meta, key).map_err(|error| refused(dir, &error));
    let record = get(format::KEY)?.ok_or_else(|| format::foreign_database(dir))?;
    format::check_record(dir, node, &record)?;
    let generation = get(GENERATION)?.ok_or_else(|| format::no_generation(dir))?;
    let view = DbView::new(&db, &state_name(codec::decode(&generation)?))?;
    let Position { applied, membership } = Position::read(&view)?;
    let last = view.last(Family::Log)?;
    let last_log = last.and_then(|(key, _)| Some(u64::from_be_bytes(key.try_into().ok()?)));
    let mut generations = Vec::new();
    // What cannot be read is found by the check, which says more about it.
    let _ = state::sessions(&view, None, |_, session| {
        generations.push(session.generation);
        ControlFlow::Continue(())
    });
    Ok(Some(Inspection {
        node,
        format: version,
        applied: applied.map(|position| position.index),
        last_log,
        members: membership.nodes().map(|(id, peer)| (*id, peer.address.clone())).collect(),
        totals: state::check(&view),
        generations,
    }))
}

/// Makes a checkpoint of everything in `dir`, which must not be there.
pub(super) fn freeze(db: &Database, dir: PathBuf, node: NodeId) -> Result<Frozen, StoreError> {
    let frozen = Frozen { files: Vec::new(), dir };
    // From here on it is removed again, whatever happens.
    let failed = |reason: String| {
        StoreError::failed(format!("making a checkpoint in {}", frozen.dir.display()), reason)
    };
    fs::create_dir_all(&frozen.dir).map_err(|error| failed(error.to_string()))?;
    let inner = frozen.dir.join(DB_DIR);
    Checkpoint::new(db)
        .and_then(|checkpoint| checkpoint.create_checkpoint(&inner))
        .map_err(|error| failed(error.to_string()))?;
    format::write(&frozen.dir, node).map_err(|error| failed(error.to_string()))?;
    let mut files = vec![PathBuf::from(format::FILE)];
    files.extend(names(&inner).map_err(|error| failed(error.to_string()))?);
    Ok(frozen.with_files(files))
}

fn names(inner: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(inner)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(Path::new(DB_DIR).join(entry.file_name()));
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Batch, RocksStore, Store, View};

    fn put(store: &RocksStore, key: &str) {
        let mut batch = Batch::new();
        batch.put(Family::Meta, key, "value");
        store.write(batch).expect("writes");
    }

    fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).expect("lists") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => found.extend(files(&path)),
                false => found.push((path.clone(), fs::read(&path).expect("reads"))),
            }
        }
        found.sort();
        found
    }

    #[test]
    fn a_frozen_store_is_that_of_its_moment() {
        let dir = tempfile::tempdir().expect("a directory");
        let (store_dir, copy) = (dir.path().join("meta"), dir.path().join("copy"));
        let store = RocksStore::open(&store_dir, 7).expect("opens");
        put(&store, "before");
        let frozen = store.freeze().expect("freezes");
        put(&store, "after");
        fs::create_dir_all(copy.join(DB_DIR)).expect("made");
        for name in frozen.files() {
            fs::copy(frozen.dir().join(name), copy.join(name)).expect("copied");
        }
        let place = frozen.dir().to_owned();
        drop(frozen);
        assert!(!place.exists(), "it goes when it is dropped");
        let copied = RocksStore::open(&copy, 7).expect("opens");
        let has = |key: &str| copied.get(Family::Meta, key.as_bytes()).expect("reads").is_some();
        assert_eq!((has("before"), has("after")), (true, false));
    }

    #[test]
    fn looking_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(inspect(&dir.path().join("none")).expect("is not there").is_none());
        let store = RocksStore::open(dir.path(), 7).expect("opens");
        put(&store, "unsynced");
        drop(store);
        let before = files(dir.path());
        let found = inspect(dir.path()).expect("reads").expect("is there");
        assert_eq!((found.node, found.format, found.totals), (7, 1, Ok(Totals::default())));
        assert_eq!(files(dir.path()), before);
        fs::write(dir.path().join("db/CURRENT"), "MANIFEST-777777\n").expect("written");
        let before = files(dir.path());
        let error = inspect(dir.path()).expect_err("damaged");
        assert!(matches!(error, StoreError::Damaged(_)), "{error}");
        assert_eq!(files(dir.path()), before);
    }
}
