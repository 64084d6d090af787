//! The raft log, and the vote, in a [`Store`].
//!
//! Appending puts entries into memory, where they can be read at once, and gives them to the two
//! threads (or tasks) of `io`, which write and sync them in groups. Whoever waits for an entry to be durable is
//! told by a task on the raft's own executor, for openraft's callbacks may not leave it.
//!
//! A failed write or sync ends the log: everything that waits is told so, nothing is acknowledged
//! any more, and the node is expected to stop.

mod io;
mod reader;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use rt_abstract::{Notify, Runtime, Shared};
use tokio::sync::oneshot;

use self::io::{Io, Operation};
use self::tail::Tail;
use super::entry::{Entry, LogId, Vote, weight};
use super::types::TypeConfig;
use crate::store::{Store, StoreError};

pub use self::io::FailureHook;
pub use self::reader::LogReader;

const VOTE: &[u8] = b"vote";
const PURGED: &[u8] = b"purged";
const COMMITTED: &[u8] = b"committed";
/// Behind the key of every entry.
const END_OF_LOG: [u8; 9] = [u8::MAX; 9];

/// How much is kept in memory, and what happens at the end.
pub struct LogOptions {
    /// Appends that wait to be durable; when there are more, appending waits for the disk.
    pub max_waiting: usize,
    /// Their bytes, about.
    pub max_waiting_bytes: usize,
    /// Entries that are kept in memory for reading; entries that are not written yet always are.
    pub tail_entries: usize,
    /// Their bytes, about.
    pub tail_bytes: usize,
    /// Called with the error that ends the log.
    pub on_failure: FailureHook,
}

/// The log of one node. Dropping it lets the threads end when all is on the disk.
pub struct LogStore<R: Runtime> {
    tail: Shared<Tail>,
    store: Arc<dyn Store>,
    io: Arc<Io>,
    waiting: Shared<Waiting<R>>,
    /// Told when something was taken out of `waiting`.
    space: Arc<Notify>,
    /// Number of the last operation.
    given: u64,
    max_waiting: usize,
    max_waiting_bytes: usize,
}

/// Ends a log, and tells how it does; for the node, which gives the log itself away.
#[derive(Clone, Debug)]
pub struct LogHandle {
    io: Arc<Io>,
}

/// Who waits for which operation to be durable, in order.
struct Waiting<R: Runtime> {
    entries: VecDeque<(u64, usize, Waiter<R>)>,
    bytes: usize,
    /// Nobody is left who would tell.
    closed: bool,
}

enum Waiter<R: Runtime> {
    Raft(IOFlushed<TypeConfig<R>>),
    Call(oneshot::Sender<Result<(), StoreError>>),
}

impl<R: Runtime> LogStore<R> {
    /// Opens the log that `store` has. Call it on the executor that raft will run on: the callbacks
    /// are called there.
    ///
    /// # Errors
    /// When the store cannot be read, what it has is no log, or threads cannot be started.
    pub fn open(store: Arc<dyn Store>, options: LogOptions) -> Result<Self, StoreError> {
        let tail = Tail::load(&*store, options.tail_entries, options.tail_bytes)?;
        let started = match R::HAS_THREADS {
            true => Io::start(store.clone(), options.on_failure),
            false => Ok(Io::start_tasks::<R>(store.clone(), options.on_failure)),
        };
        let io = started
            .map_err(|error| StoreError::failed("starting the threads of the raft log", error))?;
        let waiting = Shared::new(Waiting { entries: VecDeque::new(), bytes: 0, closed: false });
        let space = Arc::new(Notify::new());
        drop(R::spawn(tell_waiters(io.clone(), waiting.clone(), space.clone())));
        Ok(Self {
            tail: Shared::new(tail),
            store,
            io,
            waiting,
            space,
            given: 0,
            max_waiting: options.max_waiting.max(1),
            max_waiting_bytes: options.max_waiting_bytes,
        })
    }

    /// What remains when the log itself is raft's.
    pub fn handle(&self) -> LogHandle {
        LogHandle { io: self.io.clone() }
    }

