//! Plays a history on the real shards and on the model, and compares.

mod seen;

use std::collections::{HashMap, VecDeque};

use mqtt::wire::{
    Ack, AckKind, Connect, Disconnect, FilterBuf, Packet, PacketId, Properties, PropertyBuf,
    Publish, QoS, ReasonCode, RetainHandling, SubscribeOptions, Unsubscribe, Version, Will,
};

use super::super::{Bench, Client, request};
use super::broker::{self, Model, Msg, Parting, Sub};
use super::{CLIENTS, Expiry, MsgSpec, Op, Options, TOPICS, V3_CLIENT, WillSpec};
use crate::config::Limits;

const MAX_QUEUED: usize = 4;
const MAX_INFLIGHT: u16 = 10;
/// Passes after every step, so that no two deadlines that steps set fall into one tick.
const STEP_MS: u64 = 130;

/// What a client owes the broker.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Ack(u16),
    Rec(u16),
    Comp(u16),
}

/// One client: what the protocol makes it remember.
struct Peer {
    name: String,
    version: Version,
    conn: Option<Client>,
    /// The session that it is in.
    number: u64,
    /// Connections so far.
    connections: u32,
    /// QoS 2 messages received and not released.
    open: Vec<u16>,
    answers: VecDeque<Answer>,
    /// Its own QoS 2 messages, not released.
    unreleased: VecDeque<(u16, Msg)>,
    last_id: u16,
    /// Acknowledgements received: packet type and identifier.
    acks: Vec<(u8, u16)>,
}

