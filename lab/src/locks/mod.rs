//! Who may change which map: a map of maps behind locks, flat maps with an index, or a map for each
//! core that others send messages to. Clients of 1 or of 100 tenants register and leave on all cores
//! as fast as they can, without and with somebody who lists the clients of a tenant meanwhile.

mod owned;
mod reentry;
mod registry;
mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bench::{Latencies, Run};
use rt_abstract::{RunOptions, Runtime};
use serde::Serialize;

use crate::backend::{Column, Visit};
use crate::cli::positive;
use crate::measure::{self, Lap, Name, Output};
pub use reentry::{Args as ReentryArgs, Map};
use registry::{FlatLockFree, FlatLocked, Nested};

/// Clients that one core registers before it lets the others have a turn.
const BATCH: u64 = 64;
/// Every so manieth registration is timed: an odd number, so that those for all cores are among them.
const TIMED: u64 = 7;
/// From one listing to the next.
const LISTING_PERIOD: Duration = Duration::from_millis(2);

/// Arguments of `locks`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub column: Column,
    /// Executors.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub cores: u64,
    /// Numbers of tenants, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,100", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub tenants: Vec<u64>,
    /// Clients that each core has registered at a time.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub clients: u64,
    /// Seconds for each of the sixteen measurements.
    #[arg(long, default_value_t = 0.25, value_parser = positive)]
    pub seconds: f64,
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Case {
    tenants: u64,
    clients: u64,
    cores: u64,
    listing: bool,
    lasts: Duration,
}

/// What came out of one.
#[derive(Debug, Default)]
struct Outcome {
    lap: Lap,
    /// Registrations that are done: inserted, and an older client removed.
    registered: u64,
    /// From wanting a registration until it is done.
    waits: Option<Latencies>,
    /// Times that a tenant's clients were listed.
    listings: u64,
}

/// What the cores of one measurement share.
#[derive(Debug, Default)]
struct Progress {
    stop: AtomicBool,
    registered: AtomicU64,
    listings: AtomicU64,
}

/// The `number`th client of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Client {
    tenant: registry::Tenant,
    id: registry::ClientId,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), String> {
    let mut run = measure::new_run("locks", &args.column, args)?;
    for &tenants in &args.tenants {
        for listing in [false, true] {
            let case = Case {
                tenants,
                clients: args.clients,
                cores: args.cores,
                listing,
                lasts: Duration::from_secs_f64(args.seconds),
            };
            let outcomes = args
                .column
                .with(All { case, options: args.column.options(args.cores as usize) })?;
            for (variant, outcome) in outcomes {
                record(&mut run, &case, variant, &outcome?)?;
            }
        }
    }
    measure::finish(run, &args.output)
}

/// Whether somebody who walks over a registry may change it.
pub fn reentry(args: &ReentryArgs) -> Result<(), String> {
    reentry::run(args);
    Ok(())
}

/// All variants of one case.
struct All {
    case: Case,
    options: RunOptions,
}

impl Visit for All {
    type Output = [(&'static str, Result<Outcome, String>); 4];

    fn visit<R: Runtime>(self) -> Self::Output {
        let (case, options) = (self.case, &self.options);
        [
            ("nested, locked", shared::run::<R, Nested>(case, options)),
            ("flat, locked", shared::run::<R, FlatLocked>(case, options)),
            ("flat, lock-free", shared::run::<R, FlatLockFree>(case, options)),
            ("owned by cores", owned::run::<R>(case, options)),
        ]
    }
}

impl Client {
    fn new(core: u64, number: u64, tenants: u64) -> Self {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&core.to_le_bytes());
        id[8..].copy_from_slice(&number.to_le_bytes());
        Self { tenant: number % tenants, id }
    }
}

impl Case {
    fn situation(&self) -> String {
        let tenants = if self.tenants == 1 { "tenant" } else { "tenants" };
        let listing = if self.listing { ", while listed" } else { "" };
        format!("{} {tenants}{listing}", self.tenants)
    }
}

impl Progress {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn outcome(
        &self,
        lap: Lap,
        waits: impl IntoIterator<Item = Latencies>,
    ) -> Result<Outcome, String> {
        let mut all = Latencies::new();
        for latencies in waits {
            all.merge(&latencies)?;
        }
        Ok(Outcome {
            lap,
            registered: self.registered.load(Ordering::Relaxed),
            waits: Some(all),
            listings: self.listings.load(Ordering::Relaxed),
        })
    }
}

/// Ends a measurement after its time, on one of its cores; says what it took.
async fn time<R: Runtime>(case: Case, progress: Arc<Progress>) -> Lap {
    let watch = measure::Stopwatch::start::<R>();
    R::sleep(case.lasts).await;
    progress.stop.store(true, Ordering::Relaxed);
    watch.lap::<R>()
}

fn record(run: &mut Run, case: &Case, variant: &str, outcome: &Outcome) -> Result<(), String> {
    let situation = case.situation();
    let name = |measure: &str| Name::text(&situation, variant, measure);
    run.figure(&name("registrations"), outcome.lap.per_second(outcome.registered), "/s");
    run.figure(&name("CPU per registration"), outcome.lap.cpu_ns_per(outcome.registered), "ns");
    if case.listing {
        run.figure(&name("listings"), outcome.lap.per_second(outcome.listings), "/s");
    }
    match &outcome.waits {
        Some(waits) => run.histogram(&name("time of a registration"), "from wanted to done", waits),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_spread_over_tenants_and_differ() {
        let of = |core, number| Client::new(core, number, 100);
        assert_eq!((of(0, 7).tenant, of(1, 107).tenant), (7, 7));
        assert_ne!(of(0, 7).id, of(1, 7).id);
        assert_ne!(of(0, 7).id, of(0, 107).id);
    }
}
