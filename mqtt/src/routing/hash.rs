//! Seeded hashing, and topics cut into hashed levels.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::FixedState;
use smallvec::SmallVec;

/// Hashes strings with a seed: random in production, so that nobody can choose names that
/// collide; fixed in a simulation.
#[derive(Clone, Debug)]
pub struct SeededHash(FixedState);

impl SeededHash {
    /// A hasher with this seed.
    pub fn new(seed: u64) -> Self {
        Self(FixedState::with_seed(seed))
    }

    /// The hash of `text`.
    #[inline]
    pub fn of(&self, text: &str) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(text.as_bytes());
        hasher.finish()
    }
}

/// One level of a topic name, and its hash.
#[derive(Clone, Copy)]
pub(super) struct Level<'a> {
    pub(super) text: &'a str,
    pub(super) hash: u64,
    /// Where in the topic it ends.
    pub(super) end: usize,
    /// The sum of the [`term`]s up to and with this level.
    pub(super) sum: u64,
    position: usize,
}

impl Level<'_> {
    #[inline]
    pub(super) fn term(&self) -> u64 {
        term(self.position, self.hash)
    }
}

/// The levels of a topic name; on the stack when there are few.
pub(super) type Levels<'a> = SmallVec<[Level<'a>; 16]>;

/// Cuts a topic name into levels, each hashed once however often a walk asks for it.
pub(super) fn hashed_levels<'a>(topic: &'a str, hasher: &SeededHash) -> Levels<'a> {
    let (mut start, mut sum) = (0, 0u64);
    let parts = crate::topic::levels(topic).enumerate();
    parts
        .map(|(position, text)| {
            let hash = hasher.of(text);
            let end = start + text.len();
            start = end + 1;
            sum = sum.wrapping_add(term(position, hash));
            Level { text, hash, end, sum, position }
        })
        .collect()
}

/// What a level at this position adds to the hash of a whole filter. Sums can be taken apart
/// again: the hash with a wildcard in one place more costs one subtraction.
#[inline]
pub(super) fn term(position: usize, level_hash: u64) -> u64 {
    let position = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    fold(level_hash ^ position, 0xa076_1d64_78bd_642f)
}

/// Both halves of the product: each bit of `a` reaches each of the result.
#[inline]
pub(super) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}
