//! An experiment on all columns in turn, round after round, so that a drift of the machine meets all
//! alike; and its pages.

mod broker;
mod data;
mod page;
mod process;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::backend::{Backend, Column, Placement};
use crate::echo;
use crate::locks::Map;
use crate::measure::generator;
use data::{ColumnData, Data};

/// One run of one column; the longest takes a tenth of it.
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// Something that takes microseconds, or never ends.
const REENTRY_LIMIT: Duration = Duration::from_secs(2);

/// Arguments of `experiment`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Which.
    #[arg(value_enum)]
    pub name: Name,
    /// This program built with tokio alone.
    #[arg(long)]
    pub tokio_build: PathBuf,
    /// This program built with all three runtimes.
    #[arg(long)]
    pub all_build: PathBuf,
    /// Rounds; each runs every column once. With fewer than 4 nothing is compared.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// The columns.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "work-stealing,thread-per-core,monoio,compio"
    )]
    pub columns: Vec<ColumnName>,
    /// For `echo`: the broker built with tokio alone, to show what MQTT costs.
    #[arg(long, requires_all = ["broker_all", "bench"])]
    pub broker_tokio: Option<PathBuf>,
    /// For `echo`: the broker built with all three runtimes.
    #[arg(long)]
    pub broker_all: Option<PathBuf>,
    /// For `echo`: the load generator for the broker.
    #[arg(long)]
    pub bench: Option<PathBuf>,
    /// Folder for data.json, report.md and report.html.
    #[arg(long, overrides_with = "out")]
    pub out: PathBuf,
    /// A Markdown page whose part between `<!-- figures -->` and `<!-- end of figures -->` is
    /// replaced.
    #[arg(long)]
    pub page: Option<PathBuf>,
    /// Flags for each run, behind `--`.
    #[arg(last = true)]
    pub flags: Vec<String>,
}

/// Arguments of `report`.
#[derive(clap::Args, Clone, Debug)]
pub struct ReportArgs {
    /// Folder with data.json.
    pub dir: PathBuf,
    /// As of `experiment`.
    #[arg(long)]
    pub page: Option<PathBuf>,
}

/// An experiment by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Name {
    /// Shared maps against owned ones.
    Locks,
    /// Ways to a configuration.
    Config,
    /// Files.
    Files,
    /// What the traits cost.
    Echo,
}

/// A column by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColumnName {
    /// tokio, one pool.
    WorkStealing,
    /// tokio, one executor for each core.
    ThreadPerCore,
    /// monoio.
    Monoio,
    /// compio.
    Compio,
}

/// A column as it is started.
struct Start {
    data: ColumnData,
    command: Vec<String>,
    /// In `echo`: the broker of the same column.
    broker: Option<bench::BrokerStart>,
}

