//! What puts the log on the disk: two threads, or two tasks where a runtime has no threads.
//!
//! One takes all that is queued and writes it as one batch, unsynced; the other syncs all that is
//! written. So a batch is written while the one before is being synced, and a sync serves whoever
//! came meanwhile. Operations are numbered from 1 in the order in which they were given, and are
//! written in that order.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use rt_abstract::{Notify, Runtime, Shutdown};

use super::{COMMITTED, END_OF_LOG, PURGED, VOTE, key};
use crate::raft::entry::{self, Entry, LogId, Vote};
use crate::store::{Batch, Family, Store, StoreError, thread};

/// Operations in one write, and entries after which no further operation is taken.
const MAX_BATCH: usize = 4_096;

/// What is to be written.
#[derive(Debug)]
pub(super) enum Operation {
    Append(Vec<Arc<Entry>>),
    Vote(Vote),
    /// Removes the entries from this index on.
    Truncate(u64),
    /// Removes the entries from an index up to a position.
    Purge(u64, LogId),
}

/// Called once, by whoever found it, with the error that ends the log.
pub type FailureHook = Box<dyn Fn(&StoreError) + Send + Sync>;

/// What the threads and the log share.
pub(super) struct Io {
    store: Arc<dyn Store>,
    queue: Mutex<Queue>,
    /// Something is to be written, or no more will be.
    to_write: Signal,
    /// Something is to be synced, or no more will be.
    to_sync: Signal,
    /// Operations up to this one are in the store.
    written: AtomicU64,
    /// Operations up to this one survive a power failure, purges possibly not.
    synced: AtomicU64,
    failed: OnceLock<StoreError>,
    on_failure: FailureHook,
    /// Both threads have ended.
    finished: AtomicBool,
    /// Told of every change of `synced`, `failed` and `finished`.
    pub(super) progress: Notify,
    /// On once `finished` is.
    pub(super) ended: Shutdown,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// Wakes the one thread, or the one task, that waits.
#[derive(Default)]
struct Signal {
    thread: Condvar,
    task: Notify,
}

/// What is to be done next: nothing yet, or nothing any more.
type Next<T> = ControlFlow<(), Option<T>>;

/// Bounded by the log, which waits when too much is not synced yet.
#[derive(Default)]
struct Queue {
    operations: VecDeque<Operation>,
    /// Number of the last operation that was given.
    given: u64,
    /// Number of the last operation that is written and is to be synced.
    sync_upto: u64,
    /// Goes along with the next write: it promises nothing, so it is worth none of its own.
    committed: Option<LogId>,
    closed: bool,
    writer_ended: bool,
}

impl Io {
    fn new(store: Arc<dyn Store>, on_failure: FailureHook) -> Arc<Self> {
        Arc::new(Self {
            store,
            queue: Mutex::default(),
            to_write: Signal::default(),
            to_sync: Signal::default(),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            failed: OnceLock::new(),
            on_failure,
            finished: AtomicBool::new(false),
            progress: Notify::new(),
            ended: Shutdown::new(),
            threads: Mutex::default(),
        })
    }

    /// Starts tasks on the calling executor.
    pub(super) fn start_tasks<R: Runtime>(
        store: Arc<dyn Store>,
        on_failure: FailureHook,
    ) -> Arc<Self> {
        let io = Self::new(store, on_failure);
        drop(R::spawn(io.clone().write_here::<R>()));
        drop(R::spawn(io.clone().sync_here::<R>()));
        io
    }

    /// Starts the threads.
    pub(super) fn start(store: Arc<dyn Store>, on_failure: FailureHook) -> io::Result<Arc<Self>> {
        let io = Self::new(store, on_failure);
        let writer = io.clone();
        let writer = thread::start("raft-log-write", move || writer.write())?;
        let syncer = io.clone();
        let syncer = thread::start("raft-log-sync", move || syncer.sync());
        match syncer {
            Ok(syncer) => {
                *io.threads.lock().unwrap_or_else(PoisonError::into_inner) = vec![writer, syncer];
                Ok(io)
            }
            Err(error) => {
                io.end();
                writer.join().ok();
                Err(error)
            }
        }
    }

    /// Queues an operation; the caller counts them.
    pub(super) fn give(&self, operation: Operation) {
        let mut queue = self.lock();
        queue.given += 1;
        queue.operations.push_back(operation);
        drop(queue);
        self.to_write.notify();
    }

    /// Notes down how far the log is committed, with the next write.
    pub(super) fn note_committed(&self, committed: LogId) {
        self.lock().committed = Some(committed);
    }

    /// The number of the last operation that is in the store.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// The number of the last operation that is durable.
    pub(super) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// The error that ended the log.
    pub(super) fn failed(&self) -> Option<&StoreError> {
        self.failed.get()
    }

    /// Nothing more will happen.
    pub(super) fn finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Lets the threads end once everything that is queued is on the disk.
    pub(super) fn end(&self) {
        self.lock().closed = true;
        self.to_write.notify();
    }

    /// Waits for the threads.
    pub(super) fn join(&self) {
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            thread.join().ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) {
        loop {
            let mut queue = self.lock();
            let next = loop {
                match queue.next_write() {
                    Next::Continue(None) => queue = self.to_write.wait(queue),
                    next => break next,
                }
            };
            drop(queue);
            let Next::Continue(Some(taken)) = next else { break };
            if !self.write_taken(taken) {
                break;
            }
        }
        self.end_writing();
    }

