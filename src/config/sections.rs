//! The sections of the file, one struct each, with their defaults.

use std::path::{Path, PathBuf};

use broker_core::config::{AuthConfig, Level, ListenerConfig};
use meta::steps::StepOptions;
use rt_abstract::{Address, Scheduler};
use serde::{Deserialize, Serialize};

use super::values::{Addr, AdminAddr, Pin};
use crate::backend::Backend;

/// `[[listeners]]`: at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Listeners(pub Vec<Listener>);

/// One of `[[listeners]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// Address to listen on.
    pub address: Addr,
    /// Length of the kernel's accept queue.
    #[serde(default = "default_backlog")]
    pub backlog: i32,
    /// What its clients are promised about messages.
    #[serde(default)]
    pub level: ListenerLevel,
}

/// `[durability]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Durability {
    /// What the acknowledgement of a message to durable sessions promises.
    pub level: LevelName,
    /// Exceptions by topic; the first filter that matches decides.
    pub topics: Vec<TopicLevel>,
}

/// One of `durability.topics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicLevel {
    /// Topics, as a subscription names them.
    pub filter: String,
    /// What is promised about them.
    pub level: LevelName,
}

/// A durability level by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LevelName {
    /// In memory.
    None,
    /// Given to the operating system.
    Os,
    /// On the disk.
    #[default]
    Disk,
}

/// A durability level of a listener, or what `[durability]` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenerLevel {
    /// As `durability.level`.
    #[default]
    Default,
    /// In memory.
    None,
    /// Given to the operating system.
    Os,
    /// On the disk.
    Disk,
}

/// `[journal]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Journal {
    /// Where it is written.
    pub writer: TaskPlace,
    /// Size of one segment; of a new journal only.
    pub segment_bytes: u64,
    /// How much may wait in memory for the disk.
    pub max_waiting_bytes: usize,
    /// How much of what is recorded may be moved out of old segments.
    pub moved_percent: u8,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// The data directory, created when missing.
    pub dir: PathBuf,
    /// Touch no directory at all.
    pub ephemeral: bool,
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Where health and metrics are served, or off.
    pub address: AdminAddr,
}

/// `[runtime]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Runtime {
    /// Which backend runs, or auto.
    pub backend: BackendChoice,
    /// How tokio places tasks.
    pub scheduler: SchedulerName,
    /// Number of shards; 0 is one per available CPU.
    pub shards: usize,
    /// Which CPUs the shards run on.
    pub pin: Pin,
    /// Entries of each shard's io_uring.
    pub ring_entries: u32,
    /// Fail rather than fall back.
    pub require_io_uring: bool,
    /// Use the readiness driver even where io_uring works.
    pub force_fallback: bool,
}

/// `[meta]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Meta {
    /// Where raft runs.
    pub raft: TaskPlace,
    /// Where committed entries are applied.
    pub apply: ApplyName,
    /// Log entries between two snapshots.
    pub snapshot_entries: u64,
    /// Log entries that stay behind a snapshot.
    pub kept_entries: u64,
    /// How many entries a node may be behind and still be sent the log.
    pub max_lag_entries: u64,
}

/// Where a task of the whole node runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskPlace {
    /// A thread with an executor of its own.
    #[default]
    Dedicated,
    /// The first shard's executor.
    Shared,
}

/// Where committed entries are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyName {
    /// Where raft runs.
    #[default]
    Inline,
    /// A thread of its own.
    Thread,
    /// Inline, a write and a turn for each entry: for comparisons.
    Each,
    /// Inline, the position written once more by itself: for comparisons.
    PositionApart,
}

/// `[cluster]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// Names this node among the others; fixed once the data directory exists.
    pub node_id: u64,
    /// Nodes with another name are refused.
    pub name: String,
    /// Where other nodes connect, or off.
    pub listen: AdminAddr,
    /// Where the others reach it; empty: as `listen`.
    pub advertise: String,
    /// Nodes to join through, at the first start.
    pub seeds: Vec<String>,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// A level, or a filter per module.
    pub filter: String,
    /// Text or JSON.
    pub format: LogFormat,
}

/// `[steps]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Steps {
    /// Measure the steps of CONNECTs and of applying changes.
    pub enabled: bool,
    /// A CONNECT that takes so long is logged.
    pub slow_connect_ms: u32,
    /// A batch of changes whose applying takes so long is logged.
    pub slow_apply_ms: u32,
    /// Such lines per second, of each of the two.
    pub max_slow_lines_per_s: u32,
}

/// `[auth]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// Serve clients that give no credentials.
    pub allow_anonymous: bool,
    /// The users to verify against; empty for none.
    pub users_file: PathBuf,
    /// Passwords under verification per shard.
    pub max_pending_verifications: usize,
}

