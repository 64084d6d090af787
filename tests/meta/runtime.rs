//! openraft's own suite for runtimes.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use meta::raft::runtime::RaftRuntime;
use openraft::AsyncRuntime;
use openraft::rt::testing::Suite;
use rt_abstract::{RunOptions, Runtime};

use crate::column::in_each_column;

in_each_column!(does_what_openraft_asks, does_so_started_by_openraft, a_panic_reaches_the_joiner);

/// The one assertion of the suite that a busy machine can miss: a sleep of 50 ms is over in 200.
const BUSY: &str = "diff < Duration::from_millis(200)";
/// How often it may.
const BUSY_ATTEMPTS: usize = 10;

fn does_what_openraft_asks<R: Runtime>(options: &RunOptions) {
    let mut runtime = RaftRuntime::<R>::with_options(options.clone());
    unless_busy(|| Suite::<RaftRuntime<R>>::test_all_on(&mut runtime));
}

/// With its cases for the start itself, and for randomness that is made predictable.
fn does_so_started_by_openraft<R: Runtime>(_: &RunOptions) {
    unless_busy(Suite::<RaftRuntime<R>>::test_all);
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

/// Runs the suite, again when only [`BUSY`] failed.
fn unless_busy(mut suite: impl FnMut()) {
    for attempt in 1.. {
        let Err(panic) = catch_unwind(AssertUnwindSafe(&mut suite)) else { return };
        let busy = panic.downcast_ref::<String>().is_some_and(|text| text.contains(BUSY));
        if !busy || attempt == BUSY_ATTEMPTS {
            resume_unwind(panic);
        }
    }
}
