//! Connections that do nothing: what each costs the broker.

use serde::Serialize;

use super::{hold, new_run};
use crate::cli::{Common, positive, seconds};
use crate::event::Clock;
use crate::fleet::{Arrivals, Ask, Fleet};
use crate::process::{Look, resident_kib};
use crate::result::Run;

/// Arguments of `idle`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Connections.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,
    /// Connections opened a second.
    #[arg(long, default_value_t = 2_000.0, value_parser = positive)]
    pub rate: f64,
    /// Seconds that they stay.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub hold: f64,
    /// Each subscribes to a topic of its own.
    #[arg(long)]
    pub subscribe: bool,
}

/// Runs it. The broker's memory needs `--pid`.
pub fn run(args: &Args) -> Result<Run, String> {
    let target = args.common.prepare()?;
    let mut run = Run::new("idle", &args.common.label, args);
    let number = new_run();
    let ask = |client| Ask {
        client_id: format!("bench{number:08x}i{client}"),
        clean: true,
        filters: (0..u8::from(args.subscribe))
            .map(|_| format!("bench/{number:08x}/idle/{client}"))
            .collect(),
        ..Ask::default()
    };
    let asks: Vec<Ask> = (0..args.connections).map(ask).collect();
    let resident = || args.common.pid.and_then(resident_kib);
    let before_kib = resident();
    let arrivals = Arrivals::Rate(args.rate);
    let mut fleet = Fleet::open(&target, &asks, arrivals).map_err(|error| error.to_string())?;
    let opened = asks.len() - fleet.failures();
    if fleet.failures() > 0 {
        let reason = fleet.first_failure.clone().unwrap_or_default();
        run.problems.push(format!("{} connections failed, first {reason}", fleet.failures()));
    }
    let clock = Clock::start();
    let watched = args.common.watched()?;
    let before = Look::now(clock.now_ns(), watched.as_ref());
    let ended = hold(&mut fleet, args.hold)?;
    let spent = Look::now(clock.now_ns(), watched.as_ref()).since(&before);
    let after_kib = resident();
    if ended > 0 {
        run.problems.push(format!("{ended} connections ended by the broker"));
    }
    run.figure("connections", opened as f64, "");
    if let (Some(before_kib), Some(after_kib)) = (before_kib, after_kib) {
        run.figure("broker memory before", before_kib as f64, "KiB");
        run.figure("broker memory with all connections", after_kib as f64, "KiB");
        let grown = after_kib as f64 - before_kib as f64;
        run.figure("broker memory per connection", grown * 1024.0 / opened as f64, "bytes");
    } else {
        run.doubts.push("the broker's memory is not known: give its process by --pid".to_owned());
    }
    if let Some(broker) = spent.broker {
        let share = broker.cpu_us as f64 / 1e4 / spent.seconds;
        run.figure("broker CPU while idle", share, "% of a core");
        let switches = broker.voluntary_switches + broker.involuntary_switches;
        run.figure("broker context switches", switches as f64 / spent.seconds, "/s");
    }
    run.histogram("connect", "from when the client was due to CONNACK", &fleet.from_due)?;
    run.spent = Some(spent);
    fleet.close();
    Ok(run)
}
