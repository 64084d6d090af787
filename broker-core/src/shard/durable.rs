//! Durable sessions and retained messages: what waits for its commit, and what follows from it.
//!
//! A change that must survive is decided here like any other, but its acknowledgement is *owed*
//! until the metadata has committed it: the connection's reader proposes a [`Commit`], reads nothing
//! meanwhile, and comes back with [`Shard::on_committed`]. What nobody waits for (a connection that
//! ended, a session that expired) is posted, and proposed in order by a task of the shard.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use meta::command::{CloseSession, Command, OpenSession, Refusal, Reply};
use meta::record::{ClientKey, StoredSubscription};
use meta::{Answer, Handle, ProposeError};
use mqtt::protocol::{Accepted, Violation, accept};
use mqtt::session::{Draft, Message, Will};
use mqtt::wire::{
    AckKind, Connect, Packet, PacketId, Properties, ReasonCode, SubAck, Version, decode_from_client,
};
use smallvec::SmallVec;

use super::close::Parting;
use super::commit::{Commit, Opening, Owed};
use super::conn::Phase;
use super::owed::{Afterwards, Wait};
use super::publish::Retaining;
use super::stored::{client_key, retain_command, stored_will};
use super::{ConnKey, Received, SessionKey, Shard, connect, packets};

/// Posted commands that may wait: far more than sessions can end while the metadata has no leader
/// for a while. Older ones are dropped beyond it; a restart finds such sessions and ends them then.
const MAX_POSTED: usize = 1_000_000;

/// Where this shard's durable facts go.
#[derive(Debug)]
pub(super) struct Durability {
    pub(super) handle: Handle,
    /// Wall clock minus the shard's monotonic clock, in milliseconds.
    pub(super) wall_offset_ms: u64,
    posted: VecDeque<Command>,
    /// Posted commands were taken, and no more asked for yet: they may not be applied.
    recording: bool,
    /// What the connection at hand waits for.
    pub(super) commit: Option<Box<Commit>>,
}

impl Shard {
    /// Keeps durable sessions and retained messages in the metadata from now on. `wall_ms` is the
    /// wall clock at `now_ms`.
    pub fn set_durability(&mut self, handle: Handle, now_ms: u64, wall_ms: u64) {
        let wall_offset_ms = wall_ms.saturating_sub(now_ms);
        self.durability = Some(Box::new(Durability {
            handle,
            wall_offset_ms,
            posted: VecDeque::new(),
            recording: false,
            commit: None,
        }));
    }

    /// The wall clock may have been set: deadlines that are stored from now on follow it.
    pub fn set_wall_clock(&mut self, now_ms: u64, wall_ms: u64) {
        if let Some(durability) = self.durability.as_mut() {
            durability.wall_offset_ms = wall_ms.saturating_sub(now_ms);
        }
        self.set_recorded_wall_clock(wall_ms.saturating_sub(now_ms));
    }

    /// Up to `max` posted commands, in order. Those that were taken before have been answered.
    pub fn take_posted(&mut self, max: usize) -> Vec<Command> {
        let Some(durability) = self.durability.as_mut() else { return Vec::new() };
        let count = max.min(durability.posted.len());
        durability.recording = count > 0;
        durability.posted.drain(..count).collect()
    }

    /// Whether [`Shard::take_posted`] has something.
    pub fn has_posted(&self) -> bool {
        self.durability.as_ref().is_some_and(|durability| !durability.posted.is_empty())
    }

