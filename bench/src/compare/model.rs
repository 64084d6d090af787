//! What a comparison keeps.

use serde::{Deserialize, Serialize};

use crate::latency::Latencies;
use crate::machine::Machine;
use crate::result::Run;

/// A comparison with all its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Version of the file.
    pub format: u32,
    /// Its heading.
    pub title: String,
    /// The command line.
    pub command: Vec<String>,
    /// Where.
    pub machine: Machine,
    /// The load, for people.
    pub load: String,
    /// What else a reader has to know.
    pub notes: Vec<String>,
    /// Whether all columns are the same.
    pub aa: bool,
    /// Rounds.
    pub rounds: u32,
    /// The columns; the others are compared to the first.
    pub columns: Vec<Column>,
    /// What was done to each column in each round.
    pub cases: Vec<Case>,
}

/// One broker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub label: String,
    /// How it was started, exactly, but for settings of a case.
    pub command: Vec<String>,
    /// What the program says about its version.
    pub version: String,
    /// The start-up line of its first start, with its driver.
    pub ready: String,
}

/// One load on all columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Its name.
    pub label: String,
    /// The figures that are compared, the most important first.
    pub figures: Vec<String>,
    /// The histogram that is quoted.
    pub histogram: Option<String>,
    /// For each column the runs, one for each round.
    pub runs: Vec<Vec<Run>>,
}

impl Case {
    /// The quoted latencies of all runs of a column together.
    pub fn merged(&self, column: usize) -> Result<Latencies, String> {
        let mut all = Latencies::new();
        for run in self.runs.get(column).into_iter().flatten() {
            if let Some(latencies) = self.histogram.as_ref().and_then(|name| run.latencies(name)) {
                all.merge(&latencies?)?;
            }
        }
        Ok(all)
    }

    /// All runs.
    pub fn all_runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().flatten()
    }
}
