//! The network: connections as two ends with segments under way, links between nodes, listeners.
//!
//! A connection behaves like TCP towards its programs. Segments of one direction arrive in order,
//! each after its link's latency; what is sent and not read yet is bounded. A blocked link delivers
//! nothing: the first segment in line is tried again, ever less often, until the connection's time is
//! up. An end that gets something for a connection that its node does not know is told so by a reset,
//! unless its peer has no power: then it hears nothing.

mod connect;
mod end;
mod links;
mod listener;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

pub(crate) use self::connect::connect;
pub(crate) use self::end::{End, EndId};
pub(crate) use self::links::Links;
pub(crate) use self::listener::{Listen, ListenId, Name, bind, listener};
pub use self::listener::{Listener, ListenerCloser};
pub use self::stream::{Closer, ReadHalf, Stream, WriteHalf};

use crate::config::Link;
use crate::coverage::Fault;
use crate::world::State;
use crate::world::nodes::NodeId;

#[derive(Debug, Default)]
pub(crate) struct Net {
    pub ends: BTreeMap<EndId, End>,
    pub listens: BTreeMap<ListenId, Listen>,
    pub names: BTreeMap<Name, ListenId>,
    pub links: Links,
    /// Socket files that were made, whether somebody listens or not.
    pub paths: BTreeSet<(NodeId, PathBuf)>,
    last: u64,
}

impl Net {
    pub fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn set_link(&mut self, from: NodeId, to: NodeId, link: Option<Link>) {
        self.links.set(from, to, link);
    }

    pub fn block(&mut self, from: NodeId, to: NodeId) {
        self.links.block(from, to);
    }

    pub fn heal(&mut self, one: NodeId, other: NodeId) {
        self.links.heal(one, other);
    }

    pub fn heal_all(&mut self) {
        self.links.heal_all();
    }

    /// One end of each connection between two nodes, on the first one where they differ.
    pub fn between(&self, one: NodeId, other: NodeId) -> Vec<EndId> {
        let ends = self.ends.iter().filter(|(id, end)| {
            end.node == one
                && end.peer_node == other
                && end.peer.is_some()
                && !end.closed
                && (one != other || end.peer > Some(**id))
        });
        ends.map(|(&id, _)| id).collect()
    }
}

impl State {
    pub fn reset_connections(&mut self, one: NodeId, other: NodeId) -> usize {
        let ends = self.net.between(one, other);
        for &id in &ends {
            self.count(Fault::Reset);
            let peer = self.net.ends.get(&id).and_then(|end| end.peer);
            self.reset_end(id, std::io::ErrorKind::ConnectionReset);
            if let Some(peer) = peer {
                self.reset_end(peer, std::io::ErrorKind::ConnectionReset);
            }
        }
        ends.len()
    }

    pub fn half_open(&mut self, gone: NodeId, other: NodeId) -> usize {
        let ends = self.net.between(gone, other);
        for &id in &ends {
            self.count(Fault::HalfOpen);
            self.forget_end(id);
        }
        ends.len()
    }

    /// The process has ended; the system closes what was its own.
    pub fn close_all(&mut self, node: NodeId) {
        self.unlisten_all(node);
        for id in self.net.ends_of(node) {
            self.close_end(id);
        }
    }

    /// The machine has lost its power: nothing is said to anybody.
    pub fn forget_all(&mut self, node: NodeId) {
        self.unlisten_all(node);
        for id in self.net.ends_of(node) {
            self.forget_end(id);
        }
    }

    fn unlisten_all(&mut self, node: NodeId) {
        let of_node = |listen: &Listen| listen.name.node() == node;
        let listens: Vec<_> = self.net.listens.iter().filter(|(_, it)| of_node(it)).collect();
        let ids: Vec<_> = listens.into_iter().map(|(&id, _)| id).collect();
        for id in ids {
            self.unlisten(id);
        }
    }
}

impl Net {
    fn ends_of(&self, node: NodeId) -> Vec<EndId> {
        self.ends.iter().filter(|(_, end)| end.node == node).map(|(&id, _)| id).collect()
    }
}
