//! From bytes to decisions: framing, decoding, and the packets that need few words.

use bytes::{Bytes, BytesMut};
use mqtt::access::PasswordCheck;
use mqtt::protocol::Violation;
use mqtt::session::PubRecOutcome;
use mqtt::wire::{
    Ack, AckKind, DecodeError, Frame, Packet, PacketId, ReasonCode, Version, decode_from_client,
    encode, encode_ack, encode_pingresp, peek,
};

use super::buffers::READ_BUFFER_BYTES;
use super::close::Parting;
use super::conn::Phase;
use super::owed::{Afterwards, Wait};
use super::pressure::{Made, Pause};
use super::{
    ConnKey, ConnectStep, MAX_DRAINED_BYTES, Next, Received, Shard, auth, connect, mark_dirty,
};

/// What a packet leads to.
pub(super) enum Then {
    Continue,
    Handoff(u8),
    Verify(Box<PasswordCheck>),
}

/// See [`Shard::on_bytes`].
pub(super) fn on_bytes(
    shard: &mut Shard,
    key: ConnKey,
    read: usize,
    mut buffer: BytesMut,
    now_ms: u64,
) -> Received {
    let mut used = 0;
    let mut next = None;
    let mut handled = 0;
    let (mail_before, recorded_before) = (shard.mail_sent, shard.recorded_activity());
    while let Some(conn) = shard.conns.get_mut(key.0 as usize) {
        if conn.phase == Phase::Closing {
            conn.drained_bytes = conn.drained_bytes.saturating_add(read as u32);
            if conn.drained_bytes > MAX_DRAINED_BYTES {
                shard.kills.push(key);
            }
            used = buffer.len();
            next = Some(Next::Drain);
            break;
        }
        if let Some(commit) = shard.take_commit(&buffer[used..]) {
            next = Some(Next::Commit(commit)); // what follows waits for it
            break;
        }
        if shard.turn_is_over(handled) {
            next = Some(Next::Again);
            break;
        }
        handled += 1;
        let Some(conn) = shard.conns.get_mut(key.0 as usize) else { break };
        let version = conn.version;
        let max_bytes = match conn.phase {
            Phase::Handshake | Phase::Authenticating => shard.limits.max_connect_size_bytes,
            _ => shard.limits.max_packet_size_bytes,
        };
        let total = match peek(&buffer[used..], max_bytes) {
            Ok(Frame::Complete { total_bytes, .. }) => total_bytes,
            Ok(Frame::NeedMore | Frame::Partial { .. }) => {
                conn.progress(read, now_ms);
                break;
            }
            Err(error) => {
                malformed(shard, key, error, now_ms);
                continue;
            }
        };
        conn.sign_of_life(now_ms);
        if conn.phase == Phase::Handshake {
            shard.step(key, ConnectStep::GetCluster);
        }
        // A block that is mostly this packet can be kept with it, and its payload shared without
        // copying. In a larger one a small payload would hold on to what others left there.
        let own_block = total > READ_BUFFER_BYTES && total >= buffer.capacity() / 2;
        let frame = own_block.then(|| {
            let _ = buffer.split_to(used);
            used = 0;
            buffer.split_to(total).freeze()
        });
        let bytes = frame.as_deref().unwrap_or(&buffer[used..]);
        let bytes = &bytes[..total];
        let result = decode_from_client(bytes, version)
            .map(|packet| on_packet(shard, key, packet, bytes, frame.as_ref(), now_ms));
        let done = if own_block { 0 } else { total };
        match result {
            Ok(Ok(Then::Continue)) => used += done,
            Ok(Ok(Then::Verify(check))) => {
                used += done;
                next = Some(Next::Verify(check));
                break; // what follows waits for the result
            }
            Ok(Ok(Then::Handoff(owner))) => {
                let mut handoff = BytesMut::from(frame.as_deref().unwrap_or_default());
                handoff.extend_from_slice(&buffer[used..]);
                return Received { next: Next::Handoff(owner), handoff };
            }
            Ok(Err(violation)) => shard.violate(key, &violation, now_ms),
            Err(error) => malformed(shard, key, error, now_ms),
        }
    }
    if let Some(commit) = shard.take_commit(&[]) {
        next = Some(Next::Commit(commit));
    }
    if let Some(Next::Commit(_)) = next
        && let Some(conn) = shard.conn(key)
    {
        conn.pause = Some(Pause::Commit); // its client may not be silent, but is not heard
    }
    shard.keep_rest(key, buffer, used);
    shard.settle(now_ms);
    let recorded = shard.recorded_activity();
    let made = Made {
        mail: shard.mail_sent != mail_before,
        records: recorded.0 != recorded_before.0,
        owed: recorded.1 != recorded_before.1,
    };
    let next = match next {
        None => shard.after_turn(key, read, made),
        Some(Next::Again) => match shard.after_turn(key, read, made) {
            Next::Read => Next::Again,
            stop => stop,
        },
        Some(next) => next,
    };
    Received { next, handoff: BytesMut::new() }
}

