//! Whole shards driven by bytes from anywhere: the fuzz target's and the regression tests' way in.
//!
//! The input is read as steps of four connections: well-formed packets from a small grammar, frames
//! with wrong bodies, raw bytes, sockets that end, fail or take nothing, and time. Whatever comes,
//! nothing panics, what a client receives decodes, the counters agree with what they count, and
//! when everybody has left nothing stays.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use mqtt::routing::SharedRoutes;
use mqtt::wire::{
    Ack, AckKind, Connect, Disconnect, FilterBuf, Frame, Packet, PacketId, Properties, PropertyBuf,
    Publish, QoS, ReasonCode, Subscribe, SubscribeOptions, Unsubscribe, Version, Will,
    decode_from_server, encode, peek,
};
use rt_abstract::{Receiver, mailbox};

use super::{ConnKey, Fabric, LANES, Mail, Next, Output, Shard, TICK_MS, Write};
use crate::config::{Limits, QueueFull};
use crate::retained::Retained;
use crate::stats::ShardStats;

const SLOTS: usize = 4;
const START_MS: u64 = 1_000;
/// The longest that a session may live on, so that the end can wait for all of them.
const MAX_EXPIRY_S: u32 = 100;
/// Turns until mail and output must have come to rest.
const MAX_TURNS: usize = 10_000;

const CLIENTS: [&str; 5] = ["a", "b", "c", "d", ""];
const TOPICS: [&str; 8] = ["t", "t/u", "t/u/v", "$s/t", "/", "$SYS/x", "u", ""];
const FILTERS: [&str; 12] = [
    "t",
    "t/+",
    "#",
    "+",
    "t/#",
    "$s/#",
    "+/+",
    "$share/g/t/#",
    "$share/g/t",
    "$share/h/#",
    "t#",
    "/",
];

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

/// The rest of the input; behind its end all bytes are 0.
struct Input<'a> {
    data: &'a [u8],
}

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        first
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.data.split_at(count.min(self.data.len()));
        self.data = rest;
        taken
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }
}

struct Node {
    shards: Vec<Shard>,
    mailboxes: Vec<Receiver<Mail, LANES>>,
    stats: Vec<Arc<ShardStats>>,
    now_ms: u64,
    slots: [Option<Slot>; SLOTS],
}

/// One connection.
struct Slot {
    shard: usize,
    key: ConnKey,
    /// What the grammar speaks on it.
    version: Version,
    /// Bytes received and not decoded yet.
    received: Vec<u8>,
    /// Its socket takes nothing.
    stuck: bool,
    /// What it did not take.
    waiting: Option<Output>,
    /// The next write fails.
    fails: bool,
    /// The broker ended its direction.
    finished: bool,
}

