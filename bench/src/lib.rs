//! `gearbox-bench`: puts the same load on a broker whatever its runtime, and compares.
//!
//! The generator is one thread over plain epoll: none of the runtimes under comparison moves its
//! bytes. Latencies run from the moment at which a message was due, not from when it was sent. What
//! comparisons report first is the broker's CPU time per message, kernel threads included, which a
//! busy machine disturbs less than it does latencies.
//!
//! As a library: results, their statistics and pages, for other measuring programs.

mod admin;
mod broker;
mod cli;
mod client;
mod compare;
mod event;
mod experiment;
mod fleet;
mod latency;
mod ledger;
mod machine;
mod payload;
mod peer;
mod plan;
mod process;
mod progress;
mod report;
mod result;
mod scenario;
mod schedule;
mod stats;
mod syscalls;
#[cfg(test)]
mod tests;
mod traffic;

pub use broker::Start as BrokerStart;
pub use latency::{Encoded, Latencies, QUOTED, Quote};
pub use machine::Machine;
pub use process::{Usage, pin};
pub use report::markdown::page as markdown;
pub use report::plot::intervals as plot_intervals;
pub use report::{Document, Table, interval, latency_table, number, write_into, write_pages};
pub use result::{File, PER_CPU_SECOND, PER_SECOND, Run};
pub use stats::{Interval, RUNS_TO_COMPARE, RUNS_TO_RESAMPLE, bootstrap_median, median};

use std::process::ExitCode;

use clap::Parser;

/// The program.
pub fn main() -> ExitCode {
    match cli::run(cli::Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gearbox-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
