//! Where time goes, step by step: histograms that tell running from waiting to run.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A step of applying entries to the state; names as in logs and metrics.
pub const APPLY_STEPS: [&str; 5] = ["wait", "run", "route", "membership", "set_last_applied"];

/// One of [`APPLY_STEPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Waiting to run, per batch: for the thread that applies, if there is one, and while others had
    /// the core or the store.
    Wait,
    /// Running, per batch: the CPU time of all that follows.
    Run,
    /// Deciding what the commands change, per batch.
    Route,
    /// A change of membership, per batch that has one.
    Membership,
    /// The one write that holds the effects, `last_applied` and the membership, per batch.
    SetLastApplied,
}

impl From<Step> for usize {
    fn from(step: Step) -> Self {
        step as Self
    }
}

/// Longer durations count as this: one hour.
const MAX_NS: u64 = 3_600_000_000_000;

/// One histogram per step of a fixed list. Meant for few writers: each adding takes a lock for some
/// ten nanoseconds.
#[derive(Debug)]
pub struct Steps {
    names: &'static [&'static str],
    histograms: Vec<Mutex<Histogram<u32>>>,
}

/// What the histogram of a step says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The step.
    pub step: String,
    /// How many durations were added.
    pub count: u64,
    /// Their mean, in microseconds.
    pub mean_us: f64,
    /// Half of them took at most this, in microseconds; within a hundredth, as the next two.
    pub p50_us: f64,
    /// 99 of a hundred took at most this.
    pub p99_us: f64,
    /// 999 of a thousand took at most this.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Steps {
    /// Empty histograms for the steps `names`.
    pub fn new(names: &'static [&'static str]) -> Self {
        let histograms = names.iter().map(|_| Mutex::new(empty())).collect();
        Self { names, histograms }
    }

    /// Adds one duration to a step, given by its place among the names.
    pub fn add(&self, step: impl Into<usize>, took: Duration) {
        let index: usize = step.into();
        let ns = u64::try_from(took.as_nanos()).unwrap_or(MAX_NS);
        self.histograms[index].lock().unwrap_or_else(PoisonError::into_inner).saturating_record(ns);
    }

    /// What the histograms say, in the order of the names.
    pub fn summaries(&self) -> Vec<Summary> {
        let one = |(&step, histogram): (&&'static str, &Mutex<Histogram<u32>>)| {
            let histogram = histogram.lock().unwrap_or_else(PoisonError::into_inner);
            let us = |ns: u64| ns as f64 / 1000.0;
            Summary {
                step: step.to_owned(),
                count: histogram.len(),
                mean_us: histogram.mean() / 1000.0,
                p50_us: us(histogram.value_at_quantile(0.5)),
                p99_us: us(histogram.value_at_quantile(0.99)),
                p999_us: us(histogram.value_at_quantile(0.999)),
                max_us: us(histogram.max()),
            }
        };
        self.names.iter().zip(&self.histograms).map(one).collect()
    }
}

fn empty() -> Histogram<u32> {
    Histogram::new_with_bounds(1, MAX_NS, 2).expect("constants that the library takes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_what_was_added() {
        let steps = Steps::new(&APPLY_STEPS);
        for us in 1..=1000 {
            steps.add(Step::Route, Duration::from_micros(us));
        }
        steps.add(Step::Wait, Duration::from_secs(86_400));
        let summaries = steps.summaries();
        let route = &summaries[2];
        assert_eq!((route.step.as_str(), route.count), ("route", 1000));
        assert!((495.0..=510.0).contains(&route.p50_us), "{route:?}");
        assert!((985.0..=1005.0).contains(&route.p99_us), "{route:?}");
        assert_eq!(summaries[0].count, 1);
        assert_eq!(summaries[3].count, 0);
    }
}
