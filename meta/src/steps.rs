//! Where time goes, step by step: histograms that tell running from waiting to run.
//!
//! Whoever measures has a lane of its own and adds a whole request at once. Whoever looks takes what
//! the lanes hold and leaves empty ones behind, so that nobody who measures waits for a look.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;
use rt_abstract::Instant;
use serde::{Deserialize, Serialize};

/// The steps of applying committed entries, per batch; names as in logs and metrics.
pub const APPLY_STEPS: [&str; 3] = ["route", "membership", "set_last_applied"];

/// One of [`APPLY_STEPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyStep {
    /// Deciding what the commands change. Waits for the thread that applies, if there is one.
    Route,
    /// A change of membership; only in batches that have one.
    Membership,
    /// The one write that holds the effects, `last_applied` and the membership.
    SetLastApplied,
}

/// Whether steps are measured, and which requests are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepOptions {
    /// Off: no clock is read, nothing is counted, nothing is logged.
    pub enabled: bool,
    /// What takes at least this long is logged with its steps, in milliseconds; 0 logs everything.
    pub slow_ms: u32,
    /// Lines per second; further ones are only counted, which the next line says. 0: no line.
    pub max_slow_lines_per_s: u32,
}

impl Default for StepOptions {
    fn default() -> Self {
        Self { enabled: true, slow_ms: 200, max_slow_lines_per_s: 1 }
    }
}

/// What a step took, once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Nanoseconds of running.
    pub ran_ns: u64,
    /// Nanoseconds of waiting to run, or for what the step needs.
    pub waited_ns: u64,
}

impl Took {
    /// Running and waiting together, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.ran_ns.saturating_add(self.waited_ns)
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ran {} us, waited {} us", self.ran_ns / 1000, self.waited_ns / 1000)
    }
}

/// Durations are told apart from here, in nanoseconds.
const MIN_NS: u64 = 32;
/// Longer ones count as this: 100 seconds.
const MAX_NS: u64 = 100_000_000_000;
/// Upper bounds of what [`Steps::distributions`] counts, as powers of two in nanoseconds: from a
/// microsecond to a minute. The histograms have an edge at each, so that the counts are exact.
const BOUNDS_LOG2: [u32; 14] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36];

/// One histogram of running and one of waiting per step of a fixed list: about 8 kB a step and lane.
#[derive(Debug)]
pub struct Steps {
    names: &'static [&'static str],
    options: StepOptions,
    lanes: Vec<Mutex<Counts>>,
    /// What was taken from the lanes so far.
    total: Mutex<Counts>,
    slow: Mutex<SlowLines>,
}

/// Per step.
type Counts = Vec<[Times; 2]>;

#[derive(Clone, Debug)]
struct Times {
    histogram: Histogram<u64>,
    sum_ns: u64,
    /// Not in the histogram yet: most steps wait for nothing, and that is to cost little.
    zeros: u64,
}

#[derive(Debug, Default)]
struct SlowLines {
    second: u64,
    lines: u32,
    left_out: u64,
}

/// What is known about a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The step.
    pub step: String,
    /// How often it was taken.
    pub count: u64,
    /// How long it ran.
    pub running: Quantiles,
    /// How long it waited.
    pub waiting: Quantiles,
}

/// Durations in microseconds; within a sixteenth, but for the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Their mean.
    pub mean_us: f64,
    /// Half of them took at most this.
    pub p50_us: f64,
    /// 99 of a hundred took at most this.
    pub p99_us: f64,
    /// 999 of a thousand took at most this.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// A step's running or waiting, counted by duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// The step.
    pub step: &'static str,
    /// `running` or `waiting`.
    pub time: &'static str,
    /// Upper bounds in seconds, and how many took less; ascending.
    pub below: Vec<(f64, u64)>,
    /// How many there are.
    pub count: u64,
    /// Their sum in seconds.
    pub sum_s: f64,
}

