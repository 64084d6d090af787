//! Monotonic time as a plain number, so that it can be passed in, compared and simulated.

use std::marker::PhantomData;
use std::ops::{Add, Sub};
use std::time::Duration;

use crate::runtime::Runtime;

/// A point on a runtime's monotonic clock, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    nanos: u64,
}

/// Ticks at a fixed period; made by `Runtime::interval`.
#[derive(Debug)]
pub struct Interval<R> {
    period: Duration,
    next: Instant,
    runtime: PhantomData<R>,
}

impl Instant {
    /// The point `nanos` nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// Milliseconds since the clock's start.
    pub const fn as_millis(self) -> u64 {
        self.nanos / 1_000_000
    }

    /// The time from `earlier` to `self`, zero when `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self { nanos: self.nanos.saturating_add(nanos) }
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

impl<R: Runtime> Interval<R> {
    pub(crate) fn new(period: Duration) -> Self {
        assert!(!period.is_zero(), "an interval needs a period");
        Self { period, next: R::now() + period, runtime: PhantomData }
    }

    /// Waits for the next tick and returns the time that it was due.
    pub async fn tick(&mut self) -> Instant {
        let now = R::now();
        if self.next > now {
            R::sleep(self.next - now).await;
        }
        let due = self.next;
        let now = R::now();
        self.next = due + self.period;
        if self.next <= now {
            let missed = (now - due).as_nanos() / self.period.as_nanos();
            self.next = due + self.period * u32::try_from(missed + 1).unwrap_or(u32::MAX);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_never_go_negative() {
        let early = Instant::from_nanos(5);
        let late = early + Duration::from_nanos(7);
        assert_eq!(late - early, Duration::from_nanos(7));
        assert_eq!(early - late, Duration::ZERO);
        assert_eq!(
            Instant::from_nanos(u64::MAX) + Duration::from_secs(1),
            Instant::from_nanos(u64::MAX)
        );
    }
}
