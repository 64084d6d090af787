//! How a thousand clients that connect read a configuration that changes now and then: behind a lock
//! that tasks wait for, as an atomic snapshot, or as a copy for each core.
//!
//! A CONNECT is four steps; each reads the configuration, computes for a while, and lets the others
//! have a turn, as one does that waits for I/O. What is measured first is how long a step waits for
//! the configuration.

mod snapshot;
mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bench::{Latencies, Run};
use rt_abstract::{Core, RunOptions, Runtime, Shared};
use serde::Serialize;

use crate::backend::{Column, Visit};
use crate::cli::positive;
use crate::measure::{self, Lap, Name, Output, Stopwatch};
use source::{Copies, HeldLock, Lock, Snapshots, Source};

/// Reads of the configuration in a CONNECT.
const STEPS: u32 = 4;
/// A wait that a client notices in a storm.
const STALL_NS: u64 = 5_000_000;

/// Arguments of `config`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub column: Column,
    /// Executors.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub cores: u64,
    /// Clients that connect, again and again.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub clients: u64,
    /// Microseconds that each step computes.
    #[arg(long, default_value_t = 20.0, value_parser = positive)]
    pub step_us: f64,
    /// Milliseconds from one change of the configuration to the next.
    #[arg(long, default_value_t = 50.0, value_parser = positive)]
    pub change_ms: f64,
    /// Seconds for each of the four measurements.
    #[arg(long, default_value_t = 0.9, value_parser = positive)]
    pub seconds: f64,
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Case {
    clients: u64,
    /// Of [`measure::work`].
    step_work: u64,
    change: Duration,
    lasts: Duration,
}

/// What came out of one.
#[derive(Debug)]
struct Outcome {
    lap: Lap,
    connects: u64,
    reads: u64,
    stalls: u64,
    changes: u64,
    /// From wanting the configuration until a step has it.
    waits: Latencies,
    /// From the first step until after the last.
    connect_times: Latencies,
}

/// What the cores of one measurement share.
#[derive(Debug, Default)]
struct Progress {
    stop: AtomicBool,
    changes: AtomicU64,
}

/// What the clients of one core share.
#[derive(Debug, Default)]
struct Counts {
    connects: u64,
    reads: u64,
    stalls: u64,
    waits: Latencies,
    connect_times: Latencies,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), String> {
    let mut run = measure::new_run("config", &args.column, args)?;
    let case = Case {
        clients: args.clients,
        step_work: measure::calibrate(Duration::from_secs_f64(args.step_us / 1e6)),
        change: Duration::from_secs_f64(args.change_ms / 1e3),
        lasts: Duration::from_secs_f64(args.seconds),
    };
    let situation = format!("{} clients", args.clients);
    let all = All { case, options: args.column.options(args.cores as usize) };
    for (variant, outcome) in args.column.with(all)? {
        record(&mut run, &situation, variant, &outcome?)?;
    }
    measure::finish(run, &args.output)
}

/// All variants.
struct All {
    case: Case,
    options: RunOptions,
}

