//! A short run with fixed seeds: what it says is the same every time.

use rt_sim::runner::{run, run_all};
use rt_sim::workload::{Faults, Options, generate};

fn options() -> Options {
    Options { nodes: 1, clients: 3, faults: Faults::all() }
}

#[test]
fn no_promise_is_broken() {
    let mut broken = Vec::new();
    let report = run_all(
        1,
        20,
        1,
        &options(),
        || {},
        |seed, _, outcome| {
            if let Some(violation) = &outcome.violation {
                broken.push(format!("seed {seed}: {violation}"));
            }
            true
        },
    );
    assert_eq!(broken, [""; 0]);
    assert_eq!(report.seeds, 20);
    assert!(report.events > 5_000, "hardly anything happened: {} events", report.events);
}

#[test]
fn the_same_seed_has_the_same_history() {
    for seed in 1..4 {
        let plan = generate(seed, &options());
        let (once, again) = (run(&plan, true), run(&plan, true));
        assert_eq!(once.events, again.events, "seed {seed}");
        assert_eq!(once.digest, again.digest, "seed {seed}");
    }
    let digest = |seed| run(&generate(seed, &options()), false).digest;
    assert_ne!(digest(1), digest(2));
}
