//! The node's routes, read by every shard for every publish while any shard changes them.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use papaya::{Equivalent, HashMap};

use super::dest::{Destinations, Matched, ShareGroup};
use super::hash::{Level, SeededHash, hashed_levels};
use super::routes::Routes;
use super::shapes::{MAX_SHAPES, Shape, Shapes, hashes_for};
use super::tree::Place;

/// A map from topic filter to [`Destinations`] that all threads share.
///
/// [`matches`](Self::matches) takes no lock and never waits for a writer; writers wait for each
/// other. A change is seen by every match that starts after the changing call has returned. A
/// match that overlaps changes sees each of them or not; it is no snapshot, which MQTT does not
/// ask for.
///
/// The shards count: a shard calls [`add`](Self::add) when it gets its first subscriber of a
/// filter and [`remove`](Self::remove) when it loses the last, and for share groups reports its
/// number of members whenever that changes. All three say what is, not what changes, so that
/// saying it twice does no harm. Filters are well formed, without `$share/NAME/`.
#[derive(Debug)]
pub struct SharedRoutes {
    hasher: SeededHash,
    /// Filters without wildcards, and filters of the shapes below.
    flat: HashMap<Filter, Destinations, Kept>,
    /// The places of the writers' [`Shapes`], for readers. A shape does not move while any
    /// filter has it, so a reader that looks at one place after the other misses none.
    shapes: [AtomicU64; MAX_SHAPES],
    /// How many places readers look at.
    places: AtomicUsize,
    /// Filters of other shapes.
    rest: ArcSwap<Routes>,
    writer: Mutex<Shapes>,
}

/// What a shard says about one filter.
#[derive(Clone, Copy)]
enum Change<'a> {
    Add(u8),
    Remove(u8),
    Group { name: &'a str, shard: u8, members: u32 },
}

impl SharedRoutes {
    /// No routes yet; `seed` seeds their hashes.
    pub fn new(seed: u64) -> Self {
        Self {
            hasher: SeededHash::new(seed),
            flat: HashMap::with_hasher(Kept),
            shapes: [const { AtomicU64::new(0) }; MAX_SHAPES],
            places: AtomicUsize::new(0),
            rest: ArcSwap::from_pointee(Routes::new(seed)),
            writer: Mutex::default(),
        }
    }

    /// Number of filters that lead anywhere.
    pub fn len(&self) -> usize {
        self.flat.len() + self.rest.load().len()
    }

    /// Whether there is no filter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into`, whatever it held before, with all that the topic name `topic` leads to.
    pub fn matches(&self, topic: &str, into: &mut Matched) {
        into.clear();
        let flat = self.flat.pin();
        if let Some(found) = flat.get(&Exactly { hash: self.hasher.of(topic), filter: topic }) {
            into.add(found);
        }
        let places = self.places.load(Ordering::Acquire);
        if places > 0 {
            let levels = hashed_levels(topic, &self.hasher);
            // All hashes first: then the lookups overlap, nothing between them but their misses.
            let places = self.shapes[..places.min(MAX_SHAPES)].iter();
            let shapes = places.map(|place| Shape::from_bits(place.load(Ordering::Acquire)));
            for (shape, hash) in hashes_for(shapes, topic, &levels) {
                if let Some(found) = flat.get(&Under { hash, shape, topic, levels: &levels }) {
                    into.add(found);
                }
            }
        }
        let rest = self.rest.load();
        if !rest.is_empty() {
            rest.add_matches(topic, into);
        }
    }

    /// The share group `name` of exactly this filter.
    pub fn group(&self, filter: &str, name: &str) -> Option<Arc<ShareGroup>> {
        if let Some(hash) = Place::of(filter, &self.hasher).hash()
            && let Some(found) = self.flat.pin().get(&Exactly { hash, filter })
        {
            return found.group(name).cloned();
        }
        self.rest.load().get(filter)?.group(name).cloned()
    }

    /// Says that `shard` has a plain subscription to `filter`; returns whether that is new.
    /// Numbers of [`super::MAX_SHARDS`] and above are ignored.
    pub fn add(&self, filter: &str, shard: u8) -> bool {
        self.change(filter, Change::Add(shard))
    }

    /// Says that `shard` has no plain subscription to `filter`; returns whether that is new.
    pub fn remove(&self, filter: &str, shard: u8) -> bool {
        self.change(filter, Change::Remove(shard))
    }

    /// Says that `shard` has `members` members of the share group `name` of `filter`; returns
    /// whether that is new.
    pub fn set_group(&self, filter: &str, name: &str, shard: u8, members: u32) -> bool {
        self.change(filter, Change::Group { name, shard, members })
    }

