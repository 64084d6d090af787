//! What is known of sessions, subscriptions and messages, as clients can know it.

use std::collections::{BTreeMap, BTreeSet};

use mqtt::topic::matches;
use mqtt::wire::QoS;

use crate::history::{ClientNumber, ConnNumber, Content, End, Message, Stop, Terms};
use crate::workload::Level;

/// How long after its end a CONNECT that was never answered may still take effect.
const ZOMBIE_US: u64 = 30_000_000;
/// How long after its begin a fault may be felt.
const FELT_US: u64 = 30_000_000;

#[derive(Debug, Default)]
pub struct Facts {
    pub now_us: u64,
    pub clients: BTreeMap<ClientNumber, Client>,
    pub messages: BTreeMap<Message, Published>,
    /// When the last fault began, and the last process ended.
    pub fault_us: Option<u64>,
    pub stopped_us: Option<u64>,
    /// Since when a process runs again, when one ended.
    pub ready_us: u64,
    /// When the last process ended in a way that the level does not cover.
    pub forgiven_us: Option<u64>,
    /// When a disk was last made to fail.
    pub disk_fault_us: Option<u64>,
    /// Kinds of faults so far.
    pub faults: BTreeSet<&'static str>,
    /// All is to be gone.
    pub emptied: bool,
}

#[derive(Debug, Default)]
pub struct Client {
    pub conns: BTreeMap<ConnNumber, Conn>,
    pub session: Option<Session>,
    /// Numbers sessions; one whose fate is unknown counts as another.
    pub sessions: u32,
}

#[derive(Debug)]
pub struct Conn {
    pub terms: Terms,
    pub sent_us: u64,
    pub connected_us: Option<u64>,
    pub resumed: bool,
    pub refused: bool,
    pub ended: Option<(u64, End)>,
    /// A DISCONNECT was sent: when, and whether it lets the will be published.
    pub leaving: Option<(u64, bool)>,
    /// The broker served this connection at this time, for sure.
    pub served_us: u64,
    pub will_got_us: Option<u64>,
    /// Sent to the client and not answered by it.
    pub open: BTreeMap<u16, Option<Message>>,
}

#[derive(Debug)]
pub struct Session {
    pub number: u32,
    pub expiry_s: u32,
    /// Whether it is known to be this one.
    pub sure: bool,
    pub subscriptions: BTreeMap<String, Subscription>,
    pub got: BTreeMap<Message, Got>,
    /// The highest number of a publisher, topic and QoS (as published, as delivered) that came.
    pub heights: BTreeMap<(ClientNumber, String, (u8, u8)), u32>,
    /// Messages sent to the client, on any connection, and not answered by it.
    pub open: BTreeMap<u16, Message>,
    /// Retained messages that came.
    pub retained: BTreeMap<String, Vec<Message>>,
}

#[derive(Debug)]
pub struct Subscription {
    pub state: State,
    pub qos: QoS,
    /// The highest that was ever asked for.
    pub highest: QoS,
    /// When the first SUBSCRIBE was sent.
    pub asked_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Since then, for sure.
    Granted(u64),
    /// Perhaps.
    Unsure,
    /// Not any more since then, for sure.
    Gone(u64),
}

#[derive(Debug, Default)]
pub struct Got {
    /// New to the client at QoS 2.
    pub exactly: u32,
    /// On which connection it came last, and how often without a mark that it is a repetition.
    pub conn: ConnNumber,
    pub fresh: u32,
}

#[derive(Debug)]
pub struct Published {
    pub content: Content,
    pub sent_us: u64,
    pub last_sent_us: u64,
    pub sends: u32,
    /// When it was answered, and whether it was accepted.
    pub settled: Option<(u64, bool)>,
    pub completed: bool,
    /// The publisher's session, when it was sent first.
    pub session: Option<u32>,
    /// Who had subscribed when it was sent first: their sessions.
    pub owed: BTreeMap<ClientNumber, u32>,
}

impl Facts {
    pub fn client(&mut self, client: ClientNumber) -> &mut Client {
        self.clients.entry(client).or_default()
    }

    pub fn conn(&self, client: ClientNumber, conn: ConnNumber) -> Option<&Conn> {
        self.clients.get(&client)?.conns.get(&conn)
    }

    pub fn conn_mut(&mut self, client: ClientNumber, conn: ConnNumber) -> Option<&mut Conn> {
        self.clients.get_mut(&client)?.conns.get_mut(&conn)
    }

    pub fn session(&self, client: ClientNumber) -> Option<&Session> {
        self.clients.get(&client)?.session.as_ref()
    }

    pub fn session_mut(&mut self, client: ClientNumber) -> Option<&mut Session> {
        self.clients.get_mut(&client)?.session.as_mut()
    }

    /// Whether no fault can be felt at `at_us`.
    pub fn is_calm(&self, at_us: u64) -> bool {
        let quiet = |begin: Option<u64>| begin.is_none_or(|begin| begin + FELT_US < at_us);
        quiet(self.fault_us) && quiet(self.stopped_us)
    }

