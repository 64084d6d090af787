//! Share groups: which member of a shared subscription gets a message, and where its unsettled
//! messages go when it leaves.
//!
//! Over several shards the choice has two levels. Round-robin and the hashes choose the shard by
//! its number of members, sticky stays with one shard, and least-inflight takes turns among shards
//! and looks at loads only within one: loads of other shards are not known without asking.

use std::cell::Cell;
use std::sync::Arc;

use mqtt::routing::{ShardSet, ShareGroup};
use mqtt::session::{Draft, Message, Queued};
use mqtt::topic::parse_filter;
use mqtt::wire::QoS;
use smallvec::SmallVec;

use super::subscribers::{List, Subscriber};
use super::{SessionKey, Shard};
use crate::config::SharedStrategy;
use crate::messages::{Done, MailKind};

/// The members of one share group on this shard.
#[derive(Debug)]
pub struct Group {
    /// The share name.
    pub name: Box<str>,
    /// The subscription as clients wrote it: `$share/NAME/FILTER`.
    pub raw: Arc<str>,
    /// Its members here; never empty.
    pub members: List,
    /// How many of them are connected.
    pub connected: u32,
    /// Round-robin and least-inflight: messages so far. Sticky: the chosen session plus one.
    state: Cell<u32>,
}

/// What a choice looks at.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Whether a client is there: a message for an absent member waits while others could work.
    pub connected: bool,
    /// Messages sent and not acknowledged, and queued ones.
    pub load: usize,
    /// The session's number, which no other session has.
    pub number: u64,
}

impl Group {
    /// A group with its first member.
    pub fn new(name: &str, raw: &str, first: Subscriber) -> Self {
        let mut members = List::default();
        members.add(first);
        Self { name: name.into(), raw: raw.into(), members, connected: 0, state: Cell::new(0) }
    }

    /// The member that gets the next message; connected ones first. `point` is the hash that a
    /// hashing strategy goes by.
    pub fn pick(
        &self,
        strategy: SharedStrategy,
        point: u64,
        standing: impl Fn(SessionKey) -> Option<Standing>,
    ) -> Option<Subscriber> {
        let members = &*self.members;
        let connected = |member: &Subscriber| standing(member.session).is_some_and(|s| s.connected);
        match strategy {
            SharedStrategy::RoundRobin => {
                let mut order = self.turn();
                order.clone().find(|member| connected(member)).or_else(|| order.next())
            }
            SharedStrategy::LeastInflight => self
                .turn()
                .filter_map(|member| Some((standing(member.session)?, member)))
                // The first of equals, so that equals take turns.
                .min_by_key(|(standing, _)| (!standing.connected, standing.load))
                .map(|(_, member)| member),
            SharedStrategy::Sticky => {
                let chosen = self.state.get().checked_sub(1).map(SessionKey);
                let kept = members.iter().find(|m| Some(m.session) == chosen && connected(m));
                let member = kept.or_else(|| members.iter().find(|member| connected(member)));
                let member = *member.or_else(|| members.first())?;
                self.state.set(member.session.0 + 1);
                Some(member)
            }
            // Rendezvous hashing: a member that comes or goes moves only its own part.
            SharedStrategy::HashClient | SharedStrategy::HashTopic => members
                .iter()
                .filter_map(|member| Some((standing(member.session)?, *member)))
                .max_by_key(|(standing, _)| (standing.connected, mix(point, standing.number)))
                .map(|(_, member)| member),
        }
    }

    /// All members, beginning with the one whose turn it is.
    fn turn(&self) -> impl Iterator<Item = Subscriber> + Clone {
        let turn = self.state.get();
        self.state.set(turn.wrapping_add(1));
        let members = &*self.members;
        let start = turn as usize % members.len().max(1);
        members[start..].iter().chain(&members[..start]).copied()
    }
}

impl Shard {
    /// The client of a session came or went: its share groups, and other shards, are told.
    pub(super) fn presence_changed(&mut self, session: SessionKey, connected: bool) {
        let Some(entry) = self.sessions.get(session.0 as usize) else { return };
        if self.fabric.shards() == 1 || entry.shared == 0 {
            return; // nobody asks
        }
        let shared: Vec<Box<str>> = entry
            .session
            .subscriptions
            .iter()
            .filter(|subscription| subscription.filter.starts_with("$share/"))
            .map(|subscription| subscription.filter.clone())
            .collect();
        for raw in &shared {
            self.count_connected(raw, connected);
        }
    }

    /// One connected member more, or less, in a share group.
    pub(super) fn count_connected(&mut self, raw: &str, more: bool) {
        let Ok(parsed) = parse_filter(raw) else { return };
        let Some(name) = parsed.share.map(|name| name.as_str()) else { return };
        let entry = self.subscriptions.get_mut(parsed.filter);
        let Some(group) = entry.and_then(|entry| entry.group_mut(name)) else { return };
        group.connected = match more {
            true => group.connected + 1,
            false => group.connected.saturating_sub(1),
        };
        self.update_route(parsed.filter, Some(name));
    }

    /// What the hashing strategies go by for one message.
    pub(super) fn share_point(&self, draft: &Draft<'_>) -> u64 {
        match self.limits.shared_strategy {
            SharedStrategy::HashClient => mix(draft.origin, 0),
            SharedStrategy::HashTopic => self.hasher.of(draft.topic),
            _ => 0,
        }
    }

