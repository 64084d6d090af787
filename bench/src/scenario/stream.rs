//! Producers that write to every topic at a rate, with a persistent consumer for each topic.

use serde::Serialize;

use super::{Sessions, new_run, run_traffic};
use crate::cli::{Common, LoadArgs};
use crate::client::Target;
use crate::plan::Plan;
use crate::process::Watched;
use crate::result::Run;

/// Messages a second when no rate is given.
const DEFAULT_RATE: f64 = 1_000.0;

/// Name of the figure for throughput in bytes.
pub const PAYLOAD_PER_SECOND: &str = "payload delivered";

/// Arguments of `stream`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    #[command(flatten)]
    #[serde(flatten)]
    pub grid: Grid,
    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,
}

/// Who writes where.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Grid {
    /// Publishing connections.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub producers: u32,
    /// Topics, each with one consumer whose session is durable.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub topics: u32,
    /// Seconds that the consumers' sessions outlive their connections, in version 5.
    #[arg(long, default_value_t = 3_600)]
    pub expiry_s: u32,
}

/// Runs it. Without a rate it is 1 000 messages a second; QoS 1 when none is given.
pub fn run(args: &Args) -> Result<Run, String> {
    let target = args.common.prepare()?;
    let mut run = Run::new("stream", &args.common.label, args);
    let rate = args.load.rate.unwrap_or(DEFAULT_RATE);
    let load = LoadArgs { rate: Some(rate), ..args.load.clone() };
    run.parameters.insert("rate".to_owned(), rate.into());
    measure(&mut run, &target, args.common.watched()?, &args.grid, &load)?;
    Ok(run)
}

/// Puts the load on a broker, at full speed without a rate, and writes down what came out.
pub fn measure(
    run: &mut Run,
    target: &Target,
    broker: Option<Watched>,
    grid: &Grid,
    load: &LoadArgs,
) -> Result<(), String> {
    let number = new_run();
    let load = load.load(number, 1);
    let plan = Plan::producers(number, grid.producers as usize, grid.topics as usize);
    let sessions = Sessions::Durable(grid.expiry_s);
    let outcome = run_traffic(target, &plan, &load, broker, sessions)?;
    let bytes = outcome.delivered as f64 * load.sizes.mean();
    run.figure(PAYLOAD_PER_SECOND, bytes / 1e6 / outcome.spent.seconds, "MB/s");
    run.outcome(&outcome)
}
