//! What the broker holds of the metadata: typed proposals in, replies out, reads of the local state.
//!
//! A [`Handle`] works on every thread and every runtime. Proposals go through one bounded mailbox
//! to the node's raft task (`node`), which joins what waits there to one log entry; reads go to the
//! local store and never wait for raft.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::future::{Either, select};
use rt_abstract::{Full, Receiver, Sender, Shutdown, mailbox};
use tokio::sync::{oneshot, watch};

use crate::command::{Command, Reply};
use crate::raft::entry::command_weight;
use crate::record::NodeId;
use crate::state::Effect;
use crate::status::Status;
use crate::steps::{APPLY_STEPS, StepOptions, Steps};
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
    RemoveNode(NodeId, AnswerTo<Result<(), String>>),
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
    /// The broker is stopping.
    ending: Shutdown,
    /// True: nobody waits for an answer any more.
    cut: watch::Sender<bool>,
    /// Callers that wait for an answer.
    waiting: AtomicU64,
    /// Calls that have ended.
    ended: AtomicU64,
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
            ending: Shutdown::new(),
            cut: watch::Sender::new(false),
            waiting: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        };
        (Self { requests, inner: Arc::new(inner) }, receiver)
    }

    /// A handle on `store` without a node behind it: reads work, proposals are refused. For tests of
    /// those who hold one.
    pub fn detached(node: NodeId, store: Arc<dyn Store>) -> Self {
        Self::new(node, store, Arc::new(Steps::new(&APPLY_STEPS, 1, StepOptions::default()))).0
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
        self.ask(|answer| Request::Propose(commands, answer)).await
    }

    /// Waits until the local state holds everything that was acknowledged, on any node, before this
    /// call; then [`Handle::read`] is linearizable. Returns the log index up to which it holds all.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn linearize(&self) -> Result<u64, ProposeError> {
        self.ask(Request::Linearize).await
    }

    /// Removes a node from the cluster; it should be stopped before or soon after.
    ///
    /// # Errors
    /// What the leader said.
    pub async fn remove_node(&self, node: NodeId) -> Result<(), String> {
        let removed = self.ask(|answer| Request::RemoveNode(node, answer)).await;
        removed.map_err(|error| error.to_string())?
    }

    /// The broker is stopping: a call that does not get on is [`ProposeError::Stopped`] soon, instead
    /// of when its time is over. As long as answers come, all are waited for.
    pub fn end_soon(&self) {
        self.inner.ending.trigger();
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(AnswerTo<T>) -> Request,
    ) -> Result<T, ProposeError> {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            self.send(request(answer)).await?;
            answered.await.unwrap_or(Err(ProposeError::Stopped))
        };
        let _waiting = Waiting::new(&self.inner);
        let mut cut = self.inner.cut.subscribe();
        match select(pin!(asked), pin!(cut.wait_for(|cut| *cut))).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(ProposeError::Stopped),
        }
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

    /// On from [`Handle::end_soon`].
    pub(crate) fn ending(&self) -> &Shutdown {
        &self.inner.ending
    }

    /// Callers that wait, and calls that have ended.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.inner.waiting.load(Ordering::SeqCst), self.inner.ended.load(Ordering::SeqCst))
    }

    /// Answers everybody, also from now on: the node is stopping.
    pub(crate) fn cut(&self) {
        self.inner.cut.send_replace(true);
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

/// Counts a caller as long as it waits.
struct Waiting<'a>(&'a Inner);

impl<'a> Waiting<'a> {
    fn new(inner: &'a Inner) -> Self {
        inner.waiting.fetch_add(1, Ordering::SeqCst);
        Self(inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn a_cut_answers_everybody() {
        let store = Arc::new(MemoryStore::new());
        let steps = Arc::new(Steps::new(&APPLY_STEPS, 1, StepOptions::default()));
        let (handle, requests) = Handle::new(1, store, steps);
        let mut waiting = Box::pin(handle.propose(Vec::new()));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        assert_eq!(handle.progress(), (1, 0));
        handle.end_soon();
        assert!(handle.ending().is_triggered());
        assert_eq!(waiting.as_mut().now_or_never(), None, "it may get on yet");
        handle.cut();
        assert_eq!(waiting.now_or_never(), Some(Err(ProposeError::Stopped)));
        assert_eq!(handle.linearize().now_or_never(), Some(Err(ProposeError::Stopped)));
        assert_eq!(handle.progress(), (0, 2));
        drop(requests);
    }
}
