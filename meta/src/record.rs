//! What is stored, one type per table. Encoded by `codec`, with a version byte per record.

use serde::{Deserialize, Serialize};

/// Names a node of the cluster; chosen by the operator, 1 when he did not.
pub type NodeId = u64;

/// The tenant of a client that was not given another.
pub const DEFAULT_TENANT: &str = "";

/// Number of slots; a client's slot is a hash of its key.
pub const SLOTS: u16 = 4096;

/// Whose session: no two tenants share client identifiers. Neither part holds a NUL character.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientKey {
    /// The tenant's name.
    pub tenant: String,
    /// The client identifier.
    pub client_id: String,
}

/// A durable session. Its subscriptions are records of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The epoch that it had first: tells it from an earlier session of the same client.
    pub generation: u64,
    /// Names its last opening; what an earlier connection still asks for is refused. Usually the
    /// log index of the entry, never less, and greater than that of any earlier opening.
    pub epoch: u64,
    /// The node that serves it, or did last.
    pub node: NodeId,
    /// A connection has it.
    pub connected: bool,
    /// How long it outlives its connection, in seconds; `u32::MAX` is for ever.
    pub expiry_interval_s: u32,
    /// When it ends, in wall-clock milliseconds; `None` while connected, or for never.
    pub expires_at_ms: Option<u64>,
    /// The connection's will, or the one that waits for its delay.
    pub will: Option<StoredWill>,
    /// When the waiting will is due, in wall-clock milliseconds.
    pub will_at_ms: Option<u64>,
    /// Number of its subscription records.
    pub subscriptions: u32,
}

/// A subscription of a durable session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSubscription {
    /// The filter as the client wrote it, `$share/...` included; holds no NUL character.
    pub filter: String,
    /// The options byte of MQTT 5 (3.8.3.1).
    pub options: u8,
    /// Subscription identifier; 0 for none.
    pub id: u32,
}

/// A message as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMessage {
    /// The topic; holds no NUL character.
    pub topic: String,
    /// The raw properties that are forwarded unchanged.
    #[serde(with = "raw")]
    pub properties: Vec<u8>,
    /// The payload; not empty in a retained message.
    #[serde(with = "raw")]
    pub payload: Vec<u8>,
    /// QoS, 0 to 2.
    pub qos: u8,
    /// When it expires, in wall-clock milliseconds.
    pub expires_at_ms: Option<u64>,
}

/// A will.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredWill {
    /// The message, without a deadline: that starts when it is published.
    pub message: StoredMessage,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Seconds between the end of the connection and its publication.
    pub delay_s: u32,
    /// Seconds from its publication to its expiry.
    pub expiry_interval_s: Option<u32>,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRecord {
    /// The name.
    pub name: String,
    /// The tenant it belongs to.
    pub tenant: String,
    /// The credentials as a line of the users file has them; never a plain password.
    pub credentials: String,
}

/// An access rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleRecord {
    /// Its place: rules are tried in this order.
    pub id: u32,
    /// Whether it allows or denies.
    pub allow: bool,
    /// User that it is for; `None` for all.
    pub user: Option<String>,
    /// Publishing is meant.
    pub publish: bool,
    /// Subscribing is meant.
    pub subscribe: bool,
    /// Topics that it is for.
    pub filter: String,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// The name; holds no NUL character.
    pub name: String,
    /// Durable sessions it may have; 0 for any number.
    pub max_sessions: u64,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Which.
    pub id: NodeId,
    /// Where other nodes reach it.
    pub cluster_address: String,
    /// Shards that it runs.
    pub shards: u16,
}

/// Slots from `first` to `last`, both included, below [`SLOTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// Slots that one node has. Runs do not overlap, and neighbours of the same node are one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRun {
    /// Which.
    pub slots: Slots,
    /// Whose.
    pub node: NodeId,
}

/// A configuration value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRecord {
    /// Grows with every change of the key, also over a removal. Usually the log index of the entry
    /// that set it, never less.
    pub version: u64,
    /// The value.
    #[serde(with = "raw")]
    pub value: Vec<u8>,
}

/// What the state holds in all; kept up to date in the same write as what it counts, so that a
/// half applied change would show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Durable sessions.
    pub sessions: u64,
    /// Their subscriptions.
    pub subscriptions: u64,
    /// Retained messages.
    pub retained: u64,
    /// Their bytes: topic + properties + payload.
    pub retained_bytes: u64,
}

/// What is counted for one tenant; without a record when it is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantTotals {
    /// Its durable sessions.
    pub sessions: u64,
}

impl StoredMessage {
    /// What it counts for in [`Totals::retained_bytes`].
    pub fn stored_bytes(&self) -> u64 {
        (self.topic.len() + self.properties.len() + self.payload.len()) as u64
    }
}

/// Bytes in one piece. Without it serde writes and reads a `Vec<u8>` byte by byte; what is written
/// is the same.
pub(crate) mod raw {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        from.deserialize_byte_buf(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }

        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }
    }
}