    /// A proposal of a connection was answered: what was owed is done, and the connection goes on
    /// with the bytes that waited.
    pub fn on_committed(
        &mut self,
        key: ConnKey,
        commit: Commit,
        result: Result<Answer, ProposeError>,
        now_ms: u64,
    ) -> Received {
        if let Some(conn) = self.conn(key) {
            conn.pause = None;
            conn.sign_of_life(now_ms);
        }
        let asked = commit.asked();
        match result {
            Ok(Answer { replies, .. }) if replies.len() == asked => {
                let mut replies = replies.into_iter();
                for owed in commit.owed {
                    if let Owed::Ack { kind, id, reason, wait, then } = owed {
                        self.acknowledge_open(key, kind, id, reason, wait, then);
                        continue;
                    }
                    match replies.next() {
                        Some(Reply::Refused(refusal)) => {
                            self.break_promise(key, owed, &refusal, now_ms);
                        }
                        Some(reply) => self.keep_promise(key, owed, &reply, now_ms),
                        None => break,
                    }
                }
            }
            other => {
                tracing::warn!(?other, "a change was not committed");
                for owed in commit.owed {
                    let refusal = Refusal::Limit("the metadata cannot be reached".into());
                    self.break_promise(key, owed, &refusal, now_ms);
                }
            }
        }
        let waiting = self.conn(key).and_then(|conn| conn.partial.take()).unwrap_or_default();
        packets::on_bytes(self, key, 0, waiting, now_ms)
    }

    pub(super) fn is_durable(&self) -> bool {
        self.durability.is_some()
    }

    /// What the connection at hand waits for, unless the packet that begins with `rest` may join.
    #[inline]
    pub(super) fn take_commit(&mut self, rest: &[u8]) -> Option<Box<Commit>> {
        let durability = self.durability.as_mut()?;
        if durability.commit.as_ref()?.takes(rest) { None } else { durability.commit.take() }
    }

    /// The client's CONNECT is accepted: its session is opened in the metadata first.
    #[allow(clippy::too_many_arguments, reason = "all of them are the CONNECT's")]
    pub(super) fn owe_connect(
        &mut self,
        key: ConnKey,
        request: &Connect<'_>,
        raw: &[u8],
        assigned: Option<String>,
        accepted: &Accepted,
        auth_data: Option<&[u8]>,
        now_ms: u64,
    ) {
        let Some(durability) = self.durability.as_ref() else { return };
        let client = client_key(assigned.as_deref().unwrap_or(request.client_id));
        let command = Command::OpenSession(OpenSession {
            // What is over here is not to be resumed there, whose end may come behind this.
            clean_start: request.clean_start || self.has_ended(&client),
            client,
            node: durability.handle.node(),
            expiry_interval_s: accepted.session_expiry_s,
            will: request.will.as_ref().map(|will| stored_will(&Will::keep(will, 0))),
            now_ms: now_ms + durability.wall_offset_ms,
        });
        let opening = Opening {
            connect: Bytes::copy_from_slice(raw),
            assigned,
            auth_data: auth_data.map(<[u8]>::to_vec),
        };
        if let Some(conn) = self.conn(key) {
            conn.phase = Phase::Authenticating;
        }
        self.owe(command, Owed::Connect(opening), 0);
    }

    /// SUBSCRIBE of a durable session: SUBACK waits. False when there is nothing to wait for.
    pub(super) fn owe_suback(
        &mut self,
        session: SessionKey,
        packet_id: PacketId,
        codes: &SmallVec<[u8; 8]>,
        granted: Vec<StoredSubscription>,
    ) -> bool {
        let Some((client, epoch)) = self.durable_client(session) else { return false };
        if granted.is_empty() {
            return false;
        }
        let filters = granted.iter().map(|stored| stored.filter.as_str().into()).collect();
        let command = Command::Subscribe { client, epoch, subscriptions: granted };
        self.owe(command, Owed::SubAck { packet_id, codes: codes.clone(), filters }, 0);
        true
    }

    /// UNSUBSCRIBE of a durable session: UNSUBACK waits. False when there is nothing to wait for.
    pub(super) fn owe_unsuback(
        &mut self,
        session: SessionKey,
        packet_id: PacketId,
        codes: &SmallVec<[u8; 8]>,
        filters: Vec<String>,
    ) -> bool {
        let Some((client, epoch)) = self.durable_client(session) else { return false };
        if filters.is_empty() {
            return false;
        }
        let command = Command::Unsubscribe { client, epoch, filters };
        self.owe(command, Owed::UnsubAck { packet_id, codes: codes.clone() }, 0);
        true
    }

