//! What steers a world: starts, crashes, and everything that can go wrong.

use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use rt_abstract::faults::Op;
use rt_abstract::{Core, MaybeSend};

use crate::config::{Link, nanos};
use crate::coverage::{Coverage, Fault};
use crate::task::{JoinHandle, Slot, keep_result};
use crate::world::nodes::{Crash, NodeId};
use crate::world::tasks::{self, Place, running};
use crate::world::{Seen, State, with};

/// A handle on the world of the calling thread. It works between runs and from inside of tasks.
///
/// # Panics
/// Every call does on a thread without a world.
#[derive(Clone, Copy, Debug)]
pub struct Control(());

/// The cores of a node that was started, and what comes out of them.
#[derive(Debug)]
pub struct Cores<T> {
    handles: Vec<JoinHandle<T>>,
}

impl Control {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// The handle on this thread's world.
    pub fn current() -> Self {
        Self(())
    }

    /// Time since the world's start. The only clock that no fault touches.
    pub fn now(self) -> Duration {
        with(|state| Duration::from_nanos(state.now_ns))
    }

    /// A number for everything that could be observed so far: two histories that differ anywhere
    /// have, but for luck, different ones.
    pub fn digest(self) -> u64 {
        with(|state| state.digest.value())
    }

    /// Adds something that a test observed to the digest.
    pub fn observe(self, bytes: &[u8]) {
        with(|state| state.saw(Seen::Told, 0, bytes));
    }

    /// Which faults have happened.
    pub fn coverage(self) -> Coverage {
        with(|state| state.coverage.clone())
    }

    /// Polls of tasks so far.
    pub fn polls(self) -> u64 {
        with(|state| state.polls)
    }

    /// Runs `main` once per core on a node, as [`rt_abstract::Runtime::run_cores`] does: tasks of a
    /// core end with its main. A node may run several such programs, which a crash ends together.
    /// Starting powers the node on.
    pub fn start_node<F, Fut, T>(self, node: NodeId, cores: usize, main: F) -> Cores<T>
    where
        F: Fn(Core) -> Fut,
        Fut: Future<Output = T> + MaybeSend + 'static,
        T: MaybeSend + 'static,
    {
        let run = with(|state| {
            state.machines.get(node).powered = true;
            state.last_run += 1;
            state.last_run
        });
        let start = |index| {
            let place = with(|state| state.place(node, run, index));
            let future = tasks::at(place, u64::MAX, || main(Core { index, count: cores }));
            let slot = Slot::new();
            // Its tasks are dropped by a task of its own: nobody is dropped while the state is held.
            let work = keep_result(future, slot.clone(), end_core);
            with(|state| state.tasks.add(place, true, Box::pin(work)));
            JoinHandle::new(slot)
        };
        Cores { handles: (0..cores).map(start).collect() }
    }

    /// Ends everything that runs on a node. Called from one of its own tasks, that task is not polled
    /// again. The node stays away until it is started again.
    pub fn crash(self, node: NodeId, how: Crash) {
        let gone = with(|state| state.crash(node, how));
        for task in gone {
            let place = task.place;
            tasks::at(place, u64::MAX, || drop(task));
        }
    }

    /// Whether anything runs on a node.
    pub fn is_running(self, node: NodeId) -> bool {
        with(|state| {
            let boot = state.boot(node);
            state.tasks.any(|task| task.place.node == node && task.place.boot == boot)
        })
    }

    /// Nothing on a node runs for so long, as under a debugger or a stalled machine.
    pub fn pause(self, node: NodeId, duration: Duration) {
        with(|state| {
            state.count(Fault::Paused);
            let until_ns = state.now_ns + nanos(duration);
            let machine = state.machines.get(node);
            machine.paused_until_ns = machine.paused_until_ns.max(until_ns);
        });
    }

    /// Sets the wall clock of a node forwards or back, in milliseconds.
    pub fn jump_wall_clock(self, node: NodeId, by_ms: i64) {
        with(|state| {
            state.count(Fault::ClockJump);
            state.machines.get(node).wall_offset_ms += by_ms;
        });
    }

    /// From now on the wall clock of a node runs fast, or slow, by so many millionths.
    pub fn drift_wall_clock(self, node: NodeId, ppm: i64) {
        with(|state| {
            state.count(Fault::ClockDrift);
            state.drift(node, ppm);
        });
    }

    /// The wall clock of a node, in milliseconds since 1970.
    pub fn wall_clock_ms(self, node: NodeId) -> u64 {
        with(|state| state.wall_clock_ms(node))
    }

    /// What lies between two nodes in one direction, for connections to come and for those that
    /// are; `None`: what the configuration says.
    pub fn set_link(self, from: NodeId, to: NodeId, link: Option<Link>) {
        with(|state| state.net.set_link(from, to, link));
    }

    /// Nothing gets from one node to the other any more; the other direction stays as it is. What
    /// was sent is sent again until [`Control::heal`] or until the connection times out.
    pub fn block(self, from: NodeId, to: NodeId) {
        with(|state| state.net.block(from, to));
    }

    /// [`Control::block`] in both directions.
    pub fn partition(self, one: NodeId, other: NodeId) {
        self.block(one, other);
        self.block(other, one);
    }

    /// Ends [`Control::block`] and [`Control::partition`].
    pub fn heal(self, one: NodeId, other: NodeId) {
        with(|state| state.net.heal(one, other));
    }

