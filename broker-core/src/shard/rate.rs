//! How many CONNECTs a node answers per second.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A bucket of one second's worth of tokens that all shards take from; full at the start.
#[derive(Debug, Default)]
pub struct ConnectRate {
    /// When the bucket is full again, in nanoseconds on the shards' clock: all that a token bucket
    /// needs to remember.
    full_at_ns: AtomicU64,
}

const SECOND_NS: u64 = 1_000_000_000;

impl ConnectRate {
    /// Takes a token; false when there is none. `per_s` tokens come back each second, 0 is no limit.
    pub fn take(&self, per_s: u32, now_ms: u64) -> bool {
        let Some(token_ns) = SECOND_NS.checked_div(per_s.into()) else { return true };
        let now_ns = now_ms.saturating_mul(1_000_000);
        let spent = |full_at: u64| {
            let full_at = full_at.max(now_ns).saturating_add(token_ns);
            (full_at - now_ns <= SECOND_NS).then_some(full_at)
        };
        self.full_at_ns.fetch_update(Relaxed, Relaxed, spent).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rate: &ConnectRate, per_s: u32, now_ms: u64) -> usize {
        (0..1000).take_while(|_| rate.take(per_s, now_ms)).count()
    }

    #[test]
    fn a_second_of_tokens_and_then_as_they_come() {
        let rate = ConnectRate::default();
        assert_eq!(taken(&rate, 10, 5_000), 10);
        assert_eq!(taken(&rate, 10, 5_099), 0);
        assert_eq!(taken(&rate, 10, 5_100), 1);
        assert_eq!(taken(&rate, 10, 5_350), 2);
        // Never more than a second's worth, however long it was quiet.
        assert_eq!(taken(&rate, 10, 90_000), 10);
        // A shard whose clock was read a little earlier takes nothing that is not there.
        assert_eq!(taken(&rate, 10, 89_999), 0);
    }

    #[test]
    fn the_ends_of_the_range() {
        let rate = ConnectRate::default();
        assert_eq!(taken(&rate, 1, 1_000), 1);
        assert_eq!(taken(&rate, 1, 1_999), 0);
        assert_eq!(taken(&rate, 1, 2_000), 1);
        assert_eq!(taken(&ConnectRate::default(), 0, 1_000), 1000, "no limit");
        assert_eq!(taken(&ConnectRate::default(), 1_000_000, u64::MAX), 1000);
    }
}
