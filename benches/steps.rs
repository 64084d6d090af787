//! What does the step clock cost a CONNECT? A shard's own part in one, without sockets, with the clock
//! and without: `cargo bench -p gearbox --bench steps`. With `-- --test` everything runs once.

#![allow(missing_docs, reason = "the macros of criterion")]

use broker_core::testing::Connects;
use criterion::{Criterion, criterion_group, criterion_main};
use rt_abstract::os;

// The program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

criterion_group!(benches, connect);
criterion_main!(benches);

fn connect(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("CONNECT in a shard");
    group.bench_function("without the step clock", |bencher| {
        let mut connects = Connects::new(None);
        bencher.iter(|| connects.connect());
        assert_eq!(connects.measured(), 0);
    });
    group.bench_function("with it", |bencher| {
        let mut connects = Connects::new(Some(os::now));
        bencher.iter(|| connects.connect());
        assert!(connects.measured() > 0);
    });
    group.bench_function("one look at the clock", |bencher| bencher.iter(os::now));
    group.finish();
}
