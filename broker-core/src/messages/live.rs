//! Which segments of the journal hold something that is still owed.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sparse::sparse_prefix;

/// Counts of live records per segment, of all shards.
///
/// Bound: three numbers per segment that is on disk, and one per shard.
#[derive(Debug)]
pub(crate) struct Live {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Number of the segment that the first count is for.
    first: u64,
    counts: VecDeque<Count>,
    /// Shards that have not counted yet what they found at start.
    uncounted: usize,
    /// Per shard that appends what it has not counted yet: where that begins.
    appending: Vec<Option<u64>>,
}

/// Of one segment.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    live: i64,
    /// All that were live at some time since they were counted first.
    total: i64,
    /// What those take that were found at start; 0 without any.
    found_bytes: u64,
}

impl Live {
    /// Counts from segment `first` on; nothing is let go before `shards` have called
    /// [`Live::counted`].
    pub fn new(first: u64, shards: usize) -> Self {
        let appending = vec![None; shards];
        let inner = Inner { first, counts: VecDeque::new(), uncounted: shards, appending };
        Self { inner: Mutex::new(inner) }
    }

    /// A shard is about to append, in `current` or behind it: from there on all is kept until it
    /// has counted.
    pub fn begin(&self, shard: u8, current: u64) {
        self.lock().appending[usize::from(shard)].get_or_insert(current);
    }

    /// Changes counts, (segment, by how many) each, after which all that the shard `appended` is
    /// counted. The segment before which nothing is needed any
    /// more, where that may be news; `current` is the one that is written.
    ///
    /// The one before the current one is kept: it may hold messages that a publisher sends again,
    /// because the record of their being taken is not durable yet.
    pub fn change(
        &self,
        changes: &[(u64, i64)],
        current: u64,
        appended: Option<u8>,
    ) -> Option<u64> {
        let mut inner = self.lock();
        for &(segment, by) in changes {
            let Some(count) = inner.count(segment) else { continue };
            count.live += by;
            count.total += by.max(0);
            debug_assert!(count.live >= 0, "more is done than was owed");
        }
        if let Some(shard) = appended {
            inner.appending[usize::from(shard)] = None;
        }
        if inner.uncounted > 0 {
            return None;
        }
        let before = inner.first;
        let uncounted = inner.appending.iter().flatten().min();
        let end = current.saturating_sub(1).min(uncounted.copied().unwrap_or(u64::MAX));
        while inner.first < end && inner.counts.front().is_none_or(|count| count.live <= 0) {
            inner.counts.pop_front();
            inner.first += 1;
        }
        (inner.first > before).then_some(inner.first)
    }

    /// Live records that were found at start take so much of a segment.
    pub fn found(&self, segment: u64, bytes: u64) {
        if let Some(count) = self.lock().count(segment) {
            count.found_bytes += bytes;
        }
    }

    /// The segment before which everything that is live is to be moved to the end, as
    /// [`sparse_prefix`] finds; never one from `end` on, nor one of the last two. At or before the
    /// oldest one when nothing is to be moved.
    pub fn sparse(&self, end: u64, current: u64, segment_bytes: u64, nearly_full: bool) -> u64 {
        let inner = self.lock();
        let end = end.min(current.saturating_sub(1));
        let count = end.saturating_sub(inner.first);
        if inner.uncounted > 0 || count == 0 {
            return inner.first;
        }
        let missing = count.saturating_sub(inner.counts.len() as u64);
        let live_bytes = inner.counts.iter().map(|count| count.live_bytes(segment_bytes));
        let mut live_bytes: Vec<_> = live_bytes.collect();
        live_bytes.extend((0..missing).map(|_| 0));
        live_bytes.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        inner.first + sparse_prefix(&live_bytes, segment_bytes, nearly_full) as u64
    }

    /// A shard has counted all that it found at start.
    pub fn counted(&self) {
        let mut inner = self.lock();
        inner.uncounted = inner.uncounted.saturating_sub(1);
    }

