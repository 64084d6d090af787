//! Durable sessions and retained messages: what waits for its commit, and what follows from it.
//!
//! A change that must survive is decided here like any other, but its acknowledgement is *owed*
//! until the metadata has committed it: the connection's reader proposes a [`Commit`], reads nothing
//! meanwhile, and comes back with [`Shard::on_committed`]. What nobody waits for (a connection that
//! ended, a session that expired) is posted, and proposed in order by a task of the shard.

use std::sync::Arc;

use bytes::Bytes;
use meta::command::{Command, OpenSession, Refusal, Reply};
use meta::record::{ClientKey, StoredSubscription};
use meta::{Answer, Handle, ProposeError};
use mqtt::protocol::{Accepted, Violation};
use mqtt::session::{Draft, Message, Will};
use mqtt::wire::{AckKind, Connect, Packet, PacketId, Properties, ReasonCode, SubAck, Version};
use smallvec::SmallVec;

use super::commit::{Commit, Filters, Opening, Owed};
use super::conn::Phase;
use super::opening::Openings;
use super::owed::{Afterwards, Wait};
use super::posted::Posted;
use super::publish::Retaining;
use super::stored::{client_key, retain_command, stored_will};
use super::{ConnKey, Received, SessionKey, Shard, connect, packets};

/// Where this shard's durable facts go.
#[derive(Debug)]
pub(super) struct Durability {
    pub(super) handle: Handle,
    /// Wall clock minus the shard's monotonic clock, in milliseconds.
    pub(super) wall_offset_ms: u64,
    /// What no client waits for.
    pub(super) posted: Posted,
    /// CONNECTs that wait for their sessions.
    pub(super) openings: Openings,
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
            posted: Posted::default(),
            openings: Openings::default(),
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
            Err(error @ (ProposeError::NoLeader | ProposeError::TooLarge)) => {
                tracing::warn!(%error, "a change was not committed");
                for owed in commit.owed {
                    self.break_promise(key, owed, &unreachable(), now_ms);
                }
            }
            other => {
                tracing::warn!(?other, "a change is not known to be committed");
                for owed in commit.owed {
                    match owed {
                        Owed::SubAck(change) | Owed::UnsubAck(change) => {
                            self.leave_in_doubt(key, &change, now_ms);
                        }
                        Owed::Connect(opening) => {
                            self.doubt_opening(&opening.client_id);
                            self.break_promise(key, Owed::Connect(opening), &unreachable(), now_ms);
                        }
                        owed => self.break_promise(key, owed, &unreachable(), now_ms),
                    }
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
        let client_id = assigned.as_deref().unwrap_or(request.client_id);
        let client = client_key(client_id);
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
            client_id: client_id.into(),
            assigned: assigned.is_some(),
            asked_ms: now_ms,
            auth_data: auth_data.map(<[u8]>::to_vec),
        };
        if let Some(durability) = self.durability.as_mut() {
            durability.openings.begin(client_id);
        }
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
        let change = self.change_of(session, packet_id, codes, filters);
        self.owe(command, Owed::SubAck(change), 0);
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
        let changed = filters.iter().map(|filter| filter.as_str().into()).collect();
        let command = Command::Unsubscribe { client, epoch, filters };
        let change = self.change_of(session, packet_id, codes, changed);
        self.owe(command, Owed::UnsubAck(change), 0);
        true
    }

    fn change_of(
        &self,
        session: SessionKey,
        packet_id: PacketId,
        codes: &SmallVec<[u8; 8]>,
        filters: Vec<Box<str>>,
    ) -> Filters {
        let number = self.sessions.get(session.0 as usize).map_or(0, |entry| entry.number);
        Filters { packet_id, codes: codes.clone(), filters, session, number }
    }

    /// A retained publish: it is delivered, and acknowledged, once it is committed.
    pub(super) fn owe_publish(
        &mut self,
        (session, trial): (SessionKey, u64),
        draft: &Draft<'_>,
        ack: Option<(AckKind, PacketId)>,
        dup: bool,
    ) {
        let Some(durability) = self.durability.as_ref() else { return };
        let command = retain_command(draft, durability.wall_offset_ms);
        let message = Arc::new(Message::keep(draft));
        let bytes = message.size_bytes();
        self.owe(command, Owed::Publish { message, session, ack, trial, dup }, bytes);
    }

