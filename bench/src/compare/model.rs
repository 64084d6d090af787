//! What a comparison keeps.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::latency::{Encoded, Latencies};
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
    /// For each column the quoted latencies of all runs together, where the runs have kept their
    /// percentiles only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<Encoded>,
}

impl Comparison {
    /// A smaller one that shows the same, to be kept: of the histograms of a column's runs their sum,
    /// and commands without the folders of this machine.
    pub fn pruned(&self) -> Result<Self, String> {
        let mut pruned = self.clone();
        let quoting = |(_, whole): &(&mut Case, &Case)| whole.histogram.is_some();
        for (case, whole) in pruned.cases.iter_mut().zip(&self.cases).filter(quoting) {
            let merged = (0..whole.runs.len()).map(|column| whole.merged(column)?.encode());
            case.merged = merged.collect::<Result<_, _>>()?;
            let histograms = case.runs.iter_mut().flatten().flat_map(|run| &mut run.histograms);
            histograms.for_each(|histogram| histogram.encoded.hdr_v2_base64.clear());
        }
        let commands = pruned.columns.iter_mut().map(|column| &mut column.command);
        for argument in commands.chain([&mut pruned.command]).flatten() {
            let path = Path::new(argument.as_str());
            if let Some(name) = path.file_name().filter(|_| path.is_absolute()) {
                *argument = name.to_string_lossy().into_owned();
            }
        }
        Ok(pruned)
    }
}

impl Case {
    /// The quoted latencies of all runs of a column together.
    pub fn merged(&self, column: usize) -> Result<Latencies, String> {
        if let Some(merged) = self.merged.get(column) {
            return Latencies::decode(merged);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::summary::tests::comparison;
    use crate::report;

    #[test]
    fn a_pruned_comparison_shows_the_same() {
        let mut whole = comparison(2.0);
        whole.command = ["gearbox-bench", "--out", "out"].map(str::to_owned).to_vec();
        let pruned = whole.pruned().unwrap();
        let text = |it: &Comparison| serde_json::to_string(it).unwrap();
        let mut histograms = pruned.cases[1].all_runs().flat_map(|run| &run.histograms);
        assert!(histograms.all(|it| it.encoded.count > 0 && it.encoded.hdr_v2_base64.is_empty()));
        assert_eq!((pruned.cases[0].merged.len(), pruned.cases[1].merged.len()), (0, 2));
        let page = |it: &Comparison| report::markdown::page(&[report::comparison(it).unwrap()]);
        assert_eq!(page(&pruned), page(&whole));
        assert_eq!(text(&pruned.pruned().unwrap()), text(&pruned), "once is enough");
        whole.columns[0].command = ["/a/b/gearbox", "serve", "0-1"].map(str::to_owned).to_vec();
        let shown = &whole.pruned().unwrap().columns[0].command;
        assert_eq!(shown, &["gearbox", "serve", "0-1"]);
    }
}
