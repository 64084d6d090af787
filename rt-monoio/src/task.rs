//! Tasks: panics stay inside, handles detach, and a core ends with all of its tasks.
//!
//! monoio leaves a task that waits for I/O behind when its runtime is dropped: the task holds the
//! driver, and the driver the task. So each task is entered in its thread's list with its waker;
//! at the end of a core all of them are woken once more and give up their futures ([`drain`]).

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rt_abstract::TaskPanicked;
use slab::Slab;

use crate::{buf, turn};

/// How many times the list of tasks is woken until all have gone: a future's end may start tasks.
const DRAIN_ROUNDS: usize = 64;

/// How many milliseconds a core waits for the kernel to give buffers back at its end.
const SETTLE_MS: usize = 1000;

thread_local! {
    static TASKS: RefCell<Slab<Option<Waker>>> = const { RefCell::new(Slab::new()) };
    static ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Waits for a task of [`crate::Monoio`]; dropping it detaches the task.
pub struct JoinHandle<T> {
    inner: monoio::task::JoinHandle<Result<T, TaskPanicked>>,
}

pin_project_lite::pin_project! {
    struct Task<F> {
        seat: Seat,
        #[pin]
        future: Option<F>,
    }
}

/// A place in the list of tasks.
struct Seat {
    key: u32,
    registered: bool,
}

pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let key = TASKS.with(|tasks| tasks.borrow_mut().insert(None));
    // Every task takes far more than a byte, so their number fits.
    let key = u32::try_from(key).unwrap_or(Seat::GONE);
    let task = Task { seat: Seat { key, registered: false }, future: Some(future) };
    JoinHandle { inner: monoio::spawn(task) }
}

pub(crate) fn live() -> usize {
    TASKS.with(|tasks| tasks.borrow().len())
}

/// Runs the future of a core to its end, panic or not, and then ends the core's tasks.
pub(crate) async fn run_main<F: Future>(
    main: impl FnOnce() -> F,
) -> Result<F::Output, TaskPanicked> {
    let result = match catch_unwind(AssertUnwindSafe(main)) {
        Ok(future) => {
            let mut future = Box::pin(future);
            let result = std::future::poll_fn(|cx| {
                match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
                    Ok(polled) => polled.map(Ok),
                    Err(panic) => Poll::Ready(Err(panicked(panic))),
                }
            })
            .await;
            match catch_unwind(AssertUnwindSafe(|| drop(future))) {
                Ok(()) => result,
                Err(panic) => result.and(Err(panicked(panic))),
            }
        }
        Err(panic) => Err(panicked(panic)),
    };
    drain().await;
    result
}

/// Whether nothing of this thread is left that the driver holds. If not, the driver must outlive
/// the process: the kernel may still write into buffers that it would free.
pub(crate) fn settled() -> bool {
    let settled = live() == 0 && buf::lent() == 0;
    if !settled {
        std::mem::forget(TASKS.take());
    }
    settled
}

/// What a panic had to say.
pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> TaskPanicked {
    let text = match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(_) => "a value that is no string".to_owned(),
        },
    };
    TaskPanicked(text)
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskPanicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

impl<F: Future> Future for Task<F> {
    type Output = Result<F::Output, TaskPanicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let ending = ENDING.get();
        if !ending {
            this.seat.register(cx);
        }
        let result =
            match catch_unwind(AssertUnwindSafe(|| match this.future.as_mut().as_pin_mut() {
                Some(future) if !ending => future.poll(cx).map(Ok),
                _ => Poll::Ready(Err(TaskPanicked("its core has ended".to_owned()))),
            })) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(result)) => result,
                Err(panic) => Err(panicked(panic)),
            };
        // A destructor that panics would otherwise end monoio's thread.
        let dropped = catch_unwind(AssertUnwindSafe(|| this.future.set(None)));
        this.seat.leave();
        Poll::Ready(match dropped {
            Ok(()) => result,
            Err(panic) => result.and(Err(panicked(panic))),
        })
    }
}

impl Seat {
    const GONE: u32 = u32::MAX;

    /// monoio gives a task one waker for life.
    fn register(&mut self, cx: &Context<'_>) {
        if !self.registered {
            self.registered = true;
            TASKS.with(|tasks| {
                if let Some(seat) = tasks.borrow_mut().get_mut(self.key as usize) {
                    *seat = Some(cx.waker().clone());
                }
            });
        }
    }

    fn leave(&mut self) {
        let key = std::mem::replace(&mut self.key, Self::GONE);
        let waker = TASKS.try_with(|tasks| tasks.borrow_mut().try_remove(key as usize));
        // After the borrow: the last waker of a task takes the task with it.
        drop(waker);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Ends all tasks of this thread and waits until the kernel has given their buffers back.
async fn drain() {
    ENDING.set(true);
    for _ in 0..DRAIN_ROUNDS {
        if live() == 0 {
            break;
        }
        let wakers: Vec<Waker> = TASKS
            .with(|tasks| tasks.borrow().iter().filter_map(|(_, waker)| waker.clone()).collect());
        wakers.into_iter().for_each(Waker::wake);
        turn::turn().await;
    }
    // The first turn submits the cancellations of what was dropped, the second sees them done.
    turn::turn().await;
    turn::turn().await;
    for _ in 0..SETTLE_MS {
        if buf::lent() == 0 {
            break;
        }
        monoio::time::sleep(Duration::from_millis(1)).await;
    }
    ENDING.set(false);
}
