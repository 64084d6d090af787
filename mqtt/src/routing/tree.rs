//! One shard's filters: a map from filter to `T` that can be asked for a topic.
//!
//! One hash table leads to the filters: to those without wildcards, by far the most, under the
//! whole string, so that a topic finds its own with one lookup; to the others under their shape,
//! with one lookup per shape in use (see `shapes`). The filters themselves do not move when the
//! table grows, and it grows without a look at them. Only filters of shapes that found no place are in a
//! tree of levels, whose nodes lie in one arena and whose edges are in one hash table, so that a
//! deep branch costs neither stack nor a small map per node.

use std::borrow::Cow;

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::chunks::Slab;
use super::hash::{Level, SeededHash, fold, hashed_levels};
use super::shapes::{Shape, Shapes, hashes_for};
use super::text::Text;
use crate::topic::{has_wildcards, levels};

/// A map from topic filter to `T`, owned by one shard.
///
/// Filters must be well formed. The work that one topic can ask for grows with the number of
/// shapes in use, which is bounded, and with the number of filters of other shapes that agree
/// with it level by level.
#[derive(Debug)]
pub struct FilterTree<T> {
    hasher: SeededHash,
    flat: Flats<T>,
    /// Of the filters with wildcards in `flat`.
    shapes: Shapes,
    /// Filters with wildcards that are not in `flat`.
    wild: Arena<T>,
}

impl<T> FilterTree<T> {
    /// An empty map; `seed` seeds its hashes.
    pub fn new(seed: u64) -> Self {
        let hasher = SeededHash::new(seed);
        Self { hasher, flat: Flats::default(), shapes: Shapes::default(), wild: Arena::new() }
    }

    /// Number of filters.
    pub fn len(&self) -> usize {
        self.flat.index.len() + self.wild.filters
    }

    /// Whether there is no filter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of `filter`, which is put there first if it is missing.
    pub fn entry(&mut self, filter: &str) -> &mut T
    where
        T: Default,
    {
        let place = Place::of(filter, &self.hasher);
        let Self { hasher, flat, shapes, wild } = self;
        let hash = match place {
            Place::Exact(hash) => hash,
            Place::Deep => return wild.entry(filter, hasher),
            Place::Shaped(shape, hash) => {
                let is_flat = flat.find(hash, is(filter)).is_some();
                if !is_flat && (wild.has(filter, hasher) || shapes.admit(shape).is_none()) {
                    return wild.entry(filter, hasher);
                }
                hash
            }
        };
        flat.entry(hash, filter)
    }

    /// The value of exactly this filter.
    pub fn get(&self, filter: &str) -> Option<&T> {
        if let Some(hash) = Place::of(filter, &self.hasher).hash()
            && let Some(found) = self.flat.find(hash, is(filter))
        {
            return Some(&found.value);
        }
        let node = self.wild.find(filter, &self.hasher)?;
        self.wild.node(node).here.as_ref()
    }

    /// The value of exactly this filter, to be changed.
    pub fn get_mut(&mut self, filter: &str) -> Option<&mut T> {
        if let Some(hash) = Place::of(filter, &self.hasher).hash()
            && let Some(at) = self.flat.place(hash, is(filter))
        {
            return self.flat.entries.get_mut(at).map(|found| &mut found.value);
        }
        let node = self.wild.find(filter, &self.hasher)?;
        self.wild.node_mut(node).here.as_mut()
    }

    /// Takes a filter out, and the branches that led to nothing else.
    pub fn remove(&mut self, filter: &str) -> Option<T> {
        let place = Place::of(filter, &self.hasher);
        if let Some(hash) = place.hash()
            && let Some(removed) = self.flat.remove(hash, filter)
        {
            if let Place::Shaped(shape, _) = place {
                self.shapes.release(shape);
            }
            return Some(removed);
        }
        self.wild.remove(filter, &self.hasher)
    }

