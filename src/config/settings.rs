//! The settings as they stand in the file: all sections together, and what their ranges are.
//!
//! The names of the fields are the keys. The list of known keys (for suggestions, environment
//! overrides and the example file's test) is derived from the serialized defaults, so there is
//! no second list to keep.

use broker_core::MAX_SHARDS;
use broker_core::backup::JOURNAL_DIR;
use broker_core::config::{AuthConfig, DurabilityConfig, ListenerConfig};
use rt_abstract::Address;
use serde::{Deserialize, Serialize};

use super::limits::LimitSettings;
use super::sections::{
    Admin, Auth, Cluster, Data, Durability, Journal, Listener, Listeners, Log, Meta, Runtime,
    Steps, Sys,
};

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
    /// What is promised about messages.
    pub durability: Durability,
    /// Where messages are kept.
    pub journal: Journal,
    /// The other nodes.
    pub cluster: Cluster,
    /// Logs.
    pub log: Log,
    /// The step clocks.
    pub steps: Steps,
    /// Who may connect.
    pub auth: Auth,
    /// Bounds.
    pub limits: LimitSettings,
    /// The broker's own topics.
    pub sys: Sys,
    /// Where MQTT clients connect.
    pub listeners: Listeners,
}

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
        let filters = self.durability.topics.iter().map(|topic| &topic.filter);
        for (index, filter) in filters.enumerate() {
            if !mqtt::topic::is_valid_filter(filter) || filter.starts_with("$share/") {
                let path = format!("durability.topics[{index}].filter");
                return invalid(&path, "is not a topic filter");
            }
        }
        if !journal::Options::is_segment_size(self.journal.segment_bytes) {
            return invalid("journal.segment_bytes", "must be 65536 to 1073741824, by 4096");
        }
        if !(1 << 20..=MAX_WAITING_BYTES).contains(&self.journal.max_waiting_bytes) {
            let message = format!("must be from 1048576 to {MAX_WAITING_BYTES}");
            return invalid("journal.max_waiting_bytes", &message);
        }
        if self.journal.moved_percent > 100 {
            return invalid("journal.moved_percent", "must be from 0 to 100");
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
        let steps = &self.steps;
        for (key, value, max) in [
            ("steps.slow_connect_ms", steps.slow_connect_ms, MAX_SLOW_MS),
            ("steps.slow_apply_ms", steps.slow_apply_ms, MAX_SLOW_MS),
            ("steps.max_slow_lines_per_s", steps.max_slow_lines_per_s, MAX_SLOW_LINES),
        ] {
            if value > max {
                return invalid(key, &format!("must be from 0 to {max}"));
            }
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
            level: listener.level.into(),
        };
        let durability = &self.durability;
        let topics = durability.topics.iter();
        let topics = topics.map(|topic| (topic.filter.clone(), topic.level.into())).collect();
        let journal = (!self.data.ephemeral).then(|| journal::Options {
            segment_bytes: self.journal.segment_bytes,
            max_waiting_bytes: self.journal.max_waiting_bytes,
            ..journal::Options::new(self.data.dir.join(JOURNAL_DIR))
        });
        broker_core::Config {
            listeners: self.listeners.0.iter().map(listener).collect(),
            limits: self.limits.clone().into(),
            auth: AuthConfig {
                allow_anonymous: self.auth.allow_anonymous,
                users: None,
                max_pending_verifications: self.auth.max_pending_verifications,
            },
            sys_interval_s: self.sys.interval_s,
            durability: DurabilityConfig { level: durability.level.into(), topics },
            journal,
            moved_percent: self.journal.moved_percent,
            steps: self.steps.options(self.steps.slow_connect_ms),
        }
    }
}

const MAX_VERIFICATIONS: usize = 1_000_000;

const MAX_WAITING_BYTES: usize = 16 << 30;

const MAX_LOG_ENTRIES: u64 = 1_000_000_000;

const MAX_SYS_INTERVAL_S: u32 = 86_400;

const MAX_SLOW_MS: u32 = 3_600_000;

const MAX_SLOW_LINES: u32 = 10_000;

/// What is wrong with the key at `path`.
pub(super) fn invalid(path: &str, message: &str) -> Result<(), Invalid> {
    Err(Invalid { path: path.into(), message: message.into() })
}
