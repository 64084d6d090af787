//! What does it take to get from one core to another? One item at a time through two mailboxes, back
//! and forth, so that each hop wakes a core that sleeps; and a stream of items that is received in
//! batches: `cargo bench -p gearbox --bench mailbox`.
//!
//! The columns are those of the build. With `-- --test` everything runs once.

#![allow(missing_docs, reason = "a bench program")]

#[path = "metadata/column.rs"]
mod column;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use column::{Column, Visit, each_column};
use criterion::{Criterion, Throughput};
use rt_abstract::{MaybeSend, Receiver, RunOptions, Runtime, Sender, mailbox};

/// Items that a mailbox has room for, and that are received at once.
const ROOM: usize = 1024;
const BATCH: usize = 256;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    each_column(&mut Cases(&mut criterion));
    criterion.final_summary();
}

struct Cases<'a>(&'a mut Criterion);

impl Visit for Cases<'_> {
    fn visit<R: Runtime>(&mut self, column: &Column) {
        let options = RunOptions { cores: 2, ..column.options.clone() };
        let mut group = self.0.benchmark_group(format!("mailbox/{}", column.name));
        group.throughput(Throughput::Elements(1));
        group.bench_function("one hop at a time", |bencher| {
            bencher.iter_custom(|hops| one_at_a_time::<R>(&options, hops));
        });
        group.bench_function("a stream in batches", |bencher| {
            bencher.iter_custom(|items| stream::<R>(&options, items));
        });
        group.finish();
    }
}

type Ends = (Sender<u64>, Receiver<u64>);

/// The time of so many hops of one item between two cores.
fn one_at_a_time<R: Runtime>(options: &RunOptions, hops: u64) -> Duration {
    let ((to_second, second), (to_first, first)) = (mailbox([ROOM]), mailbox([ROOM]));
    on_two_cores::<R, _>(
        options,
        (to_second, first),
        (to_first, second),
        move |at, (to, mut from)| {
            async move {
                let mut batch = Vec::new();
                if at == 0 {
                    send(&to, 0);
                }
                // Both run by the time of the first hop back.
                let mut begin = None;
                // The other one is gone when nothing comes.
                while from.receive(&mut batch, 1).await > 0 {
                    begin = begin.or_else(|| Some(R::now()));
                    let done = batch.pop().expect("one item");
                    if done > hops {
                        break;
                    }
                    send(&to, done + 1);
                }
                begin.map_or(Duration::ZERO, |begin| R::now() - begin)
            }
        },
    )
}

/// The time of so many items from the first core to the second.
fn stream<R: Runtime>(options: &RunOptions, items: u64) -> Duration {
    let ((to_second, second), (to_first, first)) = (mailbox([ROOM]), mailbox([ROOM]));
    on_two_cores::<R, _>(
        options,
        (to_second, first),
        (to_first, second),
        move |at, (to, mut from)| {
            async move {
                let mut batch = Vec::with_capacity(BATCH);
                if at == 1 {
                    send(&to, 0); // this core runs
                    let mut received = 0;
                    while received < items {
                        received += from.receive(&mut batch, BATCH).await as u64;
                        batch.clear();
                    }
                    send(&to, 0);
                    return Duration::ZERO;
                }
                from.receive(&mut batch, 1).await;
                let begin = R::now();
                let (mut next, mut waiting) = (0, VecDeque::with_capacity(BATCH));
                while next < items || !waiting.is_empty() {
                    let more = (items - next).min((BATCH - waiting.len()) as u64);
                    waiting.extend(next..next + more);
                    next += more;
                    if to.try_send_batch(0, &mut waiting) == 0 {
                        to.room(0).await;
                    }
                }
                from.receive(&mut batch, 1).await;
                R::now() - begin
            }
        },
    )
}

fn send(to: &Sender<u64>, item: u64) {
    // The other one may have ended already.
    drop(to.try_send(0, item));
}

/// Runs `main` on two cores with an end each; what the first one's comes to.
fn on_two_cores<R: Runtime, Fut>(
    options: &RunOptions,
    first: Ends,
    second: Ends,
    main: impl Fn(usize, Ends) -> Fut + Send + Sync + 'static,
) -> Duration
where
    Fut: Future<Output = Duration> + MaybeSend + 'static,
{
    let ends = Arc::new(Mutex::new([Some(first), Some(second)]));
    let took = R::run_cores(options, move |core| {
        let ends = ends.lock().unwrap_or_else(PoisonError::into_inner)[core.index].take();
        main(core.index, ends.expect("each core once"))
    });
    took.expect("two cores run")[0]
}
