//! What do a shard's pools of buffers save? A read buffer taken and given back, with and without an
//! unfinished packet that the connection keeps, and a block to write from, beside the allocator:
//! `cargo bench -p gearbox --bench buffers`. With `-- --test` everything runs once.

#![allow(missing_docs, reason = "the macros of criterion")]

use std::hint::black_box;

use broker_core::testing::Pools;
use bytes::BytesMut;
use criterion::{Criterion, criterion_group, criterion_main};

// The program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

criterion_group!(benches, reading, writing);
criterion_main!(benches);

fn reading(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read buffer");
    let mut pools = Pools::new();
    for (name, rest) in [
        ("all of it was used", 0),
        ("100 bytes of a packet stay", 100),
        ("3000 bytes of a packet stay", 3_000),
    ] {
        let bytes = vec![b'x'; rest + 128];
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                pools.read(black_box(&bytes), 128);
                pools.finish_packet();
            });
        });
    }
    let bytes = [b'x'; 128];
    group.bench_function("from the allocator, for comparison", |bencher| {
        bencher.iter(|| {
            let mut buffer = BytesMut::with_capacity(16 << 10);
            buffer.extend_from_slice(black_box(&bytes));
            black_box(buffer.len())
        });
    });
    group.finish();
}

fn writing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("write block");
    let mut pools = Pools::new();
    for bytes in [4, 200, 4_000] {
        let bytes = vec![b'x'; bytes];
        group.bench_function(format!("{} bytes", bytes.len()), |bencher| {
            bencher.iter(|| black_box(pools.write(black_box(&bytes))));
        });
    }
    group.finish();
}
