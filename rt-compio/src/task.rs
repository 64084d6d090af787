//! Tasks: spawning, joining, counting, yielding.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use compio::runtime::JoinError;
use rt_abstract::TaskPanicked;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
}

/// Waits for a task; dropping it detaches the task.
#[derive(Debug)]
pub struct JoinHandle<T> {
    /// `None` only while it is being dropped.
    task: Option<compio::runtime::JoinHandle<T>>,
}

/// A future that counts as a live task of its core until it is dropped.
struct Counted<F> {
    future: F,
    _live: Live,
}

struct Live;

/// Starts a task that [`live`] counts.
pub(crate) fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    LIVE.set(LIVE.get() + 1);
    spawn_uncounted(Counted { future, _live: Live })
}

/// Starts a task of the backend itself.
pub(crate) fn spawn_uncounted<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    JoinHandle { task: Some(compio::runtime::spawn(future)) }
}

/// Tasks of the calling core that have not ended.
pub(crate) fn live() -> usize {
    LIVE.get()
}

/// Goes to the end of the queue of ready tasks.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// What a panic said, where it said it in words.
pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> TaskPanicked {
    TaskPanicked(match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast_ref::<&'static str>()
            .map_or_else(|| "without a message".into(), |text| (*text).into()),
    })
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskPanicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(task) = &mut self.task else { unreachable!("only drop takes the task") };
        Pin::new(task).poll(cx).map_err(|error| match error {
            JoinError::Panicked(payload) => panicked(payload),
            JoinError::Cancelled => TaskPanicked("ended with its core".into()),
        })
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        // compio's handle would cancel the task.
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Not an async block, which would hold the future twice: as what it captured, and as what
        // it awaits.
        // SAFETY: `future` is pinned with the whole; nothing moves it, and Counted has no Drop.
        unsafe { self.map_unchecked_mut(|this| &mut this.future) }.poll(cx)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // A task's memory can outlive the thread-local's at the end of a thread.
        let _ = LIVE.try_with(|live| live.set(live.get() - 1));
    }
}
