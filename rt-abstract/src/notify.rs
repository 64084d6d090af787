//! A wake-up for one waiting task.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use atomic_waker::AtomicWaker;

/// Remembers one wake-up for one waiting task: any number of [`Notify::notify`] calls before the
/// wait end it once. Works from other threads on every backend.
#[derive(Debug, Default)]
pub struct Notify {
    set: AtomicBool,
    waker: AtomicWaker,
}

impl Notify {
    /// A notify that nobody has called yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the waiting task, or the next one that waits.
    #[inline]
    pub fn notify(&self) {
        if !self.set.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Waits for a call of `notify` since the last wait ended. Only one task may wait at a time;
    /// of two, the earlier one sleeps on.
    pub async fn notified(&self) {
        poll_fn(|cx| {
            if self.set.swap(false, Ordering::AcqRel) {
                return Poll::Ready(());
            }
            self.waker.register(cx.waker());
            if self.set.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await
    }
}
