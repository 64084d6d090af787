//! Time: never early, in order, no burst after a delay.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::tools::{run_one, unless_notified};
use crate::notify::Notify;
use crate::runtime::{RunOptions, Runtime};
use crate::shared::Shared;

/// A sleep lasts at least as long as asked.
pub fn sleeps_are_never_early<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        R::sleep(Duration::ZERO).await;
        for micros in [1, 300, 1_000, 1_700, 5_000, 12_345, 50_000] {
            let duration = Duration::from_micros(micros);
            let start = R::now();
            R::sleep(duration).await;
            let slept = R::now() - start;
            assert!(slept >= duration, "slept {slept:?} instead of {duration:?}");
        }
        let wall_ms = R::wall_clock_ms();
        assert!(wall_ms > 1_577_836_800_000, "wall clock {wall_ms} ms is before 2020");
        let (mut one, mut other) = ([0; 32], [0; 32]);
        R::fill_random(&mut one);
        R::fill_random(&mut other);
        assert_ne!(one, other);
    });
}

/// Many timers at once; later ones end later.
pub fn many_sleeps_end_in_order<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let ended = Shared::new(Vec::new());
        let start = R::now();
        let tasks: Vec<_> = (0..2_000_u64)
            .map(|number| {
                let ended = ended.clone();
                // Spawned in no order; 100 different deadlines, 5 ms apart.
                let slot = number * 37 % 100;
                R::spawn(async move {
                    let due = Duration::from_millis(20 + slot * 5);
                    R::sleep(due.saturating_sub(R::now() - start)).await;
                    assert!(R::now() - start >= due);
                    ended.with(|ended| ended.push(slot));
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("sleeper");
        }
        let ended = ended.with(std::mem::take);
        assert_eq!(ended.len(), 2_000);
        // A starved machine fires neighbouring timers together, in any order.
        let late = ended.windows(2).filter(|pair| pair[0] > pair[1] + 2).count();
        assert!(late < 200, "{late} of 2000 timers ended far out of order");
    });
}

/// Ticks that were missed are skipped, and later ones keep to the grid.
pub fn intervals_skip_missed_ticks<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let period = Duration::from_millis(4);
        let start = R::now();
        let mut interval = R::interval(period);
        let first = interval.tick().await;
        assert!(first - start >= period && R::now() >= first);
        R::sleep(period * 10).await;
        let missed = interval.tick().await;
        assert_eq!((missed - first).as_nanos() % period.as_nanos(), 0);
        let next = interval.tick().await;
        assert!(next - missed >= period * 9, "a burst of ticks: {:?} apart", next - missed);
        assert_eq!((next - first).as_nanos() % period.as_nanos(), 0);
        assert!(R::now() >= next);
    });
}

/// A sleep may be given up at any point.
pub fn dropped_sleeps_do_no_harm<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let bell = Arc::new(Notify::new());
        for _ in 0..500 {
            let sleep = pin!(R::sleep(Duration::from_secs(3_600)));
            bell.notify();
            assert!(unless_notified(sleep, &bell).await.is_none());
        }
        drop(R::sleep(Duration::from_secs(1)));
        R::sleep(Duration::from_millis(1)).await;
    });
}
