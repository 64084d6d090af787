//! When messages are due: fixed beforehand, whatever comes back. That is the open loop: a broker
//! that stops makes every message that falls due meanwhile late, not only the one under way.

/// Evenly spaced instants, `per_second` of them from `start_ns` on.
#[derive(Clone, Debug)]
pub struct Schedule {
    start_ns: u64,
    per_second: f64,
    taken: u64,
    total: u64,
}

/// One instant of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Its number, from 0.
    pub number: u64,
    /// When.
    pub at_ns: u64,
}

impl Schedule {
    /// `total` instants.
    pub fn new(start_ns: u64, per_second: f64, total: u64) -> Self {
        Self { start_ns, per_second, taken: 0, total }
    }

    /// The instants that fall into `duration_ns`.
    pub fn lasting(start_ns: u64, per_second: f64, duration_ns: u64) -> Self {
        let mut schedule = Self::new(start_ns, per_second, u64::MAX);
        schedule.total = schedule.numbered_before(start_ns + duration_ns);
        schedule
    }

    /// The instant of `number`. Computed from the start, so that no rounding adds up.
    pub fn due_ns(&self, number: u64) -> u64 {
        self.start_ns + (number as f64 * 1e9 / self.per_second) as u64
    }

    /// The next instant, when it has come.
    pub fn take(&mut self, now_ns: u64) -> Option<Due> {
        let at_ns = self.next_due_ns().filter(|due_ns| *due_ns <= now_ns)?;
        let number = self.taken;
        self.taken += 1;
        Some(Due { number, at_ns })
    }

    /// When the next one is due; `None` after the last.
    pub fn next_due_ns(&self) -> Option<u64> {
        (self.taken < self.total).then(|| self.due_ns(self.taken))
    }

    /// How many instants, of all that there are, lie before `end_ns`.
    pub fn numbered_before(&self, end_ns: u64) -> u64 {
        let span_ns = end_ns.saturating_sub(self.start_ns);
        let mut number = (span_ns as f64 * self.per_second / 1e9).ceil() as u64;
        // The estimate is off by one where the division above rounds.
        while number > 0 && self.due_ns(number - 1) >= end_ns {
            number -= 1;
        }
        while self.due_ns(number) < end_ns {
            number += 1;
        }
        number.min(self.total)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn instants_come_in_order_and_not_early() {
        let mut schedule = Schedule::new(1_000, 1e6, 3);
        assert_eq!(schedule.take(999), None);
        assert_eq!(schedule.take(1_000), Some(Due { number: 0, at_ns: 1_000 }));
        assert_eq!(schedule.take(1_999), None);
        assert_eq!(schedule.next_due_ns(), Some(2_000));
        // Late, and none is left out.
        assert_eq!(schedule.take(9_000), Some(Due { number: 1, at_ns: 2_000 }));
        assert_eq!(schedule.take(9_000), Some(Due { number: 2, at_ns: 3_000 }));
        assert_eq!((schedule.take(9_000), schedule.next_due_ns()), (None, None));
    }

    #[test]
    fn a_second_holds_the_rate() {
        for per_second in [1.0, 3.0, 7.5, 1_000.0, 99_999.0, 3_333_333.0] {
            let schedule = Schedule::lasting(5, per_second, 2_000_000_000);
            assert_eq!(schedule.total, (per_second * 2.0) as u64, "{per_second}");
        }
    }

    proptest! {
        #[test]
        fn numbered_before_counts_what_is_due(
            per_second in 0.5f64..2e6,
            start_ns in 0u64..1 << 40,
            span_ns in 0u64..1 << 36,
        ) {
            let schedule = Schedule::new(start_ns, per_second, u64::MAX);
            let count = schedule.numbered_before(start_ns + span_ns);
            prop_assert!(count == 0 || schedule.due_ns(count - 1) < start_ns + span_ns);
            prop_assert!(schedule.due_ns(count) >= start_ns + span_ns);
        }
    }
}
