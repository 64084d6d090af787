//! Whole shards without sockets or clocks: packets in, packets out.

mod auth;
mod corpus;
mod delivery;
mod durable;
mod faults;
mod faults_wire;
mod lifecycle;
mod limits;
mod messages;
mod model;
mod steps;
mod stored;
mod sys;
mod unanswered;
mod wills;

use std::collections::HashMap;
use std::sync::Arc;

use mqtt::routing::SharedRoutes;
use mqtt::wire::{
    Connect, FilterBuf, Frame, Packet, PacketId, Properties, PropertyBuf, Publish, QoS, Subscribe,
    SubscribeOptions, Version, decode_from_server, encode, peek,
};
use rt_abstract::{Receiver, mailbox};

use super::{ConnKey, Fabric, LANES, Mail, Next, Shard, Write};
use crate::config::Limits;
use crate::retained::Retained;
use crate::stats::ShardStats;

/// A node of shards, their mail, and a clock that the test turns.
struct Bench {
    shards: Vec<Shard>,
    mailboxes: Vec<Receiver<Mail, LANES>>,
    stats: Vec<Arc<ShardStats>>,
    now_ms: u64,
    /// Bytes written per connection and not looked at yet.
    written: HashMap<(usize, ConnKey), Vec<u8>>,
    /// Connections whose writing direction has ended.
    finished: Vec<(usize, ConnKey)>,
    /// Readers that wait until they may go on.
    stopped: Vec<(usize, ConnKey)>,
}

/// One client's connection.
#[derive(Clone, Copy, Debug)]
struct Client {
    shard: usize,
    key: ConnKey,
    version: Version,
}

impl Bench {
    fn new() -> Self {
        Self::with(1, Limits::default())
    }

    fn with(shards: usize, limits: Limits) -> Self {
        let (senders, mailboxes) =
            (0..shards).map(|_| mailbox([16, limits.max_mailbox_messages])).unzip();
        let retained = Retained::new(limits.max_retained_messages, limits.max_retained_bytes);
        let fabric = Arc::new(Fabric::new(senders, retained, SharedRoutes::new(1), [7, 8]));
        let stats: Vec<Arc<ShardStats>> = (0..shards).map(|_| Arc::default()).collect();
        let shards = (0..shards)
            .map(|id| {
                let (fabric, stats) = (fabric.clone(), stats[id].clone());
                Shard::new(id as u8, limits.clone(), fabric, stats, 1, 1_000)
            })
            .collect();
        let (written, finished, stopped) = (HashMap::new(), Vec::new(), Vec::new());
        Self { shards, mailboxes, stats, now_ms: 1_000, written, finished, stopped }
    }

    /// Lets time pass, tick by tick.
    fn pass_ms(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while self.now_ms < end {
            self.now_ms = (self.now_ms + super::TICK_MS).min(end);
            for shard in &mut self.shards {
                shard.on_tick(self.now_ms);
            }
            self.run();
        }
    }

