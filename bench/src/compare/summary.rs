//! What the runs of a comparison show: intervals of medians, and whether they differ.

use super::{Column, Comparison};
use crate::latency::{Latencies, QUOTED, Quote};
use crate::result::{DELIVERY, PER_CPU_SECOND, PER_SECOND, Run};
use crate::stats::{Interval, bootstrap_median};

/// A figure of all columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// What.
    pub name: String,
    /// Of what.
    pub unit: &'static str,
    /// One for each column.
    pub cells: Vec<Interval>,
}

/// Which of a column's runs a figure comes from.
type Runs = fn(&Column) -> &[Run];

/// All figures that every run of every column has; the primary one first.
pub fn metrics(comparison: &Comparison) -> Result<Vec<Metric>, String> {
    let full: Runs = |column| &column.full;
    let steady: Runs = |column| &column.steady;
    let figures: [(&str, &str, &'static str, Runs); 5] = [
        (PER_CPU_SECOND, "full speed", "/s", full),
        (PER_SECOND, "full speed", "/s", full),
        ("broker CPU per message", "fixed rate", "us", steady),
        ("broker context switches per message", "fixed rate", "", steady),
        ("broker read and write calls per message", "fixed rate", "", steady),
    ];
    let mut metrics = Vec::new();
    for (name, at, unit, runs) in figures {
        let cells = cells(comparison, runs, |run| Ok(run.value(name)))?;
        metrics.extend(cells.map(|cells| Metric { name: format!("{name}, {at}"), unit, cells }));
    }
    for (name, parts) in QUOTED {
        let quoted = |run: &Run| match run.latencies(DELIVERY).transpose()? {
            Some(latencies) => match latencies.quote(parts) {
                Quote::Ns(ns) => Ok(Some(ns as f64 / 1e3)),
                Quote::TooFew | Quote::Missing => Ok(None),
            },
            None => Ok(None),
        };
        let cells = cells(comparison, steady, quoted)?;
        let name = format!("{name} of delivery in each run, fixed rate");
        metrics.extend(cells.map(|cells| Metric { name, unit: "us", cells }));
    }
    Ok(metrics)
}

/// The latencies of all runs of a column together.
pub fn merged(column: &Column) -> Result<Latencies, String> {
    let mut all = Latencies::new();
    for run in &column.steady {
        if let Some(latencies) = run.latencies(DELIVERY) {
            all.merge(&latencies?)?;
        }
    }
    Ok(all)
}

/// One interval for each column; `None` when a run lacks the figure.
fn cells(
    comparison: &Comparison,
    runs: Runs,
    value: impl Fn(&Run) -> Result<Option<f64>, String>,
) -> Result<Option<Vec<Interval>>, String> {
    let mut cells = Vec::new();
    for column in &comparison.columns {
        let values: Result<Option<Vec<f64>>, String> =
            runs(column).iter().map(|run| value(run).transpose()).map(Option::transpose).collect();
        let Some(interval) = values?.as_deref().and_then(bootstrap_median) else {
            return Ok(None);
        };
        cells.push(interval);
    }
    Ok(Some(cells))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Four rounds; the second column uses `factor` times the CPU and is as much slower.
    pub fn comparison(factor: f64) -> Comparison {
        let column = |label: &str, factor: f64| {
            let run = |round: u32, steady: bool| {
                let mut run = Run::new("pubsub", label, &());
                let wobble = 1.0 + f64::from(round) / 100.0;
                run.figure(PER_CPU_SECOND, 1e6 / factor * wobble, "/s");
                run.figure(PER_SECOND, 5e5 / factor * wobble, "/s");
                run.figure("broker CPU per message", factor * wobble, "us");
                if steady {
                    let mut latencies = Latencies::new();
                    for sample in 0..20_000u32 {
                        latencies.record((f64::from(sample) * 10.0 * factor * wobble) as u64 + 100);
                    }
                    run.histogram(DELIVERY, "of a test", &latencies).unwrap();
                }
                run
            };
            Column {
                label: label.to_owned(),
                full: (0..4).map(|round| run(round, false)).collect(),
                steady: (0..4).map(|round| run(round, true)).collect(),
                ..Column::default()
            }
        };
        let columns = vec![column("first", 1.0), column("second <&>", factor)];
        Comparison { format: 1, rounds: 4, rate: 1_000.0, columns, ..Comparison::default() }
    }

    #[test]
    fn differences_and_their_absence() {
        let metrics_of = |factor| metrics(&comparison(factor)).unwrap();
        let twice = metrics_of(2.0);
        let names: Vec<_> = twice.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(names.len(), 6, "{names:?}: no run has switches, p99.9 or p99.99");
        assert!(names[0].starts_with(PER_CPU_SECOND));
        for metric in &twice {
            let shown = metric.cells[1].against(&metric.cells[0]);
            let expected = if metric.unit == "us" { "x2.0" } else { "x0.5" };
            assert!(shown.starts_with(expected), "{}: {shown}", metric.name);
        }
        for metric in &metrics_of(1.005) {
            assert_eq!(metric.cells[1].against(&metric.cells[0]), "no difference shown");
        }
    }

    #[test]
    fn a_column_is_merged_before_it_is_quoted() {
        let all = merged(&comparison(1.0).columns[0]).unwrap();
        assert_eq!(all.count(), 80_000);
        assert!(matches!(all.quote(99_000), Quote::Ns(_)));
    }

    #[test]
    fn a_figure_that_one_run_lacks_is_left_out() {
        let mut comparison = comparison(2.0);
        comparison.columns[1].full[2].figures.clear();
        let metrics = metrics(&comparison).unwrap();
        assert!(metrics.iter().all(|metric| !metric.name.contains("full speed")));
    }
}
