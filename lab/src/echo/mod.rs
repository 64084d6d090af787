//! What the traits cost, and what MQTT costs: one load on servers that send back what they get. The
//! *null broker* is one on the broker's own traits (listener, lazy read, write) without any MQTT; two
//! others are as bare as programs over epoll and over io_uring can be. All run alone on one CPU, the
//! load on another.

mod bare_epoll;
mod bare_ring;
mod load;
mod null_broker;
mod server;

use std::process::{Child, Command, Stdio};

use bench::{Latencies, Run};
use clap::ValueEnum;
use serde::Serialize;

use crate::backend::Column;
use crate::cli::positive;
use crate::measure::{self, Name, Output};
pub use server::Args as ServerArgs;
pub use server::run as serve;

/// Bytes that a server takes at once, as the broker does.
const READ_BYTES: usize = 16 << 10;

/// Arguments of `echo`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    /// The server.
    #[arg(long, value_enum, default_value_t = Kind::NullBroker)]
    pub server: Kind,
    /// Of the null broker.
    #[command(flatten)]
    #[serde(flatten)]
    pub column: Column,
    /// Connections.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// Messages under way on each connection at full speed, one number after the other.
    #[arg(long, value_delimiter = ',', default_value = "20,1", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub windows: Vec<u32>,
    /// Size of a message on the wire. The default is that of an MQTT message with 128 bytes and a
    /// short topic.
    #[arg(long, default_value_t = 156, value_parser = clap::value_parser!(u32).range(1..=8_000))]
    pub bytes: u32,
    /// Messages a second of the run with latencies.
    #[arg(long, default_value_t = 20_000.0, value_parser = positive)]
    pub rate: f64,
    /// Seconds of each run at full speed.
    #[arg(long, default_value_t = 0.6, value_parser = positive)]
    pub seconds: f64,
    /// Seconds of the run at that rate.
    #[arg(long, default_value_t = 1.2, value_parser = positive)]
    pub rate_seconds: f64,
    /// CPU that the server is confined to.
    #[arg(long, default_value_t = 0)]
    pub server_cpu: usize,
    /// CPU that the load is confined to.
    #[arg(long, default_value_t = 1)]
    pub load_cpu: usize,
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
}

/// A server by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// On the traits, on one column.
    NullBroker,
    /// Plain epoll, no runtime.
    Epoll,
    /// Plain io_uring, no runtime.
    IoUring,
}

/// A server process that ends with this value.
struct Server {
    child: Child,
    address: std::net::SocketAddr,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), String> {
    let mut run = measure::new_run("echo", &args.column, args)?;
    if args.server != Kind::NullBroker {
        run.label = args.server.label().to_owned();
        run.parameters.insert("driver".to_owned(), args.server.name().into());
        run.doubts.clear();
    }
    let server = Server::start(args)?;
    bench::pin(args.load_cpu)?;
    let mut load = load::Load::connect(server.address, args.connections, args.bytes)?;
    for &window in &args.windows {
        // A tenth before it, which is not counted.
        load.full_speed(window, args.seconds / 10.0)?;
        let before = server.cpu_us()?;
        let spent = load.full_speed(window, args.seconds)?;
        let cpu_us = server.cpu_us()?.saturating_sub(before);
        record(&mut run, &situation(args.connections, window), &spent, cpu_us);
    }
    load.at_rate(args.rate, args.rate_seconds / 10.0)?;
    let before = server.cpu_us()?;
    let (spent, latencies) = load.at_rate(args.rate, args.rate_seconds)?;
    let cpu_us = server.cpu_us()?.saturating_sub(before);
    let situation = format!("{} connections, {:.0} messages/s", args.connections, args.rate);
    record(&mut run, &situation, &spent, cpu_us);
    histogram(&mut run, &situation, &latencies)?;
    measure::finish(run, &args.output)
}

/// The name of a run at full speed.
pub fn situation(connections: u32, window: u32) -> String {
    format!("{connections} connections, {window} under way on each")
}

/// Name of the variant that sends back what it gets.
pub const ECHO: &str = "echo";
/// The first figure.
pub const PER_CPU_SECOND: &str = "messages per CPU-second of the server";
/// Its inverse.
pub const CPU_PER_MESSAGE: &str = "CPU per message";
/// Throughput.
pub const MESSAGES: &str = "messages";

impl Kind {
    /// The name in tables.
    pub fn label(self) -> &'static str {
        match self {
            Self::NullBroker => "null broker",
            Self::Epoll => "bare epoll",
            Self::IoUring => "bare io_uring",
        }
    }

    /// The name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::NullBroker => "null-broker",
            Self::Epoll => "epoll",
            Self::IoUring => "io-uring",
        }
    }
}

impl Server {
    fn start(args: &Args) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new("taskset")
            .args(["-c", &args.server_cpu.to_string()])
            .arg(program)
            .args(["echo-server", "--server", args.server.name()])
            .args(args.column.flags())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start a server: {error}"))?;
        let address = server::address_from(child.stdout.take());
        match address {
            Ok(address) => Ok(Self { child, address }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// CPU time so far, kernel threads of a ring among it: from the scheduler, to the nanosecond, or
    /// in clock ticks where it does not tell.
    fn cpu_us(&self) -> Result<u64, String> {
        let usage = bench::Usage::of(self.child.id()).ok_or("the server is gone")?;
        Ok(scheduled_us(self.child.id()).unwrap_or(usage.cpu_us))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of the threads that exist; a server's stay.
fn scheduled_us(pid: u32) -> Option<u64> {
    let mut ns = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let schedstat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        ns += schedstat.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(ns / 1_000)
}

fn record(run: &mut Run, situation: &str, spent: &load::Spent, cpu_us: u64) {
    let name = |measure: &str| Name::text(situation, ECHO, measure);
    let messages = spent.messages as f64;
    run.figure(&name(PER_CPU_SECOND), messages / cpu_us as f64 * 1e6, "/s");
    run.figure(&name(CPU_PER_MESSAGE), cpu_us as f64 * 1e3 / messages, "ns");
    run.figure(&name(MESSAGES), messages / spent.seconds, "/s");
}

fn histogram(run: &mut Run, situation: &str, latencies: &Latencies) -> Result<(), String> {
    let name = Name::text(situation, ECHO, "latency");
    run.histogram(&name, "from due until it was back", latencies)
}
