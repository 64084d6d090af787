//! A node whose journal has no files: the test says when something becomes durable, and what a
//! crash leaves.

use std::collections::BTreeMap;
use std::sync::Arc;

use journal::testing::{FakeDisk, fake};
use journal::{Batch, Class, Options, Position};
use meta::command::Reply;
use meta::record::{SessionRecord, StoredSubscription};
use meta::store::MemoryStore;
use meta::{Answer, Handle};
use mqtt::session::Message;
use mqtt::wire::{Ack, AckKind, ReasonCode};

use super::super::*;
use crate::config::DurabilityConfig;
use crate::messages::{Messages, Replay, message_of};
use crate::shard::Lost;

pub const WALL_MS: u64 = 1_000_000;
const SEGMENT_BYTES: u64 = 64 << 10;
/// The first byte of a record that means nothing, and is in no log.
const FILLER: u8 = 0x7F;

/// Generation, and subscriptions with their QoS.
pub type Moved = (u64, Vec<(String, QoS)>);

pub struct Kept {
    pub bench: Bench,
    pub disk: FakeDisk,
    pub node: Arc<Messages>,
    /// What is durable.
    pub log: Vec<Vec<u8>>,
    /// The same by position.
    pub records: BTreeMap<u64, Vec<u8>>,
    /// By client.
    sessions: BTreeMap<String, Moved>,
    next_epoch: u64,
    shards: usize,
    levels: DurabilityConfig,
    limits: Limits,
}

impl Kept {
    pub fn new(shards: usize) -> Self {
        Self::with(shards, DurabilityConfig::default())
    }

    pub fn with(shards: usize, levels: DurabilityConfig) -> Self {
        Self::limited(shards, levels, Limits::default())
    }

    pub fn limited(shards: usize, levels: DurabilityConfig, limits: Limits) -> Self {
        let (mut bench, disk, node) = start(shards, &levels, &limits);
        bench.shards.iter_mut().for_each(|shard| shard.restore_messages(&mut Replay::new()));
        let (log, records, sessions) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { bench, disk, node, log, records, sessions, next_epoch: 10, shards, levels, limits }
    }

    /// Everything recorded becomes durable, and is told.
    pub fn sync(&mut self) {
        self.sync_quietly();
        self.bench.run();
    }

    /// The same, but nobody is told.
    pub fn sync_quietly(&mut self) {
        for shard in &mut self.bench.shards {
            shard.end_turn();
        }
        self.take_synced();
    }

    fn take_synced(&mut self) {
        for (position, bytes) in self.disk.sync() {
            if bytes[0] != FILLER {
                self.records.insert(position.get(), bytes.clone());
                self.log.push(bytes);
            }
        }
        // What was released is not there any more.
        let oldest = self.node.usage().oldest.get();
        let released = self.records.range(..oldest).count();
        self.log.drain(..released);
        self.records = self.records.split_off(&oldest);
    }

    /// Other records fill the segment that is written, and another one.
    pub fn fill(&mut self) {
        for _ in 0..3 {
            let mut batch = Batch::new();
            batch.push(|out| out.resize(out.len() + 40_000, FILLER));
            self.node.journal().append(&mut batch, Class::New).expect("room");
        }
    }

    /// A shard moves all that it may.
    pub fn move_all(&mut self, shard: usize) {
        self.begin_moving(shard, false);
        self.fetch();
    }

    /// The same, and nobody else does anything; whether it is done at once.
    pub fn begin_moving(&mut self, shard: usize, reads: bool) {
        let now_ms = self.bench.now_ms;
        self.bench.shards[shard].move_all(now_ms);
        while reads && let Some(fetch) = self.bench.shards[shard].take_fetch() {
            let read = fetch.positions().map(|at| self.read(at)).collect();
            self.bench.shards[shard].on_fetched(fetch, read, now_ms);
            self.bench.shards[shard].end_turn();
        }
    }

