//! The knee of a broker: the highest rate that it sustains.

use super::series::{Doing, Planned, try_out};
use crate::latency::Quote;
use crate::result::{DELIVERY, LATENESS, PER_SECOND, Run};

/// A rate is sustained when this percentile ...
const JUDGED: &str = "p90";
/// ... stays below this: a backlog of 1 % of a second.
const SUSTAINED_NS: u64 = 10_000_000;
/// Halvings of the range in which the knee lies.
const STEPS: u32 = 6;
/// Where the range begins, as a share of the full speed, which has the larger batches.
const LOWEST: f64 = 0.05;
/// Seconds of each trial.
pub const TRIAL_SECONDS: f64 = 0.6;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knee {
    /// Messages a second.
    pub rate: f64,
    /// Beyond it the generator was late by itself: the broker's knee lies higher.
    pub of_generator: bool,
}

/// How a trial at one rate went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    Sustained,
    BrokerLate,
    GeneratorLate,
}

/// Finds the knee of one column. `doing` makes the load: at a rate, or without one at full speed.
pub fn find(planned: &Planned, doing: impl Fn(Option<f64>) -> Doing) -> Result<Knee, String> {
    let full = try_out(planned, &doing(None))?.value(PER_SECOND).unwrap_or_default();
    if full <= 0.0 {
        return Err(format!("{}: the calibration delivered nothing", planned.label));
    }
    let knee =
        search(full * LOWEST, full, |rate| Ok(judge(&try_out(planned, &doing(Some(rate)))?)))?;
    eprintln!("calibration: {}: knee at {:.0}/s", planned.label, knee.rate);
    Ok(knee)
}

/// The lowest of all columns, and all of them in words.
pub fn lowest(knees: &[(&str, Knee)]) -> (f64, String) {
    let lowest = knees.iter().map(|(_, knee)| knee.rate).fold(f64::MAX, f64::min);
    let found = knees.iter().map(|(label, Knee { rate, of_generator })| {
        let whose = if *of_generator { " (the generator's)" } else { "" };
        format!("{label} {rate:.0}/s{whose}")
    });
    (lowest, found.collect::<Vec<_>>().join(", "))
}

/// `low` is taken as sustained.
fn search(
    mut low: f64,
    mut high: f64,
    mut trial: impl FnMut(f64) -> Result<Trial, String>,
) -> Result<Knee, String> {
    let mut of_generator = match trial(high)? {
        Trial::Sustained => return Ok(Knee { rate: high, of_generator: false }),
        late => late == Trial::GeneratorLate,
    };
    for _ in 0..STEPS {
        let rate = (low + high) / 2.0;
        match trial(rate)? {
            Trial::Sustained => low = rate,
            late => (high, of_generator) = (rate, late == Trial::GeneratorLate),
        }
    }
    Ok(Knee { rate: low, of_generator })
}

fn judge(run: &Run) -> Trial {
    let late = |name| !matches!(run.quote(name, JUDGED), Some(Quote::Ns(ns)) if ns <= SUSTAINED_NS);
    match (late(DELIVERY), late(LATENESS)) {
        (false, _) => Trial::Sustained,
        (true, true) => Trial::GeneratorLate,
        (true, false) => Trial::BrokerLate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latencies;

    #[test]
    fn the_search_ends_just_below_the_knee() {
        let trial =
            |rate: f64| Ok(if rate <= 61_000.0 { Trial::Sustained } else { Trial::BrokerLate });
        let knee = search(20_000.0, 100_000.0, trial).unwrap();
        assert!(knee.rate <= 61_000.0 && knee.rate > 61_000.0 - 80_000.0 / 64.0 - 1.0, "{knee:?}");
        assert!(!knee.of_generator);
        let all = search(1.0, 5.0, |_| Ok(Trial::Sustained)).unwrap();
        assert_eq!(all.rate, 5.0);
        let own = search(1.0, 5.0, |rate| {
            Ok(if rate < 2.0 { Trial::Sustained } else { Trial::GeneratorLate })
        });
        assert!(own.unwrap().of_generator);
        assert!(search(1.0, 5.0, |_| Err("gone".to_owned())).is_err());
    }

    #[test]
    fn a_trial_is_judged_by_what_was_late() {
        let of = |delivery_ns: u64, lateness_ns: u64| {
            let mut run = Run::default();
            for (name, ns) in [(DELIVERY, delivery_ns), (LATENESS, lateness_ns)] {
                let mut latencies = Latencies::new();
                (0..2_000).for_each(|_| latencies.record(ns));
                run.histogram(name, "", &latencies).unwrap();
            }
            judge(&run)
        };
        assert_eq!(of(1_000_000, 1_000_000), Trial::Sustained);
        assert_eq!(of(90_000_000, 1_000_000), Trial::BrokerLate);
        assert_eq!(of(90_000_000, 80_000_000), Trial::GeneratorLate);
        assert_eq!(judge(&Run::default()), Trial::GeneratorLate, "nothing came at all");
    }
}
