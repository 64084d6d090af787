//! Tasks, sleeps, and what blocks.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::RngExt;
use rt_abstract::{MaybeSend, Shared, TaskPanicked};

use crate::config::nanos;
use crate::world::events::{Event, Key};
use crate::world::tasks::{Place, here};
use crate::world::{State, try_with, with};

/// What a blocking function takes, at least and at most, in nanoseconds.
const BLOCKING_NS: (u64, u64) = (10_000, 300_000);

/// Waits for a task; dropping it detaches the task.
pub struct JoinHandle<T> {
    slot: Slot<T>,
}

/// Where a task leaves its result.
pub(crate) struct Slot<T>(Shared<Inner<T>>);

struct Inner<T> {
    result: Option<Result<T, TaskPanicked>>,
    ended: bool,
    waiting: Option<Waker>,
}

/// Starts a task where the calling code runs.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + MaybeSend + 'static,
    F::Output: MaybeSend + 'static,
{
    let place = here();
    let slot = Slot::new();
    let work = keep_result(future, slot.clone(), |_, _| ());
    // A task that is dropped may still spawn while its node dies: that one never runs.
    let mut work = Some(work);
    with(|state| {
        if state.is_alive(place.node, place.boot)
            && let Some(work) = work.take()
        {
            state.tasks.add(place, false, Box::pin(work));
        }
    });
    JoinHandle { slot }
}

/// Runs `future`, keeps its result or its panic, then calls `ended`.
pub(crate) async fn keep_result<F: Future>(
    future: F,
    slot: Slot<F::Output>,
    ended: impl FnOnce(&mut State, Place),
) {
    let guard = Guard(slot);
    let place = here();
    let result = {
        let mut future = pin!(future);
        poll_fn(|cx| catch(|| future.as_mut().poll(cx))).await
    };
    guard.0.put(result);
    with(|state| ended(state, place));
}

/// A task that is dropped before its end says so.
struct Guard<T>(Slot<T>);

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        let text = "the task was dropped together with its core".to_owned();
        self.0.put(Err(TaskPanicked(text)));
    }
}

fn catch<T>(poll: impl FnOnce() -> Poll<T>) -> Poll<Result<T, TaskPanicked>> {
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(panic) => Poll::Ready(Err(TaskPanicked(panic_message(&*panic)))),
    }
}

/// The message of a panic, where it was a string.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(not a string)".to_owned())
}

/// Runs `f` on the calling thread, a little later.
pub(crate) async fn spawn_blocking<F, T>(f: F) -> Result<T, TaskPanicked>
where
    F: FnOnce() -> T,
{
    let (min, max) = BLOCKING_NS;
    let takes_ns = with(|state| state.random.schedule.random_range(min..=max));
    Sleep::for_ns(takes_ns).await;
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| TaskPanicked(panic_message(&*panic)))
}

/// A timer; dropping it gives it up.
pub(crate) struct Sleep {
    at: When,
}

enum When {
    /// Not asked for yet; nanoseconds, and whether it is a timer, which may be late.
    In(u64, bool),
    Planned(Key),
    Over,
}

impl Sleep {
    pub fn new(duration: Duration) -> Self {
        Self { at: When::In(nanos(duration), true) }
    }

    /// Exactly so long.
    pub fn for_ns(ns: u64) -> Self {
        Self { at: When::In(ns, false) }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let at = with(|state| match self.at {
            When::In(ns, timer) => {
                let at = if timer { state.timer_at(ns) } else { state.now_ns + ns };
                When::Planned(state.events.plan(at, Event::Wake(cx.waker().clone())))
            }
            When::Planned(key) if state.events.rewake(key, cx.waker()) => When::Planned(key),
            When::Planned(_) | When::Over => When::Over,
        });
        self.at = at;
        if matches!(self.at, When::Over) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let When::Planned(key) = self.at {
            try_with(|state| state.events.cancel(key));
        }
    }
}

/// Lets everybody else who is ready run first.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        with(|state| state.tasks.yielded.push(cx.waker().clone()));
        Poll::Pending
    })
    .await
}

impl<T> Slot<T> {
    pub fn new() -> Self {
        Self(Shared::new(Inner { result: None, ended: false, waiting: None }))
    }

    /// The first result stays.
    pub fn put(&self, result: Result<T, TaskPanicked>) {
        let waiting = self.0.with(|inner| {
            if inner.ended {
                return None;
            }
            inner.ended = true;
            inner.result = Some(result);
            inner.waiting.take()
        });
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    pub fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Result<T, TaskPanicked>> {
        self.0.with(|inner| match inner.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                inner.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        })
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(slot: Slot<T>) -> Self {
        Self { slot }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskPanicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.slot.poll_take(cx)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinHandle")
    }
}