    /// How many records are live.
    pub fn records(&self) -> u64 {
        self.lock().counts.iter().map(|count| u64::try_from(count.live).unwrap_or(0)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// None: the segment is gone.
    fn count(&mut self, segment: u64) -> Option<&mut Count> {
        let at = usize::try_from(segment.checked_sub(self.first)?).ok()?;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, Count::default());
        }
        self.counts.get_mut(at)
    }
}

impl Count {
    /// An estimate: as if all records had one length and, unless they were found at start, filled the
    /// segment. So what is moved is full at first, however its records fit into segments, and is not
    /// moved again before some of it is done.
    fn live_bytes(&self, segment_bytes: u64) -> u64 {
        let bytes = if self.found_bytes > 0 { self.found_bytes } else { segment_bytes };
        let (live, total) = (self.live.max(0) as u128, self.total.max(1) as u128);
        (u128::from(bytes) * live / total) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_go_from_the_oldest_on_and_never_the_last_two() {
        let live = Live::new(3, 2);
        assert_eq!(live.change(&[(3, 2), (4, 1)], 5, None), None);
        assert_eq!(live.change(&[(3, -2)], 9, None), None, "not all have counted");
        live.counted();
        live.counted();
        assert_eq!(live.change(&[(6, 1)], 9, None), Some(4));
        assert_eq!(live.records(), 2);
        assert_eq!(live.change(&[], 9, None), None);
        assert_eq!(live.change(&[(6, -1)], 9, None), None, "4 is needed");
        assert_eq!(live.change(&[(4, -1)], 9, None), Some(8));
        assert_eq!(live.change(&[(2, 1)], 9, None), None, "of a segment that is gone");
        assert_eq!(live.change(&[(9, 1), (9, -1)], 10, None), Some(9));
    }

    #[test]
    fn what_is_owed_in_sparse_segments_is_to_be_moved() {
        let live = Live::new(3, 1);
        live.change(&[(3, 10), (4, 10)], 9, None);
        live.found(3, 900);
        live.found(4, 900);
        assert_eq!(live.sparse(u64::MAX, 9, 1_000, false), 3, "not all have counted");
        live.counted();
        assert_eq!(live.sparse(u64::MAX, 7, 1_000, false), 3, "half of it is owed");
        live.change(&[(3, -6)], 9, None);
        assert_eq!(live.sparse(u64::MAX, 9, 1_000, false), 4);
        assert_eq!(live.sparse(3, 9, 1_000, false), 3, "nothing there is settled");
        live.change(&[(3, -4)], 9, None);
        assert_eq!(live.sparse(u64::MAX, 9, 1_000, false), 8, "with those behind it");
        assert_eq!(live.sparse(u64::MAX, 9, 1_000, true), 4);
        live.change(&[(4, -8)], 9, None);
        assert_eq!(live.sparse(u64::MAX, 9, 1_000, true), 8);
    }

    #[test]
    fn what_nothing_is_done_of_stays_where_it_is() {
        let live = Live::new(3, 1);
        live.counted();
        let one_each: Vec<_> = (3..20).map(|segment| (segment, 1)).collect();
        live.change(&one_each, 20, None);
        assert_eq!(live.sparse(u64::MAX, 20, 1_000, false), 3, "a record for each segment");
        let more: Vec<_> = (3..20).flat_map(|segment| [(segment, 9), (segment, -9)]).collect();
        live.change(&more, 20, None);
        assert_eq!(live.sparse(u64::MAX, 20, 1_000, false), 19);
    }

    #[test]
    fn what_is_appended_and_not_counted_is_kept() {
        let live = Live::new(3, 2);
        live.counted();
        live.counted();
        live.begin(0, 5);
        live.begin(0, 7); // waits for room with the rest
        live.begin(1, 8);
        assert_eq!(live.change(&[], 9, Some(1)), Some(5));
        assert_eq!(live.change(&[], 20, None), None, "the other one appended to 5");
        assert_eq!(live.change(&[(6, 1)], 20, Some(0)), Some(6));
        assert_eq!(live.change(&[(6, -1)], 20, None), Some(19));
    }
}
