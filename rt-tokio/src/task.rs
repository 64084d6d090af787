//! Tasks, and work for the blocking pool.

use std::any::Any;
use std::fmt;
use std::future::{Future, pending};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};

use rt_abstract::{MaybeSend, TaskPanicked, if_single_threaded};
use tokio::task::JoinError;

/// Waits for a task; dropping it detaches the task.
pub struct JoinHandle<T> {
    inner: tokio::task::JoinHandle<T>,
}

/// Starts a task on the calling core's runtime.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + MaybeSend + 'static,
    F::Output: MaybeSend + 'static,
{
    let inner = if_single_threaded!({
        tokio::task::spawn_local(future)
    } else {
        tokio::spawn(future)
    });
    JoinHandle { inner }
}

/// Runs `f` on the blocking pool.
pub(crate) async fn spawn_blocking<F, T>(f: F) -> Result<T, TaskPanicked>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    tokio::task::spawn_blocking(f).await.map_err(task_panicked)
}

/// Runs `f`, which does not panic of its own, on the blocking pool.
pub(crate) async fn offload<F, T>(f: F) -> T
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    match tokio::task::spawn_blocking(f).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(payload) => resume_unwind(payload),
            // The pool refuses work only while the runtime goes down, and the waiting task with
            // it: there is nobody left to answer to.
            Err(_) => pending().await,
        },
    }
}

/// The message of a panic, where it was a string.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "(not a string)".to_owned()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskPanicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.inner).poll(cx).map_err(task_panicked)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JoinHandle").field(&self.inner.id()).finish()
    }
}

fn task_panicked(error: JoinError) -> TaskPanicked {
    TaskPanicked(match error.try_into_panic() {
        Ok(payload) => panic_message(&*payload),
        Err(_) => "the task was dropped together with its runtime".to_owned(),
    })
}