    /// Carries mail and output until nothing moves.
    fn run(&mut self) {
        use futures_util::FutureExt;
        loop {
            let mut moved = false;
            for at in 0..self.shards.len() {
                let mut mail = Vec::new();
                let received = self.mailboxes[at].receive(&mut mail, 1000).now_or_never();
                moved |= received.is_some_and(|count| count > 0);
                for mail in mail {
                    if let Mail::Publish(remote) = mail {
                        self.shards[at].on_mail(&remote, self.now_ms);
                    }
                }
                self.shards[at].end_turn();
                self.shards[at].on_stored(self.now_ms);
                self.shards[at].end_turn();
                self.shards[at].post_mail();
                moved |= self.flush(at);
            }
            for (shard, key) in std::mem::take(&mut self.stopped) {
                if self.shards[shard].may_read(key, self.now_ms) {
                    moved = true;
                    let next = self.shards[shard].resume(key, self.now_ms);
                    self.go_on(shard, key, next);
                } else {
                    self.stopped.push((shard, key));
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn flush(&mut self, at: usize) -> bool {
        let mut moved = false;
        while let Some(key) = self.shards[at].take_dirty() {
            moved = true;
            loop {
                match self.shards[at].next_write(key, self.now_ms) {
                    Write::Idle => break,
                    Write::Finish => self.finished.push((at, key)),
                    Write::Output(output) => {
                        let bytes = self.written.entry((at, key)).or_default();
                        match &output {
                            super::Output::Block(block) => bytes.extend_from_slice(block),
                            super::Output::Pieces(pieces) => {
                                for piece in pieces {
                                    bytes.extend_from_slice(rt_abstract::IoBuf::as_slice(piece));
                                }
                            }
                        }
                        self.shards[at].on_written(key, output, true, self.now_ms);
                    }
                }
            }
        }
        moved
    }

    /// Opens a connection on the shard that owns `client_id` and sends CONNECT.
    fn connect_with(&mut self, request: &Connect<'_>) -> Client {
        let shard = usize::from(self.shards[0].owner_of(request.client_id));
        let key = self.shards[shard].open(self.now_ms).expect("room for a connection");
        // Keys are used again once freed.
        self.written.remove(&(shard, key));
        self.finished.retain(|ended| *ended != (shard, key));
        let client = Client { shard, key, version: request.version };
        self.send(client, &Packet::Connect(*request));
        client
    }

    fn connect(&mut self, version: Version, client_id: &str, clean_start: bool) -> Client {
        let client = self.connect_with(&request(version, client_id, clean_start));
        let Packet::ConnAck(connack) = self.next(client) else { panic!("no CONNACK") };
        assert!(!connack.reason.is_error());
        client
    }

    fn send(&mut self, client: Client, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        encode(packet, client.version, &mut bytes);
        self.send_bytes(client, &bytes);
        self.run();
    }

    fn send_bytes(&mut self, client: Client, bytes: &[u8]) -> Next {
        let shard = &mut self.shards[client.shard];
        let mut buffer = shard.read_buffer(client.key);
        buffer.extend_from_slice(bytes);
        let next = shard.on_bytes(client.key, bytes.len(), buffer, self.now_ms).next;
        self.go_on(client.shard, client.key, next)
    }

    /// Does what a reader does at the end of a turn.
    fn go_on(&mut self, shard: usize, key: ConnKey, mut next: Next) -> Next {
        while next == Next::Again {
            next = self.shards[shard].resume(key, self.now_ms);
        }
        if next == Next::Wait {
            self.stopped.push((shard, key));
        }
        next
    }

    fn end(&mut self, client: Client) {
        self.shards[client.shard].on_end(client.key, self.now_ms);
        self.run();
    }

    fn subscribe(&mut self, client: Client, filter: &str, options: SubscribeOptions, id: u32) {
        let mut properties = PropertyBuf::new();
        if id > 0 {
            properties.subscription_id(id);
        }
        let mut bytes = Vec::new();
        subscribe_bytes(&mut bytes, client.version, properties.as_properties(), filter, options);
        self.send_bytes(client, &bytes);
        self.run();
        let Packet::SubAck(suback) = self.next(client) else { panic!("no SUBACK") };
        assert!(suback.codes[0] <= 2, "subscription refused: {:#x}", suback.codes[0]);
    }

    fn publish(&mut self, client: Client, topic: &str, payload: &str, qos: QoS, retain: bool) {
        let packet_id = (qos > QoS::AtMostOnce).then(|| PacketId::new(77)).flatten();
        let payload = payload.as_bytes();
        let properties = Properties::EMPTY;
        let dup = false;
        let publish = Publish { dup, qos, retain, topic, packet_id, properties, payload };
        self.send(client, &Packet::Publish(publish));
    }

    /// The next packet that the client received, with its own memory (leaked: tests are short).
    fn try_next(&mut self, client: Client) -> Option<Packet<'static>> {
        let bytes = self.written.get_mut(&(client.shard, client.key))?;
        let Ok(Frame::Complete { total_bytes, .. }) = peek(bytes, u32::MAX) else { return None };
        let frame: Vec<u8> = bytes.drain(..total_bytes).collect();
        let frame: &'static [u8] = Box::leak(frame.into_boxed_slice());
        Some(decode_from_server(frame, client.version).expect("the server's packets are sound"))
    }

    fn next(&mut self, client: Client) -> Packet<'static> {
        self.try_next(client).expect("a packet")
    }

    /// The payloads of the PUBLISH packets received, as text; nothing else may have come.
    fn payloads(&mut self, client: Client) -> Vec<&'static str> {
        std::iter::from_fn(|| self.try_next(client))
            .map(|packet| match packet {
                Packet::Publish(publish) => std::str::from_utf8(publish.payload).expect("text"),
                other => panic!("not a PUBLISH: {other:?}"),
            })
            .collect()
    }

    fn is_finished(&self, client: Client) -> bool {
        self.finished.contains(&(client.shard, client.key))
    }

    /// A client identifier that belongs to `shard`.
    fn name_on(&self, shard: u8, prefix: &str) -> String {
        (0..)
            .map(|n| format!("{prefix}{n}"))
            .find(|name| self.shards[0].owner_of(name) == shard)
            .expect("names are many")
    }
}

fn request(version: Version, client_id: &str, clean_start: bool) -> Connect<'_> {
    Connect {
        version,
        clean_start,
        keep_alive_s: 0,
        client_id,
        will: None,
        username: None,
        password: None,
        properties: Properties::EMPTY,
    }
}

/// A QoS 0 PUBLISH of 3.1.1 at the end of `out`.
fn publish_bytes(out: &mut Vec<u8>, topic: &str, payload: &[u8], retain: bool) {
    let (dup, qos, packet_id, properties) = (false, QoS::AtMostOnce, None, Properties::EMPTY);
    let publish = Publish { dup, qos, retain, topic, packet_id, properties, payload };
    encode(&Packet::Publish(publish), Version::V3_1_1, out);
}

fn subscribe_bytes(
    out: &mut Vec<u8>,
    version: Version,
    properties: Properties<'_>,
    filter: &str,
    options: SubscribeOptions,
) {
    let mut filters = FilterBuf::for_subscribe();
    filters.push(filter, options);
    let (packet_id, filters) = (PacketId::MIN, filters.as_filters());
    encode(&Packet::Subscribe(Subscribe { packet_id, properties, filters }), version, out);
}

fn qos(qos: QoS) -> SubscribeOptions {
    SubscribeOptions { qos, ..SubscribeOptions::default() }
}
