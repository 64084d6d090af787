//! A run for people at a terminal.

use std::fmt::Write;

use crate::latency::format_us;
use crate::result::Run;

/// Faulty accounts that are shown.
const FAULTS_SHOWN: usize = 10;

/// The whole run.
pub fn run(run: &Run) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, run);
    text
}

fn write(out: &mut String, run: &Run) -> std::fmt::Result {
    write!(out, "{}", run.scenario)?;
    if !run.label.is_empty() {
        write!(out, " ({})", run.label)?;
    }
    writeln!(out)?;
    for figure in &run.figures {
        writeln!(out, "  {:<40} {} {}", figure.name, number(figure.value), figure.unit)?;
    }
    for histogram in &run.histograms {
        write!(out, "  {} ({}), us:", histogram.name, histogram.what)?;
        for (name, quote) in &histogram.percentiles {
            write!(out, " {name} {}", quote.text())?;
        }
        let (count, max) = (histogram.encoded.count, format_us(histogram.max_ns));
        writeln!(out, ", largest {max}, {count} samples")?;
    }
    if let Some(account) = run.account.filter(|account| account.sent > 0) {
        writeln!(
            out,
            "  of {} deliveries: {} lost, {} doubled, {} out of order",
            account.sent, account.lost, account.doubled, account.reordered,
        )?;
    }
    if let Some(share) = run.spent.and_then(|spent| spent.generator_share()) {
        writeln!(out, "  {:<40} {:.0} % of a core", "generator CPU", share * 100.0)?;
    }
    for fault in run.faults.iter().take(FAULTS_SHOWN) {
        writeln!(
            out,
            "  publisher {} to receiver {} on {}: {} sent, {} lost, {} doubled, {} out of order",
            fault.publisher,
            fault.receiver,
            fault.topic,
            fault.account.sent,
            fault.account.lost,
            fault.account.doubled,
            fault.account.reordered,
        )?;
    }
    for problem in &run.problems {
        writeln!(out, "  PROBLEM: {problem}")?;
    }
    for doubt in &run.doubts {
        writeln!(out, "  note: {doubt}")?;
    }
    Ok(())
}

/// A number with as many digits as mean something.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
