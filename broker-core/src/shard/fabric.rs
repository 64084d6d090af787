//! What shards share: routes, retained messages, and the mail between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use mqtt::routing::{ShareGroup, SharedRoutes};
use mqtt::session::Message;
use rt_abstract::{Sender, Socket};
use smallvec::SmallVec;

use super::guesses::{Guesses, Origin};
use super::rate::ConnectRate;
use super::steps::ConnectTimes;
use crate::config::Level;
use crate::messages::{MailKind, Origin as Exchange};
use crate::retained::Retained;

/// Lanes of a shard's mailbox.
pub const LANES: usize = 2;

/// Mailbox lanes, the first received first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Lane {
    /// Sockets that change their shard.
    Control = 0,
    /// Publishes.
    Data = 1,
}

/// What one shard sends to another.
#[derive(Debug)]
pub enum Mail {
    /// A socket whose client belongs here, with the bytes read from it so far.
    Adopt(Socket, Arrival, BytesMut),
    /// A publish that somebody here wants.
    Publish(Remote),
    /// The node stops: the receiving loop ends.
    Stop,
}

/// What is known of a socket before its first byte.
#[derive(Debug)]
pub struct Arrival {
    /// Where it comes from.
    pub origin: Origin,
    /// What its listener promises.
    pub level: Level,
    /// What its CONNECT has taken so far, where that is measured.
    pub times: Option<Box<ConnectTimes>>,
}

/// A publish from another shard: one per destination, however many subscribers it has there.
#[derive(Debug)]
pub struct Remote {
    /// The message.
    pub message: Arc<Message>,
    /// Whether it is for plain subscriptions.
    pub plain: bool,
    /// The share groups that chose this shard.
    pub groups: SmallVec<[Arc<ShareGroup>; 1]>,
    /// The shard that sent it.
    pub from: u8,
    /// How it is counted, when the sender waits for what it is to be recorded here.
    pub(crate) counted: Option<MailKind>,
    /// What is promised about it.
    pub(crate) level: Level,
    /// The QoS 2 exchange of a durable session that it came by, and whether it was said to be sent
    /// again.
    pub(crate) origin: Option<(Exchange, bool)>,
}

/// The parts of a node that every shard uses.
#[derive(Debug)]
pub struct Fabric {
    /// Which shards want a topic.
    pub routes: SharedRoutes,
    /// The retained messages of the node.
    pub retained: Retained,
    /// Which CONNECTs come too fast.
    pub connect_rate: ConnectRate,
    /// Who failed to log in too often.
    pub guesses: Guesses,
    /// Keys the hash that assigned client identifiers come from.
    pub secret: [u64; 2],
    senders: Vec<Sender<Mail, LANES>>,
    connections: AtomicUsize,
}

impl Fabric {
    /// The fabric of as many shards as there are senders.
    pub fn new(
        senders: Vec<Sender<Mail, LANES>>,
        retained: Retained,
        routes: SharedRoutes,
        secret: [u64; 2],
    ) -> Self {
        Self {
            routes,
            retained,
            connect_rate: ConnectRate::default(),
            guesses: Guesses::default(),
            secret,
            senders,
            connections: AtomicUsize::new(0),
        }
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.senders.len()
    }

    /// The mailbox of a shard.
    pub fn mailbox(&self, shard: u8) -> &Sender<Mail, LANES> {
        &self.senders[usize::from(shard)]
    }

    pub(super) fn post(&self, shard: usize, lane: Lane, mail: &mut VecDeque<Mail>) {
        self.senders[shard].try_send_batch(lane as usize, mail);
    }

    /// Counts a connection in, unless `max` are open.
    pub(super) fn take_connection(&self, max: usize) -> bool {
        let taken = self.connections.fetch_add(1, Ordering::Relaxed);
        if taken >= max {
            self.release_connection();
        }
        taken < max
    }

    pub(super) fn release_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a socket that waits to change its shard, until dropped.
    pub fn count_moving(&self) -> Moving<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Moving(self)
    }
}

/// A socket between two shards, counted among the node's connections.
#[derive(Debug)]
pub struct Moving<'a>(&'a Fabric);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.release_connection();
    }
}
