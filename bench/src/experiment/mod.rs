//! Questions about Gearbox that measurements answer, each with its loads and columns. What was
//! expected, what came out and what would refute it stands in docs/results.

mod storm;
mod stream;

use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::{make_folder, positive};
use crate::compare::columns::Brokers;
use crate::compare::finish;
use crate::compare::series::Planned;

/// Rounds of a storm, as many as a bootstrap needs.
const STORM_ROUNDS: u32 = 6;
/// Rounds of a stream, so that two ranges of runs lie apart by chance only once in 35.
const STREAM_ROUNDS: u32 = 4;

/// Arguments of `experiment`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Which.
    #[arg(value_enum)]
    pub name: Name,
    #[command(flatten)]
    pub brokers: Brokers,
    /// Folder, on the disk that is meant, for the brokers' data directories [default: that of --out,
    /// else the working directory].
    #[arg(long)]
    pub disk: Option<PathBuf>,
    /// stream: messages a second of the runs at a fixed rate.
    #[arg(long, default_value_t = 20_000.0, value_parser = positive)]
    pub rate: f64,
    /// stream: seconds of each run at a fixed rate; half of that at full speed.
    #[arg(long, default_value_t = 2.5, value_parser = positive)]
    pub seconds: f64,
    /// storm: clients that come at once.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub clients: u32,
    /// storm: the column whose variants are compared.
    #[arg(long, default_value = "thread-per-core")]
    pub variants_of: String,
}

/// The experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// A thousand clients connect at once: where their time goes, and what changes it.
    Storm,
    /// Producers to every topic with persistent consumers: tails and throughput, with syncs and
    /// without.
    Stream,
}

/// Runs one, prints the tables, and writes files if asked to.
pub fn run(args: &Args) -> Result<(), String> {
    args.brokers.prepare()?;
    let disk = args.disk.clone().or_else(|| args.brokers.out.clone()).unwrap_or(".".into());
    make_folder(&disk)?;
    // Brokers are started with it, wherever they look from.
    let disk = disk.canonicalize().map_err(|error| format!("{}: {error}", disk.display()))?;
    let rounds = args.brokers.rounds.unwrap_or(match args.name {
        Name::Storm => STORM_ROUNDS,
        Name::Stream => STREAM_ROUNDS,
    });
    let planned = |name: &str| args.brokers.column(name, 1, Some(&disk));
    let columns: Result<Vec<Planned>, String> =
        args.brokers.columns.iter().map(|name| planned(name)).collect();
    let comparisons = match args.name {
        Name::Storm => {
            let one = planned(&args.variants_of)?;
            vec![
                ("columns", storm::columns(args, &columns?, rounds)?),
                ("variants", storm::variants(args, &one, rounds)?),
            ]
        }
        Name::Stream => vec![("columns", stream::columns(args, &columns?, rounds)?)],
    };
    finish(comparisons, args.brokers.out.as_deref())
}
