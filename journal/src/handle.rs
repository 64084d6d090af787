//! The handle that all shards append through.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rt_abstract::{MaybeSend, Notify, Runtime};

use crate::batch::{Appended, Batch};
use crate::error::{ReadError, Refused};
use crate::format::{Position, Ticket};
use crate::gather::{Gather, Tail};
use crate::options::{Class, Options, State, Usage};
use crate::reader::Reader;

/// The journal, for everybody who appends, reads and releases. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    pub(crate) inner: Arc<Inner>,
}

/// What the handles and the writer share.
pub(crate) struct Inner {
    pub dir: PathBuf,
    pub segment_bytes: u64,
    pub options: Options,
    gather: Mutex<Gather>,
    durable: AtomicU64,
    written: AtomicU64,
    watchers: Mutex<Vec<Arc<Notify>>>,
    /// Wakes the writer.
    pub work: Notify,
    /// Wakes who prepares and releases segments.
    pub house: Notify,
}

impl Journal {
    /// Appends the records of `batch` as one unit (after a crash all of them are there, or none)
    /// and empties it. An empty batch takes no space; its ticket is that of what was appended last.
    ///
    /// Never waits for the disk: a short lock, a copy. Meant to be called once per turn of a shard.
    ///
    /// # Errors
    /// Why it was refused; the batch is as it was. [`Class::Always`] is refused less often, but the
    /// caller must be able to bear it: memory and disk have an end.
    pub fn append(&self, batch: &mut Batch, class: Class) -> Result<Appended, Refused> {
        let mut gather = self.inner.lock();
        if batch.is_empty() {
            let usage = gather.usage();
            return Ok(Appended::new(gather.last(), usage.end));
        }
        let appended = gather.append(batch, class)?;
        drop(gather);
        self.inner.work.notify();
        Ok(appended)
    }

    /// The ticket of what was appended last, whoever did it.
    pub fn last(&self) -> Ticket {
        self.inner.with(|gather| gather.last())
    }

    /// Everything up to here is synced: it is there after a loss of power.
    pub fn durable(&self) -> Ticket {
        Ticket(self.inner.durable.load(Ordering::Acquire))
    }

    /// Everything up to here was given to the system: it is there when the process is killed.
    pub fn written(&self) -> Ticket {
        Ticket(self.inner.written.load(Ordering::Acquire))
    }

    /// Has `notify` called whenever [`Journal::durable`], [`Journal::written`], the segments or
    /// [`Journal::state`] changes. For ever, so for a few long-lived tasks: one per shard.
    pub fn watch(&self, notify: Arc<Notify>) {
        self.inner.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(notify);
    }

    /// Whether it runs.
    pub fn state(&self) -> State {
        self.inner.with(|gather| gather.state().clone())
    }

    /// Lets go of whole segments before `position`, oldest first, never the one that is written.
    ///
    /// It waits until everything that was appended before this call is durable: the records that
    /// make a segment superfluous may be among it.
    pub fn release_before(&self, position: Position) {
        self.inner.with(|gather| gather.release_before(position));
        self.inner.house.notify();
    }

    /// Ends the journal for all: who appends cannot go on. [`crate::Writer::run`] returns `reason`.
    pub fn fail(&self, reason: &str) {
        self.inner.fail(reason);
    }

    /// Figures for metrics.
    pub fn usage(&self) -> Usage {
        self.inner.with(|gather| gather.usage())
    }

    /// Size of the segments, which may be another than in [`Options`]: that of an existing journal
    /// stays.
    pub fn segment_bytes(&self) -> u64 {
        self.inner.segment_bytes
    }

    /// The number of the segment that a record lies in: for counting what is alive in each.
    pub fn segment_of(&self, position: Position) -> u64 {
        position.get() / self.inner.segment_bytes
    }

    /// Where a segment begins: `release_before(segment_start(n))` lets go of all before `n`.
    pub fn segment_start(&self, segment: u64) -> Position {
        Position::new(segment.saturating_mul(self.inner.segment_bytes))
    }

    /// Reads one record back, from memory while it is not durable. Opens the file each time; a
    /// [`Reader`] keeps it open.
    ///
    /// # Errors
    /// What was released is not read, and what fails its checksum is not returned.
    pub fn read<R: Runtime>(
        &self,
        position: Position,
    ) -> impl Future<Output = Result<Vec<u8>, ReadError>> + MaybeSend {
        let reader = self.reader::<R>();
        async move { reader.read(position).await }
    }

    /// Reads records on this core.
    pub fn reader<R: Runtime>(&self) -> Reader<R> {
        Reader::new(self.inner.clone())
    }
}

impl Inner {
    pub fn new(options: Options, tail: Tail, spares: u64) -> Self {
        Self {
            dir: options.dir.clone(),
            segment_bytes: options.segment_bytes,
            durable: AtomicU64::new(tail.sequence),
            written: AtomicU64::new(tail.sequence),
            gather: Mutex::new(Gather::new(options.clone(), tail, spares)),
            options,
            watchers: Mutex::default(),
            work: Notify::new(),
            house: Notify::new(),
        }
    }

    /// The shared state, for a moment.
    pub fn with<T>(&self, f: impl FnOnce(&mut Gather) -> T) -> T {
        f(&mut self.lock())
    }

    /// The frame in flight was given to the system.
    pub fn set_written(&self, sequence: u64) {
        self.written.store(sequence, Ordering::Release);
        self.tell();
    }

    /// The frame in flight is synced.
    pub fn set_durable(&self, sequence: u64) {
        self.with(|gather| gather.finish());
        self.durable.store(sequence, Ordering::Release);
        self.tell();
    }

    /// Nothing becomes durable any more.
    pub fn fail(&self, reason: &str) {
        self.with(|gather| gather.fail(reason));
        self.work.notify();
        self.house.notify();
        self.tell();
    }

    /// Wakes those who watch.
    pub fn tell(&self) {
        for watcher in &*self.watchers.lock().unwrap_or_else(PoisonError::into_inner) {
            watcher.notify();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Gather> {
        self.gather.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
