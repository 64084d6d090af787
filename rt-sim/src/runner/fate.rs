//! What befalls nodes: they are kept running, and faults come and go as the plan says.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use meta::store::MemoryStore;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rt_abstract::{Runtime, Shared};

use super::node::{self, Process};
use crate::client::{self, Place};
use crate::history::{Stop, What};
use crate::workload::{Fault, Plan, Way};
use crate::{Control, Crash, Latency, Link, NodeId, Op, Sim};

const LOOK: Duration = Duration::from_millis(20);
/// How long a process may take to end when it is asked to.
const END_MS: u64 = 30_000;

/// All nodes of a world.
#[derive(Clone)]
pub struct Fate {
    control: Control,
    place: Place,
    inner: Shared<Inner>,
}

struct Inner {
    random: Xoshiro256PlusPlus,
    nodes: BTreeMap<usize, State>,
}

struct State {
    store: Arc<MemoryStore>,
    process: Option<Process>,
    /// How often it was started.
    starts: u64,
    /// How it is to end, and how long it is to stay away, in milliseconds.
    ending: Option<(Stop, u64)>,
    /// How long it stays away when it ends by itself.
    down_ms: u64,
}

impl Fate {
    /// Starts all nodes of a plan, and keeps them running.
    pub fn start(plan: &Plan, place: &Place) -> Self {
        let state = |number| {
            let store = Arc::new(MemoryStore::new());
            (number, State { store, process: None, starts: 0, ending: None, down_ms: 100 })
        };
        let random = Xoshiro256PlusPlus::seed_from_u64(plan.seed ^ 0x5eed);
        let nodes = (0..plan.nodes).map(state).collect();
        let inner = Shared::new(Inner { random, nodes });
        let fate = Self { control: Control::current(), place: place.clone(), inner };
        for number in 0..plan.nodes {
            drop(Sim::spawn(keep_running(fate.clone(), number, plan.clone())));
        }
        fate
    }

    fn see(&self, what: What) {
        client::see::<Sim>(&self.place, what);
    }

    fn with<T>(&self, number: usize, f: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.inner.with(|inner| inner.nodes.get_mut(&number).map(f))
    }

    fn process(&self, number: usize) -> Option<Process> {
        self.with(number, |state| state.process.clone()).flatten()
    }

    /// Whether all nodes serve clients.
    pub fn all_serve(&self) -> bool {
        self.inner.with(|inner| {
            let serves = |state: &State| state.process.as_ref().is_some_and(Process::is_serving);
            inner.nodes.values().all(|state| serves(state) && state.ending.is_none())
        })
    }

    /// Writes down what the nodes count that run.
    pub fn count(&self) {
        let processes: Vec<_> = self.inner.with(|inner| {
            let running = inner.nodes.iter().filter(|(_, state)| state.ending.is_none());
            running.filter_map(|(number, it)| Some((*number, it.process.clone()?))).collect()
        });
        for (number, process) in processes {
            if process.is_serving() {
                self.see(What::Counted(number, process.counts()));
            }
        }
    }

    /// A fault begins. Those that last end by themselves.
    pub fn begin(&self, fault: &Fault) {
        let (control, clients) = (self.control, NodeId::CLIENTS);
        self.see(What::Fault(fault.kind()));
        match *fault {
            Fault::Stop(number, stop, down_ms) => self.stop(number, stop, down_ms),
            Fault::Partition(number, way, for_ms) => {
                let node = node::id(number);
                if way != Way::FromNode {
                    control.block(clients, node);
                }
                if way != Way::ToNode {
                    control.block(node, clients);
                }
                self.after(for_ms, move || control.heal(clients, node));
            }
            Fault::Reset(number) => {
                control.reset_connections(node::id(number), clients);
            }
            Fault::SlowNetwork(by_ms, for_ms) => {
                let (min, max) = (Duration::from_millis(1), Duration::from_millis(by_ms));
                let link = Link { latency: Latency::between(min, max), bytes_per_second: None };
                let numbers: Vec<_> =
                    self.inner.with(|inner| inner.nodes.keys().copied().collect());
                for number in numbers {
                    let node = node::id(number);
                    control.set_link(clients, node, Some(link));
                    control.set_link(node, clients, Some(link));
                    self.after(for_ms, move || {
                        control.set_link(clients, node, None);
                        control.set_link(node, clients, None);
                    });
                }
            }
            Fault::SlowDisk(number, by_ms, for_ms) => {
                let node = node::id(number);
                control.slow_disk(node, Duration::from_millis(by_ms));
                self.after(for_ms, move || control.slow_disk(node, Duration::ZERO));
            }
            Fault::FullDisk(number, for_ms) => {
                let node = node::id(number);
                let used_bytes = control.files(node).iter().map(|(_, bytes)| bytes).sum();
                control.set_disk_capacity(node, Some(used_bytes));
                self.after(for_ms, move || control.set_disk_capacity(node, None));
            }
            Fault::DiskError(number, after, down_ms) => {
                let node = node::id(number);
                self.with(number, |state| state.down_ms = down_ms);
                let sync = self.inner.with(|inner| inner.random.random_bool(0.5));
                let op = if sync { Op::Sync } else { Op::Write };
                control.fail_disk(node, op, "", u64::from(after), ErrorKind::Other);
            }
            Fault::ClockJump(number, by_ms) => control.jump_wall_clock(node::id(number), by_ms),
        }
    }

