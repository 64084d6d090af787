//! Connection storms: all clients at once or at a rate, round after round.

use serde::Serialize;

use super::{forget, hold, new_run};
use crate::cli::{Common, positive, seconds};
use crate::client::Target;
use crate::event::Clock;
use crate::fleet::{Arrivals, Ask, Fleet};
use crate::latency::Latencies;
use crate::process::{Look, Usage, Watched};
use crate::result::Run;

/// Name of the figure for how long a storm lasts.
pub const WHOLE_FLEET: &str = "until the whole fleet is in, median";
/// Name of the figure for CPU time.
pub const CPU_PER_CONNECT: &str = "broker CPU per connect";
/// Name of the figure for context switches in which a thread of the broker had nothing to do.
pub const WAITS_PER_CONNECT: &str = "broker waits per connect";
/// Name of the figure for context switches in which one was pushed aside.
pub const PUSHES_PER_CONNECT: &str = "broker preemptions per connect";
/// Name of the histogram of what a client waits.
pub const FROM_DUE: &str = "connect, from due";

/// Arguments of `conn`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    #[command(flatten)]
    #[serde(flatten)]
    pub storm: Storm,
}

/// How clients come.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Storm {
    /// Clients in each round.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub clients: u32,
    /// Clients a second; left out, all are due at once.
    #[arg(long, value_parser = positive)]
    pub rate: Option<f64>,
    /// Rounds; the same clients come again.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Sessions outlive the connection; later rounds resume them.
    #[arg(long)]
    pub durable: bool,
    /// Seconds that they do so, in version 5.
    #[arg(long, default_value_t = 3_600)]
    pub expiry_s: u32,
    /// Seconds that all clients stay.
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub hold: f64,
    /// Seconds without clients between rounds.
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub pause: f64,
}

/// Runs it.
pub fn run(args: &Args) -> Result<Run, String> {
    let target = args.common.prepare()?;
    let mut run = Run::new("conn", &args.common.label, args);
    measure(&mut run, &target, args.common.watched()?.as_ref(), &args.storm)?;
    Ok(run)
}

/// Puts the storms on a broker and writes down what came out.
pub fn measure(
    run: &mut Run,
    target: &Target,
    broker: Option<&Watched>,
    storm: &Storm,
) -> Result<(), String> {
    let number = new_run();
    let ask = |client| Ask {
        client_id: format!("bench{number:08x}c{client}"),
        clean: !storm.durable,
        expiry_s: if storm.durable { storm.expiry_s } else { 0 },
        ..Ask::default()
    };
    let asks: Vec<Ask> = (0..storm.clients).map(ask).collect();
    let arrivals = match storm.rate {
        Some(rate) => Arrivals::Rate(rate),
        None => Arrivals::AtOnce(asks.len()),
    };
    let (mut from_due, mut from_connect) = (Latencies::new(), Latencies::new());
    let clock = Clock::start();
    let mut spent = Usage::default();
    let mut opened = 0;
    let mut whole_s = Vec::new();
    for round in 1..=storm.rounds {
        let before = Look::now(clock.now_ns(), broker);
        let mut fleet = Fleet::open(target, &asks, arrivals).map_err(|error| error.to_string())?;
        let used = Look::now(clock.now_ns(), broker).since(&before).broker.unwrap_or_default();
        spent.cpu_us += used.cpu_us;
        spent.voluntary_switches += used.voluntary_switches;
        spent.involuntary_switches += used.involuntary_switches;
        from_due.merge(&fleet.from_due)?;
        from_connect.merge(&fleet.from_connect)?;
        opened += asks.len() - fleet.failures();
        whole_s.push(fleet.connecting_ns as f64 / 1e9);
        note(run, round, storm, &fleet);
        let ended = hold(&mut fleet, storm.hold)?;
        if ended > 0 {
            run.problems.push(format!("round {round}: {ended} connections ended by the broker"));
        }
        fleet.close();
        if round < storm.rounds {
            std::thread::sleep(std::time::Duration::from_secs_f64(storm.pause));
        }
    }
    if storm.durable {
        forget(target, asks);
    }
    let median_s = crate::stats::median(&whole_s).unwrap_or_default();
    run.figure(WHOLE_FLEET, median_s * 1e3, "ms");
    run.figure("connects", f64::from(storm.clients) / median_s, "/s");
    if let Some(cpu_us) = spent.known_cpu_us() {
        run.figure(CPU_PER_CONNECT, cpu_us / opened as f64, "us");
    }
    if broker.is_some() {
        let per = |switches: u64| switches as f64 / opened as f64;
        run.figure(WAITS_PER_CONNECT, per(spent.voluntary_switches), "");
        run.figure(PUSHES_PER_CONNECT, per(spent.involuntary_switches), "");
    }
    run.histogram(FROM_DUE, "from when the client was due to CONNACK", &from_due)?;
    run.histogram("connect, from own", "from the client's own connect() to CONNACK", &from_connect)
}

fn note(run: &mut Run, round: u32, storm: &Storm, fleet: &Fleet) {
    if fleet.failures() > 0 {
        let reason = fleet.first_failure.as_deref().unwrap_or_default();
        let failures = fleet.failures();
        run.problems.push(format!("round {round}: {failures} clients failed, first {reason}"));
    }
    let expected = if storm.durable && round > 1 { u64::from(storm.clients) } else { 0 };
    let expected = expected.saturating_sub(fleet.failures() as u64);
    if fleet.resumed != expected {
        let resumed = fleet.resumed;
        run.problems.push(format!("round {round}: {resumed} sessions resumed, not {expected}"));
    }
    eprintln!(
        "round {round}/{}: {:.1} ms until all were in",
        storm.rounds,
        fleet.connecting_ns as f64 / 1e6
    );
}
