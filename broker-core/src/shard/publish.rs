//! One publish, from the packet to every session that gets it.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use mqtt::protocol::Violation;
use mqtt::routing::ShareGroup;
use mqtt::session::{Delivery, Draft, Message, Queued};
use mqtt::topic;
use mqtt::wire::{AckKind, Properties, Publish, QoS, ReasonCode, Version};
use smallvec::SmallVec;

use super::owed::{Afterwards, Wait};
use super::send::{Frames, send_qos0};
use super::share::Group;
use super::subscribers::Subscriber;
use super::{ConnKey, Remote, Shard, Target, mark_dirty};
use crate::messages::MailKind;

/// One shard that a publish goes to.
struct Hop {
    shard: u8,
    plain: bool,
    groups: SmallVec<[Arc<ShareGroup>; 1]>,
}

/// What a publish with the retain flag does to the retained message of its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retaining {
    /// It becomes the retained one.
    Now,
    /// Nothing: the metadata has set it, in the order that all nodes agree on, or could not.
    Elsewhere,
}

/// The share groups that a publish goes to on this shard.
pub(super) enum Groups<'a> {
    /// All that match: this is the only shard.
    All,
    /// Those that chose this shard.
    Chosen(&'a [Arc<ShareGroup>]),
}

impl Shard {
    pub(super) fn on_publish(
        &mut self,
        key: ConnKey,
        publish: &Publish<'_>,
        frame: Option<&Bytes>,
        now_ms: u64,
    ) -> Result<(), Violation> {
        self.stats.messages_received.add(1);
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return Ok(()) };
        let Some(entry) = self.sessions.get_mut(conn.session.0 as usize) else { return Ok(()) };
        let (session, origin) = (conn.session, entry.number);
        let topic: Cow<'_, str> = match publish.properties.topic_alias() {
            None => publish.topic.into(),
            alias => {
                let aliases = conn.aliases.get_or_insert_default();
                let maximum = self.limits.topic_alias_maximum;
                aliases.resolve(publish.topic, alias, maximum)?.to_owned().into()
            }
        };
        // Cheap before exact: a name shorter than the level limit cannot have too many levels.
        if (topic.len() >= self.topic_limits.max_levels
            || topic.len() > self.topic_limits.max_bytes)
            && topic::check_topic(&topic, &self.topic_limits).is_err()
        {
            return Err(Violation::new(ReasonCode::TopicNameInvalid, "topic name is not accepted"));
        }
        if publish.qos == QoS::ExactlyOnce
            && let Some(id) = publish.packet_id
        {
            let incoming = &mut entry.session.incoming;
            let owed = self.durability.as_ref().and_then(|it| it.commit.as_ref());
            if incoming.is_decided(id) || owed.is_some_and(|commit| commit.takes_exchange(id)) {
                // Answered again, delivered once [MQTT-4.3.3-10].
                let then = self.taken(session, id);
                let (wait, reason) = (self.wait_so_far(), ReasonCode::Success);
                self.acknowledge_in_turn(key, AckKind::PubRec, id, reason, wait, then);
                return Ok(());
            }
            if conn.open_qos2 >= self.limits.receive_maximum {
                return Err(Violation::new(
                    ReasonCode::ReceiveMaximumExceeded,
                    "more unacknowledged messages than the receive maximum",
                ));
            }
        }
        let (mut wait, mut then) = (Wait::default(), Afterwards::Nothing);
        let reason = if topic.starts_with("$SYS/") {
            ReasonCode::NotAuthorized // the server's own topics (4.7.2)
        } else if self.limits.check_payload_format
            && !is_as_announced(&publish.properties, publish.payload)
        {
            if publish.qos == QoS::AtMostOnce {
                // Without an acknowledgement there is no other way to say it (3.3.2.3.2, 4.13).
                return Err(UNLIKE_ANNOUNCED);
            }
            UNLIKE_ANNOUNCED.reason
        } else {
            let expires_at_ms = publish
                .properties
                .message_expiry_interval_s()
                .and_then(|left_s| NonZeroU64::new(now_ms + u64::from(left_s) * 1000));
            let properties: Cow<'_, [u8]> = match publish.properties.forwardable() {
                Some(all) => all.into(),
                None => {
                    let mut some = Vec::new();
                    publish.properties.copy_forwardable(&mut some);
                    some.into()
                }
            };
            let draft = Draft {
                topic: &topic,
                payload: publish.payload,
                owner: frame,
                properties: &properties,
                qos: publish.qos,
                retain: publish.retain,
                expires_at_ms,
                origin,
            };
            if publish.qos > QoS::AtMostOnce && self.has_no_room_for(&draft) {
                return self.refuse_publish(key, publish, now_ms);
            }
            if draft.retain && self.is_durable() && self.may_retain(&draft) {
                let trial = self.try_incoming(key, publish);
                let ack = match publish.qos {
                    QoS::AtMostOnce => None,
                    QoS::AtLeastOnce => publish.packet_id.map(|id| (AckKind::PubAck, id)),
                    QoS::ExactlyOnce => publish.packet_id.map(|id| (AckKind::PubRec, id)),
                };
                self.owe_publish((session, trial), &draft, ack, publish.dup);
                return Ok(());
            }
            let retaining = if self.is_durable() { Retaining::Elsewhere } else { Retaining::Now };
            let exchange = publish.packet_id.map(|id| (session, id, publish.dup));
            let any;
            (any, wait, then) = self.publish_for(key, exchange, &draft, retaining, now_ms);
            if any { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers }
        };
        let Some(id) = publish.packet_id else { return Ok(()) };
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => {
                self.acknowledge_in_turn(key, AckKind::PubAck, id, reason, wait, then);
            }
            QoS::ExactlyOnce => {
                // An error code ends the exchange [MQTT-4.3.3-9]; 3.x cannot be told one.
                let session =
                    self.conns.get(key.0 as usize).map(|conn| (conn.session, conn.version));
                if let Some((session, version)) = session
                    && (!reason.is_error() || version != Version::V5)
                    && let Some(entry) = self.sessions.get_mut(session.0 as usize)
                {
                    entry.session.incoming.take(id);
                    if let Some(conn) = self.conns.get_mut(key.0 as usize) {
                        conn.open_qos2 = conn.open_qos2.saturating_add(1);
                    }
                }
                self.acknowledge_in_turn(key, AckKind::PubRec, id, reason, wait, then);
            }
        }
        Ok(())
    }

    /// Whether the limits leave room for a retained message. Without, it is delivered all the same,
    /// and the older one of its topic, not being the last any more, is to go.
    fn may_retain(&mut self, draft: &Draft<'_>) -> bool {
        if draft.payload.is_empty() {
            return true;
        }
        let size_bytes = draft.topic.len() + draft.properties.len() + draft.payload.len();
        let (has_room, is_there) = {
            let retained = self.fabric.retained.lock();
            (retained.has_room(draft.topic, size_bytes), retained.has(draft.topic))
        };
        if !has_room {
            self.stats.dropped_retained.add(1);
            if is_there {
                self.post_retain(&Draft { payload: &[], ..*draft });
            }
        }
        has_room
    }

    /// The exchange of a QoS 2 publish begins, if its commit says so: the number of the trial, 0 for
    /// other publishes.
    fn try_incoming(&mut self, key: ConnKey, publish: &Publish<'_>) -> u64 {
        let id = publish.packet_id.filter(|_| publish.qos == QoS::ExactlyOnce);
        let Some((id, conn)) = id.zip(self.conns.get_mut(key.0 as usize)) else { return 0 };
        let Some(entry) = self.sessions.get_mut(conn.session.0 as usize) else { return 0 };
        conn.open_qos2 = conn.open_qos2.saturating_add(1);
        entry.session.incoming.try_take(id)
    }

    /// Retains if asked to, and delivers to all that want it; whether anybody did.
    pub(super) fn publish(&mut self, draft: &Draft<'_>, now_ms: u64) -> bool {
        self.publish_as(draft, Retaining::Now, now_ms)
    }

    /// [`Shard::publish`] for a message whose retaining is decided.
    pub(super) fn publish_as(
        &mut self,
        draft: &Draft<'_>,
        retaining: Retaining,
        now_ms: u64,
    ) -> bool {
        let mut kept = None;
        let many = self.fabric.shards() > 1;
        if draft.retain {
            let message = Arc::new(Message::keep(draft));
            let mut retained = self.fabric.retained.lock();
            if retaining == Retaining::Elsewhere {
                // A subscriber of this moment may get it both as retained and live, never neither.
            } else if draft.payload.is_empty() {
                retained.clear(draft.topic); // [MQTT-3.3.1-6]
            } else if !retained.set(message.clone()) {
                self.stats.dropped_retained.add(1);
            }
            if many {
                // Under the lock: see the head of `retained`.
                self.fabric.routes.matches(draft.topic, &mut self.scratch.matched);
            }
            kept = Some(message);
        } else if many {
            self.fabric.routes.matches(draft.topic, &mut self.scratch.matched);
        }
        if !many {
            return self.deliver(draft, &mut kept, true, &Groups::All, now_ms);
        }
        let mut matched = std::mem::take(&mut self.scratch.matched);
        let any = !matched.is_empty();
        let point = self.share_point(draft);
        let plain = |shard| Hop { shard, plain: true, groups: SmallVec::new() };
        let mut hops: SmallVec<[Hop; 4]> = matched.shards.iter().map(plain).collect();
        for group in matched.groups.drain(..) {
            let Some(shard) = self.share_shard(&group, point) else { continue };
            match hops.iter_mut().find(|hop| hop.shard == shard) {
                Some(hop) => hop.groups.push(group),
                None => {
                    hops.push(Hop { shard, plain: false, groups: SmallVec::from_iter([group]) })
                }
            }
        }
        self.scratch.matched = matched;
        for Hop { shard, plain, groups } in hops {
            if shard == self.id {
                self.deliver(draft, &mut kept, plain, &Groups::Chosen(&groups), now_ms);
            } else {
                let message = kept.get_or_insert_with(|| Arc::new(Message::keep(draft))).clone();
                let mail = self.remote(shard, message, plain, groups);
                self.send_mail(shard, mail);
            }
        }
        any
    }

    /// Delivers to this shard's sessions. `kept` is the message once somebody needs it longer than
    /// this call.
    fn deliver(
        &mut self,
        draft: &Draft<'_>,
        kept: &mut Option<Arc<Message>>,
        plain: bool,
        groups: &Groups<'_>,
        now_ms: u64,
    ) -> bool {
        let mut targets = std::mem::take(&mut self.scratch.targets);
        let lists = self.collect(draft, plain, groups, &mut targets);
        let any = !targets.is_empty();
        match targets.as_slice() {
            [] => {}
            [one] => self.deliver_once(one, &[], draft, kept, None, now_ms),
            _ => {
                if lists > 1 {
                    // Stable, so that identifiers stay in the order of their filters.
                    targets
                        .sort_by_key(|target| (target.share.is_some(), target.subscriber.session));
                }
                let mut frames = std::mem::take(&mut self.scratch.frames);
                frames.clear();
                let mut rest = targets.as_slice();
                while let Some((first, _)) = rest.split_first() {
                    let same = if first.share.is_some() || lists == 1 {
                        1
                    } else {
                        let same = |target: &&Target| {
                            target.share.is_none()
                                && target.subscriber.session == first.subscriber.session
                        };
                        rest.iter().take_while(same).count()
                    };
                    let (these, others) = rest.split_at(same);
                    self.deliver_merged(these, draft, kept, &mut frames, now_ms);
                    rest = others;
                }
                self.scratch.frames = frames;
            }
        }
        targets.clear();
        self.scratch.targets = targets;
        any
    }

    /// Fills `targets`; returns how many lists they came from: entries of one list are distinct.
    pub(super) fn collect(
        &self,
        draft: &Draft<'_>,
        plain: bool,
        groups: &Groups<'_>,
        targets: &mut Vec<Target>,
    ) -> usize {
        let point = self.share_point(draft);
        let strategy = self.limits.shared_strategy;
        let pick = |group: &Group| {
            let member = group.pick(strategy, point, |key| self.standing(key))?;
            Some(Target { subscriber: member, share: Some(group.raw.clone()) })
        };
        let mut lists = 0;
        if plain || matches!(groups, Groups::All) {
            self.subscriptions.matches(draft.topic, |entry| {
                if plain && !entry.plain.is_empty() {
                    lists += 1;
                    let all = entry.plain.iter();
                    targets.extend(all.map(|&subscriber| Target { subscriber, share: None }));
                }
                if matches!(groups, Groups::All) {
                    for target in entry.groups.iter().filter_map(pick) {
                        lists += 1;
                        targets.push(target);
                    }
                }
            });
        }
        if let Groups::Chosen(groups) = groups {
            for group in *groups {
                let entry = self.subscriptions.get(group.filter());
                if let Some(target) = entry.and_then(|e| e.group(group.name())).and_then(pick) {
                    lists += 1;
                    targets.push(target);
                }
            }
        }
        lists
    }

    /// One delivery for all subscriptions of one session that match: the highest QoS
    /// [MQTT-3.3.4-2], all identifiers [MQTT-3.3.4-3], [MQTT-3.3.4-4].
    fn deliver_merged(
        &mut self,
        same: &[Target],
        draft: &Draft<'_>,
        kept: &mut Option<Arc<Message>>,
        frames: &mut Frames,
        now_ms: u64,
    ) {
        let [one] = same else {
            let own = self
                .sessions
                .get(same[0].subscriber.session.0 as usize)
                .is_some_and(|entry| entry.number == draft.origin);
            let mut wanted = same.iter().map(|t| t.subscriber).filter(|s| !(own && s.no_local()));
            let Some(first) = wanted.next() else { return };
            let mut options = first.options();
            let mut ids: SmallVec<[u32; 4]> = SmallVec::new();
            ids.extend((first.id > 0).then_some(first.id));
            for other in wanted {
                options.qos = options.qos.max(other.qos());
                options.retain_as_published |= other.retain_as_published();
                options.no_local &= other.no_local();
                ids.extend((other.id > 0).then_some(other.id));
            }
            let subscriber = Subscriber::new(first.session, &options, 0);
            let merged = Target { subscriber, share: None };
            self.deliver_once(&merged, &ids, draft, kept, Some(frames), now_ms);
            return;
        };
        self.deliver_once(one, &[], draft, kept, Some(frames), now_ms);
    }

    /// Delivers to the chosen member of one share group of this shard, if it has any.
    pub(super) fn deliver_shared(
        &mut self,
        filter: &str,
        name: &str,
        draft: &Draft<'_>,
        message: &Arc<Message>,
        now_ms: u64,
    ) {
        let (strategy, point) = (self.limits.shared_strategy, self.share_point(draft));
        let group = self.subscriptions.get(filter).and_then(|entry| entry.group(name));
        let target = group.and_then(|group| {
            let subscriber = group.pick(strategy, point, |key| self.standing(key))?;
            Some(Target { subscriber, share: Some(group.raw.clone()) })
        });
        if let Some(target) = target {
            self.deliver_once(&target, &[], draft, &mut Some(message.clone()), None, now_ms);
        }
    }

    fn deliver_once(
        &mut self,
        target: &Target,
        ids: &[u32],
        draft: &Draft<'_>,
        kept: &mut Option<Arc<Message>>,
        frames: Option<&mut Frames>,
        now_ms: u64,
    ) {
        let to = target.subscriber;
        let Some(entry) = self.sessions.get_mut(to.session.0 as usize) else { return };
        if to.no_local() && entry.number == draft.origin {
            return; // [MQTT-3.8.3-3]
        }
        if let Some(recording) = self.recording.as_mut()
            && recording.is_known(to.session, entry)
        {
            return;
        }
        let one_id = [to.id];
        let ids = if to.id > 0 { &one_id[..] } else { ids };
        let retain = draft.retain && to.retain_as_published(); // [MQTT-3.3.1-12], [MQTT-3.3.1-13]
        let qos = draft.qos.min(to.qos());
        if qos == QoS::AtMostOnce {
            // Not kept for absent clients.
            let Some(conn_key) = entry.conn else { return };
            let Some(conn) = self.conns.get_mut(conn_key.0 as usize) else { return };
            let max_outbox = self.limits.max_outbox_bytes;
            let sent = send_qos0(
                conn,
                draft,
                retain,
                ids,
                frames,
                now_ms,
                max_outbox,
                &mut self.blocks,
                &self.stats,
            );
            if sent {
                mark_dirty(&mut self.dirty, conn_key, conn);
            }
            return;
        }
        let message = kept.get_or_insert_with(|| Arc::new(Message::keep(draft))).clone();
        let share = target.share.clone();
        let delivery = Delivery { qos, retain, subscription_ids: ids.into(), share };
        self.deliver_queued(to.session, Queued::new(message, delivery), now_ms);
    }

    /// Closes connections whose queue overflowed, then posts mail.
    pub(super) fn settle(&mut self, now_ms: u64) {
        while let Some(key) = self.evictions.pop() {
            let full = Violation::new(ReasonCode::QuotaExceeded, "session queue is full");
            if self.expel(key, &full, now_ms) {
                self.stats.disconnected_queue_full.add(1);
            }
        }
        self.post_mail();
    }
}