impl Node {
    fn new(input: &mut Input<'_>) -> Self {
        let shards = 1 + usize::from(input.byte() % 3);
        let limits = Limits {
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
        let shards = (0..shards)
            .map(|id| {
                let (fabric, stats) = (fabric.clone(), stats[id].clone());
                Shard::new(id as u8, limits.clone(), fabric, stats, 1, START_MS)
            })
            .collect();
        Self { shards, mailboxes, stats, now_ms: START_MS, slots: [const { None }; SLOTS] }
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
            6 => self.pass(u64::from(input.byte()) * 1_000),
            7..=9 => {
                let mut frame = Vec::new();
                let version = connect(input, &mut frame);
                // Also on a connection that is open already, which is a violation.
                self.open(at, input);
                if let Some(slot) = &mut self.slots[at] {
                    slot.version = version;
                }
                self.feed(at, &frame);
            }
            _ => {
                let version = self.slots[at].as_ref().map_or(Version::V5, |slot| slot.version);
                let mut frame = Vec::new();
                packet(input, version, &mut frame);
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
        self.slots[at] = self.shards[shard].open(self.now_ms).map(|key| Slot {
            shard,
            key,
            version,
            received: Vec::new(),
            stuck: false,
            waiting: None,
            fails: false,
            finished: false,
        });
    }

    /// The client sends `bytes`.
    fn feed(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return; // an end, to a reader
        }
        if self.slots[at].is_none() {
            self.open_on(at, at % self.shards.len(), Version::V5);
        }
        let Some(slot) = &self.slots[at] else { return };
        let (from, key, version) = (slot.shard, slot.key, slot.version);
        let shard = &mut self.shards[from];
        let mut buffer = shard.read_buffer(key);
        buffer.extend_from_slice(bytes);
        let received = shard.on_bytes(key, bytes.len(), buffer, self.now_ms);
        if let Next::Handoff(owner) = received.next {
            assert_ne!(usize::from(owner), from, "handed to itself");
            shard.on_handed_off(key);
            self.open_on(at, usize::from(owner), version);
            let Some(slot) = &self.slots[at] else { return };
            let key = slot.key;
            let shard = &mut self.shards[usize::from(owner)];
            let read = received.handoff.len();
            let next = shard.on_bytes(key, read, received.handoff, self.now_ms).next;
            assert!(!matches!(next, Next::Handoff(_)), "handed on");
        }
    }

    fn lose(&mut self, at: usize) {
        let Some(slot) = &mut self.slots[at] else { return };
        let (shard, key) = (&mut self.shards[slot.shard], slot.key);
        shard.on_end(key, self.now_ms);
        if let Some(output) = slot.waiting.take() {
            slot.stuck = false;
            shard.on_written(key, output, false, self.now_ms);
            drain(shard, slot, self.now_ms);
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
            drain(shard, slot, self.now_ms);
        }
    }

    fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.now_ms = (self.now_ms + TICK_MS * 16).min(end_ms);
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
                Some(slot) => drain(shard, slot, self.now_ms),
                None => panic!("output for nobody"),
            }
        }
        for key in shard.take_kills() {
            let slot = self.slots.iter_mut().flatten().find(|s| s.shard == at && s.key == key);
            if let Some(slot) = slot {
                moved = true;
                shard.on_end(key, self.now_ms);
                if let Some(output) = slot.waiting.take() {
                    slot.stuck = false;
                    shard.on_written(key, output, false, self.now_ms);
                    drain(shard, slot, self.now_ms);
                }
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
        for (shard, stats) in self.shards.iter().zip(&self.stats) {
            let stats = stats.snapshot();
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
        self.check();
        for shard in &self.shards {
            assert_eq!((shard.connections(), shard.sessions.len()), (0, 0));
        }
        let routes = &self.shards[0].fabric.routes;
        let mut matched = mqtt::routing::Matched::default();
        for topic in TOPICS {
            routes.matches(topic, &mut matched);
            assert!(matched.is_empty(), "a route for {topic} is left");
        }
    }
}

/// Writes what a connection has, until it has no more or its socket takes nothing.
fn drain(shard: &mut Shard, slot: &mut Slot, now_ms: u64) {
    for _ in 0..MAX_TURNS {
        match shard.next_write(slot.key, now_ms) {
            Write::Idle => return,
            Write::Finish => slot.finished = true,
            Write::Output(output) if slot.fails => {
                shard.on_written(slot.key, output, false, now_ms);
            }
            Write::Output(output) if slot.stuck => {
                slot.waiting = Some(output);
                return;
            }
            Write::Output(output) => {
                assert!(!slot.finished, "output behind the end");
                slot.take(&output);
                shard.on_written(slot.key, output, true, now_ms);
            }
        }
    }
    panic!("a writer without an end");
}

impl Slot {
    /// The client receives, and must understand.
    fn take(&mut self, output: &Output) {
        match output {
            Output::Block(block) => self.received.extend_from_slice(block),
            Output::Pieces(pieces) => {
                for piece in pieces {
                    self.received.extend_from_slice(rt_abstract::IoBuf::as_slice(piece));
                }
            }
        }
        let mut at = 0;
        while let Ok(Frame::Complete { total_bytes, .. }) = peek(&self.received[at..], u32::MAX) {
            let frame = &self.received[at..at + total_bytes];
            // Raw bytes may have said CONNECT in another version than the grammar knows.
            let understood = [self.version, Version::V5, Version::V3_1_1, Version::V3_1]
                .into_iter()
                .any(|version| decode_from_server(frame, version).is_ok());
            assert!(understood, "{:?} cannot read {frame:02x?}", self.version);
            at += total_bytes;
        }
        self.received.drain(..at);
        assert!(self.received.is_empty(), "an output ends inside a packet");
    }
}

/// A CONNECT; its version.
fn connect(input: &mut Input<'_>, out: &mut Vec<u8>) -> Version {
    let version = input.one_of(&[Version::V5, Version::V5, Version::V3_1_1, Version::V3_1]);
    let client_id = input.one_of(&CLIENTS);
    let flags = input.byte();
    let (mut wishes, mut of_will) = (PropertyBuf::new(), PropertyBuf::new());
    wishes.session_expiry_interval_s(input.one_of(&[0, 1, 50, u32::MAX]));
    if flags & 1 != 0 {
        wishes.receive_maximum(input.one_of(&[1, 2, 100]));
    }
    if flags & 2 != 0 {
        wishes.maximum_packet_size_bytes(input.one_of(&[1, 12, 30, 1_000]));
    }
    if flags & 4 != 0 {
        wishes.topic_alias_maximum(input.one_of(&[1, 5]));
    }
    let will = (flags & 8 != 0).then(|| {
        let delay = input.byte();
        if delay > 0 {
            of_will.will_delay_interval_s(u32::from(delay));
        }
        let topic = input.one_of(&TOPICS);
        let qos = input.one_of(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        (topic, qos)
    });
    let request = Connect {
        version,
        clean_start: flags & 16 != 0,
        keep_alive_s: input.one_of(&[0, 1, 10, 255]),
        client_id,
        will: will.map(|(topic, qos)| Will {
            topic,
            payload: b"will",
            qos,
            retain: flags & 32 != 0,
            properties: of_will.as_properties(),
        }),
        username: (flags & 64 != 0).then_some("name"),
        password: None,
        properties: wishes.as_properties(),
    };
    encode(&Packet::Connect(request), version, out);
    version
}

/// Any other packet of a client.
fn packet(input: &mut Input<'_>, version: Version, out: &mut Vec<u8>) {
    let packet_id = PacketId::new(u16::from(input.byte() % 6) + 1).unwrap_or(PacketId::MIN);
    let mut properties = PropertyBuf::new();
    match input.byte() % 12 {
        0 | 1 => {
            if input.byte() & 1 != 0 {
                properties.subscription_id(u32::from(input.byte()) + 1);
            }
            let mut filters = FilterBuf::for_subscribe();
            for _ in 0..=input.byte() % 3 {
                let filter = input.one_of(&FILTERS);
                filters.push(filter, SubscribeOptions::from_u8(input.byte()).unwrap_or_default());
            }
            let (properties, filters) = (properties.as_properties(), filters.as_filters());
            let subscribe = Subscribe { packet_id, properties, filters };
            encode(&Packet::Subscribe(subscribe), version, out);
        }
        2 => {
            let mut filters = FilterBuf::for_unsubscribe();
            filters.push(input.one_of(&FILTERS), SubscribeOptions::default());
            let (properties, filters) = (Properties::EMPTY, filters.as_filters());
            let unsubscribe = Unsubscribe { packet_id, properties, filters };
            encode(&Packet::Unsubscribe(unsubscribe), version, out);
        }
        3..=6 => {
            let flags = input.byte();
            let qos = input.one_of(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
            if flags & 1 != 0 {
                properties.topic_alias(u16::from(input.byte() % 4));
            }
            if flags & 2 != 0 {
                properties.message_expiry_interval_s(u32::from(input.byte()));
            }
            if flags & 4 != 0 {
                properties.user_property("k", "v");
            }
            let size = input.one_of(&[0, 1, 10, 100, 9_000, 20_000, 39_000]);
            let publish = Publish {
                dup: flags & 8 != 0 && qos != QoS::AtMostOnce,
                qos,
                retain: flags & 16 != 0,
                topic: input.one_of(&TOPICS),
                packet_id: (qos != QoS::AtMostOnce).then_some(packet_id),
                properties: properties.as_properties(),
                payload: &vec![b'x'; size],
            };
            encode(&Packet::Publish(publish), version, out);
        }
        7..=9 => {
            let kind = input.one_of(&[
                AckKind::PubAck,
                AckKind::PubRec,
                AckKind::PubRel,
                AckKind::PubComp,
            ]);
            let good = ReasonCode::Success;
            let reason = match kind {
                AckKind::PubAck | AckKind::PubRec => {
                    input.one_of(&[good, good, ReasonCode::QuotaExceeded])
                }
                _ => input.one_of(&[good, good, ReasonCode::PacketIdentifierNotFound]),
            };
            let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
            encode(&Packet::Ack(ack), version, out);
        }
        10 => encode(&Packet::PingReq, version, out),
        _ => {
            let reason = input.one_of(&[
                ReasonCode::Success,
                ReasonCode::DisconnectWithWill,
                ReasonCode::UnspecifiedError,
            ]);
            if input.byte() & 1 != 0 {
                properties.session_expiry_interval_s(input.one_of(&[0, 1, u32::MAX]));
            }
            let properties = properties.as_properties();
            encode(&Packet::Disconnect(Disconnect { reason, properties }), version, out);
        }
    }
}
