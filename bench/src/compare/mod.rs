//! The four columns in turn, round after round, so that a drift of the machine meets all alike.

pub mod summary;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::broker::{self, Start};
use crate::cli::{LoadArgs, make_folder, positive};
use crate::client::Target;
use crate::machine::Machine;
use crate::process;
use crate::report;
use crate::result::{self, File, PER_SECOND, Run};
use crate::scenario::pubsub::{Shape, measure};
use crate::stats::median;

/// Arguments of `compare`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Gearbox built with tokio alone.
    #[arg(long)]
    pub tokio_build: PathBuf,
    /// Gearbox built with all three runtimes.
    #[arg(long)]
    pub all_build: PathBuf,
    /// Rounds; each round runs every column once. With fewer than 4 nothing is compared.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Shards of the broker.
    #[arg(long, default_value_t = 1)]
    pub shards: u32,
    /// CPU that the broker is confined to.
    #[arg(long, default_value_t = 0)]
    pub broker_cpu: usize,
    /// CPU that the generator is confined to.
    #[arg(long, default_value_t = 1)]
    pub load_cpu: usize,
    /// The columns; the others are compared to the first.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "work-stealing,thread-per-core,monoio,compio"
    )]
    pub columns: Vec<String>,
    /// This column twice instead: what differs then is the noise of the machine.
    #[arg(long, conflicts_with = "columns")]
    pub aa: Option<String>,
    /// Latencies are measured at this share of the slowest column's full speed, unless --rate says
    /// at which rate.
    #[arg(long, default_value_t = 0.5, value_parser = share)]
    pub share: f64,
    /// Seconds of each run at that rate [default: as --seconds].
    #[arg(long, value_parser = positive)]
    pub latency_seconds: Option<f64>,
    /// Folder for comparison.json, report.md and report.html.
    #[arg(long, overrides_with = "out")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub shape: Shape,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// A comparison with all its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Version of the file.
    pub format: u32,
    /// The command line.
    pub command: Vec<String>,
    /// Where.
    pub machine: Machine,
    /// The load, for people.
    pub load: String,
    /// Whether all columns are the same.
    pub aa: bool,
    /// Rounds.
    pub rounds: u32,
    /// Messages a second of the runs at a fixed rate.
    pub rate: f64,
    /// Where that rate comes from.
    pub rate_from: String,
    /// The columns.
    pub columns: Vec<Column>,
}

/// One column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub label: String,
    /// How its broker was started, exactly.
    pub command: Vec<String>,
    /// What the program says about its version.
    pub version: String,
    /// The first broker's start-up line, with its driver.
    pub ready: String,
    /// Runs at full speed, one for each round.
    pub full: Vec<Run>,
    /// Runs at the fixed rate, one for each round.
    pub steady: Vec<Run>,
}

/// (name, label, runtime, scheduler, whether the build with tokio alone).
const COLUMNS: [(&str, &str, &str, &str, bool); 4] = [
    ("work-stealing", "tokio work-stealing", "tokio", "work-stealing", true),
    ("thread-per-core", "tokio thread-per-core", "tokio", "thread-per-core", true),
    ("monoio", "monoio", "monoio", "thread-per-core", false),
    ("compio", "compio", "compio", "thread-per-core", false),
];

/// Runs, prints a table, and writes files if asked to. One round before the first, which is not
/// counted, warms up and finds the rate.
pub fn run(args: &Args) -> Result<(), String> {
    process::pin(args.load_cpu)?;
    process::raise_descriptor_limit();
    let mut columns: Vec<(Column, Start)> = Vec::new();
    for (label, start) in starts(args)? {
        let version = broker::version(&start.program)?;
        let command = start.command();
        columns.push((Column { label, command, version, ..Column::default() }, start));
    }
    let full = LoadArgs { rate: None, ..args.load.clone() };
    let mut speeds = Vec::new();
    for (column, start) in &mut columns {
        let run = one_run(column, start, &args.shape, &full, "calibration")?;
        speeds.extend(run.value(PER_SECOND));
    }
    let (rate, rate_from) = rate(args, &speeds)?;
    let seconds = args.latency_seconds.unwrap_or(args.load.seconds);
    let steady = LoadArgs { rate: Some(rate), seconds, ..args.load.clone() };
    for round in 1..=args.rounds {
        let name = format!("round {round}/{}", args.rounds);
        for (column, start) in &mut columns {
            let run = one_run(column, start, &args.shape, &full, &name)?;
            column.full.push(run);
            let run = one_run(column, start, &args.shape, &steady, &name)?;
            column.steady.push(run);
        }
    }
    let comparison = Comparison {
        format: result::FORMAT,
        command: result::without_passwords(std::env::args()),
        machine: Machine::here(),
        load: describe(args),
        aa: args.aa.is_some(),
        rounds: args.rounds,
        rate,
        rate_from,
        columns: columns.into_iter().map(|(column, _)| column).collect(),
    };
    let document = report::comparison(&comparison)?;
    println!("{}", report::markdown::page(&[document]));
    if let Some(folder) = &args.out {
        make_folder(folder)?;
        File::Comparison(Box::new(comparison)).write(&folder.join("comparison.json"))?;
        report::write(folder, folder)?;
    }
    Ok(())
}

