//! Where a route leads: shards, and the share groups of [MQTT-4.8.2].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

/// Most shards (or nodes) that one set of routes can tell apart.
pub const MAX_SHARDS: usize = 64;

/// A set of shards, by their numbers 0 to 63.
///
/// Numbers of [`MAX_SHARDS`] and above are never in a set: configuration refuses so many shards
/// before any set is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardSet(u64);

impl ShardSet {
    /// No shard.
    pub const EMPTY: Self = Self(0);

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// A set of one shard.
    pub fn only(shard: u8) -> Self {
        Self(1u64.checked_shl(u32::from(shard)).unwrap_or(0))
    }

    /// Adds a shard; says whether the set changed.
    pub fn insert(&mut self, shard: u8) -> bool {
        let before = *self;
        *self = self.union(Self::only(shard));
        *self != before
    }

    /// Takes a shard out; says whether the set changed.
    pub fn remove(&mut self, shard: u8) -> bool {
        let before = *self;
        *self = self.minus(Self::only(shard));
        *self != before
    }

    /// Whether the shard is in the set.
    pub fn contains(self, shard: u8) -> bool {
        self.0 & Self::only(shard).0 != 0
    }

    /// The shards of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The shards of this set that are not in `other`.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Number of shards.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is no shard.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The shards in rising order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let lowest = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (lowest < u64::BITS).then_some(lowest as u8)
        })
    }
}

/// The members of one shared subscription, counted per shard.
///
/// A share name under two filters is two groups; each gets its own copy of a message that both
/// filters match.
#[derive(Debug)]
pub struct ShareGroup {
    filter: Arc<str>,
    name: Arc<str>,
    /// Rising by shard; no count is zero.
    members: SmallVec<[(u8, u32); 4]>,
    /// Whose turn it is. Outlives this value: the next snapshot's group goes on counting.
    turn: Arc<AtomicU32>,
}

impl ShareGroup {
    /// The count of a shard that has members of which none is connected.
    pub const ABSENT: u32 = u32::MAX;

    pub(super) fn new(filter: &str, name: &str) -> Self {
        Self {
            filter: filter.into(),
            name: name.into(),
            members: SmallVec::new(),
            turn: Arc::default(),
        }
    }

    /// The topic filter, without `$share/NAME/`.
    pub fn filter(&self) -> &Arc<str> {
        &self.filter
    }

    /// The share name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Shards and their numbers of connected members, or [`ShareGroup::ABSENT`], rising by shard;
    /// no number is zero.
    pub fn members(&self) -> &[(u8, u32)] {
        &self.members
    }

    /// Number of members in one shard.
    pub fn members_in(&self, shard: u8) -> u32 {
        self.members.iter().find(|m| m.0 == shard).map_or(0, |m| m.1)
    }

    /// The shards to choose from, with their weights: those with members that are there; all of
    /// them, with equal weights, when none is.
    pub fn reachable(&self) -> impl Iterator<Item = (u8, u32)> + Clone {
        let all_absent = self.members.iter().all(|m| m.1 == Self::ABSENT);
        self.members.iter().filter_map(move |&(shard, count)| match count {
            Self::ABSENT => all_absent.then_some((shard, 1)),
            count => Some((shard, count)),
        })
    }

    /// The shard that gets the next message: over many calls, from all shards together, each
    /// gets as large a share as it has members. Shards in `except` (full, or already tried) are
    /// passed over; `None` when no other is left.
    pub fn pick(&self, except: ShardSet) -> Option<u8> {
        let candidates = || self.reachable().filter(|m| !except.contains(m.0));
        let total: u64 = candidates().map(|m| u64::from(m.1)).sum();
        let mut turn = u64::from(self.turn.fetch_add(1, Ordering::Relaxed)).checked_rem(total)?;
        for (shard, count) in candidates() {
            match turn.checked_sub(u64::from(count)) {
                Some(later) => turn = later,
                None => return Some(shard),
            }
        }
        None
    }

    /// The same group with another number of members in one shard.
    pub(super) fn with_members(&self, shard: u8, count: u32) -> Self {
        let mut members = self.members.clone();
        match (members.binary_search_by_key(&shard, |m| m.0), count) {
            (Ok(at), 0) => drop(members.remove(at)),
            (Ok(at), _) => members[at].1 = count,
            (Err(_), 0) => {}
            (Err(at), _) => members.insert(at, (shard, count)),
        }
        Self {
            filter: self.filter.clone(),
            name: self.name.clone(),
            members,
            turn: self.turn.clone(),
        }
    }
}

/// What one filter leads to.
#[derive(Clone, Debug, Default)]
pub struct Destinations {
    shards: ShardSet,
    /// Sorted by name; never present and empty. Behind one thin pointer because most filters
    /// have no group, and this value is stored once per filter.
    groups: Option<Arc<Vec<Arc<ShareGroup>>>>,
}

