//! Publishes that somebody is told about: what is promised, what waits for it, and what is refused
//! because the promise could not be kept.

use std::sync::Arc;

use mqtt::protocol::Violation;
use mqtt::routing::ShareGroup;
use mqtt::session::{Draft, Message};
use mqtt::wire::{AckKind, PacketId, Publish, QoS, ReasonCode, Version};
use smallvec::SmallVec;

use super::owed::{Afterwards, Wait};
use super::publish::{Groups, Retaining};
use super::{ConnKey, Mail, Remote, SessionKey, Shard};
use crate::config::Level;
use crate::messages::{MailKind, Origin};

impl Shard {
    /// Whether a message could not be recorded for somebody who is owed it: the disk is nearly full,
    /// or no segment can hold it.
    #[inline]
    pub(super) fn has_no_room_for(&mut self, draft: &Draft<'_>) -> bool {
        let Some(recording) = self.recording.as_ref() else { return false };
        let size_bytes = draft.topic.len() + draft.properties.len() + draft.payload.len();
        (recording.nearly_full || size_bytes > recording.node.max_message_bytes())
            && self.would_be_recorded(draft)
    }

    /// Whether a durable session is owed this message. Those of other shards are taken to be among
    /// the subscribers there.
    #[cold]
    fn would_be_recorded(&mut self, draft: &Draft<'_>) -> bool {
        let mut targets = std::mem::take(&mut self.scratch.targets);
        self.collect(draft, true, &Groups::All, &mut targets);
        let sessions = &self.sessions;
        let here = targets.drain(..).any(|target| {
            let to = target.subscriber;
            to.qos() > QoS::AtMostOnce
                && sessions.get(to.session.0 as usize).is_some_and(|entry| entry.generation > 0)
        });
        self.scratch.targets = targets;
        if here || self.fabric.shards() == 1 {
            return here;
        }
        let Some(recording) = self.recording.as_ref() else { return false };
        let matched = &mut self.scratch.matched;
        self.fabric.routes.matches(draft.topic, matched);
        let of_groups = matched.groups.iter().flat_map(|group| group.reachable());
        let mut shards = matched.shards.iter().chain(of_groups.map(|(shard, _)| shard));
        shards.any(|shard| shard != self.id && recording.node.has_sessions(shard))
    }

    /// A message that there is no room for: version 5 is told, 3.x has no way but the end.
    #[cold]
    pub(super) fn refuse_publish(
        &mut self,
        key: ConnKey,
        publish: &Publish<'_>,
        now_ms: u64,
    ) -> Result<(), Violation> {
        self.stats.refused_journal.add(1);
        let quota = ReasonCode::QuotaExceeded;
        let version = self.conn(key).map_or(Version::V5, |conn| conn.version);
        match publish.packet_id {
            Some(id) if version == Version::V5 => {
                let kind = match publish.qos {
                    QoS::ExactlyOnce => AckKind::PubRec,
                    _ => AckKind::PubAck,
                };
                let (over, then) = (Wait::default(), Afterwards::Nothing);
                self.acknowledge_in_turn(key, kind, id, quota, over, then);
            }
            _ => {
                self.expel(key, &Violation::new(quota, "the disk is nearly full"), now_ms);
            }
        }
        Ok(())
    }

    /// What is recorded when a QoS 2 publish of this session was taken.
    pub(super) fn taken(&self, session: SessionKey, id: PacketId) -> Afterwards {
        let entry = self.sessions.get(session.0 as usize);
        match entry.map_or(0, |entry| entry.generation) {
            0 => Afterwards::Nothing,
            generation => Afterwards::Taken(session, Origin { generation, id }),
        }
    }

    /// [`Shard::publish_as`] for a client that waits for it, by an exchange of its session that it
    /// said to repeat or not; what the acknowledgement waits for.
    pub(super) fn publish_for(
        &mut self,
        key: ConnKey,
        exchange: Option<(SessionKey, PacketId, bool)>,
        draft: &Draft<'_>,
        retaining: Retaining,
        now_ms: u64,
    ) -> (bool, Wait, Afterwards) {
        let recording = self.recording.as_ref().filter(|it| it.node.has_any_session());
        let (Some((session, id, dup)), Some(recording)) = (exchange, recording) else {
            return (
                self.publish_as(draft, retaining, now_ms),
                Wait::default(),
                Afterwards::Nothing,
            );
        };
        let listener = self.conns.get(key.0 as usize).map_or(Level::Disk, |conn| conn.level);
        let level = recording.node.level(listener, draft.topic);
        let then = match draft.qos == QoS::ExactlyOnce && level > Level::None {
            true => self.taken(session, id),
            false => Afterwards::Nothing,
        };
        let origin = match then {
            Afterwards::Taken(_, origin) => Some((origin, dup)),
            _ => None,
        };
        if let Some((origin, _)) = origin {
            self.begin_exchange(origin);
        }
        self.begin_publish(level, origin, Some(MailKind::First));
        let any = self.publish_as(draft, retaining, now_ms);
        (any, self.end_publish(), then)
    }

    pub(super) fn begin_publish(
        &mut self,
        level: Level,
        origin: Option<(Origin, bool)>,
        tracked: Option<MailKind>,
    ) {
        if let Some(recording) = self.recording.as_mut() {
            recording.begin_publish(level, origin, tracked);
        }
    }

    pub(super) fn end_publish(&mut self) -> Wait {
        let Self { recording: Some(recording), sessions, .. } = self else {
            return Wait::default();
        };
        recording.end_publish(sessions)
    }

    /// Mail with a publish, counted where its publisher waits for what is recorded there.
    pub(super) fn remote(
        &mut self,
        shard: u8,
        message: Arc<Message>,
        plain: bool,
        groups: SmallVec<[Arc<ShareGroup>; 1]>,
    ) -> Mail {
        let (mut counted, mut level, mut origin) = (None, Level::default(), None);
        if let Some(recording) = self.recording.as_mut() {
            if message.qos() > QoS::AtMostOnce {
                counted = recording.count_sent(shard);
            }
            (level, origin) = (recording.publish.level, recording.publish.origin);
        }
        Mail::Publish(Remote { message, plain, groups, from: self.id, counted, level, origin })
    }
}
