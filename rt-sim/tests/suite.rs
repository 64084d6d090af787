//! The behaviour suite in the simulation, with several seeds.

use rt_abstract::RunOptions;
use rt_sim::{Config, Sim};

/// A world of this seed for every run of this thread.
fn seed(seed: u64) -> RunOptions {
    Sim::prepare(seed, Config::default());
    RunOptions::default()
}

rt_abstract::behaviour_suite!(simulated Sim,
    seed_1 => seed(1),
    seed_2 => seed(2),
    seed_3 => seed(3),
);
