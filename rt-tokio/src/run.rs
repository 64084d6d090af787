//! Starting and stopping the executors.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use rt_abstract::{Core, MaybeSend, RunOptions, Scheduler, if_single_threaded, os};
use tokio::runtime::{Builder, Handle};

use crate::task::panic_message;

/// Threads that run blocking work, for each core. Few, because what blocks here is the disk.
pub const BLOCKING_THREADS_PER_CORE: usize = 8;

/// Tasks of its own that a busy core runs for each one that another thread woke. tokio's 31 let a
/// thousand answers from the raft thread wait for each other beside tasks that compute.
const TURNS_PER_REMOTE_WAKE: u32 = 4;

/// How long the end of a runtime waits for blocking work that is still running.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// Whether this build has the work-stealing scheduler.
pub(crate) const HAS_WORK_STEALING: bool = if_single_threaded!({ false } else { true });

thread_local! {
    /// On the threads of a work-stealing runtime: how many of its tasks are mains.
    static MAINS: RefCell<Option<Arc<AtomicUsize>>> = const { RefCell::new(None) };
}

/// Runs `main` once per core; see [`rt_abstract::Runtime::run_cores`].
pub(crate) fn run_cores<F, Fut, T>(options: &RunOptions, main: F) -> io::Result<Vec<T>>
where
    F: Fn(Core) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = T> + MaybeSend + 'static,
    T: Send + 'static,
{
    check(options)?;
    match options.scheduler {
        Scheduler::ThreadPerCore => thread_per_core(options, main),
        Scheduler::WorkStealing => if_single_threaded!({
            Err(no_work_stealing())
        } else {
            work_stealing(options.cores, main)
        }),
    }
}

/// Runs one future on the calling thread; see [`rt_abstract::Runtime::block_on`].
pub(crate) fn block_on<F: Future>(options: &RunOptions, future: F) -> io::Result<F::Output> {
    check(options)?;
    let ended = match options.scheduler {
        Scheduler::ThreadPerCore => {
            let runtime = current_thread()?;
            let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(future)));
            runtime.shutdown_timeout(SHUTDOWN_LIMIT);
            ended
        }
        Scheduler::WorkStealing => if_single_threaded!({
            return Err(no_work_stealing())
        } else {{
            // None of its tasks is a main.
            let runtime = multi_thread(options.cores, &Arc::new(AtomicUsize::new(0)))?;
            let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(future)));
            runtime.shutdown_timeout(SHUTDOWN_LIMIT);
            ended
        }}),
    };
    ended.map_err(|payload| io::Error::other(format!("panicked: {}", panic_message(&*payload))))
}

/// Tasks that are alive on the calling runtime, without the mains.
pub(crate) fn live_tasks() -> usize {
    let mains =
        MAINS.with_borrow(|mains| mains.as_ref().map_or(0, |mains| mains.load(Ordering::Acquire)));
    Handle::current().metrics().num_alive_tasks().saturating_sub(mains)
}

/// One thread with one current-thread runtime per core.
fn thread_per_core<F, Fut, T>(options: &RunOptions, main: F) -> io::Result<Vec<T>>
where
    F: Fn(Core) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let main = Arc::new(main);
    let (ready, is_ready) = mpsc::channel();
    let mut gates = Vec::new();
    let mut threads = Vec::new();
    let mut started = Ok(());
    for index in 0..options.cores {
        let (gate, opened) = mpsc::channel();
        let start = Start { ready: ready.clone(), opened };
        let core = Core { index, count: options.cores };
        let (pinning, main) = (options.pinning.clone(), main.clone());
        let thread = thread::Builder::new().name(format!("gearbox-core-{index}"));
        let spawned = thread
            .spawn(move || one_core(|| os::pin_thread(&pinning, index), start, || main(core)));
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => started = Err(error),
        }
        gates.push(gate);
    }
    drop(ready);
    // No main begins before all cores can: one that fails alone would leave the others running.
    for result in &is_ready {
        started = started.and(result);
    }
    if started.is_ok() {
        for gate in &gates {
            let _ = gate.send(()); // a thread that is gone reports through its join
        }
    }
    drop(gates);
    let ends: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    started?;
    let mut results = Vec::with_capacity(ends.len());
    for (index, end) in ends.into_iter().enumerate() {
        match end {
            Ok(Some(result)) => results.push(result),
            Ok(None) => return Err(io::Error::other(format!("core {index} did not start"))),
            Err(payload) => return Err(core_panicked(index, &panic_message(&*payload))),
        }
    }
    Ok(results)
}

