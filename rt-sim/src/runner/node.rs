//! One simulated broker: assembled from the same parts as the program, started, stopped and started
//! again on the same disk.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use broker_core::config::{DurabilityConfig, Level as BrokerLevel, Limits, ListenerConfig};
use broker_core::stats::Snapshot;
use broker_core::{Config, Node};
use meta::steps::StepOptions;
use meta::store::MemoryStore;
use meta::{ApplyMode, LogLimits, Server};
use rt_abstract::{Address, MaybeSend, Runtime, Shutdown};

use crate::client::{self, Place};
use crate::history::{Counts, What};
use crate::workload::{Level, Setup};
use crate::{Control, Cores, NodeId, Sim};

const MQTT_PORT: u16 = 1_883;
const SEGMENT_BYTES: u64 = 256 << 10;

/// A process that runs.
#[derive(Clone, Debug)]
pub struct Process {
    node: Arc<Node>,
}

/// Where node `number` serves clients.
pub fn address(number: usize) -> Address {
    Address::Tcp((id(number).ip(), MQTT_PORT).into())
}

/// The machine of node `number`.
pub fn id(number: usize) -> NodeId {
    NodeId(1 + number as u8)
}

/// Starts the process of a node. What it comes to is what the future says, once it has ended.
///
/// # Errors
/// One line, when it cannot start.
pub fn start(
    control: Control,
    number: usize,
    setup: &Setup,
    store: &Arc<MemoryStore>,
    place: &Place,
) -> Result<(Process, impl Future<Output = Result<(), String>> + MaybeSend + use<>), String> {
    let id = id(number);
    let options = meta::Options {
        node: number as u64 + 1,
        dir: "/meta".into(),
        apply: ApplyMode::Inline,
        log: LogLimits { snapshot_entries: 100, kept_entries: 20, max_lag_entries: 200 },
        steps: StepOptions::default(),
        cluster: None,
    };
    let opened = control.on_node(id, || {
        let (handle, server) = meta::open_on(options, store.clone());
        let node = Node::bind::<Sim>(config(number, setup), setup.shards, Some(handle))?;
        broker_core::follow_metadata::<Sim>(&node);
        Ok::<_, std::io::Error>((node, server))
    });
    let (node, server) = opened.map_err(|error| error.to_string())?;
    let (stop_raft, stop_journal) = (Shutdown::new(), Shutdown::new());
    let raft = start_raft(control, id, server, node.shutdown().clone(), stop_raft.clone());
    let (journal, stop) = (node.clone(), stop_journal.clone());
    let journal = control.start_node(id, 1, move |_| {
        let (node, stop) = (journal.clone(), stop.clone());
        async move {
            let _guard = EndNode(node.shutdown().clone());
            broker_core::run_journal::<Sim>(node, stop).await
        }
    });
    let (shards, place) = (node.clone(), place.clone());
    let starting = Arc::new(std::sync::atomic::AtomicUsize::new(setup.shards));
    let shards = control.start_node(id, setup.shards, move |core| {
        let (node, place, starting) = (shards.clone(), place.clone(), starting.clone());
        async move {
            let _guard = EndNode(node.shutdown().clone());
            let ready = || {
                if starting.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) == 1 {
                    // Of the node's own clock nothing is known.
                    let see = || client::see::<Sim>(&place, What::Ready(number));
                    control.on_node(NodeId::CLIENTS, see);
                }
            };
            broker_core::serve::<Sim>(node, core, ready).await.map_err(|error| error.to_string())
        }
    });
    let process = Process { node };
    let ended = async move {
        let served = end_of(shards).await;
        stop_journal.trigger();
        stop_raft.trigger();
        let (journal, raft) = (end_of(journal).await, end_of(raft).await);
        served.and(journal).and(raft)
    };
    Ok((process, ended))
}

fn start_raft(
    control: Control,
    id: NodeId,
    server: Server,
    node: Shutdown,
    stop: Shutdown,
) -> Cores<Result<(), String>> {
    let server = Mutex::new(Some(server));
    control.start_node(id, 1, move |_| {
        let server = server.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (node, stop) = (node.clone(), stop.clone());
        async move {
            let _guard = EndNode(node);
            match server {
                Some(server) => run_raft::<Sim>(server, stop).await,
                None => Ok(()),
            }
        }
    })
}

// Boxed, and generic: for a runtime that it knows, the compiler cannot tell that this is `Send`.
fn run_raft<R: Runtime>(server: Server, stop: Shutdown) -> Pin<Box<dyn Raft>> {
    Box::pin(async move { server.run::<R>(stop).await.map_err(|error| error.to_string()) })
}

trait Raft: Future<Output = Result<(), String>> + MaybeSend {}

impl<F: Future<Output = Result<(), String>> + MaybeSend> Raft for F {}

async fn end_of(cores: Cores<Result<(), String>>) -> Result<(), String> {
    let ended = cores.join().await.map_err(|panicked| panicked.to_string())?;
    ended.into_iter().collect()
}

/// A node without one of its parts serves nobody any more.
struct EndNode(Shutdown);

impl Drop for EndNode {
    fn drop(&mut self) {
        self.0.trigger();
    }
}

impl Process {
    /// Tells it to end.
    pub fn ask_to_end(&self) {
        self.node.shutdown().trigger();
    }

    /// Whether clients are served.
    pub fn is_serving(&self) -> bool {
        self.node.is_serving()
    }

    /// What it counts.
    pub fn counts(&self) -> Counts {
        let stats = Snapshot::sum(&self.node.stats());
        Counts {
            connections: stats.connections,
            sessions: stats.sessions,
            subscriptions: stats.subscriptions,
            queued_messages: stats.queued_messages,
            inflight_messages: stats.inflight_messages,
            retained_messages: stats.retained_messages,
        }
    }
}

fn config(number: usize, setup: &Setup) -> Config {
    let level = match setup.level {
        Level::None => BrokerLevel::None,
        Level::Os => BrokerLevel::Os,
        Level::Disk => BrokerLevel::Disk,
    };
    let journal = journal::Options {
        segment_bytes: SEGMENT_BYTES,
        max_batch_bytes: 64 << 10,
        max_waiting_bytes: 1 << 20,
        ..journal::Options::new("/journal")
    };
    Config {
        listeners: vec![ListenerConfig { address: address(number), ..ListenerConfig::default() }],
        limits: Limits {
            max_queued_messages: setup.max_queued_messages,
            max_inflight: setup.max_inflight,
            read_ahead_messages: setup.read_ahead_messages,
            receive_maximum: setup.receive_maximum,
            max_mailbox_messages: setup.max_mailbox_messages,
            ..Limits::default()
        },
        sys_interval_s: 0,
        durability: DurabilityConfig { level, topics: Vec::new() },
        journal: Some(journal),
        ..Config::default()
    }
}
