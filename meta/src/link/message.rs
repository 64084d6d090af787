//! What nodes say to each other, in postcard.

use openraft::alias::{SnapshotMetaOf, VoteOf};
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest, VoteRequest};
use rt_abstract::Runtime;
use serde::{Deserialize, Serialize};

use crate::command::{Command, Reply};
use crate::raft::types::TypeConfig;
use crate::record::NodeId;

/// A request; beside each, the type of its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub enum Request<R: Runtime> {
    /// Raft's, one of a stream: taken in the order of the connection; `AppendEntriesResponse`.
    Append(AppendEntriesRequest<TypeConfig<R>>),
    /// Raft's; `VoteResponse`.
    Vote(VoteRequest<TypeConfig<R>>),
    /// Raft's; `VoteResponse`.
    PreVote(VoteRequest<TypeConfig<R>>),
    /// Raft's; `TransferLeaderResponse`.
    TransferLeader(TransferLeaderRequest<TypeConfig<R>>),
    /// Commands for the leader; `Result<Proposed, Redirect>`.
    Propose(Vec<Command>),
    /// How far a node must have applied to see all that was acknowledged so far;
    /// `Result<u64, Redirect>`.
    ReadIndex,
    /// Makes a node a member; `Result<(), Redirect>`.
    Join {
        /// Which.
        node: NodeId,
        /// `host:port` of its cluster listener.
        address: String,
    },
    /// Makes a node a member no more; `Result<(), Redirect>`.
    Leave {
        /// Which.
        node: NodeId,
    },
    /// How the cluster stands; `Status`.
    Status,
    /// Raft's, with nothing behind it that needs its order, a heartbeat say: waits for no disk that
    /// others wait for; `AppendEntriesResponse`.
    AppendAlone(AppendEntriesRequest<TypeConfig<R>>),
}

impl<R: Runtime> Request<R> {
    /// Whether raft itself sends it.
    pub(super) fn is_rafts(&self) -> bool {
        match self {
            Self::Append(_)
            | Self::AppendAlone(_)
            | Self::Vote(_)
            | Self::PreVote(_)
            | Self::TransferLeader(_) => true,
            Self::Propose(_)
            | Self::ReadIndex
            | Self::Join { .. }
            | Self::Leave { .. }
            | Self::Status => false,
        }
    }
}

/// A proposal was committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposed {
    /// Log index of the entry.
    pub index: u64,
    /// One per command.
    pub replies: Vec<Reply>,
}

/// Why a request to the leader was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Redirect {
    /// Nothing was done: this is not the leader, another one is.
    #[error("node {node} at {address} is the leader")]
    Leader {
        /// The leader.
        node: NodeId,
        /// `host:port` of its cluster listener.
        address: String,
    },
    /// Nothing was done: this is not the leader, and it knows none.
    #[error("no leader is known")]
    NoLeader,
    /// What became of it is not known: leadership was lost, or time ran out, on the way.
    #[error("not known to be done: {0}")]
    Unknown(String),
    /// It cannot be done, now or at all.
    #[error("{0}")]
    Failed(String),
}

/// A snapshot is on offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Offer<R: Runtime> {
    /// The leader's vote.
    pub vote: VoteOf<TypeConfig<R>>,
    /// How far the state is.
    pub meta: SnapshotMetaOf<TypeConfig<R>>,
}

/// Where a snapshot goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The number of the next piece.
    pub sequence: u64,
    /// The last key that is there; `None`: from the beginning.
    pub after_key: Option<Vec<u8>>,
    /// All pieces are there.
    pub complete: bool,
}
