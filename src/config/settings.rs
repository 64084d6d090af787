//! The settings as they stand in the file: one struct per section, with defaults and ranges.
//!
//! The names of the fields are the keys. The list of known keys (for suggestions, environment
//! overrides and the example file's test) is derived from the serialized defaults, so there is
//! no second list to keep.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use broker_core::MAX_SHARDS;
use broker_core::config::{AuthConfig, Limits, ListenerConfig, QueueFull, SharedStrategy};
use rt_abstract::{Address, Pinning, Scheduler};
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::backend::Backend;

/// Everything that can be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where state is kept.
    pub data: Data,
    /// The admin address.
    pub admin: Admin,
    /// Backend, shards and driver.
    pub runtime: Runtime,
    /// How durable facts are agreed on and stored.
    pub meta: Meta,
    /// The other nodes.
    pub cluster: Cluster,
    /// Logs.
    pub log: Log,
    /// Who may connect.
    pub auth: Auth,
    /// Bounds.
    pub limits: LimitSettings,
    /// The broker's own topics.
    pub sys: Sys,
    /// Where MQTT clients connect.
    pub listeners: Listeners,
}

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
    pub raft: RaftThread,
    /// Where committed entries are applied.
    pub apply: ApplyName,
    /// Log entries between two snapshots.
    pub snapshot_entries: u64,
    /// Log entries that stay behind a snapshot.
    pub kept_entries: u64,
    /// How many entries a node may be behind and still be sent the log.
    pub max_lag_entries: u64,
}

/// Where raft runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RaftThread {
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

/// An [`Address`] as a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addr(pub Address);

/// An admin address, or `None` for "off".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAddr(pub Option<Address>);

/// A [`Pinning`]: "none", "auto" or a list of CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pin(pub Pinning);

/// A value that is out of its range: the key's path and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The key, like `limits.max_inflight`.
    pub path: String,
    /// What is wrong with its value.
    pub message: String,
}

impl Settings {
    /// Checks what types cannot say: ranges and dependencies.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.listeners.0.is_empty() {
            return invalid("listeners", "needs at least one listener");
        }
        for (index, listener) in self.listeners.0.iter().enumerate() {
            if listener.backlog < 1 {
                return invalid(&format!("listeners[{index}].backlog"), "must be at least 1");
            }
        }
        if self.data.dir.as_os_str().is_empty() {
            return invalid("data.dir", "must not be empty");
        }
        for (key, value) in [
            ("meta.snapshot_entries", self.meta.snapshot_entries),
            ("meta.kept_entries", self.meta.kept_entries),
            ("meta.max_lag_entries", self.meta.max_lag_entries),
        ] {
            if !(1..=MAX_LOG_ENTRIES).contains(&value) {
                return invalid(key, &format!("must be from 1 to {MAX_LOG_ENTRIES}"));
            }
        }
        if self.meta.max_lag_entries <= self.meta.kept_entries {
            return invalid("meta.max_lag_entries", "must be more than meta.kept_entries");
        }
        let cluster = &self.cluster;
        if cluster.node_id == 0 {
            return invalid("cluster.node_id", "must not be 0");
        }
        if matches!(cluster.listen.0, Some(Address::Unix(_))) {
            return invalid("cluster.listen", "must be an IP address with a port");
        }
        if !cluster.seeds.is_empty() && cluster.listen.0.is_none() {
            return invalid("cluster.seeds", "needs cluster.listen");
        }
        if cluster.listen.0.is_some() && self.data.ephemeral {
            return invalid("cluster.listen", "needs a data directory");
        }
        let runtime = &self.runtime;
        if runtime.shards > MAX_SHARDS {
            return invalid("runtime.shards", &format!("must be at most {MAX_SHARDS}"));
        }
        if !runtime.ring_entries.is_power_of_two() || !(64..=4096).contains(&runtime.ring_entries) {
            return invalid("runtime.ring_entries", "must be a power of two from 64 to 4096");
        }
        if runtime.require_io_uring && runtime.force_fallback {
            return invalid("runtime.force_fallback", "contradicts runtime.require_io_uring");
        }
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&self.log.filter) {
            return invalid("log.filter", &error.to_string());
        }
        if !self.auth.allow_anonymous && self.auth.users_file().is_none() {
            return invalid("auth.allow_anonymous", "false needs auth.users_file");
        }
        if !(1..=MAX_VERIFICATIONS).contains(&self.auth.max_pending_verifications) {
            let message = format!("must be from 1 to {MAX_VERIFICATIONS}");
            return invalid("auth.max_pending_verifications", &message);
        }
        if self.sys.interval_s > MAX_SYS_INTERVAL_S {
            return invalid("sys.interval_s", &format!("must be from 0 to {MAX_SYS_INTERVAL_S}"));
        }
        self.limits.check()
    }

    /// How many shards to run: as set, or one per CPU that this process may use.
    pub fn shard_count(&self) -> usize {
        match self.runtime.shards {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(MAX_SHARDS),
            shards => shards,
        }
    }

    /// The broker's part; its users are for the caller to read.
    pub fn broker(&self) -> broker_core::Config {
        let listener = |listener: &Listener| ListenerConfig {
            address: listener.address.0.clone(),
            backlog: listener.backlog,
        };
        broker_core::Config {
            listeners: self.listeners.0.iter().map(listener).collect(),
            limits: self.limits.clone().into(),
            auth: AuthConfig {
                allow_anonymous: self.auth.allow_anonymous,
                users: None,
                max_pending_verifications: self.auth.max_pending_verifications,
            },
            sys_interval_s: self.sys.interval_s,
        }
    }
}

