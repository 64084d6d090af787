//! Many subscriptions, then messages that each match one of them.

use serde::Serialize;

use super::{Sessions, new_run, open_all, publishers, subscribers};
use crate::cli::{Common, LoadArgs};
use crate::event::Clock;
use crate::fleet::{Arrivals, Fleet};
use crate::plan::Plan;
use crate::process::{Look, resident_kib};
use crate::result::Run;
use crate::traffic::Traffic;

/// Arguments of `subs`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Subscriptions: a third exact, a third with `+`, a third with `#`.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub filters: u32,
    /// Connections that hold them.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub clients: u32,
    /// Connections that publish.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub publishers: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,
}

/// Runs it.
pub fn run(args: &Args) -> Result<Run, String> {
    let target = args.common.prepare()?;
    let mut run = Run::new("subs", &args.common.label, args);
    let number = new_run();
    let (filters, clients) = (args.filters as usize, args.clients.min(args.filters) as usize);
    let plan = Plan::scattered(number, filters, clients, args.publishers as usize);
    let load = args.load.load(number, 0);
    let resident = || args.common.pid.and_then(resident_kib);
    let before_kib = resident();
    let clock = Clock::start();
    let watched = args.common.watched()?;
    let before = Look::now(clock.now_ns(), watched.as_ref());
    let asks = subscribers(&plan, &load, Sessions::Transient, true);
    let fleet = Fleet::open(&target, &asks, Arrivals::SETUP).map_err(|error| error.to_string())?;
    drop(asks);
    let spent = Look::now(clock.now_ns(), watched.as_ref()).since(&before);
    let seconds = fleet.subscribing_ns as f64 / 1e9;
    run.figure("subscriptions", filters as f64 / seconds, "/s");
    if let Some(cpu_us) = spent.broker.and_then(|broker| broker.known_cpu_us()) {
        run.figure("broker CPU per subscription", cpu_us / filters as f64, "us");
    }
    if let (Some(before_kib), Some(after_kib)) = (before_kib, resident()) {
        let grown = after_kib as f64 - before_kib as f64;
        run.figure("broker memory per subscription", grown * 1024.0 / filters as f64, "bytes");
    }
    run.histogram(
        "subscribe",
        "from SUBSCRIBE (100 filters at most) to SUBACK",
        &fleet.subscribed,
    )?;
    let members = fleet.all()?;
    let text = |error: std::io::Error| error.to_string();
    let mut traffic = Traffic::new(&plan, &load, watched).map_err(text)?;
    let clients = open_all(&target, &publishers(&plan, &load))?;
    traffic.attach_publishers(clients).map_err(text)?;
    traffic.attach_members(members).map_err(text)?;
    traffic.publish().map_err(text)?;
    run.outcome(&traffic.finish())?;
    Ok(run)
}
