//! The timer wheel: one per shard, driven by one tick, for every deadline of its connections and
//! sessions.

/// Milliseconds per slot; deadlines fire up to one slot late, never early.
pub const TICK_MS: u64 = 64;
const SLOTS: usize = 1024;

/// A hashed wheel. Deadlines beyond one turn (65 s) are looked at once per turn. Entries cannot be
/// cancelled: the owner of `T` recognises one that is no longer meant. Whoever arms at most one
/// live entry per connection and session bounds it.
#[derive(Debug)]
pub struct Wheel<T> {
    slots: Vec<Vec<(u64, T)>>,
    /// The next tick to run.
    tick: u64,
    len: usize,
}

impl<T> Wheel<T> {
    /// An empty wheel at `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        Self { slots: (0..SLOTS).map(|_| Vec::new()).collect(), tick: now_ms / TICK_MS, len: 0 }
    }

    /// Arms an entry. A deadline in the past fires at the next tick.
    pub fn arm(&mut self, deadline_ms: u64, item: T) {
        let tick = deadline_ms.div_ceil(TICK_MS).max(self.tick);
        self.slots[tick as usize % SLOTS].push((tick, item));
        self.len += 1;
    }

    /// Moves everything due at `now_ms` into `due`, in slot order.
    pub fn expire(&mut self, now_ms: u64, due: &mut Vec<T>) {
        let last = now_ms / TICK_MS;
        if self.len == 0 {
            self.tick = self.tick.max(last + 1);
            return;
        }
        // After a long sleep one turn visits every slot; more turns would find nothing new.
        let first = self.tick.max(last.saturating_sub(SLOTS as u64 - 1));
        for tick in first..=last {
            let slot = &mut self.slots[tick as usize % SLOTS];
            if slot.is_empty() {
                continue;
            }
            let before = due.len();
            // Order within a slot is kept, so that a simulation can replay it.
            due.extend(slot.extract_if(.., |(at, _)| *at <= last).map(|(_, item)| item));
            self.len -= due.len() - before;
        }
        self.tick = self.tick.max(last + 1);
    }

    /// Entries armed, also those no longer meant.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(wheel: &mut Wheel<u32>, now_ms: u64) -> Vec<u32> {
        let mut due = Vec::new();
        wheel.expire(now_ms, &mut due);
        due
    }

    #[test]
    fn never_early_and_at_most_a_tick_late() {
        let mut wheel = Wheel::new(1_000);
        for (deadline, item) in [(1_100, 1), (1_500, 2), (200_000, 3), (5, 4)] {
            wheel.arm(deadline, item);
        }
        assert_eq!(fired(&mut wheel, 1_099), [4]);
        assert_eq!(fired(&mut wheel, 1_100 + TICK_MS), [1]);
        assert_eq!(fired(&mut wheel, 1_500 + TICK_MS), [2]);
        assert_eq!(fired(&mut wheel, 199_999), []);
        assert_eq!(wheel.len(), 1);
        assert_eq!(fired(&mut wheel, 200_000 + TICK_MS), [3]);
        assert_eq!(wheel.len(), 0);
    }

    #[test]
    fn a_long_sleep_misses_nothing() {
        let mut wheel = Wheel::new(0);
        for item in 0..300 {
            wheel.arm(u64::from(item) * 1_000, item);
        }
        let mut all = fired(&mut wheel, 10_000_000);
        all.sort_unstable();
        assert_eq!(all, (0..300).collect::<Vec<_>>());
    }
}