/// `[sys]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sys {
    /// Seconds between two looks at what changed; 0 publishes nothing.
    pub interval_s: u32,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A backend by name, or the best one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendChoice {
    /// The best that is compiled in and that this kernel supports.
    #[default]
    Auto,
    /// tokio
    Tokio,
    /// monoio
    Monoio,
    /// compio
    Compio,
}

/// [`Scheduler`] with its names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulerName {
    /// One thread, one executor, one driver per shard.
    #[default]
    ThreadPerCore,
    /// One pool of threads (tokio alone).
    WorkStealing,
}

impl Default for Listeners {
    fn default() -> Self {
        Self(vec![Listener::at(ListenerConfig::default().address)])
    }
}

impl Listener {
    /// A listener on `address` with the default backlog.
    pub fn at(address: Address) -> Self {
        let level = ListenerLevel::default();
        Self { address: Addr(address), backlog: default_backlog(), level }
    }
}

impl Default for Meta {
    fn default() -> Self {
        let log = meta::LogLimits::default();
        Self {
            raft: TaskPlace::default(),
            apply: ApplyName::default(),
            snapshot_entries: log.snapshot_entries,
            kept_entries: log.kept_entries,
            max_lag_entries: log.max_lag_entries,
        }
    }
}

impl Default for Journal {
    fn default() -> Self {
        let options = journal::Options::new("");
        Self {
            writer: TaskPlace::default(),
            segment_bytes: options.segment_bytes,
            max_waiting_bytes: options.max_waiting_bytes,
            moved_percent: broker_core::Config::default().moved_percent,
        }
    }
}

impl From<LevelName> for Level {
    fn from(name: LevelName) -> Self {
        match name {
            LevelName::None => Self::None,
            LevelName::Os => Self::Os,
            LevelName::Disk => Self::Disk,
        }
    }
}

impl From<ListenerLevel> for Option<Level> {
    fn from(name: ListenerLevel) -> Self {
        match name {
            ListenerLevel::Default => None,
            ListenerLevel::None => Some(Level::None),
            ListenerLevel::Os => Some(Level::Os),
            ListenerLevel::Disk => Some(Level::Disk),
        }
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            node_id: 1,
            name: "gearbox".into(),
            listen: AdminAddr(None),
            advertise: String::new(),
            seeds: Vec::new(),
        }
    }
}

impl Default for Data {
    fn default() -> Self {
        Self { dir: "./gearbox-data".into(), ephemeral: false }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self { address: AdminAddr(Some(Address::Tcp(([127, 0, 0, 1], 9883).into()))) }
    }
}

impl Default for Runtime {
    fn default() -> Self {
        let options = rt_abstract::RunOptions::default();
        Self {
            backend: BackendChoice::Auto,
            scheduler: SchedulerName::ThreadPerCore,
            shards: 0,
            pin: Pin::default(),
            ring_entries: options.ring_entries,
            require_io_uring: options.require_io_uring,
            force_fallback: options.force_fallback,
        }
    }
}

impl Auth {
    /// The users file, if there is one.
    pub fn users_file(&self) -> Option<&Path> {
        Some(self.users_file.as_path()).filter(|path| !path.as_os_str().is_empty())
    }
}

impl Default for Auth {
    fn default() -> Self {
        let AuthConfig { allow_anonymous, max_pending_verifications, .. } = AuthConfig::default();
        Self { allow_anonymous, users_file: PathBuf::new(), max_pending_verifications }
    }
}

impl Default for Sys {
    fn default() -> Self {
        Self { interval_s: broker_core::Config::default().sys_interval_s }
    }
}

impl Steps {
    /// For one of the two, with its threshold.
    pub fn options(&self, slow_ms: u32) -> StepOptions {
        let Self { enabled, max_slow_lines_per_s, .. } = *self;
        StepOptions { enabled, slow_ms, max_slow_lines_per_s }
    }
}

impl Default for Steps {
    fn default() -> Self {
        let StepOptions { enabled, slow_ms, max_slow_lines_per_s } = StepOptions::default();
        Self { enabled, slow_connect_ms: slow_ms, slow_apply_ms: 100, max_slow_lines_per_s }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { filter: "info,openraft=warn".into(), format: LogFormat::Text }
    }
}

impl From<Backend> for BackendChoice {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Tokio => Self::Tokio,
            Backend::Monoio => Self::Monoio,
            Backend::Compio => Self::Compio,
        }
    }
}

impl From<SchedulerName> for Scheduler {
    fn from(name: SchedulerName) -> Self {
        match name {
            SchedulerName::ThreadPerCore => Self::ThreadPerCore,
            SchedulerName::WorkStealing => Self::WorkStealing,
        }
    }
}

fn default_backlog() -> i32 {
    ListenerConfig::default().backlog
}
