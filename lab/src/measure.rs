//! What all experiments measure with, and how they name what came out.
//!
//! A figure or histogram is named `SITUATION; VARIANT; MEASURE`: variants of one situation are what
//! is compared, a measure becomes one table. Numbers of one name in several runs are repetitions.

use std::path::PathBuf;
use std::time::Duration;

use bench::{File, Run};
use rt_abstract::{Instant, Runtime, os};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::backend::Column;

/// Between the parts of a name.
const SEPARATOR: &str = "; ";

/// Where the result of a run goes.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Output {
    /// Writes the result with its histograms there.
    #[arg(long)]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

/// The three parts of a figure's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Under which load.
    pub situation: String,
    /// Of which design.
    pub variant: String,
    /// What.
    pub measure: String,
}

/// Times and the CPU that was used meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    at: Instant,
    cpu: Duration,
}

/// What a stopwatch showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lap {
    /// Time that passed.
    pub wall: Duration,
    /// CPU time of all threads of this process, io_uring's workers among them.
    pub cpu: Duration,
}

impl Name {
    /// As in a result file.
    pub fn text(situation: &str, variant: &str, measure: &str) -> String {
        [situation, variant, measure].join(SEPARATOR)
    }

    /// Back from a result file.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(SEPARATOR).map(str::to_owned);
        let (situation, variant, measure) = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some(Self { situation, variant, measure })
    }
}

impl Stopwatch {
    /// Starts.
    pub fn start<R: Runtime>() -> Self {
        Self { at: R::now(), cpu: process_cpu_time() }
    }

    /// How far it is.
    pub fn lap<R: Runtime>(&self) -> Lap {
        Lap { wall: R::now() - self.at, cpu: process_cpu_time().saturating_sub(self.cpu) }
    }
}

impl Lap {
    /// Nanoseconds of CPU for each of `count`.
    pub fn cpu_ns_per(&self, count: u64) -> f64 {
        self.cpu.as_nanos() as f64 / count as f64
    }

    /// How many of `count` there were in a second.
    pub fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.wall.as_secs_f64()
    }
}

/// A result to fill.
pub fn new_run(
    experiment: &str,
    column: &Column,
    parameters: &impl Serialize,
) -> Result<Run, String> {
    let probe = column.probe()?;
    let mut run = Run::new(experiment, column.label(), parameters);
    run.machine.generator = generator();
    run.parameters.insert("driver".to_owned(), probe.driver.into());
    if let Some(reason) = probe.fallback_reason {
        run.doubts.push(format!("not on io_uring: {reason}"));
    }
    Ok(run)
}

/// This program's version, and whether it was optimized.
pub fn generator() -> String {
    let debug = if cfg!(debug_assertions) { " (debug build)" } else { "" };
    format!("gearbox-lab {}{debug}", env!("CARGO_PKG_VERSION"))
}

/// Shows and writes the result.
pub fn finish(run: Run, output: &Output) -> Result<(), String> {
    for figure in &run.figures {
        println!("{:<64} {} {}", figure.name, bench::number(figure.value), figure.unit);
    }
    for histogram in &run.histograms {
        let quoted = histogram.percentiles.iter();
        let quoted = quoted.map(|(name, quote)| format!(" {name} {}", quote.text()));
        println!("{:<64}{}", format!("{}, us", histogram.name), quoted.collect::<String>());
    }
    match &output.json {
        Some(path) => File::Run(Box::new(run)).write(path),
        None => Ok(()),
    }
}

/// CPU time of all threads of this process.
fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Iterations of [`work`] that take `duration` on this machine, undisturbed.
pub fn calibrate(duration: Duration) -> u64 {
    const TRIAL: u64 = 200_000;
    let trial = || {
        let before = os::thread_cpu_time();
        work(TRIAL);
        os::thread_cpu_time().saturating_sub(before)
    };
    let shortest = (0..5).map(|_| trial()).min().unwrap_or(duration).max(Duration::from_nanos(1));
    (TRIAL as u128 * duration.as_nanos() / shortest.as_nanos()) as u64
}

/// Computes and touches no memory.
pub fn work(iterations: u64) {
    let mut value = std::hint::black_box(0x9E37_79B9_7F4A_7C15u64);
    for _ in 0..iterations {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    std::hint::black_box(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let name = Name::parse(&Name::text("1 tenant", "nested", "inserts")).unwrap();
        assert_eq!(
            (&*name.situation, &*name.variant, &*name.measure),
            ("1 tenant", "nested", "inserts")
        );
        assert_eq!(Name::parse("a; b"), None);
        assert_eq!(Name::parse("a; b; c; d"), None);
    }

    #[test]
    fn laps_are_shares() {
        let lap = Lap { wall: Duration::from_secs(2), cpu: Duration::from_micros(30) };
        assert_eq!(lap.cpu_ns_per(10), 3_000.0);
        assert_eq!(lap.per_second(10), 5.0);
    }

    #[test]
    fn more_time_is_more_work() {
        let (short, long) =
            (calibrate(Duration::from_micros(1)), calibrate(Duration::from_millis(1)));
        assert!(0 < short && short < long);
    }
}
