//! All cases on all columns in turn, round after round, so that a drift of the machine meets all
//! alike.

use super::model::{Case, Column, Comparison};
use crate::admin;
use crate::broker::{self, Broker, Start};
use crate::cli::LoadArgs;
use crate::client::Target;
use crate::machine::Machine;
use crate::process::Watched;
use crate::result::{self, CPU_PER_MESSAGE, PER_SECOND, PER_SYNC, Run};
use crate::scenario::conn::{self, CPU_PER_CONNECT, Storm, WHOLE_FLEET};
use crate::scenario::pubsub::{self, Shape};
use crate::scenario::stream::{self, Grid};

/// A column that is to be measured.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its name.
    pub label: String,
    /// How its broker starts.
    pub start: Start,
}

/// A case that is to be measured.
#[derive(Clone, Debug)]
pub struct Doing {
    /// Its name.
    pub label: String,
    /// What the broker is set to in this case.
    pub settings: Vec<(&'static str, &'static str)>,
    /// The load.
    pub load: Work,
    /// Names of the figures that are compared.
    pub figures: Vec<&'static str>,
    /// Name of the histogram that is quoted.
    pub histogram: Option<&'static str>,
    /// Whether the times of the broker's steps are shown.
    pub steps: bool,
}

/// A load.
#[derive(Clone, Debug)]
pub enum Work {
    /// Of `pubsub`.
    Pubsub {
        /// Who publishes to whom.
        shape: Shape,
        /// The messages.
        load: LoadArgs,
        /// Counts system calls, which disturbs everything else.
        syscalls: bool,
    },
    /// Of `stream`; with the settings' messages per sync where there are syncs.
    Stream {
        /// Who writes where.
        grid: Grid,
        /// The messages.
        load: LoadArgs,
    },
    /// Of `conn`.
    Conn(Storm),
}

/// What to say about a comparison.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Its heading.
    pub title: String,
    /// The load.
    pub load: String,
    /// What else a reader has to know.
    pub notes: Vec<String>,
    /// Whether all columns are the same.
    pub aa: bool,
}

/// Measures everything. A broker that loses or mixes up anything ends it.
pub fn measure(
    said: Said,
    planned: &[Planned],
    cases: &[Doing],
    rounds: u32,
) -> Result<Comparison, String> {
    let mut columns = Vec::new();
    for Planned { label, start } in planned {
        let version = broker::version(&start.program)?;
        let command = start.command();
        columns.push(Column { label: label.clone(), command, version, ready: String::new() });
    }
    let mut kept: Vec<Case> = cases.iter().map(|case| empty(case, planned.len())).collect();
    for round in 1..=rounds {
        for (doing, case) in cases.iter().zip(&mut kept) {
            for (at, it) in planned.iter().enumerate() {
                let (run, ready) = one_run(it, doing)?;
                eprintln!("round {round}/{rounds}: {}: {}: {}", doing.label, it.label, brief(&run));
                if columns[at].ready.is_empty() {
                    columns[at].ready = ready;
                }
                case.runs[at].push(run.kept(doing.histogram));
            }
        }
    }
    let Said { title, load, notes, aa } = said;
    Ok(Comparison {
        format: result::FORMAT,
        title,
        command: result::without_passwords(std::env::args()),
        machine: Machine::here(),
        load,
        notes,
        aa,
        rounds,
        columns,
        cases: kept,
    })
}

/// One uncounted run on a fresh broker.
pub fn try_out(planned: &Planned, doing: &Doing) -> Result<Run, String> {
    let (run, _) = one_run(planned, doing)?;
    eprintln!("calibration: {}: {}: {}", doing.label, planned.label, brief(&run));
    Ok(run)
}

/// A fresh broker, one run; with the broker's first line.
fn one_run(planned: &Planned, doing: &Doing) -> Result<(Run, String), String> {
    let mut start = planned.start.clone();
    start.settings.extend_from_slice(&doing.settings);
    let broker = start.start()?;
    let run = doing.load.run(&planned.label, &broker);
    let mut run = run.map_err(|error| format!("{}, {}: {error}", planned.label, doing.label))?;
    if doing.steps {
        // A broker without them has none to show.
        run.steps = admin::steps(broker.admin).unwrap_or_default();
    }
    match run.problems.is_empty() {
        true => Ok((run, broker.ready.clone())),
        false => Err(format!("{}, {}: {}", planned.label, doing.label, run.problems.join(", "))),
    }
}

impl Work {
    fn run(&self, label: &str, broker: &Broker) -> Result<Run, String> {
        let target = Target::new(broker.address);
        let watched = Watched::new(broker.pid());
        let mut run = Run::new(self.scenario(), label, &());
        match self {
            Self::Pubsub { shape, load, syscalls } => {
                let watched = match syscalls {
                    true => Watched::counting_syscalls(broker.pid())?,
                    false => watched,
                };
                let shards = shards_in(&broker.ready);
                pubsub::measure(&mut run, &target, Some(watched), (shape, shards), load)?;
            }
            Self::Stream { grid, load } => {
                stream::measure(&mut run, &target, Some(watched), grid, load)?;
                let syncs = admin::metric(broker.admin, "gearbox_journal_syncs_total")?;
                if let (Some(syncs), Some(account)) = (syncs, run.account) {
                    run.figure(PER_SYNC, account.sent as f64 / syncs, "");
                }
            }
            Self::Conn(storm) => conn::measure(&mut run, &target, Some(&watched), storm)?,
        }
        Ok(run)
    }

    fn scenario(&self) -> &'static str {
        match self {
            Self::Pubsub { .. } => "pubsub",
            Self::Stream { .. } => "stream",
            Self::Conn(_) => "conn",
        }
    }
}

fn empty(doing: &Doing, columns: usize) -> Case {
    Case {
        label: doing.label.clone(),
        figures: doing.figures.iter().map(|name| (*name).to_owned()).collect(),
        histogram: doing.histogram.map(str::to_owned),
        runs: vec![Vec::new(); columns],
        merged: Vec::new(),
    }
}

fn shards_in(ready: &str) -> u32 {
    let value = ready.split(' ').find_map(|field| field.strip_prefix("shards="));
    value.and_then(|value| value.parse().ok()).unwrap_or(1)
}

fn brief(run: &Run) -> String {
    let shown = [
        (PER_SECOND, "/s"),
        (CPU_PER_MESSAGE, "us CPU each"),
        (WHOLE_FLEET, "ms for all"),
        (CPU_PER_CONNECT, "us CPU each"),
    ];
    let shown = shown.iter().filter_map(|(name, unit)| {
        run.value(name).map(|value| format!("{} {unit}", crate::report::number(value)))
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_says_how_many_shards() {
        assert_eq!(shards_in("gearbox 1 ready driver=epoll shards=4 mqtt=x"), 4);
        assert_eq!(shards_in("gearbox"), 1);
    }
}
