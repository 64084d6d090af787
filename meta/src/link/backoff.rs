//! Pauses between attempts: longer each time, and never the same on two nodes.

use std::marker::PhantomData;
use std::time::Duration;

use rt_abstract::Runtime;

/// Doubling pauses, each cut by a random part of up to a half.
#[derive(Debug)]
pub(super) struct Backoff<R> {
    min: Duration,
    max: Duration,
    next: Duration,
    runtime: PhantomData<fn() -> R>,
}

impl<R: Runtime> Backoff<R> {
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min, runtime: PhantomData }
    }

    /// Begins with the shortest pause again.
    pub(super) fn reset(&mut self) {
        self.next = self.min;
    }

    /// The next pause.
    pub(super) fn next(&mut self) -> Duration {
        let mut random = [0; 2];
        R::fill_random(&mut random);
        let full = self.next.min(self.max);
        self.next = full.saturating_mul(2).min(self.max);
        let cut = full.as_secs_f64() / 2.0 * f64::from(u16::from_le_bytes(random)) / 65_536.0;
        full.saturating_sub(Duration::from_secs_f64(cut))
    }
}