impl Steps {
    /// Empty histograms for the steps `names`, with lanes 0 to `lanes` - 1.
    pub fn new(names: &'static [&'static str], lanes: usize, options: StepOptions) -> Self {
        let lanes = if options.enabled { lanes } else { 0 };
        Self {
            names,
            options,
            lanes: (0..lanes).map(|_| Mutex::new(empty(names))).collect(),
            total: Mutex::new(if options.enabled { empty(names) } else { Counts::new() }),
            slow: Mutex::default(),
        }
    }

    /// Whether anything is measured.
    pub fn is_on(&self) -> bool {
        self.options.enabled
    }

    /// Adds what the steps of one request took, each given by its place among the names. Steps that
    /// were not taken are left out. An unknown lane counts nothing.
    pub fn record(&self, lane: usize, steps: impl IntoIterator<Item = (usize, Took)>) {
        let Some(lane) = self.lanes.get(lane) else { return };
        let mut counts = held(lane);
        for (step, took) in steps {
            let [running, waiting] = &mut counts[step];
            running.add(took.ran_ns);
            waiting.add(took.waited_ns);
        }
    }

    /// Whether a request that took `took_ns` nanoseconds and ended at `now` is to be logged: how many
    /// slow ones were not, since the last line.
    pub fn is_slow(&self, took_ns: u64, now: Instant) -> Option<u64> {
        let StepOptions { enabled, slow_ms, max_slow_lines_per_s } = self.options;
        if !enabled || took_ns < u64::from(slow_ms) * 1_000_000 {
            return None;
        }
        let second = now.as_millis() / 1000;
        let mut slow = held(&self.slow);
        if slow.second != second {
            (slow.second, slow.lines) = (second, 0);
        }
        if slow.lines >= max_slow_lines_per_s {
            slow.left_out += 1;
            return None;
        }
        slow.lines += 1;
        Some(std::mem::take(&mut slow.left_out))
    }

    /// What is known about each step, in the order of the names; nothing when it is switched off.
    pub fn summaries(&self) -> Vec<Summary> {
        let one = |(&step, [running, waiting]): (&&'static str, &[Times; 2])| Summary {
            step: step.to_owned(),
            count: running.histogram.len(),
            running: running.quantiles(),
            waiting: waiting.quantiles(),
        };
        self.names.iter().zip(&*self.gathered()).map(one).collect()
    }

    /// The same, counted by duration: running and waiting of each step.
    pub fn distributions(&self) -> Vec<Distribution> {
        let gathered = self.gathered();
        let mut all = Vec::new();
        for (&step, times) in self.names.iter().zip(&*gathered) {
            for (time, times) in ["running", "waiting"].into_iter().zip(times) {
                all.push(Distribution {
                    step,
                    time,
                    below: times.below(),
                    count: times.histogram.len(),
                    sum_s: times.sum_ns as f64 / 1e9,
                });
            }
        }
        all
    }

    /// The lanes are emptied into the total.
    fn gathered(&self) -> MutexGuard<'_, Counts> {
        let mut total = held(&self.total);
        for lane in &self.lanes {
            // Made before the lane is locked.
            let mut counts = empty(self.names);
            std::mem::swap(&mut *held(lane), &mut counts);
            for (total, new) in total.iter_mut().flatten().zip(counts.iter().flatten()) {
                total.merge(new);
            }
        }
        total
    }
}

