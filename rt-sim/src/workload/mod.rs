//! What clients do and what goes wrong, as a list made from a seed before anything runs. Any part of
//! a plan is a plan.

mod generate;
mod keep;

use mqtt::wire::{QoS, Version};

use crate::history::{ClientNumber, Stop};

pub use generate::{Faults, Options, generate};
pub use keep::Keep;

/// Everything that happens to one world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What it was made from; also the seed of the world.
    pub seed: u64,
    /// How many nodes there are.
    pub nodes: usize,
    /// How each of them is set up.
    pub setup: Setup,
    /// The clients.
    pub clients: Vec<ClientPlan>,
    /// What happens, in the order of time.
    pub steps: Vec<Step>,
    /// When the last fault has passed and no further step comes, in milliseconds.
    pub length_ms: u64,
}

/// How a node is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Shards.
    pub shards: usize,
    /// What is promised about messages.
    pub level: Level,
    /// Messages queued in one session.
    pub max_queued_messages: usize,
    /// Whether so few can be queued that some are dropped: nothing is promised about those.
    pub small_queues: bool,
    /// Messages sent to a client and not acknowledged.
    pub max_inflight: u16,
    /// Messages of a queue in memory.
    pub read_ahead_messages: usize,
    /// Messages that a client may have unacknowledged.
    pub receive_maximum: u16,
    /// Mailbox between two shards.
    pub max_mailbox_messages: usize,
}

/// The broker's durability level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Nothing survives.
    None,
    /// Survives the process.
    Os,
    /// Survives the power.
    Disk,
}

/// How long a client's session is to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// As long as its connection.
    Connection,
    /// Seconds longer than its connection.
    Seconds(u32),
    /// Until it is removed.
    Ever,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPlan {
    /// Client identifier.
    pub name: String,
    /// 3.1.1 or 5.
    pub version: Version,
    /// Of its sessions.
    pub life: Life,
    /// Seconds of keep-alive; 0 for none.
    pub keep_alive_s: u16,
    /// QoS 1 and 2 messages it takes at once; version 5 only.
    pub receive_maximum: u16,
    /// Its will, if it has one: topic, QoS, retained, delay in seconds.
    pub will: Option<(String, QoS, bool, u32)>,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number, which stays when others are left out.
    pub number: u32,
    /// When, in milliseconds since the nodes were ready.
    pub at_ms: u64,
    /// What.
    pub act: Act,
}

/// See [`Step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// A client does something.
    Client(ClientNumber, Action),
    /// Something goes wrong.
    Fault(Fault),
}

/// What a client does. Without a connection most of it does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connects, and again whenever the connection is lost.
    Connect,
    /// Connects although it is connected.
    Takeover,
    /// Begins a new session.
    Fresh,
    /// DISCONNECT; whether the will is to be published all the same (version 5).
    Leave(bool),
    /// Cuts the connection and stays away.
    Vanish,
    /// Cuts the connection and comes back at once.
    Reconnect,
    /// SUBSCRIBE.
    Subscribe(String, QoS),
    /// UNSUBSCRIBE.
    Unsubscribe(String),
    /// PUBLISH; of how many bytes.
    Publish(crate::history::Content, usize),
    /// Answers no message for a time, in milliseconds.
    HoldAnswers(u64),
    /// Reads nothing for a time, in milliseconds.
    ReadNothing(u64),
}

/// What goes wrong. Times are in milliseconds; each fault ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node's process ends and starts again after so long.
    Stop(usize, Stop, u64),
    /// Nothing passes between clients and a node, in both directions, or in one only.
    Partition(usize, Way, u64),
    /// All connections of a node break.
    Reset(usize),
    /// The network takes up to so much longer.
    SlowNetwork(u64, u64),
    /// The disk takes up to so much longer.
    SlowDisk(usize, u64, u64),
    /// The disk of a node has no space left.
    FullDisk(usize, u64),
    /// The next so-many-th write or sync fails, which ends the process; started again after so long.
    DiskError(usize, u32, u64),
    /// The wall clock of a node jumps.
    ClockJump(usize, i64),
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the clients to the node.
    ToNode,
    /// From the node to the clients.
    FromNode,
    /// Both.
    Both,
}

impl Plan {
    /// The plan with these steps alone.
    pub fn keeping(&self, keep: &Keep) -> Self {
        let steps = self.steps.iter().filter(|step| keep.has(step.number)).cloned().collect();
        Self { steps, ..self.clone() }
    }

    /// Whether a wall clock jumps.
    pub fn has_clock_jumps(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Act::Fault(Fault::ClockJump(..))))
    }
}

impl Fault {
    /// Its kind, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Stop(_, Stop::Asked, _) => "stop",
            Self::Stop(_, Stop::Killed, _) => "kill",
            Self::Stop(_, Stop::PowerLost, _) => "power",
            Self::Partition(_, Way::Both, _) => "partition",
            Self::Partition(..) => "one-way",
            Self::Reset(_) => "reset",
            Self::SlowNetwork(..) => "slow-network",
            Self::SlowDisk(..) => "slow-disk",
            Self::FullDisk(..) => "full-disk",
            Self::DiskError(..) => "disk-error",
            Self::ClockJump(..) => "clock",
        }
    }
}
