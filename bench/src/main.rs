//! `gearbox-bench`: puts the same load on a broker whatever its runtime, and compares.
//!
//! The generator is one thread over plain epoll: none of the runtimes under comparison moves its
//! bytes. Latencies run from the moment at which a message was due, not from when it was sent. What
//! comparisons report first is the broker's CPU time per message, kernel threads included, which a
//! busy machine disturbs less than it does latencies.

mod broker;
mod cli;
mod client;
mod compare;
mod event;
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
#[cfg(test)]
mod tests;
mod traffic;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gearbox-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
