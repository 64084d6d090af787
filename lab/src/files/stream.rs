//! The streams of one case.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bench::Latencies;
use rt_abstract::{Core, File, OpenOptions, RunOptions, Runtime, Shared};

use super::threads::Threads;
use super::{BLOCK_BYTES, Case, Kind, Outcome, blocks};
use crate::measure::{Lap, Stopwatch};

/// From one look at the threads to the next.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// What all streams of the executor share.
#[derive(Default)]
struct Work {
    times: Latencies,
    operations: u64,
    threads: Threads,
    over: bool,
}

/// Measures one case on files that an earlier case of the same shape may have written.
pub fn run<R: Runtime>(case: Case, options: &RunOptions, folder: &Path) -> Result<Outcome, String> {
    let paths: Arc<Vec<PathBuf>> = Arc::new(
        (0..case.streams).map(|stream| folder.join(format!("{}-{stream}", case.streams))).collect(),
    );
    if matches!(case.kind, Kind::ReadCold | Kind::ReadDirect) {
        for path in paths.iter() {
            blocks::forget(path)?;
        }
    }
    let device_before = blocks::device_bytes();
    let ends = R::run_cores(options, move |core| one_core::<R>(core, case, paths.clone()))
        .map_err(|error| error.to_string())?;
    let (lap, work) = ends.into_iter().next().ok_or("no core")??;
    Ok(Outcome {
        lap,
        operations: work.operations,
        times: work.times,
        pool_threads: work.threads.pool,
        ring_threads: work.threads.ring,
        device_bytes: blocks::device_bytes() - device_before,
    })
}

async fn one_core<R: Runtime>(
    _: Core,
    case: Case,
    paths: Arc<Vec<PathBuf>>,
) -> Result<(Lap, Work), String> {
    let work = Shared::new(Work::default());
    let mut files = Vec::new();
    for path in paths.iter() {
        let write = !case.kind.reads();
        let options =
            OpenOptions { write, create: write, direct: case.kind.direct(), create_new: false };
        let file = R::open(path, options).await;
        files.push(file.map_err(|error| format!("{}: {error}", path.display()))?);
    }
    let watcher = R::spawn(watch::<R>(work.clone()));
    let watch = Stopwatch::start::<R>();
    let streams: Vec<_> =
        files.into_iter().map(|file| R::spawn(stream::<R>(case, file, work.clone()))).collect();
    let mut ended = Ok(());
    for stream in streams {
        let end = stream.await.map_err(|panicked| panicked.to_string()).and_then(|end| end);
        ended = ended.and(end);
    }
    let lap = watch.lap::<R>();
    work.with(|work| work.over = true);
    let _ = watcher.await; // it returns nothing
    ended.map(|()| (lap, work.with(std::mem::take)))
}

/// Block after block, from the first to the last.
async fn stream<R: Runtime>(case: Case, file: R::File, work: Shared<Work>) -> Result<(), String> {
    let mut block = if case.kind.reads() { blocks::empty() } else { blocks::full(0xA5) };
    for number in 0..case.blocks {
        let offset = number * BLOCK_BYTES as u64;
        let begun = R::now();
        let (result, back) = if case.kind.reads() {
            block.clear();
            file.read_at(block, offset).await
        } else {
            file.write_at(block, offset).await
        };
        let took = R::now() - begun;
        block = back;
        match result {
            Ok(BLOCK_BYTES) => {}
            Ok(count) => return Err(format!("{count} bytes at {offset} instead of {BLOCK_BYTES}")),
            Err(error) => return Err(format!("at {offset}: {error}")),
        }
        work.with(|work| {
            work.operations += 1;
            work.times.record(took.as_nanos() as u64);
        });
    }
    if !case.kind.reads() {
        file.sync_data().await.map_err(|error| format!("sync: {error}"))?;
    }
    Ok(())
}

/// Looks at the threads now and then, and once at the end: pools keep theirs for a while.
async fn watch<R: Runtime>(work: Shared<Work>) {
    loop {
        let now = Threads::now();
        let over = work.with(|work| {
            work.threads = work.threads.max(now);
            work.over
        });
        if over {
            return;
        }
        R::sleep(LOOK_PERIOD).await;
    }
}
