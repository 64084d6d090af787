//! The step clocks: as a report, and as histograms among the metrics.

use broker_core::Node;
use meta::steps::{Distribution, Summary};
use serde::{Deserialize, Serialize};

use crate::metrics::{head, line};

/// The answer to `/steps`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Whether steps are measured; without, the lists are empty.
    pub enabled: bool,
    /// The steps of a CONNECT.
    pub connect: Vec<Summary>,
    /// The steps of applying changes; empty on a node without metadata.
    pub apply: Vec<Summary>,
}

pub(crate) fn report(node: &Node) -> StepReport {
    let apply = node.meta().map(|meta| meta.steps().summaries()).unwrap_or_default();
    let connect = node.connect_steps();
    StepReport { enabled: connect.is_on(), connect: connect.summaries(), apply }
}

/// Adds the histograms to the text of `/metrics`.
pub(crate) fn render(out: &mut String, node: &Node) {
    let connect = node.connect_steps().distributions();
    histograms(out, "gearbox_connect_step_seconds", "Steps of a CONNECT", &connect);
    let apply = node.meta().map(|meta| meta.steps().distributions()).unwrap_or_default();
    histograms(out, "gearbox_apply_step_seconds", "Steps of applying committed changes", &apply);
}

fn histograms(out: &mut String, name: &str, help: &str, all: &[Distribution]) {
    if all.is_empty() {
        return;
    }
    head(out, name, "histogram", help);
    for Distribution { step, time, below, count, sum_s } in all {
        let labels = format!("step=\"{step}\",time=\"{time}\"");
        for (bound_s, count) in below {
            line(out, format_args!("{name}_bucket{{{labels},le=\"{bound_s}\"}} {count}"));
        }
        line(out, format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {count}"));
        line(out, format_args!("{name}_sum{{{labels}}} {sum_s}"));
        line(out, format_args!("{name}_count{{{labels}}} {count}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_cumulative_and_ends_with_all() {
        let mut out = String::new();
        let below = vec![(1.024e-6, 2), (0.004194304, 3)];
        let (step, time) = ("route", "waiting");
        histograms(
            &mut out,
            "x",
            "help",
            &[Distribution { step, time, below, count: 4, sum_s: 1.5 }],
        );
        let expected = [
            "# HELP x help",
            "# TYPE x histogram",
            "x_bucket{step=\"route\",time=\"waiting\",le=\"0.000001024\"} 2",
            "x_bucket{step=\"route\",time=\"waiting\",le=\"0.004194304\"} 3",
            "x_bucket{step=\"route\",time=\"waiting\",le=\"+Inf\"} 4",
            "x_sum{step=\"route\",time=\"waiting\"} 1.5",
            "x_count{step=\"route\",time=\"waiting\"} 4",
        ];
        assert_eq!(out.lines().collect::<Vec<_>>(), expected);
        out.clear();
        histograms(&mut out, "x", "help", &[]);
        assert_eq!(out, "");
    }
}
