//! Latencies as HDR histograms: merged as histograms, and quoted only where enough samples lie
//! beyond.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

/// Samples that must lie beyond a percentile before it is quoted.
pub const SAMPLES_BEYOND: u64 = 100;

/// The percentiles that reports quote, in parts of 100 000.
pub const QUOTED: [(&str, u64); 6] = [
    ("p50", 50_000),
    ("p90", 90_000),
    ("p95", 95_000),
    ("p99", 99_000),
    ("p99.9", 99_900),
    ("p99.99", 99_990),
];

const WHOLE: u64 = 100_000;
const RESOLUTION_NS: u64 = 100;
/// One hour; longer ones count as that.
const HIGHEST_NS: u64 = 3_600_000_000_000;

/// Latencies in nanoseconds, to three digits. Its size is fixed: about 200 KB.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    histogram: Histogram<u64>,
    /// Messages that should have given a sample and never came. They count as slower than all.
    pub missing: u64,
}

/// A percentile, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quote {
    /// Its value.
    Ns(u64),
    /// Fewer than [`SAMPLES_BEYOND`] samples lie beyond it.
    TooFew,
    /// The message at that place never came.
    Missing,
}

/// A histogram in a result file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Encoded {
    /// Samples in it.
    pub count: u64,
    /// See [`Latencies::missing`].
    pub missing: u64,
    /// HdrHistogram V2, deflated, base64; the unit is nanoseconds.
    pub hdr_v2_base64: String,
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// None yet.
    pub fn new() -> Self {
        match Histogram::new_with_bounds(RESOLUTION_NS, HIGHEST_NS, 3) {
            Ok(histogram) => Self { histogram, missing: 0 },
            Err(error) => unreachable!("the bounds are constants: {error}"),
        }
    }

    /// Adds a sample.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// Adds all samples of another one.
    pub fn merge(&mut self, other: &Self) -> Result<(), String> {
        self.missing += other.missing;
        self.histogram.add(&other.histogram).map_err(|error| format!("cannot merge: {error}"))
    }

    /// Samples in it.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The largest sample.
    pub fn max_ns(&self) -> u64 {
        self.histogram.max()
    }

    /// A percentile in parts of 100 000.
    pub fn quote(&self, parts: u64) -> Quote {
        let total = self.count() + self.missing;
        let rank = ((u128::from(total) * u128::from(parts)).div_ceil(u128::from(WHOLE))) as u64;
        if total - rank.min(total) < SAMPLES_BEYOND {
            Quote::TooFew
        } else if rank > self.count() {
            Quote::Missing
        } else {
            // The middle of the sample with that rank, so that no rounding reaches another.
            let share = (rank as f64 - 0.5) / self.count() as f64;
            Quote::Ns(self.histogram.value_at_quantile(share))
        }
    }

    /// For a result file.
    pub fn encode(&self) -> Result<Encoded, String> {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.histogram, &mut bytes)
            .map_err(|error| format!("cannot write a histogram: {error}"))?;
        let hdr_v2_base64 = STANDARD.encode(bytes);
        Ok(Encoded { count: self.count(), missing: self.missing, hdr_v2_base64 })
    }

    /// From a result file.
    pub fn decode(encoded: &Encoded) -> Result<Self, String> {
        let bytes = STANDARD
            .decode(&encoded.hdr_v2_base64)
            .map_err(|error| format!("a histogram is not base64: {error}"))?;
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| format!("a histogram cannot be read: {error}"))?;
        // Into one with known bounds, whatever the file's were.
        let mut latencies = Self::new();
        latencies.missing = encoded.missing;
        for bucket in read.iter_recorded() {
            let (value, count) = (bucket.value_iterated_to(), bucket.count_since_last_iteration());
            latencies.histogram.saturating_record_n(value, count);
        }
        Ok(latencies)
    }

    /// (share of samples beyond, ns) from the median on, as far as percentiles may be quoted.
    pub fn tail(&self) -> Vec<(f64, u64)> {
        let mut points = Vec::new();
        // Ten steps to each nine; the first is the median, as good as.
        for step in 3..=50 {
            let beyond = 10f64.powf(-f64::from(step) / 10.0);
            let parts = ((1.0 - beyond) * WHOLE as f64).round() as u64;
            let Quote::Ns(ns) = self.quote(parts) else { break };
            points.push((beyond, ns));
        }
        points
    }
}

impl Quote {
    /// For people, in microseconds.
    pub fn text(self) -> String {
        match self {
            Self::Ns(ns) => format_us(ns),
            Self::TooFew => "-".to_owned(),
            Self::Missing => "never".to_owned(),
        }
    }
}

