//! One generator per concern, so that a change in one disturbs the others little.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

#[derive(Debug)]
pub(crate) struct Random {
    /// The order of tasks, and how late timers are.
    pub schedule: SmallRng,
    pub network: SmallRng,
    pub disk: SmallRng,
    /// What programs draw.
    pub programs: SmallRng,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut root = SmallRng::seed_from_u64(seed);
        let mut next = || SmallRng::from_rng(&mut root);
        Self { schedule: next(), network: next(), disk: next(), programs: next() }
    }
}

/// `true` with a probability that may be out of range.
pub(crate) fn chance(random: &mut SmallRng, probability: f64) -> bool {
    probability > 0.0 && random.random_bool(probability.min(1.0))
}
