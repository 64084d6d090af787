//! Many seeds, on several threads.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use siphasher::sip::SipHasher13;

use super::{Outcome, run};
use crate::Coverage;
use crate::workload::{Act, Options, Plan, generate};

/// What many seeds came to.
#[derive(Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Those that broke a promise.
    pub failed: Vec<u64>,
    /// Over the digests of all seeds, in their order.
    pub digest: u64,
    /// Virtual time of all worlds, in milliseconds.
    pub virtual_ms: u64,
    /// Events that were judged.
    pub events: u64,
    /// Faults that took effect in the worlds.
    pub coverage: Coverage,
    /// Faults of the plans, by kind.
    pub planned: BTreeMap<&'static str, u64>,
}

/// Runs `count` seeds from `first` on, `jobs` at a time; `each` is shown every one, in order, and says
/// whether to go on.
pub fn run_all(
    first: u64,
    count: u64,
    jobs: usize,
    options: &Options,
    prepare: impl Fn() + Sync,
    mut each: impl FnMut(u64, &Plan, &Outcome) -> bool,
) -> Report {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (results, outcomes) = mpsc::sync_channel(jobs * 2);
    let mut report = Report::default();
    let mut digest = SipHasher13::new();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (results, next, stop, prepare) = (results.clone(), &next, &stop, &prepare);
            scope.spawn(move || {
                prepare();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let plan = generate(first + at, options);
                    let outcome = run(&plan, false);
                    if results.send((at, plan, outcome)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        let mut waiting = BTreeMap::new();
        let mut due = 0;
        for (at, plan, outcome) in outcomes {
            waiting.insert(at, (plan, outcome));
            while let Some((plan, outcome)) = waiting.remove(&due) {
                due += 1;
                if stop.load(Ordering::Relaxed) {
                    continue;
                }
                report.add(&plan, &outcome, &mut digest);
                if !each(plan.seed, &plan, &outcome) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
    });
    report.digest = digest.finish();
    report
}

impl Report {
    fn add(&mut self, plan: &Plan, outcome: &Outcome, digest: &mut SipHasher13) {
        self.seeds += 1;
        if outcome.violation.is_some() {
            self.failed.push(plan.seed);
        }
        digest.write_u64(outcome.digest);
        self.virtual_ms += outcome.virtual_ms;
        self.events += outcome.seen;
        self.coverage.merge(&outcome.coverage);
        for step in &plan.steps {
            if let Act::Fault(fault) = &step.act {
                *self.planned.entry(fault.kind()).or_default() += 1;
            }
        }
    }
}
