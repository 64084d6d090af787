//! Medians of repetitions and how sure they are.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

/// Resamples of a bootstrap.
const RESAMPLES: usize = 10_000;
/// Runs of each side below which nothing is compared: two ranges of three runs lie apart by chance
/// once in ten times, two of four once in 35.
pub const RUNS_TO_COMPARE: u32 = 4;
/// Of fewer runs the interval is their range, which then covers the median with less than 95 %;
/// a bootstrap would only look surer.
pub const RUNS_TO_RESAMPLE: u32 = 6;
/// The same resamples for the same runs.
const SEED: u64 = 0x6765_6172;

/// A median with its 95 % bootstrap confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// The median of the runs.
    pub median: f64,
    /// Upper end.
    pub high: f64,
}

/// The median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    middle(&mut sorted)
}

/// The median of `values` and the percentile bootstrap of it; of fewer than [`RUNS_TO_RESAMPLE`]
/// the range.
pub fn bootstrap_median(values: &[f64]) -> Option<Interval> {
    let median = median(values)?;
    if values.len() < RUNS_TO_RESAMPLE as usize {
        let low = values.iter().copied().fold(median, f64::min);
        let high = values.iter().copied().fold(median, f64::max);
        return Some(Interval { low, median, high });
    }
    let mut random = StdRng::seed_from_u64(SEED);
    let mut resample = vec![0.0; values.len()];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            resample.fill_with(|| values[random.random_range(0..values.len())]);
            middle(&mut resample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let cut = RESAMPLES / 40;
    Some(Interval { low: medians[cut], median, high: medians[RESAMPLES - 1 - cut] })
}

impl Interval {
    /// Whether two intervals have a value in common: then no difference has been shown.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }

    /// What comparing this one to `base` shows, for people.
    pub fn against(&self, base: &Self) -> String {
        if self.overlaps(base) {
            return "no difference shown".to_owned();
        }
        if base.low <= 0.0 || self.low <= 0.0 {
            return "differs".to_owned();
        }
        let (low, high) = (self.low / base.high, self.high / base.low);
        format!("x{:.2} ({low:.2} to {high:.2})", self.median / base.median)
    }
}

fn middle(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some((values[values.len() / 2 - 1] + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(bootstrap_median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_interval_holds_the_median_and_is_repeatable() {
        let runs = [10.0, 11.0, 9.0, 10.5, 30.0, 9.5, 10.2];
        let interval = bootstrap_median(&runs).unwrap();
        assert_eq!(interval.median, 10.2);
        assert!(interval.low < 10.2 && interval.low >= 9.0);
        assert!(interval.high > 10.2 && interval.high <= 30.0);
        assert_eq!(bootstrap_median(&runs), Some(interval));
        let one = Interval { low: 5.0, median: 5.0, high: 5.0 };
        assert_eq!(bootstrap_median(&[5.0]), Some(one));
        let few = Interval { low: 1.0, median: 3.0, high: 9.0 };
        assert_eq!(bootstrap_median(&[9.0, 2.0, 3.0, 1.0, 8.0]), Some(few));
    }

    #[test]
    fn the_interval_covers_the_true_median_about_as_often_as_it_says() {
        // Samples of 15 from 0..1000, whose median is 499.5; 95 % promised, and the percentile
        // bootstrap of a small sample gives a little less.
        let mut random = StdRng::seed_from_u64(7);
        let covered = (0..60)
            .filter(|_| {
                let runs: Vec<f64> = (0..15).map(|_| random.random_range(0..1000).into()).collect();
                let interval = bootstrap_median(&runs).unwrap();
                interval.low <= 499.5 && 499.5 <= interval.high
            })
            .count();
        assert!((50..=60).contains(&covered), "{covered} of 60");
    }

    #[test]
    fn overlap_is_no_difference() {
        let interval = |low, median, high| Interval { low, median, high };
        let base = interval(9.0, 10.0, 11.0);
        assert_eq!(interval(11.0, 12.0, 13.0).against(&base), "no difference shown");
        assert_eq!(interval(19.8, 20.0, 22.0).against(&base), "x2.00 (1.80 to 2.44)");
        assert_eq!(interval(2.2, 4.0, 4.5).against(&base), "x0.40 (0.20 to 0.50)");
        assert_eq!(interval(1.0, 2.0, 3.0).against(&interval(0.0, 0.0, 0.0)), "differs");
    }
}
