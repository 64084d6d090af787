//! The columns of this build: each backend, each scheduler of tokio.

use rt_abstract::{RunOptions, Runtime};

/// A way to run.
pub struct Column {
    /// As in tables.
    pub name: &'static str,
    /// Of the proposers' executor.
    pub options: RunOptions,
}

/// What is done with each.
pub trait Visit {
    fn visit<R: Runtime>(&mut self, column: &Column);
}

/// Shows all columns to `visit`, in turn.
pub fn each_column(visit: &mut impl Visit) {
    #[cfg(all(feature = "rt-tokio", not(any(feature = "rt-monoio", feature = "rt-compio"))))]
    visit.visit::<rt_tokio::Tokio>(&Column {
        name: "tokio work-stealing",
        options: RunOptions {
            scheduler: rt_abstract::Scheduler::WorkStealing,
            cores: 2,
            ..RunOptions::default()
        },
    });
    #[cfg(feature = "rt-tokio")]
    visit.visit::<rt_tokio::Tokio>(&thread_per_core("tokio thread-per-core"));
    #[cfg(feature = "rt-monoio")]
    visit.visit::<rt_monoio::Monoio>(&thread_per_core("monoio"));
    #[cfg(feature = "rt-compio")]
    visit.visit::<rt_compio::Compio>(&thread_per_core("compio"));
}

fn thread_per_core(name: &'static str) -> Column {
    Column { name, options: RunOptions::default() }
}
