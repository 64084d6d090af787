//! From a delivery to bytes in an outbox: at once for QoS 0, by queue and window for QoS 1 and 2.

use std::collections::VecDeque;

use mqtt::session::{
    Draft, Lifetime, Outgoing, Place, Progress, QueueBounds, Queued, Rejected, SHARE_PAYLOAD_BYTES,
    Step,
};
use mqtt::wire::{
    AckKind, MAX_PACKET_BYTES, PacketId, PublishHead, QoS, ReasonCode, Version, encode_ack,
    encode_publish_head, publish_size_bytes,
};

use super::conn::{Conn, Phase};
use super::held::Held;
use super::outbox::BlockPool;
use super::recording::Recording;
use super::{ConnKey, SessionKey, Shard, mark_dirty};
use crate::config::{Limits, QueueFull};
use crate::stats::ShardStats;

/// QoS 0 frames of the publish under way, by version and retain flag: encoded once, copied to
/// every further receiver.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    ranges: [Option<(usize, usize)>; 4],
}

impl Shard {
    /// Sends a QoS 1 or 2 message to a session's client, or puts it at the end of its queue, as its
    /// bounds allow.
    pub(super) fn deliver_queued(&mut self, key: SessionKey, mut queued: Queued, now_ms: u64) {
        let mark = self.begin_record(key, &mut queued);
        let Self { sessions, conns, blocks, dirty, stats, limits, bounds, evictions, .. } = self;
        let stored = stored(&self.recording);
        let progress = &mut self.scratch.progress;
        let Some(entry) = sessions.get_mut(key.0 as usize) else { return };
        let outgoing = entry.session.outgoing_mut();
        let before = Held::of(outgoing, limits);
        let conn_key = entry.conn;
        let conn = conn_key.and_then(|key| Some((key, conns.get_mut(key.0 as usize)?)));
        let qos = queued.delivery.qos;
        let mut way = Way { blocks, dirty, stats, limits, bounds, stored, progress, now_ms };
        let result = match conn {
            Some((conn_key, conn)) => way.send(conn_key, conn, outgoing, queued),
            None => outgoing.enqueue(queued, bounds, way.progress),
        };
        before.became(Held::of(outgoing, limits), stats);
        let sent = outgoing.inflight() > 0;
        let has_stored = outgoing.has_stored();
        if let Err(Rejected { dropped }) = result {
            stats.dropped_queue.add(dropped as u64);
            if limits.queue_full == QueueFull::Disconnect {
                evictions.extend(conn_key);
            }
        }
        if let Some(mark) = mark {
            self.end_record(key, mark, qos == QoS::ExactlyOnce && conn_key.is_some());
            if sent {
                self.note_sent(key);
            }
        }
        self.note_progress(key); // also of those before one that has no record
        if has_stored && conn_key.is_some() {
            self.want(key);
        }
    }

    /// Sends whatever the session's client can take now, its window and its socket permitting,
    /// retained messages that it is owed last.
    pub(super) fn pump(&mut self, key: SessionKey, now_ms: u64) {
        self.pump_window(key, now_ms);
        self.pump_scans(key, now_ms);
    }

    /// The retained messages' part of [`Shard::pump`].
    #[inline]
    pub(super) fn pump_scans(&mut self, key: SessionKey, now_ms: u64) {
        if self.sessions.get(key.0 as usize).is_some_and(|entry| !entry.scans.is_empty()) {
            self.continue_scans(key, now_ms);
        }
    }

    /// The queue's part of [`Shard::pump`].
    pub(super) fn pump_window(&mut self, key: SessionKey, now_ms: u64) {
        self.change_outgoing(key, now_ms, |_, _| ());
    }

