//! The behaviour suite on tokio.

use rt_abstract::RunOptions;
use rt_tokio::Tokio;

rt_abstract::behaviour_suite!(Tokio, thread_per_core => RunOptions::default());

rt_abstract::if_single_threaded!({} else {
    rt_abstract::behaviour_suite!(Tokio, work_stealing => RunOptions {
        scheduler: rt_abstract::Scheduler::WorkStealing,
        ..RunOptions::default()
    });
});
