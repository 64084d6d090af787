//! Reading the log: for replication and for apply, while it grows.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow, Range, RangeBounds};
use std::sync::Arc;

use futures_util::stream::{self, Stream};
use openraft::{OptionalSend, RaftLogReader};
use rt_abstract::{Runtime, Shared};

use super::tail::Tail;
use super::{index_of, key};
use crate::raft::entry::{Entry, Vote, decode_entry, weight};
use crate::raft::types::TypeConfig;
use crate::store::{Family, Store, StoreError};

/// Entries that are read at once for a stream, and for one message to another node.
const CHUNK_ENTRIES: usize = 1_024;
/// Their bytes, about.
const CHUNK_BYTES: usize = 1 << 20;

/// Reads the log. Calls do not wait for the disk, except for entries that left memory.
pub struct LogReader<R> {
    tail: Shared<Tail>,
    store: Arc<dyn Store>,
    runtime: PhantomData<fn() -> R>,
}

impl<R> LogReader<R> {
    pub(super) fn new(tail: Shared<Tail>, store: Arc<dyn Store>) -> Self {
        Self { tail, store, runtime: PhantomData }
    }

    /// The entries from `from` to `to` (excluded) that the log has, at most `max_entries` of them
    /// and `max_bytes`, but one at least.
    pub(super) fn read(
        &self,
        from: u64,
        to: u64,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        loop {
            let (plan, truncations) = self
                .tail
                .with(|tail| (tail.plan(from, to, max_entries, max_bytes), tail.truncations));
            if plan.stored.is_empty() {
                return Ok(plan.entries.iter().map(|entry| Entry::clone(entry)).collect());
            }
            let (mut entries, mut bytes) = (Vec::new(), 0);
            let whole = self.read_stored(plan.stored.clone(), max_bytes, &mut entries, &mut bytes);
            // A purge or a truncation between the two looks makes a hole: look again.
            let changed = self
                .tail
                .with(|tail| tail.truncations != truncations || tail.first() > plan.stored.start);
            match whole {
                Ok(()) => {}
                Err(_) if changed => continue,
                Err(error) => return Err(error),
            }
            if entries.len() as u64 == plan.stored.end - plan.stored.start {
                for entry in plan.entries {
                    bytes += weight(&entry);
                    if bytes > max_bytes {
                        break;
                    }
                    entries.push(Entry::clone(&entry));
                }
            }
            return Ok(entries);
        }
    }

    /// Adds the entries of `range`, all of which must be there, until there are `max_bytes`.
    fn read_stored(
        &self,
        range: Range<u64>,
        max_bytes: usize,
        entries: &mut Vec<Entry>,
        bytes: &mut usize,
    ) -> Result<(), StoreError> {
        let mut next = range.start;
        let mut problem = None;
        self.store.scan(
            Family::Log,
            &key(range.start),
            Some(&key(range.end)),
            &mut |found, value| {
                let entry = match index_of(found).and_then(|_| decode_entry(value)) {
                    Ok(entry) => entry,
                    Err(error) => {
                        problem = Some(error);
                        return ControlFlow::Break(());
                    }
                };
                *bytes += weight(&entry);
                if *bytes > max_bytes && !entries.is_empty() {
                    return ControlFlow::Break(());
                }
                if entry.log_id.index != next {
                    return ControlFlow::Break(());
                }
                next += 1;
                entries.push(entry);
                ControlFlow::Continue(())
            },
        )?;
        match problem {
            Some(error) => Err(error),
            None if next == range.end || *bytes > max_bytes => Ok(()),
            None => Err(StoreError::Damaged(format!("log entry {next} is missing"))),
        }
    }
}

impl<R: Runtime> RaftLogReader<TypeConfig<R>> for LogReader<R> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + fmt::Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let Range { start, end } = bounds(&range);
        Ok(self.read(start, end, usize::MAX, usize::MAX)?)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.tail.with(|tail| tail.vote))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        Ok(self.read(start, end, CHUNK_ENTRIES, CHUNK_BYTES)?)
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + fmt::Debug + OptionalSend,
    {
        let Range { start, end } = bounds(&range);
        stream::iter(Chunks {
            reader: Self::new(self.tail.clone(), self.store.clone()),
            next: start,
            end,
            chunk: Vec::new().into_iter(),
        })
    }
}

/// Entries one by one, read a chunk at a time.
struct Chunks<R> {
    reader: LogReader<R>,
    next: u64,
    end: u64,
    chunk: std::vec::IntoIter<Entry>,
}

impl<R> Iterator for Chunks<R> {
    type Item = Result<Entry, io::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.chunk.next() {
            return Some(Ok(entry));
        }
        if self.next >= self.end {
            return None;
        }
        match self.reader.read(self.next, self.end, CHUNK_ENTRIES, CHUNK_BYTES) {
            Ok(entries) => {
                self.next = entries.last().map_or(self.end, |last| last.log_id.index + 1);
                self.chunk = entries.into_iter();
                self.chunk.next().map(Ok)
            }
            Err(error) => {
                self.next = self.end;
                Some(Err(error.into()))
            }
        }
    }
}

impl<R> fmt::Debug for LogReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogReader({:?})", self.store)
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.saturating_add(1),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}
