//! How a cluster stands, for operators.

use serde::{Deserialize, Serialize};

use crate::record::NodeId;

/// As one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// This node.
    pub node: NodeId,
    /// `leader`, `follower`, `candidate`, `learner`; `starting` before raft runs.
    pub role: String,
    /// The leader, if one is known.
    pub leader: Option<NodeId>,
    /// The term of raft.
    pub term: u64,
    /// The last entry in the log here.
    pub last_log_index: Option<u64>,
    /// The last entry applied here.
    pub last_applied_index: Option<u64>,
    /// The entry up to which a snapshot exists here.
    pub snapshot_index: Option<u64>,
    /// The entry up to which the log was purged.
    pub purged_index: Option<u64>,
    /// All members.
    pub members: Vec<Member>,
}

/// One member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which.
    pub node: NodeId,
    /// Where other nodes reach it.
    pub address: String,
    /// It votes; else it only learns.
    pub voter: bool,
    /// The last entry that it is known to have; known to the leader only.
    pub matched_index: Option<u64>,
}