    /// Calls `found` for every filter that matches the topic name `topic`, in an order that
    /// depends on the calls before alone.
    pub fn matches<'s>(&'s self, topic: &str, mut found: impl FnMut(&'s T)) {
        // An empty table is not asked: the probe would still touch memory.
        if !self.flat.index.is_empty()
            && let Some(flat) = self.flat.find(self.hasher.of(topic), is(topic))
        {
            found(&flat.value);
        }
        if self.shapes.iter().len() == 0 && self.wild.filters == 0 {
            return;
        }
        let levels = hashed_levels(topic, &self.hasher);
        // All hashes first: then the lookups overlap, nothing between them but their misses.
        for (shape, hash) in hashes_for(self.shapes.iter(), topic, &levels) {
            if let Some(flat) = self.flat.find(hash, |text| shape.is(text, topic, &levels)) {
                found(&flat.value);
            }
        }
        if self.wild.filters > 0 {
            self.wild.matches(topic, &levels, found);
        }
    }

    /// All filters and values, sorted by filter. Gathers and sorts first: for listings, not for
    /// hot paths.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'_, str>, &T)> {
        let flat = self.flat.entries.iter();
        let flat = flat.map(|flat| (Cow::Borrowed(flat.filter.as_str()), &flat.value));
        let wild = (0..).zip(&self.wild.nodes).filter_map(|(at, node)| {
            let value = node.here.as_ref()?;
            Some((Cow::Owned(self.wild.filter_of(at)), value))
        });
        let mut all: Vec<_> = flat.chain(wild).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all.into_iter()
    }

    /// Whether no branch is left over.
    #[cfg(test)]
    pub(super) fn is_pruned(&self) -> bool {
        self.shapes.iter().len() == 0
            && self.wild.edges.is_empty()
            && self.wild.free.len() + 1 == self.wild.nodes.len()
    }
}

/// Where a filter belongs.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Into the table under this hash: it has no wildcards.
    Exact(u64),
    /// Into the table under this hash, if its shape finds a place.
    Shaped(Shape, u64),
    /// Into the tree.
    Deep,
}

impl Place {
    pub(super) fn of(filter: &str, hasher: &SeededHash) -> Self {
        if !has_wildcards(filter) {
            return Self::Exact(hasher.of(filter));
        }
        match Shape::of(filter) {
            Some(shape) => Self::Shaped(shape, shape.hash(filter, hasher)),
            None => Self::Deep,
        }
    }

    pub(super) fn hash(self) -> Option<u64> {
        match self {
            Self::Exact(hash) | Self::Shaped(_, hash) => Some(hash),
            Self::Deep => None,
        }
    }
}

/// The filters that the table leads to.
#[derive(Debug)]
struct Flats<T> {
    index: HashTable<Slot>,
    entries: Slab<Flat<T>>,
}

/// An entry of the table: half of a filter's hash, and where the filter is.
#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u32,
    at: u32,
}

/// A filter that the table leads to.
#[derive(Debug)]
struct Flat<T> {
    filter: Text,
    value: T,
}

impl<T> Default for Flats<T> {
    fn default() -> Self {
        Self { index: HashTable::new(), entries: Slab::default() }
    }
}

impl<T> Flats<T> {
    #[inline]
    fn place(&self, hash: u64, is: impl Fn(&[u8]) -> bool) -> Option<u32> {
        let tag = hash as u32;
        let flat = |at| self.entries.get(at);
        let is_it = |slot: &Slot| {
            slot.tag == tag && flat(slot.at).is_some_and(|flat| is(flat.filter.as_bytes()))
        };
        self.index.find(spread(tag), is_it).map(|slot| slot.at)
    }

    #[inline]
    fn find(&self, hash: u64, is: impl Fn(&[u8]) -> bool) -> Option<&Flat<T>> {
        self.entries.get(self.place(hash, is)?)
    }

