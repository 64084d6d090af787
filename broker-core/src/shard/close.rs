//! Ends: of connections, of sessions, and the wills that follow.

use std::num::NonZeroU64;

use mqtt::protocol::Violation;
use mqtt::session::{Draft, Owed, Will};
use mqtt::topic::parse_filter;
use mqtt::wire::{
    Disconnect, Packet, PacketType, PropertyBuf, ReasonCode, Sender, Version, encode,
};
use rt_abstract::planted::{Bug, is_planted};

use super::conn::Phase;
use super::held::Held;
use super::{ConnKey, SessionKey, Shard, Timer, connect};

/// How a connection leaves its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parting {
    /// DISCONNECT with reason 0x00: the will is discarded [MQTT-3.14.4-3].
    Normal,
    /// The connection was lost or closed for an error: the will is due [MQTT-3.1.2-8].
    Lost,
    /// A new connection resumes the session: a will with a delay is not sent, one without is.
    TakenOver,
}

/// Expired retained messages freed per tick.
const SWEEP_PER_TICK: usize = 1000;

impl Shard {
    /// Ends a connection because of what the client did; version 5 clients are told why.
    pub(super) fn violate(&mut self, key: ConnKey, violation: &Violation, now_ms: u64) {
        if self.expel(key, violation, now_ms) {
            self.stats.protocol_errors.add(1);
        }
    }

    /// Ends a connection for a reason, which version 5 clients are told; false when it is closing
    /// already.
    pub(super) fn expel(&mut self, key: ConnKey, violation: &Violation, now_ms: u64) -> bool {
        let Some(conn) = self.conn(key) else { return false };
        let (phase, version, verbose) = (conn.phase, conn.version, conn.problem_information);
        if phase == Phase::Closing {
            return false;
        }
        if phase == Phase::Authenticating {
            connect::deny(self, key, violation, now_ms); // counts by itself
            return false;
        }
        let client = self.client_of(key);
        tracing::debug!(client, reason = ?violation.reason, "connection closed: {violation}");
        match (phase, version) {
            // Nothing was agreed on yet: an answer would be a guess at the version.
            (Phase::Handshake, _) => {}
            (_, Version::V5) => self.say_disconnect_with(key, violation, verbose),
            _ => {}
        }
        self.detach(key, Parting::Lost, now_ms);
        self.close(key, now_ms);
        true
    }

    /// Sends DISCONNECT with a reason to a version 5 client; 3.x has no such packet.
    pub(super) fn say_disconnect(&mut self, key: ConnKey, reason: ReasonCode) {
        self.say_disconnect_with(key, &Violation::new(reason, ""), false);
    }

    fn say_disconnect_with(&mut self, key: ConnKey, violation: &Violation, verbose: bool) {
        let Some(conn) = self.conn(key) else { return };
        if conn.version != Version::V5 || conn.phase != Phase::Open {
            return;
        }
        let max_bytes = conn.max_packet_size_bytes as usize;
        let mut properties = PropertyBuf::new();
        // Fixed header, reason, lengths and identifier take 8 bytes; dropped when it would not fit
        // [MQTT-3.14.2-3].
        if verbose && !violation.text.is_empty() && violation.text.len() + 8 <= max_bytes {
            properties.reason_string(violation.text);
        }
        let properties = properties.as_properties();
        let reason = violation.reason.or_protocol_error(PacketType::Disconnect, Sender::Server);
        let disconnect = Disconnect { reason, properties };
        if let Some(block) = self.reply(key) {
            encode(&Packet::Disconnect(disconnect), Version::V5, block);
        }
    }

