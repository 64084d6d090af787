//! What became of commands, for those who keep a picture of the state.

use crate::record::{ClientKey, NodeId, StoredMessage, StoredWill};

/// One change, told on every node in the order in which it was applied. A node that missed some,
/// because it was started or caught up by a snapshot, reads the state anew instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A topic has this retained message now.
    Retained {
        /// What.
        message: StoredMessage,
        /// Log index of the entry.
        index: u64,
    },
    /// A topic has no retained message any more.
    Unretained {
        /// Which.
        topic: String,
        /// Log index of the entry.
        index: u64,
    },
    /// A durable session was opened. An older connection of it, wherever it is, is over
    /// [MQTT-3.1.4-3].
    SessionOpened {
        /// Whose.
        client: ClientKey,
        /// The node that serves it now.
        node: NodeId,
        /// Names this opening.
        epoch: u64,
        /// The node that served the client's session before, be it resumed or discarded.
        previous: Option<NodeId>,
    },
    /// A durable session is gone with its subscriptions and everything that was queued for it.
    SessionEnded {
        /// Whose.
        client: ClientKey,
        /// Its last opening, so that what belongs to a later session is left alone.
        epoch: u64,
    },
    /// The state gave up a will, which is due now: `node` publishes it and nobody else does. It is
    /// told once; the will is not in the state any more.
    WillDue {
        /// Whose.
        client: ClientKey,
        /// Who publishes: the node that caused it, so one that was alive a moment ago.
        node: NodeId,
        /// What.
        will: StoredWill,
    },
    /// Users were added, changed or removed.
    UsersChanged,
    /// Access rules were added, changed or removed.
    RulesChanged,
    /// A key of the cluster configuration was changed.
    ConfigChanged {
        /// Which.
        key: String,
        /// The version it has now; 0 when it was removed.
        version: u64,
    },
    /// Nodes were added, changed or removed.
    NodesChanged,
    /// Slots have another node.
    SlotsChanged,
    /// A snapshot took the place of everything: nothing that was told before counts.
    Replaced,
}
