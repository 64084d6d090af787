//! A store in memory that crashes like a disk: what was written and not synced may be lost, from
//! some write on. It keeps how to undo each unsynced write, so that a crash costs nothing until it
//! happens. Disk errors, full disks and slow ones can be injected.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Batch, Change, Checkpoint, Family, Frozen, Record, Store, StoreError, View, Visitor};

/// See the module's head. Without [`Fault`]s, syncs cost next to nothing.
#[derive(Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
    /// Told when held syncs may go on.
    released: Condvar,
}

/// What shall go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// After so many more writes, the next one fails with this text, changing nothing.
    Write(usize, String),
    /// After so many more syncs, the next one fails with this text.
    Sync(usize, String),
    /// Each write takes so much longer.
    SlowWrite(Duration),
    /// Each sync takes so much longer.
    SlowSync(Duration),
    /// Syncs wait until [`MemoryStore::clear_faults`] or a crash.
    HoldSync,
}

pub(crate) type Table = BTreeMap<Vec<u8>, Vec<u8>>;

/// One family each. The tables are shared with views; a write copies a table that is.
#[derive(Clone, Debug, Default)]
struct Tables {
    log: Arc<Table>,
    meta: Arc<Table>,
    state: Arc<Table>,
}

#[derive(Default)]
struct Inner {
    tables: Tables,
    /// How to take back each unsynced write, oldest first.
    unsynced: VecDeque<Undo>,
    /// Number of the first of `unsynced`: the writes that were synced.
    synced: u64,
    import: Option<Table>,
    faults: Vec<Fault>,
    failed: Option<StoreError>,
    closed: bool,
    /// Counts crashes, so that a sync that was under way fails.
    crashes: u64,
}

/// What keys held before, in the order of the changes.
type Undo = Vec<(Family, Vec<u8>, Option<Vec<u8>>)>;

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Arranges for a fault, in addition to earlier ones.
    pub fn inject(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// No more faults than have happened. What failed stays failed.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
        self.released.notify_all();
    }

    /// Number of writes that a crash could lose now.
    pub fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// Loses power: of the unsynced writes the first `keep` are kept. The store is as after opening
    /// it again, without faults.
    pub fn crash(&self, keep: usize) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        while inner.unsynced.len() > keep {
            for (family, key, before) in inner.unsynced.pop_back().into_iter().flatten().rev() {
                let table = inner.tables.table(family);
                match before {
                    Some(value) => table.insert(key, value),
                    None => table.remove(&key),
                };
            }
        }
        inner.synced += inner.unsynced.len() as u64;
        inner.unsynced.clear();
        inner.import = None;
        inner.faults.clear();
        inner.failed = None;
        inner.closed = false;
        inner.crashes += 1;
        self.released.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // nothing here panics halfway through a change
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables(&self) -> Result<Tables, StoreError> {
        let inner = self.lock();
        inner.usable(false)?;
        Ok(inner.tables.clone())
    }
}

impl View for MemoryStore {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let inner = self.lock();
        inner.usable(false)?;
        inner.tables.get(family, key)
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        // not under the lock, for the visitor may use the store; and only this family's table, for
        // a write copies one that is being looked at
        let mut tables = Tables::default();
        {
            let mut inner = self.lock();
            inner.usable(false)?;
            tables.shared(family).clone_from(inner.tables.shared(family));
        }
        tables.scan(family, from, to, visit)
    }
}

impl Store for MemoryStore {
    fn last(&self, family: Family) -> Result<Option<Record>, StoreError> {
        let inner = self.lock();
        inner.usable(false)?;
        let last = inner.tables.read(family).last_key_value();
        Ok(last.map(|(key, value)| (key.clone(), value.clone())))
    }