macro_rules! limits {
    ($($name:ident: $kind:ty, $range:expr;)*) => {
        /// `[limits]`: every field of [`Limits`], under the same name.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct LimitSettings {
            $(#[allow(missing_docs)] pub $name: $kind,)*
            #[allow(missing_docs)]
            pub queue_full: QueueFullName,
            #[allow(missing_docs)]
            pub shared_strategy: SharedStrategyName,
        }

        impl LimitSettings {
            fn check(&self) -> Result<(), Invalid> {
                $(
                    let range: std::ops::RangeInclusive<$kind> = $range;
                    if !range.contains(&self.$name) {
                        return invalid(
                            concat!("limits.", stringify!($name)),
                            &format!("must be from {} to {}", range.start(), range.end()),
                        );
                    }
                )*
                Ok(())
            }
        }

        impl From<LimitSettings> for Limits {
            fn from(from: LimitSettings) -> Self {
                Self {
                    $($name: from.$name,)*
                    queue_full: from.queue_full.into(),
                    shared_strategy: from.shared_strategy.into(),
                }
            }
        }

        impl From<Limits> for LimitSettings {
            fn from(from: Limits) -> Self {
                Self {
                    $($name: from.$name,)*
                    queue_full: from.queue_full.into(),
                    shared_strategy: from.shared_strategy.into(),
                }
            }
        }
    };
}

// TOML has signed integers only, hence no byte count above i64::MAX.
const MAX_BYTES: usize = i64::MAX as usize;
// What MQTT's four length bytes can say, with the header in front.
const MAX_PACKET: u32 = 268_435_460;
const HOUR_MS: u32 = 3_600_000;
const MAX_VERIFICATIONS: usize = 1_000_000;
const MAX_LOG_ENTRIES: u64 = 1_000_000_000;
const MAX_SYS_INTERVAL_S: u32 = 86_400;

limits! {
    max_connections: usize, 1..=100_000_000;
    max_connect_rate_per_s: u32, 0..=1_000_000;
    max_failed_logins_per_min: u32, 0..=60_000;
    connect_timeout_ms: u32, 100..=HOUR_MS;
    close_timeout_ms: u32, 100..=HOUR_MS;
    max_packet_size_bytes: u32, 128..=MAX_PACKET;
    max_connect_size_bytes: u32, 128..=MAX_PACKET;
    max_keep_alive_s: u16, 0..=u16::MAX;
    receive_maximum: u16, 1..=u16::MAX;
    topic_alias_maximum: u16, 0..=u16::MAX;
    max_inflight: u16, 1..=u16::MAX;
    max_session_expiry_s: u32, 0..=u32::MAX;
    max_queued_messages: usize, 0..=MAX_BYTES;
    max_queued_bytes: usize, 0..=MAX_BYTES;
    max_outbox_bytes: usize, 4096..=MAX_BYTES;
    max_subscriptions: usize, 1..=MAX_BYTES;
    max_subscription_bytes: usize, 1024..=MAX_BYTES;
    max_topic_bytes: usize, 1..=65_535;
    max_topic_levels: usize, 1..=65_535;
    max_retained_messages: usize, 0..=MAX_BYTES;
    max_retained_bytes: usize, 0..=MAX_BYTES;
    max_mailbox_messages: usize, 16..=1_048_576;
    check_payload_format: bool, false..=true;
}

