//! CONNECT: which shard, whose, which session, and what the client is told.

use std::hash::Hasher;

use mqtt::access::SCRAM_SHA_256;
use mqtt::protocol::{Accepted, Identity, OutgoingAliases, Violation, accept, connack_properties};
use mqtt::session::{Session, Will};
use mqtt::topic;
use mqtt::wire::{
    self, ConnAck, Connect, Packet, PacketType, Properties, ReasonCode, Sender, Version, encode,
};
use siphasher::sip128::{Hash128, Hasher128, SipHasher24};

use super::close::Parting;
use super::conn::Phase;
use super::opening::Committed;
use super::packets::Then;
use super::publish::{UNLIKE_ANNOUNCED, is_as_announced};
use super::{ConnKey, ConnectStep, Entry, SessionKey, Shard, auth};

/// `raw` is the whole packet.
pub(super) fn on_connect(
    shard: &mut Shard,
    key: ConnKey,
    request: &Connect<'_>,
    raw: &[u8],
    now_ms: u64,
) -> Result<Then, Violation> {
    if let Some(conn) = shard.conn(key) {
        conn.version = request.version;
    }
    let (identity, accepted) = match accept(request, &shard.rules) {
        Ok(granted) => granted,
        Err(violation) => {
            refuse(shard, key, &violation, now_ms);
            return Ok(Then::Continue);
        }
    };
    // An identifier that is assigned will belong to this shard.
    if let Identity::Named(client_id) = identity {
        let owner = shard.owner_of(client_id);
        if owner != shard.id {
            return Ok(Then::Handoff(owner));
        }
    }
    shard.step(key, ConnectStep::CheckLimit);
    // Here and not where it was accepted: a socket that changes its shard is counted once.
    if !shard.fabric.connect_rate.take(shard.limits.max_connect_rate_per_s, now_ms) {
        shard.stats.connects_rate_limited.add(1);
        let reason = ReasonCode::ConnectionRateExceeded;
        turn_away(shard, key, &Violation::new(reason, "connections come too fast"), now_ms);
        return Ok(Then::Continue);
    }
    if let Some(will) = &request.will
        && let Err(violation) = check_will(shard, will)
    {
        refuse(shard, key, &violation, now_ms);
        return Ok(Then::Continue);
    }
    shard.step(key, ConnectStep::LoginCheck);
    match auth::judge(shard, key, request, raw, now_ms) {
        Ok(Some(then)) => return Ok(then),
        Ok(None) => admit(shard, key, request, raw, identity, &accepted, None, now_ms),
        Err(violation) => deny(shard, key, &violation, now_ms),
    }
    Ok(Then::Continue)
}

/// A client may come in: at once, or when its durable session is committed. `raw` is the whole
/// packet; `auth_data` ends the exchange of a client that named a method.
#[allow(clippy::too_many_arguments, reason = "all of them are the CONNECT's")]
pub(super) fn admit(
    shard: &mut Shard,
    key: ConnKey,
    request: &Connect<'_>,
    raw: &[u8],
    identity: Identity<'_>,
    accepted: &Accepted,
    auth_data: Option<&[u8]>,
    now_ms: u64,
) {
    shard.step(key, ConnectStep::SessionProcess);
    let assigned = match identity {
        Identity::Assign => Some(shard.assign_client_id()),
        Identity::Named(_) => None,
    };
    if shard.is_durable() && accepted.session_expiry_s > 0 {
        shard.owe_connect(key, request, raw, assigned, accepted, auth_data, now_ms);
        shard.step_waits(key);
        return;
    }
    let_in(shard, key, request, assigned.as_deref(), accepted, auth_data, None, now_ms);
}

