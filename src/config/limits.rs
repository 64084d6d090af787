//! `[limits]`: the broker's own bounds under the same names, each with its range.

use broker_core::config::{Limits, QueueFull, SharedStrategy};
use serde::{Deserialize, Serialize};

use super::settings::{Invalid, invalid};

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
            pub(super) fn check(&self) -> Result<(), Invalid> {
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
    read_ahead_messages: usize, 1..=65_535;
    max_read_ahead_bytes: usize, 0..=MAX_BYTES;
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