    /// Changes what a session holds for its client, then sends what that lets through. `None` when
    /// it holds nothing.
    #[inline]
    pub(super) fn change_outgoing<T>(
        &mut self,
        key: SessionKey,
        now_ms: u64,
        change: impl FnOnce(&mut Outgoing, &mut Vec<Progress>) -> T,
    ) -> Option<T> {
        let Self { sessions, conns, blocks, dirty, stats, limits, bounds, .. } = self;
        let stored = stored(&self.recording);
        let progress = &mut self.scratch.progress;
        let entry = sessions.get_mut(key.0 as usize)?;
        let outgoing = entry.session.outgoing.as_mut()?;
        let before = Held::of(outgoing, limits);
        let changed = change(outgoing, progress);
        let is_durable = entry.generation > 0;
        if outgoing.owes()
            && let Some(conn_key) = entry.conn
            && let Some(conn) = conns.get_mut(conn_key.0 as usize)
        {
            let mut way = Way { blocks, dirty, stats, limits, bounds, stored, progress, now_ms };
            way.drain(conn_key, conn, outgoing);
        }
        before.became(Held::of(outgoing, limits), stats);
        let has_stored = outgoing.has_stored();
        if is_durable {
            self.note_sent(key);
        }
        self.note_progress(key);
        if has_stored {
            self.want(key);
        }
        Some(changed)
    }
}

/// Before which place all records are on the disk.
#[inline]
fn stored(recording: &Option<Box<Recording>>) -> Place {
    recording.as_ref().map_or(Place::PENDING, |recording| recording.stored)
}

/// What sending to a session's client takes from its shard.
struct Way<'a> {
    blocks: &'a mut BlockPool,
    dirty: &'a mut VecDeque<ConnKey>,
    stats: &'a ShardStats,
    limits: &'a Limits,
    bounds: &'a QueueBounds,
    stored: Place,
    progress: &'a mut Vec<Progress>,
    now_ms: u64,
}

impl Way<'_> {
    /// Sends a message at once, or queues it and sends what the window and the socket let through.
    #[inline]
    fn send(
        &mut self,
        key: ConnKey,
        conn: &mut Conn,
        outgoing: &mut Outgoing,
        queued: Queued,
    ) -> Result<(), Rejected> {
        let room = conn.outbox.len_bytes() < self.limits.max_outbox_bytes;
        let window = if room { conn.window } else { 0 };
        let sent = outgoing.send_at_once(queued, window, self.bounds, self.stored, self.now_ms);
        let queued = match sent {
            Ok(step) => {
                if let Some(id) = step.and_then(|step| self.write(key, conn, step)) {
                    outgoing.abandon(id, self.progress);
                }
                conn.note_slow(self.limits.max_outbox_bytes, self.stats);
                return Ok(());
            }
            Err(queued) => queued,
        };
        let result = outgoing.enqueue(queued, self.bounds, self.progress);
        self.drain(key, conn, outgoing);
        result
    }

    /// Sends what is owed, the window and the socket permitting.
    fn drain(&mut self, key: ConnKey, conn: &mut Conn, outgoing: &mut Outgoing) {
        let mut expired = 0;
        while conn.outbox.len_bytes() < self.limits.max_outbox_bytes {
            let step = outgoing.next_step(
                conn.window,
                self.bounds,
                self.stored,
                self.now_ms,
                &mut expired,
                self.progress,
            );
            let Some(step) = step else { break };
            if let Some(id) = self.write(key, conn, step) {
                outgoing.abandon(id, self.progress);
            }
        }
        self.stats.dropped_expired.add(expired);
        conn.note_slow(self.limits.max_outbox_bytes, self.stats);
    }

    /// Encodes a packet into the outbox; the identifier of a message that is too large for the
    /// client.
    #[inline]
    fn write(&mut self, key: ConnKey, conn: &mut Conn, step: Step<'_>) -> Option<PacketId> {
        mark_dirty(self.dirty, key, conn);
        match step {
            Step::Release(id) => {
                let block = conn.outbox.block(self.blocks);
                encode_ack(block, conn.version, AckKind::PubRel, id, ReasonCode::Success);
                self.stats.other_packets_sent.add(1);
            }
            Step::Publish { id, dup, queued } => {
                let draft = queued.message.draft();
                let head = PublishHead {
                    dup,
                    qos: queued.delivery.qos,
                    packet_id: Some(id),
                    subscription_ids: &queued.delivery.subscription_ids,
                    ..head(&draft, queued.delivery.retain, self.now_ms)
                };
                if !put_publish(conn, head, &draft, self.blocks) {
                    self.stats.dropped_too_large.add(1);
                    return Some(id);
                }
                self.stats.messages_sent.add(1);
            }
        }
        None
    }
}

