//! Which segments of the journal hold something that is still owed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Counts of live records per segment, of all shards.
///
/// Bound: one number per segment that is on disk.
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
}

impl Live {
    /// Counts from segment `first` on; nothing is let go before `shards` have called
    /// [`Live::counted`].
    pub fn new(first: u64, shards: usize) -> Self {
        let inner = Inner { first, counts: VecDeque::new(), uncounted: shards };
        Self { inner: Mutex::new(inner) }
    }

    /// Changes counts, (segment, by how many) each. The segment before which nothing is needed any
    /// more, where that may be news; `current` is the one that is written.
    ///
    /// The one before the current one is kept: it may hold messages that a publisher sends again,
    /// because the record of their being taken is not durable yet.
    pub fn change(&self, changes: &[(u64, i64)], current: u64) -> Option<u64> {
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
        if inner.uncounted > 0 {
            return None;
        }
        let before = inner.first;
        let end = current.saturating_sub(1);
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
        assert_eq!(live.change(&[(3, 2), (4, 1)], 5), None);
        assert_eq!(live.change(&[(3, -2)], 9), None, "not all have counted");
        live.counted();
        live.counted();
        assert_eq!(live.change(&[(6, 1)], 9), Some(4));
        assert_eq!(live.records(), 2);
        assert_eq!(live.change(&[], 9), None);
        assert_eq!(live.change(&[(6, -1)], 9), None, "4 is needed");
        assert_eq!(live.change(&[(4, -1)], 9), Some(8));
        assert_eq!(live.change(&[(2, 1)], 9), None, "of a segment that is gone");
        assert_eq!(live.change(&[(9, 1), (9, -1)], 10), Some(9));
    }
}