impl Destinations {
    /// Shards with at least one plain (not shared) subscription.
    pub fn shards(&self) -> ShardSet {
        self.shards
    }

    /// The share groups, sorted by name.
    pub fn groups(&self) -> &[Arc<ShareGroup>] {
        self.groups.as_deref().map_or(&[], Vec::as_slice)
    }

    /// The share group of this name.
    pub fn group(&self, name: &str) -> Option<&Arc<ShareGroup>> {
        let groups = self.groups();
        groups.get(groups.binary_search_by(|g| (*g.name).cmp(name)).ok()?)
    }

    /// Whether the filter leads nowhere.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty() && self.groups.is_none()
    }

    /// Says that `shard` has `members` members of the group `name`; returns whether that is new.
    pub(super) fn set_members(
        &mut self,
        filter: &str,
        name: &str,
        shard: u8,
        members: u32,
    ) -> bool {
        let group = self.group(name);
        let before = group.map_or(0, |group| group.members_in(shard));
        if before == members || ShardSet::only(shard).is_empty() {
            return false;
        }
        let new = match group {
            Some(group) => group.with_members(shard, members),
            None => ShareGroup::new(filter, name).with_members(shard, members),
        };
        self.set_group(new);
        true
    }

    /// The same groups with other shards.
    pub(super) fn with_shards(mut self, shards: ShardSet) -> Self {
        self.shards = shards;
        self
    }

    pub(super) fn shards_mut(&mut self) -> &mut ShardSet {
        &mut self.shards
    }

    /// Puts `group` in the place of the one of the same name, or takes that one out when
    /// `group` has no members.
    pub(super) fn set_group(&mut self, group: ShareGroup) {
        let groups = Arc::make_mut(self.groups.get_or_insert_default());
        let place = groups.binary_search_by(|g| g.name.cmp(&group.name));
        match (place, group.members.is_empty()) {
            (Ok(at), true) => drop(groups.remove(at)),
            (Ok(at), false) => groups[at] = Arc::new(group),
            (Err(at), false) => groups.insert(at, Arc::new(group)),
            (Err(_), true) => {}
        }
        if groups.is_empty() {
            self.groups = None;
        }
    }
}

/// All that one topic leads to; made once and used again for every publish.
#[derive(Debug, Default)]
pub struct Matched {
    /// Shards with at least one plain subscription that matches.
    pub shards: ShardSet,
    /// Every share group that matches: ask each of them to [pick](ShareGroup::pick) one shard.
    pub groups: SmallVec<[Arc<ShareGroup>; 2]>,
}

impl Matched {
    /// Whether nobody wants the topic.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty() && self.groups.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.shards = ShardSet::EMPTY;
        self.groups.clear();
    }

    pub(super) fn add(&mut self, found: &Destinations) {
        self.shards = self.shards.union(found.shards);
        self.add_groups(found);
    }

    pub(super) fn add_groups(&mut self, found: &Destinations) {
        self.groups.extend(found.groups().iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_64_shards_and_no_more() {
        let mut set = ShardSet::EMPTY;
        assert!(set.insert(63) && set.insert(0) && !set.insert(0) && !set.insert(64));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63]);
        assert!(set.contains(63) && !set.contains(1) && !set.contains(64));
        assert!(set.remove(0) && !set.remove(0));
        assert_eq!((set.len(), set.is_empty()), (1, false));
        assert_eq!(ShardSet(u64::MAX).iter().count(), 64);
    }

    #[test]
    fn picks_follow_the_member_counts_and_go_on_after_a_change() {
        let group = ShareGroup::new("f", "g").with_members(3, 1).with_members(1, 3);
        let picked: Vec<_> = (0..8).filter_map(|_| group.pick(ShardSet::EMPTY)).collect();
        assert_eq!(picked, [1, 1, 1, 3, 1, 1, 1, 3]);
        assert_eq!(group.pick(ShardSet::only(1)), Some(3));
        assert_eq!(group.pick(ShardSet::only(1).union(ShardSet::only(3))), None);
        let turn = group.turn.load(Ordering::Relaxed);
        let less = group.with_members(1, 0);
        assert_eq!(less.members(), [(3, 1)]);
        assert_eq!(less.turn.load(Ordering::Relaxed), turn);
        assert_eq!((less.members_in(3), less.members_in(1)), (1, 0));
    }

    #[test]
    fn a_group_without_members_is_gone() {
        let mut dest = Destinations::default();
        for name in ["b", "a", "c"] {
            dest.set_group(ShareGroup::new("f", name).with_members(0, 1));
        }
        let names: Vec<_> = dest.groups().iter().map(|g| &**g.name()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        for name in ["a", "x", "b", "c"] {
            assert!(!dest.is_empty());
            dest.set_group(ShareGroup::new("f", name));
        }
        assert!(dest.is_empty() && dest.group("a").is_none());
    }
}
