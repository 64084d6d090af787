//! Registering on maps that all cores share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bench::Latencies;
use rt_abstract::{Core, RunOptions, Runtime};

use super::registry::{Entry, Registry};
use super::{BATCH, Case, Client, LISTING_PERIOD, Outcome, Progress, TIMED, time};
use crate::measure::Lap;

/// Measures one case.
pub fn run<R: Runtime, T: Registry>(case: Case, options: &RunOptions) -> Result<Outcome, String> {
    let (registry, progress) = (Arc::new(T::default()), Arc::new(Progress::default()));
    let shared = (registry, progress.clone());
    let cores = R::run_cores(options, move |core| one_core::<R, T>(core, case, shared.clone()))
        .map_err(|error| error.to_string())?;
    let lap = cores.iter().find_map(|(lap, _)| *lap).unwrap_or_default();
    progress.outcome(lap, cores.into_iter().map(|(_, waits)| waits))
}

async fn one_core<R: Runtime, T: Registry>(
    core: Core,
    case: Case,
    (registry, progress): (Arc<T>, Arc<Progress>),
) -> (Option<Lap>, Latencies) {
    let first = core.index == 0;
    let timer = first.then(|| R::spawn(time::<R>(case, progress.clone())));
    let lister = (first && case.listing)
        .then(|| R::spawn(list::<R, T>(case, registry.clone(), progress.clone())));
    let waits = register::<R, T>(core.index as u64, case, &registry, &progress).await;
    if let Some(lister) = lister {
        let _ = lister.await; // it returns nothing
    }
    let lap = match timer {
        Some(timer) => timer.await.ok(),
        None => None,
    };
    (lap, waits)
}

async fn register<R: Runtime, T: Registry>(
    core: u64,
    case: Case,
    registry: &T,
    progress: &Progress,
) -> Latencies {
    let mut waits = Latencies::new();
    let mut number = 0;
    while !progress.stopped() {
        for _ in 0..BATCH {
            let wanted = (number % TIMED == 0).then(R::now);
            let client = Client::new(core, number, case.tenants);
            registry.insert(client.tenant, client.id, Entry { core, number });
            if let Some(old) = number.checked_sub(case.clients) {
                let old = Client::new(core, old, case.tenants);
                registry.remove(old.tenant, &old.id);
            }
            if let Some(wanted) = wanted {
                waits.record((R::now() - wanted).as_nanos() as u64);
            }
            number += 1;
        }
        progress.registered.fetch_add(BATCH, Ordering::Relaxed);
        R::yield_now().await;
    }
    waits
}

/// Lists the clients of one tenant after the other.
async fn list<R: Runtime, T: Registry>(case: Case, registry: Arc<T>, progress: Arc<Progress>) {
    let mut clients = Vec::new();
    for tenant in (0..case.tenants).cycle() {
        R::sleep(LISTING_PERIOD).await;
        if progress.stopped() {
            return;
        }
        clients.clear();
        registry.each(tenant, |client| clients.push(*client));
        std::hint::black_box(&clients);
        progress.listings.fetch_add(1, Ordering::Relaxed);
    }
}
