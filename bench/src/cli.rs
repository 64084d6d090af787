//! The command line: what all scenarios take.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand, ValueEnum};
use mqtt::wire::Version;
use serde::{Serialize, Serializer};

use crate::client::Target;
use crate::payload::Sizes;
use crate::process::{self, Watched};
use crate::result::{File, Run};
use crate::scenario::{self, conn, idle, pubsub, replay, stream, subs};
use crate::traffic::{Load, Pace};
use crate::{compare, experiment, peer, report};

/// A day is long enough for any single run.
const MAX_SECONDS: f64 = 86_400.0;

#[derive(Parser)]
#[command(version, about = "Load generator and runtime comparison for MQTT brokers")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Connection storms, round after round.
    Conn(conn::Args),
    /// Publishers and subscribers: pairs, fan-out, fan-in, shared groups.
    Pubsub(pubsub::Args),
    /// Producers to every topic at a rate, a persistent consumer for each topic.
    Stream(stream::Args),
    /// Idle connections: what each costs the broker.
    Idle(idle::Args),
    /// Many subscriptions, then messages that match one each.
    Subs(subs::Args),
    /// Queues of absent consumers filled, then drained.
    Replay(replay::Args),
    /// The same load on tokio work-stealing, tokio thread-per-core, monoio and compio, in turn.
    Compare(Box<compare::Args>),
    /// A question about Gearbox, answered by measurement: storm or stream.
    Experiment(Box<experiment::Args>),
    /// Result files to one Markdown and one HTML page.
    Report(report::Args),
    /// A broker without features: what this generator can show at best on this machine.
    Peer(peer::Args),
}

/// Which broker, and where the result goes.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Common {
    /// The broker's MQTT address, HOST:PORT.
    #[arg(long, default_value = "127.0.0.1:1883")]
    pub address: String,
    /// MQTT version.
    #[arg(long, value_enum, default_value_t = Protocol::V3_1_1)]
    pub protocol: Protocol,
    /// User name.
    #[arg(long)]
    pub username: Option<String>,
    /// Password. Other users of this machine can see it; it is kept in no result.
    #[arg(long)]
    #[serde(skip)]
    pub password: Option<String>,
    /// The broker's process, to read what it uses.
    #[arg(long)]
    pub pid: Option<u32>,
    /// Counts the broker's system calls as well, by the kernel's tracepoint. That slows the broker
    /// down: take CPU times and latencies from other runs.
    #[arg(long, requires = "pid")]
    pub syscalls: bool,
    /// Local addresses to connect from, in turn; each has some 28 000 free ports.
    #[arg(long, value_delimiter = ',')]
    pub source: Vec<IpAddr>,
    /// Seconds in which a client must get each answer while it connects and subscribes.
    #[arg(long, default_value_t = 30.0, value_parser = positive)]
    pub timeout: f64,
    /// CPU that the generator is confined to. It then does not sleep in the last 100 us before a
    /// message is due.
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Name of what is measured; runs with the same one are repetitions in a report.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Writes the result with its histograms there.
    #[arg(long)]
    #[serde(skip)]
    pub json: Option<PathBuf>,
    /// Ends well even if the broker lost, doubled or reordered messages.
    #[arg(long)]
    pub allow_problems: bool,
}

/// MQTT versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Protocol {
    #[value(name = "3.1.1")]
    #[serde(rename = "3.1.1")]
    V3_1_1,
    #[value(name = "5")]
    #[serde(rename = "5")]
    V5,
}

/// The messages.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct LoadArgs {
    /// QoS of publishes and subscriptions [default: 0; stream and replay: 1].
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: Option<u8>,
    /// Payload size in bytes, or a range as 64-1024.
    #[arg(long, default_value = "128")]
    #[serde(serialize_with = "as_text")]
    pub size: Sizes,
    /// Messages a second from all publishers together, whatever comes back: the open loop, and the
    /// only one with latencies. Left out, it is full speed within --window.
    #[arg(long, value_parser = positive)]
    pub rate: Option<f64>,
    /// At full speed, messages under way for each publisher and topic.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub window: u32,
    /// With --rate, unacknowledged messages of each publisher.
    #[arg(long, default_value_t = 65_535, value_parser = clap::value_parser!(u16).range(1..))]
    pub unacked: u16,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 3.0, value_parser = positive)]
    pub seconds: f64,
    /// Seconds before that [default: a tenth of --seconds].
    #[arg(long, value_parser = seconds)]
    pub warm_up: Option<f64>,
    /// After so many seconds of silence what has not come is lost.
    #[arg(long, default_value_t = 5.0, value_parser = positive)]
    pub quiet: f64,
    /// With --rate: stops the broker (SIGSTOP) so many milliseconds in the middle of the measured time,
    /// and says by arithmetic what latencies must then be. A check of this generator.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub stop_ms: Option<u32>,
}

