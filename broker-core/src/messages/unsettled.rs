//! Records that are of use although all their messages have arrived: they tell that a message which
//! its publisher sends again is known.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use mqtt::wire::PacketId;
use smallvec::SmallVec;

use super::record::Origin;

/// Exchanges of QoS 2 publishers whose messages were found at start without a record of their being
/// taken, with the segments that tell so: live until such a record is appended, or one of the two
/// sessions ends.
///
/// Bound: what was found at start.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    pins: Mutex<BTreeMap<Origin, Pins>>,
    /// How many exchanges: nearly always none, so that nobody takes the lock.
    count: AtomicUsize,
}

/// The session that has the message, and the segment.
type Pins = SmallVec<[(u64, u64); 1]>;

/// What changes about live records: see [`Live::change`](super::live::Live::change).
pub(crate) type Changes = SmallVec<[(u64, i64); 1]>;

impl Unsettled {
    /// Session `of` has the message, as `segment` tells, which counts once more from now on.
    pub fn add(&self, origin: Origin, of: u64, segment: u64) {
        self.with(|pins| pins.entry(origin).or_default().push((of, segment)));
    }

    /// The record of the message being taken is appended.
    pub fn settle(&self, origin: Origin) -> Changes {
        self.end(origin..=origin)
    }

    /// A publisher's session is over.
    pub fn end_publisher(&self, generation: u64) -> Changes {
        let (first, last) = (PacketId::MIN, PacketId::MAX);
        let [first, last] = [first, last].map(|id| Origin { generation, id });
        self.end(first..=last)
    }

    /// A session that has the message is over.
    pub fn end_holder(&self, origin: Origin, of: u64) -> Changes {
        if self.is_empty() {
            return Changes::new();
        }
        self.with(|pins| {
            let Some(found) = pins.get_mut(&origin) else { return Changes::new() };
            let changes = found.iter().filter(|(holder, _)| *holder == of);
            let changes = changes.map(|(_, segment)| (*segment, -1)).collect();
            found.retain(|(holder, _)| *holder != of);
            if found.is_empty() {
                pins.remove(&origin);
            }
            changes
        })
    }

    fn end(&self, origins: RangeInclusive<Origin>) -> Changes {
        if self.is_empty() {
            return Changes::new();
        }
        self.with(|pins| {
            let found: Vec<_> = pins.range(origins).map(|(origin, _)| *origin).collect();
            let ended = found.iter().filter_map(|origin| pins.remove(origin)).flatten();
            ended.map(|(_, segment)| (segment, -1)).collect()
        })
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<Origin, Pins>) -> T) -> T {
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut pins);
        self.count.store(pins.len(), Ordering::Release);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(generation: u64, id: u16) -> Origin {
        Origin { generation, id: PacketId::new(id).expect("not 0") }
    }

    fn sorted(mut changes: Changes) -> Vec<(u64, i64)> {
        changes.sort_unstable();
        changes.into_vec()
    }

    #[test]
    fn what_is_unsettled_counts_until_one_end_is_over() {
        let unsettled = Unsettled::default();
        assert!(unsettled.settle(origin(1, 1)).is_empty());
        for (of, segment) in [(7, 3), (8, 3), (8, 4)] {
            unsettled.add(origin(1, 1), of, segment);
        }
        unsettled.add(origin(1, u16::MAX), 7, 5);
        unsettled.add(origin(2, 1), 7, 6);
        assert_eq!(sorted(unsettled.end_holder(origin(1, 1), 8)), [(3, -1), (4, -1)]);
        assert!(unsettled.end_holder(origin(1, 1), 8).is_empty());
        assert_eq!(sorted(unsettled.end_publisher(1)), [(3, -1), (5, -1)]);
        assert!(unsettled.end_publisher(1).is_empty());
        assert_eq!(sorted(unsettled.settle(origin(2, 1))), [(6, -1)]);
        assert!(unsettled.is_empty());
    }
}