impl Times {
    fn add(&mut self, ns: u64) {
        if ns == 0 {
            self.zeros += 1;
            return;
        }
        self.histogram.saturating_record(ns);
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    fn merge(&mut self, other: &Self) {
        if !other.histogram.is_empty() {
            self.histogram.add(&other.histogram).expect("they have the same bounds");
        }
        if other.zeros > 0 {
            self.histogram.saturating_record_n(0, other.zeros);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    fn quantiles(&self) -> Quantiles {
        let us = |ns: u64| ns as f64 / 1000.0;
        let max = self.histogram.max();
        // Of a bucket's width, no more than there was.
        let at = |quantile| us(self.histogram.value_at_quantile(quantile).min(max));
        Quantiles {
            mean_us: us(self.sum_ns) / self.histogram.len().max(1) as f64,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(max),
        }
    }

    fn below(&self) -> Vec<(f64, u64)> {
        let mut counted = 0;
        let mut recorded = self.histogram.iter_recorded().peekable();
        let below = |log2: u32| {
            let bound_ns = 1u64 << log2;
            while let Some(value) = recorded.next_if(|value| value.value_iterated_to() < bound_ns) {
                counted += value.count_since_last_iteration();
            }
            (bound_ns as f64 / 1e9, counted)
        };
        BOUNDS_LOG2.into_iter().map(below).collect()
    }
}

fn empty(names: &[&str]) -> Counts {
    let histogram =
        Histogram::new_with_bounds(MIN_NS, MAX_NS, 1).expect("constants that the library takes");
    let times = Times { histogram, sum_ns: 0, zeros: 0 };
    names.iter().map(|_| [times.clone(), times.clone()]).collect()
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: StepOptions = StepOptions { enabled: true, slow_ms: 10, max_slow_lines_per_s: 2 };

    fn took(ran_us: u64, waited_us: u64) -> Took {
        Took { ran_ns: ran_us * 1000, waited_ns: waited_us * 1000 }
    }

    #[test]
    fn lanes_add_up_over_looks() {
        let steps = Steps::new(&APPLY_STEPS, 2, ON);
        for us in 1..=1000 {
            steps.record((us % 2) as usize, [(0, took(us, 2 * us)), (2, Took::default())]);
            if us == 500 {
                assert_eq!(steps.summaries()[0].count, 500);
            }
        }
        steps.record(0, [(0, took(1_000_000_000, 0))]);
        let [route, membership, last] = &steps.summaries()[..] else { panic!("three steps") };
        assert_eq!((route.step.as_str(), route.count), ("route", 1001));
        assert_eq!((membership.count, membership.running), (0, Quantiles::default()));
        assert_eq!((last.count, last.waiting), (1000, Quantiles::default()));
        for (times, factor) in [(&route.running, 1.0), (&route.waiting, 2.0)] {
            assert!((0.93..1.07).contains(&(times.p50_us / factor / 500.0)), "{times:?}");
            assert!((0.93..1.07).contains(&(times.p99_us / factor / 990.0)), "{times:?}");
        }
        assert!((0.93..1.07).contains(&(route.running.max_us / 1e8)), "capped: {route:?}");
    }

    #[test]
    fn distributions_are_exact_at_their_bounds() {
        let steps = Steps::new(&APPLY_STEPS, 1, ON);
        for log2 in BOUNDS_LOG2 {
            for ns in [(1 << log2) - 1, 1 << log2] {
                steps.record(0, [(1, Took { ran_ns: ns, waited_ns: 0 })]);
            }
        }
        let all = steps.distributions();
        let [running, waiting] = &all[2..4] else { panic!("two of each") };
        assert_eq!((running.step, running.time, running.count), ("membership", "running", 28));
        let below: Vec<u64> = running.below.iter().map(|(_, count)| *count).collect();
        assert_eq!(below, (0..14).map(|at| 2 * at + 1).collect::<Vec<_>>());
        assert_eq!(running.below[0].0, 1.024e-6);
        let sum_ns: u64 = BOUNDS_LOG2.iter().map(|log2| (2u64 << log2) - 1).sum();
        assert!((running.sum_s - sum_ns as f64 / 1e9).abs() < 1e-9);
        assert_eq!((waiting.time, waiting.below[0].1, waiting.sum_s), ("waiting", 28, 0.0));
    }

    #[test]
    fn slow_lines_are_bounded_and_those_left_out_are_told() {
        let steps = Steps::new(&APPLY_STEPS, 1, ON);
        let slow = |ms: u64, at_ms: u64| {
            steps.is_slow(ms * 1_000_000, Instant::from_nanos(at_ms * 1_000_000))
        };
        assert_eq!(slow(9, 5_000), None, "not slow");
        assert_eq!((slow(10, 5_000), slow(11, 5_999)), (Some(0), Some(0)));
        assert_eq!((slow(12, 5_999), slow(13, 5_999)), (None, None));
        assert_eq!((slow(14, 6_000), slow(15, 6_000)), (Some(2), Some(0)));
        let never = Steps::new(&APPLY_STEPS, 1, StepOptions { max_slow_lines_per_s: 0, ..ON });
        assert_eq!(never.is_slow(u64::MAX, Instant::default()), None);
    }

    #[test]
    fn switched_off_nothing_is_kept() {
        let off = Steps::new(&APPLY_STEPS, 3, StepOptions { enabled: false, slow_ms: 0, ..ON });
        off.record(0, [(0, took(1, 1))]);
        assert_eq!((off.summaries(), off.distributions()), (Vec::new(), Vec::new()));
        assert_eq!(off.is_slow(u64::MAX, Instant::default()), None);
    }
}