    fn keep_promise(&mut self, key: ConnKey, owed: Owed, reply: &Reply, now_ms: u64) {
        match owed {
            Owed::Connect(opening) => {
                let Reply::Session { epoch, generation, present } = *reply else {
                    return self.end_opening(&opening.client_id, None, now_ms);
                };
                self.opened(key, &opening, (epoch, generation), present, now_ms);
                self.end_opening(&opening.client_id, Some(epoch), now_ms);
            }
            Owed::SubAck(Filters { packet_id, codes, .. }) => {
                self.answer_subscribe(key, packet_id, &codes, now_ms);
            }
            Owed::UnsubAck(Filters { packet_id, codes, .. }) => {
                self.answer_unsubscribe(key, packet_id, &codes, now_ms);
            }
            Owed::Ack { .. } => {}
            Owed::Publish { message, session, ack, trial, dup } => {
                let whose = (session, message.draft().origin);
                if !self.decide_incoming(key, whose, ack, trial, true) {
                    return; // its client has sent it again since, which counts
                }
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
            Owed::Connect(opening) => {
                let reason = match refusal {
                    Refusal::Invalid(_) => ReasonCode::ClientIdentifierNotValid,
                    Refusal::Limit(_) => ReasonCode::ServerUnavailable,
                    _ => ReasonCode::UnspecifiedError,
                };
                if self.conn(key).is_some_and(|conn| conn.phase == Phase::Authenticating) {
                    let violation = Violation::new(reason, "the session was not opened");
                    connect::turn_away(self, key, &violation, now_ms);
                }
                self.end_opening(&opening.client_id, None, now_ms);
            }
            Owed::SubAck(mut change) => {
                self.take_back(&change, now_ms);
                for code in change.codes.iter_mut().filter(|code| **code < 0x80) {
                    *code = ReasonCode::UnspecifiedError as u8;
                }
                self.answer_subscribe(key, change.packet_id, &change.codes, now_ms);
            }
            // 3.x has no way to say that a subscription is still there.
            Owed::UnsubAck(change) => {
                self.take_back(&change, now_ms);
                self.expel(key, &busy, now_ms);
            }
            // Waited for its turn alone: what it answers is done, or refused. But for a repetition of
            // what was not committed.
            Owed::Ack { kind, id, mut reason, wait, then } => {
                if kind == AckKind::PubRec && !reason.is_error() && !self.has_incoming(key, id) {
                    reason = ReasonCode::QuotaExceeded;
                }
                self.acknowledge_open(key, kind, id, reason, wait, then);
            }
            Owed::Publish { message, ack: None, .. } => {
                self.stats.dropped_retained.add(1);
                self.publish_as(&message.draft(), Retaining::Elsewhere, now_ms);
            }
            Owed::Publish { message, session, ack: Some((kind, id)), trial, .. } => {
                // Also when the connection is gone: what its client sends again is not a duplicate.
                let whose = (session, message.draft().origin);
                if !self.decide_incoming(key, whose, Some((kind, id)), trial, false) {
                    return;
                }
                let Some(conn) = self.conn(key).filter(|conn| conn.phase == Phase::Open) else {
                    return;
                };
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

    /// The commit of a retained publish was answered: what becomes of its QoS 2 exchange. False when
    /// its session has begun it anew meanwhile, or is over.
    fn decide_incoming(
        &mut self,
        key: ConnKey,
        (session, number): (SessionKey, u64),
        ack: Option<(AckKind, PacketId)>,
        trial: u64,
        taken: bool,
    ) -> bool {
        let Some((AckKind::PubRec, id)) = ack else { return true };
        let entry = self.sessions.get_mut(session.0 as usize);
        let Some(entry) = entry.filter(|entry| entry.number == number) else { return taken };
        let counts = entry.session.incoming.decide(id, trial, taken);
        if (!taken || !counts)
            && let Some(conn) = self.conn(key)
        {
            conn.open_qos2 = conn.open_qos2.saturating_sub(1);
        }
        counts
    }

    fn has_incoming(&self, key: ConnKey, id: PacketId) -> bool {
        let session = self.conns.get(key.0 as usize).map(|conn| conn.session.0 as usize);
        let entry = session.and_then(|session| self.sessions.get(session));
        entry.is_some_and(|entry| entry.session.incoming.contains(id))
    }

    pub(super) fn durable_client(&self, session: SessionKey) -> Option<(ClientKey, u64)> {
        self.durability.as_ref()?;
        let entry = self.sessions.get(session.0 as usize)?;
        (entry.epoch > 0).then(|| (client_key(&entry.session.client_id), entry.epoch))
    }

    fn owe(&mut self, command: Command, owed: Owed, bytes: usize) {
        let Some(durability) = self.durability.as_mut() else { return };
        durability.commit.get_or_insert_default().owe(command, owed, bytes);
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

/// What clients are told when the metadata could not be asked.
fn unreachable() -> Refusal {
    Refusal::Limit("the metadata cannot be reached".into())
}
