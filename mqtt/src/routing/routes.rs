//! Routes as an immutable value: from filter to the shards that have a subscriber for it.
//!
//! A persistent structure: a [`Routes`] is cloned by copying a few pointers, and a change to the
//! clone copies only the nodes on the way to the changed filter. The caller keeps the current
//! snapshot in an atomic pointer; one writer at a time clones, changes and swaps. A reader does
//! what a reader of an immutable value does, whatever the writer is at. It takes filters of any
//! shape and depth, but each match walks trees whose every step waits for memory: so
//! [`super::SharedRoutes`] keeps here only what its table cannot hold.
//!
//! A clone that is changed many times before it is shared pays for each copied node once: a
//! writer with several changes at hand makes them all to one clone.

use std::sync::Arc;

use super::dest::{Destinations, Matched, ShardSet, ShareGroup};
use super::hamt::Hamt;
use super::hash::SeededHash;
use super::trie::TrieNode;
use crate::topic::has_wildcards;

/// A map from topic filter to [`Destinations`]; cheap to clone.
///
/// The shards count: a shard calls [`add`](Self::add) when it gets its first subscriber of a
/// filter and [`remove`](Self::remove) when it loses the last, and for share groups reports its
/// number of members whenever that changes. All three say what is, not what changes, so that
/// saying it twice does no harm.
#[derive(Clone, Debug)]
pub struct Routes {
    hasher: SeededHash,
    exact: Hamt<Destinations>,
    wild: Arc<TrieNode>,
    filters: usize,
    wild_filters: usize,
}

impl Routes {
    /// No routes; `seed` seeds the hashes.
    pub fn new(seed: u64) -> Self {
        Self {
            hasher: SeededHash::new(seed),
            exact: Hamt::default(),
            wild: Arc::default(),
            filters: 0,
            wild_filters: 0,
        }
    }

    /// Number of filters that lead anywhere.
    pub fn len(&self) -> usize {
        self.filters
    }

    /// Whether there is no filter.
    pub fn is_empty(&self) -> bool {
        self.filters == 0
    }

    /// Fills `into`, whatever it held before, with all that the topic name `topic` leads to.
    pub fn matches(&self, topic: &str, into: &mut Matched) {
        into.clear();
        self.add_matches(topic, into);
    }

    /// Adds all that the topic name leads to.
    pub(super) fn add_matches(&self, topic: &str, into: &mut Matched) {
        if let Some(found) = self.exact.get(self.hasher.of(topic), topic) {
            into.add(found);
        }
        if self.wild_filters > 0 {
            self.wild.matches(topic, &self.hasher, |found| into.add(found));
        }
    }

    /// What exactly this filter leads to.
    pub fn get(&self, filter: &str) -> Option<&Destinations> {
        if has_wildcards(filter) {
            return self.wild.get(filter, &self.hasher);
        }
        self.exact.get(self.hasher.of(filter), filter)
    }

    /// Says that `shard` has a plain subscription to `filter`; returns whether that is new.
    /// Numbers of [`super::MAX_SHARDS`] and above are ignored.
    pub fn add(&mut self, filter: &str, shard: u8) -> bool {
        let before = self.get(filter).map_or(ShardSet::EMPTY, Destinations::shards);
        if before.union(ShardSet::only(shard)) == before {
            return false;
        }
        self.get_mut(filter).shards_mut().insert(shard)
    }

    /// Says that `shard` has no plain subscription to `filter`; returns whether that is new.
    pub fn remove(&mut self, filter: &str, shard: u8) -> bool {
        let Some(found) = self.get(filter) else { return false };
        if !found.shards().contains(shard) {
            return false;
        }
        if found.groups().is_empty() && found.shards().len() == 1 {
            self.forget(filter);
            return true;
        }
        self.get_mut(filter).shards_mut().remove(shard)
    }

    /// Says that `shard` has `members` members of the share group `name` of `filter` (given
    /// without `$share/NAME/`); returns whether that is new.
    pub fn set_group(&mut self, filter: &str, name: &str, shard: u8, members: u32) -> bool {
        let found = self.get(filter);
        let group = found.and_then(|found| found.group(name));
        let before = group.map_or(0, |group| group.members_in(shard));
        if before == members || ShardSet::only(shard).is_empty() {
            return false;
        }
        let new = match group {
            Some(group) => group.with_members(shard, members),
            None => ShareGroup::new(filter, name).with_members(shard, members),
        };
        let is_last = found.is_some_and(|d| d.shards().is_empty() && d.groups().len() == 1);
        if new.members().is_empty() && is_last {
            self.forget(filter);
        } else {
            self.get_mut(filter).set_group(new);
        }
        true
    }

    /// [`add`](Self::add) to a clone.
    #[must_use]
    pub fn with_subscriber(&self, filter: &str, shard: u8) -> Self {
        let mut changed = self.clone();
        changed.add(filter, shard);
        changed
    }

    /// [`remove`](Self::remove) from a clone.
    #[must_use]
    pub fn without_subscriber(&self, filter: &str, shard: u8) -> Self {
        let mut changed = self.clone();
        changed.remove(filter, shard);
        changed
    }

    /// Whether no branch is left over.
    #[cfg(test)]
    pub(super) fn is_pruned(&self) -> bool {
        self.exact.is_empty() && !self.wild.has_children()
    }

    /// The place of a filter that is about to lead somewhere.
    fn get_mut(&mut self, filter: &str) -> &mut Destinations {
        let found = if has_wildcards(filter) {
            let found = Arc::make_mut(&mut self.wild).get_mut(filter, &self.hasher);
            self.wild_filters += usize::from(found.is_empty());
            found
        } else {
            self.exact.entry(self.hasher.of(filter), filter)
        };
        self.filters += usize::from(found.is_empty());
        found
    }

    /// Takes out a filter that is there.
    fn forget(&mut self, filter: &str) {
        self.filters -= 1;
        if has_wildcards(filter) {
            self.wild_filters -= 1;
            Arc::make_mut(&mut self.wild).remove(filter, &self.hasher);
        } else {
            self.exact.remove(self.hasher.of(filter), filter);
        }
    }
}