pub struct History {
    bench: Bench,
    model: Model,
    peers: Vec<Peer>,
    last_text: u32,
    /// The last text per session, publisher, topic, QoS, and connection for repetitions.
    order: HashMap<(u64, String, &'static str, u8, u32), u32>,
    /// QoS 2 messages promised minus received, by session, text and topic.
    exactly_once: HashMap<(u64, String, &'static str), i32>,
    /// Retained messages come in an order of their own.
    scanning: bool,
}

impl History {
    pub fn new(shards: usize) -> Self {
        let limits = Limits {
            max_inflight: MAX_INFLIGHT,
            max_queued_messages: MAX_QUEUED,
            ..Limits::default()
        };
        let bench = Bench::with(shards, limits);
        let peers = (0..CLIENTS)
            .map(|at| Peer {
                name: bench.name_on((at % shards) as u8, &format!("client{at}-")),
                version: if at == V3_CLIENT { Version::V3_1_1 } else { Version::V5 },
                conn: None,
                number: 0,
                connections: 0,
                open: Vec::new(),
                answers: VecDeque::new(),
                unreleased: VecDeque::new(),
                last_id: 0,
                acks: Vec::new(),
            })
            .collect();
        let model = Model { now_ms: bench.now_ms, max_queued: MAX_QUEUED, ..Model::default() };
        Self {
            bench,
            model,
            peers,
            last_text: 0,
            order: HashMap::new(),
            exactly_once: HashMap::new(),
            scanning: false,
        }
    }

    pub fn run(mut self, ops: &[Op]) {
        for op in ops {
            self.step(op);
            if !self.pass(STEP_MS) {
                return;
            }
        }
        // Everybody returns and answers everything: all promises are kept.
        for client in 0..CLIENTS {
            if self.model.session(client).is_some() {
                let expiry = Expiry::Never;
                self.step(&Op::Connect { client, clean: false, expiry, will: None, window: 8 });
            }
        }
        // Only now: a return may have sent a will to somebody who was there already.
        for client in 0..CLIENTS {
            self.answer(client, usize::MAX);
        }
        let owed = &self.model.owed;
        assert!(owed.is_empty(), "promised and never delivered: {owed:?}");
        for session in &self.model.sessions {
            assert!(session.flights.is_empty() && session.queue.is_empty(), "{session:?}");
        }
        let uneven: Vec<_> = self.exactly_once.iter().filter(|(_, left)| **left != 0).collect();
        assert!(uneven.is_empty(), "not exactly once: {uneven:?}");
        // Everybody leaves for good: nothing stays.
        for client in 0..CLIENTS {
            let expiry = Expiry::AtOnce;
            self.step(&Op::Connect { client, clean: true, expiry, will: None, window: 8 });
            self.step(&Op::Leave { client, with_will: false });
        }
        for (shard, stats) in self.bench.shards.iter().zip(&self.bench.stats) {
            let left = stats.snapshot();
            let left = [left.sessions, left.subscriptions, left.connections, left.queued_messages];
            assert_eq!(left, [0; 4], "sessions, subscriptions, connections, queued messages");
            assert_eq!((shard.connections(), shard.sessions.len()), (0, 0));
        }
        let routes = &self.bench.shards[0].fabric.routes;
        for topic in TOPICS {
            let mut matched = mqtt::routing::Matched::default();
            routes.matches(topic, &mut matched);
            assert!(matched.is_empty(), "a route for {topic} is left");
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Connect { client, clean, expiry, will, window } => {
                self.connect(*client, *clean, *expiry, will.as_ref(), *window);
            }
            Op::Subscribe { client, filter, options } => self.subscribe(*client, filter, *options),
            Op::Unsubscribe { client, filter } => self.unsubscribe(*client, filter),
            Op::Publish { client, message, count } => {
                for _ in 0..*count {
                    self.publish(*client, message);
                }
            }
            Op::Repeat { client } => self.repeat(*client),
            Op::Release { client } => self.release(*client),
            Op::Answer { client, count } => self.answer(*client, *count),
            Op::Lose { client } => {
                if let Some(conn) = self.peers[*client].conn.take() {
                    self.bench.end(conn);
                    self.model.part(*client, Parting::Lost);
                }
            }
            Op::Leave { client, with_will } => self.leave(*client, *with_will),
            Op::Wait { ms } => {
                self.pass(*ms);
            }
        }
        self.compare();
        self.count();
    }

    fn connect(
        &mut self,
        client: usize,
        clean: bool,
        expiry: Expiry,
        will: Option<&WillSpec>,
        window: u16,
    ) {
        let v3 = client == V3_CLIENT;
        let mut wishes = PropertyBuf::new();
        let seconds = expiry.seconds().map_or(u32::MAX, |seconds| seconds as u32);
        wishes.session_expiry_interval_s(seconds).receive_maximum(window);
        let delay_s = will.filter(|_| !v3).map_or(0, |will| will.delay_s);
        let mut delay = PropertyBuf::new();
        if delay_s > 0 {
            delay.will_delay_interval_s(delay_s);
        }
        let text = self.text(&format!("w{client}"));
        let (version, name) = (self.peers[client].version, self.peers[client].name.clone());
        let wish = Connect {
            properties: if v3 { Properties::EMPTY } else { wishes.as_properties() },
            will: will.map(|spec| Will {
                topic: spec.topic,
                payload: text.as_bytes(),
                qos: level(spec.qos),
                retain: spec.retain,
                properties: delay.as_properties(),
            }),
            ..request(version, &name, clean)
        };
        let old = self.peers[client].conn.take();
        let new = self.bench.connect_with(&wish);
        let Packet::ConnAck(connack) = self.bench.next(new) else { panic!("no CONNACK") };
        assert_eq!(connack.reason, ReasonCode::Success);
        let expiry_s = match (v3, clean) {
            (true, true) => Some(0),
            (true, false) => None,
            (false, _) => expiry.seconds(),
        };
        let will = will.map(|spec| broker::Will {
            msg: Msg {
                text: text.clone(),
                topic: spec.topic,
                qos: spec.qos,
                retain: spec.retain,
                expires_at_ms: None,
                origin: 0,
            },
            delay_s: u64::from(delay_s),
        });
        let window = usize::from(if v3 { MAX_INFLIGHT } else { window });
        let present = self.model.connect(client, clean, expiry_s, window, will);
        assert_eq!(connack.session_present, present, "session present");
        let number = self.model.session(client).expect("it has one now").number;
        let peer = &mut self.peers[client];
        peer.conn = Some(new);
        peer.number = number;
        peer.connections += 1;
        peer.answers.clear();
        if !present {
            peer.open.clear();
            peer.unreleased.clear();
        }
        if let Some(old) = old {
            if version == Version::V5 {
                let Packet::Disconnect(told) = self.bench.next(old) else { panic!("not told") };
                assert_eq!(told.reason, ReasonCode::SessionTakenOver);
            }
            assert!(self.bench.try_next(old).is_none(), "after the takeover");
            assert!(self.bench.is_finished(old));
            self.bench.end(old);
        }
    }

    fn subscribe(&mut self, client: usize, filter: &'static str, options: Options) {
        // What is retained must fit the window at once: its order is not the model's to know.
        self.answer(client, usize::MAX);
        let Some(conn) = self.peers[client].conn else { return };
        let v3 = client == V3_CLIENT;
        let mut wanted = SubscribeOptions { qos: level(options.qos), ..Default::default() };
        if !v3 {
            wanted.no_local = options.no_local;
            wanted.retain_as_published = options.retain_as_published;
            wanted.retain_handling = match options.retain_handling {
                0 => RetainHandling::Always,
                1 => RetainHandling::IfNew,
                _ => RetainHandling::Never,
            };
        }
        let id = if v3 { 0 } else { options.id };
        self.bench.subscribe(conn, filter, wanted, id);
        let sub = Sub {
            filter,
            qos: options.qos,
            no_local: wanted.no_local,
            retain_as_published: wanted.retain_as_published,
            id,
        };
        self.model.subscribe(client, sub, if v3 { 0 } else { options.retain_handling });
        self.scanning = true;
        self.compare();
        self.answer(client, usize::MAX);
        self.scanning = false;
    }

    fn unsubscribe(&mut self, client: usize, filter: &str) {
        let Some(conn) = self.peers[client].conn else { return };
        let mut filters = FilterBuf::for_unsubscribe();
        filters.push(filter, SubscribeOptions::default());
        let (packet_id, filters) = (PacketId::MIN, filters.as_filters());
        let properties = Properties::EMPTY;
        let packet = Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters });
        self.bench.send(conn, &packet);
        self.model.unsubscribe(client, filter);
        self.compare();
        self.expect_ack(client, 11, 1);
    }