    fn usable(&self) -> Result<(), StoreError> {
        match self.io.failed() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Gives an operation to the threads. The waiter is in its place before they can be done.
    fn give(&mut self, operation: Operation, bytes: usize, waiter: Option<Waiter<R>>) {
        self.given += 1;
        let refused = waiter.and_then(|waiter| {
            self.waiting.with(|waiting| {
                if waiting.closed {
                    return Some(waiter);
                }
                waiting.entries.push_back((self.given, bytes, waiter));
                waiting.bytes += bytes;
                None
            })
        });
        if let Some(waiter) = refused {
            return waiter.tell(Err(self.io.failed().cloned().unwrap_or_else(ended)));
        }
        self.io.give(operation);
        if self.io.failed().is_some() {
            // it may have failed just before the waiter came
            self.io.progress.notify();
        }
    }

    /// Does an operation and waits until it is durable.
    async fn wait_for(&mut self, operation: Operation) -> Result<(), StoreError> {
        self.usable()?;
        let (done, outcome) = oneshot::channel();
        self.give(operation, 0, Some(Waiter::Call(done)));
        outcome.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl<R: Runtime> RaftLogStorage<TypeConfig<R>> for LogStore<R> {
    type LogReader = LogReader<R>;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig<R>>, std::io::Error> {
        Ok(self.tail.with(|tail| LogState {
            last_purged_log_id: tail.purged,
            last_log_id: tail.last.or(tail.purged),
        }))
    }

    async fn get_log_reader(&mut self) -> LogReader<R> {
        LogReader::new(self.tail.clone(), self.store.clone())
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), std::io::Error> {
        self.wait_for(Operation::Vote(*vote)).await?;
        self.tail.with(|tail| tail.vote = Some(*vote));
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), std::io::Error> {
        self.usable()?;
        self.tail.with(|tail| tail.committed = committed);
        if let Some(committed) = committed {
            self.io.note_committed(committed);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, std::io::Error> {
        Ok(self.tail.with(|tail| tail.committed))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: IOFlushed<TypeConfig<R>>,
    ) -> Result<(), std::io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().map(Arc::new).collect();
        loop {
            self.usable()?;
            let full = self.waiting.with(|waiting| {
                waiting.entries.len() >= self.max_waiting || waiting.bytes > self.max_waiting_bytes
            });
            if !full {
                break;
            }
            self.space.notified().await;
        }
        let written = self.io.written();
        self.tail.with(|tail| tail.append(&entries, self.given + 1, written))?;
        let bytes = entries.iter().map(|entry| weight(entry)).sum();
        self.give(Operation::Append(entries), bytes, Some(Waiter::Raft(callback)));
        Ok(())
    }

    async fn truncate_after(&mut self, after: Option<LogId>) -> Result<(), std::io::Error> {
        // What is applied may reach the store before the entries that are appended next, never
        // before the conflicting ones are gone: hence the wait.
        match self.tail.with(|tail| tail.truncate(after)) {
            Some(from) => Ok(self.wait_for(Operation::Truncate(from)).await?),
            None => Ok(()),
        }
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), std::io::Error> {
        self.usable()?;
        let (from, upto) = self.tail.with(|tail| tail.purge(upto));
        // A purge that a crash undoes is done again some time: nobody waits for it.
        self.give(Operation::Purge(from, upto), 0, None);
        Ok(())
    }
}

impl LogHandle {
    /// Why the log ended, if an error was the reason.
    pub fn failed(&self) -> Option<StoreError> {
        self.io.failed().cloned()
    }

    /// Lets what is queued be written and synced, and waits until it is.
    pub async fn ended(&self) {
        self.io.end();
        self.io.ended.wait().await;
    }

    /// Writes and syncs what is queued and waits for the threads: as long as the disk takes. Call it
    /// when raft has ended, and not on an executor.
    pub fn close(&self) {
        self.io.end();
        self.io.join();
    }
}

impl<R: Runtime> Drop for LogStore<R> {
    fn drop(&mut self) {
        self.io.end();
    }
}

impl<R: Runtime> fmt::Debug for LogStore<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogStore").field("io", &self.io).finish_non_exhaustive()
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            max_waiting: 4_096,
            max_waiting_bytes: 64 << 20,
            tail_entries: 100_000,
            tail_bytes: 64 << 20,
            on_failure: Box::new(|_| {}),
        }
    }
}

impl fmt::Debug for LogOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogOptions")
            .field("max_waiting", &self.max_waiting)
            .field("max_waiting_bytes", &self.max_waiting_bytes)
            .field("tail_entries", &self.tail_entries)
            .field("tail_bytes", &self.tail_bytes)
            .finish_non_exhaustive()
    }
}

impl<R: Runtime> Waiter<R> {
    fn tell(self, outcome: Result<(), StoreError>) {
        match self {
            Self::Raft(callback) => callback.io_completed(outcome.map_err(Into::into)),
            // whoever asked may be gone
            Self::Call(call) => drop(call.send(outcome)),
        }
    }
}

/// Tells whoever waits, in order, until the threads have ended.
async fn tell_waiters<R: Runtime>(io: Arc<Io>, waiting: Shared<Waiting<R>>, space: Arc<Notify>) {
    loop {
        io.progress.notified().await;
        // in this order: what is finished syncs no more
        let finished = io.finished();
        let failed = io.failed().cloned();
        let synced = io.synced();
        let over = finished || failed.is_some();
        let ready: Vec<_> = waiting.with(|waiting| {
            let count = match over {
                true => waiting.entries.len(),
                false => waiting.entries.partition_point(|(number, ..)| *number <= synced),
            };
            let ready: Vec<_> = waiting.entries.drain(..count).collect();
            waiting.bytes -= ready.iter().map(|(_, bytes, _)| bytes).sum::<usize>();
            waiting.closed = finished;
            ready
        });
        for (number, _, waiter) in ready {
            waiter.tell(match &failed {
                _ if number <= synced => Ok(()),
                Some(error) => Err(error.clone()),
                None => Err(ended()),
            });
        }
        space.notify();
        if finished {
            return;
        }
    }
}

/// The key of an entry in `Family::Log`.
fn key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

fn index_of(key: &[u8]) -> Result<u64, StoreError> {
    match key.try_into() {
        Ok(bytes) => Ok(u64::from_be_bytes(bytes)),
        Err(_) => Err(StoreError::Damaged("a key in the raft log that is no index".into())),
    }
}

fn ended() -> StoreError {
    StoreError::failed("writing the raft log", "it was closed")
}
