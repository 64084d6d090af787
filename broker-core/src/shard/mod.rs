//! One shard: its connections, sessions and subscriptions, and every decision about them.
//!
//! All of it is synchronous and takes the time as an argument; the connection tasks in `net` bring
//! bytes in and carry bytes out. A shard is owned by one executor. What crosses shards goes
//! through [`Mail`] and the two shared structures in [`Fabric`].
//!
//! The files follow the life of a connection: `connect`, `auth`, `packets` (what a client may ask),
//! `publish` (routing and delivery), `subscribe`, `close` (ends, wills, expiry), with `conn`,
//! `outbox`, `subscribers` and `wheel` as their data. `sys` says what the counters say, for which
//! `held` counts what sessions hold, and `steps` what a CONNECT takes. What outlives the process goes through `durable` (what clients wait
//! for), `opening`, `posted` (what nobody waits for), `stored` and `doubt`; messages through `recorded`,
//! `recording` and `owed`, back through `fetch`, and out of old segments through `moving`.

mod auth;
mod buffers;
mod close;
mod commit;
mod conn;
mod connect;
mod doubt;
mod durable;
mod fabric;
mod fetch;
mod guesses;
mod held;
mod hops;
mod moving;
mod opening;
mod outbox;
mod owed;
mod packets;
mod posted;
mod pressure;
mod promised;
mod publish;
mod rate;
mod recorded;
mod recording;
mod send;
mod share;
mod steps;
mod stored;
mod subscribe;
mod subscribers;
mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod unit;
mod wheel;
mod writers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::BytesMut;
use hashbrown::{HashSet, HashTable};
use mqtt::access::PasswordCheck;
use mqtt::protocol::ServerRules;
use mqtt::routing::{FilterTree, Matched, SeededHash, slot_of};
use mqtt::session::{Progress, QueueBounds, Session, Will};
use mqtt::topic;
use rt_abstract::Instant;
use rt_abstract::planted::{Bug, is_planted};
use slab::Slab;

use crate::access::Access;
use crate::config::{Level, Limits, QueueFull};
use crate::messages::Origin as Exchange;
use crate::stats::ShardStats;
pub use auth::Verified;
pub use commit::Commit;
use conn::{Conn, Phase};
use durable::Durability;
pub use fabric::{Arrival, Fabric, LANES, Lane, Mail, Remote};
pub use fetch::{Fetch, Lost};
pub use guesses::Origin;
use outbox::BlockPool;
pub use outbox::Output;
use recording::Recording;
use steps::StepClock;
pub use steps::{CONNECT_STEPS, ConnectStep, ConnectTimes};
pub use stored::{Elsewhere, message_of};
use subscribe::Scan;
use subscribers::{FilterEntry, Subscriber};
pub use sys::Sys;
pub use wheel::TICK_MS;
use wheel::Wheel;

/// A connection of this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnKey(pub u32);

/// A session of this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u32);

/// What a connection's reader does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Read on.
    Read,
    /// Let the other tasks run, then go on with [`Shard::resume`].
    Again,
    /// Wait until [`Shard::may_read`], then go on with [`Shard::resume`].
    Wait,
    /// The client belongs to another shard: hand the socket over with all bytes of the buffer.
    Handoff(u8),
    /// A password waits to be verified: run this on a thread that may block, and report it with
    /// [`Shard::on_verified`], which says how to go on, before reading on.
    Verify(Box<PasswordCheck>),
    /// Propose this to the metadata and report the answer with [`Shard::on_committed`], which says
    /// how to go on, before reading on.
    Commit(Box<Commit>),
    /// The connection is closing: read on only to see its end.
    Drain,
}

/// What a connection's writer does next.
#[derive(Debug)]
pub enum Write {
    /// Write this, and report it with [`Shard::on_written`].
    Output(Output),
    /// Everything owed to a closing connection has been written: end the writing direction, then
    /// ask again.
    Finish,
    /// Stop.
    Idle,
}

/// A closing connection may send this much more before it is cut off.
const MAX_DRAINED_BYTES: u32 = 1 << 20;

