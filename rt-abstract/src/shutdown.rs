//! One signal that everything that runs can wait for.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// A one-way switch, shared by all cores: once triggered it stays so.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    triggered: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Shutdown {
    /// A switch that is off.
    pub fn new() -> Self {
        Self::default()
    }

    /// Switches on and wakes all who wait. May be called from any thread, any number of times.
    pub fn trigger(&self) {
        self.inner.triggered.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether it is on.
    pub fn is_triggered(&self) -> bool {
        self.inner.triggered.load(Ordering::SeqCst)
    }

    /// Waits until it is on. Meant for a handful of long-lived tasks per core, not for one per
    /// connection: a wait that is dropped leaves its waker behind until the switch is used.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            let mut waiting = self.lock();
            // Read under the lock: a trigger in between would miss the waker pushed here.
            if self.is_triggered() {
                return Poll::Ready(());
            }
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn stays_on() {
        let shutdown = Shutdown::new();
        assert!(shutdown.wait().now_or_never().is_none());
        shutdown.clone().trigger();
        assert!(shutdown.is_triggered());
        assert!(shutdown.wait().now_or_never().is_some());
        shutdown.trigger();
    }
}