/// A fresh broker, one run. A broker that loses or mixes up anything ends the comparison.
fn one_run(
    column: &mut Column,
    start: &Start,
    shape: &Shape,
    load: &LoadArgs,
    round: &str,
) -> Result<Run, String> {
    let broker = start.start()?;
    if column.ready.is_empty() {
        column.ready.clone_from(&broker.ready);
    }
    let mut run = Run::new("pubsub", &column.label, load);
    measure(&mut run, &Target::new(broker.address), Some(broker.pid()), shape, load)
        .map_err(|error| format!("{}: {error}", column.label))?;
    let speed = run.value(PER_SECOND).unwrap_or_default();
    let cpu = run.value("broker CPU per message").unwrap_or_default();
    eprintln!("{round}: {}: {speed:.0} messages/s, {cpu:.2} us CPU per message", column.label);
    match run.problems.is_empty() {
        true => Ok(run),
        false => Err(format!("{}: {}", column.label, run.problems.join(", "))),
    }
}

fn starts(args: &Args) -> Result<Vec<(String, Start)>, String> {
    let named = |name: &String| {
        let column = COLUMNS.iter().find(|column| column.0 == name);
        let (_, label, runtime, scheduler, tokio_alone) = *column.ok_or_else(|| {
            let known: Vec<_> = COLUMNS.iter().map(|column| column.0).collect();
            format!("no column {name:?}; there are {}", known.join(", "))
        })?;
        let program = if tokio_alone { &args.tokio_build } else { &args.all_build };
        let (shards, cpu) = (args.shards, args.broker_cpu);
        let start = Start { program: program.clone(), runtime, scheduler, shards, cpu };
        Ok((label.to_owned(), start))
    };
    match &args.aa {
        None => args.columns.iter().map(named).collect(),
        Some(name) => {
            let (label, start) = named(name)?;
            Ok(vec![(format!("{label}, A"), start.clone()), (format!("{label}, again"), start)])
        }
    }
}

fn rate(args: &Args, speeds: &[f64]) -> Result<(f64, String), String> {
    if let Some(rate) = args.load.rate {
        return Ok((rate, "as asked for".to_owned()));
    }
    let slowest = speeds.iter().copied().reduce(f64::min).filter(|speed| *speed > 0.0);
    let slowest = slowest.ok_or("the calibration delivered nothing")?;
    let from = format!(
        "{:.0} % of the slowest column's full speed in the calibration ({slowest:.0}/s; median of \
         all columns {:.0}/s)",
        args.share * 100.0,
        median(speeds).unwrap_or_default(),
    );
    Ok(((slowest * args.share).max(1.0), from))
}

fn describe(args: &Args) -> String {
    format!(
        "{}, QoS {}, {} bytes, at full speed {} under way, {} shard(s), broker on CPU {}, generator \
         on CPU {}, {} s each",
        args.shape.text(),
        args.load.qos.unwrap_or(0),
        args.load.size,
        args.load.window,
        args.shards,
        args.broker_cpu,
        args.load_cpu,
        args.load.seconds,
    )
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1.0 => Ok(value),
        _ => Err("must lie above 0 and be 1 at most".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(more: &str) -> Args {
        let line = format!("x compare --tokio-build /t --all-build /a {more}");
        match Cli::try_parse_from(line.split_whitespace()) {
            Ok(Cli { command: Command::Compare(args) }) => args,
            _ => panic!("not understood: {line}"),
        }
    }

    #[test]
    fn columns_are_the_four_unless_told_otherwise() {
        let found = |more| starts(&args(more)).map(|starts| starts.len());
        assert_eq!(found(""), Ok(4));
        assert_eq!(found("--columns monoio,compio"), Ok(2));
        assert!(found("--columns nonsense").unwrap_err().contains("work-stealing"));
        let twice = starts(&args("--aa monoio")).unwrap();
        assert_eq!(twice[0].1.command(), twice[1].1.command());
        assert_ne!(twice[0].0, twice[1].0);
        let command = twice[0].1.command().join(" ");
        assert!(command.starts_with("taskset -c 0 /a serve --ephemeral"), "{command}");
        assert!(starts(&args("")).unwrap()[0].1.command().contains(&"/t".to_owned()));
    }

    #[test]
    fn the_rate_is_a_share_of_the_slowest() {
        assert_eq!(rate(&args("--share 0.25"), &[4_000.0, 8_000.0]).unwrap().0, 1_000.0);
        assert_eq!(rate(&args("--rate 77"), &[4_000.0]).unwrap().0, 77.0);
        assert!(rate(&args(""), &[]).is_err());
    }
}
