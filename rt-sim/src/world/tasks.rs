//! Tasks and who is ready.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use crate::world::nodes::NodeId;

pub(crate) type TaskId = u64;
pub(crate) type Work = Pin<Box<dyn Future<Output = ()>>>;

/// The future that the world's caller waits for; it lies on the caller's stack.
pub(crate) const ROOT: TaskId = 0;

/// Where code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub node: NodeId,
    /// Which start of the node.
    pub boot: u32,
    /// Which run of cores.
    pub run: u64,
    pub core: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Tasks {
    all: BTreeMap<TaskId, Task>,
    last: TaskId,
    /// Not mains, that live.
    live: BTreeMap<Place, usize>,
    /// Ready, longest first.
    pub ready: VecDeque<TaskId>,
    /// To be woken when the others that are ready now had their turn.
    pub yielded: Vec<Waker>,
    /// So many more polls until those that yielded come.
    pub round: usize,
    woken: Arc<Mutex<Vec<TaskId>>>,
    root: Option<Arc<Flag>>,
}

pub(crate) struct Task {
    pub place: Place,
    pub main: bool,
    /// `None` while it runs.
    pub work: Option<Work>,
    pub waker: Waker,
    flag: Arc<Flag>,
}

#[derive(Debug)]
struct Flag {
    id: TaskId,
    queued: AtomicBool,
    woken: Arc<Mutex<Vec<TaskId>>>,
}

thread_local! {
    static PLACE: Cell<Option<(Place, TaskId)>> = const { Cell::new(None) };
}

/// Where the calling code runs.
pub(crate) fn place() -> Option<Place> {
    PLACE.get().map(|(place, _)| place)
}

/// Where the calling code runs.
///
/// # Panics
/// Outside of a world.
pub(crate) fn here() -> Place {
    place().expect("inside of a simulated task")
}

/// Runs `f` as code of a place.
pub(crate) fn at<T>(place: Place, task: TaskId, f: impl FnOnce() -> T) -> T {
    struct Back(Option<(Place, TaskId)>);
    impl Drop for Back {
        fn drop(&mut self) {
            PLACE.set(self.0);
        }
    }
    let _back = Back(PLACE.replace(Some((place, task))));
    f()
}

/// The task that runs.
pub(crate) fn running() -> Option<TaskId> {
    PLACE.get().map(|(_, task)| task)
}

impl Tasks {
    pub fn add(&mut self, place: Place, main: bool, work: Work) -> TaskId {
        self.last += 1;
        let id = self.last;
        let flag = self.flag(id);
        let waker = Waker::from(flag.clone());
        self.all.insert(id, Task { place, main, work: Some(work), waker, flag });
        if !main {
            *self.live.entry(place).or_default() += 1;
        }
        self.ready.push_back(id);
        id
    }

    /// The waker of the future on the caller's stack.
    pub fn root_waker(&mut self) -> Waker {
        self.ready.push_back(ROOT);
        let flag = self.flag(ROOT);
        self.root = Some(flag.clone());
        Waker::from(flag)
    }

    /// The future on the caller's stack is polled: wakes from now on count.
    pub fn begin_root(&mut self) {
        if let Some(flag) = &self.root {
            flag.queued.store(false, Ordering::SeqCst);
        }
    }

    fn flag(&self, id: TaskId) -> Arc<Flag> {
        // Queued already: whoever makes it puts it into the queue.
        Arc::new(Flag { id, queued: AtomicBool::new(true), woken: self.woken.clone() })
    }

    pub fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        self.all.get_mut(&id)
    }

    /// Takes the work out to be polled; wakes from now on count.
    pub fn begin(&mut self, id: TaskId) -> Option<(Place, Work, Waker)> {
        let task = self.all.get_mut(&id)?;
        task.flag.queued.store(false, Ordering::SeqCst);
        let work = task.work.take()?;
        Some((task.place, work, task.waker.clone()))
    }

    /// Removes a task; its work is for the caller to drop outside of the world's state.
    pub fn remove(&mut self, id: TaskId) -> Option<Task> {
        let task = self.all.remove(&id)?;
        if !task.main
            && let Some(count) = self.live.get_mut(&task.place)
        {
            *count -= 1;
            if *count == 0 {
                self.live.remove(&task.place);
            }
        }
        Some(task)
    }

    /// Removes all tasks of which `which` says so.
    pub fn remove_where(&mut self, which: impl Fn(&Task) -> bool) -> Vec<Task> {
        let ids: Vec<_> =
            self.all.iter().filter(|(_, task)| which(task)).map(|(&id, _)| id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    pub fn any(&self, which: impl Fn(&Task) -> bool) -> bool {
        self.all.values().any(which)
    }

    pub fn live(&self, place: Place) -> usize {
        self.live.get(&place).copied().unwrap_or(0)
    }

    /// Takes over who was woken, in the order of waking.
    pub fn collect(&mut self) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        self.ready.extend(woken.drain(..));
    }

    /// Those that yielded are ready again when all others had their turn.
    pub fn next_round(&mut self) {
        if self.ready.is_empty() || self.round == 0 {
            self.yielded.drain(..).for_each(Waker::wake);
            self.collect();
            self.round = self.ready.len();
        }
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("place", &self.place).finish_non_exhaustive()
    }
}