    /// The process ends; the next one finds what was durable.
    pub fn crash(&mut self) {
        (self.bench, self.disk, self.node) = start(self.shards, &self.levels, &self.limits);
        let mut replay = Replay::new();
        self.records.clear();
        // The journal begins anew, and has a place for them all in its first segment.
        assert!(self.log.len() < 4096);
        for (position, bytes) in (SEGMENT_BYTES + 1..).zip(&self.log) {
            replay.visit(position, bytes).expect("own records");
            self.records.insert(position, bytes.clone());
        }
        replay.finish();
        for (name, (generation, subscriptions)) in &self.sessions {
            let record = SessionRecord {
                generation: *generation,
                epoch: self.next_epoch,
                node: 1,
                connected: false,
                expiry_interval_s: u32::MAX,
                expires_at_ms: None,
                will: None,
                will_at_ms: None,
                subscriptions: subscriptions.len() as u32,
            };
            let stored: Vec<_> = subscriptions
                .iter()
                .map(|(filter, qos)| StoredSubscription {
                    filter: filter.clone(),
                    options: *qos as u8,
                    id: 0,
                })
                .collect();
            let shard = usize::from(self.bench.shards[0].owner_of(name));
            let now_ms = self.bench.now_ms;
            self.bench.shards[shard].restore(name, &record, &stored, now_ms);
        }
        for shard in &mut self.bench.shards {
            shard.restore_messages(&mut replay);
        }
        for mut batch in self.node.end_sessions(&replay.take_rest()) {
            self.node.journal().append(&mut batch, Class::Always).expect("room");
        }
        self.take_synced();
        self.bench.run();
    }

    /// The metadata gives a session to another node, or back, while this one is down.
    pub fn move_away(&mut self, name: &str) -> Moved {
        self.sessions.remove(name).expect("known")
    }

    pub fn move_back(&mut self, name: &str, moved: Moved) {
        self.sessions.insert(name.to_owned(), moved);
    }

    /// CONNECT of a session that outlives the process.
    pub fn connect(&mut self, name: &str) -> Client {
        self.connect_as(name, false)
    }

    pub fn connect_as(&mut self, name: &str, clean_start: bool) -> Client {
        self.next_epoch += 1;
        let epoch = self.next_epoch;
        let present = !clean_start && self.sessions.contains_key(name);
        if !present {
            self.sessions.insert(name.to_owned(), (epoch, Vec::new()));
        }
        let generation = self.sessions[name].0;
        let shard = usize::from(self.bench.shards[0].owner_of(name));
        let key = self.bench.shards[shard].open(self.bench.now_ms).expect("room");
        self.bench.written.remove(&(shard, key));
        let client = Client { shard, key, version: Version::V5 };
        let mut properties = PropertyBuf::new();
        properties.session_expiry_interval_s(u32::MAX);
        let properties = properties.as_properties();
        let connect = Connect { properties, ..request(Version::V5, name, clean_start) };
        let mut bytes = Vec::new();
        encode(&Packet::Connect(connect), Version::V5, &mut bytes);
        let Next::Commit(commit) = self.bench.send_bytes(client, &bytes) else {
            panic!("a durable CONNECT is committed")
        };
        let reply = Reply::Session { epoch, generation, present };
        self.answer(client, *commit, reply);
        let Packet::ConnAck(connack) = self.bench.next(client) else { panic!("no CONNACK") };
        assert_eq!(connack.session_present, present);
        client
    }

    pub fn subscribe(&mut self, client: Client, name: &str, filter: &str, level: QoS) {
        let mut bytes = Vec::new();
        subscribe_bytes(&mut bytes, Version::V5, Properties::EMPTY, filter, qos(level));
        let Next::Commit(commit) = self.bench.send_bytes(client, &bytes) else {
            panic!("a durable SUBSCRIBE is committed")
        };
        self.answer(client, *commit, Reply::Done);
        let Packet::SubAck(_) = self.bench.next(client) else { panic!("no SUBACK") };
        self.sessions.get_mut(name).expect("known").1.push((filter.to_owned(), level));
    }

    /// UNSUBSCRIBE, committed.
    pub fn unsubscribe(&mut self, client: Client, name: &str, filter: &str) {
        let mut filters = FilterBuf::for_unsubscribe();
        filters.push(filter, SubscribeOptions::default());
        let (packet_id, filters) = (PacketId::MIN, filters.as_filters());
        let properties = Properties::EMPTY;
        let packet = mqtt::wire::Unsubscribe { packet_id, properties, filters };
        let mut bytes = Vec::new();
        encode(&Packet::Unsubscribe(packet), Version::V5, &mut bytes);
        let Next::Commit(commit) = self.bench.send_bytes(client, &bytes) else {
            panic!("a durable UNSUBSCRIBE is committed")
        };
        self.answer(client, *commit, Reply::Done);
        self.sessions.get_mut(name).expect("known").1.retain(|(known, _)| known != filter);
    }

    fn answer(&mut self, client: Client, commit: crate::shard::Commit, reply: Reply) {
        let answer = Ok(Answer { index: 1, replies: vec![reply] });
        let (shard, now_ms) = (&mut self.bench.shards[client.shard], self.bench.now_ms);
        let _ = shard.on_committed(client.key, commit, answer, now_ms);
        self.bench.run();
    }

