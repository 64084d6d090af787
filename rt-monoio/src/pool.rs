//! Threads for what blocks: one bounded pool per process.
//!
//! monoio's own pool has no bound on its queue. This one runs at most [`MAX_THREADS`] jobs at a
//! time and holds at most [`MAX_QUEUED`] more; who comes later waits for room. Threads start on
//! demand and end after ten idle seconds.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use rt_abstract::TaskPanicked;

use crate::task::panicked;

const MAX_THREADS: usize = 16;
const MAX_QUEUED: usize = 1024;
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

static POOL: Pool = Pool {
    state: Mutex::new(State { jobs: VecDeque::new(), waiting: Vec::new(), threads: 0, idle: 0 }),
    more: Condvar::new(),
};

struct Pool {
    state: Mutex<State>,
    more: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    /// Tasks that found the queue full; all are woken when one job leaves it.
    waiting: Vec<Waker>,
    threads: usize,
    idle: usize,
}

/// Where a job leaves its result, and who waits for it.
struct Outcome<T> {
    result: Option<Result<T, TaskPanicked>>,
    waiting: Option<Waker>,
}

/// Runs `f` on a thread of the pool. Dropped while pending, `f` may still run.
pub(crate) async fn run<F, T>(f: F) -> Result<T, TaskPanicked>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let outcome = Arc::new(Mutex::new(Outcome { result: None, waiting: None }));
    let theirs = outcome.clone();
    let mut job: Option<Job> = Some(Box::new(move || {
        let result = catch_unwind(AssertUnwindSafe(f)).map_err(panicked);
        let waker = {
            let mut theirs = lock(&theirs);
            theirs.result = Some(result);
            theirs.waiting.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }));
    poll_fn(|cx| POOL.poll_submit(&mut job, cx)).await;
    poll_fn(|cx| {
        let mut outcome = lock(&outcome);
        match outcome.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                outcome.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}

/// [`run`] for file work, whose panics are not expected.
pub(crate) async fn run_io<F, T>(f: F) -> io::Result<T>
where
    F: FnOnce() -> io::Result<T> + Send + 'static,
    T: Send + 'static,
{
    run(f).await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}

impl Pool {
    fn poll_submit(&'static self, job: &mut Option<Job>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.jobs.len() >= MAX_QUEUED {
            state.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        state.jobs.extend(job.take());
        if state.idle >= state.jobs.len() {
            self.more.notify_one();
        } else if state.threads < MAX_THREADS {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
        Poll::Ready(())
    }

    fn start_thread(&'static self) {
        let thread = thread::Builder::new().name("gearbox-blocking".into());
        if thread.spawn(|| self.work()).is_ok() {
            return;
        }
        // No new thread to be had: the others get to the job, and if there is none this thread
        // has to do it, late being better than never.
        let mut state = lock(&self.state);
        state.threads -= 1;
        if state.threads == 0 {
            let jobs = std::mem::take(&mut state.jobs);
            drop(state);
            jobs.into_iter().for_each(|job| job());
        }
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                waiting.into_iter().for_each(Waker::wake);
                job();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let (woken, wait) =
                self.more.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if wait.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
