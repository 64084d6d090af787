//! Filters with wildcards as entries of a hash table.
//!
//! The *shape* of a filter is what remains when its names are forgotten: how many levels, which
//! of them are `+`, whether `#` follows. However many filters there are, few shapes are in use,
//! and of each shape at most one filter matches a given topic: the one with the topic's own
//! levels between the wildcards. So one lookup per shape finds every filter that matches. The
//! lookups do not wait for each other, as the steps of a walk down a tree do, and those that
//! find nothing end in the table's tag bytes, one per entry: few enough for a cache.
//!
//! A client could make up as many shapes as it likes. [`MAX_SHAPES`] of them are known; filters
//! of other shapes, and those with wildcards beyond [`MAX_LEVELS`], belong into a tree.

use smallvec::SmallVec;

use super::hash::{Level, SeededHash, fold, term};
use crate::topic::levels;

/// Most shapes that are looked up for one topic. Few in tests, so that they reach the trees too.
pub(super) const MAX_SHAPES: usize = if cfg!(test) { 6 } else { 64 };

/// Most levels that a shape can have, `#` not counted.
pub(super) const MAX_LEVELS: usize = if cfg!(test) { 3 } else { 32 };

/// The shape of a filter, packed: bit `i` for a `+` in level `i`, then the number of levels
/// without `#`, whether `#` follows, and a bit that no shape lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape(u64);

const LEN_AT: u32 = 32;
const MULTI: u64 = 1 << 40;
const IS_SHAPE: u64 = 1 << 41;

impl Shape {
    /// Marks a free place in a list of shapes.
    pub(super) const NONE: Self = Self(0);