fn on_packet(
    shard: &mut Shard,
    key: ConnKey,
    packet: Packet<'_>,
    raw: &[u8],
    frame: Option<&Bytes>,
    now_ms: u64,
) -> Result<Then, Violation> {
    let Some(conn) = shard.conn(key) else { return Ok(Then::Continue) };
    match (conn.phase, &packet) {
        (Phase::Handshake, Packet::Connect(request)) => {
            return connect::on_connect(shard, key, request, raw, now_ms);
        }
        // [MQTT-3.1.0-1]
        (Phase::Handshake, _) => {
            return Err(Violation::new(ReasonCode::ProtocolError, "first packet is not CONNECT"));
        }
        // [MQTT-3.1.2-30]
        (Phase::Authenticating, packet)
            if !matches!(packet, Packet::Auth(_) | Packet::Disconnect(_)) =>
        {
            return Err(Violation::new(ReasonCode::ProtocolError, "packet before CONNACK"));
        }
        // [MQTT-3.1.0-2]
        (_, Packet::Connect(_)) => {
            return Err(Violation::new(ReasonCode::ProtocolError, "second CONNECT"));
        }
        (_, Packet::Publish(_)) => {}
        _ => shard.stats.other_packets_received.add(1),
    }
    match packet {
        Packet::Publish(publish) => shard.on_publish(key, &publish, frame, now_ms)?,
        Packet::Ack(ack) => on_ack(shard, key, &ack, now_ms),
        Packet::Subscribe(subscribe) => shard.on_subscribe(key, &subscribe, now_ms)?,
        Packet::Unsubscribe(unsubscribe) => shard.on_unsubscribe(key, &unsubscribe, now_ms),
        Packet::PingReq => {
            let block = shard.reply(key);
            if let Some(block) = block {
                encode_pingresp(block);
            }
        }
        Packet::Disconnect(disconnect) => on_disconnect(shard, key, &disconnect, now_ms)?,
        Packet::Auth(step) => auth::on_auth(shard, key, &step, now_ms)?,
        Packet::Connect(_)
        | Packet::ConnAck(_)
        | Packet::SubAck(_)
        | Packet::UnsubAck(_)
        | Packet::PingResp => {
            return Err(Violation::new(
                ReasonCode::ProtocolError,
                "packet is the server's to send",
            ));
        }
    }
    Ok(Then::Continue)
}

fn on_ack(shard: &mut Shard, key: ConnKey, ack: &Ack<'_>, now_ms: u64) {
    let Some(conn) = shard.conns.get_mut(key.0 as usize) else { return };
    let session_key = conn.session;
    let Some(entry) = shard.sessions.get_mut(session_key.0 as usize) else { return };
    let id = ack.packet_id;
    match ack.kind {
        AckKind::PubRel => {
            let place = entry.session.incoming.release(id);
            let known = place.is_some();
            if let Some(conn) = shard.conns.get_mut(key.0 as usize) {
                conn.open_qos2 = conn.open_qos2.saturating_sub(known.into());
            }
            let reason =
                if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
            let wait = shard.record_released(session_key, id, place);
            shard.acknowledge_after(key, AckKind::PubComp, id, reason, wait, Afterwards::Nothing);
        }
        AckKind::PubAck | AckKind::PubRec | AckKind::PubComp => {
            let ended =
                shard.change_outgoing(session_key, now_ms, |outgoing, progress| match ack.kind {
                    AckKind::PubRec => outgoing.on_pubrec(id, ack.reason.is_error(), progress),
                    AckKind::PubComp => {
                        outgoing.on_pubcomp(id, progress);
                        PubRecOutcome::Over
                    }
                    _ => {
                        outgoing.on_puback(id, progress);
                        PubRecOutcome::Over
                    }
                });
            let unknown = ReasonCode::PacketIdentifierNotFound;
            let release = match ended {
                // The client forgets the identifier at PUBREL, and a PUBLISH that came again after a
                // crash would be a new message: it leaves when the PUBREC is on the disk.
                Some(PubRecOutcome::Release) => {
                    Some((ReasonCode::Success, shard.wait_for_received(session_key)))
                }
                Some(PubRecOutcome::Unknown) => Some((unknown, Wait::default())),
                None if ack.kind == AckKind::PubRec => Some((unknown, Wait::default())),
                Some(PubRecOutcome::Over) | None => None,
            };
            if let Some((reason, wait)) = release {
                shard.acknowledge_after(
                    key,
                    AckKind::PubRel,
                    id,
                    reason,
                    wait,
                    Afterwards::Nothing,
                );
            }
            shard.pump_scans(session_key, now_ms);
        }
    }
}

