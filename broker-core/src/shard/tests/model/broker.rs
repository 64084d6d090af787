//! The naive broker: plain lists, no windows onto the real one but `topic::matches` and the size
//! of a tick.

use mqtt::topic::matches;

use crate::shard::TICK_MS;

/// A message as its publisher gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Msg {
    /// `publisher.number`; empty for one that clears.
    pub text: String,
    pub topic: &'static str,
    pub qos: u8,
    pub retain: bool,
    pub expires_at_ms: Option<u64>,
    /// The session that published it.
    pub origin: u64,
}

/// A subscription with its options.
#[derive(Clone, Debug)]
pub struct Sub {
    pub filter: &'static str,
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub id: u32,
}

/// A PUBLISH that a client is to see.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub client: usize,
    pub topic: &'static str,
    pub text: String,
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    pub ids: Vec<u32>,
}

#[derive(Clone, Debug)]
pub struct Flight {
    pub seen: Seen,
    /// Packet identifier, once the real broker chose one.
    pub id: Option<u16>,
    /// PUBREC came.
    pub released: bool,
    /// Sent on this connection.
    pub sent: bool,
}

#[derive(Clone, Debug)]
pub struct Will {
    pub msg: Msg,
    pub delay_s: u64,
}

#[derive(Clone, Debug)]
pub struct Sess {
    pub client: usize,
    pub number: u64,
    pub connected: bool,
    pub window: usize,
    /// `None` never ends.
    pub expiry_s: Option<u64>,
    pub expires_at_ms: Option<u64>,
    pub will: Option<Will>,
    pub will_at_ms: Option<u64>,
    pub subs: Vec<Sub>,
    pub flights: Vec<Flight>,
    pub queue: Vec<(Msg, Seen)>,
    /// Identifiers of the client's QoS 2 messages that it did not release.
    pub incoming: Vec<u16>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    Normal,
    Lost,
    TakenOver,
}

#[derive(Debug, Default)]
pub struct Model {
    pub now_ms: u64,
    pub max_queued: usize,
    pub sessions: Vec<Sess>,
    pub retained: Vec<Msg>,
    pub output: Vec<Seen>,
    /// Every delivery at QoS 1 or 2 that was promised to a session: number, text, topic.
    pub owed: Vec<(u64, String, &'static str)>,
    pub last_number: u64,
}

impl Model {
    pub fn session(&mut self, client: usize) -> Option<&mut Sess> {
        self.sessions.iter_mut().find(|session| session.client == client)
    }

    /// CONNECT; whether the session was present.
    pub fn connect(
        &mut self,
        client: usize,
        clean: bool,
        expiry_s: Option<u64>,
        window: usize,
        will: Option<Will>,
    ) -> bool {
        if self.session(client).is_some_and(|session| session.connected) {
            self.part(client, if clean { Parting::Lost } else { Parting::TakenOver });
        }
        if clean {
            self.end(client);
        }
        let present = self.session(client).is_some();
        if !present {
            self.last_number += 1;
            self.sessions.push(Sess {
                client,
                number: self.last_number,
                connected: false,
                window,
                expiry_s,
                expires_at_ms: None,
                will: None,
                will_at_ms: None,
                subs: Vec::new(),
                flights: Vec::new(),
                queue: Vec::new(),
                incoming: Vec::new(),
            });
        }
        let Some(session) = self.session(client) else { return present };
        session.connected = true;
        session.window = window;
        session.expiry_s = expiry_s;
        session.expires_at_ms = None;
        session.will_at_ms = None;
        let number = session.number;
        session.will = will.map(|mut will| {
            will.msg.origin = number;
            will
        });
        for flight in &mut session.flights {
            flight.sent = false;
        }
        self.pump(client);
        present
    }

    /// The connection is gone.
    pub fn part(&mut self, client: usize, parting: Parting) {
        let now_ms = self.now_ms;
        let Some(session) = self.session(client) else { return };
        session.connected = false;
        if parting == Parting::Normal {
            session.will = None;
        }
        if session.expiry_s == Some(0) {
            return self.end(client);
        }
        session.expires_at_ms = session.expiry_s.map(|after_s| on_tick(now_ms + after_s * 1000));
        match session.will.take() {
            Some(will) if will.delay_s == 0 => self.publish(&will.msg),
            Some(will) if parting != Parting::TakenOver => {
                session.will_at_ms = Some(on_tick(now_ms + will.delay_s * 1000));
                session.will = Some(will);
            }
            _ => {}
        }
    }

    /// The session is over: what it still owes the world is its will.
    pub fn end(&mut self, client: usize) {
        let Some(at) = self.sessions.iter().position(|session| session.client == client) else {
            return;
        };
        let session = self.sessions.remove(at);
        self.owed.retain(|(number, ..)| *number != session.number);
        if let Some(will) = session.will {
            self.publish(&will.msg);
        }
    }

    pub fn subscribe(&mut self, client: usize, sub: Sub, handling: u8) {
        let now_ms = self.now_ms;
        let Some(session) = self.session(client) else { return };
        let number = session.number;
        let known = session.subs.iter().position(|old| old.filter == sub.filter);
        match known {
            Some(at) => session.subs[at] = sub.clone(),
            None => session.subs.push(sub.clone()),
        }
        if handling == 2 || (handling == 1 && known.is_some()) {
            return;
        }
        let mut wanted: Vec<Msg> = self.retained.clone();
        wanted.retain(|msg| matches(sub.filter, msg.topic) && !expired(msg, now_ms));
        for msg in wanted {
            let qos = msg.qos.min(sub.qos);
            let ids = Vec::from_iter((sub.id > 0).then_some(sub.id));
            self.hand(number, &msg, qos, true, ids);
        }
    }