    fn write(&self, batch: Batch) -> Result<(), StoreError> {
        let slow = self.lock().faults.iter().find_map(Fault::slow_write);
        if let Some(delay) = slow {
            std::thread::sleep(delay);
        }
        let mut inner = self.lock();
        inner.usable(true)?;
        inner.trip("writing", |fault| match fault {
            Fault::Write(after, text) => Some((after, text)),
            _ => None,
        })?;
        let mut undo = Undo::new();
        inner.tables.change(batch, &mut undo);
        inner.unsynced.push_back(undo);
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        let mut inner = self.lock();
        inner.usable(true)?;
        let upto = inner.synced + inner.unsynced.len() as u64;
        let crashes = inner.crashes;
        if let Some(delay) = inner.faults.iter().find_map(Fault::slow_sync) {
            drop(inner);
            std::thread::sleep(delay);
            inner = self.lock();
        }
        while inner.faults.contains(&Fault::HoldSync) {
            inner = self.released.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        if inner.crashes != crashes {
            return Err(StoreError::failed("syncing", "the power went off"));
        }
        inner.usable(true)?;
        inner.trip("syncing", |fault| match fault {
            Fault::Sync(after, text) => Some((after, text)),
            _ => None,
        })?;
        while inner.synced < upto && inner.unsynced.pop_front().is_some() {
            inner.synced += 1;
        }
        Ok(())
    }

    fn with_snapshot(&self, read: &mut dyn FnMut(&dyn View)) {
        match self.tables() {
            Ok(tables) => read(&tables),
            Err(_) => read(self),
        }
    }

    fn checkpoint(&self) -> Result<Checkpoint, StoreError> {
        let state = self.tables()?.state;
        Ok(Box::new(Tables { state, ..Tables::default() }))
    }

    fn freeze(&self) -> Result<Frozen, StoreError> {
        Err(StoreError::failed("freezing the metadata", "it is kept in memory, not in files"))
    }

    fn begin_import(&self) -> Result<(), StoreError> {
        let mut inner = self.lock();
        inner.usable(true)?;
        inner.import = Some(Table::new());
        Ok(())
    }

    fn import(&self, records: Vec<Record>) -> Result<(), StoreError> {
        let mut inner = self.lock();
        inner.usable(true)?;
        inner.import.as_mut().ok_or_else(no_import)?.extend(records);
        Ok(())
    }

    fn finish_import(&self, batch: Batch) -> Result<(), StoreError> {
        let mut inner = self.lock();
        inner.usable(true)?;
        if inner.import.is_none() {
            return Err(no_import());
        }
        inner.trip("writing", |fault| match fault {
            Fault::Write(after, text) => Some((after, text)),
            _ => None,
        })?;
        inner.tables.state = Arc::new(inner.import.take().unwrap_or_default());
        inner.tables.change(batch, &mut Undo::new());
        inner.synced += inner.unsynced.len() as u64;
        inner.unsynced.clear();
        Ok(())
    }

    fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.faults.retain(|fault| *fault != Fault::HoldSync);
        self.released.notify_all();
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl Inner {
    /// What failed once fails for ever, but may still be read.
    fn usable(&self, writing: bool) -> Result<(), StoreError> {
        match &self.failed {
            _ if self.closed => Err(StoreError::failed("using the store", "it is closed")),
            Some(error) if writing => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Counts down the faults of one kind; fails when one's turn has come.
    fn trip(
        &mut self,
        what: &str,
        pick: impl Fn(&mut Fault) -> Option<(&mut usize, &mut String)>,
    ) -> Result<(), StoreError> {
        for (after, text) in self.faults.iter_mut().filter_map(pick) {
            if *after == 0 {
                let error = StoreError::failed(what, text);
                self.failed = Some(error.clone());
                return Err(error);
            }
            *after -= 1;
        }
        Ok(())
    }
}

impl Tables {
    fn table(&mut self, family: Family) -> &mut Table {
        Arc::make_mut(self.shared(family))
    }

    fn shared(&mut self, family: Family) -> &mut Arc<Table> {
        match family {
            Family::Log => &mut self.log,
            Family::Meta => &mut self.meta,
            Family::State => &mut self.state,
        }
    }

    fn read(&self, family: Family) -> &Table {
        match family {
            Family::Log => &self.log,
            Family::Meta => &self.meta,
            Family::State => &self.state,
        }
    }

    fn change(&mut self, batch: Batch, undo: &mut Undo) {
        for change in batch.changes {
            match change {
                Change::Put(family, key, value) => {
                    let before = self.table(family).insert(key.clone(), value);
                    undo.push((family, key, before));
                }
                Change::Delete(family, key) => {
                    if let Some(before) = self.table(family).remove(&key) {
                        undo.push((family, key, Some(before)));
                    }
                }
                Change::DeleteRange(family, from, to) => {
                    if from >= to {
                        continue;
                    }
                    let table = self.table(family);
                    let keys: Vec<_> = table.range(from..to).map(|(key, _)| key.clone()).collect();
                    for key in keys {
                        let before = table.remove(&key);
                        undo.push((family, key, before));
                    }
                }
            }
        }
    }
}

impl View for Tables {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.read(family).get(key).cloned())
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        scan_table(self.read(family), from, to, visit);
        Ok(())
    }
}

/// [`View::scan`] of a map.
pub(crate) fn scan_table(table: &Table, from: &[u8], to: Option<&[u8]>, visit: &mut Visitor<'_>) {
    if to.is_some_and(|to| to <= from) {
        return;
    }
    let to = to.map_or(Bound::Unbounded, Bound::Excluded);
    for (key, value) in table.range::<[u8], _>((Bound::Included(from), to)) {
        if visit(key, value).is_break() {
            return;
        }
    }
}

impl Fault {
    fn slow_write(&self) -> Option<Duration> {
        if let Self::SlowWrite(delay) = self { Some(*delay) } else { None }
    }

    fn slow_sync(&self) -> Option<Duration> {
        if let Self::SlowSync(delay) = self { Some(*delay) } else { None }
    }
}

fn no_import() -> StoreError {
    StoreError::failed("importing a state", "none was begun")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &MemoryStore, key: &str, value: &str) {
        let mut batch = Batch::new();
        batch.put(Family::State, key, value);
        store.write(batch).expect("write");
    }

    fn all(view: &dyn View) -> Vec<String> {
        let mut found = Vec::new();
        view.scan(Family::State, b"", None, &mut |key, value| {
            found.push(format!(
                "{}={}",
                String::from_utf8_lossy(key),
                String::from_utf8_lossy(value)
            ));
            std::ops::ControlFlow::Continue(())
        })
        .expect("scan");
        found
    }

    #[test]
    fn a_crash_keeps_what_was_synced_and_a_prefix_of_the_rest() {
        let store = MemoryStore::new();
        put(&store, "a", "1");
        put(&store, "b", "1");
        store.sync().expect("sync");
        put(&store, "a", "2");
        put(&store, "c", "1");
        let mut batch = Batch::new();
        batch.delete_range(Family::State, "a", "c");
        batch.put(Family::State, "a", "3");
        store.write(batch).expect("write");
        assert_eq!((all(&store), store.unsynced()), (vec!["a=3".into(), "c=1".into()], 3));
        store.crash(2);
        assert_eq!(all(&store), ["a=2", "b=1", "c=1"]);
        put(&store, "d", "1");
        store.crash(0);
        assert_eq!(all(&store), ["a=2", "b=1", "c=1"]);
    }

    #[test]
    fn views_and_checkpoints_do_not_change() {
        let store = MemoryStore::new();
        put(&store, "a", "1");
        let checkpoint = store.checkpoint().expect("checkpoint");
        store.with_snapshot(&mut |view| {
            put(&store, "a", "2");
            assert_eq!(all(view), ["a=1"]);
        });
        assert_eq!((all(&*checkpoint), all(&store)), (vec!["a=1".into()], vec!["a=2".into()]));
    }

    #[test]
    fn an_import_replaces_the_state_at_its_end_and_not_before() {
        let store = MemoryStore::new();
        assert!(store.import(Vec::new()).is_err());
        put(&store, "a", "1");
        store.begin_import().expect("begin");
        store.import(vec![(b"b".to_vec(), b"1".to_vec())]).expect("import");
        assert_eq!(all(&store), ["a=1"]);
        let mut batch = Batch::new();
        batch.put(Family::State, "c", "1");
        store.finish_import(batch).expect("finish");
        store.crash(0);
        assert_eq!(all(&store), ["b=1", "c=1"]);
    }

    #[test]
    fn faults_come_when_they_should_and_stay() {
        let store = MemoryStore::new();
        store.inject(Fault::Write(1, "No space left on device".into()));
        put(&store, "a", "1");
        let error = store.write(Batch::new()).expect_err("full");
        assert_eq!(error.to_string(), "writing: No space left on device");
        assert!(store.write(Batch::new()).is_err() && store.sync().is_err());
        assert_eq!(all(&store), ["a=1"]);
        store.crash(1);
        store.inject(Fault::Sync(0, "Input/output error".into()));
        put(&store, "b", "1");
        assert!(store.sync().is_err() && store.sync().is_err());
        store.crash(0);
        assert_eq!(all(&store), ["a=1"]);
        store.close();
        assert!(store.get(Family::State, b"a").is_err());
    }
}