/// Encodes a QoS 0 delivery into the outbox; false when it was dropped.
#[allow(clippy::too_many_arguments)] // disjoint parts of the shard, borrowed apart
pub(super) fn send_qos0(
    conn: &mut Conn,
    draft: &Draft<'_>,
    retain: bool,
    ids: &[u32],
    frames: Option<&mut Frames>,
    now_ms: u64,
    max_outbox_bytes: usize,
    blocks: &mut BlockPool,
    stats: &ShardStats,
) -> bool {
    if conn.phase != Phase::Open {
        return false;
    }
    if draft.lifetime(now_ms) == Lifetime::Expired {
        stats.dropped_expired.add(1);
        return false;
    }
    let waiting = conn.outbox.len_bytes();
    // A message larger than the bound passes when nothing else waits.
    if waiting > 0 && waiting + draft.payload.len() > max_outbox_bytes {
        stats.dropped_outbox.add(1);
        return false;
    }
    let head = PublishHead { subscription_ids: ids, ..head(draft, retain, now_ms) };
    let sent = match frames {
        Some(frames)
            if ids.is_empty()
                && draft.payload.len() < SHARE_PAYLOAD_BYTES
                && conn.own_aliases.is_none()
                && fits(conn, &head) =>
        {
            let frame = frames.get(conn.version, &head, draft.payload);
            conn.outbox.block(blocks).extend_from_slice(frame);
            true
        }
        _ => put_publish(conn, head, draft, blocks),
    };
    match sent {
        true => {
            stats.messages_sent.add(1);
            conn.note_slow(max_outbox_bytes, stats);
        }
        false => stats.dropped_too_large.add(1), // [MQTT-3.1.2-25]
    }
    sent
}

/// Encodes a PUBLISH into the outbox, by a topic alias where the client takes them; false when it
/// is larger than the client takes.
fn put_publish(
    conn: &mut Conn,
    head: PublishHead<'_>,
    draft: &Draft<'_>,
    blocks: &mut BlockPool,
) -> bool {
    let mut head = head;
    let known = conn.own_aliases.as_mut().and_then(|aliases| aliases.known(draft.topic));
    if let Some(alias) = known {
        head = PublishHead { topic: "", topic_alias: Some(alias), ..head };
    }
    if !fits(conn, &head) {
        return false;
    }
    if known.is_none() && conn.own_aliases.is_some() {
        // Defined only by a packet that is really sent, and only where its three bytes fit.
        let defining = PublishHead { topic_alias: Some(1), ..head };
        if fits(conn, &defining)
            && let Some(aliases) = conn.own_aliases.as_mut()
        {
            head.topic_alias = Some(aliases.define(draft.topic));
        }
    }
    conn.outbox.publish(conn.version, &head, draft, blocks);
    true
}

fn head<'a>(draft: &Draft<'a>, retain: bool, now_ms: u64) -> PublishHead<'a> {
    PublishHead {
        dup: false,
        qos: QoS::AtMostOnce,
        retain,
        topic: draft.topic,
        packet_id: None,
        message_expiry_s: match draft.lifetime(now_ms) {
            Lifetime::Unlimited => None,
            Lifetime::Seconds(left) => Some(left),
            // Owed although its time is over: it was sent before.
            Lifetime::Expired => Some(0),
        },
        topic_alias: None, // a publisher's alias is its own [MQTT-3.3.2-7]
        subscription_ids: &[],
        forwarded: draft.properties,
        payload_len: draft.payload.len(),
    }
}

/// Whether the client takes a packet of this size [MQTT-3.1.2-24].
fn fits(conn: &Conn, head: &PublishHead<'_>) -> bool {
    // Topic, properties and identifiers of a packet that came in fit the other half.
    (conn.max_packet_size_bytes == u32::MAX && head.payload_len < MAX_PACKET_BYTES / 2)
        || publish_size_bytes(conn.version, head)
            <= (conn.max_packet_size_bytes as usize).min(MAX_PACKET_BYTES)
}

impl Frames {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ranges = [None; 4];
    }

    fn get(&mut self, version: Version, head: &PublishHead<'_>, payload: &[u8]) -> &[u8] {
        // 3.1 and 3.1.1 encode a PUBLISH alike.
        let variant = usize::from(version == Version::V5) * 2 + usize::from(head.retain);
        let (from, to) = *self.ranges[variant].get_or_insert_with(|| {
            let from = self.bytes.len();
            encode_publish_head(&mut self.bytes, version, head);
            self.bytes.extend_from_slice(payload);
            (from, self.bytes.len())
        });
        &self.bytes[from..to]
    }
}