    async fn write_here<R: Runtime>(self: Arc<Self>) {
        loop {
            let next = self.lock().next_write();
            match next {
                Next::Continue(None) => self.to_write.task.notified().await,
                Next::Continue(Some(taken)) => {
                    let io = self.clone();
                    let written = R::spawn_blocking(move || io.write_taken(taken)).await;
                    if !written.unwrap_or(false) {
                        break;
                    }
                }
                Next::Break(()) => break,
            }
        }
        self.end_writing();
    }

    /// False: nothing more can be written.
    fn write_taken(&self, taken: Written) -> bool {
        let mut out = Batch::new();
        for operation in taken.batch {
            operation.into_changes(&mut out);
        }
        if let Err(error) = self.store.write(out) {
            self.fail(error);
            return false;
        }
        let written = self.written.load(Ordering::Relaxed) + taken.count;
        self.written.store(written, Ordering::Release);
        if taken.sync {
            self.lock().sync_upto = written;
            self.to_sync.notify();
        }
        true
    }

    fn end_writing(&self) {
        self.lock().writer_ended = true;
        self.to_sync.notify();
    }

    fn sync(&self) {
        loop {
            let mut queue = self.lock();
            let next = loop {
                match queue.next_sync(self.synced()) {
                    Next::Continue(None) => queue = self.to_sync.wait(queue),
                    next => break next,
                }
            };
            drop(queue);
            if next.is_break() || !self.sync_written() {
                break;
            }
        }
        self.finish();
    }

    async fn sync_here<R: Runtime>(self: Arc<Self>) {
        loop {
            let next = self.lock().next_sync(self.synced());
            match next {
                Next::Continue(None) => self.to_sync.task.notified().await,
                Next::Continue(Some(())) => {
                    let io = self.clone();
                    if !R::spawn_blocking(move || io.sync_written()).await.unwrap_or(false) {
                        break;
                    }
                }
                Next::Break(()) => break,
            }
        }
        self.finish();
    }

    /// False: nothing more can be synced.
    fn sync_written(&self) -> bool {
        if self.failed.get().is_some() {
            return false;
        }
        let written = self.written();
        if let Err(error) = self.store.sync() {
            self.fail(error);
            return false;
        }
        self.synced.store(written, Ordering::Release);
        self.progress.notify();
        true
    }

    fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        self.progress.notify();
        self.ended.trigger();
    }

    /// Nothing is written or acknowledged from now on.
    fn fail(&self, error: StoreError) {
        tracing::error!("the raft log is at its end: {error}");
        if self.failed.set(error.clone()).is_ok() {
            (self.on_failure)(&error);
        }
        self.end();
        self.lock().operations.clear();
        self.progress.notify();
    }
}

impl Signal {
    fn notify(&self) {
        self.thread.notify_one();
        self.task.notify();
    }

    fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.thread.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one write holds.
struct Written {
    batch: Vec<Taken>,
    /// How many operations that is.
    count: u64,
    /// Whether any of them waits for a sync.
    sync: bool,
}

impl Queue {
    fn next_write(&mut self) -> Next<Written> {
        match self.operations.is_empty() {
            true if !self.closed => Next::Continue(None),
            true if self.committed.is_none() => Next::Break(()),
            _ => Next::Continue(Some(self.take())),
        }
    }

    fn next_sync(&self, synced: u64) -> Next<()> {
        match self.sync_upto > synced {
            true => Next::Continue(Some(())),
            false if self.writer_ended => Next::Break(()),
            false => Next::Continue(None),
        }
    }

    fn take(&mut self) -> Written {
        let mut taken = Vec::new();
        let (mut entries, mut count, mut sync) = (0, 0, false);
        while count < MAX_BATCH as u64
            && entries < MAX_BATCH
            && let Some(operation) = self.operations.pop_front()
        {
            if let Operation::Append(appended) = &operation {
                entries += appended.len();
            }
            sync |= !matches!(operation, Operation::Purge(..));
            count += 1;
            taken.push(Taken::Operation(operation));
        }
        if self.operations.is_empty() {
            // never before the entries that are committed
            taken.extend(self.committed.take().map(Taken::Committed));
        }
        Written { batch: taken, count, sync }
    }
}

enum Taken {
    Operation(Operation),
    Committed(LogId),
}

impl Taken {
    fn into_changes(self, out: &mut Batch) {
        match self {
            Self::Operation(Operation::Append(entries)) => {
                for one in entries {
                    out.put(Family::Log, key(one.log_id.index), entry::encode_entry(&one));
                }
            }
            Self::Operation(Operation::Vote(vote)) => {
                out.put(Family::Meta, VOTE, entry::encode_vote(&vote));
            }
            Self::Operation(Operation::Truncate(from)) => {
                out.delete_range(Family::Log, key(from), END_OF_LOG);
            }
            Self::Operation(Operation::Purge(from, upto)) => {
                out.delete_range(Family::Log, key(from), key(upto.index.saturating_add(1)));
                out.put(Family::Meta, PURGED, entry::encode_position(&upto));
            }
            Self::Committed(committed) => {
                out.put(Family::Meta, COMMITTED, entry::encode_position(&committed));
            }
        }
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io")
            .field("store", &self.store)
            .field("written", &self.written())
            .field("synced", &self.synced())
            .finish_non_exhaustive()
    }
}
