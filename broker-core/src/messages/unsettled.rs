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

/// Exchanges that [`Unsettled::say_again`] takes at once: some kilobytes, which fit into any segment.
const SAID_AT_ONCE: usize = 256;

/// The session that has the message, and the segment.
type Pins = SmallVec<[(u64, u64); 1]>;

/// What changes about live records: see [`Live::change`](super::live::Live::change).
pub(crate) type Changes = SmallVec<[(u64, i64); 1]>;

impl Unsettled {
    /// Session `of` has the message, as `segment` tells, which counts once more from now on.
    pub fn add(&self, origin: Origin, of: u64, segment: u64) {
        self.with(|pins| pins.entry(origin).or_default().push((of, segment)));
    }

    /// The record of the message being taken is about to be appended. Until it is, the changes are to
    /// wait: what tells of the message is needed so long.
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

    /// Says again what segments before `before` say, of 256 exchanges at most: `append` is given who
    /// has the message of which exchange, and appends that, in the segment that it gives. Meanwhile no
    /// exchange is [settled](Self::settle), and those that were are not among these: so it stands
    /// before the record of their being taken.
    pub fn say_again(
        &self,
        before: u64,
        append: impl FnOnce(&[(Origin, u64)]) -> Option<u64>,
    ) -> Changes {
        if self.is_empty() {
            return Changes::new();
        }
        self.with(|pins| {
            let old = |pins: &Pins| pins.iter().any(|(_, segment)| *segment < before);
            let found: Vec<_> =
                pins.iter_mut().filter(|(_, pins)| old(pins)).take(SAID_AT_ONCE).collect();
            let said = found.iter().flat_map(|(origin, pins)| {
                let old = pins.iter().filter(|(_, segment)| *segment < before);
                old.map(|(holder, _)| (**origin, *holder))
            });
            let said: Vec<_> = said.collect();
            let Some(to) = (!said.is_empty()).then(|| append(&said)).flatten() else {
                return Changes::new();
            };
            let mut changes = Changes::new();
            for pin in found.into_iter().flat_map(|(_, pins)| pins.iter_mut()) {
                if pin.1 < before {
                    changes.extend([(to, 1), (pin.1, -1)]);
                    pin.1 = to;
                }
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

    /// Whether there is none: nearly always.
    #[inline]
    pub fn is_empty(&self) -> bool {
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

    #[test]
    fn what_is_unsettled_is_said_again_until_it_is_settled() {
        let unsettled = Unsettled::default();
        let none = |_: &[(Origin, u64)]| -> Option<u64> { panic!("there is nothing to say") };
        assert!(unsettled.say_again(9, none).is_empty());
        for (id, of, segment) in [(1, 7, 3), (1, 8, 5), (2, 7, 4), (3, 7, 3)] {
            unsettled.add(origin(1, id), of, segment);
        }
        let _ = unsettled.settle(origin(1, 3));
        assert!(unsettled.say_again(3, none).is_empty());
        assert!(unsettled.say_again(5, |_| None).is_empty(), "there is no room");
        let changes = unsettled.say_again(5, |said| {
            assert_eq!(said, [(origin(1, 1), 7), (origin(1, 2), 7)]);
            Some(9)
        });
        assert_eq!(sorted(changes), [(3, -1), (4, -1), (9, 1), (9, 1)]);
        assert!(unsettled.say_again(5, none).is_empty());
        assert_eq!(sorted(unsettled.end_publisher(1)), [(5, -1), (9, -1), (9, -1)]);
    }
}
