//! The world: everything that there is, on the thread that runs it, and the loop that lets it go on.
//!
//! All state lies in one thread-local value, so that handles are plain numbers, which may be `Send`.
//! Nobody else's code runs while it is borrowed: tasks are polled and dropped outside.

pub(crate) mod events;
pub(crate) mod nodes;
pub(crate) mod random;
pub(crate) mod run;
pub(crate) mod tasks;

use std::cell::RefCell;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::config::{Config, nanos};
use crate::coverage::{Coverage, Fault};
use crate::net::Net;
use crate::world::events::Events;
use crate::world::nodes::{Machines, NodeId};
use crate::world::random::{Random, chance};
use crate::world::tasks::{Place, Tasks};

pub use crate::world::nodes::Crash;
pub use crate::world::run::{Stuck, World};

pub(crate) struct State {
    pub config: Config,
    pub now_ns: u64,
    pub events: Events,
    pub tasks: Tasks,
    pub machines: Machines,
    pub net: Net,
    pub disk_ops: crate::disk::Ops,
    pub random: Random,
    pub digest: Digest,
    pub coverage: Coverage,
    pub polls: u64,
    pub last_run: u64,
}

/// Everything that can be seen from outside goes in here.
#[derive(Debug)]
pub(crate) struct Digest(SipHasher13);

/// What the digest is fed with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    Poll,
    Delivered,
    Connected,
    Closed,
    Written,
    Synced,
    Named,
    Crashed,
    Told,
    Drawn,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// Runs `f` on the world's state.
///
/// # Panics
/// On a thread without a world.
pub(crate) fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(|state| f(state.as_mut().expect("a world runs on this thread")))
}

/// The same for what is dropped, perhaps with or after its world.
pub(crate) fn try_with<T>(f: impl FnOnce(&mut State) -> T) -> Option<T> {
    let borrowed = STATE.try_with(|state| {
        let mut state = state.try_borrow_mut().ok()?;
        state.as_mut().map(f)
    });
    borrowed.ok().flatten()
}

/// Whether this thread has a world.
pub(crate) fn exists() -> bool {
    STATE.with_borrow(Option::is_some)
}

pub(crate) fn begin(seed: u64, config: Config) {
    let state = State {
        config,
        now_ns: 0,
        events: Events::default(),
        tasks: Tasks::default(),
        machines: Machines::default(),
        net: Net::default(),
        disk_ops: crate::disk::Ops::default(),
        random: Random::new(seed),
        digest: Digest(SipHasher13::new_with_keys(0, 0)),
        coverage: Coverage::default(),
        polls: 0,
        last_run: 0,
    };
    STATE.with_borrow_mut(|slot| {
        assert!(slot.is_none(), "one world per thread at a time");
        *slot = Some(state);
    });
}

/// Ends the world of this thread. What its tasks hold is dropped while there still is one.
pub(crate) fn end() {
    // Dropping a task may wake or even spawn others.
    for _ in 0..1_000 {
        let tasks = with(|state| state.tasks.remove_where(|_| true));
        if tasks.is_empty() {
            break;
        }
        for task in tasks {
            let place = task.place;
            tasks::at(place, u64::MAX, || drop(task));
        }
    }
    let state = STATE.with_borrow_mut(Option::take);
    drop(state);
}

impl State {
    /// Whether a place is of the node's present start.
    pub fn is_alive(&mut self, node: NodeId, boot: u32) -> bool {
        let machine = self.machines.get(node);
        machine.boot == boot && machine.powered
    }

    /// The node's monotonic clock, in nanoseconds.
    pub fn monotonic_ns(&mut self, node: NodeId) -> u64 {
        self.now_ns + self.machines.get(node).clock_base_ns
    }

    /// The node's wall clock, in milliseconds.
    pub fn wall_clock_ms(&mut self, node: NodeId) -> u64 {
        let (now_ns, start_ms) = (self.now_ns, self.config.wall_clock_start_ms);
        let machine = self.machines.get(node);
        let drifting_ms = (now_ns - machine.drift_from_ns) as i64 / 1_000_000;
        let drift_ms = drifting_ms.saturating_mul(machine.wall_drift_ppm) / 1_000_000;
        (start_ms + now_ns / 1_000_000).saturating_add_signed(machine.wall_offset_ms + drift_ms)
    }

    /// When a timer that is asked for now fires.
    pub fn timer_at(&mut self, duration_ns: u64) -> u64 {
        use rand::RngExt;
        let late = nanos(self.config.timer_lateness);
        let late = self.random.schedule.random_range(0..=late);
        self.now_ns.saturating_add(duration_ns).saturating_add(late)
    }

    pub fn chance_in_network(&mut self, probability: f64) -> bool {
        chance(&mut self.random.network, probability)
    }

    pub fn saw(&mut self, what: Seen, number: u64, bytes: &[u8]) {
        self.digest.add(what, self.now_ns, number, bytes);
    }

    pub fn count(&mut self, fault: Fault) {
        self.coverage.add(fault);
    }

    pub fn boot(&mut self, node: NodeId) -> u32 {
        self.machines.get(node).boot
    }

    /// A place on a node as it is now.
    pub fn place(&mut self, node: NodeId, run: u64, core: usize) -> Place {
        Place { node, boot: self.boot(node), run, core }
    }
}

impl Digest {
    fn add(&mut self, what: Seen, now_ns: u64, number: u64, bytes: &[u8]) {
        self.0.write_u8(what as u8);
        self.0.write_u64(now_ns);
        self.0.write_u64(number);
        self.0.write(bytes);
    }

    pub fn value(&self) -> u64 {
        self.0.finish()
    }
}