/// Microseconds with as many digits as mean something.
pub fn format_us(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    if us < 100.0 { format!("{us:.1}") } else { format!("{us:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;

    fn of(samples: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new();
        samples.into_iter().for_each(|ns| latencies.record(ns));
        latencies
    }

    fn ns(quote: Quote) -> u64 {
        match quote {
            Quote::Ns(ns) => ns,
            other => panic!("{other:?}"),
        }
    }

    fn near(quote: Quote, expected_ns: u64) -> bool {
        ns(quote).abs_diff(expected_ns) * 500 <= expected_ns
    }

    #[test]
    fn quotes_nothing_with_fewer_than_100_samples_beyond() {
        let below = of((1..=9_999).map(|us| us * 1_000));
        assert_eq!(below.quote(99_000), Quote::TooFew, "99 lie beyond");
        let enough = of((1..=10_000).map(|us| us * 1_000));
        assert!(near(enough.quote(99_000), 9_900_000));
        assert_eq!(enough.quote(99_900), Quote::TooFew);
        assert_eq!(of(std::iter::repeat_n(5, 199)).quote(50_000), Quote::TooFew);
        assert_eq!(ns(of(std::iter::repeat_n(100_000, 200)).quote(50_000)) / 1_000, 100);
        assert_eq!(Latencies::new().quote(50_000), Quote::TooFew);
        assert!(enough.tail().iter().all(|(beyond, _)| *beyond >= 0.01 - 1e-9));
        assert!(enough.tail().last().is_some_and(|(beyond, _)| *beyond < 0.0101));
    }

    #[test]
    fn what_never_came_is_slower_than_all_that_came() {
        let mut latencies = of(std::iter::repeat_n(1_000_000, 90_000));
        latencies.missing = 10_000;
        assert!(near(latencies.quote(50_000), 1_000_000));
        assert!(near(latencies.quote(90_000), 1_000_000));
        assert_eq!(latencies.quote(99_000), Quote::Missing);
    }

    #[test]
    fn merging_is_not_averaging() {
        // 1 % of slow ones in one run of two: the p99 of both together is a fast one, and no
        // average of 1 ms and 1000 ms.
        let mut fast = of(std::iter::repeat_n(1_000_000, 20_000));
        let mixed = of((0..20_000).map(|i| if i % 50 == 0 { 1_000_000_000 } else { 1_000_000 }));
        assert!(near(mixed.quote(99_000), 1_000_000_000));
        fast.merge(&mixed).unwrap();
        assert_eq!(fast.count(), 40_000);
        assert!(near(fast.quote(99_000), 1_000_000), "400 of 40 000 are slow");
        assert!(near(fast.quote(99_500), 1_000_000_000));
    }

    #[test]
    fn a_result_file_keeps_everything_that_is_quoted() {
        let mut latencies = of((0..100_000).map(|i| i * 997 % 50_000_000));
        latencies.missing = 3;
        let encoded = latencies.encode().unwrap();
        let text = serde_json::to_string(&encoded).unwrap();
        let back = Latencies::decode(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!((back.count(), back.missing), (100_000, 3));
        for (_, parts) in QUOTED {
            assert_eq!(back.quote(parts), latencies.quote(parts));
        }
        let damaged = Encoded { hdr_v2_base64: "AAAA".to_owned(), ..encoded };
        assert!(Latencies::decode(&damaged).unwrap_err().contains("histogram"));
    }

    /// 1 000 messages/s for 10 s against a peer that answers in 50 us and stops once for 500 ms. In
    /// the closed loop a message waits for the answer to the last one, and its clock with it.
    fn with_a_stop(open_loop: bool) -> Latencies {
        const STOP_NS: std::ops::Range<u64> = 3_000_000_000..3_500_000_000;
        let mut schedule = Schedule::lasting(0, 1_000.0, 10_000_000_000);
        let mut latencies = Latencies::new();
        let mut answered_ns = 0;
        while let Some(due) = schedule.take(u64::MAX) {
            let sent_ns = if open_loop { due.at_ns } else { due.at_ns.max(answered_ns) };
            let served_ns = if STOP_NS.contains(&sent_ns) { STOP_NS.end } else { sent_ns };
            answered_ns = served_ns + 50_000;
            latencies.record(answered_ns - sent_ns);
        }
        latencies
    }

    #[test]
    fn a_stop_of_500_ms_shows_in_p99_as_arithmetic_says() {
        let open = with_a_stop(true);
        assert_eq!(open.count(), 10_000);
        // 500 messages fell due in the stop and waited 500, 499, ... 1 ms. The slowest 100 of
        // 10 000 waited more than 400 ms, the slowest 450 more than 50 ms.
        assert!(near(open.quote(99_000), 400_050_000), "{:?}", open.quote(99_000));
        assert!(near(open.quote(95_500), 50_050_000), "{:?}", open.quote(95_500));
        assert!(near(open.quote(90_000), 50_000));
        let closed = with_a_stop(false);
        assert!(near(closed.quote(99_000), 50_000), "the closed loop hides it");
    }
}
