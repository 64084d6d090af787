//! The state machine as openraft drives it.
//!
//! Entries that are ready are applied together: decided one after the other over one overlay, then
//! written as one batch that holds their effects, how far they go and the membership, so that
//! nothing is ever half applied. Nothing is awaited between them. Only when the batch is in the
//! store are watchers told, and then those who proposed.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use openraft::alias::{SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use rt_abstract::planted::{Bug, is_planted};
use rt_abstract::{Runtime, Shared};
use tokio::sync::oneshot;

use super::entry::{Entry, LogId, StoredMembership, encode_membership, encode_position};
use super::snapshot::{self, APPLIED, Builder, Known, MEMBERSHIP, Position, SnapshotData};
use super::timing::Timing;
use super::types::{Replies, TypeConfig};
use crate::state::{Effect, Tx, apply, keys};
use crate::steps::{ApplyStep, Steps};
use crate::store::{Store, StoreError, thread};

/// Entries that are applied together at most.
const MAX_ENTRIES: usize = 128;
/// Commands, after which no further entry is added: while a batch is applied, raft's executor does
/// nothing else, and larger ones are no cheaper per command.
const MAX_COMMANDS: usize = 64;

/// Is given the effects of each batch, in order, when it is in the store and before anybody is
/// answered: who reads what it keeps sees what he was told. It must not block, and bounds what it
/// keeps by itself. Called from the thread that applies.
pub type EffectSink = Arc<dyn Fn(Vec<Effect>) + Send + Sync>;

/// Where entries are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApplyMode {
    /// On raft's own executor: a stall of the store stalls raft.
    Inline,
    /// On a thread of its own.
    #[default]
    Thread,
    /// For comparisons: inline, with a write for each entry, and a turn for the executor's other tasks
    /// before the next.
    Each,
    /// For comparisons: inline, with `last_applied` written once more by itself after each batch.
    PositionApart,
}

/// See the module's head.
pub struct Machine<R> {
    applier: Applier,
    /// `None`: inline.
    thread: Option<ApplyThread>,
    /// [`ApplyMode::Each`].
    each: bool,
    snapshots: Shared<Known>,
    runtime: PhantomData<fn() -> R>,
}

#[derive(Clone)]
struct Applier {
    store: Arc<dyn Store>,
    effects: EffectSink,
    steps: Arc<Steps>,
    clock: fn() -> Duration,
    /// CPU time of the calling thread.
    cpu_clock: fn() -> Duration,
    /// [`ApplyMode::PositionApart`].
    position_apart: bool,
}

struct ApplyThread {
    /// `None` only while it is dropped.
    jobs: Option<mpsc::SyncSender<Job>>,
    thread: Option<thread::JoinHandle<()>>,
    clock: fn() -> Duration,
}

struct Job {
    entries: Vec<Entry>,
    asked: Duration,
    done: oneshot::Sender<Result<Vec<Replies>, StoreError>>,
}

impl<R: Runtime> Machine<R> {
    /// Works on the state in `store`; steps are timed into `steps`.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(
        store: Arc<dyn Store>,
        effects: EffectSink,
        mode: ApplyMode,
        steps: Arc<Steps>,
    ) -> io::Result<Self> {
        let clock = || Duration::from_nanos(R::now().as_nanos());
        let position_apart = mode == ApplyMode::PositionApart;
        let cpu_clock = R::thread_cpu_time;
        let applier = Applier { store, effects, steps, clock, cpu_clock, position_apart };
        let thread = match mode {
            ApplyMode::Thread => Some(ApplyThread::start(applier.clone())?),
            ApplyMode::Inline | ApplyMode::Each | ApplyMode::PositionApart => None,
        };
        let snapshots = Shared::new(Known::default());
        let each = mode == ApplyMode::Each;
        Ok(Self { applier, thread, each, snapshots, runtime: PhantomData })
    }

    async fn apply_batch(&self, entries: Vec<Entry>) -> Result<Vec<Replies>, StoreError> {
        match &self.thread {
            None if self.each => self.apply_each(entries).await,
            None => self.applier.apply(entries, None),
            Some(thread) => thread.apply(entries).await,
        }
    }

    async fn apply_each(&self, entries: Vec<Entry>) -> Result<Vec<Replies>, StoreError> {
        let mut replies = Vec::with_capacity(entries.len());
        for entry in entries {
            replies.extend(self.applier.apply(vec![entry], None)?);
            R::yield_now().await;
        }
        Ok(replies)
    }
}