    fn entry(&mut self, hash: u64, filter: &str) -> &mut T
    where
        T: Default,
    {
        let tag = hash as u32;
        let known = self.place(hash, is(filter));
        let (index, entries) = (&mut self.index, &mut self.entries);
        let mut insert = |entries: &mut Slab<Flat<T>>| {
            let new = Flat { filter: Text::new(filter), value: T::default() };
            let at = entries.insert(new).0;
            index.insert_unique(spread(tag), Slot { tag, at }, |slot| spread(slot.tag));
            at
        };
        let at = known.unwrap_or_else(|| insert(entries));
        &mut entries.get_mut(at).expect("the table leads to entries").value
    }

    fn remove(&mut self, hash: u64, filter: &str) -> Option<T> {
        let at = self.place(hash, is(filter))?;
        if let Ok(slot) = self.index.find_entry(spread(hash as u32), |slot| slot.at == at) {
            slot.remove();
        }
        Some(self.entries.remove(at)?.value)
    }
}

/// Whether a text is exactly this filter.
fn is(filter: &str) -> impl Fn(&[u8]) -> bool {
    move |text| text == filter.as_bytes()
}

/// A hash for the table again, which uses the highest and the lowest bits.
#[inline]
fn spread(tag: u32) -> u64 {
    fold(u64::from(tag) ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93)
}

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// Filters with wildcards, by their levels.
#[derive(Debug)]
struct Arena<T> {
    nodes: Vec<Node<T>>,
    /// From (parent, level text) to node, for all levels that are not wildcards.
    edges: HashTable<u32>,
    /// Nodes that may be used again.
    free: Vec<u32>,
    filters: usize,
}

/// The end of a filter's first few levels.
#[derive(Debug)]
struct Node<T> {
    parent: u32,
    /// Node of the same levels and `+`.
    plus: u32,
    /// Node of the same levels and `#`; it has no children.
    multi: u32,
    /// How many edges lead on from here.
    literals: u32,
    /// Empty for wildcards; what they are says the parent.
    level: Box<str>,
    /// The value, when a filter ends here.
    here: Option<T>,
}

impl<T> Node<T> {
    fn new(parent: u32, level: &str) -> Self {
        Self { parent, plus: NONE, multi: NONE, literals: 0, level: level.into(), here: None }
    }

    fn leads_nowhere(&self) -> bool {
        self.here.is_none() && self.plus == NONE && self.multi == NONE && self.literals == 0
    }
}

impl<T> Arena<T> {
    fn new() -> Self {
        let nodes = vec![Node::new(NONE, "")];
        Self { nodes, edges: HashTable::new(), free: Vec::new(), filters: 0 }
    }

