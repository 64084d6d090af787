//! The subscriptions of one session, found by filter however many there are.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::wire::SubscribeOptions;

/// One subscription of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The filter as the client wrote it.
    pub filter: Box<str>,
    /// Options.
    pub options: SubscribeOptions,
    /// Subscription identifier; 0 for none.
    pub id: u32,
}

/// A session's subscriptions, one per filter.
///
/// A few are a plain list; many are a sorted tree, or a client that has ten thousand would make
/// each SUBSCRIBE look at all of them. A tree, not a hash table: nobody can choose filters that
/// make it slow, and the order in which it lists them depends on the calls alone.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Few(Vec<Subscription>),
    #[allow(clippy::box_collection, reason = "keeps every session 8 bytes smaller")]
    Many(Box<BTreeSet<ByFilter>>),
}

/// Most subscriptions that are searched one by one.
const FEW: usize = 32;

impl Subscriptions {
    /// Number of subscriptions.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Few(list) => list.len(),
            Kind::Many(tree) => tree.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The subscription to exactly this filter.
    pub fn get(&self, filter: &str) -> Option<&Subscription> {
        match &self.0 {
            Kind::Few(list) => list.iter().find(|known| *known.filter == *filter),
            Kind::Many(tree) => tree.get(filter).map(|ByFilter(known)| known),
        }
    }

    /// All subscriptions: in the order of their making while they are few, then by filter.
    pub fn iter(&self) -> impl Iterator<Item = &Subscription> {
        let (few, many) = match &self.0 {
            Kind::Few(list) => (Some(list), None),
            Kind::Many(tree) => (None, Some(tree)),
        };
        let many = many.into_iter().flat_map(|tree| tree.iter()).map(|ByFilter(known)| known);
        few.into_iter().flatten().chain(many)
    }

    pub(super) fn replace(&mut self, new: Subscription) -> Option<Subscription> {
        let list = match &mut self.0 {
            Kind::Many(tree) => return tree.replace(ByFilter(new)).map(|ByFilter(old)| old),
            Kind::Few(list) => list,
        };
        if let Some(known) = list.iter_mut().find(|known| known.filter == new.filter) {
            return Some(std::mem::replace(known, new));
        }
        if list.capacity() == 0 {
            list.reserve_exact(1); // most sessions have one
        }
        list.push(new);
        if list.len() > FEW {
            let tree = std::mem::take(list).into_iter().map(ByFilter).collect();
            self.0 = Kind::Many(Box::new(tree));
        }
        None
    }

    pub(super) fn take(&mut self, filter: &str) -> Option<Subscription> {
        match &mut self.0 {
            Kind::Few(list) => {
                let at = list.iter().position(|known| *known.filter == *filter)?;
                Some(list.swap_remove(at))
            }
            Kind::Many(tree) => {
                let ByFilter(taken) = tree.take(filter)?;
                // Halfway down, so that one that comes and goes does not rebuild the tree.
                if tree.len() <= FEW / 2 {
                    let tree = std::mem::take(&mut **tree);
                    self.0 = Kind::Few(tree.into_iter().map(|ByFilter(known)| known).collect());
                }
                Some(taken)
            }
        }
    }
}

impl Default for Kind {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// A subscription that is compared by its filter alone.
#[derive(Clone, Debug)]
struct ByFilter(Subscription);

impl Borrow<str> for ByFilter {
    fn borrow(&self) -> &str {
        &self.0.filter
    }
}

impl PartialEq for ByFilter {
    fn eq(&self, other: &Self) -> bool {
        self.0.filter == other.0.filter
    }
}

impl Eq for ByFilter {}

impl PartialOrd for ByFilter {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByFilter {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.filter.cmp(&other.0.filter)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn subscription(number: u32, id: u32) -> Subscription {
        Subscription { filter: format!("a/{number}").into(), options: Default::default(), id }
    }

    #[test]
    fn the_list_and_the_tree_agree_with_a_map() {
        assert_eq!(size_of::<Subscriptions>(), size_of::<Vec<Subscription>>());
        let (mut all, mut model) = (Subscriptions::default(), BTreeMap::new());
        let check = |all: &Subscriptions, model: &BTreeMap<Box<str>, Subscription>| {
            let mut listed: Vec<_> = all.iter().cloned().collect();
            listed.sort_by(|a, b| a.filter.cmp(&b.filter));
            assert_eq!(listed, model.values().cloned().collect::<Vec<_>>());
            assert_eq!((all.len(), all.is_empty()), (model.len(), model.is_empty()));
        };
        for step in 0..400u32 {
            // Grows to about 90, then shrinks to none.
            let number = step * 37 % 101;
            if step < 200 && step % 7 != 0 {
                let new = subscription(number, step);
                let filter = new.filter.clone();
                assert_eq!(all.replace(new.clone()), model.insert(filter, new));
            } else {
                let filter = subscription(number, 0).filter;
                assert_eq!(all.get(&filter), model.get(&filter));
                assert_eq!(all.take(&filter), model.remove(&filter));
                assert_eq!(all.get(&filter), None);
            }
            check(&all, &model);
        }
        assert!(all.is_empty() && matches!(all.0, Kind::Few(_)));
    }
}
