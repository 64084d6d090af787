//! Who wants this topic? Three structures that could answer for a whole node, under the same
//! filters and topics: `cargo bench -p bench --bench matching`.
//!
//! With `-- --test` everything runs once and small. What the figures mean, and which structure
//! was chosen, is in docs/decisions/0004-matching-structure.md.

#![allow(missing_docs, reason = "the macros of criterion")]

mod matching {
    pub mod candidates;
    pub mod cpu;
    pub mod memory;
    pub mod workload;
}

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use matching::candidates::{Candidate, PathCopied, Reader, Replicas, Shared};
use matching::cpu::{ThreadTime, thread_time};
use matching::memory::{self, Counting};
use matching::workload::Workload;
use mqtt::routing::{FilterTree, Matched};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(ThreadTime)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = all
}
criterion_main!(benches);

/// The filters of a workload take turns among so many shards.
const SHARDS: u64 = 4;

fn all(criterion: &mut Criterion<ThreadTime>) {
    let is_smoke = std::env::args().any(|argument| argument == "--test");
    let filters = if is_smoke { 20_000 } else { 1_000_000 };
    for workload in [Workload::exact(filters), Workload::mix(filters)] {
        candidate::<PathCopied>(criterion, &workload, is_smoke);
        candidate::<Replicas>(criterion, &workload, is_smoke);
        candidate::<Shared>(criterion, &workload, is_smoke);
        shard_memory(&workload);
    }
    let workload = Workload::many_shapes(filters / 10);
    candidate::<PathCopied>(criterion, &workload, is_smoke);
    candidate::<Shared>(criterion, &workload, is_smoke);
}

fn candidate<C: Candidate>(
    criterion: &mut Criterion<ThreadTime>,
    workload: &Workload,
    is_smoke: bool,
) {
    let name = format!("{}/{}", workload.name, C::NAME);
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if wanted.is_some_and(|wanted| !name.contains(&wanted)) {
        return; // criterion would skip it too, but only after it was built
    }
    let before = memory::allocated_bytes();
    let start = thread_time();
    let mut structure = C::new();
    for (filter, shard) in workload.filters.iter().zip(0..) {
        structure.add(filter, (shard % SHARDS) as u8);
    }
    structure.settle();
    println!(
        "{name}: {} filters in {:.2} s of running, {:.0} bytes each",
        workload.filters.len(),
        thread_time().saturating_sub(start).as_secs_f64(),
        (memory::allocated_bytes() - before) as f64 / workload.filters.len() as f64,
    );

    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(1));
    let mut reader = structure.reader();
    let mut matched = Matched::default();
    for (label, topics) in [("hot", &workload.hot), ("random", &workload.random)] {
        let mut topics = topics.iter().cycle();
        group.bench_function(format!("match {label}"), |bencher| {
            bencher.iter(|| {
                let Some(topic) = topics.next() else { return };
                reader.matches(topic, &mut matched);
                black_box(&matched);
            });
        });
    }
    drop(reader);

    // Every 13th filter leaves and comes back.
    let churn: Vec<_> = workload.filters.iter().zip(0..).step_by(13).collect();
    for (label, is_add) in [("unsubscribe", false), ("subscribe", true)] {
        group.bench_function(label, |bencher| {
            bencher.iter_custom(|iterations| {
                let mut taken = Duration::ZERO;
                let mut left = iterations as usize;
                while left > 0 {
                    let batch = &churn[..left.min(churn.len())];
                    let mut timed = |is_timed: bool, is_add: bool| {
                        let start = thread_time();
                        for (filter, shard) in batch {
                            let shard = (shard % SHARDS) as u8;
                            match is_add {
                                true => structure.add(filter, shard),
                                false => structure.remove(filter, shard),
                            }
                        }
                        structure.settle();
                        if is_timed {
                            taken += thread_time().saturating_sub(start);
                        }
                    };
                    timed(!is_add, false);
                    timed(is_add, true);
                    left -= batch.len();
                }
                taken
            });
        });
    }
    group.finish();
    subscribe_while_matching(structure, workload, is_smoke);
}

/// One thread subscribes and unsubscribes, another one matches, for a second.
fn subscribe_while_matching<C: Candidate>(mut structure: C, workload: &Workload, is_smoke: bool) {
    let lasts = Duration::from_millis(if is_smoke { 50 } else { 1000 });
    let mut reader = structure.reader();
    let (is_over, matches) = (AtomicBool::new(false), AtomicU64::new(0));
    let reader_ran_ns = AtomicU64::new(0);
    let (mut changes, mut taken, mut writer_ran) = (0, lasts, lasts);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut matched = Matched::default();
            let mut count = 0;
            let start = thread_time();
            for topic in workload.random.iter().cycle() {
                reader.matches(topic, &mut matched);
                black_box(&matched);
                count += 1;
                if is_over.load(Ordering::Acquire) {
                    break;
                }
            }
            matches.store(count, Ordering::Release);
            let ran = thread_time().saturating_sub(start);
            reader_ran_ns.store(ran.as_nanos() as u64, Ordering::Release);
            drop(reader);
        });
        let (start, start_of_run) = (Instant::now(), thread_time());
        // In the order of a stride: neighbours share nodes, strangers do not.
        for (filter, shard) in workload.filters.iter().zip(0..).cycle().step_by(13) {
            let shard = (shard % SHARDS) as u8;
            structure.remove(filter, shard);
            structure.add(filter, shard);
            changes += 2;
            if changes % 64 == 0 && start.elapsed() > lasts {
                break;
            }
        }
        structure.settle();
        taken = start.elapsed();
        writer_ran = thread_time().saturating_sub(start_of_run);
        is_over.store(true, Ordering::Release);
    });
    let changes = f64::from(changes);
    let matches = matches.load(Ordering::Acquire) as f64;
    let reader_ran = Duration::from_nanos(reader_ran_ns.load(Ordering::Acquire));
    println!(
        "{}/{} subscribe while matching: {:.0} changes and {:.0} matches per second, \
         {:.0} and {:.0} per second of running",
        workload.name,
        C::NAME,
        changes / taken.as_secs_f64(),
        matches / taken.as_secs_f64(),
        changes / writer_ran.as_secs_f64(),
        matches / reader_ran.as_secs_f64(),
    );
}

/// The second level: what a shard keeps per filter, with a value as large as its list of
/// subscribers; and how many filters a topic finds.
fn shard_memory(workload: &Workload) {
    let before = memory::allocated_bytes();
    let mut tree = FilterTree::<[u64; 3]>::new(1);
    for filter in &workload.filters {
        tree.entry(filter)[0] += 1;
    }
    let bytes = memory::allocated_bytes() - before;
    let mut found = 0;
    workload.random.iter().for_each(|topic| tree.matches(topic, |_| found += 1));
    println!(
        "{}/one shard's FilterTree, 24 bytes of value: {:.0} bytes per filter, {:.1} match a topic",
        workload.name,
        bytes as f64 / workload.filters.len() as f64,
        f64::from(found) / workload.random.len() as f64,
    );
}
