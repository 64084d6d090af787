//! The command line of the simulation.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Parser;
use rt_abstract::planted;

use crate::oracle::Violation;
use crate::runner::{self, Report};
use crate::workload::{Faults, Keep, Options, Plan, generate};

/// Runs simulated histories of the broker and judges them.
#[derive(Clone, Debug, Parser)]
#[command(name = "rt-sim", version)]
pub struct Cli {
    /// How many seeds to run
    #[arg(long, default_value_t = 100, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Run this seed alone, twice, and show what happened
    #[arg(long)]
    seed: Option<u64>,
    /// Of that seed's plan, keep these steps alone: 3,5-9
    #[arg(long, requires = "seed")]
    keep: Option<Keep>,
    /// Nodes of a world
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=1))]
    nodes: u8,
    /// Clients of a world; 0: as the seed says, 2 to 6
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    clients: u8,
    /// Which faults may come: all, none, or kinds with commas between them
    #[arg(long, default_value = "all")]
    faults: Faults,
    /// Threads; a world stays on one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Go on after a seed that failed
    #[arg(long)]
    keep_going: bool,
    /// Runs for making a failing history smaller; 0: leave it as it is
    #[arg(long, default_value_t = 400)]
    shrink_runs: usize,
    /// A mistake to be made, by name, in a build with the feature `planted-bugs`
    #[arg(long)]
    bug: Option<String>,
}

const PROGRESS: Duration = Duration::from_secs(10);
/// Events of a failing history that are shown.
const SHOWN: usize = 200;

/// Runs what was asked for. True: no promise was broken.
///
/// # Errors
/// What is wrong with the command line, and when nothing can be printed.
pub fn main(cli: &Cli) -> io::Result<bool> {
    if let Some(bug) = &cli.bug {
        planted::plant(bug).map_err(io::Error::other)?;
    }
    let options = Options {
        nodes: cli.nodes.into(),
        clients: cli.clients.into(),
        faults: cli.faults.clone(),
    };
    match cli.seed {
        Some(seed) => one(cli, &generate(seed, &options)),
        None => many(cli, &options),
    }
}

fn one(cli: &Cli, plan: &Plan) -> io::Result<bool> {
    let plan = cli.keep.as_ref().map_or_else(|| plan.clone(), |keep| plan.keeping(keep));
    let mut out = io::stdout().lock();
    let outcome = runner::run(&plan, true);
    writeln!(out, "{:#?}", plan.setup)?;
    for client in &plan.clients {
        writeln!(out, "{client:?}")?;
    }
    for event in &outcome.events {
        writeln!(out, "{event}")?;
    }
    if let Some(violation) = &outcome.violation {
        writeln!(out, "{violation}")?;
    }
    let again = runner::run(&plan, false);
    if again.digest != outcome.digest {
        writeln!(out, "not the same twice: {:016x} and {:016x}", outcome.digest, again.digest)?;
    }
    let failed = outcome.violation.is_some() || again.digest != outcome.digest;
    writeln!(out, "virtual {:.1} s, {} polls", outcome.virtual_ms as f64 / 1e3, outcome.polls)?;
    writeln!(out, "seeds 1 failed {}", u8::from(failed))?;
    writeln!(out, "digest {:016x}", outcome.digest)?;
    Ok(!failed)
}

fn many(cli: &Cli, options: &Options) -> io::Result<bool> {
    let begin = Instant::now();
    let (mut done, mut told) = (0_u64, begin);
    let mut first_failure: Option<(Plan, Violation)> = None;
    let prepare = || {
        if let Some(bug) = &cli.bug {
            // It was checked before.
            let _ = planted::plant(bug);
        }
    };
    let report = runner::run_all(
        cli.first_seed,
        cli.seeds,
        cli.jobs.into(),
        options,
        prepare,
        |seed, plan, outcome| {
            done += 1;
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                let per_second = done as f64 / begin.elapsed().as_secs_f64();
                eprintln!("{done} seeds, {per_second:.1} per second");
            }
            if let Some(violation) = &outcome.violation {
                eprintln!("seed {seed}: {violation}");
                first_failure.get_or_insert_with(|| (plan.clone(), violation.clone()));
            }
            outcome.violation.is_none() || cli.keep_going
        },
    );
    let elapsed = begin.elapsed();
    let mut out = io::stdout().lock();
    if let Some((plan, violation)) = &first_failure {
        show_failure(&mut out, cli, plan, violation)?;
    }
    summary(&mut out, &report, elapsed)?;
    Ok(report.failed.is_empty())
}

fn show_failure(
    out: &mut impl Write,
    cli: &Cli,
    plan: &Plan,
    violation: &Violation,
) -> io::Result<()> {
    let shrunk = match cli.shrink_runs {
        0 => None,
        runs => runner::shrink(plan, violation.rule, runs),
    };
    let (keep, shown) = match shrunk {
        Some((keep, outcome)) => (Some(keep), outcome),
        None => (None, runner::run(plan, true)),
    };
    let skipped = shown.events.len().saturating_sub(SHOWN);
    if skipped > 0 {
        writeln!(out, "({skipped} earlier events are left out)")?;
    }
    for event in &shown.events[skipped..] {
        writeln!(out, "{event}")?;
    }
    let violation = shown.violation.as_ref().unwrap_or(violation);
    writeln!(out, "seed {}: {violation}", plan.seed)?;
    write!(out, "replay: cargo run -p rt-sim --release")?;
    if cli.bug.is_some() {
        write!(out, " --features planted-bugs")?;
    }
    write!(out, " -- --seed {} --nodes {}", plan.seed, cli.nodes)?;
    if cli.clients > 0 {
        write!(out, " --clients {}", cli.clients)?;
    }
    if cli.faults != Faults::all() {
        write!(out, " --faults {}", cli.faults)?;
    }
    if let Some(keep) = keep {
        write!(out, " --keep {keep}")?;
    }
    if let Some(bug) = &cli.bug {
        write!(out, " --bug {bug}")?;
    }
    writeln!(out)
}

fn summary(out: &mut impl Write, report: &Report, elapsed: Duration) -> io::Result<()> {
    let (hours, seconds) = (report.virtual_ms as f64 / 3_600_000.0, elapsed.as_secs_f64());
    writeln!(
        out,
        "{:.1} seeds per second, {hours:.2} virtual hours in {seconds:.1} s ({:.0} times as fast), {} events",
        report.seeds as f64 / seconds,
        report.virtual_ms as f64 / 1e3 / seconds,
        report.events,
    )?;
    write!(out, "planned:")?;
    for (kind, count) in &report.planned {
        write!(out, " {kind} {count}")?;
    }
    writeln!(out, "\ntook effect: {}", report.coverage)?;
    writeln!(out, "seeds {} failed {}", report.seeds, report.failed.len())?;
    writeln!(out, "digest {:016x}", report.digest)
}
