//! What a client knows and decides. No I/O: bytes in and out, and events.

use std::collections::{BTreeMap, VecDeque};

use mqtt::wire::{
    Ack, AckKind, Connect, Disconnect, FilterBuf, Packet, PacketId, Properties, PropertyBuf,
    Publish, QoS, ReasonCode, Subscribe, SubscribeOptions, Unsubscribe, Version, Will, encode,
};

use crate::history::{ClientNumber, ConnNumber, Content, End, Message, Terms, What};
use crate::workload::{ClientPlan, Life};

/// Messages that wait until the broker takes more at once; further ones are not published.
const MAX_WAITING: usize = 200;

/// See the module's head.
#[derive(Debug)]
pub struct Machine {
    pub(super) me: ClientNumber,
    pub(super) plan: ClientPlan,
    /// What the broker takes at once, where it does not say.
    usual_quota: u16,
    pub(super) outgoing: VecDeque<Outgoing>,
    waiting: VecDeque<(Message, Content, usize)>,
    /// QoS 2 identifiers between PUBLISH and PUBREL.
    pub(super) held: BTreeMap<u16, Option<Message>>,
    pub(super) requests: BTreeMap<u16, Request>,
    next_id: u16,
    conns: ConnNumber,
    pub(super) link: Option<Link>,
    holding: bool,
    owed: VecDeque<(AckKind, u16)>,
    pub(super) events: Vec<What>,
}

/// The newest connection.
#[derive(Debug)]
pub struct Link {
    pub number: ConnNumber,
    pub connected: bool,
    /// Whether the session ends with it.
    pub last: bool,
    pub out: Vec<u8>,
    pub quota: u16,
    /// When pings were sent that have no answer, in microseconds.
    pub pings: VecDeque<u64>,
}

/// A QoS 1 or 2 message on its way.
#[derive(Debug)]
pub struct Outgoing {
    pub id: u16,
    pub message: Message,
    pub content: Content,
    pub bytes: usize,
    /// PUBREC came.
    pub released: bool,
}

#[derive(Debug)]
pub enum Request {
    Subscribe(String),
    Unsubscribe(String),
}

impl Machine {
    /// A client that has never connected. `usual_quota`: messages it may have unacknowledged when
    /// the broker does not say.
    pub fn new(me: ClientNumber, plan: ClientPlan, usual_quota: u16) -> Self {
        Self {
            me,
            plan,
            usual_quota,
            outgoing: VecDeque::new(),
            waiting: VecDeque::new(),
            held: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_id: 0,
            conns: 0,
            link: None,
            holding: false,
            owed: VecDeque::new(),
            events: Vec::new(),
        }
    }

    /// What has happened since the last call.
    pub fn take_events(&mut self) -> Vec<What> {
        std::mem::take(&mut self.events)
    }

    /// What is to be sent on connection `conn`.
    pub fn take_output(&mut self, conn: ConnNumber) -> Vec<u8> {
        let link = self.link.as_mut().filter(|link| link.number == conn);
        link.map(|link| std::mem::take(&mut link.out)).unwrap_or_default()
    }

    /// The newest connection, while it is there.
    pub fn current(&self) -> Option<ConnNumber> {
        self.link.as_ref().map(|link| link.number)
    }

