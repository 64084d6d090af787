//! The columns that every case runs in: each backend of the build, each scheduler of tokio.

use std::future::Future;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rt_abstract::{MaybeSend, RunOptions, Runtime};

/// Seconds after which a case counts as hanging.
const WATCHDOG_SECONDS: u64 = 120;

/// Makes one `#[test]` per case and column out of functions `fn case<R: Runtime>(&RunOptions)`.
macro_rules! in_each_column {
    ($($case:ident),+ $(,)?) => {
        #[cfg(feature = "rt-tokio")]
        mod tokio_thread_per_core {
            $(#[test]
            fn $case() {
                super::$case::<rt_tokio::Tokio>(&rt_abstract::RunOptions::default());
            })+
        }
        #[cfg(all(
            feature = "rt-tokio",
            not(any(feature = "rt-monoio", feature = "rt-compio"))
        ))]
        mod tokio_work_stealing {
            $(#[test]
            fn $case() {
                super::$case::<rt_tokio::Tokio>(&rt_abstract::RunOptions {
                    scheduler: rt_abstract::Scheduler::WorkStealing,
                    cores: 2,
                    ..rt_abstract::RunOptions::default()
                });
            })+
        }
        #[cfg(feature = "rt-monoio")]
        mod monoio {
            $(#[test]
            fn $case() {
                super::$case::<rt_monoio::Monoio>(&rt_abstract::RunOptions::default());
            })+
        }
        #[cfg(feature = "rt-compio")]
        mod compio {
            $(#[test]
            fn $case() {
                super::$case::<rt_compio::Compio>(&rt_abstract::RunOptions::default());
            })+
        }
    };
}
pub(crate) use in_each_column;

/// Runs `main` on the first core of the column, as the program would, under a watchdog.
pub fn run<R, F, Fut>(options: &RunOptions, main: F)
where
    R: Runtime,
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + MaybeSend + 'static,
{
    let (done, watched) = channel::<()>();
    let name = thread::current().name().unwrap_or("a case").to_owned();
    let watchdog = thread::spawn(move || {
        let limit = Duration::from_secs(WATCHDOG_SECONDS);
        if watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name} hangs: no end after {WATCHDOG_SECONDS} s");
            std::process::abort();
        }
    });
    let result = R::run_cores(options, move |core| {
        let first = (core.index == 0).then(&main);
        async move {
            if let Some(main) = first {
                main.await;
            }
        }
    });
    drop(done);
    watchdog.join().expect("the watchdog does not panic");
    result.expect("the case runs");
}