/// See the module's head.
#[derive(Debug)]
pub struct Shard {
    id: u8,
    limits: Limits,
    rules: ServerRules,
    bounds: QueueBounds,
    topic_limits: topic::Limits,
    fabric: Arc<Fabric>,
    stats: Arc<ShardStats>,
    conns: Slab<Conn>,
    sessions: Slab<Entry>,
    /// Index into `sessions` by client identifier, which only the session stores.
    by_client: HashTable<u32>,
    hasher: SeededHash,
    subscriptions: FilterTree<FilterEntry>,
    timers: Wheel<Timer>,
    /// Numbers sessions and connections, so that a late timer or a no-local check cannot mistake
    /// a reused slot for its former holder. Unique in the node.
    next_number: u64,
    /// Connections with something to write and no writer.
    dirty: VecDeque<ConnKey>,
    /// Connections whose queue overflowed, to be closed when the publish at hand is done.
    evictions: Vec<ConnKey>,
    /// Connections to shut down at once.
    kills: Vec<ConnKey>,
    /// Connections that are gone, for whoever holds their sockets.
    freed: Vec<ConnKey>,
    /// Mail per destination shard that did not fit yet.
    mail: Vec<VecDeque<Mail>>,
    /// Mail sent since the start.
    mail_sent: u64,
    /// A retained scan used up its turn: the flusher lets others run.
    scanned: bool,
    read_pool: Vec<BytesMut>,
    access: Arc<Access>,
    /// Absent on a node that keeps nothing.
    durability: Option<Box<Durability>>,
    /// Absent without a journal.
    recording: Option<Box<Recording>>,
    /// Passwords under verification; further ones than `Access` allows are refused (0x89).
    verifying: usize,
    blocks: BlockPool,
    scratch: Scratch,
    draining: bool,
    /// The node's voice, on the shard that has it.
    sys: Option<Box<Sys>>,
    /// Absent when steps are not measured.
    step_clock: Option<StepClock>,
    /// When the turn began, until somebody has looked: the first look at the clock is free.
    turn_began: Option<Instant>,
}

/// A session with what ties it to this shard.
#[derive(Debug)]
struct Entry {
    number: u64,
    /// Its epoch in the metadata; 0 for a session that does not outlive the process.
    epoch: u64,
    /// Names it in the journal, as long as it is the same session; 0 like `epoch`.
    generation: u64,
    /// Messages that it has got, and whose publishers may send them again after a crash.
    unsettled: Option<Box<HashSet<Exchange>>>,
    /// What it was sent is to be recorded.
    sent_listed: bool,
    /// What it is owed next is being read, or waits to be.
    fetching: bool,
    session: Session,
    conn: Option<ConnKey>,
    /// The current connection's will, or the one that waits for its delay.
    will: Option<Box<Will>>,
    /// When the waiting will is published.
    will_at_ms: Option<u64>,
    /// It is due, and published when the metadata has given it away.
    will_taken: bool,
    /// Whether the metadata has its last changes is not known: see `doubt`.
    in_doubt: bool,
    /// When the session ends; set while no connection holds it.
    expires_at_ms: Option<u64>,
    /// Retained messages still owed to new subscriptions, by their filters.
    scans: BTreeMap<Box<str>, Scan>,
    /// By `Limits::max_subscription_bytes`.
    subscription_bytes: usize,
    /// Shared subscriptions among its subscriptions.
    shared: u32,
    /// The earliest timer entry that is armed for it.
    timer_at_ms: u64,
}

#[derive(Clone, Copy, Debug)]
enum Timer {
    Conn { key: ConnKey, number: u64 },
    Session { key: SessionKey, number: u64 },
}

/// Buffers used again for every publish.
#[derive(Debug, Default)]
struct Scratch {
    targets: Vec<Target>,
    matched: Matched,
    /// QoS 0 frames already encoded for this publish.
    frames: send::Frames,
    due: Vec<Timer>,
    /// What messages with records have come to.
    progress: Vec<Progress>,
}

/// One session that a publish goes to.
#[derive(Clone, Debug)]
struct Target {
    subscriber: Subscriber,
    /// Chosen for a share group: delivered apart from plain subscriptions.
    share: Option<Arc<str>>,
}

impl Shard {
    /// An empty shard `id`.
    pub fn new(
        id: u8,
        limits: Limits,
        fabric: Arc<Fabric>,
        stats: Arc<ShardStats>,
        seed: u64,
        now_ms: u64,
    ) -> Self {
        let rules = ServerRules {
            max_keep_alive_s: limits.max_keep_alive_s,
            receive_maximum: limits.receive_maximum,
            max_inflight: limits.max_inflight,
            topic_alias_maximum: limits.topic_alias_maximum,
            max_packet_size_bytes: limits.max_packet_size_bytes,
            max_session_expiry_s: limits.max_session_expiry_s,
        };
        let bounds = QueueBounds {
            max_messages: match is_planted(Bug::UnboundedQueue) {
                true => usize::MAX,
                false => limits.max_queued_messages,
            },
            max_bytes: limits.max_queued_bytes,
            when_full: match limits.queue_full {
                QueueFull::DropOld => mqtt::session::QueueFull::DropOld,
                QueueFull::DropNew | QueueFull::Disconnect => mqtt::session::QueueFull::DropNew,
            },
        };
        let topic_limits = topic::Limits {
            max_bytes: limits.max_topic_bytes,
            max_levels: limits.max_topic_levels,
        };
        Self {
            id,
            rules,
            bounds,
            topic_limits,
            stats,
            conns: Slab::new(),
            sessions: Slab::new(),
            by_client: HashTable::new(),
            hasher: SeededHash::new(seed),
            subscriptions: FilterTree::new(seed),
            timers: Wheel::new(now_ms),
            next_number: u64::from(id) << 48,
            dirty: VecDeque::new(),
            evictions: Vec::new(),
            kills: Vec::new(),
            freed: Vec::new(),
            mail: (0..fabric.shards()).map(|_| VecDeque::new()).collect(),
            mail_sent: 0,
            scanned: false,
            read_pool: Vec::new(),
            access: Arc::default(),
            durability: None,
            recording: None,
            verifying: 0,
            blocks: BlockPool::default(),
            scratch: Scratch::default(),
            draining: false,
            sys: None,
            step_clock: None,
            turn_began: None,
            limits,
            fabric,
        }
    }

