//! Producers that write to every topic at a rate, with a persistent consumer for each topic.

use serde::Serialize;

use super::{Sessions, new_run, run_traffic};
use crate::cli::{Common, LoadArgs};
use crate::plan::Plan;
use crate::result::Run;

/// Messages a second when no rate is given.
const DEFAULT_RATE: f64 = 1_000.0;

/// Arguments of `stream`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// Publishing connections.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub producers: u32,
    /// Topics, each with one consumer whose session is durable.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub topics: u32,
    /// Seconds that the consumers' sessions outlive their connections, in version 5.
    #[arg(long, default_value_t = 3_600)]
    pub expiry_s: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,
}

/// Runs it. Without a rate it is 1 000 messages a second; QoS 1 when none is given.
pub fn run(args: &Args) -> Result<Run, String> {
    let target = args.common.prepare()?;
    let mut run = Run::new("stream", &args.common.label, args);
    let number = new_run();
    let rate = args.load.rate.unwrap_or(DEFAULT_RATE);
    let load = LoadArgs { rate: Some(rate), ..args.load.clone() }.load(number, 1);
    run.parameters.insert("rate".to_owned(), rate.into());
    let plan = Plan::producers(number, args.producers as usize, args.topics as usize);
    let sessions = Sessions::Durable(args.expiry_s);
    let outcome = run_traffic(&target, &plan, &load, args.common.pid, sessions)?;
    run.outcome(&outcome)?;
    Ok(run)
}
