//! Queues of clients that are away are filled, then the clients come back and get everything.

use serde::Serialize;

use super::{Sessions, forget, new_run, open_all, publishers, subscribers};
use crate::cli::{Common, LoadArgs};
use crate::plan::Plan;
use crate::result::Run;
use crate::traffic::{Load, Pace, Traffic};

/// Arguments of `replay`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Consumers, each with a topic and a publisher of its own.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub consumers: u32,
    /// Messages in each queue. Brokers bound them: mosquitto at 1 000 unless told otherwise.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub messages: u64,
    /// Seconds that the consumers' sessions outlive their connections, in version 5.
    #[arg(long, default_value_t = 3_600)]
    pub expiry_s: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,
}

/// Runs it, at QoS 1 when none is given.
pub fn run(args: &Args) -> Result<Run, String> {
    if args.load.rate.is_some() {
        return Err("replay fills queues at full speed: it takes no --rate".to_owned());
    }
    if args.load.qos == Some(0) {
        return Err("no broker keeps QoS 0 messages for clients that are away".to_owned());
    }
    let target = args.common.prepare()?;
    let mut run = Run::new("replay", &args.common.label, args);
    let number = new_run();
    let plan = Plan::pairs(number, args.consumers as usize);
    let window = args.load.window.into();
    let load =
        Load { pace: Pace::Fill { window, each: args.messages }, ..args.load.load(number, 1) };
    let sessions = Sessions::Durable(args.expiry_s);
    // They leave their subscriptions behind.
    let asks = subscribers(&plan, &load, sessions, true);
    open_all(&target, &asks)?.into_iter().for_each(crate::client::Client::close);

    let text = |error: std::io::Error| error.to_string();
    let mut traffic = Traffic::new(&plan, &load, args.common.watched()?).map_err(text)?;
    let clients = open_all(&target, &publishers(&plan, &load))?;
    traffic.attach_publishers(clients).map_err(text)?;
    traffic.publish().map_err(text)?;
    let filled = traffic.outcome();
    let fill_s = filled.sent_all_ns.unwrap_or_default() as f64 / 1e9;

    traffic.begin_drain();
    let members = open_all(&target, &subscribers(&plan, &load, sessions, false))?;
    traffic.attach_members(members).map_err(text)?;
    traffic.drain().map_err(text)?;
    let mut drained = traffic.finish();
    forget(&target, asks);

    let filled_in = drained.account.sent as f64;
    run.figure("filled in", filled_in / fill_s, "/s");
    if let Some(cpu_us) = filled.spent.broker.and_then(|broker| broker.known_cpu_us()) {
        run.figure("broker CPU per message filled in", cpu_us / filled_in, "us");
    }
    let seconds = |ns: Option<u64>| ns.map_or(f64::NAN, |ns| ns as f64 / 1e9);
    let (first_s, last_s) = (seconds(drained.first_delivery_ns), seconds(drained.last_delivery_ns));
    run.figure("drained, from coming back", drained.account.received as f64 / last_s, "/s");
    run.figure("until the first message", first_s * 1e3, "ms");
    run.figure("until the last message", last_s * 1e3, "ms");
    if let Some(cpu_us) = drained.spent.broker.and_then(|broker| broker.known_cpu_us()) {
        let received = drained.account.received as f64;
        run.figure("broker CPU per message drained", cpu_us / received, "us");
    }
    run.spent = Some(drained.spent);
    run.account = Some(drained.account);
    run.faults = std::mem::take(&mut drained.faults);
    run.problems = drained.problems();
    Ok(run)
}
