//! The smallest part of a plan that still breaks the same promise.

use super::{Outcome, run};
use crate::oracle::Rule;
use crate::workload::{Keep, Plan};

/// Leaves steps out, first many at once, then single ones, as long as `rule` stays broken; at most
/// `most_runs` times. Returns what is left, and how it went.
pub fn shrink(plan: &Plan, rule: Rule, most_runs: usize) -> Option<(Keep, Outcome)> {
    let mut runs = 0;
    let mut best = None;
    let mut numbers: Vec<u32> = plan.steps.iter().map(|step| step.number).collect();
    let mut chunk = numbers.len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        let mut shrunk = false;
        while from < numbers.len() {
            if runs == most_runs {
                return best;
            }
            runs += 1;
            let rest = numbers[..from].iter().chain(numbers.iter().skip(from + chunk));
            let rest: Vec<u32> = rest.copied().collect();
            let keep: Keep = rest.iter().copied().collect();
            let outcome = run(&plan.keeping(&keep), true);
            if outcome.violation.as_ref().is_some_and(|violation| violation.rule == rule) {
                best = Some((keep, outcome));
                numbers = rest;
                shrunk = true;
            } else {
                from += chunk;
            }
        }
        chunk = match chunk {
            1 if shrunk => 1,
            _ => chunk / 2,
        };
    }
    best
}
