//! One thread per core, each with a monoio runtime of its own.

use std::future::Future;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use rt_abstract::{Core, RunOptions, Scheduler, TaskPanicked, os};

use crate::driver::{self, Built, Plan};
use crate::task;
use crate::turn::TurnGuard;

pub(crate) fn run<F, Fut, T>(options: &RunOptions, main: F) -> io::Result<Vec<T>>
where
    F: Fn(Core) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let plan = check(options)?;
    let main = Arc::new(main);
    let gate = Arc::new(Gate::default());
    let (report, reports) = mpsc::channel();
    let mut threads = Vec::with_capacity(options.cores);
    let mut started = Ok(());
    for index in 0..options.cores {
        let core = Core { index, count: options.cores };
        let (main, gate) = (main.clone(), gate.clone());
        let (options, report) = (options.clone(), report.clone());
        let run = move || run_core(core, &options, plan, report, &gate, &*main);
        match thread::Builder::new().name(format!("gearbox-core-{index}")).spawn(run) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                started = Err(error);
                break;
            }
        }
    }
    drop(report);
    // A core that starts while another one cannot would wait for it for ever.
    for _ in 0..threads.len() {
        started = started.and(reports.recv().unwrap_or_else(|_| Err(ended())));
    }
    gate.open(started.is_ok());
    let ended: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
    started?;
    ended
        .into_iter()
        .enumerate()
        .map(|(index, thread)| {
            let result = thread
                .map_err(task::panicked)
                .and_then(|result| result.ok_or_else(|| TaskPanicked("it never ran".into()))?);
            result.map_err(|panicked| io::Error::other(format!("core {index}: {panicked}")))
        })
        .collect()
}

/// Runs one future on the calling thread.
pub(crate) fn block_on<F: Future>(options: &RunOptions, future: F) -> io::Result<F::Output> {
    let plan = check(options)?;
    let (mut runtime, turns) = prepare(plan, options.ring_entries)?;
    let result = runtime.block_on(async {
        let result = task::run_main(|| future).await;
        turns.remove().await;
        result
    });
    if !task::settled() {
        std::mem::forget(runtime);
    }
    result.map_err(io::Error::other)
}

/// Lets all cores start together, or none.
#[derive(Default)]
struct Gate {
    go: Mutex<Option<bool>>,
    opened: Condvar,
}

impl Gate {
    fn open(&self, go: bool) {
        *self.go.lock().unwrap_or_else(PoisonError::into_inner) = Some(go);
        self.opened.notify_all();
    }

    fn wait(&self) -> bool {
        let go = self.go.lock().unwrap_or_else(PoisonError::into_inner);
        let go = self.opened.wait_while(go, |go| go.is_none());
        go.unwrap_or_else(PoisonError::into_inner).unwrap_or(false)
    }
}

fn run_core<F, Fut, T>(
    core: Core,
    options: &RunOptions,
    plan: Plan,
    report: Sender<io::Result<()>>,
    gate: &Gate,
    main: &F,
) -> Option<Result<T, TaskPanicked>>
where
    F: Fn(Core) -> Fut,
    Fut: Future<Output = T>,
{
    let pinned = os::pin_thread(&options.pinning, core.index);
    let (prepared, outcome) = match pinned.and_then(|()| prepare(plan, options.ring_entries)) {
        Ok(prepared) => (Some(prepared), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // Nobody listens only if the caller's thread is gone, and then the gate stays shut as well.
    let _ = report.send(outcome);
    drop(report);
    let go = gate.wait();
    let (mut runtime, turns) = prepared?;
    let result = runtime.block_on(async {
        let result = match go {
            true => Some(task::run_main(|| main(core)).await),
            false => None,
        };
        turns.remove().await;
        result
    });
    if !task::settled() {
        std::mem::forget(runtime);
    }
    result
}

fn check(options: &RunOptions) -> io::Result<Plan> {
    if options.scheduler != Scheduler::ThreadPerCore {
        let text = format!("monoio has no {} scheduler", options.scheduler);
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    if options.cores == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "at least one core has to run"));
    }
    driver::plan(options)
}

fn prepare(plan: Plan, ring_entries: u32) -> io::Result<(Built, TurnGuard)> {
    let mut runtime = plan.build(ring_entries)?;
    let ring = matches!(plan, Plan::Ring(_));
    let turns = runtime.block_on(async { TurnGuard::install(ring) })?;
    Ok((runtime, turns))
}

fn ended() -> io::Error {
    io::Error::other("a core's thread ended before it could start")
}