    fn publish(&mut self, client: usize, spec: &MsgSpec) {
        let Some(conn) = self.peers[client].conn else { return };
        let expires = spec.expires && client != V3_CLIENT;
        let msg = Msg {
            text: if spec.empty { String::new() } else { self.text(&client.to_string()) },
            topic: spec.topic,
            qos: spec.qos,
            retain: spec.retain,
            expires_at_ms: expires.then_some(self.bench.now_ms + 4_000),
            origin: self.peers[client].number,
        };
        let id = if spec.qos == 0 { 0 } else { self.peers[client].next_id() };
        self.send_publish(conn, &msg, id, false);
        self.model.publish(&msg);
        self.compare();
        match spec.qos {
            0 => {}
            1 => self.expect_ack(client, 4, id),
            _ => {
                self.expect_ack(client, 5, id);
                self.peers[client].unreleased.push_back((id, msg));
                if let Some(session) = self.model.session(client) {
                    session.incoming.push(id);
                }
                if spec.release {
                    self.peers[client].unreleased.rotate_right(1);
                    self.release(client);
                }
            }
        }
    }

    fn repeat(&mut self, client: usize) {
        let Some(conn) = self.peers[client].conn else { return };
        let Some((id, msg)) = self.peers[client].unreleased.front().cloned() else { return };
        let known = self.model.session(client).is_some_and(|s| s.incoming.contains(&id));
        assert!(known, "the model lost what its client kept");
        self.send_publish(conn, &msg, id, true);
        self.compare(); // nothing comes of it
        self.expect_ack(client, 5, id);
    }

