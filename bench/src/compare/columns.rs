//! The four columns: which program with which flags.

use std::fs;
use std::path::{Path, PathBuf};

use super::series::Planned;
use crate::broker::Start;
use crate::process;

/// The programs and where they run.
#[derive(clap::Args, Clone, Debug)]
pub struct Brokers {
    /// Gearbox built with tokio alone.
    #[arg(long)]
    pub tokio_build: PathBuf,
    /// Gearbox built with all three runtimes.
    #[arg(long)]
    pub all_build: PathBuf,
    /// The columns; the others are compared to the first.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "work-stealing,thread-per-core,monoio,compio"
    )]
    pub columns: Vec<String>,
    /// Rounds; each round runs every column once. With fewer than 4 nothing is compared
    /// [default: 6; of stream 4].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: Option<u32>,
    /// CPUs that the broker is confined to, as `taskset -c` takes them.
    #[arg(long, default_value = "0")]
    pub broker_cpu: String,
    /// CPU that the generator is confined to.
    #[arg(long, default_value_t = 1)]
    pub load_cpu: usize,
    /// Folder for the results, report.md and report.html.
    #[arg(long, overrides_with = "out")]
    pub out: Option<PathBuf>,
}

/// (name, label, runtime, scheduler, whether the build with tokio alone).
const COLUMNS: [(&str, &str, &str, &str, bool); 4] = [
    ("work-stealing", "tokio work-stealing", "tokio", "work-stealing", true),
    ("thread-per-core", "tokio thread-per-core", "tokio", "thread-per-core", true),
    ("monoio", "monoio", "monoio", "thread-per-core", false),
    ("compio", "compio", "compio", "thread-per-core", false),
];

impl Brokers {
    /// Gets this program ready.
    pub fn prepare(&self) -> Result<(), String> {
        process::pin(self.load_cpu)?;
        process::raise_descriptor_limit();
        Ok(())
    }

    /// The column of a name, with data directories in `disk` if given.
    pub fn column(&self, name: &str, shards: u32, disk: Option<&Path>) -> Result<Planned, String> {
        let column = COLUMNS.iter().find(|column| column.0 == name);
        let (_, label, runtime, scheduler, tokio_alone) = *column.ok_or_else(|| {
            let known: Vec<_> = COLUMNS.iter().map(|column| column.0).collect();
            format!("no column {name:?}; there are {}", known.join(", "))
        })?;
        let program = if tokio_alone { &self.tokio_build } else { &self.all_build }.clone();
        let (cpus, disk) = (self.broker_cpu.clone(), disk.map(Path::to_path_buf));
        let start = Start { program, runtime, scheduler, shards, cpus, disk, ..Start::default() };
        Ok(Planned { label: label.to_owned(), start })
    }

    /// For people.
    pub fn text(&self) -> String {
        format!("broker on CPU {}, generator on CPU {}", self.broker_cpu, self.load_cpu)
    }
}

/// What the columns do not have in common, and how io_uring is set.
pub fn asymmetries() -> Vec<String> {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    vec![
        format!(
            "io_uring: kernel.io_uring_disabled = {}; 512 entries per shard; compio with \
             single_issuer and defer_taskrun where the kernel has them (else coop_taskrun), monoio \
             with its defaults; no SQPOLL, no registered buffers.",
            disabled.as_deref().map_or("unknown", str::trim)
        ),
        "What the backends do not have in common: tokio waits by epoll and then calls read and \
         writev; monoio has no multishot operations and no provided buffers, so that waiting \
         without a buffer costs it an operation more for each read; compio and monoio move futures \
         between no threads, tokio's work-stealing does. A column on its fallback (driver=epoll in \
         its start-up line) is not the column that its name says."
            .to_owned(),
    ]
}