    /// Judges clients by `access` from now on; before, everybody may connect.
    pub fn set_access(&mut self, access: Arc<Access>) {
        self.access = access;
    }

    /// Opens a connection that has not said CONNECT yet; `None` when the node is full.
    pub fn open(&mut self, now_ms: u64) -> Option<ConnKey> {
        if self.draining || !self.fabric.take_connection(self.limits.max_connections) {
            self.stats.connections_refused.add(1);
            return None;
        }
        let number = self.number();
        let key = ConnKey(self.conns.insert(Conn::new(number, now_ms)) as u32);
        self.stats.connections.add(1);
        self.arm_conn(key, now_ms + u64::from(self.limits.connect_timeout_ms));
        Some(key)
    }

    /// Says where a connection comes from, and what it is promised about its messages; without, it
    /// counts as local, and what it publishes is on the disk when it is acknowledged.
    pub fn set_origin(&mut self, key: ConnKey, origin: Origin, level: Level) {
        if let Some(conn) = self.conn(key) {
            (conn.origin, conn.level) = (origin, level);
        }
    }

    /// A socket was accepted: counts it, and begins to measure its CONNECT.
    pub fn accepted(&mut self) -> Option<Box<ConnectTimes>> {
        self.stats.connections_accepted.add(1);
        self.begin_times()
    }

    /// Bytes arrived: `buffer` holds them behind what was unfinished. Handles every complete
    /// packet, in order.
    pub fn on_bytes(
        &mut self,
        key: ConnKey,
        read: usize,
        buffer: BytesMut,
        now_ms: u64,
    ) -> Received {
        self.stats.bytes_received.add(read as u64);
        packets::on_bytes(self, key, read, buffer, now_ms)
    }

    /// The socket ended, or failed; the reader will not come back. What is still owed to the
    /// client is written, then the connection is freed.
    pub fn on_end(&mut self, key: ConnKey, now_ms: u64) {
        self.verification_over(key); // nobody will report it any more
        self.detach(key, close::Parting::Lost, now_ms);
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return };
        conn.reader_done = true;
        if conn.phase != Phase::Closing {
            self.close(key, now_ms);
        }
        self.settle(now_ms);
        self.free_if_done(key);
    }

    /// The connection's socket is on its way to another shard.
    pub fn on_handed_off(&mut self, key: ConnKey) {
        self.stats.handoffs.add(1);
        self.free(key);
    }

    /// Whether a retained scan used up its turn since the last call.
    pub fn take_scanned(&mut self) -> bool {
        std::mem::take(&mut self.scanned)
    }

    /// Whether the connection has not sent a complete CONNECT yet.
    pub fn in_handshake(&self, key: ConnKey) -> bool {
        self.conns.get(key.0 as usize).is_some_and(|conn| conn.phase == Phase::Handshake)
    }

    /// Connections to shut down at once.
    pub fn take_kills(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.kills)
    }

    /// Connections whose sockets can be let go.
    pub fn take_freed(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.freed)
    }

    /// Whether [`Shard::take_kills`] or [`Shard::take_freed`] has something.
    pub fn has_endings(&self) -> bool {
        !self.kills.is_empty() || !self.freed.is_empty()
    }

    /// Open connections, closing ones included.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Mail from another shard.
    pub fn on_mail(&mut self, remote: &Remote, now_ms: u64) {
        publish::deliver_remote(self, remote, now_ms);
    }

    /// The shard a client identifier belongs to.
    pub fn owner_of(&self, client_id: &str) -> u8 {
        (usize::from(slot_of(client_id)) % self.fabric.shards()) as u8
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn conn(&mut self, key: ConnKey) -> Option<&mut Conn> {
        self.conns.get_mut(key.0 as usize)
    }

    fn arm_conn(&mut self, key: ConnKey, deadline_ms: u64) {
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return };
        // An entry that fires earlier than needed is armed again; one that fires later would miss.
        if conn.timer_at_ms <= deadline_ms {
            return;
        }
        conn.timer_at_ms = deadline_ms;
        self.timers.arm(deadline_ms, Timer::Conn { key, number: conn.number });
    }

    fn mark_dirty(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return };
        mark_dirty(&mut self.dirty, key, conn);
    }
}

/// What [`Shard::on_bytes`] leaves.
#[derive(Debug)]
pub struct Received {
    /// What the reader does next.
    pub next: Next,
    /// All bytes read so far, for [`Next::Handoff`].
    pub handoff: BytesMut,
}

#[inline]
fn mark_dirty(dirty: &mut VecDeque<ConnKey>, key: ConnKey, conn: &mut Conn) {
    if !conn.dirty && !conn.writing {
        conn.dirty = true;
        dirty.push_back(key);
    }
}