    /// A subscriber that is away.
    pub fn sleeper(&mut self, name: &str, filter: &str, level: QoS) {
        let client = self.connect(name);
        self.subscribe(client, name, filter, level);
        self.bench.end(client);
    }

    pub fn publish(&mut self, client: Client, topic: &str, payload: &str, qos: QoS, id: u16) {
        self.publish_again(client, topic, payload, qos, id, false);
    }

    pub fn publish_again(
        &mut self,
        client: Client,
        topic: &str,
        payload: &str,
        qos: QoS,
        id: u16,
        dup: bool,
    ) {
        let bytes = publish_packet(client.version, topic, payload, qos, id, dup);
        self.bench.send_bytes(client, &bytes);
        self.bench.run();
    }

    pub fn ack(&mut self, client: Client, kind: AckKind, id: u16) {
        let ack = Ack {
            kind,
            packet_id: PacketId::new(id).expect("not 0"),
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        };
        self.bench.send(client, &Packet::Ack(ack));
    }

    /// Reads what the shards want, until they want nothing; says how much it was.
    pub fn fetch(&mut self) -> usize {
        let mut count = 0;
        for at in 0..self.shards {
            while let Some(fetch) = self.bench.shards[at].take_fetch() {
                let read = fetch.positions().map(|at| self.read(at)).collect::<Vec<_>>();
                count += read.len();
                let now_ms = self.bench.now_ms;
                self.bench.shards[at].on_fetched(fetch, read, now_ms);
                self.bench.run();
            }
        }
        count
    }

    pub fn read(&self, at: u64) -> Result<Arc<Message>, Lost> {
        let position = Position::new(at);
        let record = self.records.get(&at).cloned().or_else(|| self.disk.waiting(position));
        if at < self.node.usage().oldest.get() {
            return Err(Lost); // what was wanted then, and is not any more
        }
        let record = record.expect("what is wanted is somewhere");
        let message = message_of(&record, WALL_MS - 1_000);
        message.map(Arc::new).map_err(|_| Lost)
    }

    /// All packets that came, as text: `pub PAYLOAD ID [dup]`, `PubAck ID`, `PubAck ID QuotaExceeded`.
    pub fn got(&mut self, client: Client) -> Vec<String> {
        self.fetch();
        std::iter::from_fn(|| self.bench.try_next(client)).map(|packet| text(&packet)).collect()
    }

    pub fn live(&self) -> u64 {
        self.node.live_records()
    }
}

fn start(
    shards: usize,
    levels: &DurabilityConfig,
    limits: &Limits,
) -> (Bench, FakeDisk, Arc<Messages>) {
    let mut bench = Bench::with(shards, limits.clone());
    let options =
        Options { segment_bytes: SEGMENT_BYTES, max_batch_bytes: 16 << 10, ..Options::new("") };
    let (journal, disk) = fake(options);
    let node = Arc::new(Messages::new(journal, shards, levels.clone(), 100));
    for shard in &mut bench.shards {
        let handle = Handle::detached(1, Arc::new(MemoryStore::new()));
        shard.set_durability(handle, 1_000, WALL_MS);
        shard.set_messages(node.clone());
    }
    (bench, disk, node)
}

pub fn publish_packet(
    version: Version,
    topic: &str,
    payload: &str,
    qos: QoS,
    id: u16,
    dup: bool,
) -> Vec<u8> {
    let (retain, properties, payload) = (false, Properties::EMPTY, payload.as_bytes());
    let packet_id = PacketId::new(id).filter(|_| qos > QoS::AtMostOnce);
    let publish = Publish { dup, qos, retain, topic, packet_id, properties, payload };
    let mut bytes = Vec::new();
    encode(&Packet::Publish(publish), version, &mut bytes);
    bytes
}

fn text(packet: &Packet<'_>) -> String {
    match packet {
        Packet::Publish(publish) => {
            let id = publish.packet_id.map_or(0, PacketId::get);
            let dup = if publish.dup { " dup" } else { "" };
            format!("pub {} {id}{dup}", String::from_utf8_lossy(publish.payload))
        }
        Packet::Ack(ack) if ack.reason == ReasonCode::Success => {
            format!("{:?} {}", ack.kind, ack.packet_id)
        }
        Packet::Ack(ack) => format!("{:?} {} {:?}", ack.kind, ack.packet_id, ack.reason),
        other => format!("{other:?}"),
    }
}
