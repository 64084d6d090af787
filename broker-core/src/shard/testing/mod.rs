//! Whole shards driven by bytes from anywhere: the fuzz target's and the regression tests' way in.
//!
//! The input is read as steps of four connections: well-formed packets from a small grammar, frames
//! with wrong bodies, raw bytes, sockets that end, fail or take nothing, verifications that end, and
//! time. Whatever comes, nothing panics, what a client receives decodes, the counters agree with
//! what they count, and when everybody has left nothing stays.

mod connects;
mod grammar;
mod pools;
pub(super) mod scram;
mod slot;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use mqtt::routing::{Matched, SharedRoutes};
use mqtt::wire::Version;
use rt_abstract::{Receiver, mailbox};

use super::{Fabric, LANES, Mail, Next, Received, Shard, TICK_MS, Verified};
use crate::access::Access;
use crate::config::{AuthConfig, Limits, QueueFull};
use crate::retained::Retained;
use crate::stats::ShardStats;
pub use connects::Connects;
use grammar::{Input, TOPICS, connect, packet};
pub use pools::Pools;
use slot::{Reader, Slot};

const SLOTS: usize = 4;
const START_MS: u64 = 1_000;
/// The longest that a session may live on, so that the end can wait for all of them.
const MAX_EXPIRY_S: u32 = 100;
/// Turns until mail and output must have come to rest.
const MAX_TURNS: usize = 10_000;
/// Ticks in which any time passes, or ticks would be most of what an input costs.
const MAX_TICKS: u64 = 16;

/// Plays `data`; see the module's head.
///
/// # Panics
/// When something that must hold does not.
pub fn run(data: &[u8]) {
    let mut input = Input { data };
    let mut node = Node::new(&mut input);
    while !input.data.is_empty() {
        node.step(&mut input);
        node.settle();
        node.check();
    }
    node.end();
}

/// What an input's first byte says beside the number of shards, which is the byte modulo 3: inputs
/// whose first byte is below 3 mean what they meant before there were styles.
#[derive(Clone, Copy)]
struct Style {
    /// Readers stop when they are told to, users exist, and the grammar knows AUTH.
    full: bool,
    allow_anonymous: bool,
    limited_rate: bool,
}

impl Style {
    fn of(byte: u8) -> Self {
        let bit = |at: u8| ((byte / 3) >> at) & 1 != 0;
        Self { full: bit(0), allow_anonymous: bit(1), limited_rate: bit(2) }
    }
}

struct Node {
    style: Style,
    shards: Vec<Shard>,
    mailboxes: Vec<Receiver<Mail, LANES>>,
    stats: Vec<Arc<ShardStats>>,
    now_ms: u64,
    slots: [Option<Slot>; SLOTS],
}

