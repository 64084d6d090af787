//! Proposers, and tasks that keep their executor busy, on an executor that stays for a group of
//! cases.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use meta::command::Command;
use meta::{Handle, Server};
use rt_abstract::{Receiver, RunOptions, Runtime, Sender, Shutdown, mailbox};

use super::figures::{Applied, Figures};

/// What a busy task computes between two turns.
const BUSY: Duration = Duration::from_micros(20);
/// Bytes that each proposal stores.
pub const VALUE_BYTES: usize = 64;

/// Proposals of each proposer in one run, at least.
const ROUNDS: u64 = 4;

/// The executor.
pub struct Load {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

/// Proposals to be made.
pub struct Work {
    /// Through which.
    pub handle: Handle,
    /// Watches the same node.
    pub applied: Arc<Applied>,
    /// Tasks that have one proposal under way each.
    pub proposers: usize,
    /// Tasks that compute meanwhile.
    pub busy: usize,
    /// Proposals in all.
    pub count: u64,
}

type Job = (Work, SyncSender<(Figures, Duration)>);

impl Load {
    /// Starts the executor; `server` is run on it too.
    pub fn start<R: Runtime>(options: &RunOptions, server: Option<Server>) -> Self {
        let (jobs, receiver) = mailbox([16]);
        let (options, once) = (options.clone(), Mutex::new(Some((receiver, server))));
        let thread = thread::spawn(move || {
            let done = R::run_cores(&options, move |core| {
                let mut once = once.lock().unwrap_or_else(PoisonError::into_inner);
                let of_first = if core.index == 0 { once.take() } else { None };
                async move {
                    if let Some((jobs, server)) = of_first {
                        carry_out::<R>(jobs, server).await;
                    }
                }
            });
            done.expect("the executor runs");
        });
        Self { jobs, thread }
    }

    /// Does it, adds its times to `figures`, and returns how long it took. When there is less to do
    /// than would keep all proposers occupied, it does more and returns a part of the time.
    pub fn run(&self, mut work: Work, figures: &mut Figures) -> Duration {
        let wanted = work.count;
        work.count = work.count.max(ROUNDS * work.proposers as u64);
        let count = work.count;
        let (done, outcome) = sync_channel(1);
        assert!(self.jobs.try_send(0, (work, done)).is_ok(), "one job at a time, and it is taken");
        let (times, took) = outcome.recv().expect("the executor runs");
        figures.merge(&times);
        figures.add_run(count, took);
        took.mul_f64(wanted as f64 / count as f64)
    }

    pub fn stop(self) {
        drop(self.jobs);
        self.thread.join().expect("the executor ends");
    }
}

async fn carry_out<R: Runtime>(mut jobs: Receiver<Job>, server: Option<Server>) {
    let stop = Shutdown::new();
    let server = server.map(|server| R::spawn(server.run::<R>(stop.clone())));
    let mut batch = Vec::new();
    while jobs.receive(&mut batch, 1).await > 0 {
        for (work, done) in batch.drain(..) {
            let _ = done.send(run::<R>(work).await);
        }
    }
    stop.trigger();
    if let Some(server) = server {
        server.await.expect("no panic").expect("the node does not fail");
    }
}

async fn run<R: Runtime>(work: Work) -> (Figures, Duration) {
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..work.busy).map(|_| R::spawn(compute::<R>(stop.clone()))).collect();
    let (work, next) = (Arc::new(work), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let proposers: Vec<_> = (0..work.proposers)
        .map(|proposer| R::spawn(propose(work.clone(), next.clone(), proposer)))
        .collect();
    let (mut figures, mut end) = (Figures::default(), start);
    for proposer in proposers {
        let (times, ended) = proposer.await.expect("a proposer does not panic");
        times.into_iter().for_each(|(answered, applied)| figures.add(answered, Some(applied)));
        end = end.max(ended);
    }
    stop.store(true, Ordering::Relaxed);
    for busy in busy {
        busy.await.expect("a busy task does not panic");
    }
    (figures, end - start)
}

/// Proposes one after the other until all proposers together have made enough.
async fn propose(
    work: Arc<Work>,
    next: Arc<AtomicU64>,
    proposer: usize,
) -> (Vec<(Duration, Duration)>, Instant) {
    let mut times = Vec::new();
    let mut end = Instant::now();
    while next.fetch_add(1, Ordering::Relaxed) < work.count {
        let command = Command::SetConfig {
            key: Applied::key(proposer),
            expected: None,
            value: Some(vec![b'x'; VALUE_BYTES]),
        };
        let start = Instant::now();
        let answer = work.handle.propose(vec![command]).await;
        end = Instant::now();
        answer.expect("the node answers");
        times.push((end - start, work.applied.since(proposer, start)));
    }
    (times, end)
}

async fn compute<R: Runtime>(stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        while begin.elapsed() < BUSY {
            std::hint::spin_loop();
        }
        R::yield_now().await;
    }
}
