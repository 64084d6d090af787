//! Tasks: panics, detaching, counting, blocking work.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::tools::{all_tasks_ended, pause, run_one};
use crate::notify::Notify;
use crate::runtime::{RunOptions, Runtime};
use crate::shared::Shared;

/// A panic ends its own task only; the joiner gets its message.
pub fn a_panic_reaches_the_joiner_alone<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let bell = Arc::new(Notify::new());
        let bystander = R::spawn({
            let bell = bell.clone();
            async move {
                bell.notified().await;
                7
            }
        });
        let error = R::spawn(async { panic!("a plain message") }).await.expect_err("panics");
        assert_eq!(error.0, "a plain message");
        assert_eq!(error.to_string(), "task panicked: a plain message");
        let number = 5;
        let later = R::spawn(async move {
            R::yield_now().await;
            panic!("a message with {number}");
        });
        assert_eq!(later.await.expect_err("panics").0, "a message with 5");
        let odd = R::spawn(async { std::panic::panic_any(17_u8) }).await;
        odd.expect_err("panics with something that is no text");
        drop(R::spawn(async { panic!("nobody joins this one") }));
        bell.notify();
        assert_eq!(bystander.await.expect("is alive"), 7);
    });
}

/// A panicking main is an error, after the other cores have ended.
pub fn a_panicking_main_is_an_error<R: Runtime>(options: &RunOptions) {
    let ended = Arc::new(AtomicUsize::new(0));
    let options = RunOptions { cores: 2, ..options.clone() };
    let result = R::run_cores(&options, {
        let ended = ended.clone();
        move |core| {
            let ended = ended.clone();
            async move {
                if core.index == 0 {
                    panic!("main fails");
                }
                pause::<R>().await;
                ended.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let error = result.expect_err("a main panicked");
    assert!(error.to_string().contains("main fails"), "{error}");
    assert_eq!(ended.load(Ordering::SeqCst), 1);
}

/// Dropping a handle leaves the task running.
pub fn dropped_handles_detach<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let bell = Arc::new(Notify::new());
        drop(R::spawn({
            let bell = bell.clone();
            async move {
                for _ in 0..3 {
                    pause::<R>().await;
                }
                bell.notify();
            }
        }));
        bell.notified().await;
    });
}

/// A task that yields does not keep the others from running.
pub fn yields_let_others_run<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let counts = Shared::new([0_u32; 2]);
        let spawn = |own: usize| {
            let counts = counts.clone();
            // Each waits, by yielding alone, for the other to take its next step.
            R::spawn(async move {
                for step in 1..=100 {
                    counts.with(|counts| counts[own] = step);
                    while counts.with(|counts| counts[1 - own]) + 1 < step {
                        R::yield_now().await;
                    }
                }
            })
        };
        let (one, other) = (spawn(0), spawn(1));
        one.await.expect("one");
        other.await.expect("other");
    });
}

/// The count rises with each spawn and falls with each end, however the task ends.
pub fn live_tasks_counts<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        assert_eq!(R::live_tasks(), 0);
        let bells: Vec<_> = (0..3).map(|_| Arc::new(Notify::new())).collect();
        let tasks: Vec<_> = bells
            .iter()
            .map(|bell| {
                let bell = bell.clone();
                R::spawn(async move { bell.notified().await })
            })
            .collect();
        assert_eq!(R::live_tasks(), 3);
        drop(tasks);
        bells[1].notify();
        while R::live_tasks() > 2 {
            R::yield_now().await;
        }
        R::spawn(async { panic!("counted as well") }).await.expect_err("panics");
        while R::live_tasks() > 2 {
            R::yield_now().await;
        }
        bells.iter().for_each(|bell| bell.notify());
        all_tasks_ended::<R>().await;
    });
}

/// Tasks that still wait when the core's main ends are dropped, and hold nothing up.
pub fn unfinished_tasks_end_with_the_core<R: Runtime>(options: &RunOptions) {
    let held = Arc::new(());
    let options = RunOptions { cores: 2, ..options.clone() };
    let results = R::run_cores(&options, {
        let held = held.clone();
        move |core| {
            let held = held.clone();
            async move {
                for _ in 0..10 {
                    let held = held.clone();
                    drop(R::spawn(async move {
                        pending::<()>().await;
                        drop(held);
                    }));
                }
                pause::<R>().await;
                core.index
            }
        }
    });
    assert_eq!(results.expect("the cores run"), [0, 1]);
    assert_eq!(Arc::strong_count(&held), 1, "a task outlives its core");
}

/// Blocking work returns its result or its panic, also when there is more than the pool is wide.
pub fn blocking_work_comes_back<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let core = std::thread::current().id();
        let other = R::spawn_blocking(|| std::thread::current().id()).await.expect("work");
        assert_ne!(core, other, "blocking work runs elsewhere");
        let error = R::spawn_blocking(|| panic!("blocking panic")).await.expect_err("panics");
        assert_eq!(error.0, "blocking panic");

        let tasks: Vec<_> = (0..300)
            .map(|number| {
                R::spawn(async move {
                    R::spawn_blocking(move || {
                        std::thread::sleep(std::time::Duration::from_micros(200));
                        number * 2
                    })
                    .await
                })
            })
            .collect();
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.expect("task").expect("work"), number * 2);
        }
    });
}