    /// The shard that a share group's next message goes to.
    pub(super) fn share_shard(&self, group: &ShareGroup, point: u64) -> Option<u8> {
        match self.limits.shared_strategy {
            SharedStrategy::RoundRobin | SharedStrategy::LeastInflight => {
                group.pick(ShardSet::EMPTY)
            }
            SharedStrategy::Sticky => group.reachable().next().map(|(shard, _)| shard),
            SharedStrategy::HashClient | SharedStrategy::HashTopic => group
                .reachable()
                .max_by_key(|(shard, _)| mix(point, u64::from(*shard) + 1))
                .map(|(shard, _)| shard),
        }
    }

    pub(super) fn standing(&self, key: SessionKey) -> Option<Standing> {
        let entry = self.sessions.get(key.0 as usize)?;
        let outgoing = entry.session.outgoing.as_ref();
        Some(Standing {
            connected: entry.conn.is_some(),
            load: outgoing.map_or(0, |out| out.inflight() + out.queued()),
            number: entry.number,
        })
    }

    /// Gives messages that a leaving member was owed to the other members of their groups. A group
    /// without any drops them. What was recorded for the session of this `generation` is so until
    /// the next one has it; a session that has ended has nothing recorded any more.
    pub(super) fn hand_on(&mut self, owed: Vec<Queued>, generation: u64, now_ms: u64) {
        for Queued { message, delivery, seq, place } in owed {
            let Some(raw) = &delivery.share else { continue };
            let Ok(parsed) = parse_filter(raw) else { continue };
            let Some(name) = parsed.share else { continue };
            let mut draft = message.draft();
            draft.qos = delivery.qos.max(QoS::AtLeastOnce);
            if let Some(recording) = self.recording.as_mut() {
                let level = recording.node.level(recording.node.default_level(), draft.topic);
                recording.begin_publish(level, None, Some(MailKind::First));
            }
            self.forward(parsed.filter, name.as_str(), &draft, &message, now_ms);
            let wait = self.end_publish();
            if place.is_recorded() && generation > 0 {
                self.done_after(Done { generation, seq }, place, wait);
            }
        }
    }

    /// Gives a message to a member of a share group, wherever one is.
    pub(super) fn forward(
        &mut self,
        filter: &str,
        name: &str,
        draft: &Draft<'_>,
        message: &Arc<Message>,
        now_ms: u64,
    ) {
        let shard = match self.fabric.shards() {
            1 => Some((self.id, None)),
            _ => self.fabric.routes.group(filter, name).and_then(|group| {
                Some((self.share_shard(&group, self.share_point(draft))?, Some(group)))
            }),
        };
        match shard {
            Some((shard, Some(group))) if shard != self.id => {
                let groups = SmallVec::from_iter([group]);
                let mail = self.remote(shard, message.clone(), false, groups);
                self.send_mail(shard, mail);
            }
            Some(_) => self.deliver_shared(filter, name, draft, message, now_ms),
            None => {}
        }
    }
}

/// Two numbers into one that neither can steer.
fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (x ^ (x >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt::wire::SubscribeOptions;

    fn group(members: u32) -> Group {
        let member =
            |session| Subscriber::new(SessionKey(session), &SubscribeOptions::default(), 0);
        let mut group = Group::new("g", "$share/g/t", member(0));
        for session in 1..members {
            group.members.add(member(session));
        }
        group
    }

    fn picks(group: &Group, strategy: SharedStrategy, absent: u32, points: u64) -> Vec<u32> {
        let standing = |key: SessionKey| {
            let (connected, load) = (key.0 != absent, key.0 as usize);
            Some(Standing { connected, load, number: u64::from(key.0) + 100 })
        };
        (0..points)
            .map(|point| group.pick(strategy, point, standing).expect("a member").session.0)
            .collect()
    }

    #[test]
    fn round_robin_takes_turns_and_passes_the_absent() {
        let group = group(3);
        assert_eq!(picks(&group, SharedStrategy::RoundRobin, 9, 4), [0, 1, 2, 0]);
        assert!(!picks(&group, SharedStrategy::RoundRobin, 1, 9).contains(&1));
    }

    #[test]
    fn least_inflight_looks_at_loads() {
        let group = group(3);
        assert_eq!(picks(&group, SharedStrategy::LeastInflight, 9, 3), [0, 0, 0]);
        assert_eq!(picks(&group, SharedStrategy::LeastInflight, 0, 3), [1, 1, 1]);
    }

    #[test]
    fn sticky_stays_until_its_member_is_gone() {
        let group = group(3);
        assert_eq!(picks(&group, SharedStrategy::Sticky, 0, 3), [1, 1, 1]);
        assert_eq!(picks(&group, SharedStrategy::Sticky, 9, 3), [1, 1, 1]);
        assert_eq!(picks(&group, SharedStrategy::Sticky, 1, 3), [0, 0, 0]);
    }

    #[test]
    fn hashing_is_stable_and_moves_little() {
        let group = group(4);
        let before = picks(&group, SharedStrategy::HashTopic, 9, 400);
        assert_eq!(before, picks(&group, SharedStrategy::HashTopic, 9, 400));
        for member in 0..4 {
            let share = before.iter().filter(|picked| **picked == member).count();
            assert!((50..150).contains(&share), "member {member} got {share} of 400");
        }
        let after = picks(&group, SharedStrategy::HashTopic, 2, 400);
        for (before, after) in before.iter().zip(&after) {
            assert!(before == after || *before == 2);
        }
    }

    #[test]
    fn all_absent_still_have_an_owner() {
        let group = group(1);
        for strategy in [
            SharedStrategy::RoundRobin,
            SharedStrategy::LeastInflight,
            SharedStrategy::Sticky,
            SharedStrategy::HashClient,
        ] {
            assert_eq!(picks(&group, strategy, 0, 1), [0]);
        }
    }
}