    /// Ends all of them.
    pub fn heal_all(self) {
        with(|state| state.net.heal_all());
    }

    /// Resets all connections between two nodes, on both sides. Returns how many.
    pub fn reset_connections(self, one: NodeId, other: NodeId) -> usize {
        with(|state| state.reset_connections(one, other))
    }

    /// One side of all connections between two nodes is forgotten without a word: `gone` knows
    /// nothing of them any more, the other one believes that they stand. Returns how many.
    pub fn half_open(self, gone: NodeId, other: NodeId) -> usize {
        with(|state| state.half_open(gone, other))
    }

    /// Open connections between two nodes.
    pub fn connections(self, one: NodeId, other: NodeId) -> usize {
        with(|state| state.net.between(one, other).len())
    }

    /// Lets one `op` on a file of a node whose name ends with `ending` fail, after `after` that go
    /// well. What a failed sync was for is not made good by a later one.
    pub fn fail_disk(self, node: NodeId, op: Op, ending: &str, after: u64, kind: ErrorKind) {
        with(|state| state.machines.get(node).disk.fail(op, ending, after, kind));
    }

    /// Forgets what [`Control::fail_disk`] planned.
    pub fn mend_disk(self, node: NodeId) {
        with(|state| state.machines.get(node).disk.mend());
    }

    /// How many bytes the files of a node may have, beginning now.
    pub fn set_disk_capacity(self, node: NodeId, bytes: Option<u64>) {
        with(|state| state.machines.get(node).disk.capacity = Some(bytes));
    }

    /// All operations of a node's disk take so much longer.
    pub fn slow_disk(self, node: NodeId, by: Duration) {
        with(|state| state.machines.get(node).disk.slower_ns = nanos(by));
    }

    /// Flips one bit in a file of a node whose name ends with `ending`, on the medium. Returns where;
    /// `None` when there is no such file, or only empty ones.
    pub fn flip_bit(self, node: NodeId, ending: &str) -> Option<(PathBuf, u64)> {
        with(|state| state.flip_bit(node, ending))
    }

    /// The files of a node by name, with their lengths in bytes.
    pub fn files(self, node: NodeId) -> Vec<(PathBuf, u64)> {
        with(|state| state.machines.get(node).disk.files())
    }

    /// What a file of a node holds, as programs would read it.
    pub fn read_file(self, node: NodeId, path: &Path) -> Option<Vec<u8>> {
        with(|state| state.machines.get(node).disk.content(path))
    }

    /// Bytes on a node's disk that a loss of power could take.
    pub fn unsynced_bytes(self, node: NodeId) -> u64 {
        with(|state| state.machines.get(node).disk.unsynced_bytes())
    }

    /// Removes everything on a node's disk, as a new one would be.
    pub fn wipe_disk(self, node: NodeId) {
        with(|state| state.machines.get(node).disk = crate::disk::Image::default());
    }

    /// Runs `f` as code of a node, so that it may bind, open and spawn there.
    pub fn on_node<T>(self, node: NodeId, f: impl FnOnce() -> T) -> T {
        let place = with(|state| {
            state.last_run += 1;
            let run = state.last_run;
            state.place(node, run, 0)
        });
        tasks::at(place, u64::MAX, f)
    }
}

impl<T> Cores<T> {
    /// Waits until all have ended; results are in core order.
    ///
    /// # Errors
    /// The first core's error: a panic of its main, or that it ended by a crash.
    pub async fn join(self) -> Result<Vec<T>, rt_abstract::TaskPanicked> {
        let mut results = Vec::with_capacity(self.handles.len());
        for handle in self.handles {
            results.push(pin!(handle).await);
        }
        results.into_iter().collect()
    }
}

/// A core's main has ended, and its tasks with it.
fn end_core(state: &mut State, place: Place) {
    let me = running();
    let gone = state.tasks.remove_where(|task| task.place == place && !task.main);
    debug_assert!(me.is_some());
    if gone.is_empty() {
        return;
    }
    state.tasks.add(place, true, Box::pin(async move { drop(gone) }));
}

impl State {
    fn crash(&mut self, node: NodeId, how: Crash) -> Vec<tasks::Task> {
        self.count(match how {
            Crash::Process => Fault::ProcessKilled,
            Crash::Power => Fault::PowerCut,
        });
        self.saw(Seen::Crashed, u64::from(node.0), &[]);
        let gone = self.tasks.remove_where(|task| task.place.node == node);
        match how {
            Crash::Process => self.close_all(node),
            Crash::Power => {
                self.forget_all(node);
                self.machines.restart_clock(node, &mut self.random.schedule);
            }
        }
        self.crash_disk(node, how);
        let machine = self.machines.get(node);
        machine.boot += 1;
        machine.paused_until_ns = 0;
        machine.powered = how == Crash::Process;
        gone
    }

    fn drift(&mut self, node: NodeId, ppm: i64) {
        let before = self.wall_clock_ms(node);
        let now_ns = self.now_ns;
        let machine = self.machines.get(node);
        machine.wall_drift_ppm = ppm;
        machine.drift_from_ns = now_ns;
        let after = self.wall_clock_ms(node);
        self.machines.get(node).wall_offset_ms += before as i64 - after as i64;
    }
}
