//! The running node: raft on one executor, fed by the [`Handle`]'s mailbox and by other nodes.
//!
//! [`open`] does everything that can fail for the operator before a runtime starts; [`Server::run`]
//! is then one task with its helpers, on the thread that the program chooses for it.

mod leader;
mod members;
mod propose;
mod service;
mod watch;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use openraft::{Config, Raft, SnapshotPolicy};
use rt_abstract::{Notify, Receiver, Runtime, Shutdown, Socket};

use crate::handle::{Handle, Request};
use crate::link;
use crate::link::network::Links;
use crate::raft::log::{LogOptions, LogStore};
use crate::raft::machine::{ApplyMode, Machine};
use crate::raft::types::TypeConfig;
use crate::record::NodeId;
use crate::state::Effect;
use crate::steps::{APPLY_STEPS, StepOptions, Steps};
use crate::store::{RocksStore, Store, StoreError};

pub(crate) type MetaRaft<R> = Raft<TypeConfig<R>, Machine<R>>;

/// What a node is started with.
#[derive(Debug)]
pub struct Options {
    /// Which node of the cluster this is.
    pub node: NodeId,
    /// Its directory, made when it is missing; nobody else's.
    pub dir: PathBuf,
    /// Where entries are applied.
    pub apply: ApplyMode,
    /// How long the log grows.
    pub log: LogLimits,
    /// Whether the steps of applying are measured.
    pub steps: StepOptions,
    /// The others; a node without stays alone.
    pub cluster: Option<ClusterOptions>,
}

/// How long the log grows, in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// Entries between two snapshots, which let the log before them go.
    pub snapshot_entries: u64,
    /// Entries before a snapshot that stay, for followers that are a little behind.
    pub kept_entries: u64,
    /// A follower further behind gets a snapshot instead of the log; more than `kept_entries`.
    pub max_lag_entries: u64,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { snapshot_entries: 50_000, kept_entries: 10_000, max_lag_entries: 100_000 }
    }
}

/// How a node meets the others.
#[derive(Debug)]
pub struct ClusterOptions {
    /// The cluster's name; nodes of another one are refused.
    pub name: String,
    /// A bound, listening socket.
    pub listener: Socket,
    /// Where the others reach it, `host:port`.
    pub advertise: String,
    /// Nodes to join through, `host:port`, while this one is a member of nothing; empty: it begins a
    /// new cluster.
    pub seeds: Vec<String>,
}

/// A node that is not running yet.
#[derive(Debug)]
pub struct Server {
    options: Options,
    handle: Handle,
    store: Arc<dyn Store>,
    steps: Arc<Steps>,
    requests: Receiver<Request>,
}

/// Why a node stopped by itself.
#[derive(Debug, thiserror::Error)]
#[error("the metadata failed: {0}")]
pub struct NodeError(String);

/// Opens the store of a node.
///
/// # Errors
/// [`StoreError`], for the operator: what lies in the directory is not this node's, damaged, or
/// newer, or the disk failed.
pub fn open(options: Options) -> Result<(Handle, Server), StoreError> {
    let store = RocksStore::open(&options.dir, options.node)?;
    Ok(open_on(options, Arc::new(store)))
}

/// A node on a store that is open already: its directory is not looked at.
pub fn open_on(options: Options, store: Arc<dyn Store>) -> (Handle, Server) {
    let steps = Arc::new(Steps::new(&APPLY_STEPS, 1, options.steps));
    let (handle, requests) = Handle::new(options.node, store.clone(), steps.clone());
    let server = Server { options, handle: handle.clone(), store, steps, requests };
    (handle, server)
}

impl Server {
    /// Runs the node until `stop`, then closes the store. To be called on the executor that raft is
    /// to run on.
    ///
    /// # Errors
    /// When the node had to stop by itself: nothing is acknowledged from then on, and the process
    /// should end.
    pub async fn run<R: Runtime>(self, stop: Shutdown) -> Result<(), NodeError> {
        let Self { options, handle, store, steps, requests } = self;
        let mut guard = FailedUnlessDone { handle: handle.clone(), done: false };
        let result = run::<R>(options, handle, store.clone(), steps, requests, stop).await;
        guard.done = result.is_ok();
        drop(guard);
        let closed = R::spawn_blocking(move || store.close()).await;
        closed.map_err(|panicked| NodeError(panicked.to_string()))?;
        result
    }
}