    /// A retained publish: it is delivered, and acknowledged, once it is committed.
    pub(super) fn owe_publish(
        &mut self,
        session: SessionKey,
        draft: &Draft<'_>,
        ack: Option<(AckKind, PacketId)>,
        dup: bool,
    ) {
        let Some(durability) = self.durability.as_ref() else { return };
        let command = retain_command(draft, durability.wall_offset_ms);
        let message = Arc::new(Message::keep(draft));
        let bytes = message.size_bytes();
        self.owe(command, Owed::Publish { message, session, ack, dup }, bytes);
    }

    /// Retained messages have expired.
    pub(super) fn post_sweep(&mut self, topics: Vec<Box<str>>, now_ms: u64) {
        let Some(durability) = self.durability.as_ref() else { return };
        if topics.is_empty() {
            return;
        }
        let topics = topics.into_iter().filter(|topic| !topic.starts_with("$SYS/"));
        let command = Command::SweepRetained {
            now_ms: now_ms + durability.wall_offset_ms,
            topics: topics.map(String::from).collect(),
        };
        self.post(command);
    }

    /// A will is retained: nobody waits for it.
    pub(super) fn post_retain(&mut self, draft: &Draft<'_>) {
        let Some(durability) = self.durability.as_ref() else { return };
        let command = retain_command(draft, durability.wall_offset_ms);
        self.post(command);
    }

    /// The connection of a session ended, or its deadlines changed.
    pub(super) fn post_close(&mut self, session: SessionKey) {
        let Some((client, epoch)) = self.durable_client(session) else { return };
        let Some(durability) = self.durability.as_ref() else { return };
        let entry = &self.sessions[session.0 as usize];
        let wall_ms = |at_ms: u64| at_ms + durability.wall_offset_ms;
        let command = Command::CloseSession(CloseSession {
            client,
            epoch,
            expiry_interval_s: entry.session.expiry_interval_s,
            expires_at_ms: entry.expires_at_ms.map(wall_ms),
            will_at_ms: entry.will_at_ms.map(wall_ms),
        });
        self.post(command);
    }

    /// A session is over. Call before it is removed.
    pub(super) fn post_end(&mut self, session: SessionKey) {
        if let Some((client, epoch)) = self.durable_client(session) {
            let node = self.durability.as_ref().map_or(0, |durability| durability.handle.node());
            self.post(Command::EndSession { client, epoch, node });
        }
    }

    /// A waiting will was published.
    pub(super) fn post_will_taken(&mut self, session: SessionKey) {
        if let Some((client, epoch)) = self.durable_client(session) {
            self.post(Command::TakeWill { client, epoch });
        }
    }

    fn keep_promise(&mut self, key: ConnKey, owed: Owed, reply: &Reply, now_ms: u64) {
        match owed {
            Owed::Connect(opening) => {
                let Reply::Session { epoch, generation, present } = *reply else { return };
                self.opened(key, &opening, epoch, generation, present, now_ms);
            }
            Owed::SubAck { packet_id, codes, .. } => {
                self.answer_subscribe(key, packet_id, &codes, now_ms);
            }
            Owed::UnsubAck { packet_id, codes } => {
                self.answer_unsubscribe(key, packet_id, &codes, now_ms);
            }
            Owed::Ack { .. } => {}
            Owed::Publish { message, session, ack, dup } => {
                let (draft, elsewhere) = (message.draft(), Retaining::Elsewhere);
                let exchange = ack.map(|(_, id)| (session, id, dup));
                let (any, wait, then) = self.publish_for(key, exchange, &draft, elsewhere, now_ms);
                let reason =
                    if any { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers };
                if let Some((kind, id)) = ack {
                    self.acknowledge_open(key, kind, id, reason, wait, then);
                }
            }
        }
    }

