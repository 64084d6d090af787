//! What an experiment measured, in one file: a value of each round, and histograms of all rounds.

use std::fs;
use std::path::Path;

use bench::{Encoded, File, Latencies, Machine, Quote, Run};
use serde::{Deserialize, Serialize};

use super::Name;

/// Version of the file; readers refuse others.
pub const FORMAT: u32 = 1;
const FILE: &str = "data.json";
/// The percentile of each round that is kept beside the merged histogram.
const ROUND_PERCENTILE: &str = "p99";

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// [`FORMAT`].
    pub format: u32,
    /// Which.
    pub experiment: Name,
    /// The command line.
    pub command: Vec<String>,
    /// Where.
    pub machine: Machine,
    /// Rounds.
    pub rounds: u32,
    /// What is no number.
    pub facts: Vec<String>,
    /// The columns.
    pub columns: Vec<ColumnData>,
}

/// One column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnData {
    /// Its name.
    pub label: String,
    /// The driver that it got.
    pub driver: String,
    /// How it was started.
    pub command: Vec<String>,
    /// Numbers.
    pub series: Vec<Series>,
    /// Latencies.
    pub histograms: Vec<Merged>,
    /// What throws doubt on it.
    pub doubts: Vec<String>,
}

/// A number of each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// See [`crate::measure::Name`].
    pub name: String,
    /// Of what.
    pub unit: String,
    /// In the order of the rounds.
    pub values: Vec<f64>,
}

/// Latencies of all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Merged {
    /// See [`crate::measure::Name`].
    pub name: String,
    /// What its clock measures.
    pub what: String,
    /// All samples.
    pub encoded: Encoded,
}

impl Data {
    /// Writes it to a folder.
    pub fn write(&self, folder: &Path) -> Result<(), String> {
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        let path = folder.join(FILE);
        fs::write(&path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads it from a folder.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join(FILE);
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let data: Self =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        match data.format {
            FORMAT => Ok(data),
            other => Err(format!("{}: of format {other}, not {FORMAT}", path.display())),
        }
    }
}

impl ColumnData {
    /// Adds what a round measured.
    pub fn add(&mut self, run: &Run) -> Result<(), String> {
        if let Some(driver) = run.parameters.get("driver").and_then(|it| it.as_str()) {
            driver.clone_into(&mut self.driver);
        }
        for doubt in &run.doubts {
            if !self.doubts.contains(doubt) {
                self.doubts.push(doubt.clone());
            }
        }
        self.add_figures(run);
        for histogram in &run.histograms {
            let round = histogram.percentiles.iter().find(|(name, _)| name == ROUND_PERCENTILE);
            if let Some((percentile, Quote::Ns(ns))) = round {
                let name = format!("{}, {percentile} of a round", histogram.name);
                self.add_value(&name, "us", *ns as f64 / 1e3);
            }
            let mut latencies = Latencies::decode(&histogram.encoded)?;
            match self.histograms.iter_mut().find(|it| it.name == histogram.name) {
                Some(merged) => {
                    latencies.merge(&Latencies::decode(&merged.encoded)?)?;
                    merged.encoded = latencies.encode()?;
                }
                None => self.histograms.push(Merged {
                    name: histogram.name.clone(),
                    what: histogram.what.clone(),
                    encoded: latencies.encode()?,
                }),
            }
        }
        Ok(())
    }

    /// Adds the numbers alone.
    pub fn add_figures(&mut self, run: &Run) {
        for figure in &run.figures {
            self.add_value(&figure.name, &figure.unit, figure.value);
        }
    }

    /// The values of a name.
    pub fn values(&self, name: &str) -> Option<&[f64]> {
        let series = self.series.iter().find(|series| series.name == name)?;
        Some(&series.values)
    }

    /// The latencies of a name.
    pub fn latencies(&self, name: &str) -> Option<Result<Latencies, String>> {
        let merged = self.histograms.iter().find(|histogram| histogram.name == name)?;
        Some(Latencies::decode(&merged.encoded))
    }

    fn add_value(&mut self, name: &str, unit: &str, value: f64) {
        // Six digits are more than any of them means.
        let scale = 10f64.powf((6.0 - value.abs().max(1e-9).log10()).floor());
        let value = (value * scale).round() / scale;
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.values.push(value),
            None => self.series.push(Series {
                name: name.to_owned(),
                unit: unit.to_owned(),
                values: vec![value],
            }),
        }
    }
}

/// Reads the result of a run, and removes the file.
pub fn take_run(path: &Path) -> Result<Run, String> {
    let file = File::read(path)?;
    fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match file {
        Some(File::Run(run)) => Ok(*run),
        _ => Err(format!("{}: not the result of a run", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first_us: u64) -> Run {
        let mut run = Run::new("locks", "x", &());
        run.parameters.insert("driver".to_owned(), "epoll".into());
        run.figure("a; b; c", first_us as f64 * 1.000_000_000_1, "/s");
        let mut latencies = Latencies::new();
        (0..10_000).for_each(|at| latencies.record((first_us + at) * 1_000));
        run.histogram("a; b; d", "of a test", &latencies).unwrap();
        run
    }

    #[test]
    fn rounds_gather_and_come_back_from_the_file() {
        let mut column = ColumnData::default();
        column.add(&run(1)).unwrap();
        column.add(&run(50_000)).unwrap();
        assert_eq!(column.values("a; b; c"), Some(&[1.0, 50_000.0][..]));
        let p99 = column.values("a; b; d, p99 of a round").unwrap();
        assert!((p99[0] - 9_900.0).abs() < 20.0 && (p99[1] - 59_900.0).abs() < 100.0, "{p99:?}");
        let merged = column.latencies("a; b; d").unwrap().unwrap();
        assert_eq!(merged.count(), 20_000);
        assert_eq!((column.driver.as_str(), column.values("x")), ("epoll", None));
        let data = Data {
            format: FORMAT,
            experiment: Name::Locks,
            command: vec!["x".to_owned()],
            machine: Machine::default(),
            rounds: 2,
            facts: Vec::new(),
            columns: vec![column],
        };
        let folder = tempfile::tempdir().unwrap();
        data.write(folder.path()).unwrap();
        assert_eq!(Data::read(folder.path()), Ok(data.clone()));
        Data { format: 99, ..data }.write(folder.path()).unwrap();
        assert!(Data::read(folder.path()).unwrap_err().contains("format"));
    }
}