    /// Whether it is accepted.
    pub fn is_connected(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.connected)
    }

    /// Whether the newest connection is one whose session ends with it, by request.
    pub fn is_last(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.last)
    }

    /// The oldest ping without an answer, in microseconds.
    pub fn oldest_ping_us(&self) -> Option<u64> {
        self.link.as_ref()?.pings.front().copied()
    }

    /// Begins a connection, in the place of the newest: CONNECT is its first output. `fresh`: with a
    /// new session; `last`: with one that ends with the connection.
    pub fn open(&mut self, fresh: bool, last: bool) -> ConnNumber {
        self.conns += 1;
        let v5 = self.plan.version == Version::V5;
        let clean = fresh || last || self.plan.life == Life::Connection;
        let expiry_s = match self.plan.life {
            _ if last => 0,
            _ if clean && !v5 => 0,
            Life::Connection => 0,
            Life::Seconds(seconds) => seconds,
            Life::Ever => u32::MAX,
        };
        if clean {
            self.forget();
        }
        self.requests.clear();
        self.owed.clear();
        let receive_maximum = if v5 { self.plan.receive_maximum } else { u16::MAX };
        let will = self.plan.will.clone().filter(|_| !last).map(|(topic, qos, retain, delay_s)| {
            (Content { topic, qos, retain, empty: false, expiry_s: None }, delay_s)
        });
        let keep_alive_s = self.plan.keep_alive_s;
        let terms = Terms { clean, expiry_s, keep_alive_s, receive_maximum, will };
        let mut link = Link {
            number: self.conns,
            connected: false,
            last,
            out: Vec::new(),
            quota: self.usual_quota,
            pings: VecDeque::new(),
        };
        let will_payload = Message::Will(self.me, self.conns).to_text();
        put_connect(&mut link.out, &self.plan, &terms, &will_payload);
        self.link = Some(link);
        self.events.push(What::Connecting(self.me, self.conns, terms));
        self.conns
    }

    /// Connection `conn` is over.
    pub fn ended(&mut self, conn: ConnNumber, end: End) {
        if self.current() == Some(conn) {
            self.link = None;
        }
        self.events.push(What::Ended(self.me, conn, end));
    }

    /// Sends a DISCONNECT; nothing may follow.
    pub fn leave(&mut self, with_will: bool) {
        let version = self.plan.version;
        let Some(link) = self.link.as_mut().filter(|link| link.connected) else { return };
        let reason = match with_will && version == Version::V5 {
            true => ReasonCode::DisconnectWithWill,
            false => ReasonCode::Success,
        };
        let packet = Packet::Disconnect(Disconnect { reason, properties: Properties::EMPTY });
        encode(&packet, version, &mut link.out);
        let with_will = reason == ReasonCode::DisconnectWithWill;
        self.events.push(What::Leaving(self.me, link.number, with_will));
    }

    /// Sends a SUBSCRIBE.
    pub fn subscribe(&mut self, filter: &str, qos: QoS) {
        if !self.is_connected() {
            return;
        }
        let id = self.free_id();
        self.requests.insert(id.get(), Request::Subscribe(filter.into()));
        let mut filters = FilterBuf::for_subscribe();
        filters.push(filter, SubscribeOptions { qos, ..SubscribeOptions::default() });
        self.send(&Packet::Subscribe(Subscribe {
            packet_id: id,
            properties: Properties::EMPTY,
            filters: filters.as_filters(),
        }));
        self.see(|me, conn| What::Subscribing(me, conn, filter.into(), qos));
    }

    /// Sends an UNSUBSCRIBE.
    pub fn unsubscribe(&mut self, filter: &str) {
        if !self.is_connected() {
            return;
        }
        let id = self.free_id();
        self.requests.insert(id.get(), Request::Unsubscribe(filter.into()));
        let mut filters = FilterBuf::for_unsubscribe();
        filters.push(filter, SubscribeOptions::default());
        self.send(&Packet::Unsubscribe(Unsubscribe {
            packet_id: id,
            properties: Properties::EMPTY,
            filters: filters.as_filters(),
        }));
        self.see(|me, conn| What::Unsubscribing(me, conn, filter.into()));
    }

    /// Publishes, as soon as the broker takes one more.
    pub fn publish(&mut self, number: u32, mut content: Content, bytes: usize) {
        if self.plan.version != Version::V5 {
            content.expiry_s = None;
        }
        if self.is_connected() && self.waiting.len() < MAX_WAITING {
            self.waiting.push_back((Message::Publish(self.me, number), content, bytes));
            self.send_waiting();
        }
    }

    /// Sends a PINGREQ.
    pub fn ping(&mut self, now_us: u64) {
        let Some(link) = self.link.as_mut().filter(|link| link.connected) else { return };
        encode(&Packet::PingReq, self.plan.version, &mut link.out);
        link.pings.push_back(now_us);
    }

    /// Whether answers to messages are held back.
    pub fn hold_answers(&mut self, hold: bool) {
        self.holding = hold;
        while !self.holding
            && let Some((kind, id)) = self.owed.pop_front()
        {
            self.answer_now(kind, id);
        }
    }

    pub(super) fn answer(&mut self, kind: AckKind, id: u16) {
        match self.holding {
            true => self.owed.push_back((kind, id)),
            false => self.answer_now(kind, id),
        }
    }

    fn answer_now(&mut self, kind: AckKind, id: u16) {
        self.send_ack(kind, id);
        if matches!(kind, AckKind::PubAck | AckKind::PubComp) {
            self.see(|me, conn| What::Answered(me, conn, id));
        }
    }

    pub(super) fn send_ack(&mut self, kind: AckKind, id: u16) {
        let Some(packet_id) = PacketId::new(id) else { return };
        let (reason, properties) = (ReasonCode::Success, Properties::EMPTY);
        self.send(&Packet::Ack(Ack { kind, packet_id, reason, properties }));
    }

    /// Nothing of the session is left.
    pub(super) fn forget(&mut self) {
        self.outgoing.clear();
        self.held.clear();
    }

    /// After a session was resumed.
    pub(super) fn send_again(&mut self) {
        let outgoing = std::mem::take(&mut self.outgoing);
        for it in &outgoing {
            if it.released {
                self.send_ack(AckKind::PubRel, it.id);
            } else {
                self.see(|me, conn| What::PublishingAgain(me, conn, it.message));
                self.put_publish(it.message, &it.content, it.bytes, it.id, true);
            }
        }
        self.outgoing = outgoing;
    }

    pub(super) fn send_waiting(&mut self) {
        while let Some(link) = self.link.as_ref().filter(|link| link.connected) {
            let full = self.outgoing.len() >= usize::from(link.quota);
            let next = self.waiting.front();
            let Some((_, content, _)) = next else { return };
            if full && content.qos > QoS::AtMostOnce {
                return;
            }
            let Some((message, content, bytes)) = self.waiting.pop_front() else { return };
            let id = if content.qos > QoS::AtMostOnce { self.free_id().get() } else { 0 };
            self.see(|me, conn| What::Publishing(me, conn, message, content.clone()));
            self.put_publish(message, &content, bytes, id, false);
            if content.qos > QoS::AtMostOnce {
                let released = false;
                self.outgoing.push_back(Outgoing { id, message, content, bytes, released });
            }
        }
    }

    fn put_publish(
        &mut self,
        message: Message,
        content: &Content,
        bytes: usize,
        id: u16,
        dup: bool,
    ) {
        let mut payload = message.to_text();
        let filler = bytes.saturating_sub(payload.len());
        payload.extend(std::iter::repeat_n('.', filler));
        let mut properties = PropertyBuf::new();
        if let Some(expiry_s) = content.expiry_s {
            properties.message_expiry_interval_s(expiry_s);
        }
        self.send(&Packet::Publish(Publish {
            dup,
            qos: content.qos,
            retain: content.retain,
            topic: &content.topic,
            packet_id: PacketId::new(id),
            properties: properties.as_properties(),
            payload: if content.empty { &[] } else { payload.as_bytes() },
        }));
    }

    pub(super) fn send(&mut self, packet: &Packet<'_>) {
        if let Some(link) = &mut self.link {
            encode(packet, self.plan.version, &mut link.out);
        }
    }

    pub(super) fn see(&mut self, what: impl FnOnce(ClientNumber, ConnNumber) -> What) {
        if let Some(conn) = self.current() {
            self.events.push(what(self.me, conn));
        }
    }

    fn free_id(&mut self) -> PacketId {
        loop {
            self.next_id = self.next_id.wrapping_add(1);
            let taken = self.requests.contains_key(&self.next_id)
                || self.outgoing.iter().any(|it| it.id == self.next_id);
            if let Some(id) = PacketId::new(self.next_id)
                && !taken
            {
                return id;
            }
        }
    }
}

fn put_connect(out: &mut Vec<u8>, plan: &ClientPlan, terms: &Terms, will_payload: &str) {
    let v5 = plan.version == Version::V5;
    let (mut properties, mut will_properties) = (PropertyBuf::new(), PropertyBuf::new());
    if v5 {
        if terms.expiry_s > 0 {
            properties.session_expiry_interval_s(terms.expiry_s);
        }
        properties.receive_maximum(terms.receive_maximum);
    }
    let will = terms.will.as_ref().map(|(content, delay_s)| {
        if v5 && *delay_s > 0 {
            will_properties.will_delay_interval_s(*delay_s);
        }
        content
    });
    let connect = Connect {
        version: plan.version,
        clean_start: terms.clean,
        keep_alive_s: terms.keep_alive_s,
        client_id: &plan.name,
        will: will.map(|content| Will {
            topic: &content.topic,
            payload: will_payload.as_bytes(),
            qos: content.qos,
            retain: content.retain,
            properties: will_properties.as_properties(),
        }),
        username: None,
        password: None,
        properties: properties.as_properties(),
    };
    encode(&Packet::Connect(connect), plan.version, out);
}