async fn run<R: Runtime>(
    options: Options,
    handle: Handle,
    store: Arc<dyn Store>,
    steps: Arc<Steps>,
    requests: Receiver<Request>,
    stop: Shutdown,
) -> Result<(), NodeError> {
    let failure = Arc::new(FirstFailure::default());
    let log_options = LogOptions {
        on_failure: Box::new({
            let failure = failure.clone();
            move |error| failure.set(error.to_string())
        }),
        ..LogOptions::default()
    };
    let log = LogStore::<R>::open(store.clone(), log_options).map_err(failed)?;
    let log_handle = log.handle();
    let sink = {
        let handle = handle.clone();
        Arc::new(move |effects: Vec<Effect>| handle.tell(&effects))
    };
    let machine = Machine::<R>::new(store.clone(), sink, options.apply, steps).map_err(failed)?;
    let (name, address) = match &options.cluster {
        Some(cluster) => (cluster.name.clone(), cluster.advertise.clone()),
        None => ("gearbox".to_owned(), String::new()),
    };
    let settings = link::Settings::new(name.clone(), options.node);
    let links = Links::<R>::new(settings.clone());
    let config = Arc::new(config(name, options.log).validate().map_err(failed)?);
    let raft = MetaRaft::<R>::new(options.node, config, links.clone(), log, machine)
        .await
        .map_err(failed)?;

    let stopping = Shutdown::new();
    let mut tasks = Vec::new();
    let watching = watch::watch(raft.clone(), handle.clone(), failure.clone(), stopping.clone());
    tasks.push(R::spawn(watching));
    tasks.push(R::spawn(watch::cut_when_stuck::<R>(handle.clone(), stopping.clone())));
    let seeds = match options.cluster {
        None => Vec::new(),
        Some(cluster) => {
            let listener = R::listener(cluster.listener).map_err(failed)?;
            let service =
                service::NodeService::new(raft.clone(), links.clone(), handle.clone(), store);
            tasks.push(R::spawn(link::server::serve::<R, _>(
                settings,
                listener,
                service,
                stopping.clone(),
            )));
            cluster.seeds
        }
    };
    let leader = leader::Leader::new(raft.clone(), links.clone());
    let proposing = R::spawn(propose::propose_loop(leader.clone(), requests, stopping.clone()));
    let entering = members::enter(leader.clone(), options.node, address, seeds, stopping.clone());
    let begin = {
        let (handle, stopping, failure) = (handle.clone(), stopping.clone(), failure.clone());
        async move {
            if let Err(error) = entering.await {
                failure.set(error);
                return;
            }
            if leader.catch_up(&stopping).await {
                handle.set_ready();
            }
        }
    };
    tasks.push(R::spawn(begin));

    wait_for_either(&stop, &failure).await;
    stopping.trigger();
    let ended = raft.shutdown().await;
    links.close().await;
    for task in tasks {
        if let Err(panicked) = task.await {
            failure.set(panicked.to_string());
        }
    }
    if let Err(panicked) = proposing.await {
        failure.set(panicked.to_string());
    }
    if let Err(error) = ended {
        failure.set(error.to_string());
    }
    drop(raft);
    log_handle.ended().await;
    let closed = R::spawn_blocking(move || log_handle.close()).await;
    closed.map_err(failed)?;
    match failure.get() {
        None => Ok(()),
        Some(reason) => Err(NodeError(reason)),
    }
}

fn config(cluster_name: String, log: LogLimits) -> Config {
    Config {
        cluster_name,
        heartbeat_interval: 100,
        election_timeout_min: 400,
        election_timeout_max: 800,
        install_snapshot_timeout: 60_000,
        max_payload_entries: 256,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(log.snapshot_entries),
        max_in_snapshot_log_to_keep: log.kept_entries,
        replication_lag_threshold: log.max_lag_entries,
        purge_batch_size: (log.snapshot_entries / 10).clamp(1, 1_000),
        enable_pre_vote: Some(true),
        ..Config::default()
    }
}

fn failed(error: impl std::fmt::Display) -> NodeError {
    NodeError(error.to_string())
}

/// The first reason why the node has to stop.
#[derive(Debug, Default)]
pub(crate) struct FirstFailure {
    reason: Mutex<Option<String>>,
    wake: Notify,
}

impl FirstFailure {
    pub(crate) fn set(&self, reason: String) {
        let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            tracing::error!(%reason, "the metadata failed: nothing is acknowledged any more");
            *first = Some(reason);
        }
        drop(first);
        self.wake.notify();
    }

    fn get(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn wait_for_either(stop: &Shutdown, failure: &FirstFailure) {
    let stopped = std::pin::pin!(stop.wait());
    let failed = std::pin::pin!(failure.wake.notified());
    futures_util::future::select(stopped, failed).await;
}

/// Tells everybody that nothing will come any more, also after a panic.
struct FailedUnlessDone {
    handle: Handle,
    done: bool,
}

impl Drop for FailedUnlessDone {
    fn drop(&mut self) {
        if !self.done {
            self.handle.set_failed();
        }
    }
}
