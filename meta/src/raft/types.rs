//! The types that openraft is run with.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

use openraft::RaftTypeConfig;
use openraft::impls::{OneshotResponder, Vote, leader_id_adv};
use rt_abstract::Runtime;
use serde::{Deserialize, Serialize};

use super::runtime::RaftRuntime;
use crate::command::{Command, Reply};
use crate::record::NodeId;

/// One log entry: commands that were proposed at about the same time, applied in order, each with
/// its own reply. The entry as a whole is atomic, and one refused command does not stop the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// At least one.
    pub commands: Vec<Command>,
}

/// The replies to a [`Proposal`], one per command in order; none for entries of raft's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replies {
    /// In the order of the commands.
    pub replies: Vec<Reply>,
}

/// Where a node is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// `host:port` of its cluster listener; empty on a node that has none.
    pub address: String,
}

/// openraft's choice of types, on the runtime `R`.
pub struct TypeConfig<R>(PhantomData<R>);

/// A log entry.
pub type Entry<R> = openraft::type_config::alias::EntryOf<TypeConfig<R>>;
/// A position in the log.
pub type LogId<R> = openraft::type_config::alias::LogIdOf<TypeConfig<R>>;

impl<R: Runtime> RaftTypeConfig for TypeConfig<R> {
    type D = Proposal;
    type R = Replies;
    type NodeId = NodeId;
    type Node = Peer;
    type Term = u64;
    type LeaderId = leader_id_adv::LeaderId<u64, NodeId>;
    type Vote = Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Proposal, NodeId, Peer>;
    type Entry = openraft::impls::Entry<
        <Self::LeaderId as openraft::vote::RaftLeaderId>::Committed,
        Self::Payload,
    >;
    type AsyncRuntime = RaftRuntime<R>;
    type Responder<T>
        = OneshotResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands", self.commands.len())
    }
}

impl fmt::Display for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} replies", self.replies.len())
    }
}

impl<R> Clone for TypeConfig<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for TypeConfig<R> {}

impl<R> Default for TypeConfig<R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<R> fmt::Debug for TypeConfig<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TypeConfig")
    }
}

impl<R> PartialEq for TypeConfig<R> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<R> Eq for TypeConfig<R> {}

impl<R> PartialOrd for TypeConfig<R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R> Ord for TypeConfig<R> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}