impl Common {
    /// Gets the machine ready and finds the broker.
    pub fn prepare(&self) -> Result<Target, String> {
        if let Some(cpu) = self.cpu {
            process::pin(cpu)?;
        }
        if let Some(pid) = self.pid
            && process::Usage::of(pid).is_none()
        {
            return Err(format!("there is no process {pid} that can be read"));
        }
        process::raise_descriptor_limit();
        let address = self
            .address
            .to_socket_addrs()
            .map_err(|error| format!("{}: {error}", self.address))?
            .next()
            .ok_or_else(|| format!("{} has no address", self.address))?;
        let target = Target {
            version: match self.protocol {
                Protocol::V3_1_1 => Version::V3_1_1,
                Protocol::V5 => Version::V5,
            },
            username: self.username.clone(),
            password: self.password.clone(),
            sources: self.source.clone(),
            timeout_ns: ns(self.timeout),
            ..Target::new(address)
        };
        Ok(target)
    }

    /// The broker's process, when it is known.
    pub fn watched(&self) -> Result<Option<Watched>, String> {
        match self.pid {
            Some(pid) if self.syscalls => Watched::counting_syscalls(pid)
                .map(Some)
                .map_err(|reason| format!("--syscalls: {reason}")),
            pid => Ok(pid.map(Watched::new)),
        }
    }

    /// Shows and writes the result; an error when the broker did wrong.
    pub fn finish(&self, run: Run) -> Result<(), String> {
        print!("{}", report::text::run(&run));
        let problems = run.problems.len();
        if let Some(path) = &self.json {
            File::Run(Box::new(run)).write(path)?;
        }
        match problems {
            0 => Ok(()),
            _ if self.allow_problems => Ok(()),
            _ => Err("the broker did not keep its promises: see the problems above".to_owned()),
        }
    }
}

impl Target {
    /// MQTT 3.1.1 without a user.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            version: Version::V3_1_1,
            username: None,
            password: None,
            sources: Vec::new(),
            timeout_ns: 30_000_000_000,
        }
    }
}

impl LoadArgs {
    /// The load of a run whose scenario has this QoS unless told otherwise.
    pub fn load(&self, run: u32, default_qos: u8) -> Load {
        Load {
            run,
            qos: scenario::qos(self.qos.unwrap_or(default_qos)),
            sizes: self.size.clone(),
            pace: match self.rate {
                Some(rate) => Pace::Rate(rate),
                None => Pace::Full(self.window.into()),
            },
            unacked: self.unacked,
            warm_up_ns: ns(self.warm_up.unwrap_or(self.seconds / 10.0)),
            measure_ns: ns(self.seconds),
            quiet_ns: ns(self.quiet),
            stop_ns: self.stop_ms.map(|ms| u64::from(ms) * 1_000_000),
        }
    }
}

/// Runs a command.
pub fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Conn(args) => args.common.finish(conn::run(&args)?),
        Command::Pubsub(args) => args.common.finish(pubsub::run(&args)?),
        Command::Stream(args) => args.common.finish(stream::run(&args)?),
        Command::Idle(args) => args.common.finish(idle::run(&args)?),
        Command::Subs(args) => args.common.finish(subs::run(&args)?),
        Command::Replay(args) => args.common.finish(replay::run(&args)?),
        Command::Compare(args) => compare::run(&args),
        Command::Experiment(args) => experiment::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Peer(args) => peer::run(&args),
    }
}

/// A number above 0, a day or a million a second at most times ten.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1e7 => Ok(value),
        Ok(_) => Err("must lie above 0 and be 10 000 000 at most".to_owned()),
        Err(_) => Err("is no number".to_owned()),
    }
}

/// Seconds, a day at most.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=MAX_SECONDS).contains(&value) => Ok(value),
        Ok(_) => Err(format!("must lie between 0 and {MAX_SECONDS}")),
        Err(_) => Err("is no number".to_owned()),
    }
}

/// Creates the folder of a file that is to be written.
pub fn make_folder(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

fn as_text<S: Serializer>(sizes: &Sizes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(sizes)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn loads_follow_the_arguments() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        let Ok(Cli { command: Command::Pubsub(args) }) = parse("x pubsub --qos 2 --rate 100")
        else {
            panic!("not understood")
        };
        let load = args.load.load(1, 0);
        assert_eq!((load.pace, load.qos), (Pace::Rate(100.0), mqtt::wire::QoS::ExactlyOnce));
        assert_eq!((load.warm_up_ns, load.measure_ns), (300_000_000, 3_000_000_000));
        let Ok(Cli { command: Command::Stream(args) }) = parse("x stream --window 7") else {
            panic!("not understood")
        };
        assert_eq!(args.load.load(1, 1).pace, Pace::Full(7));
        for bad in ["--rate 0", "--rate x", "--size 3", "--qos 3", "--seconds inf", "--window 0"] {
            assert!(parse(&format!("x pubsub {bad}")).is_err(), "{bad}");
        }
        assert!(parse("x pubsub --pairs 3 --publishers 2").is_err());
    }

    #[test]
    fn parameters_keep_no_password() {
        let line = "x pubsub --username u --password geheim";
        let Ok(Cli { command: Command::Pubsub(args) }) = Cli::try_parse_from(line.split(' '))
        else {
            panic!("not understood")
        };
        let run = Run::new("pubsub", "", &args);
        assert_eq!(run.parameters["username"], "u");
        assert_eq!(run.parameters["size"], "128");
        assert!(!serde_json::to_string(&run.parameters).unwrap().contains("geheim"));
    }
}
