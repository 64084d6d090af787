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
}

/// The levels of a topic name; on the stack when there are few.
pub(super) type Levels<'a> = SmallVec<[Level<'a>; 16]>;

/// Cuts a topic name into levels, each hashed once however often a walk asks for it.
pub(super) fn hashed_levels<'a>(topic: &'a str, hasher: &SeededHash) -> Levels<'a> {
    crate::topic::levels(topic).map(|text| Level { text, hash: hasher.of(text) }).collect()
}
