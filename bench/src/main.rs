//! `gearbox-bench`: puts the same load on a broker whatever its runtime, and compares.
//!
//! The generator is one thread over plain epoll: none of the runtimes under comparison moves its
//! bytes. What it reports first is the broker's CPU time per message, kernel threads included,
//! which a busy machine disturbs less than it does latencies.

mod broker;
mod compare;
mod load;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Load generator and runtime comparison for MQTT brokers")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Publisher/subscriber pairs at full speed against a running broker.
    Pubsub {
        /// The broker's MQTT address.
        #[arg(long, default_value = "127.0.0.1:1883")]
        address: SocketAddr,
        /// The broker's process, to report its CPU time.
        #[arg(long)]
        pid: Option<u32>,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// The same load on tokio work-stealing, tokio thread-per-core, monoio and compio, in turn.
    Compare {
        /// Gearbox built with tokio alone.
        #[arg(long)]
        tokio_build: PathBuf,
        /// Gearbox built with all three runtimes.
        #[arg(long)]
        all_build: PathBuf,
        /// Rounds; each round runs every column once.
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// Shards of the broker.
        #[arg(long, default_value_t = 1)]
        shards: u32,
        /// CPU that the broker is confined to.
        #[arg(long, default_value_t = 0)]
        broker_cpu: usize,
        /// CPU that the generator is confined to.
        #[arg(long, default_value_t = 1)]
        load_cpu: usize,
        #[command(flatten)]
        load: LoadArgs,
    },
}

/// The load.
#[derive(Args, Clone, Debug)]
struct LoadArgs {
    /// Pairs, each with a topic of its own.
    #[arg(long, default_value_t = 50)]
    pairs: usize,
    /// QoS of publish and subscription, 0 or 1.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    qos: u8,
    /// Payload size in bytes, at least 8.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    size: u32,
    /// Messages under way per pair.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    window: u32,
    /// Seconds that are measured, after one tenth of that as warm-up.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gearbox-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Pubsub { address, pid, load } => {
            let report = load::run(address, pid, &load).map_err(|error| error.to_string())?;
            println!("{report}");
            report.check()
        }
        Command::Compare { tokio_build, all_build, rounds, shards, broker_cpu, load_cpu, load } => {
            let setup = compare::Setup {
                tokio_build,
                all_build,
                rounds: rounds.max(1),
                shards,
                broker_cpu,
                load_cpu,
            };
            compare::run(&setup, &load)
        }
    }
}