    /// No fault goes on.
    pub fn heal(&self) {
        let control = self.control;
        control.heal_all();
        let numbers: Vec<_> = self.inner.with(|inner| inner.nodes.keys().copied().collect());
        for node in numbers.into_iter().map(node::id) {
            control.mend_disk(node);
            control.slow_disk(node, Duration::ZERO);
            control.set_disk_capacity(node, None);
            control.set_link(NodeId::CLIENTS, node, None);
            control.set_link(node, NodeId::CLIENTS, None);
        }
    }

    fn after(&self, for_ms: u64, then: impl FnOnce() + Send + 'static) {
        drop(Sim::spawn(async move {
            Sim::sleep(Duration::from_millis(for_ms)).await;
            then();
        }));
    }

    fn stop(&self, number: usize, stop: Stop, down_ms: u64) {
        let Some(process) = self.process(number) else { return };
        let first = self.with(number, |state| {
            let asked = matches!(state.ending, Some((Stop::Asked, _)));
            let first = state.ending.is_none() || asked && stop != Stop::Asked;
            if first {
                state.ending = Some((stop, down_ms));
            }
            first
        });
        if first != Some(true) {
            return;
        }
        self.see(What::Stopped(number, stop));
        match stop {
            Stop::Asked => process.ask_to_end(),
            Stop::Killed => self.crash(number, Crash::Process),
            Stop::PowerLost => self.crash(number, Crash::Power),
        }
    }

    fn crash(&self, number: usize, how: Crash) {
        self.control.crash(node::id(number), how);
        let store = self.with(number, |state| state.store.clone());
        if let Some(store) = store {
            let kept = match how {
                Crash::Process => usize::MAX,
                Crash::Power => {
                    let unsynced = store.unsynced();
                    self.inner.with(|inner| inner.random.random_range(0..=unsynced))
                }
            };
            store.crash(kept);
        }
    }
}

async fn keep_running(fate: Fate, number: usize, plan: Plan) {
    loop {
        fate.see(What::Started(number));
        let Some(store) = fate.with(number, |state| state.store.clone()) else { return };
        let started = node::start(fate.control, number, &plan.setup, &store, &fate.place);
        let ended = match started {
            Ok((process, ended)) => {
                fate.with(number, |state| {
                    (state.process, state.ending) = (Some(process), None);
                    state.starts += 1;
                });
                drop(Sim::spawn(watch_end(fate.clone(), number)));
                ended.await
            }
            Err(error) => Err(error),
        };
        let state = fate.with(number, |state| {
            state.process = None;
            (state.ending, state.down_ms)
        });
        let Some((ending, down_ms)) = state else { return };
        let down_ms = match ending {
            // Whatever it says: it ended as it was to.
            Some((Stop::Killed | Stop::PowerLost, down_ms)) => down_ms,
            Some((Stop::Asked, down_ms)) if ended.is_ok() => {
                // It served until now.
                fate.see(What::Stopped(number, Stop::Asked));
                down_ms
            }
            _ => {
                let result = ended.err().unwrap_or_else(|| "without an error".into());
                fate.see(What::Exited(number, result));
                down_ms
            }
        };
        if !matches!(ending, Some((Stop::Killed | Stop::PowerLost, _))) {
            // Nothing of it is left, as of a process.
            fate.crash(number, Crash::Process);
        }
        fate.control.mend_disk(node::id(number));
        Sim::sleep(Duration::from_millis(down_ms)).await;
    }
}

/// A process that was asked to end does, in time.
async fn watch_end(fate: Fate, number: usize) {
    let Some(start) = fate.with(number, |state| state.starts) else { return };
    let mut left_ms = END_MS;
    loop {
        Sim::sleep(LOOK).await;
        let asked = fate.with(number, |state| {
            let runs = state.starts == start && state.process.is_some();
            runs.then_some(matches!(state.ending, Some((Stop::Asked, _))))
        });
        let Some(asked) = asked.flatten() else { return };
        if asked {
            left_ms = left_ms.saturating_sub(LOOK.as_millis() as u64);
        }
        if left_ms == 0 {
            fate.see(What::Stuck(format!("node {number} was asked to end, and did not")));
            return;
        }
    }
}