/// Gives a client its session, and tells it so. `committed`: what the
/// metadata says; nothing for a session that does not outlive the process.
#[allow(clippy::too_many_arguments, reason = "all of them are the CONNECT's")]
pub(super) fn let_in(
    shard: &mut Shard,
    key: ConnKey,
    request: &Connect<'_>,
    assigned: Option<&str>,
    accepted: &Accepted,
    auth_data: Option<&[u8]>,
    committed: Option<Committed>,
    now_ms: u64,
) {
    shard.step(key, ConnectStep::SessionProcess);
    let client_id = assigned.unwrap_or(request.client_id);
    let asked = committed.map(|it| (it.epoch, it.asked_ms));
    shard.take_from_metadata(client_id, request.clean_start, asked, now_ms);
    let (session, present) = shard.take_session(client_id, request, accepted, now_ms);
    shard.step(key, ConnectStep::AddCache);
    shard.set_generation(session, committed.map_or(0, |it| it.generation));
    let entry = &mut shard.sessions[session.0 as usize];
    entry.epoch = committed.map_or(0, |it| it.epoch);
    entry.conn = Some(key);
    shard.presence_changed(session, true);
    let entry = &mut shard.sessions[session.0 as usize];
    shard.stats.clients_connected.add(1);
    shard.stats.connects_accepted.add(1);
    shard.stats.other_packets_received.add(1);
    entry.will = request.will.as_ref().map(|will| Box::new(Will::keep(will, entry.number)));
    let conn = &mut shard.conns[key.0 as usize];
    conn.session = session;
    conn.phase = Phase::Open;
    conn.window = accepted.window;
    conn.max_packet_size_bytes = accepted.max_packet_size_bytes;
    conn.problem_information = accepted.problem_information;
    if accepted.topic_alias_maximum > 0 {
        conn.own_aliases = Some(Box::new(OutgoingAliases::new(accepted.topic_alias_maximum)));
    }
    // One and a half times the interval [MQTT-3.1.2-22].
    conn.keep_alive_ms = u32::from(accepted.keep_alive_s) * 1500;
    if conn.keep_alive_ms > 0 {
        let deadline = now_ms + u64::from(conn.keep_alive_ms);
        shard.arm_conn(key, deadline);
    }
    shard.step(key, ConnectStep::StReport);
    let mut properties = connack_properties(request, accepted, &shard.rules, assigned);
    if let Some(data) = auth_data {
        properties.auth_method(SCRAM_SHA_256).auth_data(data); // [MQTT-4.12.0-5]
    }
    let connack = ConnAck {
        // [MQTT-3.2.2-2]; 3.1 has no such flag.
        session_present: present && request.version != Version::V3_1,
        reason: ReasonCode::Success,
        properties: properties.as_properties(),
    };
    shard.answer(key, &Packet::ConnAck(connack), now_ms);
    shard.step_waits(key);
    if present {
        shard.pump(session, now_ms);
        shard.hold_until_stored(session);
    }
}

/// A CONNECT for a protocol level that this server does not speak [MQTT-3.1.2-2]. The return code
/// is the one that every version reads at the same place.
pub(super) fn refuse_version(shard: &mut Shard, key: ConnKey, now_ms: u64) {
    let violation =
        Violation::new(ReasonCode::UnsupportedProtocolVersion, "protocol version is not supported");
    refuse(shard, key, &violation, now_ms);
}

/// Answers CONNACK with an error and closes [MQTT-3.2.2-5], [MQTT-3.2.2-7].
pub(super) fn refuse(shard: &mut Shard, key: ConnKey, violation: &Violation, now_ms: u64) {
    shard.stats.protocol_errors.add(1);
    turn_away(shard, key, violation, now_ms);
}

/// [`refuse`] for what the client could not prove, or what came in its way.
pub(super) fn deny(shard: &mut Shard, key: ConnKey, violation: &Violation, now_ms: u64) {
    match violation.reason {
        ReasonCode::BadUserNameOrPassword
        | ReasonCode::NotAuthorized
        | ReasonCode::BadAuthenticationMethod => shard.stats.authentication_failures.add(1),
        ReasonCode::ServerBusy
        | ReasonCode::ServerUnavailable
        | ReasonCode::ConnectionRateExceeded => {}
        _ => shard.stats.protocol_errors.add(1),
    }
    turn_away(shard, key, violation, now_ms);
}

/// [`refuse`] for what is not the client's fault.
pub(super) fn turn_away(shard: &mut Shard, key: ConnKey, violation: &Violation, now_ms: u64) {
    shard.step(key, ConnectStep::StReport);
    shard.stats.other_packets_received.add(1); // the CONNECT
    let version = shard.conn(key).map_or(Version::V5, |conn| conn.version);
    tracing::debug!(reason = ?violation.reason, "CONNECT refused: {violation}");
    // 3.x has return codes of its own, to which every reason leads.
    let reason = match version {
        Version::V5 => violation.reason.or_protocol_error(PacketType::ConnAck, Sender::Server),
        _ => violation.reason,
    };
    let connack = ConnAck { session_present: false, reason, properties: Properties::EMPTY };
    if let Some(block) = shard.reply(key) {
        encode(&Packet::ConnAck(connack), version, block);
    }
    shard.step_waits(key);
    shard.close(key, now_ms);
}

