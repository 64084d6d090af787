//! Sequential reading and writing through each backend's way to files: how fast, with how long a
//! tail, on how many threads, from 1 to 64 streams at once, through the page cache and past it.
//!
//! Each stream has one operation of 32 KiB under way. All cases move the same files.

mod blocks;
mod stream;
mod threads;

use std::path::{Path, PathBuf};

use bench::{Latencies, Run};
use rt_abstract::{RunOptions, Runtime};
use serde::Serialize;

use crate::backend::{Column, Visit};
use crate::measure::{self, Lap, Name, Output};

/// One operation.
pub const BLOCK_BYTES: usize = 32 << 10;

/// Arguments of `files`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub column: Column,
    /// Numbers of streams, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64", value_parser = clap::value_parser!(u64).range(1..=1_024))]
    pub streams: Vec<u64>,
    /// MiB that each case moves; rounded up to a block for each stream.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub mib: u64,
    /// Where the files are for the time of the run. Must not be in memory.
    #[arg(long)]
    #[serde(skip)]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
}

/// What the streams do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From a page cache that has it all.
    ReadWarm,
    /// From a page cache that was told to forget it.
    ReadCold,
    /// Past the page cache.
    ReadDirect,
    /// To the page cache, and one sync for each stream at its end.
    Write,
    /// Past the page cache, and one sync for each stream at its end.
    WriteDirect,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    streams: u64,
    /// Of each stream.
    blocks: u64,
}

/// What came out of one.
#[derive(Debug)]
struct Outcome {
    lap: Lap,
    operations: u64,
    times: Latencies,
    /// Most threads at a time that were no executor's.
    pool_threads: usize,
    /// Most of the kernel's threads for io_uring at a time.
    ring_threads: usize,
    /// What came from the device, or went to it for reads to be, in bytes.
    device_bytes: u64,
}

/// Runs it.
pub fn run(args: &Args) -> Result<(), String> {
    let mut run = measure::new_run("files", &args.column, args)?;
    let folder = match &args.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    }
    .map_err(|error| format!("no folder for the files: {error}"))?;
    blocks::must_be_on_a_disk(folder.path())?;
    // One executor: what other threads there are belong to its way to files.
    let options = RunOptions { pinning: rt_abstract::Pinning::None, ..args.column.options(1) };
    for &streams in &args.streams {
        let blocks = (args.mib << 20).div_ceil(BLOCK_BYTES as u64 * streams);
        for kind in Kind::ALL {
            let case = Case { kind, streams, blocks };
            let one = One { case, options: &options, folder: folder.path() };
            let outcome = args.column.with(one)??;
            record(&mut run, &case, &outcome)?;
        }
    }
    measure::finish(run, &args.output)
}

struct One<'a> {
    case: Case,
    options: &'a RunOptions,
    folder: &'a Path,
}

impl Visit for One<'_> {
    type Output = Result<Outcome, String>;

    fn visit<R: Runtime>(self) -> Self::Output {
        stream::run::<R>(self.case, self.options, self.folder)
    }
}

impl Kind {
    /// Reads come after what they read was written.
    pub const ALL: [Self; 5] =
        [Self::Write, Self::ReadWarm, Self::ReadCold, Self::WriteDirect, Self::ReadDirect];

    fn text(self) -> &'static str {
        match self {
            Self::ReadWarm => "read, cached",
            Self::ReadCold => "read, not cached",
            Self::ReadDirect => "read, direct",
            Self::Write => "write and sync",
            Self::WriteDirect => "write and sync, direct",
        }
    }

    fn reads(self) -> bool {
        matches!(self, Self::ReadWarm | Self::ReadCold | Self::ReadDirect)
    }

    fn direct(self) -> bool {
        matches!(self, Self::ReadDirect | Self::WriteDirect)
    }
}

fn record(run: &mut Run, case: &Case, outcome: &Outcome) -> Result<(), String> {
    let streams = if case.streams == 1 { "stream" } else { "streams" };
    let situation = format!("{} {streams}", case.streams);
    let name = |measure: &str| Name::text(&situation, case.kind.text(), measure);
    let (operations, bytes) = (outcome.operations, outcome.operations * BLOCK_BYTES as u64);
    run.figure(&name("throughput"), outcome.lap.per_second(bytes) / 1e6, "MB/s");
    run.figure(&name("CPU per operation"), outcome.lap.cpu_ns_per(operations) / 1e3, "us");
    run.figure(&name("threads beside the executor"), outcome.pool_threads as f64, "");
    run.figure(&name("kernel threads of io_uring"), outcome.ring_threads as f64, "");
    if case.kind.reads() {
        let share = outcome.device_bytes as f64 / bytes as f64;
        run.figure(&name("bytes from the device per byte read"), share, "");
    }
    run.histogram(&name("time of an operation"), "from submitted to done", &outcome.times)
}