    /// Stops serving a connection: what is owed is written, within a bound, then it ends.
    pub(super) fn close(&mut self, key: ConnKey, now_ms: u64) {
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return };
        if conn.phase == Phase::Closing {
            return;
        }
        // Whoever closes without saying how the session is left: it was lost.
        self.detach(key, Parting::Lost, now_ms);
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return };
        conn.phase = Phase::Closing;
        conn.partial = None;
        conn.aliases = None;
        conn.own_aliases = None;
        conn.close_by_ms = now_ms + u64::from(self.limits.close_timeout_ms);
        let close_by_ms = conn.close_by_ms;
        self.arm_conn(key, close_by_ms);
        self.mark_dirty(key); // a writer ends the writing direction, also with nothing to write
    }

    /// Takes the session away from its connection. Does nothing when it has none any more.
    pub(super) fn detach(&mut self, key: ConnKey, parting: Parting, now_ms: u64) {
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return };
        if conn.phase != Phase::Open {
            return;
        }
        let session = std::mem::replace(&mut conn.session, SessionKey(u32::MAX));
        let Some(entry) = self.sessions.get_mut(session.0 as usize) else { return };
        debug_assert_eq!(entry.conn, Some(key), "a session has one connection");
        entry.conn = None;
        self.stats.clients_connected.sub(1);
        let expiry_s = entry.session.expiry_interval_s;
        if parting != Parting::TakenOver {
            self.spill(session);
        }
        let Some(entry) = self.sessions.get_mut(session.0 as usize) else { return };
        // When the server goes, its clients did not vanish.
        if parting == Parting::Normal || self.draining {
            entry.will = None;
        }
        self.presence_changed(session, false);
        if expiry_s == 0 {
            self.end_session(session, now_ms); // publishes the will, whatever its delay
            return;
        }
        let Some(entry) = self.sessions.get_mut(session.0 as usize) else { return };
        let delay_s = entry.will.as_ref().map_or(0, |will| will.delay_s);
        if is_planted(Bug::DoubledWill)
            && let Some(will) = entry.will.clone().filter(|_| delay_s == 0)
        {
            self.publish_will(&will, now_ms);
        }
        let Some(entry) = self.sessions.get_mut(session.0 as usize) else { return };
        match entry.will.take() {
            None => {}
            // A durable one is the metadata's to give away.
            Some(will) if delay_s == 0 && entry.epoch == 0 => self.publish_will(&will, now_ms),
            // Resumed before the delay is over: not sent [MQTT-3.1.3-9].
            Some(_) if parting == Parting::TakenOver => {}
            Some(will) => {
                let entry = &mut self.sessions[session.0 as usize];
                entry.will = Some(will);
                entry.will_at_ms = Some(now_ms + u64::from(delay_s) * 1000);
            }
        }
        let entry = &mut self.sessions[session.0 as usize];
        if expiry_s != u32::MAX {
            entry.expires_at_ms = Some(now_ms + u64::from(expiry_s) * 1000);
        }
        if parting != Parting::TakenOver {
            self.post_close(session); // else the new connection's commit has said it all
            let entry = &self.sessions[session.0 as usize];
            if entry.epoch > 0 && entry.will_at_ms.is_some_and(|at| at <= now_ms) {
                self.post_take_will(session, now_ms);
            }
        }
        self.arm_session(session);
    }

    /// Another connection has the session from now on [MQTT-3.1.4-3].
    pub(super) fn take_over(&mut self, old: ConnKey, parting: Parting, now_ms: u64) {
        self.stats.takeovers.add(1);
        if is_planted(Bug::LostTakeover) {
            return self.detach(old, parting, now_ms);
        }
        self.say_disconnect(old, ReasonCode::SessionTakenOver);
        self.detach(old, parting, now_ms);
        self.close(old, now_ms);
    }

    /// Ends a session: its subscriptions go, and its will is published if it has one; of a durable
    /// one when the end is recorded.
    pub(super) fn end_session(&mut self, key: SessionKey, now_ms: u64) {
        let Some(entry) = self.sessions.get_mut(key.0 as usize) else { return };
        debug_assert!(entry.conn.is_none(), "detached before it ends");
        let will = entry.will.take();
        let durable = self.durable_client(key);
        let owed = self.take_leavings(key);
        self.set_generation(key, 0);
        let entry = &mut self.sessions[key.0 as usize];
        let subscriptions = std::mem::take(&mut entry.session.subscriptions);
        for subscription in subscriptions.iter() {
            self.forget_subscription(key, &subscription.filter);
        }
        let entry = &mut self.sessions[key.0 as usize];
        if let Some(outgoing) = entry.session.outgoing.as_mut() {
            Held::of(outgoing, &self.limits).became(Held::default(), &self.stats);
            if let Some(recording) = self.recording.as_mut() {
                outgoing.places().for_each(|place| recording.dead(place));
            }
        }
        let hash = self.hasher.of(&entry.session.client_id);
        if let Ok(found) = self.by_client.find_entry(hash, |&at| at == key.0) {
            found.remove();
        }
        self.sessions.remove(key.0 as usize);
        self.stats.sessions.sub(1);
        self.hand_on(owed, 0, now_ms);
        match durable {
            Some((client, epoch)) => self.post_end(client, epoch, will, now_ms),
            None => self.publish_due(will, now_ms),
        }
    }

    /// What an ending session leaves to its share groups. What is in memory needs no record any more.
    fn take_leavings(&mut self, key: SessionKey) -> Vec<Owed> {
        let Self { sessions, recording, limits, stats, .. } = self;
        let entry = sessions.get_mut(key.0 as usize);
        let Some(outgoing) = entry.and_then(|entry| entry.session.outgoing.as_mut()) else {
            return Vec::new();
        };
        let before = Held::of(outgoing, limits);
        let mut owed = outgoing.take_shared();
        before.became(Held::of(outgoing, limits), stats);
        for one in &mut owed {
            if let (Owed::Here(queued), Some(recording)) = (one, recording.as_mut()) {
                recording.dead(std::mem::take(&mut queued.place));
            }
        }
        owed
    }

    /// Runs every deadline that has come. Call about every [`TICK_MS`].
    pub fn on_tick(&mut self, now_ms: u64) {
        let mut due = std::mem::take(&mut self.scratch.due);
        self.timers.expire(now_ms, &mut due);
        for timer in due.drain(..) {
            match timer {
                Timer::Conn { key, number } => self.on_conn_timer(key, number, now_ms),
                Timer::Session { key, number } => self.on_session_timer(key, number, now_ms),
            }
        }
        self.scratch.due = due;
        if self.id == 0 {
            let fabric = self.fabric.clone();
            let mut retained = fabric.retained.lock();
            let swept = retained.sweep(now_ms, SWEEP_PER_TICK);
            let (messages, bytes) = retained.size();
            drop(retained);
            self.stats.retained_messages.set(messages as u64);
            self.stats.retained_bytes.set(bytes as u64);
            self.post_sweep(swept, now_ms);
        }
        self.report_dropped(now_ms);
        self.record_sent();
        self.move_old(now_ms);
        self.publish_sys(now_ms);
        self.settle(now_ms); // mail that did not fit earlier, and wills
    }

    /// Tells every client that the server goes away, and takes no new ones. Wills are not sent:
    /// the clients did not vanish.
    pub fn shut_down(&mut self, now_ms: u64) {
        self.draining = true;
        self.record_sent();
        let keys: Vec<ConnKey> = self.conns.iter().map(|(at, _)| ConnKey(at as u32)).collect();
        for key in keys {
            self.say_disconnect(key, ReasonCode::ServerShuttingDown);
            self.close(key, now_ms);
        }
    }

    /// Lets a connection go.
    pub(super) fn free(&mut self, key: ConnKey) {
        if let Some(mut conn) = self.conns.try_remove(key.0 as usize) {
            conn.not_slow(&self.stats);
            self.stats.connections.sub(1);
            self.fabric.release_connection();
            self.freed.push(key);
        }
    }

    pub(super) fn free_if_done(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get(key.0 as usize) else { return };
        if conn.reader_done && !conn.writing && !conn.dirty {
            self.free(key);
        }
    }

    fn on_conn_timer(&mut self, key: ConnKey, number: u64, now_ms: u64) {
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return };
        if conn.number != number {
            return;
        }
        conn.timer_at_ms = u64::MAX;
        let silence_ends_ms = match conn.keep_alive_ms {
            0 => u64::MAX,
            _ => conn.silence_ends_ms(now_ms),
        };
        let exchange_ends_ms =
            conn.access.as_ref().and_then(|access| access.further_by_ms()).unwrap_or(u64::MAX);
        match conn.phase {
            Phase::Closing if conn.close_by_ms <= now_ms => self.kills.push(key),
            Phase::Closing => {
                let deadline = conn.close_by_ms;
                self.arm_conn(key, deadline);
            }
            Phase::Handshake | Phase::Authenticating => {
                // No CONNECT in time: closed without a word (3.1.4).
                self.close(key, now_ms);
                self.kills.push(key);
            }
            Phase::Open if silence_ends_ms <= now_ms => {
                self.stats.keep_alive_timeouts.add(1);
                let client = self.client_of(key);
                tracing::debug!(client, "keep-alive ran out");
                self.say_disconnect(key, ReasonCode::KeepAliveTimeout);
                self.detach(key, Parting::Lost, now_ms);
                self.close(key, now_ms);
            }
            Phase::Open if exchange_ends_ms <= now_ms => {
                let late = Violation::new(ReasonCode::NotAuthorized, "re-authentication is late");
                if self.expel(key, &late, now_ms) {
                    self.stats.authentication_failures.add(1);
                }
            }
            Phase::Open => match silence_ends_ms.min(exchange_ends_ms) {
                u64::MAX => {}
                deadline_ms => self.arm_conn(key, deadline_ms),
            },
        }
    }

    fn on_session_timer(&mut self, key: SessionKey, number: u64, now_ms: u64) {
        let Some(entry) = self.sessions.get_mut(key.0 as usize) else { return };
        if entry.number != number {
            return;
        }
        entry.timer_at_ms = u64::MAX;
        if entry.conn.is_some() {
            return;
        }
        if entry.expires_at_ms.is_some_and(|at| at <= now_ms) {
            self.stats.sessions_expired.add(1);
            self.end_session(key, now_ms);
            return;
        }
        if entry.will_at_ms.is_some_and(|at| at <= now_ms) && !entry.will_taken {
            if entry.epoch > 0 {
                self.post_take_will(key, now_ms);
            } else {
                entry.will_at_ms = None;
                let will = entry.will.take();
                self.publish_due(will, now_ms);
            }
        }
        self.arm_session(key);
    }

    /// Arms the next deadline of a session without a connection.
    pub(super) fn arm_session(&mut self, key: SessionKey) {
        let Some(entry) = self.sessions.get_mut(key.0 as usize) else { return };
        let will_at_ms = entry.will_at_ms.filter(|_| !entry.will_taken);
        let deadlines = [entry.expires_at_ms, will_at_ms];
        // An entry that fires too early is armed again: one per session is enough.
        if let Some(deadline) = deadlines.into_iter().flatten().min()
            && deadline < entry.timer_at_ms
        {
            entry.timer_at_ms = deadline;
            self.timers.arm(deadline, Timer::Session { key, number: entry.number });
        }
    }

    pub(super) fn publish_will(&mut self, will: &Will, now_ms: u64) {
        let draft = will.message.draft();
        // Its expiry starts now, not at CONNECT.
        let expires_at_ms = will
            .expiry_interval_s
            .and_then(|left_s| NonZeroU64::new(now_ms + u64::from(left_s) * 1000));
        let draft = Draft { expires_at_ms, ..draft };
        if draft.retain && self.is_durable() {
            self.post_retain(&draft);
        }
        // Retained here already: its live copy does not wait for the commit, and a subscriber that
        // comes in between gets neither otherwise.
        self.publish(&draft, now_ms);
    }

    /// Takes one subscription of a session out of the shard's tree and the node's routes.
    pub(super) fn forget_subscription(&mut self, session: SessionKey, raw: &str) {
        let Ok(parsed) = parse_filter(raw) else { return };
        let share = parsed.share.map(|name| name.as_str());
        let Some(entry) = self.subscriptions.get_mut(parsed.filter) else { return };
        if !entry.remove(share, session) {
            return;
        }
        if share.is_some() && self.standing(session).is_some_and(|standing| standing.connected) {
            self.count_connected(raw, false);
        }
        self.stats.subscriptions.sub(1);
        self.stats.shared_subscriptions.sub(share.is_some().into());
        self.update_route(parsed.filter, share);
        if self.subscriptions.get(parsed.filter).is_some_and(|entry| entry.is_empty()) {
            self.subscriptions.remove(parsed.filter);
        }
    }
}
