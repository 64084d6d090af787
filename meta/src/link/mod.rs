//! The link between nodes: raft's requests, snapshots, and what a follower passes on to its leader.
//!
//! Each node keeps one connection to each peer for its own requests, on which any number of them
//! are on their way at a time; answers come back on it in any order, but for those of raft's stream of
//! entries, which is one. A snapshot has a connection of
//! its own, so that no heartbeat waits behind it. A connection begins with a [`hello`], then carries
//! [`frame`]s. [`client`] asks, [`server`] answers out of a [`service::Service`], [`snapshot`] sends
//! and takes snapshots, [`network`] is all of it as openraft wants it.
//!
//! Reads belong to tasks of their own and are never given up: deadlines kill the socket. Callers
//! wait for channels, which may be given up at any time.
//!
//! Nothing here proves who the peer is, or hides what is said: the network between the nodes has to
//! be private.

mod backoff;
pub mod client;
mod connect;
mod connection;
pub mod frame;
pub mod hello;
pub mod message;
pub mod network;
pub mod server;
pub mod service;
pub mod snapshot;
mod work;

use std::time::Duration;

use crate::record::NodeId;

/// How a node takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The cluster's name; nodes of another one are refused.
    pub cluster: String,
    /// This node.
    pub node: NodeId,
    /// How long connecting may take, the hello included.
    pub connect_timeout: Duration,
    /// How often a connection is tried out by a ping.
    pub ping_interval: Duration,
    /// A connection on which nothing has come for so long is dead, and so is one that takes nothing
    /// for so long. Several times the ping interval.
    pub silence: Duration,
    /// The pause before the first new attempt to connect; doubles up to [`Settings::max_backoff`].
    pub min_backoff: Duration,
    /// The longest pause between two attempts to connect.
    pub max_backoff: Duration,
    /// A larger frame is refused, by the sender and by the receiver. Holds the largest request to
    /// append entries.
    pub max_frame_bytes: usize,
    /// Size of the pieces of a snapshot.
    pub chunk_bytes: usize,
}

impl Settings {
    /// The usual ones.
    pub fn new(cluster: impl Into<String>, node: NodeId) -> Self {
        Self {
            cluster: cluster.into(),
            node,
            connect_timeout: Duration::from_secs(2),
            ping_interval: Duration::from_millis(500),
            silence: Duration::from_secs(3),
            min_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            max_frame_bytes: 64 << 20,
            chunk_bytes: 512 << 10,
        }
    }
}