/// [`QueueFull`] with its names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueFullName {
    /// See [`QueueFull::DropNew`].
    #[default]
    DropNew,
    /// See [`QueueFull::DropOld`].
    DropOld,
    /// See [`QueueFull::Disconnect`].
    Disconnect,
}

/// [`SharedStrategy`] with its names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedStrategyName {
    /// See [`SharedStrategy::RoundRobin`].
    #[default]
    RoundRobin,
    /// See [`SharedStrategy::LeastInflight`].
    LeastInflight,
    /// See [`SharedStrategy::Sticky`].
    Sticky,
    /// See [`SharedStrategy::HashClient`].
    HashClient,
    /// See [`SharedStrategy::HashTopic`].
    HashTopic,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Limits::default().into()
    }
}

impl Default for Listeners {
    fn default() -> Self {
        Self(vec![Listener::at(ListenerConfig::default().address)])
    }
}

impl Listener {
    /// A listener on `address` with the default backlog.
    pub fn at(address: Address) -> Self {
        Self { address: Addr(address), backlog: default_backlog() }
    }
}

impl Default for Meta {
    fn default() -> Self {
        let log = meta::LogLimits::default();
        Self {
            raft: RaftThread::default(),
            apply: ApplyName::default(),
            snapshot_entries: log.snapshot_entries,
            kept_entries: log.kept_entries,
            max_lag_entries: log.max_lag_entries,
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

impl From<QueueFullName> for QueueFull {
    fn from(name: QueueFullName) -> Self {
        match name {
            QueueFullName::DropNew => Self::DropNew,
            QueueFullName::DropOld => Self::DropOld,
            QueueFullName::Disconnect => Self::Disconnect,
        }
    }
}

impl From<QueueFull> for QueueFullName {
    fn from(what: QueueFull) -> Self {
        match what {
            QueueFull::DropNew => Self::DropNew,
            QueueFull::DropOld => Self::DropOld,
            QueueFull::Disconnect => Self::Disconnect,
        }
    }
}

impl From<SharedStrategyName> for SharedStrategy {
    fn from(from: SharedStrategyName) -> Self {
        match from {
            SharedStrategyName::RoundRobin => Self::RoundRobin,
            SharedStrategyName::LeastInflight => Self::LeastInflight,
            SharedStrategyName::Sticky => Self::Sticky,
            SharedStrategyName::HashClient => Self::HashClient,
            SharedStrategyName::HashTopic => Self::HashTopic,
        }
    }
}

impl From<SharedStrategy> for SharedStrategyName {
    fn from(from: SharedStrategy) -> Self {
        match from {
            SharedStrategy::RoundRobin => Self::RoundRobin,
            SharedStrategy::LeastInflight => Self::LeastInflight,
            SharedStrategy::Sticky => Self::Sticky,
            SharedStrategy::HashClient => Self::HashClient,
            SharedStrategy::HashTopic => Self::HashTopic,
        }
    }
}

impl FromStr for AdminAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self(None)),
            address => address
                .parse()
                .map(|address| Self(Some(address)))
                .map_err(|error: String| format!("{error}, nor off")),
        }
    }
}

impl fmt::Display for AdminAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("off"),
        }
    }
}

impl Serialize for Addr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Addr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(de::Error::custom)
    }
}

impl Serialize for AdminAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AdminAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Pin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Pinning::None => serializer.serialize_str("none"),
            Pinning::Auto => serializer.serialize_str("auto"),
            Pinning::Cpus(cpus) => cpus.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Pin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PinVisitor;

        impl<'de> Visitor<'de> for PinVisitor {
            type Value = Pin;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"none\", \"auto\" or a list of CPU numbers")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Pin, E> {
                match text {
                    "none" => Ok(Pin(Pinning::None)),
                    "auto" => Ok(Pin(Pinning::Auto)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Pin, A::Error> {
                let mut cpus = Vec::new();
                while let Some(cpu) = seq.next_element()? {
                    cpus.push(cpu);
                }
                if cpus.is_empty() {
                    return Err(de::Error::invalid_length(0, &self));
                }
                Ok(Pin(Pinning::Cpus(cpus)))
            }
        }

        deserializer.deserialize_any(PinVisitor)
    }
}

fn default_backlog() -> i32 {
    ListenerConfig::default().backlog
}

fn invalid(path: &str, message: &str) -> Result<(), Invalid> {
    Err(Invalid { path: path.into(), message: message.into() })
}