    /// Tells the client that what it asked for was not done.
    fn break_promise(&mut self, key: ConnKey, owed: Owed, refusal: &Refusal, now_ms: u64) {
        let busy = Violation::new(ReasonCode::ServerBusy, "the change was not committed");
        match owed {
            Owed::Connect(_) => {
                let reason = match refusal {
                    Refusal::Invalid(_) => ReasonCode::ClientIdentifierNotValid,
                    Refusal::Limit(_) => ReasonCode::ServerUnavailable,
                    _ => ReasonCode::UnspecifiedError,
                };
                if self.conn(key).is_some_and(|conn| conn.phase == Phase::Authenticating) {
                    let violation = Violation::new(reason, "the session was not opened");
                    connect::turn_away(self, key, &violation, now_ms);
                }
            }
            Owed::SubAck { packet_id, mut codes, filters } => {
                let Some(conn) = self.conn(key).filter(|conn| conn.phase == Phase::Open) else {
                    return;
                };
                let session = conn.session;
                for filter in filters {
                    self.drop_subscription(session, &filter, now_ms);
                }
                for code in codes.iter_mut().filter(|code| **code < 0x80) {
                    *code = ReasonCode::UnspecifiedError as u8;
                }
                self.answer_subscribe(key, packet_id, &codes, now_ms);
            }
            // The subscription would be back after a restart, and 3.x has no way to say so.
            Owed::UnsubAck { .. } => {
                self.expel(key, &busy, now_ms);
            }
            // What is refused anyway is; what was to succeed is sent again.
            Owed::Ack { kind, id, reason, .. } if reason.is_error() => {
                self.acknowledge_open(key, kind, id, reason, Wait::default(), Afterwards::Nothing);
            }
            Owed::Ack { .. } => {}
            Owed::Publish { message, ack: None, .. } => {
                self.stats.dropped_retained.add(1);
                self.publish_as(&message.draft(), Retaining::Elsewhere, now_ms);
            }
            Owed::Publish { message, session, ack: Some((kind, id)), .. } => {
                // Also when the connection is gone: what its client sends again is not a duplicate.
                let origin = message.draft().origin;
                let released = kind == AckKind::PubRec
                    && self.sessions.get_mut(session.0 as usize).is_some_and(|entry| {
                        entry.number == origin && entry.session.incoming.release(id).is_some()
                    });
                let Some(conn) = self.conn(key).filter(|conn| conn.phase == Phase::Open) else {
                    return;
                };
                conn.open_qos2 = conn.open_qos2.saturating_sub(released.into());
                let version = conn.version;
                if version == Version::V5 {
                    let (over, then) = (Wait::default(), Afterwards::Nothing);
                    self.acknowledge_open(key, kind, id, ReasonCode::QuotaExceeded, over, then);
                } else {
                    self.expel(key, &busy, now_ms); // the client sends it again
                }
            }
        }
    }

    /// The session of a CONNECT is open in the metadata.
    fn opened(
        &mut self,
        key: ConnKey,
        opening: &Opening,
        epoch: u64,
        generation: u64,
        present: bool,
        now_ms: u64,
    ) {
        // All succeeded before, on the same bytes.
        let Ok(Packet::Connect(request)) = decode_from_client(&opening.connect, Version::V5) else {
            return;
        };
        let Ok((_, accepted)) = accept(&request, &self.rules) else { return };
        let client_id = opening.assigned.as_deref().unwrap_or(request.client_id);
        let known = self.find_session(client_id);
        let waits = self.conn(key).is_some_and(|conn| conn.phase == Phase::Authenticating);
        // Another connection of the client came later and was faster.
        let overtaken = known.is_some_and(|at| self.sessions[at.0 as usize].epoch > epoch);
        if !waits || overtaken {
            if !overtaken {
                let names = (epoch, generation);
                self.abandon(client_id, names, &request, &accepted, now_ms);
            }
            self.close(key, now_ms);
            return;
        }
        if known.is_none() && present {
            self.fetch_session(client_id, now_ms);
        } else if let Some(known) = known
            && !present
            && !request.clean_start
            && self.sessions[known.0 as usize].epoch > 0
            && self.sessions[known.0 as usize].conn.is_none()
        {
            // Its deadline has come, though the timer has not.
            self.end_session(known, now_ms);
        }
        let auth_data = opening.auth_data.as_deref();
        let assigned = opening.assigned.as_deref();
        let names = (epoch, generation);
        connect::let_in(self, key, &request, assigned, &accepted, auth_data, names, now_ms);
    }

