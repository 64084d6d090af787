//! The same loads on different brokers, in turn.

pub mod columns;
pub mod knee;
pub mod model;
pub mod series;
pub mod summary;

use std::path::Path;

pub use model::Comparison;

use crate::cli::{LoadArgs, make_folder, positive};
use crate::process::Watched;
use crate::report;
use crate::result::{
    CPU_PER_MESSAGE, DELIVERY, File, LATENESS_P99, PER_CPU_SECOND, PER_SECOND,
    SWITCHES_PER_MESSAGE, SYSCALLS_PER_MESSAGE,
};
use crate::scenario::pubsub::Shape;
use columns::Brokers;
use knee::Knee;
use series::{Doing, Planned, Said, Work};

/// Arguments of `compare`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    pub brokers: Brokers,
    /// Shards of the broker.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub shards: u32,
    /// This column twice instead: what differs then is the noise of the machine.
    #[arg(long, conflicts_with = "columns")]
    pub aa: Option<String>,
    /// Latencies are measured at these percentages of the knee of the column whose knee is lowest,
    /// unless --rate says at which rate.
    #[arg(long, value_delimiter = ',', default_value = "30,50,70,90",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub levels: Vec<u32>,
    /// Seconds of each run at a fixed rate [default: two thirds of --seconds].
    #[arg(long, value_parser = positive)]
    pub latency_seconds: Option<f64>,
    #[command(flatten)]
    pub shape: Shape,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// A fixed rate with its name.
type Level = (String, f64);

/// Rounds, as many as a bootstrap needs.
const ROUNDS: u32 = 6;
/// Seconds of the runs in which system calls are counted; they do not depend on time.
const COUNTING_SECONDS: f64 = 0.5;
/// The figure that is compared first, and what explains it.
const FULL_FIGURES: [&str; 3] = [PER_CPU_SECOND, PER_SECOND, LATENESS_P99];
const LEVEL_FIGURES: [&str; 3] = [CPU_PER_MESSAGE, SWITCHES_PER_MESSAGE, LATENESS_P99];

/// Runs, prints the tables, and writes files if asked to.
pub fn run(args: &Args) -> Result<(), String> {
    args.brokers.prepare()?;
    let planned = planned(args)?;
    let (levels, mut notes) = levels(args, &planned)?;
    let mut cases = vec![Doing {
        label: "full speed".to_owned(),
        steps: true,
        figures: FULL_FIGURES.to_vec(),
        ..doing(args, None, args.load.seconds, false)
    }];
    let seconds = args.latency_seconds.unwrap_or(args.load.seconds * 2.0 / 3.0);
    for (label, rate) in &levels {
        cases.push(Doing {
            label: label.clone(),
            figures: LEVEL_FIGURES.to_vec(),
            histogram: Some(DELIVERY),
            ..doing(args, Some(*rate), seconds, false)
        });
    }
    match Watched::counting_syscalls(std::process::id()) {
        Err(reason) => notes.push(format!("System calls were not counted: {reason}.")),
        Ok(_) => {
            // In the middle of the range.
            let (label, rate) = &levels[levels.len() / 2];
            cases.push(Doing {
                label: format!("{label}, counting"),
                figures: vec![SYSCALLS_PER_MESSAGE],
                ..doing(args, Some(*rate), COUNTING_SECONDS, true)
            });
        }
    }
    notes.extend(columns::asymmetries());
    let said = Said {
        title: if args.aa.is_some() { "A/A comparison" } else { "Comparison" }.to_owned(),
        load: describe(args, seconds),
        notes,
        aa: args.aa.is_some(),
    };
    let comparison =
        series::measure(said, &planned, &cases, args.brokers.rounds.unwrap_or(ROUNDS))?;
    finish(vec![("comparison", comparison)], args.brokers.out.as_deref())
}

/// Prints the tables and writes what was asked for.
pub fn finish(comparisons: Vec<(&str, Comparison)>, out: Option<&Path>) -> Result<(), String> {
    let documents: Result<Vec<_>, String> =
        comparisons.iter().map(|(_, comparison)| report::comparison(comparison)).collect();
    println!("{}", report::markdown::page(&documents?));
    let Some(folder) = out else { return Ok(()) };
    make_folder(folder)?;
    for (name, comparison) in comparisons {
        let path = folder.join(name).with_extension("json");
        File::Comparison(Box::new(comparison)).write(&path)?;
    }
    report::write(folder, folder)
}

