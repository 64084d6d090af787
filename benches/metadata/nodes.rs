//! Nodes of the metadata in this process, each with a thread of its own, as the program runs it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use meta::steps::StepOptions;
use meta::{ApplyMode, ClusterOptions, Handle, LogLimits, Options, Server};
use rt_abstract::{Address, RunOptions, Runtime, Shutdown, bind, bound_address};
use tempfile::TempDir;

/// How long nodes may take to find each other.
const LIMIT: Duration = Duration::from_secs(20);

/// Nodes that know each other. The first one begins the cluster and is its leader.
pub struct Cluster {
    nodes: Vec<Node>,
    // removed last
    _dir: Option<TempDir>,
}

struct Node {
    handle: Handle,
    stop: Shutdown,
    /// `None`: somebody else runs it.
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Starts so many nodes.
    pub fn start<R: Runtime>(count: usize, apply: ApplyMode) -> Self {
        let temp = directory();
        let mut nodes = Vec::new();
        let mut seeds = Vec::new();
        for node in 1..=count as u64 {
            let cluster = (count > 1).then(|| {
                let (options, address) = cluster_options(seeds.clone());
                seeds.push(address);
                options
            });
            let options = options(node, temp.path().join(node.to_string()), apply, cluster);
            nodes.push(Node::start::<R>(options));
        }
        Self { nodes, _dir: Some(temp) }
    }

    /// The one node whose directory is given.
    pub fn of_directory<R: Runtime>(dir: &Path) -> Self {
        let options = options(1, dir.to_owned(), ApplyMode::Inline, None);
        Self { nodes: vec![Node::start::<R>(options)], _dir: None }
    }

    /// One node, to be run by the caller.
    pub fn one_without_thread() -> (Self, Server) {
        let temp = directory();
        let options = options(1, temp.path().join("1"), ApplyMode::Inline, None);
        let (handle, server) = meta::open(options).expect("the node opens");
        let node = Node { handle, stop: Shutdown::new(), thread: None };
        (Self { nodes: vec![node], _dir: Some(temp) }, server)
    }

    /// Waits until all vote, and returns the handle of the leader.
    pub fn leader<R: Runtime>(&self) -> Handle {
        let deadline = Instant::now() + LIMIT;
        loop {
            let handles = self.nodes.iter().map(|node| &node.handle);
            let complete = handles.clone().all(|handle| {
                let voters = handle.status().members.iter().filter(|member| member.voter).count();
                voters == self.nodes.len()
            });
            let mut leaders = handles.filter(|handle| handle.status().role == "leader");
            if complete && let Some(leader) = leaders.next() {
                R::block_on(&RunOptions::default(), leader.ready()).expect("waits");
                return leader.clone();
            }
            assert!(Instant::now() < deadline, "the nodes do not find each other");
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn stop(self) {
        for node in &self.nodes {
            node.stop.trigger();
        }
        for node in self.nodes {
            if let Some(thread) = node.thread {
                thread.join().expect("a node does not panic");
            }
        }
    }
}

impl Node {
    fn start<R: Runtime>(options: Options) -> Self {
        let (handle, server) = meta::open(options).expect("the node opens");
        let (stop, server) = (Shutdown::new(), Mutex::new(Some(server)));
        let to_stop = stop.clone();
        let thread = thread::spawn(move || {
            let ended = R::run_cores(&RunOptions::default(), move |_| {
                let server = server.lock().unwrap_or_else(PoisonError::into_inner).take();
                let server = server.expect("one core");
                let stop = stop.clone();
                async move { server.run::<R>(stop).await }
            });
            for result in ended.expect("the executor runs") {
                result.expect("the node does not fail");
            }
        });
        Self { handle, stop: to_stop, thread: Some(thread) }
    }
}

/// On the disk of the build, which is a real one more likely than that of other temporary files.
pub fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory can be made")
}

fn options(node: u64, dir: PathBuf, apply: ApplyMode, cluster: Option<ClusterOptions>) -> Options {
    let (log, steps) = (LogLimits::default(), StepOptions::default());
    Options { node, dir, apply, log, steps, cluster }
}

fn cluster_options(seeds: Vec<String>) -> (ClusterOptions, String) {
    let address: Address = "127.0.0.1:0".parse().expect("an address");
    let listener = bind(&address, 16).expect("a free port");
    let advertise = bound_address(&listener).expect("it is bound").to_string();
    let name = "bench".to_owned();
    (
        ClusterOptions { name, listener: listener.into(), advertise: advertise.clone(), seeds },
        advertise,
    )
}