fn on_disconnect(
    shard: &mut Shard,
    key: ConnKey,
    disconnect: &mqtt::wire::Disconnect<'_>,
    now_ms: u64,
) -> Result<(), Violation> {
    let Some(conn) = shard.conn(key) else { return Ok(()) };
    let session = conn.session;
    let max_expiry_s = shard.limits.max_session_expiry_s;
    if let Some(entry) = shard.sessions.get_mut(session.0 as usize)
        && let Some(expiry_s) = disconnect.properties.session_expiry_interval_s()
    {
        // A session that was to end with its connection cannot be kept by DISCONNECT
        // (3.14.2.2.2); the interval granted at CONNECT decides.
        if entry.session.expiry_interval_s == 0 && expiry_s != 0 {
            return Err(Violation::new(
                ReasonCode::ProtocolError,
                "session expiry was zero at CONNECT",
            ));
        }
        entry.session.expiry_interval_s = expiry_s.min(max_expiry_s);
    }
    // Only the normal reason discards the will [MQTT-3.14.4-3]; an error code publishes it.
    let parting = match disconnect.reason {
        ReasonCode::Success => Parting::Normal,
        _ => Parting::Lost,
    };
    shard.detach(key, parting, now_ms);
    shard.close(key, now_ms);
    Ok(())
}

fn malformed(shard: &mut Shard, key: ConnKey, error: DecodeError, now_ms: u64) {
    let before_connect = shard.conn(key).is_some_and(|conn| conn.phase == Phase::Handshake);
    if error == DecodeError::UnsupportedVersion && before_connect {
        connect::refuse_version(shard, key, now_ms);
        return;
    }
    let (client, clause) = (shard.client_of(key), error.clause());
    tracing::debug!(client, clause, %error, "malformed packet");
    shard.violate(key, &Violation::new(error.reason(), "malformed packet"), now_ms);
}

impl Shard {
    /// The block to encode one answer into; marks the connection as having something to write.
    pub(super) fn reply(&mut self, key: ConnKey) -> Option<&mut Vec<u8>> {
        let conn = self.conns.get_mut(key.0 as usize)?;
        self.stats.other_packets_sent.add(1);
        mark_dirty(&mut self.dirty, key, conn);
        Some(conn.outbox.block(&mut self.blocks))
    }

    /// Sends an answer that must not be left out. A client that does not take packets of its size
    /// cannot be served [MQTT-3.1.2-24].
    pub(super) fn answer(&mut self, key: ConnKey, packet: &Packet<'_>, now_ms: u64) {
        let Some(conn) = self.conn(key) else { return };
        let (version, max_bytes) = (conn.version, conn.max_packet_size_bytes as usize);
        let Some(block) = self.reply(key) else { return };
        let start = block.len();
        encode(packet, version, block);
        if block.len() - start > max_bytes {
            block.truncate(start);
            let text = "an answer is larger than the client takes";
            self.violate(key, &Violation::new(ReasonCode::PacketTooLarge, text), now_ms);
        }
    }

    pub(super) fn acknowledge(
        &mut self,
        key: ConnKey,
        kind: AckKind,
        id: PacketId,
        reason: ReasonCode,
    ) {
        let version = self.conn(key).map_or(Version::V5, |conn| conn.version);
        if let Some(block) = self.reply(key) {
            encode_ack(block, version, kind, id, reason);
        }
    }

    /// The client identifier, for logs.
    pub(super) fn client_of(&self, key: ConnKey) -> &str {
        let session = self.conns.get(key.0 as usize).map(|conn| conn.session);
        session
            .and_then(|session| self.sessions.get(session.0 as usize))
            .map_or("", |entry| &entry.session.client_id)
    }
}