fn doing(args: &Args, rate: Option<f64>, seconds: f64, syscalls: bool) -> Doing {
    let load = LoadArgs { rate, seconds, ..args.load.clone() };
    let label = rate.map_or("full speed".to_owned(), |rate| format!("{rate:.0}/s"));
    Doing {
        label,
        settings: Vec::new(),
        load: Work::Pubsub { shape: args.shape.clone(), load, syscalls },
        figures: Vec::new(),
        histogram: None,
        steps: false,
    }
}

fn planned(args: &Args) -> Result<Vec<Planned>, String> {
    let planned = |name: &String| args.brokers.column(name, args.shards, None);
    match &args.aa {
        None => args.brokers.columns.iter().map(planned).collect(),
        Some(name) => {
            let one = planned(name)?;
            let label = &one.label;
            let (first, again) = (format!("{label}, A"), format!("{label}, again"));
            Ok(vec![
                Planned { label: first, ..one.clone() },
                Planned { label: again, start: one.start },
            ])
        }
    }
}

/// The fixed rates with their names, and what the calibration showed.
fn levels(args: &Args, planned: &[Planned]) -> Result<(Vec<Level>, Vec<String>), String> {
    if let Some(rate) = args.load.rate {
        return Ok((vec![(format!("{rate:.0}/s"), rate)], Vec::new()));
    }
    let mut knees = Vec::new();
    for it in planned {
        let knee = knee::find(it, |rate| doing(args, rate, knee::TRIAL_SECONDS, false))?;
        knees.push((it.label.as_str(), knee));
    }
    Ok(shares(&args.levels, &knees))
}

fn shares(levels: &[u32], knees: &[(&str, Knee)]) -> (Vec<Level>, Vec<String>) {
    let (lowest, found) = knee::lowest(knees);
    let note = format!(
        "Knees, the highest rates at which nine of ten deliveries take no more than 10 ms, found \
         by one search before the rounds: {found}. Levels are shares of the lowest, for all columns."
    );
    let rate = |percent: &u32| (lowest * f64::from(*percent) / 100.0).max(1.0);
    let name = |percent: &u32| format!("{percent} % of the knee, {:.0}/s", rate(percent));
    (levels.iter().map(|percent| (name(percent), rate(percent))).collect(), vec![note])
}

fn describe(args: &Args, latency_seconds: f64) -> String {
    format!(
        "{}, QoS {}, {} bytes, at full speed {} under way, {} shard(s), {}, {} s at full speed, \
         {latency_seconds:.1} s at each fixed rate",
        args.shape.text(),
        args.load.qos.unwrap_or(0),
        args.load.size,
        args.load.window,
        args.shards,
        args.brokers.text(),
        args.load.seconds,
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(more: &str) -> Args {
        let line = format!("x compare --tokio-build /t --all-build /a {more}");
        match Cli::try_parse_from(line.split_whitespace()) {
            Ok(Cli { command: Command::Compare(args) }) => *args,
            _ => panic!("not understood: {line}"),
        }
    }

    #[test]
    fn columns_are_the_four_unless_told_otherwise() {
        let found = |more| planned(&args(more)).map(|planned| planned.len());
        assert_eq!(found(""), Ok(4));
        assert_eq!(found("--columns monoio,compio"), Ok(2));
        assert!(found("--columns nonsense").unwrap_err().contains("work-stealing"));
        let twice = planned(&args("--aa monoio")).unwrap();
        assert_eq!(twice[0].start, twice[1].start);
        assert_ne!(twice[0].label, twice[1].label);
        let command = twice[0].start.command().join(" ");
        assert!(command.starts_with("env taskset -c 0 /a serve"), "{command}");
        assert!(planned(&args("")).unwrap()[0].start.command().contains(&"/t".to_owned()));
    }

    #[test]
    fn levels_are_shares_of_the_lowest_knee() {
        let knee = |rate| Knee { rate, of_generator: rate > 5_000.0 };
        let (levels, notes) = shares(&[25, 90], &[("a", knee(8_000.0)), ("b", knee(4_000.0))]);
        let rates: Vec<f64> = levels.iter().map(|(_, rate)| *rate).collect();
        assert_eq!(rates, [1_000.0, 3_600.0]);
        assert!(notes[0].contains("a 8000/s (the generator's), b 4000/s."), "{}", notes[0]);
        let (levels, _) = super::levels(&args("--rate 77"), &[]).unwrap();
        assert_eq!(levels, [("77/s".to_owned(), 77.0)]);
    }
}
