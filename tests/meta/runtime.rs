//! openraft's own suite for runtimes. It has one assertion on the clock (a sleep of 50 ms is over in 200), so
//! `.config/nextest.toml` lets nothing run beside it.

use meta::raft::runtime::RaftRuntime;
use openraft::AsyncRuntime;
use openraft::rt::testing::Suite;
use rt_abstract::{RunOptions, Runtime};

use crate::column::in_each_column;

in_each_column!(does_what_openraft_asks, does_so_started_by_openraft, a_panic_reaches_the_joiner);

fn does_what_openraft_asks<R: Runtime>(options: &RunOptions) {
    let mut runtime = RaftRuntime::<R>::with_options(options.clone());
    Suite::<RaftRuntime<R>>::test_all_on(&mut runtime);
}

/// With its cases for the start itself, and for randomness that is made predictable.
fn does_so_started_by_openraft<R: Runtime>(_: &RunOptions) {
    Suite::<RaftRuntime<R>>::test_all();
}

fn a_panic_reaches_the_joiner<R: Runtime>(options: &RunOptions) {
    let mut runtime = RaftRuntime::<R>::with_options(options.clone());
    runtime.block_on(async {
        let end: Result<(), _> = RaftRuntime::<R>::spawn(async { panic!("on purpose") }).await;
        let error = end.expect_err("panicked");
        assert!(RaftRuntime::<R>::is_panic(&error));
        assert!(error.to_string().contains("on purpose"));
    });
}
