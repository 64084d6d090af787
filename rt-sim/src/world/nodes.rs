//! The machines of a world.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::disk::Image;

/// A simulated machine, with the address `10.0.0.<number>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u8);

/// How a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed: the disk's cache stays, peers are told by the system.
    Process,
    /// The power is cut: what was not synced is lost in part or whole, peers hear nothing.
    Power,
}

#[derive(Debug)]
pub(crate) struct Machine {
    /// Counts starts: what belongs to an earlier one is dead.
    pub boot: u32,
    /// Whether the system answers on the network.
    pub powered: bool,
    /// Where its monotonic clock began, in nanoseconds before the world's start.
    pub clock_base_ns: u64,
    pub wall_offset_ms: i64,
    pub wall_drift_ppm: i64,
    /// When the drift was set, in nanoseconds.
    pub drift_from_ns: u64,
    /// No task runs before, in nanoseconds.
    pub paused_until_ns: u64,
    pub next_port: u16,
    pub disk: Image,
}

#[derive(Debug, Default)]
pub(crate) struct Machines {
    all: BTreeMap<NodeId, Machine>,
}

impl NodeId {
    /// Where the simulated clients live.
    pub const CLIENTS: Self = Self(200);

    /// Its address.
    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, self.0)
    }

    pub(crate) fn of(ip: Ipv4Addr) -> Option<Self> {
        let [a, b, c, number] = ip.octets();
        ([a, b, c] == [10, 0, 0]).then_some(Self(number))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl Machines {
    pub fn get(&mut self, id: NodeId) -> &mut Machine {
        self.all.entry(id).or_insert_with(|| Machine {
            boot: 0,
            powered: true,
            clock_base_ns: 1_000_000_000,
            wall_offset_ms: 0,
            wall_drift_ppm: 0,
            drift_from_ns: 0,
            paused_until_ns: 0,
            next_port: 32_768,
            disk: Image::default(),
        })
    }

    /// Gives a node's clock another beginning: after a loss of power it has one.
    pub fn restart_clock(&mut self, id: NodeId, random: &mut SmallRng) {
        self.get(id).clock_base_ns = random.random_range(1_000_000_000..1_000_000_000_000);
    }
}