    pub fn unsubscribe(&mut self, client: usize, filter: &str) {
        if let Some(session) = self.session(client) {
            session.subs.retain(|sub| sub.filter != filter);
        }
    }

    /// Retains if asked to, and hands to every session that wants it: once, with the highest QoS.
    pub fn publish(&mut self, msg: &Msg) {
        if msg.retain {
            self.retained.retain(|old| old.topic != msg.topic);
            if !msg.text.is_empty() {
                self.retained.push(msg.clone());
            }
        }
        let numbers: Vec<u64> = self.sessions.iter().map(|session| session.number).collect();
        for number in numbers {
            let session = self.sessions.iter().find(|session| session.number == number);
            let Some(session) = session else { continue };
            let own = number == msg.origin;
            let wants = |sub: &&Sub| matches(sub.filter, msg.topic) && !(own && sub.no_local);
            let wanting: Vec<&Sub> = session.subs.iter().filter(wants).collect();
            let Some(qos) = wanting.iter().map(|sub| sub.qos).max() else { continue };
            let keeps = wanting.iter().any(|sub| sub.retain_as_published);
            let mut ids: Vec<u32> = wanting.iter().map(|sub| sub.id).filter(|id| *id > 0).collect();
            ids.sort_unstable();
            self.hand(number, msg, qos.min(msg.qos), msg.retain && keeps, ids);
        }
    }

    /// One message for one session.
    fn hand(&mut self, number: u64, msg: &Msg, qos: u8, retain: bool, ids: Vec<u32>) {
        let (now_ms, max_queued) = (self.now_ms, self.max_queued);
        let Some(session) = self.sessions.iter_mut().find(|s| s.number == number) else { return };
        let (topic, text) = (msg.topic, msg.text.clone());
        let client = session.client;
        let seen = Seen { client, topic, text: text.clone(), qos, retain, dup: false, ids };
        if qos == 0 {
            if session.connected && !expired(msg, now_ms) {
                self.output.push(seen);
            }
        } else if session.queue.is_empty() || session.queue.len() < max_queued {
            session.queue.push((msg.clone(), seen));
            self.owed.push((number, text, topic));
            self.pump(client);
        }
    }

    /// Sends what the window lets through.
    pub fn pump(&mut self, client: usize) {
        let now_ms = self.now_ms;
        let Some(session) = self.sessions.iter_mut().find(|s| s.client == client) else { return };
        while session.connected {
            let sent = session.flights.iter().filter(|flight| flight.sent).count();
            if sent >= session.window {
                return;
            }
            if let Some(flight) = session.flights.iter_mut().find(|flight| !flight.sent) {
                flight.sent = true;
                if !flight.released {
                    self.output.push(Seen { dup: true, ..flight.seen.clone() });
                }
                continue;
            }
            if session.queue.is_empty() {
                return;
            }
            let (msg, seen) = session.queue.remove(0);
            if expired(&msg, now_ms) {
                settle(&mut self.owed, session.number, &seen);
                continue;
            }
            self.output.push(seen.clone());
            session.flights.push(Flight { seen, id: None, released: false, sent: true });
        }
    }

    /// The client's application has the message.
    pub fn received(&mut self, number: u64, seen: &Seen) {
        settle(&mut self.owed, number, seen);
    }

    /// PUBACK or PUBCOMP: the exchange is over.
    pub fn finish(&mut self, client: usize, id: u16) {
        if let Some(session) = self.session(client) {
            session.flights.retain(|flight| flight.id != Some(id));
        }
        self.pump(client);
    }

    /// PUBREC.
    pub fn release(&mut self, client: usize, id: u16) {
        let Some(session) = self.session(client) else { return };
        if let Some(flight) = session.flights.iter_mut().find(|flight| flight.id == Some(id)) {
            flight.released = true;
        }
    }

    /// Lets time pass. False when two sessions' deadlines fall into one tick: their order is
    /// nobody's promise, so the history is of no use from here on.
    pub fn pass(&mut self, ms: u64) -> bool {
        let end_ms = self.now_ms + ms;
        loop {
            let next = |session: &Sess| {
                let deadlines = [session.expires_at_ms, session.will_at_ms];
                deadlines.into_iter().flatten().min().filter(|at| *at <= end_ms)
            };
            let mut due: Vec<(u64, usize)> =
                self.sessions.iter().filter_map(|s| Some((next(s)?, s.client))).collect();
            due.sort_unstable();
            let Some(&(at_ms, client)) = due.first() else { break };
            if due.get(1).is_some_and(|(other_ms, _)| *other_ms == at_ms) {
                return false;
            }
            // Deadlines are kept to the tick; what they lead to sees the time of that tick, and
            // nothing that it could see differs within one.
            self.now_ms = self.now_ms.max(at_ms);
            let Some(session) = self.session(client) else { break };
            if session.expires_at_ms.is_some_and(|at| at <= at_ms) {
                self.end(client);
            } else {
                session.will_at_ms = None;
                if let Some(will) = session.will.take() {
                    self.publish(&will.msg);
                }
            }
        }
        self.now_ms = end_ms;
        true
    }
}

fn expired(msg: &Msg, now_ms: u64) -> bool {
    msg.expires_at_ms.is_some_and(|at| at <= now_ms)
}

fn on_tick(ms: u64) -> u64 {
    ms.div_ceil(TICK_MS) * TICK_MS
}

fn settle(owed: &mut Vec<(u64, String, &'static str)>, number: u64, seen: &Seen) {
    let same = |(n, text, topic): &(u64, String, &'static str)| {
        *n == number && *text == seen.text && *topic == seen.topic
    };
    if let Some(at) = owed.iter().position(same) {
        owed.remove(at);
    }
}
