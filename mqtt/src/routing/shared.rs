//! The node's routes, read by every shard for every publish while any shard changes them.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use papaya::{Equivalent, HashMap};
use smallvec::SmallVec;

use super::dest::{Destinations, Matched, ShareGroup};
use super::hash::{Level, SeededHash, hashed_levels};
use super::routes::Routes;
use super::shapes::{MAX_SHAPES, Shape, Shapes};
use super::table::{Apart, Found, Key, Spare, Table};
use super::text::Text;
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
    table: Table,
    /// The share groups of those that have any.
    groups: HashMap<Filter, Destinations, Kept>,
    /// The places of the writers' [`Shapes`], for readers. A shape does not move while any
    /// filter has it, so a reader that looks at one place after the other misses none.
    shapes: [AtomicU64; MAX_SHAPES],
    /// How many places readers look at.
    places: AtomicUsize,
    /// Filters of other shapes.
    rest: ArcSwap<Routes>,
    /// How many those are: mostly none, and then nobody looks.
    rest_filters: AtomicUsize,
    writer: Apart<Mutex<Writer>>,
}

/// What a writer needs besides.
#[derive(Debug)]
struct Writer {
    shapes: Shapes,
    spare: Spare,
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
        let (table, spare) = Table::new();
        Self {
            hasher: SeededHash::new(seed),
            table,
            groups: HashMap::with_hasher(Kept),
            shapes: [const { AtomicU64::new(0) }; MAX_SHAPES],
            places: AtomicUsize::new(0),
            rest: ArcSwap::from_pointee(Routes::new(seed)),
            rest_filters: AtomicUsize::new(0),
            writer: Apart(Mutex::new(Writer { shapes: Shapes::default(), spare })),
        }
    }

    /// Number of filters that lead anywhere.
    pub fn len(&self) -> usize {
        self.table.len() + self.rest_filters.load(Ordering::Acquire)
    }

    /// Whether there is no filter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into`, whatever it held before, with all that the topic name `topic` leads to.
    pub fn matches(&self, topic: &str, into: &mut Matched) {
        into.clear();
        let places = self.places.load(Ordering::Acquire).min(MAX_SHAPES);
        let mut keys = SmallVec::<[Key; 16]>::new();
        let mut shapes = SmallVec::<[Shape; 16]>::new();
        keys.push(Key::exact(self.hasher.of(topic)));
        shapes.push(Shape::NONE);
        let levels = match places {
            0 => SmallVec::new(),
            _ => hashed_levels(topic, &self.hasher),
        };
        for place in &self.shapes[..places] {
            let shape = Shape::from_bits(place.load(Ordering::Acquire));
            if shape.fits(topic, &levels) {
                keys.push(Key::shaped(shape.hash_for(&levels)));
                shapes.push(shape);
            }
        }
        let is = |at: usize, text: &[u8]| match at {
            0 => text == topic.as_bytes(),
            _ => shapes[at].is(text, topic, &levels),
        };
        self.table.find_all(&keys, is, |at, found| {
            into.shards = into.shards.union(found.shards);
            if found.has_groups {
                let groups = self.groups.pin();
                let (hash, shape) = (keys[at].hash(), shapes[at]);
                let found = match at {
                    0 => groups.get(&Exactly { hash, filter: topic }),
                    _ => groups.get(&Under { hash, shape, topic, levels: &levels }),
                };
                found.into_iter().for_each(|found| into.add_groups(found));
            }
        });
        if self.rest_filters.load(Ordering::Acquire) > 0 {
            self.rest.load().add_matches(topic, into);
        }
    }

    /// The share group `name` of exactly this filter.
    pub fn group(&self, filter: &str, name: &str) -> Option<Arc<ShareGroup>> {
        if let Some(hash) = Place::of(filter, &self.hasher).hash()
            && let Some(found) = self.groups.pin().get(&Exactly { hash, filter })
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
        let mut writer = self.writer.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(done) = self.change_table(&mut writer, filter, place, change) {
            return done;
        }
        let mut rest = Routes::clone(&self.rest.load());
        if !change.apply_to_routes(filter, &mut rest) {
            return false;
        }
        let filters = rest.len();
        let before = self.rest.swap(Arc::new(rest));
        self.rest_filters.store(filters, Ordering::Release);
        drop(writer);
        drop(before); // can be much to free: not while other writers wait
        true
    }

    /// The change, if the filter is in the table or finds a place there; whether it is new.
    fn change_table(
        &self,
        writer: &mut Writer,
        filter: &str,
        place: Place,
        change: Change<'_>,
    ) -> Option<bool> {
        let key = match place {
            Place::Exact(hash) => Key::exact(hash),
            Place::Shaped(_, hash) => Key::shaped(hash),
            Place::Deep => return None,
        };
        let spot = self.table.find(key, |text| text == filter.as_bytes());
        let is_elsewhere = spot.is_none()
            && self.rest_filters.load(Ordering::Relaxed) > 0
            && self.rest.load().get(filter).is_some();
        if is_elsewhere {
            return None;
        }
        let before = spot.map(|spot| spot.found);
        let had_groups = before.is_some_and(|found| found.has_groups);
        let groups = self.groups.pin();
        let group_key = Exactly { hash: key.hash(), filter };
        let known = if had_groups { groups.get(&group_key).cloned() } else { None };
        let shards = before.map(|found| found.shards).unwrap_or_default();
        let mut new = known.unwrap_or_default().with_shards(shards);
        if !change.apply(filter, &mut new) {
            return Some(false);
        }
        let after = Found { shards: new.shards(), has_groups: !new.groups().is_empty() };
        let is_gone = new.is_empty();
        if spot.is_none()
            && let Place::Shaped(shape, _) = place
            && !self.admit(&mut writer.shapes, shape)
        {
            return None;
        }
        // Groups are there before a record says so, and go after none says so any more.
        if after.has_groups && matches!(change, Change::Group { .. }) {
            groups.insert(Filter { hash: key.hash(), text: Text::new(filter) }, new);
        }
        let has_room = match spot {
            Some(spot) if is_gone => {
                self.table.remove(&mut writer.spare, key, spot);
                true
            }
            Some(spot) => {
                self.table.set(spot, after);
                true
            }
            None => self.table.insert(&mut writer.spare, key, filter, after),
        };
        if !after.has_groups && had_groups || !has_room {
            groups.remove(&group_key);
        }
        if (is_gone || !has_room)
            && let Place::Shaped(shape, _) = place
        {
            self.release(&mut writer.shapes, shape);
        }
        has_room.then_some(true)
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
        no_shape
            && self.places.load(Ordering::Relaxed) == 0
            && self.groups.is_empty()
            && self.rest.load().is_pruned()
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

/// A key of the map of groups: a filter and its hash, which a growing map asks for again.
#[derive(Debug, PartialEq, Eq)]
struct Filter {
    hash: u64,
    text: Text,
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
    fn filters_of_any_length_are_told_apart() {
        let routes = SharedRoutes::new(0);
        let mut matched = Matched::default();
        let topics: Vec<_> = (30..200).map(|len| "x".repeat(len)).collect();
        for (topic, shard) in topics.iter().zip((0..60).cycle()) {
            assert!(routes.add(topic, shard) && !routes.add(topic, shard));
        }
        for (topic, shard) in topics.iter().zip((0..60).cycle()) {
            routes.matches(topic, &mut matched);
            assert_eq!(matched.shards.iter().collect::<Vec<_>>(), [shard]);
            assert!(routes.remove(topic, shard));
        }
        assert!(routes.is_empty());
    }
}
