//! Registering with maps that belong to cores: whoever wants a change sends it to the owner, in
//! batches. Half of the clients of two cores belong to the other one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bench::Latencies;
use foldhash::fast::RandomState;
use rt_abstract::{Core, Instant, Receiver, RunOptions, Runtime, Sender, Shared, mailbox};

use super::registry::{ClientId, Entry, Tenant};
use super::{BATCH, Case, Client, LISTING_PERIOD, Outcome, Progress, TIMED, time};
use crate::measure::Lap;

/// Items that wait for a core; who finds it full waits with its own registrations.
const MAILBOX: usize = 4_096;
/// Items received at once.
const RECEIVED: usize = 256;

/// From core to core.
enum Mail {
    /// Insert the first, remove the second.
    Register { number: u64, core: u64, wanted: Option<Instant> },
    /// Show the clients of a tenant to core 0.
    List(Tenant),
    /// The clients of one core.
    Listed(Vec<ClientId>),
}

/// What one core owns.
#[derive(Default)]
struct Owner {
    tenants: HashMap<Tenant, HashMap<ClientId, Entry, RandomState>, RandomState>,
    waits: Latencies,
    /// Answers that a listing still waits for.
    missing: usize,
}

/// Everybody's mailboxes; each core takes its own receiver.
struct Post {
    senders: Vec<Sender<Mail>>,
    receivers: Mutex<Vec<Option<Receiver<Mail>>>>,
    progress: Arc<Progress>,
}

/// Measures one case.
pub fn run<R: Runtime>(case: Case, options: &RunOptions) -> Result<Outcome, String> {
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..options.cores).map(|_| mailbox([MAILBOX])).unzip();
    let receivers = Mutex::new(receivers.into_iter().map(Some).collect());
    let progress = Arc::new(Progress::default());
    let post = Arc::new(Post { senders, receivers, progress: progress.clone() });
    let cores = R::run_cores(options, move |core| one_core::<R>(core, case, post.clone()))
        .map_err(|error| error.to_string())?;
    let lap = cores.iter().find_map(|(lap, _)| *lap).unwrap_or_default();
    progress.outcome(lap, cores.into_iter().map(|(_, waits)| waits))
}

async fn one_core<R: Runtime>(core: Core, case: Case, post: Arc<Post>) -> (Option<Lap>, Latencies) {
    let owner = Shared::new(Owner::default());
    let reader = post
        .take(core.index)
        .map(|receiver| R::spawn(read::<R>(case, receiver, owner.clone(), post.clone())));
    let first = core.index == 0;
    let timer = first.then(|| R::spawn(time::<R>(case, post.progress.clone())));
    let lister =
        (first && case.listing).then(|| R::spawn(list::<R>(case, owner.clone(), post.clone())));
    register::<R>(core, case, &owner, &post).await;
    if let Some(lister) = lister {
        let _ = lister.await; // it returns nothing
    }
    let lap = match timer {
        Some(timer) => timer.await.ok(),
        None => None,
    };
    // Everybody stops by the same flag; a word to each reader that may be asleep.
    for sender in &post.senders {
        let _ = sender.try_send(0, Mail::Listed(Vec::new())); // one that is full is awake
    }
    if let Some(reader) = reader {
        let _ = reader.await; // it returns nothing
    }
    (lap, owner.with(|owner| std::mem::take(&mut owner.waits)))
}

/// Registers clients: with its own map at once, with others' by mail.
async fn register<R: Runtime>(core: Core, case: Case, owner: &Shared<Owner>, post: &Post) {
    let me = core.index as u64;
    let mut outgoing: Vec<VecDeque<Mail>> = (0..core.count).map(|_| VecDeque::new()).collect();
    let mut number = 0;
    while !post.progress.stopped() {
        // With mail left over it waits: what is behind at others is bounded.
        if outgoing.iter().all(VecDeque::is_empty) {
            for _ in 0..BATCH {
                let wanted = (number % TIMED == 0).then(R::now);
                let mail = Mail::Register { number, core: me, wanted };
                let home = (number + me) as usize % core.count;
                if home == core.index {
                    owner.with(|owner| owner.register::<R>(case, me, number, wanted));
                    post.progress.registered.fetch_add(1, Ordering::Relaxed);
                } else if let Some(outgoing) = outgoing.get_mut(home) {
                    outgoing.push_back(mail);
                }
                number += 1;
            }
        }
        for (mail, sender) in outgoing.iter_mut().zip(&post.senders) {
            sender.try_send_batch(0, mail);
        }
        R::yield_now().await;
    }
}

/// Does what others ask for.
async fn read<R: Runtime>(
    case: Case,
    mut receiver: Receiver<Mail>,
    owner: Shared<Owner>,
    post: Arc<Post>,
) {
    let mut batch = Vec::new();
    while !post.progress.stopped() && receiver.receive(&mut batch, RECEIVED).await > 0 {
        let mut registered = 0;
        for mail in batch.drain(..) {
            match mail {
                Mail::Register { number, core, wanted } => {
                    owner.with(|owner| owner.register::<R>(case, core, number, wanted));
                    registered += 1;
                }
                Mail::List(tenant) => {
                    let clients = owner.with(|owner| owner.list(tenant));
                    if let Some(first) = post.senders.first() {
                        let _ = first.try_send(0, Mail::Listed(clients)); // full: one listing less
                    }
                }
                Mail::Listed(clients) => {
                    std::hint::black_box(&clients);
                    let done = owner.with(|owner| {
                        owner.missing = owner.missing.saturating_sub(1);
                        owner.missing == 0
                    });
                    if done && case.listing {
                        post.progress.listings.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
        post.progress.registered.fetch_add(registered, Ordering::Relaxed);
    }
}

/// Asks all cores for the clients of one tenant after the other.
async fn list<R: Runtime>(case: Case, owner: Shared<Owner>, post: Arc<Post>) {
    for tenant in (0..case.tenants).cycle() {
        R::sleep(LISTING_PERIOD).await;
        if post.progress.stopped() {
            return;
        }
        owner.with(|owner| owner.missing = post.senders.len());
        for sender in &post.senders {
            while sender.try_send(0, Mail::List(tenant)).is_err() && !post.progress.stopped() {
                R::yield_now().await;
            }
        }
    }
}

impl Owner {
    fn register<R: Runtime>(
        &mut self,
        case: Case,
        core: u64,
        number: u64,
        wanted: Option<Instant>,
    ) {
        let client = Client::new(core, number, case.tenants);
        self.tenants.entry(client.tenant).or_default().insert(client.id, Entry { core, number });
        // An older client of the same core and the same home.
        if let Some(old) = number.checked_sub(case.clients.next_multiple_of(case.cores)) {
            let old = Client::new(core, old, case.tenants);
            if let Some(clients) = self.tenants.get_mut(&old.tenant) {
                clients.remove(&old.id);
            }
        }
        if let Some(wanted) = wanted {
            self.waits.record((R::now() - wanted).as_nanos() as u64);
        }
    }

    fn list(&self, tenant: Tenant) -> Vec<ClientId> {
        self.tenants
            .get(&tenant)
            .map(|clients| clients.keys().copied().collect())
            .unwrap_or_default()
    }
}

impl Post {
    fn take(&self, core: usize) -> Option<Receiver<Mail>> {
        let mut receivers = self.receivers.lock().unwrap_or_else(PoisonError::into_inner);
        receivers.get_mut(core)?.take()
    }
}