/// How a core's thread reports that it could begin, and learns whether it may.
struct Start {
    ready: Sender<io::Result<()>>,
    opened: Receiver<()>,
}

/// The life of one core's thread; `None` when some core could not begin.
fn one_core<Fut: Future + 'static>(
    prepare: impl FnOnce() -> io::Result<()>,
    start: Start,
    main: impl FnOnce() -> Fut,
) -> Option<Fut::Output> {
    let built = prepare().and_then(|()| current_thread());
    let (runtime, result) = match built {
        Ok(runtime) => (Some(runtime), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let _ = start.ready.send(result);
    drop(start.ready);
    let runtime = runtime?;
    start.opened.recv().ok()?;
    // Caught here so that the runtime ends in an orderly way also under a panic.
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(async { main().await })));
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    match ended {
        Ok(result) => Some(result),
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// The executor of a thread of its own.
fn current_thread() -> io::Result<OneThread> {
    let mut builder = Builder::new_current_thread();
    builder
        .enable_io()
        .enable_time()
        .thread_name("gearbox-blocking")
        .max_blocking_threads(BLOCKING_THREADS_PER_CORE)
        .global_queue_interval(TURNS_PER_REMOTE_WAKE);
    if_single_threaded!({
        builder.build_local(tokio::runtime::LocalOptions::default())
    } else {
        builder.build()
    })
}

if_single_threaded!({
    type OneThread = tokio::runtime::LocalRuntime;

    fn no_work_stealing() -> io::Error {
        unsupported("work-stealing needs futures that are Send: build with the tokio backend alone")
    }
} else {
    type OneThread = tokio::runtime::Runtime;

    /// One executor on `cores` threads, of whose tasks `mains` are not counted as such.
    fn multi_thread(cores: usize, mains: &Arc<AtomicUsize>) -> io::Result<tokio::runtime::Runtime> {
        let started = AtomicUsize::new(0);
        Builder::new_multi_thread()
            .enable_io()
            .enable_time()
            .worker_threads(cores)
            .max_blocking_threads(BLOCKING_THREADS_PER_CORE * cores)
            .thread_name_fn(move || {
                // The workers are named first, while the runtime is built.
                match started.fetch_add(1, Ordering::Relaxed) {
                    worker if worker < cores => format!("gearbox-core-{worker}"),
                    _ => "gearbox-blocking".to_owned(),
                }
            })
            .on_thread_start({
                let mains = mains.clone();
                move || MAINS.set(Some(mains.clone()))
            })
            .build()
    }

    /// One multi-thread runtime; the mains are tasks of it.
    fn work_stealing<F, Fut, T>(cores: usize, main: F) -> io::Result<Vec<T>>
    where
        F: Fn(Core) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let mains = Arc::new(AtomicUsize::new(cores));
        let runtime = multi_thread(cores, &mains)?;
        let main = Arc::new(main);
        let tasks: Vec<_> = (0..cores)
            .map(|index| {
                let (main, alive) = (main.clone(), Alive(mains.clone()));
                runtime.spawn(async move {
                    let _alive = alive;
                    main(Core { index, count: cores }).await
                })
            })
            .collect();
        let ends = runtime.block_on(async move {
            let mut ends = Vec::with_capacity(cores);
            for task in tasks {
                ends.push(task.await);
            }
            ends
        });
        runtime.shutdown_timeout(SHUTDOWN_LIMIT);
        let mut results = Vec::with_capacity(cores);
        for (index, end) in ends.into_iter().enumerate() {
            results.push(end.map_err(|error| match error.try_into_panic() {
                Ok(payload) => core_panicked(index, &panic_message(&*payload)),
                Err(error) => io::Error::other(error),
            })?);
        }
        Ok(results)
    }

    /// Counts a main as alive.
    struct Alive(Arc<AtomicUsize>);

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Release);
        }
    }
});

fn check(options: &RunOptions) -> io::Result<()> {
    if options.cores == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "at least one core has to run"));
    }
    if options.require_io_uring {
        return Err(unsupported("the tokio backend uses epoll; io_uring needs monoio or compio"));
    }
    Ok(())
}

fn core_panicked(index: usize, message: &str) -> io::Error {
    io::Error::other(format!("core {index} panicked: {message}"))
}

fn unsupported(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
}