impl Visit for All {
    type Output = [(&'static str, Result<Outcome, String>); 4];

    fn visit<R: Runtime>(self) -> Self::Output {
        let (case, options) = (self.case, &self.options);
        [
            ("async lock, held over an await", measure_one::<R, HeldLock>(case, options)),
            ("async lock, held to copy", measure_one::<R, Lock>(case, options)),
            ("atomic snapshot", measure_one::<R, Snapshots>(case, options)),
            ("a copy for each core", measure_one::<R, Copies>(case, options)),
        ]
    }
}

fn measure_one<R: Runtime, S: Source>(case: Case, options: &RunOptions) -> Result<Outcome, String> {
    let world = S::world(options.cores);
    let progress = Arc::new(Progress::default());
    let shared = progress.clone();
    let cores = R::run_cores(options, move |core| {
        one_core::<R, S>(core, case, world.clone(), shared.clone())
    })
    .map_err(|error| error.to_string())?;
    let mut outcome = Outcome {
        lap: Lap::default(),
        connects: 0,
        reads: 0,
        stalls: 0,
        changes: progress.changes.load(Ordering::Relaxed),
        waits: Latencies::new(),
        connect_times: Latencies::new(),
    };
    for (lap, counts) in cores {
        outcome.lap = lap.unwrap_or(outcome.lap);
        outcome.connects += counts.connects;
        outcome.reads += counts.reads;
        outcome.stalls += counts.stalls;
        outcome.waits.merge(&counts.waits)?;
        outcome.connect_times.merge(&counts.connect_times)?;
    }
    Ok(outcome)
}

async fn one_core<R: Runtime, S: Source>(
    core: Core,
    case: Case,
    world: Arc<S::World>,
    progress: Arc<Progress>,
) -> (Option<Lap>, Counts) {
    let (source, keeper) = S::on_core::<R>(&world, core.index);
    let counts = Shared::new(Counts::default());
    let (index, count) = (core.index as u64, core.count as u64);
    let mine = case.clients / count + u64::from(index < case.clients % count);
    let clients: Vec<_> = (0..mine)
        .map(|_| R::spawn(client::<R, S>(case, source.clone(), counts.clone(), progress.clone())))
        .collect();
    let lap = match core.index {
        0 => Some(change::<R, S>(case, &world, &progress).await),
        _ => None,
    };
    for client in clients {
        let _ = client.await; // it returns nothing
    }
    if core.index == 0 {
        S::close(&world);
    }
    if let Some(keeper) = keeper {
        let _ = keeper.await; // it returns nothing
    }
    (lap, counts.with(std::mem::take))
}

/// Changes the configuration now and then, until the time is over.
async fn change<R: Runtime, S: Source>(case: Case, world: &S::World, progress: &Progress) -> Lap {
    let watch = Stopwatch::start::<R>();
    let mut ticks = R::interval(case.change);
    loop {
        ticks.tick().await;
        S::change(world).await;
        progress.changes.fetch_add(1, Ordering::Relaxed);
        let lap = watch.lap::<R>();
        if lap.wall >= case.lasts {
            progress.stop.store(true, Ordering::Relaxed);
            return lap;
        }
    }
}

/// Connects again and again.
async fn client<R: Runtime, S: Source>(
    case: Case,
    source: S,
    counts: Shared<Counts>,
    progress: Arc<Progress>,
) {
    while !progress.stop.load(Ordering::Relaxed) {
        let begun = R::now();
        for _ in 0..STEPS {
            let wait = source.step::<R>(case.step_work).await;
            let wait_ns = wait.as_nanos() as u64;
            counts.with(|counts| {
                counts.reads += 1;
                counts.stalls += u64::from(wait_ns >= STALL_NS);
                counts.waits.record(wait_ns);
            });
        }
        counts.with(|counts| {
            counts.connects += 1;
            counts.connect_times.record((R::now() - begun).as_nanos() as u64);
        });
    }
}

fn record(run: &mut Run, situation: &str, variant: &str, outcome: &Outcome) -> Result<(), String> {
    let name = |measure: &str| Name::text(situation, variant, measure);
    let reads = outcome.reads as f64;
    run.figure(&name("CONNECTs"), outcome.lap.per_second(outcome.connects), "/s");
    run.figure(&name("CPU per CONNECT"), outcome.lap.cpu_ns_per(outcome.connects) / 1e3, "us");
    run.figure(
        &name("longest wait for the configuration"),
        outcome.waits.max_ns() as f64 / 1e6,
        "ms",
    );
    run.figure(
        &name("reads that waited 5 ms or longer"),
        outcome.stalls as f64 / reads * 1e6,
        "of a million",
    );
    run.figure(&name("changes"), outcome.lap.per_second(outcome.changes), "/s");
    run.histogram(&name("wait for the configuration"), "from wanted to there", &outcome.waits)?;
    run.histogram(&name("time of a CONNECT"), "four steps", &outcome.connect_times)
}
