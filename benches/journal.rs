//! How fast is the journal? Batches of 64 KiB through [`journal::Journal`] until they are durable,
//! beside a plain loop of `pwrite` and `fdatasync` with the same batches, one or eight at a time, into a
//! file that was prepared in the same way: `cargo bench -p gearbox --bench journal`.
//!
//! Two figures of each: the throughput with several batches under way, and the time of one batch
//! that is alone. The columns are those of the build. The files are in `$GEARBOX_BENCH_DIR`, or in
//! the directory for temporary files, which must not be in memory. `-- --test` runs everything once.

#![allow(missing_docs, reason = "a bench program")]

#[path = "journal/appends.rs"]
mod appends;
#[path = "metadata/column.rs"]
mod column;
#[path = "journal/plain.rs"]
mod plain;

use std::fmt;
use std::time::Duration;

use column::{Column, Visit, each_column};
use hdrhistogram::Histogram;
use rt_abstract::Runtime;
use tempfile::TempDir;

// The program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub const BATCH_BYTES: usize = 64 << 10;
/// Batches under way at the same time.
const DEPTHS: [usize; 3] = [1, 8, 64];
const ROUNDS: usize = 5;

/// The times of one case.
pub struct Figures {
    pub took: Duration,
    pub batches: usize,
    pub syncs: u64,
    /// From append until durable, in nanoseconds.
    pub waits: Histogram<u64>,
}

fn main() {
    let test = std::env::args().any(|argument| argument == "--test");
    let (rounds, batches) = if test { (1, 64) } else { (ROUNDS, 2_000) };
    let mut plain_rates = Vec::new();
    // In turns: a disk is not the same from minute to minute.
    for round in 0..rounds {
        for group in [1, 8] {
            let figures = plain::run(directory().path(), batches, group);
            println!("plain loop, {group} at a time, round {round}: {figures}");
            if group == 1 {
                plain_rates.push(figures.rate());
            }
        }
        each_column(&mut Cases { batches, round });
    }
    plain_rates.sort_by(f64::total_cmp);
    println!("plain loop, median: {:.1} MB/s", plain_rates[rounds / 2] / 1e6);
}

struct Cases {
    batches: usize,
    round: usize,
}

impl Visit for Cases {
    fn visit<R: Runtime>(&mut self, column: &Column) {
        for depth in DEPTHS {
            let dir = directory();
            let figures = appends::run::<R>(&column.options, dir.path(), self.batches, depth);
            println!("{}, {depth} under way, round {}: {figures}", column.name, self.round);
        }
    }
}

impl Default for Figures {
    fn default() -> Self {
        let waits = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("right constants");
        Self { took: Duration::ZERO, batches: 0, syncs: 0, waits }
    }
}

impl Figures {
    pub fn add(&mut self, wait: Duration) {
        self.batches += 1;
        self.waits.saturating_record(wait.as_nanos() as u64);
    }

    /// Bytes per second.
    fn rate(&self) -> f64 {
        (self.batches * BATCH_BYTES) as f64 / self.took.as_secs_f64()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |quantile| self.waits.value_at_quantile(quantile) as f64 / 1e6;
        let per_sync = self.batches as f64 / self.syncs.max(1) as f64;
        write!(
            f,
            "{:.1} MB/s, wait ms p50/p99/max {:.3}/{:.3}/{:.3}, {per_sync:.1} batches per sync",
            self.rate() / 1e6,
            ms(0.5),
            ms(0.99),
            ms(1.0)
        )
    }
}

fn directory() -> TempDir {
    match std::env::var_os("GEARBOX_BENCH_DIR") {
        Some(dir) => TempDir::new_in(dir),
        None => TempDir::new(),
    }
    .expect("a directory for the files")
}