    /// The connection ended before its session was open: the session lost its connection at once.
    fn abandon(
        &mut self,
        client_id: &str,
        (epoch, generation): (u64, u64),
        request: &Connect<'_>,
        accepted: &Accepted,
        now_ms: u64,
    ) {
        // The metadata knows this opening only: the connection before it was taken over.
        let before = self.find_session(client_id);
        if let Some(old) = before.and_then(|known| self.sessions[known.0 as usize].conn) {
            self.stats.takeovers.add(1);
            self.say_disconnect(old, ReasonCode::SessionTakenOver);
            let parting = if request.clean_start { Parting::Lost } else { Parting::TakenOver };
            self.detach(old, parting, now_ms);
            self.close(old, now_ms);
        }
        let key = match self.find_session(client_id) {
            Some(known) if request.clean_start => {
                self.end_session(known, now_ms);
                self.insert_session(client_id, accepted.session_expiry_s)
            }
            Some(known) => known,
            None => self.insert_session(client_id, accepted.session_expiry_s),
        };
        self.set_generation(key, generation);
        let entry = &mut self.sessions[key.0 as usize];
        entry.epoch = epoch;
        entry.session.expiry_interval_s = accepted.session_expiry_s;
        entry.expires_at_ms = (accepted.session_expiry_s != u32::MAX)
            .then(|| now_ms + u64::from(accepted.session_expiry_s) * 1000);
        self.post_close(key);
        self.arm_session(key);
    }

    /// Whether the client's session is over, and the metadata may not know it yet.
    fn has_ended(&self, client: &ClientKey) -> bool {
        let Some(durability) = self.durability.as_ref() else { return false };
        if durability.posted.is_empty() && !durability.recording {
            return false;
        }
        let known = self.find_session(&client.client_id);
        if known.is_some_and(|at| self.sessions[at.0 as usize].epoch > 0) {
            return false;
        }
        // A shard has all sessions of this node that are its own.
        match durability.handle.read(|view| meta::state::session(view, client)) {
            Ok(record) => record.is_some_and(|record| record.node == durability.handle.node()),
            Err(error) => {
                tracing::error!(%error, client_id = client.client_id, "cannot read a session");
                false
            }
        }
    }

    fn durable_client(&self, session: SessionKey) -> Option<(ClientKey, u64)> {
        self.durability.as_ref()?;
        let entry = self.sessions.get(session.0 as usize)?;
        (entry.epoch > 0).then(|| (client_key(&entry.session.client_id), entry.epoch))
    }

    fn owe(&mut self, command: Command, owed: Owed, bytes: usize) {
        let Some(durability) = self.durability.as_mut() else { return };
        durability.commit.get_or_insert_default().owe(command, owed, bytes);
    }

    fn post(&mut self, command: Command) {
        let Some(durability) = self.durability.as_mut() else { return };
        if durability.posted.len() >= MAX_POSTED {
            durability.posted.pop_front();
        }
        durability.posted.push_back(command);
    }

    fn answer_subscribe(&mut self, key: ConnKey, packet_id: PacketId, codes: &[u8], now_ms: u64) {
        let Some(conn) = self.conn(key).filter(|conn| conn.phase == Phase::Open) else { return };
        let session = conn.session;
        let suback = SubAck { packet_id, properties: Properties::EMPTY, codes };
        self.answer(key, &Packet::SubAck(suback), now_ms);
        self.pump(session, now_ms);
    }

    fn answer_unsubscribe(&mut self, key: ConnKey, packet_id: PacketId, codes: &[u8], now_ms: u64) {
        if self.conn(key).is_some_and(|conn| conn.phase == Phase::Open) {
            let unsuback = SubAck { packet_id, properties: Properties::EMPTY, codes };
            self.answer(key, &Packet::UnsubAck(unsuback), now_ms);
        }
    }
}