impl ColumnName {
    fn column(self) -> Column {
        let (runtime, scheduler) = match self {
            Self::WorkStealing => (Backend::Tokio, Placement::WorkStealing),
            Self::ThreadPerCore => (Backend::Tokio, Placement::ThreadPerCore),
            Self::Monoio => (Backend::Monoio, Placement::ThreadPerCore),
            Self::Compio => (Backend::Compio, Placement::ThreadPerCore),
        };
        Column { runtime, scheduler }
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), String> {
    std::fs::create_dir_all(&args.out)
        .map_err(|error| format!("{}: {error}", args.out.display()))?;
    let mut starts = starts(args);
    let mut machine = bench::Machine::here();
    machine.generator = generator();
    let facts = match args.name {
        Name::Locks => reentry(&args.tokio_build)?,
        _ => Vec::new(),
    };
    let result = args.out.join("run.json.new");
    for round in 1..=args.rounds {
        for start in &mut starts {
            eprintln!("round {round}/{}: {}", args.rounds, start.data.label);
            let mut command = start.command.clone();
            command.extend(["--json".to_owned(), result.display().to_string()]);
            process::run(&command, RUN_LIMIT)
                .map_err(|error| format!("{}: {error}", start.data.label))?;
            start.data.add(&data::take_run(&result)?)?;
            if let (Some(broker), Some(bench)) = (&start.broker, &args.bench) {
                start.data.add_figures(&broker::run(broker, bench, &result)?);
            }
        }
    }
    let columns = starts.into_iter().map(|start| start.data).collect();
    let command = without_folders(std::env::args());
    let data = Data {
        format: data::FORMAT,
        experiment: args.name,
        command,
        machine,
        rounds: args.rounds,
        facts,
        columns,
    };
    data.write(&args.out)?;
    show(&data, &args.out, args.page.as_deref())
}

/// The pages again.
pub fn report(args: &ReportArgs) -> Result<(), String> {
    show(&Data::read(&args.dir)?, &args.dir, args.page.as_deref())
}

fn show(data: &Data, out: &Path, into: Option<&Path>) -> Result<(), String> {
    let documents = [page::document(data)?];
    println!("{}", bench::markdown(&documents));
    if let Some(page) = into {
        bench::write_into(page, &documents)?;
    }
    bench::write_pages(&documents, out)
}

impl Name {
    /// As on the command line.
    pub fn text(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Config => "config",
            Self::Files => "files",
            Self::Echo => "echo",
        }
    }
}

/// A command as it may be shown: of a path from the root on, what it leads to.
fn without_folders(command: impl Iterator<Item = String>) -> Vec<String> {
    let shown = |argument: String| match Path::new(&argument) {
        path if path.is_absolute() => {
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or(argument)
        }
        _ => argument,
    };
    command.map(shown).collect()
}

fn starts(args: &Args) -> Vec<Start> {
    let mut starts = Vec::new();
    let mut add = |label: &str, program: &Path, flags: Vec<String>, broker| {
        let mut command = vec![program.display().to_string(), args.name.text().to_owned()];
        command.extend(flags);
        command.extend(args.flags.clone());
        let data = ColumnData {
            label: label.to_owned(),
            command: without_folders(command.iter().cloned()),
            ..ColumnData::default()
        };
        starts.push(Start { data, command, broker });
    };
    if args.name == Name::Echo {
        for kind in [echo::Kind::Epoll, echo::Kind::IoUring] {
            let flags = ["--server", kind.name()].map(str::to_owned).to_vec();
            add(kind.label(), &args.tokio_build, flags, None);
        }
    }
    for name in &args.columns {
        let column = name.column();
        let alone = column.runtime == Backend::Tokio;
        let program = if alone { &args.tokio_build } else { &args.all_build };
        let broker = if alone { &args.broker_tokio } else { &args.broker_all };
        let broker = broker.as_ref().filter(|_| args.name == Name::Echo);
        let broker = broker.map(|program| broker::start(program, column));
        add(column.label(), program, column.flags().to_vec(), broker);
    }
    starts
}

/// Whether inserting into each shared map while walking over it ends.
fn reentry(program: &Path) -> Result<Vec<String>, String> {
    let mut facts = Vec::new();
    for map in Map::value_variants() {
        let name = map.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default();
        let command =
            [program.display().to_string(), "reentry".to_owned(), "--map".to_owned(), name.clone()];
        let ends = process::ends(&command, REENTRY_LIMIT)?;
        let limit = REENTRY_LIMIT.as_secs();
        let end = if ends { "ends" } else { "waits for itself" };
        let stopped = if ends { String::new() } else { format!(" (stopped after {limit} s)") };
        facts.push(format!("Inserting while walking, {name}: {end}{stopped}."));
    }
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_without_folders() {
        let command = ["/home/x/lab", "locks", "--out", "/home/x/out", "a/b"].map(str::to_owned);
        let shown = without_folders(command.into_iter());
        assert_eq!(shown, ["lab", "locks", "--out", "out", "a/b"]);
    }
}
