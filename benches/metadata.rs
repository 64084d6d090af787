//! What does it take to agree on a change, and to keep it? Proposals through [`meta::Handle`] until
//! they are applied and answered, on one node and on three, with the WAL synced, beside what plain
//! RocksDB does with the same batches: `cargo bench -p gearbox --bench metadata`.
//!
//! The columns are those of the build: tokio with both schedulers by default, tokio thread-per-core,
//! monoio and compio with `--features rt-monoio,rt-compio`. With `-- --test` everything runs once.
//!
//! Two tools for measuring the program itself:
//! `-- fill DIR COUNT` makes a metadata directory with retained messages;
//! `-- retain HOST:PORT PUBLISHERS IN_FLIGHT SECONDS` publishes them at QoS 1.
//!
//! What the figures mean is in docs/results/metadata.md.

#![allow(missing_docs, reason = "a bench program")]

mod metadata {
    pub mod ceiling;
    pub mod column;
    pub mod figures;
    pub mod load;
    pub mod nodes;
    pub mod tools;
}

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use meta::ApplyMode;
use metadata::ceiling::Ceiling;
use metadata::column::{Column, Visit, each_column};
use metadata::figures::{Applied, Figures};
use metadata::load::{Load, Work};
use metadata::nodes::Cluster;
use metadata::tools;
use rt_abstract::Runtime;

// The program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PROPOSERS: [usize; 3] = [1, 64, 1_000];
/// Tasks that compute beside the proposers.
const BUSY: [usize; 2] = [0, 1_000];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["fill", dir, count, ..] => return tools::fill::run(dir.as_ref(), number(count)),
        ["retain", address, publishers, in_flight, seconds, ..] => {
            let seconds = Duration::from_secs(number(seconds));
            return tools::retain::run(address, number(publishers), number(in_flight), seconds);
        }
        _ => {}
    }
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let wanted = words.iter().find(|word| !word.starts_with('-')).map(|word| (*word).to_owned());
    each_column(&mut Cases { criterion: &mut criterion, wanted });
    criterion.final_summary();
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

/// Where raft is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On a thread of its own; entries applied as given.
    Dedicated(ApplyMode),
    /// On the executor of the proposers.
    Shared,
}

/// As the program does it.
const DEFAULT: Place = Place::Dedicated(ApplyMode::Inline);

struct Cases<'a> {
    criterion: &'a mut Criterion,
    wanted: Option<String>,
}

impl Visit for Cases<'_> {
    fn visit<R: Runtime>(&mut self, column: &Column) {
        let name = format!("one node/{}", column.name);
        self.ceiling(&format!("{name}/plain RocksDB"));
        self.place::<R>(column, 1, DEFAULT, &format!("{name}/dedicated"));
        let thread = Place::Dedicated(ApplyMode::Thread);
        self.place::<R>(column, 1, thread, &format!("{name}/dedicated, apply thread"));
        if R::NAME == "tokio" {
            self.place::<R>(column, 1, Place::Shared, &format!("{name}/shared"));
        }
        let name = format!("three nodes/{}", column.name);
        self.place::<R>(column, 3, DEFAULT, &format!("{name}/dedicated"));
    }
}

impl Cases<'_> {
    fn wants(&self, name: &str) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| name.contains(wanted) || wanted.contains(name))
    }

    /// All the loads on nodes that stay for them.
    fn place<R: Runtime>(&mut self, column: &Column, nodes: usize, place: Place, name: &str) {
        if !self.wants(name) {
            return; // criterion would skip it too, but only after the nodes were started
        }
        let (cluster, load) = match place {
            Place::Dedicated(apply) => {
                (Cluster::start::<R>(nodes, apply), Load::start::<R>(&column.options, None))
            }
            Place::Shared => {
                let (cluster, server) = Cluster::one_without_thread();
                (cluster, Load::start::<R>(&column.options, Some(server)))
            }
        };
        let handle = cluster.leader::<R>();
        let applied = Arc::new(Applied::watch(&handle, PROPOSERS[PROPOSERS.len() - 1]));
        for (busy, proposers) in BUSY.into_iter().flat_map(|b| PROPOSERS.map(|p| (b, p))) {
            let id = BenchmarkId::new(
                if busy == 0 { "idle" } else { "1000 busy tasks" },
                format!("{proposers} proposers"),
            );
            let mut figures = Figures::default();
            let mut group = self.criterion.benchmark_group(name);
            group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(1));
            let batches_before = batches(&handle);
            group.bench_function(id.clone(), |bencher| {
                bencher.iter_custom(|count| {
                    let (handle, applied) = (handle.clone(), applied.clone());
                    let work = Work { handle, applied, proposers, busy, count };
                    load.run(work, &mut figures)
                });
            });
            group.finish();
            if figures.is_empty() {
                continue;
            }
            let per_batch =
                figures.len() as f64 / (batches(&handle) - batches_before).max(1) as f64;
            println!("{name}/{}/{proposers}: {figures}, {per_batch:.1} per apply", words(busy));
        }
        load.stop();
        cluster.stop();
    }

    fn ceiling(&mut self, name: &str) {
        if !self.wants(name) {
            return;
        }
        let ceiling = Ceiling::open();
        for size in PROPOSERS {
            let mut figures = Figures::default();
            let mut group = self.criterion.benchmark_group(name);
            group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(1));
            group.bench_function(format!("batches of {size}"), |bencher| {
                bencher.iter_custom(|count| ceiling.run(count, size, &mut figures));
            });
            group.finish();
            if !figures.is_empty() {
                println!("{name}/batches of {size}: {figures}");
            }
        }
    }
}

fn words(busy: usize) -> &'static str {
    if busy == 0 { "idle" } else { "busy" }
}

/// Batches that the node has applied.
fn batches(handle: &meta::Handle) -> u64 {
    handle.steps().summaries()[meta::steps::ApplyStep::Route as usize].count
}
