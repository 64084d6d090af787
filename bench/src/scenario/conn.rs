//! Connection storms: all clients at once or at a rate, round after round.

use serde::Serialize;

use super::{forget, hold, new_run};
use crate::cli::{Common, positive, seconds};
use crate::event::Clock;
use crate::fleet::{Arrivals, Ask, Fleet};
use crate::latency::Latencies;
use crate::process::{Look, Usage};
use crate::result::Run;

/// Arguments of `conn`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
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
    let number = new_run();
    let ask = |client| Ask {
        client_id: format!("bench{number:08x}c{client}"),
        clean: !args.durable,
        expiry_s: if args.durable { args.expiry_s } else { 0 },
        ..Ask::default()
    };
    let asks: Vec<Ask> = (0..args.clients).map(ask).collect();
    let arrivals = match args.rate {
        Some(rate) => Arrivals::Rate(rate),
        None => Arrivals::AtOnce(asks.len()),
    };
    let (mut from_due, mut from_connect) = (Latencies::new(), Latencies::new());
    let clock = Clock::start();
    let mut spent_us = 0;
    let mut opened = 0;
    let mut whole_s = Vec::new();
    for round in 1..=args.rounds {
        let before = Look::now(clock.now_ns(), args.common.pid);
        let mut fleet = Fleet::open(&target, &asks, arrivals).map_err(|error| error.to_string())?;
        let spent = Look::now(clock.now_ns(), args.common.pid).since(&before);
        spent_us += spent.broker.map_or(0, |broker| broker.cpu_us);
        from_due.merge(&fleet.from_due)?;
        from_connect.merge(&fleet.from_connect)?;
        opened += asks.len() - fleet.failures();
        whole_s.push(fleet.connecting_ns as f64 / 1e9);
        note(&mut run, round, args, &fleet);
        let ended = hold(&mut fleet, args.hold)?;
        if ended > 0 {
            run.problems.push(format!("round {round}: {ended} connections ended by the broker"));
        }
        fleet.close();
        if round < args.rounds {
            std::thread::sleep(std::time::Duration::from_secs_f64(args.pause));
        }
    }
    if args.durable {
        forget(&target, asks);
    }
    let median_s = crate::stats::median(&whole_s).unwrap_or_default();
    run.figure("until the whole fleet is in, median", median_s * 1e3, "ms");
    run.figure("connects", f64::from(args.clients) / median_s, "/s");
    let used = Usage { cpu_us: spent_us, ..Usage::default() };
    if let Some(cpu_us) = used.known_cpu_us() {
        run.figure("broker CPU per connect", cpu_us / opened as f64, "us");
    }
    run.histogram("connect, from due", "from when the client was due to CONNACK", &from_due)?;
    run.histogram(
        "connect, from own",
        "from the client's own connect() to CONNACK",
        &from_connect,
    )?;
    Ok(run)
}

fn note(run: &mut Run, round: u32, args: &Args, fleet: &Fleet) {
    if fleet.failures() > 0 {
        let reason = fleet.first_failure.as_deref().unwrap_or_default();
        let failures = fleet.failures();
        run.problems.push(format!("round {round}: {failures} clients failed, first {reason}"));
    }
    let expected = if args.durable && round > 1 { u64::from(args.clients) } else { 0 };
    let expected = expected.saturating_sub(fleet.failures() as u64);
    if fleet.resumed != expected {
        let resumed = fleet.resumed;
        run.problems.push(format!("round {round}: {resumed} sessions resumed, not {expected}"));
    }
    eprintln!(
        "round {round}/{}: {:.1} ms until all were in",
        args.rounds,
        fleet.connecting_ns as f64 / 1e6
    );
}
