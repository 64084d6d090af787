//! What the runs of a comparison show: intervals of medians, and whether they differ.

use super::model::{Case, Comparison};
use crate::latency::{QUOTED, Quote};
use crate::result::{CPU_PER_MESSAGE, PER_CPU_SECOND, PER_SECOND, Run};
use crate::scenario::conn::{CPU_PER_CONNECT, WHOLE_FLEET};
use crate::scenario::stream::PAYLOAD_PER_SECOND;
use crate::stats::{Interval, bootstrap_median};

/// A figure of all columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// What.
    pub name: String,
    /// Of what.
    pub unit: String,
    /// One for each column.
    pub cells: Vec<Interval>,
    /// Whether it gets a picture.
    pub drawn: bool,
}

/// The times of one step of all columns.
#[derive(Clone, Debug, PartialEq)]
pub struct StepMetric {
    /// Its name.
    pub step: String,
    /// For each column the percentile of each run, in microseconds; `None` where it was never taken.
    pub cells: Vec<Option<Interval>>,
}

const DRAWN: [&str; 6] =
    [PER_CPU_SECOND, PER_SECOND, PAYLOAD_PER_SECOND, CPU_PER_MESSAGE, WHOLE_FLEET, CPU_PER_CONNECT];

/// All figures that every run of every column has; the primary one first.
pub fn metrics(comparison: &Comparison) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for case in &comparison.cases {
        for name in &case.figures {
            let cells = cells(case, |run| run.value(name));
            metrics.extend(cells.map(|cells| Metric {
                name: format!("{name}, {}", case.label),
                unit: unit(case, name),
                cells,
                drawn: DRAWN.contains(&name.as_str()),
            }));
        }
        let Some(histogram) = &case.histogram else { continue };
        for (name, _) in QUOTED {
            let quoted = |run: &Run| match run.quote(histogram, name) {
                Some(Quote::Ns(ns)) => Some(ns as f64 / 1e3),
                Some(Quote::TooFew | Quote::Missing) | None => None,
            };
            let cells = cells(case, quoted);
            metrics.extend(cells.map(|cells| Metric {
                name: format!("{name} of {histogram} in each run, {}", case.label),
                unit: "us".to_owned(),
                cells,
                drawn: false,
            }));
        }
    }
    metrics
}

/// A percentile of the steps' times by the broker's own clock, as the broker names it: `p99`.
pub fn steps(case: &Case, percentile: &str) -> Vec<StepMetric> {
    let mut names: Vec<&str> = Vec::new();
    for step in case.all_runs().flat_map(|run| &run.steps) {
        if !names.contains(&step.step.as_str()) {
            names.push(&step.step);
        }
    }
    let value = |run: &Run, name: &str| {
        let step = run.steps.iter().find(|step| step.step == name)?;
        step.us.get(percentile).copied()
    };
    let metric = |name: &str| {
        let of = |runs: &Vec<Run>| {
            let values: Vec<f64> = runs.iter().filter_map(|run| value(run, name)).collect();
            bootstrap_median(&values)
        };
        StepMetric { step: name.to_owned(), cells: case.runs.iter().map(of).collect() }
    };
    names.into_iter().map(metric).collect()
}

fn unit(case: &Case, name: &str) -> String {
    let figures = case.all_runs().flat_map(|run| &run.figures);
    let found = figures.filter(|figure| figure.name == name).map(|figure| figure.unit.clone());
    found.last().unwrap_or_default()
}

/// One interval for each column; `None` when a run lacks the figure.
fn cells(case: &Case, value: impl Fn(&Run) -> Option<f64>) -> Option<Vec<Interval>> {
    let cell = |runs: &Vec<Run>| {
        let values: Option<Vec<f64>> = runs.iter().map(&value).collect();
        bootstrap_median(&values?)
    };
    case.runs.iter().map(cell).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::admin::StepTime;
    use crate::compare::model::Column;
    use crate::latency::Latencies;
    use crate::result::{DELIVERY, FORMAT};

    fn run(factor: f64, round: u32, steady: bool) -> Run {
        let mut run = Run::new("pubsub", "", &());
        let wobble = 1.0 + f64::from(round) / 100.0;
        run.figure(PER_CPU_SECOND, 1e6 / factor * wobble, "/s");
        run.figure(PER_SECOND, 5e5 / factor * wobble, "/s");
        run.figure(CPU_PER_MESSAGE, factor * wobble, "us");
        if steady {
            let mut latencies = Latencies::new();
            for sample in 0..20_000u32 {
                latencies.record((f64::from(sample) * 10.0 * factor * wobble) as u64 + 100);
            }
            run.histogram(DELIVERY, "of a test", &latencies).unwrap();
            let us = [("p99".to_owned(), 7.0 * factor)].into();
            run.steps.push(StepTime { step: "apply.route".to_owned(), count: 3, us });
        }
        run
    }

    /// Four rounds; the second column uses `factor` times the CPU and is as much slower.
    pub fn comparison(factor: f64) -> Comparison {
        let runs = |steady| {
            let of = |factor| (0..4).map(|round| run(factor, round, steady)).collect();
            vec![of(1.0), of(factor)]
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let column = |label: &str| Column { label: label.to_owned(), ..Column::default() };
        let full = Case {
            label: "full speed".to_owned(),
            figures: names(&[PER_CPU_SECOND, PER_SECOND, "of no run"]),
            histogram: None,
            runs: runs(false),
            merged: Vec::new(),
        };
        let steady = Case {
            label: "fixed rate".to_owned(),
            figures: names(&[CPU_PER_MESSAGE]),
            histogram: Some(DELIVERY.to_owned()),
            runs: runs(true),
            merged: Vec::new(),
        };
        Comparison {
            format: FORMAT,
            title: "Comparison".to_owned(),
            rounds: 4,
            columns: vec![column("first"), column("second <&>")],
            cases: vec![full, steady],
            ..Comparison::default()
        }
    }

    #[test]
    fn differences_and_their_absence() {
        let metrics_of = |factor| metrics(&comparison(factor));
        let twice = metrics_of(2.0);
        let names: Vec<_> = twice.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(names.len(), 7, "{names:?}: no run has p99.9 or p99.99");
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
        let all = comparison(1.0).cases[1].merged(0).unwrap();
        assert_eq!(all.count(), 80_000);
        assert!(matches!(all.quote(99_000), Quote::Ns(_)));
        assert_eq!(comparison(1.0).cases[0].merged(0).unwrap().count(), 0);
    }

    #[test]
    fn a_figure_that_one_run_lacks_is_left_out() {
        let mut comparison = comparison(2.0);
        comparison.cases[0].runs[1][2].figures.clear();
        let metrics = metrics(&comparison);
        assert!(metrics.iter().all(|metric| !metric.name.contains("full speed")));
    }

    #[test]
    fn steps_of_all_columns() {
        let mut comparison = comparison(2.0);
        comparison.cases[1].runs[0].iter_mut().for_each(|run| run.steps.clear());
        let steps = steps(&comparison.cases[1], "p99");
        assert_eq!((steps.len(), steps[0].step.as_str()), (1, "apply.route"));
        assert_eq!(steps[0].cells[0], None);
        assert_eq!(steps[0].cells[1].unwrap().median, 14.0);
    }
}