impl Node {
    fn new(input: &mut Input<'_>) -> Self {
        let first = input.byte();
        let (shards, style) = (1 + usize::from(first % 3), Style::of(first));
        let limits = Limits {
            max_connect_rate_per_s: if style.full && style.limited_rate { 2 } else { 0 },
            max_connections: 6,
            connect_timeout_ms: 1_000,
            close_timeout_ms: 500,
            max_packet_size_bytes: 40_000,
            max_connect_size_bytes: 400,
            max_keep_alive_s: 20,
            receive_maximum: 3,
            topic_alias_maximum: 2,
            max_inflight: 3,
            max_session_expiry_s: MAX_EXPIRY_S,
            max_queued_messages: 5,
            max_queued_bytes: 30_000,
            max_outbox_bytes: 20_000,
            max_subscriptions: 4,
            max_topic_bytes: 100,
            max_topic_levels: 4,
            max_retained_messages: 3,
            max_retained_bytes: 30_000,
            max_mailbox_messages: 2,
            queue_full: input.one_of(&[
                QueueFull::DropNew,
                QueueFull::DropOld,
                QueueFull::Disconnect,
            ]),
            ..Limits::default()
        };
        let (senders, mailboxes) =
            (0..shards).map(|_| mailbox([16, limits.max_mailbox_messages])).unzip();
        let retained = Retained::new(limits.max_retained_messages, limits.max_retained_bytes);
        let fabric = Arc::new(Fabric::new(senders, retained, SharedRoutes::new(1), [7, 8]));
        let stats: Vec<Arc<ShardStats>> = (0..shards).map(|_| Arc::default()).collect();
        let mut shards: Vec<Shard> = (0..shards)
            .map(|id| {
                let (fabric, stats) = (fabric.clone(), stats[id].clone());
                Shard::new(id as u8, limits.clone(), fabric, stats, 1, START_MS)
            })
            .collect();
        if style.full {
            let config = AuthConfig {
                allow_anonymous: style.allow_anonymous,
                users: Some(scram::users()),
                max_pending_verifications: 2,
            };
            let access = Arc::new(Access::new(&config, [7; 32]));
            shards.iter_mut().for_each(|shard| shard.set_access(access.clone()));
        }
        let slots = [const { None }; SLOTS];
        Self { style, shards, mailboxes, stats, now_ms: START_MS, slots }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let at = usize::from(choice & 3);
        match choice >> 2 & 15 {
            0 => {
                let count = usize::from(input.byte());
                let bytes = input.bytes(count);
                self.feed(at, bytes);
            }
            1 => {
                let first = input.byte();
                let count = usize::from(input.byte() & 0x7f);
                let mut frame = vec![first, count as u8];
                frame.extend_from_slice(input.bytes(count));
                frame.resize(2 + count, 0);
                self.feed(at, &frame);
            }
            2 => self.pass(u64::from(input.byte()) * 40),
            3 => self.lose(at),
            4 => {
                if let Some(slot) = &mut self.slots[at] {
                    slot.fails = true;
                }
            }
            5 => self.stick(at),
            6 if self.style.full && choice >> 7 == 1 => self.verify(at, input),
            6 => self.pass(u64::from(input.byte()) * 1_000),
            7..=9 => {
                let mut frame = Vec::new();
                let version = connect(input, self.style.full, &mut frame);
                // Also on a connection that is open already, which is a violation.
                self.open(at, input);
                if let Some(slot) = &mut self.slots[at] {
                    slot.version = version;
                }
                self.feed(at, &frame);
            }
            _ => {
                let version = self.slots[at].as_ref().map_or(Version::V5, |slot| slot.version);
                let challenge = self.slots[at].as_ref().and_then(|slot| slot.challenge.as_deref());
                let mut frame = Vec::new();
                packet(input, version, self.style.full, challenge, &mut frame);
                // In two pieces now and then.
                let cut = usize::from(input.byte() & 0x3f).min(frame.len());
                self.feed(at, &frame[..cut]);
                self.feed(at, &frame[cut..]);
            }
        }
    }

    fn open(&mut self, at: usize, input: &mut Input<'_>) {
        if self.slots[at].is_some() {
            return;
        }
        let shard = usize::from(input.byte()) % self.shards.len();
        self.open_on(at, shard, Version::V5);
    }

    fn open_on(&mut self, at: usize, shard: usize, version: Version) {
        let key = self.shards[shard].open(self.now_ms);
        self.slots[at] = key.map(|key| Slot::new(shard, key, version));
    }