    fn release(&mut self, client: usize) {
        let Some(conn) = self.peers[client].conn else { return };
        let Some((id, _)) = self.peers[client].unreleased.pop_front() else { return };
        self.send_ack(conn, AckKind::PubRel, id);
        if let Some(session) = self.model.session(client) {
            session.incoming.retain(|known| *known != id);
        }
        self.compare();
        self.expect_ack(client, 7, id);
    }

    fn answer(&mut self, client: usize, count: usize) {
        self.compare();
        for _ in 0..count {
            let Some(conn) = self.peers[client].conn else { return };
            let Some(answer) = self.peers[client].answers.pop_front() else { return };
            match answer {
                Answer::Ack(id) => {
                    self.send_ack(conn, AckKind::PubAck, id);
                    self.model.finish(client, id);
                }
                Answer::Rec(id) => {
                    self.send_ack(conn, AckKind::PubRec, id);
                    self.model.release(client, id);
                }
                Answer::Comp(id) => {
                    self.send_ack(conn, AckKind::PubComp, id);
                    self.model.finish(client, id);
                }
            }
            self.compare();
        }
    }

    fn leave(&mut self, client: usize, with_will: bool) {
        let Some(conn) = self.peers[client].conn.take() else { return };
        let with_will = with_will && client != V3_CLIENT;
        let (reason, parting) = if with_will {
            (ReasonCode::DisconnectWithWill, Parting::Lost)
        } else {
            (ReasonCode::Success, Parting::Normal)
        };
        let properties = Properties::EMPTY;
        self.bench.send(conn, &Packet::Disconnect(Disconnect { reason, properties }));
        self.model.part(client, parting);
        assert!(self.bench.is_finished(conn));
        self.bench.end(conn);
    }

    fn pass(&mut self, ms: u64) -> bool {
        self.bench.pass_ms(ms);
        let clear = self.model.pass(ms);
        if clear {
            self.compare();
        }
        clear
    }

    #[track_caller]
    fn expect_ack(&mut self, client: usize, kind: u8, id: u16) {
        let got = std::mem::take(&mut self.peers[client].acks);
        assert_eq!(got, [(kind, id)], "acknowledgements of client {client}");
    }

    fn send_publish(&mut self, conn: Client, msg: &Msg, id: u16, dup: bool) {
        let mut properties = PropertyBuf::new();
        if msg.expires_at_ms.is_some() {
            properties.message_expiry_interval_s(4);
        }
        let publish = Publish {
            dup,
            qos: level(msg.qos),
            retain: msg.retain,
            topic: msg.topic,
            packet_id: PacketId::new(id),
            properties: properties.as_properties(),
            payload: msg.text.as_bytes(),
        };
        self.bench.send(conn, &Packet::Publish(publish));
    }

    fn send_ack(&mut self, conn: Client, kind: AckKind, id: u16) {
        let packet_id = PacketId::new(id).expect("not 0");
        let (reason, properties) = (ReasonCode::Success, Properties::EMPTY);
        self.bench.send(conn, &Packet::Ack(Ack { kind, packet_id, reason, properties }));
    }

    /// A text that nobody else sends.
    fn text(&mut self, from: &str) -> String {
        self.last_text += 1;
        format!("{from}.{}", self.last_text)
    }
}

impl Peer {
    fn next_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id % 50 + 1; // wraps within a history
            let id = self.last_id;
            if !self.unreleased.iter().any(|(open, _)| *open == id) {
                return id;
            }
        }
    }
}

fn level(qos: u8) -> QoS {
    QoS::from_u8(qos).expect("0 to 2")
}
