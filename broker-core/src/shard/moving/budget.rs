//! How much may be moved.

/// Moved all the time, of all shards together.
const BASE_BYTES_PER_S: u64 = 1 << 20;
/// What is left is kept up to this, or a fourth of a segment.
const MAX_LEFT_BYTES: u64 = 1 << 20;

/// Bytes that a shard may move: its part of a share of what is recorded, and of a little all the time.
/// While the disk is nearly full, its part of a fourth of a segment for each segment that is given back.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Below 0 after a message that was longer than what was left.
    left: i64,
    seen: Seen,
    /// The disk is nearly full, and this was the oldest segment when there was something to spend.
    reserve: Option<u64>,
}

/// The journal at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) now_ms: u64,
    /// The position of its end.
    pub(super) end: u64,
    /// Bytes moved so far.
    pub(super) moved: u64,
    /// The oldest position, when the disk is nearly full.
    pub(super) nearly_full: Option<u64>,
}

impl Budget {
    /// Looks at the journal now and then.
    pub(super) fn refill(&mut self, seen: Seen, percent: u8, segment_bytes: u64, shards: u64) {
        let before = std::mem::replace(&mut self.seen, seen);
        if let Some(oldest) = seen.nearly_full {
            if self.reserve.replace(oldest) != Some(oldest) {
                self.left = (segment_bytes / 4 / shards) as i64;
            }
            return;
        }
        self.reserve = None;
        if before.end == 0 {
            return; // the first look
        }
        let grown = seen.end.saturating_sub(before.end);
        let recorded = grown.saturating_sub(seen.moved.saturating_sub(before.moved));
        let base = BASE_BYTES_PER_S * seen.now_ms.saturating_sub(before.now_ms).min(1_000) / 1_000;
        let more = (recorded.saturating_mul(percent.into()) / 100 + base) / shards;
        let most = (segment_bytes / 4).min(MAX_LEFT_BYTES) as i64;
        self.left = self.left.saturating_add_unsigned(more).min(most);
    }

    #[cfg(test)]
    pub(super) fn unlimited() -> Self {
        Self { left: i64::MAX, ..Self::default() }
    }

    /// How much may be moved at once, `most` at most. Where it is not the reserve that is spent, it may
    /// be less than the first message takes.
    pub(super) fn left(&self, most: usize) -> usize {
        most.min(usize::try_from(self.left).unwrap_or(0))
    }

    /// Whether a message may take more than is left.
    pub(super) fn may_overdraw(&self) -> bool {
        self.reserve.is_none() && self.left > 0
    }

    /// What is left is too little for the next message.
    pub(super) fn give_up(&mut self) {
        self.left = self.left.min(0);
    }

    pub(super) fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub_unsigned(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << 30;

    fn refill(budget: &mut Budget, now_ms: u64, end: u64, moved: u64) {
        let seen = Seen { now_ms, end, moved, nearly_full: None };
        budget.refill(seen, 25, SEGMENT, 2);
    }

    #[test]
    fn a_share_of_what_is_recorded_and_a_little_all_the_time() {
        let mut budget = Budget::default();
        refill(&mut budget, 0, 5_000_000, 0);
        assert_eq!(budget.left(usize::MAX), 0, "what was there before does not count");
        refill(&mut budget, 0, 5_800_000, 0);
        assert_eq!(budget.left(usize::MAX), 100_000);
        assert_eq!(budget.left(70), 70);
        budget.spend(150_000);
        assert!(budget.left(usize::MAX) == 0 && !budget.may_overdraw());
        refill(&mut budget, 0, 6_600_000, 300_000);
        assert_eq!(budget.left(usize::MAX), 12_500, "what was moved is not recorded");
        budget.spend(12_500);
        refill(&mut budget, 500, 6_600_000, 300_000);
        assert_eq!(budget.left(usize::MAX), 1 << 18);
        refill(&mut budget, 500_000, SEGMENT, 300_000);
        assert_eq!(budget.left(usize::MAX), 1 << 20, "it does not gather for ever");
    }

    #[test]
    fn the_reserve_is_spent_once_per_segment_that_comes_back() {
        let mut budget = Budget::default();
        let mut at = |oldest: Option<u64>, spend: usize| {
            let seen = Seen { now_ms: 1, end: SEGMENT, moved: 0, nearly_full: oldest };
            budget.refill(seen, 25, SEGMENT, 2);
            budget.spend(spend);
            (budget.left(usize::MAX), budget.may_overdraw())
        };
        assert_eq!(at(Some(7), 0), (1 << 27, false));
        assert_eq!(at(Some(7), 1 << 27), (0, false));
        assert_eq!(at(Some(7), 0), (0, false));
        assert_eq!(at(Some(8), 0), (1 << 27, false));
        assert_eq!(at(None, 0), (1 << 20, true));
        budget.give_up();
        assert_eq!(budget.left(1), 0, "until there is more");
    }
}