    /// A process ended.
    pub fn stop(&mut self, stop: Stop, level: Level) {
        self.stopped_us = Some(self.now_us);
        self.ready_us = u64::MAX;
        let covered = match level {
            Level::None => false,
            Level::Os => stop != Stop::PowerLost,
            Level::Disk => true,
        };
        if !covered {
            self.forgiven_us = Some(self.now_us);
        }
    }

    /// Whether a message was on its way when a process ended whose level does not cover that.
    pub fn is_forgiven(&self, published: &Published) -> bool {
        self.forgiven_us.is_some_and(|at_us| published.sent_us <= at_us)
    }

    pub fn publish(&mut self, client: ClientNumber, message: Message, content: &Content) {
        let session = self.session(client).map(|session| session.number);
        let published = Published {
            content: content.clone(),
            sent_us: self.now_us,
            last_sent_us: self.now_us,
            sends: 1,
            settled: None,
            completed: false,
            session,
            owed: self.who_is_owed(content),
        };
        self.messages.insert(message, published);
    }

    /// Who has subscribed for sure, at a QoS that keeps messages.
    fn who_is_owed(&self, content: &Content) -> BTreeMap<ClientNumber, u32> {
        if content.empty {
            return BTreeMap::new();
        }
        let owed = |session: &Session| {
            let mut granted = (session.subscriptions.iter()).filter(|(filter, it)| {
                matches!(it.state, State::Granted(_)) && matches(filter, &content.topic)
            });
            session.sure && granted.any(|(_, it)| it.qos > QoS::AtMostOnce)
        };
        let sessions = self.clients.iter().filter_map(|(client, it)| {
            let session = it.session.as_ref().filter(|session| owed(session))?;
            Some((*client, session.number))
        });
        sessions.collect()
    }

    pub fn publish_again(&mut self, message: Message) {
        let now_us = self.now_us;
        if let Some(published) = self.messages.get_mut(&message) {
            published.sends += 1;
            published.last_sent_us = now_us;
        }
    }

    pub fn settle(&mut self, message: Message, accepted: bool) {
        let now_us = self.now_us;
        if let Some(published) = self.messages.get_mut(&message) {
            published.settled.get_or_insert((now_us, accepted));
        }
    }

    pub fn complete(&mut self, message: Message) {
        if let Some(published) = self.messages.get_mut(&message) {
            published.completed = true;
        }
    }
}

impl Client {
    pub fn newest(&self) -> Option<ConnNumber> {
        self.conns.last_key_value().map(|(conn, _)| *conn)
    }

    /// Whether a CONNECT before connection `before` may have taken effect unseen, or may still.
    pub fn has_zombie(&self, before: ConnNumber, now_us: u64, is: impl Fn(&Conn) -> bool) -> bool {
        self.conns.range(..before).any(|(_, conn)| {
            let unanswered = conn.connected_us.is_none() && !conn.refused;
            let recent = conn.ended.is_none_or(|(ended_us, _)| ended_us + ZOMBIE_US > now_us);
            unanswered && recent && is(conn)
        })
    }

    /// A session of which nothing is known yet.
    pub fn begin_session(&mut self, expiry_s: u32, sure: bool) -> &mut Session {
        self.sessions += 1;
        self.session.insert(Session {
            number: self.sessions,
            expiry_s,
            sure,
            subscriptions: BTreeMap::new(),
            got: BTreeMap::new(),
            heights: BTreeMap::new(),
            open: BTreeMap::new(),
            retained: BTreeMap::new(),
        })
    }

    /// The session may be replaced by a new one from now on.
    pub fn doubt(&mut self) {
        let Some(mut old) = self.session.take() else { return };
        let new = self.begin_session(old.expiry_s, false);
        new.subscriptions = std::mem::take(&mut old.subscriptions);
        for subscription in new.subscriptions.values_mut() {
            subscription.doubt();
        }
    }
}

impl Session {
    /// Whether a message first sent at `sent_us` may come by some subscription, and at which QoS.
    pub fn may_get(&self, topic: &str, sent_us: u64) -> Option<QoS> {
        let may = |subscription: &&Subscription| match subscription.state {
            State::Granted(_) | State::Unsure => true,
            State::Gone(gone_us) => gone_us >= sent_us,
        };
        let fitting = self.subscriptions.iter().filter(|(filter, _)| matches(filter, topic));
        fitting.map(|(_, it)| it).filter(may).map(|it| it.highest).max()
    }

    /// Whether a subscription at QoS 1 or 2 has held for sure since `sent_us`.
    pub fn has_held(&self, topic: &str, sent_us: u64) -> bool {
        self.subscriptions.iter().any(|(filter, it)| {
            it.qos > QoS::AtMostOnce
                && matches(filter, topic)
                && matches!(it.state, State::Granted(since_us) if since_us <= sent_us)
        })
    }

    /// When a matching SUBSCRIBE was sent first.
    pub fn asked_us(&self, topic: &str) -> Option<u64> {
        let fitting = self.subscriptions.iter().filter(|(filter, _)| matches(filter, topic));
        fitting.map(|(_, it)| it.asked_us).min()
    }
}

impl Subscription {
    pub fn doubt(&mut self) {
        if matches!(self.state, State::Granted(_)) {
            self.state = State::Unsure;
        }
    }
}
