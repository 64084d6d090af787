//! Four ways to a configuration.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rt_abstract::{MaybeSend, Receiver, Runtime, Sender, Shared, mailbox};
use tokio::sync::RwLock;

use super::snapshot::Snapshot;
use crate::measure::work;

/// Changes that wait for a core; only the last one matters, so few.
const MAILBOX: usize = 4;

/// What is configured, as far as a CONNECT asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    version: u64,
    max_clients: u64,
    listeners: Vec<String>,
}

/// A way to the configuration, as one core has it.
pub trait Source: Clone + MaybeSend + 'static {
    /// What all cores share.
    type World: Send + Sync + 'static;

    /// A first configuration for so many cores.
    fn world(cores: usize) -> Arc<Self::World>;

    /// The way of one core, and a task that keeps it up to date where it needs one.
    fn on_core<R: Runtime>(
        world: &Arc<Self::World>,
        core: usize,
    ) -> (Self, Option<R::JoinHandle<()>>);

    /// One step of a CONNECT: reads, computes, and lets others have a turn. Returns how long it
    /// waited for the configuration.
    fn step<R: Runtime>(&self, step_work: u64) -> impl Future<Output = Duration> + MaybeSend;

    /// The next configuration.
    fn change(world: &Self::World) -> impl Future<Output = ()> + MaybeSend;

    /// No further change comes: the tasks of `on_core` end.
    fn close(_: &Self::World) {}
}

/// A lock that tasks wait for, in the order in which they came; held over the step's await, as a
/// value that is borrowed from it makes one do.
#[derive(Clone, Debug)]
pub struct HeldLock(Arc<RwLock<Settings>>);

/// The same lock, held to copy what the step needs.
#[derive(Clone, Debug)]
pub struct Lock(Arc<RwLock<Settings>>);

/// One atomic pointer.
#[derive(Clone, Debug)]
pub struct Snapshots(Arc<Snapshot<Settings>>);

/// A pointer for each core; changes come by mail.
#[derive(Clone, Debug)]
pub struct Copies(Shared<Arc<Settings>>);

/// The mailboxes of all cores, and the configuration of the one that changes it.
#[derive(Debug)]
pub struct Post {
    current: Mutex<Settings>,
    senders: Mutex<Vec<Sender<Arc<Settings>>>>,
    receivers: Mutex<Vec<Option<Receiver<Arc<Settings>>>>>,
}

impl Settings {
    fn first() -> Self {
        Self { version: 1, max_clients: 100_000, listeners: vec!["127.0.0.1:1883".to_owned(); 8] }
    }

    fn next(&self) -> Self {
        Self { version: self.version + 1, ..self.clone() }
    }

    /// What a step needs.
    fn limit(&self) -> u64 {
        self.max_clients + self.listeners.len() as u64
    }
}

impl Source for HeldLock {
    type World = RwLock<Settings>;

    fn world(_: usize) -> Arc<Self::World> {
        Arc::new(RwLock::new(Settings::first()))
    }

    fn on_core<R: Runtime>(
        world: &Arc<Self::World>,
        _: usize,
    ) -> (Self, Option<R::JoinHandle<()>>) {
        (Self(world.clone()), None)
    }

    async fn step<R: Runtime>(&self, step_work: u64) -> Duration {
        let wanted = R::now();
        let settings = self.0.read().await;
        let waited = R::now() - wanted;
        work(step_work);
        R::yield_now().await;
        std::hint::black_box(settings.limit());
        waited
    }

    async fn change(world: &Self::World) {
        let mut settings = world.write().await;
        *settings = settings.next();
    }
}

impl Source for Lock {
    type World = RwLock<Settings>;

    fn world(cores: usize) -> Arc<Self::World> {
        HeldLock::world(cores)
    }

    fn on_core<R: Runtime>(
        world: &Arc<Self::World>,
        _: usize,
    ) -> (Self, Option<R::JoinHandle<()>>) {
        (Self(world.clone()), None)
    }

    async fn step<R: Runtime>(&self, step_work: u64) -> Duration {
        let wanted = R::now();
        let limit = self.0.read().await.limit();
        let waited = R::now() - wanted;
        work(step_work);
        R::yield_now().await;
        std::hint::black_box(limit);
        waited
    }

    async fn change(world: &Self::World) {
        HeldLock::change(world).await;
    }
}

impl Source for Snapshots {
    type World = Snapshot<Settings>;

    fn world(_: usize) -> Arc<Self::World> {
        Arc::new(Snapshot::new(Settings::first()))
    }

    fn on_core<R: Runtime>(
        world: &Arc<Self::World>,
        _: usize,
    ) -> (Self, Option<R::JoinHandle<()>>) {
        (Self(world.clone()), None)
    }

    async fn step<R: Runtime>(&self, step_work: u64) -> Duration {
        let wanted = R::now();
        let limit = self.0.load().limit();
        let waited = R::now() - wanted;
        work(step_work);
        R::yield_now().await;
        std::hint::black_box(limit);
        waited
    }

    async fn change(world: &Self::World) {
        world.update(Settings::next);
    }
}

impl Source for Copies {
    type World = Post;

    fn world(cores: usize) -> Arc<Self::World> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..cores).map(|_| mailbox([MAILBOX])).unzip();
        Arc::new(Post {
            current: Mutex::new(Settings::first()),
            senders: Mutex::new(senders),
            receivers: Mutex::new(receivers.into_iter().map(Some).collect()),
        })
    }

    fn on_core<R: Runtime>(
        world: &Arc<Self::World>,
        core: usize,
    ) -> (Self, Option<R::JoinHandle<()>>) {
        let copy = Shared::new(Arc::new(Settings::first()));
        let mut receivers = world.receivers.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = receivers.get_mut(core).and_then(Option::take);
        let keeper = receiver.map(|receiver| R::spawn(keep(receiver, copy.clone())));
        (Self(copy), keeper)
    }

    async fn step<R: Runtime>(&self, step_work: u64) -> Duration {
        let wanted = R::now();
        let limit = self.0.with(|settings| settings.limit());
        let waited = R::now() - wanted;
        work(step_work);
        R::yield_now().await;
        std::hint::black_box(limit);
        waited
    }

    async fn change(world: &Self::World) {
        let next = {
            let mut current = world.current.lock().unwrap_or_else(PoisonError::into_inner);
            *current = current.next();
            Arc::new(current.clone())
        };
        let senders = world.senders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for sender in senders {
            sender.room(0).await;
            let _ = sender.try_send(0, next.clone()); // one sender: there is room, or nobody
        }
    }

    fn close(world: &Self::World) {
        world.senders.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

async fn keep(mut receiver: Receiver<Arc<Settings>>, copy: Shared<Arc<Settings>>) {
    let mut batch = Vec::new();
    while receiver.receive(&mut batch, MAILBOX).await > 0 {
        if let Some(last) = batch.pop() {
            copy.with(|settings| *settings = last);
        }
        batch.clear();
    }
}
