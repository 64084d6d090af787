//! What lies between nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, Link};
use crate::world::nodes::NodeId;

#[derive(Debug, Default)]
pub(crate) struct Links {
    set: BTreeMap<(NodeId, NodeId), Link>,
    blocked: BTreeSet<(NodeId, NodeId)>,
}

impl Links {
    pub fn set(&mut self, from: NodeId, to: NodeId, link: Option<Link>) {
        match link {
            Some(link) => self.set.insert((from, to), link),
            None => self.set.remove(&(from, to)),
        };
    }

    pub fn block(&mut self, from: NodeId, to: NodeId) {
        self.blocked.insert((from, to));
    }

    pub fn heal(&mut self, one: NodeId, other: NodeId) {
        self.blocked.remove(&(one, other));
        self.blocked.remove(&(other, one));
    }

    pub fn heal_all(&mut self) {
        self.blocked.clear();
    }

    pub fn is_blocked(&self, from: NodeId, to: NodeId) -> bool {
        self.blocked.contains(&(from, to))
    }

    pub fn get(&self, from: NodeId, to: NodeId, config: &Config) -> Link {
        let usual = if from == to { config.loopback } else { config.link };
        self.set.get(&(from, to)).copied().unwrap_or(usual)
    }
}
