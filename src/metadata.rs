//! The metadata of this node: opened before anything runs, then run by a thread of its own, or by the
//! first shard's executor.

use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use meta::{ApplyMode, ClusterOptions, Handle, LogLimits, Options, Server};
use rt_abstract::{
    Address, Pinning, RunOptions, Runtime, Scheduler, Shutdown, bind, bound_address,
};

use crate::config::{ApplyName, RaftThread, Settings};

/// Below the data directory.
const DIRECTORY: &str = "meta";
const CLUSTER_BACKLOG: i32 = 128;

/// Opens the metadata in the data directory; `None` when nothing is kept.
///
/// # Errors
/// One line for the operator.
pub fn open(settings: &Settings) -> Result<Option<(Handle, Server)>, String> {
    if settings.data.ephemeral {
        return Ok(None);
    }
    let cluster = &settings.cluster;
    let cluster_options = match &cluster.listen.0 {
        None => None,
        Some(address) => {
            let failed = |error| format!("cannot listen on {address} (cluster): {error}");
            let listener = bind(address, CLUSTER_BACKLOG).map_err(failed)?;
            let bound = bound_address(&listener).map_err(failed)?;
            Some(ClusterOptions {
                name: cluster.name.clone(),
                listener,
                advertise: advertised(&cluster.advertise, &bound),
                seeds: cluster.seeds.clone(),
            })
        }
    };
    let options = Options {
        node: cluster.node_id,
        dir: settings.data.dir.join(DIRECTORY),
        apply: match settings.meta.apply {
            ApplyName::Inline => ApplyMode::Inline,
            ApplyName::Thread => ApplyMode::Thread,
        },
        log: LogLimits {
            snapshot_entries: settings.meta.snapshot_entries,
            kept_entries: settings.meta.kept_entries,
            max_lag_entries: settings.meta.max_lag_entries,
        },
        cluster: cluster_options,
    };
    meta::open(options).map(Some).map_err(|error| error.to_string())
}

/// The metadata's task, until somebody runs it.
#[derive(Debug)]
pub struct RaftTask {
    server: Mutex<Option<Server>>,
    place: RaftThread,
    options: RunOptions,
    stop: Shutdown,
}

/// The thread that runs it.
#[derive(Debug)]
pub struct RaftHandle(JoinHandle<Result<(), String>>);

impl RaftTask {
    /// Not running yet. Its executor is of the shards' kind, alone, and not pinned.
    pub fn new(server: Option<Server>, place: RaftThread, options: &RunOptions) -> Self {
        let options = RunOptions {
            cores: 1,
            pinning: Pinning::None,
            scheduler: Scheduler::ThreadPerCore,
            ..options.clone()
        };
        Self { server: Mutex::new(server), place, options, stop: Shutdown::new() }
    }

    /// Starts its thread, if it is to have one.
    ///
    /// # Errors
    /// One line for the operator.
    pub fn start_thread<R: Runtime>(&self, node: Shutdown) -> Result<Option<RaftHandle>, String> {
        if self.place == RaftThread::Shared {
            return Ok(None);
        }
        let Some(server) = self.take() else { return Ok(None) };
        let server = Mutex::new(Some(server));
        let (options, stop) = (self.options.clone(), self.stop.clone());
        let thread = std::thread::Builder::new().name("raft".into()).spawn(move || {
            let _guard = EndNode(node);
            let results = R::run_cores(&options, move |_| {
                let server = server.lock().unwrap_or_else(PoisonError::into_inner).take();
                let stop = stop.clone();
                async move {
                    match server {
                        Some(server) => {
                            server.run::<R>(stop).await.map_err(|error| error.to_string())
                        }
                        None => Ok(()),
                    }
                }
            });
            let results = results.map_err(|error| format!("cannot run the metadata: {error}"))?;
            results.into_iter().collect()
        });
        thread
            .map(|thread| Some(RaftHandle(thread)))
            .map_err(|error| format!("cannot start the thread of the metadata: {error}"))
    }

    /// Starts it on the calling executor, if it is to run there.
    pub fn start_task<R: Runtime>(
        &self,
        node: Shutdown,
    ) -> Option<R::JoinHandle<Result<(), String>>> {
        if self.place == RaftThread::Dedicated {
            return None;
        }
        let server = self.take()?;
        let stop = self.stop.clone();
        Some(R::spawn(async move {
            let _guard = EndNode(node);
            server.run::<R>(stop).await.map_err(|error| error.to_string())
        }))
    }

    /// Ends it; to be called when no shard needs it any more.
    pub fn stop(&self) {
        self.stop.trigger();
    }

    fn take(&self) -> Option<Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl RaftHandle {
    /// Waits for its end.
    ///
    /// # Errors
    /// Why it ended by itself.
    pub fn join(self) -> Result<(), String> {
        self.0.join().unwrap_or_else(|_| Err("the thread of the metadata panicked".into()))
    }
}

/// A node whose metadata has ended, for whatever reason, serves nobody any more.
struct EndNode(Shutdown);

impl Drop for EndNode {
    fn drop(&mut self) {
        self.0.trigger();
    }
}

/// What others are told, with the port that the kernel chose.
fn advertised(advertise: &str, bound: &Address) -> String {
    if advertise.is_empty() { bound.to_string() } else { advertise.to_owned() }
}
