//! Which segments of the journal hold something that is still owed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Counts of live records per segment, of all shards.
///
/// Bound: one number per segment that is on disk, and one per shard.
#[derive(Debug)]
pub(crate) struct Live {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Number of the segment that the first count is for.
    first: u64,
    counts: VecDeque<i64>,
    /// Shards that have not counted yet what they found at start.
    uncounted: usize,
    /// Per shard that appends what it has not counted yet: where that begins.
    appending: Vec<Option<u64>>,
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
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.appending[usize::from(shard)].get_or_insert(current);
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
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for &(segment, by) in changes {
            let Some(at) = segment.checked_sub(inner.first) else { continue };
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            if inner.counts.len() <= at {
                inner.counts.resize(at + 1, 0);
            }
            inner.counts[at] += by;
            debug_assert!(inner.counts[at] >= 0, "more is done than was owed");
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
        while inner.first < end && inner.counts.front().is_none_or(|count| *count <= 0) {
            inner.counts.pop_front();
            inner.first += 1;
        }
        (inner.first > before).then_some(inner.first)
    }

    /// A shard has counted all that it found at start.
    pub fn counted(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.uncounted = inner.uncounted.saturating_sub(1);
    }

    /// How many records are live.
    pub fn records(&self) -> u64 {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.counts.iter().map(|count| u64::try_from(*count).unwrap_or(0)).sum()
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
