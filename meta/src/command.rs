//! What may be asked of the metadata, and what is answered: the entries of the raft log.
//!
//! Commands are decided when they are applied, on every node alike, from the state and the command
//! alone: times come in as wall-clock milliseconds of the proposer. A command that cannot be
//! carried out is *refused*: that is a reply, never a storage error, and changes nothing.

use serde::{Deserialize, Serialize};

use crate::record::{
    ClientKey, NodeId, NodeRecord, RuleRecord, Slots, StoredMessage, StoredSubscription,
    StoredWill, TenantRecord, UserRecord,
};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A client connects with a durable session: makes or resumes it.
    OpenSession(OpenSession),
    /// The connection of a durable session ended.
    CloseSession(CloseSession),
    /// A session is over: expired, or replaced by a transient one. Removes it with its
    /// subscriptions. Refused as [`Refusal::Stale`] when it was opened again meanwhile. A will that
    /// it still has is due: `node` publishes it. So one that was discarded by a DISCONNECT is to be
    /// discarded by [`Command::CloseSession`] first, which may be a part of the same proposal.
    EndSession {
        /// Whose.
        client: ClientKey,
        /// The epoch that its owner knows.
        epoch: u64,
        /// The node that asks for it.
        node: NodeId,
    },
    /// Takes the will of a session that waits for its delay, or for its publication. Whoever is
    /// answered [`Reply::Done`] publishes it, and nobody else does; refused as
    /// [`Refusal::NotFound`] when none waits, and as [`Refusal::Stale`] when the session was opened
    /// again, which may have made it due elsewhere. (Without an answer the broker publishes all the
    /// same, and asks again until the will is taken.)
    TakeWill {
        /// Whose.
        client: ClientKey,
        /// The epoch that its owner knows.
        epoch: u64,
    },
    /// Adds or replaces subscriptions of a durable session [MQTT-3.8.4-3].
    Subscribe {
        /// Whose.
        client: ClientKey,
        /// The epoch that its owner knows.
        epoch: u64,
        /// What.
        subscriptions: Vec<StoredSubscription>,
    },
    /// Removes subscriptions of a durable session; unknown filters are passed over.
    Unsubscribe {
        /// Whose.
        client: ClientKey,
        /// The epoch that its owner knows.
        epoch: u64,
        /// Filters as the client wrote them.
        filters: Vec<String>,
    },
    /// Sets the retained message of its topic.
    Retain(StoredMessage),
    /// Clears a retained message; done as well when there was none.
    Unretain {
        /// The topic.
        topic: String,
    },
    /// Clears retained messages that have expired, of those given.
    SweepRetained {
        /// Wall-clock milliseconds.
        now_ms: u64,
        /// Topics to look at.
        topics: Vec<String>,
    },
    /// Adds or replaces a user.
    PutUser(UserRecord),
    /// Removes a user; refused as [`Refusal::NotFound`] when there is none.
    RemoveUser {
        /// The name.
        name: String,
    },
    /// Adds or replaces an access rule.
    PutRule(RuleRecord),
    /// Removes an access rule; refused as [`Refusal::NotFound`] when there is none.
    RemoveRule {
        /// Its number.
        id: u32,
    },
    /// Adds or replaces a tenant.
    PutTenant(TenantRecord),
    /// Removes a tenant; refused as [`Refusal::NotFound`] when there is none.
    RemoveTenant {
        /// The name.
        name: String,
    },
    /// Adds or replaces what is known about a node.
    PutNode(NodeRecord),
    /// Forgets a node; refused as [`Refusal::NotFound`] when there is none.
    RemoveNode {
        /// Which.
        id: NodeId,
    },
    /// Gives slots to a node.
    AssignSlots {
        /// Which.
        slots: Slots,
        /// To whom.
        node: NodeId,
    },
    /// Sets or removes (`value: None`) a key of the cluster configuration, if it still has the
    /// version that the proposer saw: 0 for "not there". Refused as [`Refusal::Conflict`] when
    /// somebody was faster, so that of two concurrent updates none is lost.
    SetConfig {
        /// The key.
        key: String,
        /// The version that it must have; `None` for any.
        expected: Option<u64>,
        /// The new value.
        value: Option<Vec<u8>>,
    },
}

/// See [`Command::OpenSession`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// Who.
    pub client: ClientKey,
    /// What was there is discarded.
    pub clean_start: bool,
    /// The node that the client is connected to.
    pub node: NodeId,
    /// How long the session outlives its connection, in seconds; `u32::MAX` is for ever. Not 0.
    pub expiry_interval_s: u32,
    /// The will of this connection.
    pub will: Option<StoredWill>,
    /// Wall-clock milliseconds: a session whose deadline has come is not resumed.
    pub now_ms: u64,
}

/// See [`Command::CloseSession`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseSession {
    /// Who.
    pub client: ClientKey,
    /// The epoch that its owner knows.
    pub epoch: u64,
    /// The interval in force now, in seconds (DISCONNECT may change it); `u32::MAX` for ever.
    pub expiry_interval_s: u32,
    /// When it ends, in wall-clock milliseconds; `None` for never.
    pub expires_at_ms: Option<u64>,
    /// When the will is due, in wall-clock milliseconds, which may be now; `None`: it is discarded
    /// [MQTT-3.14.4-3], or published already.
    pub will_at_ms: Option<u64>,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// A session is open.
    Session {
        /// Names this opening in later commands; see
        /// [`SessionRecord::epoch`](crate::record::SessionRecord::epoch).
        epoch: u64,
        /// Names the session; see
        /// [`SessionRecord::generation`](crate::record::SessionRecord::generation).
        generation: u64,
        /// It was there before.
        present: bool,
    },
    /// A configuration key has this version now; 0 when it was removed.
    Config {
        /// Grows with every change of the key.
        version: u64,
    },
    /// Nothing was changed.
    Refused(Refusal),
}

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The session was opened again since, or ended.
    #[error("the session was opened again, or ended, meanwhile")]
    Stale,
    /// There is no such thing.
    #[error("not found")]
    NotFound,
    /// A configuration key has another version.
    #[error("the key has version {version} by now")]
    Conflict {
        /// The version it has; 0 for "not there".
        version: u64,
    },
    /// A bound of the state would be passed.
    #[error("a limit is reached: {0}")]
    Limit(String),
    /// The command makes no sense, whatever the state.
    #[error("invalid: {0}")]
    Invalid(String),
}
