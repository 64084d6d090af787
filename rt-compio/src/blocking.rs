//! Blocking work, on a pool of threads that all cores share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use compio::BufResult;
use compio::buf::IntoInner;
use compio::driver::op::Asyncify;
use rt_abstract::TaskPanicked;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::task::{panicked, spawn_uncounted};

/// How many blocking calls of one core run at the same time; further ones wait in order.
pub(crate) const PER_CORE: usize = 32;

/// Threads of the pool. compio spins on the core's own thread when it finds none free, and a
/// thread is free only a moment after its result is seen: hence twice what can be in use.
pub(crate) const fn pool_threads(cores: usize) -> usize {
    2 * PER_CORE * cores
}

/// Runs `f` on the pool. It starts at once and runs to its end whether or not anybody waits.
pub(crate) fn run<F, T>(f: F) -> impl Future<Output = Result<T, TaskPanicked>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let task = spawn_uncounted(async move {
        let _permit = permit().await;
        let op = Asyncify::new(move || {
            leave_core();
            BufResult(Ok(0), catch_unwind(AssertUnwindSafe(f)))
        });
        let BufResult(_, op) = compio::runtime::submit(op).await;
        op.into_inner().map_err(panicked)
    });
    async move { task.await.flatten() }
}

/// A place among the blocking calls of this core.
pub(crate) struct Permit(());

/// Waits for a place, in order.
pub(crate) fn permit() -> impl Future<Output = Permit> {
    Enter { place: None }
}

/// Remembers the CPUs of the calling thread, which the cores are about to be pinned away from.
pub(crate) fn remember_cpus() {
    if let Ok(cpus) = sched_getaffinity(None) {
        let _ = ALL_CPUS.set(cpus);
    }
}

static ALL_CPUS: OnceLock<CpuSet> = OnceLock::new();

thread_local! {
    static GATE: RefCell<Gate> = const { RefCell::new(Gate { taken: 0, waiting: VecDeque::new() }) };
    static ON_ITS_CORE: Cell<bool> = const { Cell::new(true) };
}

/// Lets a pool thread, which inherits the pinning of the core that started it, run anywhere.
fn leave_core() {
    if ON_ITS_CORE.replace(false)
        && let Some(cpus) = ALL_CPUS.get()
    {
        let _ = sched_setaffinity(None, cpus); // slower, but not wrong, without
    }
}

struct Gate {
    taken: usize,
    waiting: VecDeque<Rc<Place>>,
}

/// One who waits.
struct Place {
    granted: Cell<bool>,
    waker: RefCell<Waker>,
}

struct Enter {
    place: Option<Rc<Place>>,
}

impl Future for Enter {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        if let Some(place) = &self.place {
            if !place.granted.get() {
                place.waker.borrow_mut().clone_from(cx.waker());
                return Poll::Pending;
            }
            self.place = None;
            return Poll::Ready(Permit(()));
        }
        GATE.with_borrow_mut(|gate| {
            if gate.taken < PER_CORE {
                gate.taken += 1;
                return Poll::Ready(Permit(()));
            }
            let place =
                Rc::new(Place { granted: Cell::new(false), waker: cx.waker().clone().into() });
            gate.waiting.push_back(place.clone());
            self.place = Some(place);
            Poll::Pending
        })
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        if self.place.take().is_some_and(|place| place.granted.get()) {
            drop(Permit(())); // granted, but nobody came for it: the next one's
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = GATE.try_with(|gate| {
            let mut gate = gate.borrow_mut();
            while let Some(place) = gate.waiting.pop_front() {
                // The other reference is the waiting future's.
                if Rc::strong_count(&place) > 1 {
                    return Some(place);
                }
            }
            gate.taken -= 1;
            None
        });
        if let Ok(Some(place)) = next {
            place.granted.set(true);
            place.waker.borrow().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(enter: &mut Enter) -> Option<Permit> {
        match Pin::new(enter).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn places_are_granted_in_order_and_none_is_lost() {
        let mut permits: Vec<_> =
            (0..PER_CORE).map(|_| poll(&mut Enter { place: None }).expect("free")).collect();
        let mut waiting: Vec<_> = (0..4).map(|_| Enter { place: None }).collect();
        assert!(waiting.iter_mut().all(|enter| poll(enter).is_none()));
        drop(waiting.remove(0)); // gave up before its turn
        permits.pop();
        drop(waiting.remove(0)); // gave up after its turn had come
        assert!(poll(&mut waiting[1]).is_none());
        let first = poll(&mut waiting[0]).expect("its turn");
        drop(first);
        let second = poll(&mut waiting[1]).expect("its turn");
        drop((second, permits, waiting));
        assert_eq!(GATE.with_borrow(|gate| (gate.taken, gate.waiting.len())), (0, 0));
    }
}