impl<R: Runtime> RaftStateMachine<TypeConfig<R>> for Machine<R> {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder<R>;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId>, StoredMembershipOf<TypeConfig<R>>), io::Error> {
        let Position { applied, membership } = Position::read(&*self.applier.store)?;
        Ok((applied, membership))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm:
            Stream<Item = Result<EntryResponder<TypeConfig<R>>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(first) = entries.next().await {
            let mut next = Some(first);
            let mut commands = 0;
            let (mut batch, mut responders) = (Vec::new(), Vec::new());
            while let Some(item) = next {
                let (entry, responder) = item?;
                if let EntryPayload::Normal(proposal) = &entry.payload {
                    commands += proposal.commands.len();
                }
                batch.push(entry);
                responders.push(responder);
                if batch.len() >= MAX_ENTRIES || commands >= MAX_COMMANDS {
                    break;
                }
                next = entries.next().now_or_never().flatten();
            }
            let replies = self.apply_batch(batch).await?;
            for (responder, replies) in responders.into_iter().zip(replies) {
                if let Some(responder) = responder {
                    responder.send(replies);
                }
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<Builder<R>> {
        Some(Builder::new(self.applier.store.clone(), self.snapshots.clone()))
    }

    async fn get_snapshot_builder(&mut self) -> Builder<R> {
        Builder::new(self.applier.store.clone(), self.snapshots.clone())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig<R>>,
        data: SnapshotData,
    ) -> Result<(), io::Error> {
        snapshot::install::<R>(&self.applier.store, &self.snapshots, meta, data).await?;
        (self.applier.effects)(vec![Effect::Replaced]);
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<TypeConfig<R>, SnapshotData>>, io::Error> {
        let local = snapshot::current::<R>(&self.applier.store, &self.snapshots).await?;
        Ok(local.map(|local| SnapshotOf::<TypeConfig<R>, SnapshotData> {
            meta: local.position().meta::<R>(),
            snapshot: SnapshotData::Local(local),
        }))
    }
}

impl Applier {
    /// Applies entries that follow each other, or none of them.
    fn apply(
        &self,
        entries: Vec<Entry>,
        asked: Option<Duration>,
    ) -> Result<Vec<Replies>, StoreError> {
        let Some(last) = entries.last().map(|entry| entry.log_id) else {
            return Ok(Vec::new());
        };
        let mut timing =
            self.steps.is_on().then(|| Timing::begin(self.clock, self.cpu_clock, asked));
        let mut end = |step| {
            if let Some(timing) = &mut timing {
                timing.end(step);
            }
        };
        let mut tx = Tx::new(&*self.store);
        let mut effects = Vec::new();
        let mut membership = None;
        let mut replies = Vec::with_capacity(entries.len());
        for Entry { log_id, payload } in entries {
            let mut of_entry = Replies::default();
            match payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(proposal) => {
                    of_entry.replies.reserve_exact(proposal.commands.len());
                    for command in &proposal.commands {
                        let reply = apply(&mut tx, log_id.index, command, &mut effects)?;
                        of_entry.replies.push(reply);
                    }
                }
                EntryPayload::Membership(new) => membership = Some((log_id, new)),
            }
            replies.push(of_entry);
        }
        end(ApplyStep::Route);
        if let Some((log_id, new)) = membership {
            let stored = StoredMembership::new(Some(log_id), new);
            tx.put(keys::raft(MEMBERSHIP), encode_membership(&stored));
            end(ApplyStep::Membership);
        }
        if is_planted(Bug::SplitApply) {
            self.store.write(std::mem::replace(&mut tx, Tx::new(&*self.store)).into_changes())?;
        }
        tx.put(keys::raft(APPLIED), encode_position(&last));
        self.store.write(tx.into_changes())?;
        if self.position_apart {
            let mut again = Tx::new(&*self.store);
            again.put(keys::raft(APPLIED), encode_position(&last));
            self.store.write(again.into_changes())?;
        }
        end(ApplyStep::SetLastApplied);
        if let Some(timing) = timing {
            timing.finish(&self.steps, replies.len());
        }
        if !effects.is_empty() {
            (self.effects)(effects);
        }
        Ok(replies)
    }
}

impl ApplyThread {
    fn start(applier: Applier) -> io::Result<Self> {
        // raft waits for each batch
        let (jobs, work) = mpsc::sync_channel::<Job>(1);
        let clock = applier.clock;
        let thread = thread::start("raft-apply", move || {
            for Job { entries, asked, done } in work {
                // whoever asked may be gone
                drop(done.send(applier.apply(entries, Some(asked))));
            }
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), clock })
    }

    async fn apply(&self, entries: Vec<Entry>) -> Result<Vec<Replies>, StoreError> {
        let ended = || StoreError::failed("applying entries", "the thread has ended");
        let (done, outcome) = oneshot::channel();
        let job = Job { entries, asked: (self.clock)(), done };
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(ended)?;
        outcome.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for ApplyThread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl<R> fmt::Debug for Machine<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("store", &self.applier.store)
            .field("threaded", &self.thread.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