    /// The client sends `bytes`.
    fn feed(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return; // an end, to a reader
        }
        if self.slots[at].is_none() {
            self.open_on(at, at % self.shards.len(), Version::V5);
        }
        let Some(slot) = &mut self.slots[at] else { return };
        if !self.style.full {
            self.read(at, bytes);
            return;
        }
        slot.unread.extend_from_slice(bytes);
        self.go_on(at);
    }

    /// The reader reads, unless it is stopped. Whether anything moved.
    fn go_on(&mut self, at: usize) -> bool {
        let Some(slot) = &mut self.slots[at] else { return false };
        let (from, key) = (slot.shard, slot.key);
        match slot.reader {
            Reader::Reads if !slot.unread.is_empty() => {
                let bytes = std::mem::take(&mut slot.unread);
                self.read(at, &bytes);
            }
            Reader::Yields => {
                let next = self.shards[from].resume(key, self.now_ms);
                self.follow(at, next);
            }
            Reader::Waits if self.shards[from].may_read(key, self.now_ms) => {
                let next = self.shards[from].resume(key, self.now_ms);
                self.follow(at, next);
            }
            _ => return false,
        }
        true
    }

    fn read(&mut self, at: usize, bytes: &[u8]) {
        let Some(slot) = &self.slots[at] else { return };
        let (from, key, version) = (slot.shard, slot.key, slot.version);
        let shard = &mut self.shards[from];
        let mut buffer = shard.read_buffer(key);
        buffer.extend_from_slice(bytes);
        let Received { next, handoff } = shard.on_bytes(key, bytes.len(), buffer, self.now_ms);
        let Next::Handoff(owner) = next else { return self.follow(at, next) };
        let owner = usize::from(owner);
        assert_ne!(owner, from, "handed to itself");
        shard.on_handed_off(key);
        self.slots[at] = None;
        self.open_on(at, owner, version);
        let Some(slot) = &self.slots[at] else { return };
        let next = self.shards[owner].on_bytes(slot.key, handoff.len(), handoff, self.now_ms).next;
        assert!(!matches!(next, Next::Handoff(_)), "handed on");
        self.follow(at, next);
    }

    /// What the shard says that the reader does next.
    fn follow(&mut self, at: usize, next: Next) {
        let Some(slot) = &mut self.slots[at] else { return };
        if self.style.full && slot.reader != Reader::Ended {
            slot.reader = match next {
                Next::Again => Reader::Yields,
                Next::Wait => Reader::Waits,
                Next::Verify(_) => Reader::Verifies,
                _ => Reader::Reads,
            };
        }
    }

    /// A verification ends; checking the password itself would take too long.
    fn verify(&mut self, at: usize, input: &mut Input<'_>) {
        let right = Verified::Right;
        let verified = input.one_of(&[right, right, Verified::Wrong, Verified::Failed]);
        self.end_verification(at, verified);
    }

    fn end_verification(&mut self, at: usize, verified: Verified) {
        let Some(slot) = &self.slots[at] else { return };
        if slot.reader == Reader::Verifies {
            let shard = &mut self.shards[slot.shard];
            let next = shard.on_verified(slot.key, verified, self.now_ms).next;
            self.follow(at, next);
        }
    }

    fn lose(&mut self, at: usize) {
        // A reader comes back from a verification before it sees that its socket ended.
        self.end_verification(at, Verified::Failed);
        if let Some(slot) = &mut self.slots[at] {
            slot.end(&mut self.shards[slot.shard], self.now_ms);
        }
    }

    /// Its socket takes nothing from now on, or takes everything again.
    fn stick(&mut self, at: usize) {
        let Some(slot) = &mut self.slots[at] else { return };
        slot.stuck = !slot.stuck;
        if let Some(output) = slot.waiting.take() {
            let shard = &mut self.shards[slot.shard];
            slot.take(&output);
            shard.on_written(slot.key, output, true, self.now_ms);
            slot.drain(shard, self.now_ms);
        }
    }

    fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        let step_ms = (TICK_MS * 16).max(ms.div_ceil(MAX_TICKS));
        while self.now_ms < end_ms {
            self.now_ms = (self.now_ms + step_ms).min(end_ms);
            for shard in &mut self.shards {
                shard.on_tick(self.now_ms);
            }
            self.settle();
        }
    }

    /// Carries mail, output and endings until nothing moves.
    fn settle(&mut self) {
        for _ in 0..MAX_TURNS {
            let mut moved = false;
            for at in 0..self.shards.len() {
                moved |= self.turn(at);
            }
            for at in 0..SLOTS {
                moved |= self.go_on(at);
            }
            if !moved {
                return;
            }
        }
        panic!("mail and output never come to rest");
    }

    fn turn(&mut self, at: usize) -> bool {
        let mut moved = false;
        let mut mail = Vec::new();
        {
            let waiting = pin!(self.mailboxes[at].receive(&mut mail, 1_000));
            let ready = waiting.poll(&mut Context::from_waker(Waker::noop()));
            moved |= matches!(ready, Poll::Ready(count) if count > 0);
        }
        let shard = &mut self.shards[at];
        for mail in mail {
            if let Mail::Publish(remote) = mail {
                shard.on_mail(&remote, self.now_ms);
            }
        }
        shard.post_mail();
        while let Some(key) = shard.take_dirty() {
            moved = true;
            let slot = self.slots.iter_mut().flatten().find(|s| s.shard == at && s.key == key);
            match slot {
                Some(slot) => slot.drain(shard, self.now_ms),
                None => panic!("output for nobody"),
            }
        }
        for key in shard.take_kills() {
            let slot = self.slots.iter_mut().flatten().find(|s| s.shard == at && s.key == key);
            if let Some(slot) = slot {
                moved = true;
                slot.end(shard, self.now_ms);
            }
        }
        for key in shard.take_freed() {
            moved = true;
            for slot in &mut self.slots {
                slot.take_if(|slot| slot.shard == at && slot.key == key);
            }
        }
        moved
    }

    /// The counters agree with what they count, and the bounds hold.
    fn check(&self) {
        for (at, (shard, stats)) in self.shards.iter().zip(&self.stats).enumerate() {
            let stats = stats.snapshot();
            let verifying = |slot: &&Slot| slot.shard == at && slot.reader == Reader::Verifies;
            assert_eq!(shard.verifying, self.slots.iter().flatten().filter(verifying).count());
            assert_eq!(stats.connections, shard.conns.len() as u64);
            assert_eq!(stats.sessions, shard.sessions.len() as u64);
            assert_eq!(shard.by_client.len(), shard.sessions.len());
            let (mut queued, mut subscriptions) = (0, 0);
            for (_, entry) in &shard.sessions {
                subscriptions += entry.session.subscriptions.len();
                assert!(entry.session.subscriptions.len() <= shard.limits.max_subscriptions);
                assert!(entry.session.incoming.len() <= usize::from(shard.limits.receive_maximum));
                let Some(outgoing) = &entry.session.outgoing else { continue };
                queued += outgoing.queued();
                assert!(outgoing.queued() <= shard.limits.max_queued_messages);
                assert!(outgoing.inflight() <= usize::from(shard.limits.max_inflight));
                let connected = entry.conn.and_then(|key| shard.conns.get(key.0 as usize));
                assert_eq!(connected.is_some(), entry.conn.is_some());
            }
            assert_eq!(stats.queued_messages, queued as u64);
            assert_eq!(stats.subscriptions, subscriptions as u64);
            for (_, conn) in &shard.conns {
                let most = shard.limits.max_outbox_bytes
                    + shard.limits.max_packet_size_bytes as usize
                    + (4 << 10);
                assert!(conn.outbox.len_bytes() <= most, "{}", conn.outbox.len_bytes());
            }
        }
    }

    /// Everybody leaves, and the last session expires.
    fn end(mut self) {
        for at in 0..SLOTS {
            self.lose(at);
            self.settle();
        }
        self.check();
        assert!(self.slots.iter().all(Option::is_none), "a connection outlives its socket");
        self.pass((u64::from(MAX_EXPIRY_S) + 1) * 1_000);
        self.pass(TICK_MS * 2); // what was armed again at the last tick
        self.check();
        for shard in &self.shards {
            assert_eq!((shard.connections(), shard.sessions.len()), (0, 0));
        }
        let routes = &self.shards[0].fabric.routes;
        let mut matched = Matched::default();
        for topic in TOPICS {
            routes.matches(topic, &mut matched);
            assert!(matched.is_empty(), "a route for {topic} is left");
        }
    }
}