    fn node(&self, at: u32) -> &Node<T> {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node<T> {
        &mut self.nodes[at as usize]
    }

    fn entry(&mut self, filter: &str, hasher: &SeededHash) -> &mut T
    where
        T: Default,
    {
        let mut at = ROOT;
        for level in levels(filter) {
            at = match self.child(at, level, hasher) {
                NONE => self.add_child(at, level, hasher),
                child => child,
            };
        }
        if self.node(at).here.is_none() {
            self.filters += 1;
        }
        self.node_mut(at).here.get_or_insert_default()
    }

    fn has(&self, filter: &str, hasher: &SeededHash) -> bool {
        self.find(filter, hasher).is_some_and(|at| self.node(at).here.is_some())
    }

    fn find(&self, filter: &str, hasher: &SeededHash) -> Option<u32> {
        if self.filters == 0 {
            return None;
        }
        let mut at = ROOT;
        for level in levels(filter) {
            at = self.child(at, level, hasher);
            if at == NONE {
                return None;
            }
        }
        Some(at)
    }

    fn remove(&mut self, filter: &str, hasher: &SeededHash) -> Option<T> {
        let mut at = self.find(filter, hasher)?;
        let value = self.node_mut(at).here.take()?;
        self.filters -= 1;
        while at != ROOT && self.node(at).leads_nowhere() {
            let parent = self.node(at).parent;
            let level = std::mem::take(&mut self.node_mut(at).level);
            let above = self.node_mut(parent);
            if above.plus == at {
                above.plus = NONE;
            } else if above.multi == at {
                above.multi = NONE;
            } else {
                above.literals -= 1;
                let hash = edge_hash(parent, hasher.of(&level));
                if let Ok(edge) = self.edges.find_entry(hash, |&edge| edge == at) {
                    edge.remove();
                }
            }
            self.free.push(at);
            at = parent;
        }
        Some(value)
    }

    fn matches<'s>(&'s self, topic: &str, levels: &[Level<'_>], mut found: impl FnMut(&'s T)) {
        // At most one node more than levels waits here: each step down adds two, takes one.
        let mut waiting = SmallVec::<[(u32, usize); 24]>::new();
        waiting.push((ROOT, 0));
        while let Some((at, depth)) = waiting.pop() {
            let node = self.node(at);
            // Wildcards in the first level pass over `$` topics [MQTT-4.7.2-1].
            let wildcards = depth > 0 || !topic.starts_with('$');
            if wildcards && node.multi != NONE {
                self.node(node.multi).here.iter().for_each(&mut found);
            }
            let Some(level) = levels.get(depth) else {
                node.here.iter().for_each(&mut found);
                continue;
            };
            if wildcards && node.plus != NONE {
                waiting.push((node.plus, depth + 1));
            }
            if node.literals > 0 {
                let child = self.literal(at, level.text, level.hash);
                if child != NONE {
                    waiting.push((child, depth + 1));
                }
            }
        }
    }

    fn child(&self, parent: u32, level: &str, hasher: &SeededHash) -> u32 {
        match level {
            "+" => self.node(parent).plus,
            "#" => self.node(parent).multi,
            _ => self.literal(parent, level, hasher.of(level)),
        }
    }

    fn literal(&self, parent: u32, level: &str, level_hash: u64) -> u32 {
        let is_it = |&edge: &u32| {
            let node = self.node(edge);
            node.parent == parent && *node.level == *level
        };
        self.edges.find(edge_hash(parent, level_hash), is_it).copied().unwrap_or(NONE)
    }

    fn add_child(&mut self, parent: u32, level: &str, hasher: &SeededHash) -> u32 {
        let wildcard = matches!(level, "+" | "#");
        let new = Node::new(parent, if wildcard { "" } else { level });
        let at = match self.free.pop() {
            Some(at) => {
                *self.node_mut(at) = new;
                at
            }
            None => {
                // More nodes than u32 counts do not fit into any memory of today.
                assert!(self.nodes.len() < NONE as usize, "too many filters");
                self.nodes.push(new);
                (self.nodes.len() - 1) as u32
            }
        };
        match level {
            "+" => self.node_mut(parent).plus = at,
            "#" => self.node_mut(parent).multi = at,
            _ => {
                self.node_mut(parent).literals += 1;
                let nodes = &self.nodes;
                let rehash = |&edge: &u32| {
                    let node = &nodes[edge as usize];
                    edge_hash(node.parent, hasher.of(&node.level))
                };
                self.edges.insert_unique(edge_hash(parent, hasher.of(level)), at, rehash);
            }
        }
        at
    }

    fn filter_of(&self, mut at: u32) -> String {
        let mut upwards = Vec::new();
        while at != ROOT {
            let node = self.node(at);
            let above = self.node(node.parent);
            upwards.push(match at {
                _ if above.plus == at => "+",
                _ if above.multi == at => "#",
                _ => &*node.level,
            });
            at = node.parent;
        }
        upwards.reverse();
        upwards.join("/")
    }
}

fn edge_hash(parent: u32, level_hash: u64) -> u64 {
    // The table uses the highest and the lowest bits: both must know of both parts.
    let mixed = (level_hash ^ u64::from(parent).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}