    /// The shape of a filter; `None` when it has too many levels.
    pub(super) fn of(filter: &str) -> Option<Self> {
        let (mut bits, mut len) = (IS_SHAPE, 0);
        for level in levels(filter) {
            match level {
                "#" => {
                    bits |= MULTI;
                    break;
                }
                _ if len == MAX_LEVELS => return None,
                "+" => bits |= 1 << len,
                _ => {}
            }
            len += 1;
        }
        Some(Self(bits | (len as u64) << LEN_AT))
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    fn len(self) -> usize {
        (self.0 >> LEN_AT) as usize & 0x3f
    }

    fn has_multi(self) -> bool {
        self.0 & MULTI != 0
    }

    /// The levels that are `+`, rising.
    fn pluses(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0 as u32;
        std::iter::from_fn(move || {
            let lowest = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (lowest < u32::BITS).then_some(lowest as usize)
        })
    }

    /// Whether filters of this shape can match a topic of these levels.
    #[inline]
    pub(super) fn fits(self, topic: &str, levels: &[Level<'_>]) -> bool {
        let fits = match self.has_multi() {
            true => self.len() <= levels.len(),
            false => self.len() == levels.len(), // not NONE: no topic has no level
        };
        // Wildcards in the first level pass over `$` topics [MQTT-4.7.2-1].
        fits && (!topic.starts_with('$') || (self.0 & 1 == 0 && self.len() > 0))
    }

    /// The hash of a filter of this shape.
    pub(super) fn hash(self, filter: &str, hasher: &SeededHash) -> u64 {
        let parts = levels(filter).take(self.len()).enumerate();
        let named = parts.filter(|(_, level)| *level != "+");
        let sum = named.fold(0u64, |sum, (at, level)| sum.wrapping_add(term(at, hasher.of(level))));
        self.finish(sum)
    }

    /// The hash of the filter of this shape that matches the topic, whose levels the shape
    /// [fits](Self::fits).
    #[inline]
    pub(super) fn hash_for(self, levels: &[Level<'_>]) -> u64 {
        let all = match self.len() {
            0 => 0,
            len => levels[len - 1].sum,
        };
        self.finish(self.pluses().fold(all, |sum, at| sum.wrapping_sub(levels[at].term())))
    }

    /// Whether `filter` is the filter of this shape that matches the topic, whose levels the
    /// shape [fits](Self::fits).
    pub(super) fn is(self, filter: &[u8], topic: &str, levels: &[Level<'_>]) -> bool {
        let topic = topic.as_bytes();
        let mut rest = filter;
        let mut compared = 0;
        for at in self.pluses() {
            let level = &levels[at];
            let before = &topic[compared..level.end - level.text.len()];
            let Some(after) = rest.strip_prefix(before) else { return false };
            let Some(after) = after.strip_prefix(b"+") else { return false };
            (rest, compared) = (after, level.end);
        }
        let end = self.len().checked_sub(1).map_or(0, |last| levels[last].end);
        match (rest.strip_prefix(&topic[compared..end]), self.has_multi()) {
            (Some(after), false) => after.is_empty(),
            (Some(after), true) => after == if self.len() == 0 { &b"#"[..] } else { b"/#" },
            (None, _) => false,
        }
    }

    fn finish(self, sum: u64) -> u64 {
        fold(sum ^ self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0xd6e8_feb8_6659_fd93)
    }
}

/// Those of the shapes that can match a topic, each with the hash to look up.
#[inline]
pub(super) fn hashes_for(
    shapes: impl Iterator<Item = Shape>,
    topic: &str,
    levels: &[Level<'_>],
) -> SmallVec<[(Shape, u64); 16]> {
    let fitting = shapes.filter(|shape| shape.fits(topic, levels));
    fitting.map(|shape| (shape, shape.hash_for(levels))).collect()
}

/// The shapes in use, and by how many filters.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    /// A place keeps its shape as long as a filter has it. None at the end is free.
    places: Vec<(Shape, usize)>,
}

impl Shapes {
    /// One filter more of this shape; the shape's place, or `None` when all are taken.
    pub(super) fn admit(&mut self, shape: Shape) -> Option<usize> {
        let taken = self.places.iter().position(|place| place.0 == shape);
        let at = taken.or_else(|| self.places.iter().position(|place| place.0 == Shape::NONE));
        let at = at.unwrap_or(self.places.len());
        if at == self.places.len() {
            if at == MAX_SHAPES {
                return None;
            }
            self.places.push((shape, 0));
        }
        let place = &mut self.places[at];
        *place = (shape, place.1 + 1);
        Some(at)
    }

    /// One filter less of this shape; the shape's place if that was the last.
    pub(super) fn release(&mut self, shape: Shape) -> Option<usize> {
        let at = self.places.iter().position(|place| place.0 == shape)?;
        self.places[at].1 -= 1;
        if self.places[at].1 > 0 {
            return None;
        }
        self.places[at].0 = Shape::NONE;
        while self.places.pop_if(|place| place.0 == Shape::NONE).is_some() {}
        Some(at)
    }

    /// All places up to the last that is taken.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Shape> {
        self.places.iter().map(|place| place.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::hash::hashed_levels;

    #[test]
    fn a_shape_finds_the_one_filter_that_matches() {
        let hasher = SeededHash::new(5);
        let cases = [
            ("a/+/c", "a/b/c", true),
            ("a/+/c", "a//c", true),
            ("a/+/c", "a/b/d", false),
            ("a/+", "a/", true),
            ("+", "a", true),
            ("+", "$a", false),
            ("#", "$a", false),
            ("#", "a/b/c/d", true),
            ("a/#", "a", true),
            ("a/#", "a/b/c/d", true),
            ("a/#", "ab", false),
            ("+/#", "/x", true),
            ("$a/+", "$a/b", true),
            ("a/b/+", "a/b", false),
            ("+/b/+", "x/b/y", true),
            ("/+/#", "/x/y/z", true),
        ];
        for (filter, topic, expected) in cases {
            let shape = Shape::of(filter).unwrap();
            let levels = hashed_levels(topic, &hasher);
            let fits = shape.fits(topic, &levels);
            let is = fits && shape.is(filter.as_bytes(), topic, &levels);
            assert_eq!(is, expected, "{filter} {topic}");
            assert_eq!(crate::topic::matches(filter, topic), expected);
            let same_hash = fits && shape.hash_for(&levels) == shape.hash(filter, &hasher);
            assert_eq!(same_hash, expected, "{filter} {topic}");
        }
    }

    #[test]
    fn a_filter_of_another_shape_is_another_filter() {
        let levels = hashed_levels("a/b/c", &SeededHash::new(0));
        for (shape, filter) in [
            ("a/+/c", "a/+/#"),
            ("a/+/c", "a/+/cc"),
            ("a/+/c", "a/+"),
            ("a/+/#", "a/+"),
            ("#", "a/#"),
            ("a/#", "#"),
            ("a/b/+", "a/+/c"),
        ] {
            let is = Shape::of(shape).unwrap().is(filter.as_bytes(), "a/b/c", &levels);
            assert!(!is, "{shape} {filter}");
        }
        assert_eq!(Shape::of("a/b/c/+"), None);
        assert!(Shape::of("a/b/c/#").is_some());
    }

    #[test]
    fn places_stay_and_are_used_again() {
        let shape = |n: u64| Shape(IS_SHAPE | n);
        let mut shapes = Shapes::default();
        for n in 0..MAX_SHAPES {
            assert_eq!(shapes.admit(shape(n as u64)), Some(n));
        }
        assert_eq!(shapes.admit(shape(99)), None);
        assert_eq!(shapes.admit(shape(2)), Some(2));
        assert_eq!((shapes.release(shape(2)), shapes.release(shape(2))), (None, Some(2)));
        assert_eq!(shapes.release(shape(2)), None);
        assert_eq!(shapes.iter().len(), MAX_SHAPES);
        assert_eq!(shapes.admit(shape(99)), Some(2));
        for n in (0..MAX_SHAPES).filter(|n| *n != 2) {
            assert_eq!(shapes.release(shape(n as u64)), Some(n));
        }
        assert_eq!(shapes.iter().len(), 3);
        assert_eq!(shapes.release(shape(99)), Some(2));
        assert_eq!(shapes.iter().len(), 0);
    }
}
