//! One thread, one executor and one ring per core.

use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use compio::driver::AsyncifyPool;
use compio::runtime::Runtime;
use rt_abstract::{Core, Pinning, RunOptions, Scheduler, TaskPanicked, os};

use crate::driver::{self, Driver};
use crate::{blocking, task};

/// How often an ending core turns its loop, so that the kernel gets done with what is cancelled.
const LAST_TURNS: usize = 16;

pub(crate) fn run<F, Fut, T>(options: &RunOptions, main: F) -> io::Result<Vec<T>>
where
    F: Fn(Core) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let driver = check(options)?;
    if options.pinning != Pinning::None {
        blocking::remember_cpus();
    }
    let pool = driver::pool(blocking::pool_threads(options.cores));
    let main = Arc::new(main);
    let (ready_sender, ready) = mpsc::channel();
    let mut starts = Vec::new();
    let mut threads = Vec::new();
    let mut failure = None;
    for index in 0..options.cores {
        let (start_sender, start) = mpsc::channel::<()>();
        let (options, pool, main) = (options.clone(), pool.clone(), main.clone());
        let ready = ready_sender.clone();
        let thread = move || {
            let runtime = match prepare(&options, driver, pool, index) {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return None;
                }
            };
            let _ = ready.send(Ok(()));
            drop(ready);
            // An error: another core could not start, so none does.
            start.recv().ok()?;
            let core = Core { index, count: options.cores };
            Some(run_core(runtime, move || main(core)))
        };
        match thread::Builder::new().name(format!("gearbox-core-{index}")).spawn(thread) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
        starts.push(start_sender);
    }
    drop(ready_sender);
    let mut prepared = 0;
    while let Ok(result) = ready.recv() {
        match result {
            Ok(()) => prepared += 1,
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    // All or none: cores that run wait for each other's messages.
    if prepared == options.cores {
        for start in &starts {
            let _ = start.send(());
        }
    }
    drop(starts);
    let mut results = Vec::with_capacity(options.cores);
    for (index, thread) in threads.into_iter().enumerate() {
        match thread.join().map_err(task::panicked) {
            Ok(Some(Ok(result))) => results.push(result),
            Ok(None) => {} // was not started
            Ok(Some(Err(panic))) | Err(panic) => {
                let error = io::Error::other(format!("main of core {index}: {panic}"));
                failure = failure.or(Some(error));
            }
        }
    }
    failure.map_or(Ok(results), Err)
}

/// Runs one future on the calling thread. compio polls it in every turn of the loop.
pub(crate) fn block_on<F: Future>(options: &RunOptions, future: F) -> io::Result<F::Output> {
    let driver = check(options)?;
    let pool = driver::pool(blocking::pool_threads(1));
    let runtime = build(options, driver, pool, 0)?;
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(future)));
    end(&runtime);
    result.map_err(|panic| io::Error::other(task::panicked(panic)))
}

fn check(options: &RunOptions) -> io::Result<Driver> {
    if options.cores == 0 {
        return Err(io::Error::new(ErrorKind::InvalidInput, "a run needs at least one core"));
    }
    if options.scheduler != Scheduler::ThreadPerCore {
        return Err(io::Error::new(
            ErrorKind::Unsupported,
            format!("compio knows no {} scheduler: tasks stay on their core", options.scheduler),
        ));
    }
    driver::choose(options)
}

fn prepare(
    options: &RunOptions,
    driver: Driver,
    pool: AsyncifyPool,
    index: usize,
) -> io::Result<Runtime> {
    os::pin_thread(&options.pinning, index)?;
    build(options, driver, pool, index)
}

fn build(
    options: &RunOptions,
    driver: Driver,
    pool: AsyncifyPool,
    index: usize,
) -> io::Result<Runtime> {
    driver::build(driver, options.ring_entries, pool).map_err(|error| {
        let text = format!("core {index} has no ring of {} entries: {error}", options.ring_entries);
        io::Error::new(error.kind(), text)
    })
}

fn run_core<F, Fut, T>(runtime: Runtime, main: F) -> Result<T, TaskPanicked>
where
    F: FnOnce() -> Fut + 'static,
    Fut: Future<Output = T> + 'static,
    T: 'static,
{
    // As a task of its own, because compio polls what it blocks on in every turn of the loop.
    let result =
        runtime.block_on(async { task::spawn_uncounted(async move { main().await }).await });
    end(&runtime);
    result
}

/// Drops the tasks that are left and lets the kernel finish with their buffers.
///
/// Dropping the runtime alone would close the ring and free the buffers at once, while the kernel
/// takes back what is pending only some time after the close.
fn end(runtime: &Runtime) {
    struct Ended;
    // compio drops all tasks, on a runtime that lives on, only when what it blocks on panics.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async { resume_unwind(Box::new(Ended)) })
    }));
    for _ in 0..LAST_TURNS {
        runtime.poll_with(Some(Duration::ZERO));
    }
}
