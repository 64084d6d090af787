//! The four columns in turn, round after round, so that a drift of the machine meets all alike.

use std::path::PathBuf;

use crate::LoadArgs;
use crate::broker::Broker;
use crate::load::{self, Report};

/// What is compared, and where it runs.
pub struct Setup {
    pub tokio_build: PathBuf,
    pub all_build: PathBuf,
    pub rounds: u32,
    pub shards: u32,
    pub broker_cpu: usize,
    pub load_cpu: usize,
}

/// (label, runtime, scheduler, whether the build with tokio alone).
const COLUMNS: [(&str, &str, &str, bool); 4] = [
    ("tokio work-stealing", "tokio", "work-stealing", true),
    ("tokio thread-per-core", "tokio", "thread-per-core", true),
    ("monoio", "monoio", "thread-per-core", false),
    ("compio", "compio", "thread-per-core", false),
];

/// Runs and prints a table of medians with their ranges.
pub fn run(setup: &Setup, load: &LoadArgs) -> Result<(), String> {
    pin(setup.load_cpu)?;
    let mut results: [Vec<Report>; COLUMNS.len()] = Default::default();
    for round in 1..=setup.rounds {
        for (column, reports) in COLUMNS.iter().zip(&mut results) {
            let (label, runtime, scheduler, tokio_alone) = *column;
            let program = if tokio_alone { &setup.tokio_build } else { &setup.all_build };
            let broker =
                Broker::start(program, runtime, scheduler, setup.shards, setup.broker_cpu)?;
            let report = load::run(broker.address, Some(broker.pid()), load)
                .map_err(|error| format!("{label}: {error}"))?;
            report.check().map_err(|error| format!("{label}: {error}"))?;
            eprintln!("round {round}/{}: {label}: {report}", setup.rounds);
            reports.push(report);
        }
    }
    println!(
        "{} pairs, QoS {}, {} bytes, window {}, {} shard(s), broker on CPU {}, {} round(s)",
        load.pairs, load.qos, load.size, load.window, setup.shards, setup.broker_cpu, setup.rounds,
    );
    println!("| column | CPU us/message, median (min-max) | messages/s, median |");
    println!("|---|---|---|");
    for ((label, ..), reports) in COLUMNS.iter().zip(&results) {
        let mut cpu: Vec<f64> = reports.iter().filter_map(Report::cpu_us_per_message).collect();
        let mut rate: Vec<f64> = reports.iter().map(Report::messages_per_second).collect();
        cpu.sort_by(f64::total_cmp);
        rate.sort_by(f64::total_cmp);
        let (Some(low), Some(high)) = (cpu.first(), cpu.last()) else {
            return Err(format!("{label}: the broker's CPU time could not be read"));
        };
        println!(
            "| {label} | {:.2} ({low:.2}-{high:.2}) | {:.0} |",
            cpu[cpu.len() / 2],
            rate[rate.len() / 2],
        );
    }
    Ok(())
}

fn pin(cpu: usize) -> Result<(), String> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cpu >= CpuSet::MAX_CPU {
        return Err(format!("no CPU number {cpu}"));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| format!("cannot run on CPU {cpu}: {error}"))
}