/// Whether a will may be published one day: nobody could be told then.
fn check_will(shard: &Shard, will: &wire::Will<'_>) -> Result<(), Violation> {
    if topic::check_topic(will.topic, &shard.topic_limits).is_err() {
        return Err(Violation::new(ReasonCode::TopicNameInvalid, "will topic is not accepted"));
    }
    if will.topic.starts_with("$SYS/") {
        let reason = ReasonCode::TopicNameInvalid; // the server's own topics (4.7.2)
        return Err(Violation::new(reason, "will topic is the server's own"));
    }
    if shard.limits.check_payload_format && !is_as_announced(&will.properties, will.payload) {
        return Err(UNLIKE_ANNOUNCED);
    }
    Ok(())
}

impl Shard {
    /// Before a durable session is taken over: its opening has decided about what was there before;
    /// a transient session ends it.
    fn take_from_metadata(
        &mut self,
        client_id: &str,
        clean_start: bool,
        committed: Option<(u64, u64)>,
        now_ms: u64,
    ) {
        let Some(old) = self.find_session(client_id) else { return };
        let Some((client, epoch)) = self.durable_client(old) else { return };
        let asked_ms = committed.map_or(now_ms, |(_, asked_ms)| asked_ms);
        let will = self.release(old, clean_start, asked_ms);
        match committed {
            Some(_) => self.publish_due(will, now_ms),
            None => self.post_end(client, epoch, will, now_ms),
        }
    }

    /// The session for a CONNECT: ends or takes over whatever was there before
    /// [MQTT-3.1.2-4], [MQTT-3.1.2-5], [MQTT-3.1.4-3]. The flag is "session present".
    fn take_session(
        &mut self,
        client_id: &str,
        request: &Connect<'_>,
        accepted: &Accepted,
        now_ms: u64,
    ) -> (SessionKey, bool) {
        if let Some(old) = self.find_session(client_id)
            && let Some(old_conn) = self.sessions[old.0 as usize].conn
        {
            let parting = if request.clean_start { Parting::Lost } else { Parting::TakenOver };
            // Ends the old session here and now when its expiry is zero.
            self.take_over(old_conn, parting, now_ms);
        }
        if let Some(old) = self.find_session(client_id) {
            if !request.clean_start {
                let entry = &mut self.sessions[old.0 as usize];
                entry.session.expiry_interval_s = accepted.session_expiry_s;
                entry.expires_at_ms = None;
                // A will that still waited for its delay is not sent [MQTT-3.1.3-9].
                entry.will_at_ms = None;
                entry.will = None;
                if let Some(outgoing) = entry.session.outgoing.as_mut() {
                    outgoing.resume();
                }
                return (old, true);
            }
            self.end_session(old, now_ms);
        }
        (self.insert_session(client_id, accepted.session_expiry_s), false)
    }

    /// A new, empty session.
    pub(super) fn insert_session(&mut self, client_id: &str, expiry_interval_s: u32) -> SessionKey {
        let number = self.number();
        let entry = Entry {
            number,
            epoch: 0,
            generation: 0,
            unsettled: None,
            sent_listed: false,
            fetching: false,
            session: Session::new(client_id, expiry_interval_s),
            conn: None,
            will: None,
            will_at_ms: None,
            will_taken: false,
            in_doubt: false,
            expires_at_ms: None,
            scans: Default::default(),
            subscription_bytes: 0,
            shared: 0,
            timer_at_ms: u64::MAX,
        };
        let key = SessionKey(self.sessions.insert(entry) as u32);
        let Self { hasher, sessions, by_client, .. } = self;
        by_client.insert_unique(hasher.of(client_id), key.0, |&at| {
            hasher.of(&sessions[at as usize].session.client_id)
        });
        self.stats.sessions.add(1);
        key
    }

    /// The session of a client, connected or not.
    pub(super) fn find_session(&self, client_id: &str) -> Option<SessionKey> {
        let hash = self.hasher.of(client_id);
        let same = |&at: &u32| &*self.sessions[at as usize].session.client_id == client_id;
        self.by_client.find(hash, same).map(|&at| SessionKey(at))
    }

    /// A new identifier that belongs to this shard, so that its socket need not move
    /// [MQTT-3.1.3-6]. Nobody can guess it, and so have a session ready under it.
    fn assign_client_id(&mut self) -> String {
        let [first, second] = self.fabric.secret;
        loop {
            let mut hasher = SipHasher24::new_with_keys(first, second);
            hasher.write_u64(self.number());
            let Hash128 { h1, h2 } = hasher.finish128();
            let id = format!("gearbox-{h1:016x}{h2:016x}");
            if self.owner_of(&id) == self.id && self.find_session(&id).is_none() {
                return id;
            }
        }
    }
}