    fn change(&self, filter: &str, change: Change<'_>) -> bool {
        let place = Place::of(filter, &self.hasher);
        let mut shapes = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hash) = place.hash() {
            let flat = self.flat.pin();
            let key = Exactly { hash, filter };
            let found = flat.get(&key);
            let mut new = found.cloned().unwrap_or_default();
            let is_flat = found.is_some()
                || match place {
                    Place::Shaped(..) => self.rest.load().get(filter).is_none(),
                    _ => true,
                };
            if is_flat && !change.apply(filter, &mut new) {
                return false;
            }
            if is_flat && new.is_empty() {
                flat.remove(&key);
                if let Place::Shaped(shape, _) = place {
                    self.release(&mut shapes, shape);
                }
                return true;
            }
            let has_place = is_flat
                && match place {
                    Place::Shaped(shape, _) if found.is_none() => self.admit(&mut shapes, shape),
                    _ => true,
                };
            if has_place {
                flat.insert(Filter { hash, text: Text::new(filter) }, new);
                return true;
            }
        }
        let mut rest = Routes::clone(&self.rest.load());
        if !change.apply_to_routes(filter, &mut rest) {
            return false;
        }
        let before = self.rest.swap(Arc::new(rest));
        drop(shapes);
        drop(before); // can be much to free: not while other writers wait
        true
    }

    fn admit(&self, shapes: &mut Shapes, shape: Shape) -> bool {
        let Some(at) = shapes.admit(shape) else { return false };
        self.shapes[at].store(shape.bits(), Ordering::Release);
        self.places.store(shapes.iter().len(), Ordering::Release);
        true
    }

    fn release(&self, shapes: &mut Shapes, shape: Shape) {
        if let Some(at) = shapes.release(shape) {
            self.shapes[at].store(Shape::NONE.bits(), Ordering::Release);
            self.places.store(shapes.iter().len(), Ordering::Release);
        }
    }

    /// Whether nothing is left over.
    #[cfg(test)]
    pub(super) fn is_pruned(&self) -> bool {
        let no_shape = self.shapes.iter().all(|shape| shape.load(Ordering::Relaxed) == 0);
        no_shape && self.places.load(Ordering::Relaxed) == 0 && self.rest.load().is_pruned()
    }
}

impl Change<'_> {
    fn apply(self, filter: &str, to: &mut Destinations) -> bool {
        match self {
            Self::Add(shard) => to.shards_mut().insert(shard),
            Self::Remove(shard) => to.shards_mut().remove(shard),
            Self::Group { name, shard, members } => to.set_members(filter, name, shard, members),
        }
    }

    fn apply_to_routes(self, filter: &str, to: &mut Routes) -> bool {
        match self {
            Self::Add(shard) => to.add(filter, shard),
            Self::Remove(shard) => to.remove(filter, shard),
            Self::Group { name, shard, members } => to.set_group(filter, name, shard, members),
        }
    }
}

/// A key of the table: a filter and its hash, which a growing table asks for again.
#[derive(Debug, PartialEq, Eq)]
struct Filter {
    hash: u64,
    text: Text,
}

/// The text of a filter. That of a usual filter lies in the table's entry itself: one wait for
/// memory less for each filter that matches, and no more bytes than a block of its own.
#[derive(Debug, PartialEq, Eq)]
enum Text {
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    Long(Box<[u8]>),
}

const SHORT_BYTES: usize = 46;

impl Text {
    fn new(filter: &str) -> Self {
        if filter.len() > SHORT_BYTES {
            return Self::Long(filter.as_bytes().into());
        }
        let mut bytes = [0; SHORT_BYTES];
        bytes[..filter.len()].copy_from_slice(filter.as_bytes());
        Self::Short { len: filter.len() as u8, bytes }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(long) => long,
        }
    }
}

/// Asks for exactly this filter.
struct Exactly<'a> {
    hash: u64,
    filter: &'a str,
}

/// Asks for the filter of this shape that matches a topic.
struct Under<'a> {
    hash: u64,
    shape: Shape,
    topic: &'a str,
    levels: &'a [Level<'a>],
}

impl Equivalent<Filter> for Exactly<'_> {
    fn equivalent(&self, key: &Filter) -> bool {
        key.hash == self.hash && key.text.as_bytes() == self.filter.as_bytes()
    }
}

impl Equivalent<Filter> for Under<'_> {
    fn equivalent(&self, key: &Filter) -> bool {
        key.hash == self.hash && self.shape.is(key.text.as_bytes(), self.topic, self.levels)
    }
}

impl Hash for Filter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hash for Exactly<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hash for Under<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Hands on the hash that a key already has.
#[derive(Clone, Debug, Default)]
struct Kept;

struct KeptHasher(u64);

impl BuildHasher for Kept {
    type Hasher = KeptHasher;

    fn build_hasher(&self) -> KeptHasher {
        KeptHasher(0)
    }
}

impl Hasher for KeptHasher {
    fn write(&mut self, bytes: &[u8]) {
        // Not for the keys above, which write one number.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_not_larger_than_it_has_to_be() {
        assert_eq!((size_of::<Text>(), size_of::<(Filter, Destinations)>()), (48, 72));
    }

    #[test]
    fn filters_of_any_length_are_told_apart() {
        let routes = SharedRoutes::new(0);
        let mut matched = Matched::default();
        let topics: Vec<_> = (44..50).map(|len| "x".repeat(len)).collect();
        for (topic, shard) in topics.iter().zip(0..) {
            assert!(routes.add(topic, shard) && !routes.add(topic, shard));
        }
        for (topic, shard) in topics.iter().zip(0..) {
            routes.matches(topic, &mut matched);
            assert_eq!(matched.shards.iter().collect::<Vec<_>>(), [shard]);
            assert!(routes.remove(topic, shard));
        }
        assert!(routes.is_empty());
    }
}
