//! What the broker holds of the metadata: typed proposals in, replies out, reads of the local state.
//!
//! A [`Handle`] works on every thread and every runtime. Proposals go through one bounded mailbox
//! to the node's raft task (`node`), which joins what waits there to one log entry; reads go to the
//! local store and never wait for raft.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rt_abstract::{Full, Receiver, Sender, Shutdown, mailbox};
use tokio::sync::oneshot;

use crate::command::{Command, Reply};
use crate::raft::entry::command_weight;
use crate::record::NodeId;
use crate::state::Effect;
use crate::status::Status;
use crate::steps::Steps;
use crate::store::{Frozen, Store, StoreError, View};

/// Proposals waiting for the raft task; further ones wait in their senders.
const MAX_WAITING_REQUESTS: usize = 16_384;
/// Largest proposal, in bytes, about: with another entry beside it, it fits into a frame of the link.
const MAX_REQUEST_BYTES: usize = 32 << 20;

/// See the module's head. Clones are the same handle.
#[derive(Clone, Debug)]
pub struct Handle {
    requests: Sender<Request>,
    inner: Arc<Inner>,
}

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Log index of the entry. The local state holds its effects.
    pub index: u64,
    /// One per command, in order.
    pub replies: Vec<Reply>,
}

/// Why a proposal was not answered. Whether it took effect is unknown, unless the error says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// No leader was found in time: a majority of the nodes cannot be reached. Not proposed, or
    /// not known to be committed.
    #[error("the metadata has no leader")]
    NoLeader,
    /// It was not committed in time.
    #[error("the metadata did not answer in time")]
    Timeout,
    /// It is larger than what nodes send to each other at once. Not proposed.
    #[error("the change is too large")]
    TooLarge,
    /// The node is stopping, or its disk failed.
    #[error("the metadata is stopped")]
    Stopped,
}

/// Gives an answer back.
pub(crate) type AnswerTo<T> = oneshot::Sender<Result<T, ProposeError>>;

/// Something for the raft task.
#[derive(Debug)]
pub(crate) enum Request {
    /// See [`Handle::propose`].
    Propose(Vec<Command>, AnswerTo<Answer>),
    /// See [`Handle::linearize`].
    Linearize(AnswerTo<u64>),
    /// See [`Handle::remove_node`].
    RemoveNode(NodeId, oneshot::Sender<Result<(), String>>),
}

#[derive(Debug)]
struct Inner {
    node: NodeId,
    store: Arc<dyn Store>,
    ready: Shutdown,
    failed: AtomicBool,
    status: Mutex<Status>,
    steps: Arc<Steps>,
    watcher: OnceLock<Watcher>,
}

/// Is told what was applied; must not block, nor wait for a proposal.
type WatchFn = Box<dyn Fn(&[Effect]) + Send + Sync>;

struct Watcher(WatchFn);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

impl Handle {
    pub(crate) fn new(
        node: NodeId,
        store: Arc<dyn Store>,
        steps: Arc<Steps>,
    ) -> (Self, Receiver<Request>) {
        let (requests, receiver) = mailbox([MAX_WAITING_REQUESTS]);
        let inner = Inner {
            node,
            store,
            ready: Shutdown::new(),
            failed: AtomicBool::new(false),
            status: Mutex::default(),
            steps,
            watcher: OnceLock::new(),
        };
        (Self { requests, inner: Arc::new(inner) }, receiver)
    }

    /// A handle on `store` without a node behind it: reads work, proposals are refused. For tests of
    /// those who hold one.
    pub fn detached(node: NodeId, store: Arc<dyn Store>) -> Self {
        Self::new(node, store, Arc::new(Steps::new(&crate::steps::APPLY_STEPS))).0
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.inner.node
    }

    /// Proposes `commands`, which take effect together, and waits until they are committed, durable
    /// on a majority, and applied here. Proposals of one caller that awaits each take effect in its
    /// order; of those made at the same time the order is that of the calls.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn propose(&self, commands: Vec<Command>) -> Result<Answer, ProposeError> {
        if commands.iter().map(command_weight).sum::<usize>() > MAX_REQUEST_BYTES {
            return Err(ProposeError::TooLarge);
        }
        let (answer, answered) = oneshot::channel();
        self.send(Request::Propose(commands, answer)).await?;
        answered.await.unwrap_or(Err(ProposeError::Stopped))
    }

    /// Waits until the local state holds everything that was acknowledged, on any node, before this
    /// call; then [`Handle::read`] is linearizable. Returns the log index up to which it holds all.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn linearize(&self) -> Result<u64, ProposeError> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Linearize(answer)).await?;
        answered.await.unwrap_or(Err(ProposeError::Stopped))
    }

    /// Removes a node from the cluster; it should be stopped before or soon after.
    ///
    /// # Errors
    /// What the leader said.
    pub async fn remove_node(&self, node: NodeId) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::RemoveNode(node, answer)).await.map_err(|error| error.to_string())?;
        answered.await.unwrap_or_else(|_| Err(ProposeError::Stopped.to_string()))
    }

    async fn send(&self, mut request: Request) -> Result<(), ProposeError> {
        loop {
            match self.requests.try_send(0, request) {
                Ok(()) => return Ok(()),
                Err(Full::Full(back)) => request = back,
                Err(Full::Closed(_)) => return Err(ProposeError::Stopped),
            }
            self.requests.room(0).await;
        }
    }

    /// Reads the local state as it is at one moment: everything that was answered here is in it;
    /// what other nodes have committed may be missing yet.
    pub fn read<T>(&self, read: impl FnOnce(&dyn View) -> T) -> T {
        let (mut read, mut result) = (Some(read), None);
        self.inner.store.with_snapshot(&mut |view| {
            if let Some(read) = read.take() {
                result = Some(read(view));
            }
        });
        result.expect("a store calls back once")
    }

    /// Waits until the local state holds all that this node had acknowledged before it started, and
    /// proposals can be made; or until the node has failed, see [`Handle::has_failed`].
    pub async fn ready(&self) {
        self.inner.ready.wait().await;
    }

    /// Whether the node stopped for an error of its disk: nothing may be acknowledged any more.
    pub fn has_failed(&self) -> bool {
        self.inner.failed.load(Ordering::SeqCst)
    }

    /// Calls `watcher` with everything that is applied from now on, in order, on the thread that
    /// applies. Set it before reading the state, so that nothing is missed in between; one that is
    /// set later than the first is not called.
    pub fn watch(&self, watcher: impl Fn(&[Effect]) + Send + Sync + 'static) {
        let _ = self.inner.watcher.set(Watcher(Box::new(watcher)));
    }

    /// How the cluster stands, as this node sees it.
    pub fn status(&self) -> Status {
        self.inner.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the time of applying goes.
    pub fn steps(&self) -> &Steps {
        &self.inner.steps
    }

    /// Everything as it is at this moment, as files to be copied: for backups. Blocks on the disk.
    ///
    /// # Errors
    /// As the store says.
    pub fn freeze(&self) -> Result<Frozen, StoreError> {
        self.inner.store.freeze()
    }

    pub(crate) fn tell(&self, effects: &[Effect]) {
        if let Some(Watcher(watcher)) = self.inner.watcher.get() {
            watcher(effects);
        }
    }

    pub(crate) fn set_ready(&self) {
        self.inner.ready.trigger();
    }

    pub(crate) fn set_failed(&self) {
        self.inner.failed.store(true, Ordering::SeqCst);
        self.inner.ready.trigger();
    }

    pub(crate) fn set_status(&self, status: Status) {
        *self.inner.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}
