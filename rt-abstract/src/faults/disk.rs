//! The handle of a test on the disk under a directory.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use super::state::{Fault, Op, State};

/// All disks, by directory: tests run at the same time, each with a directory of its own.
static DISKS: Mutex<Option<HashMap<PathBuf, Arc<Facts>>>> = Mutex::new(None);

/// The disk of the files directly in one directory. Dropping it lets them be ordinary files.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    facts: Arc<Facts>,
}

/// Which of the bytes that are not durable survive a loss of power.
pub enum Keep<'a> {
    /// None, nor any name that is not durable.
    Nothing,
    /// All, and all names.
    All,
    /// So many, in the order of writing; no names.
    Bytes(u64),
    /// Sectors of 512 bytes that the function says yes to; names in their order, until it says no.
    Sectors(&'a mut (dyn FnMut() -> bool + Send)),
}

pub(super) struct Facts {
    state: Mutex<State>,
}

impl std::fmt::Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Facts")
    }
}

/// An operation under way.
pub(super) struct Busy {
    pub facts: Arc<Facts>,
}

impl Disk {
    /// Watches over the files in `dir`, which every user must call by the same name.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        let facts = Arc::new(Facts { state: Mutex::default() });
        with_disks(|disks| disks.insert(dir.clone(), facts.clone()));
        Self { dir, facts }
    }

    /// Lets one `op` on a file whose name ends with `ending` fail, after `after` that go well. A sync
    /// that fails is not made good by a later one: what it was for has to be written again.
    pub fn fail(&self, op: Op, ending: &str, after: u64, kind: ErrorKind) {
        let ending = ending.to_owned();
        self.facts.with(|state| state.faults.push(Fault { op, ending, after, kind }));
    }

    /// Whether reserving space fails with `StorageFull`.
    pub fn set_full(&self, full: bool) {
        self.facts.with(|state| state.full = full);
    }

    /// Writes take so many bytes at most.
    pub fn set_max_write_bytes(&self, bytes: Option<usize>) {
        self.facts.with(|state| state.max_write_bytes = bytes);
    }

    /// Lets syncs of files whose name ends with `ending` wait until [`Disk::release_syncs`].
    pub fn hold_syncs(&self, ending: &str) {
        self.facts.with(|state| state.held = Some(ending.to_owned()));
    }

    /// Lets syncs go on.
    pub fn release_syncs(&self) {
        self.facts.with(|state| state.held = None);
        self.facts.wake();
    }

    /// Waits until a sync waits.
    pub async fn sync_waits(&self) {
        self.facts.until(|state| (state.waiting_syncs > 0).then_some(())).await;
    }

    /// How many syncs of files with this extension succeeded.
    pub fn syncs(&self, extension: &str) -> u64 {
        self.facts.with(|state| state.syncs.get(extension).copied().unwrap_or(0))
    }

    /// Bytes that a loss of power could take.
    pub fn unsynced_bytes(&self) -> u64 {
        self.facts.with(|state| state.unsynced_bytes())
    }

    /// Cuts the power: operations under way end, open files are dead, and what is not durable is
    /// lost as `keep` says. Faults that were planned are forgotten; the disk works again.
    ///
    /// # Panics
    /// When the real files cannot be changed back.
    pub async fn cut_power(&self, keep: Keep<'_>) {
        self.facts.with(|state| state.cutting = true);
        self.facts.wake();
        self.facts.until(|state| (state.busy == 0).then_some(())).await;
        self.facts.with(|state| {
            let lost = match keep {
                Keep::Nothing => state.lose(|| false, |_, _| false),
                Keep::All => state.lose(|| true, |_, _| true),
                Keep::Bytes(count) => state.lose(|| false, |index, _| index < count),
                Keep::Sectors(keep) => lose_sectors(state, keep),
            };
            lost.expect("the files of the test can be written");
            state.start_again();
        });
    }

    /// Begins an operation on the file `path`. `None` when no disk watches over it.
    pub(super) fn begin(path: &Path, op: Op) -> io::Result<Option<Busy>> {
        let Some(dir) = path.parent() else { return Ok(None) };
        Self::find(dir).map(|facts| Facts::begin(&facts, None, op, path)).transpose()
    }

    /// Begins an operation on the directory `path`.
    pub(super) fn begin_in(path: &Path, op: Op) -> io::Result<Option<Busy>> {
        Self::find(path).map(|facts| Facts::begin(&facts, None, op, path)).transpose()
    }

    fn find(dir: &Path) -> Option<Arc<Facts>> {
        with_disks(|disks| disks.get(dir).cloned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        with_disks(|disks| disks.remove(&self.dir));
    }
}

impl Facts {
    /// Begins an operation, unless it shall fail, the power is being cut, or was since `epoch`.
    pub fn begin(facts: &Arc<Self>, epoch: Option<u64>, op: Op, path: &Path) -> io::Result<Busy> {
        facts.with(|state| {
            if state.cutting || epoch.is_some_and(|epoch| epoch != state.epoch) {
                return Err(io::Error::other("the power was cut"));
            }
            state.fault(op, path)?;
            state.busy += 1;
            Ok(Busy { facts: facts.clone() })
        })
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until `f` gives something.
    pub async fn until<T>(&self, mut f: impl FnMut(&mut State) -> Option<T>) -> T {
        poll_fn(|cx: &mut Context<'_>| {
            self.with(|state| {
                let found = f(state);
                if found.is_none() {
                    state.wakers.push(cx.waker().clone());
                }
                found.map_or(Poll::Pending, Poll::Ready)
            })
        })
        .await
    }

    pub fn wake(&self) {
        let wakers = self.with(|state| std::mem::take(&mut state.wakers));
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.facts.with(|state| state.busy -= 1);
        self.facts.wake();
    }
}

/// Asks once for each sector of each write.
fn lose_sectors(state: &mut State, keep: &mut (dyn FnMut() -> bool + Send)) -> io::Result<()> {
    let keep = std::cell::RefCell::new(keep);
    let mut last = (u64::MAX, false);
    state.lose(
        || (keep.borrow_mut())(),
        |_, offset| {
            if last.0 != offset / 512 {
                last = (offset / 512, (keep.borrow_mut())());
            }
            last.1
        },
    )
}

fn with_disks<T>(f: impl FnOnce(&mut HashMap<PathBuf, Arc<Facts>>) -> T) -> T {
    f(DISKS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}