/// A payload that is not of the format that its properties announce.
pub(super) const UNLIKE_ANNOUNCED: Violation =
    Violation::new(ReasonCode::PayloadFormatInvalid, "payload is not UTF-8 as announced");

/// Whether a payload, also a will's, is of the format that its properties announce: a receiver may
/// check it (3.3.2.3.2), so that its subscribers need not.
pub(super) fn is_as_announced(properties: &Properties<'_>, payload: &[u8]) -> bool {
    properties.payload_is_utf8() != Some(true) || std::str::from_utf8(payload).is_ok()
}

/// Delivers a publish that another shard routed here.
pub(super) fn deliver_remote(shard: &mut Shard, remote: &Remote, now_ms: u64) {
    let Remote { from, counted, level, origin, .. } = *remote;
    // What is sent on is waited for once: see `MailKind`.
    let tracked = counted.filter(|kind| *kind == MailKind::First).map(|_| MailKind::Forwarded);
    shard.begin_publish(level, origin, tracked);
    let draft = remote.message.draft();
    let mut kept = Some(remote.message.clone());
    let groups = Groups::Chosen(&remote.groups);
    shard.deliver(&draft, &mut kept, remote.plain, &groups, now_ms);
    for group in &remote.groups {
        let entry = shard.subscriptions.get(group.filter());
        if entry.and_then(|entry| entry.group(group.name())).is_none() {
            // Its last member here left while the mail was under way.
            shard.forward(group.filter(), group.name(), &draft, &remote.message, now_ms);
        }
    }
    let wait = shard.end_publish();
    if let (Some(recording), Some(kind)) = (shard.recording.as_mut(), counted) {
        recording.count_received(from, kind, wait);
    }
    shard.settle(now_ms);
}
