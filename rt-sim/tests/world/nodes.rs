//! Starts and crashes.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rt_abstract::{AsyncRead, AsyncWrite, Runtime};
use rt_sim::{Crash, Sim};

use super::{ONE, in_worlds, pair};

/// Counts how often it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // What a dying task starts never runs.
        drop(Sim::spawn(async { panic!("runs on a dead node") }));
    }
}

#[test]
fn a_crash_ends_all_tasks_and_whoever_waits_hears_of_it() {
    in_worlds(|control| async move {
        let dropped = Arc::new(AtomicUsize::new(0));
        let counter = dropped.clone();
        let cores = control.start_node(ONE, 2, move |_| {
            let (own, other) = (Counted(counter.clone()), Counted(counter.clone()));
            async move {
                drop(Sim::spawn(async move {
                    pending::<()>().await;
                    drop(other);
                }));
                pending::<()>().await;
                drop(own);
            }
        });
        Sim::sleep(Duration::from_millis(1)).await;
        assert!(control.is_running(ONE));
        control.crash(ONE, Crash::Process);
        assert!(!control.is_running(ONE));
        assert_eq!(dropped.load(Ordering::SeqCst), 4);
        assert!(cores.join().await.is_err());
    });
}

#[test]
fn a_node_may_crash_by_its_own_hand_and_start_again() {
    in_worlds(|control| async move {
        let cores = control.start_node(ONE, 1, move |_| async move {
            control.crash(ONE, Crash::Power);
            Sim::yield_now().await;
            unreachable!("a dead node's task is polled");
        });
        assert!(cores.join().await.is_err());
        let cores = control.start_node(ONE, 3, |core| async move { core.index });
        assert_eq!(cores.join().await, Ok(vec![0, 1, 2]));
    });
}

#[test]
fn a_panic_is_told_to_whoever_waits() {
    in_worlds(|control| async move {
        let cores = control.start_node(ONE, 1, |_| async { panic!("on purpose") });
        let error = cores.join().await.expect_err("panicked");
        assert_eq!(error.0, "on purpose");
    });
}

#[test]
fn a_killed_process_closes_its_connections_and_a_dead_machine_does_not() {
    in_worlds(|control| async move {
        let (mut near, far) = pair(control, ONE).await;
        std::mem::forget(far); // the crash has to do it
        control.crash(ONE, Crash::Process);
        let (result, _) = near.read(Vec::with_capacity(8)).await;
        assert_eq!(result.expect("the end"), 0);

        let (mut near, far) = pair(control, ONE).await;
        std::mem::forget(far);
        control.crash(ONE, Crash::Power);
        near.write_all(vec![1; 10]).await.0.expect("nobody has heard anything");
        let begin = control.now();
        let (result, _) = near.read(Vec::with_capacity(8)).await;
        let error = result.expect_err("nobody answers");
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert!(control.now() - begin >= Duration::from_secs(30));

        drop(control.start_node(ONE, 1, |_| pending::<()>()));
        let (mut near, far) = pair(control, ONE).await;
        std::mem::forget(far);
        control.crash(ONE, Crash::Power);
        drop(control.start_node(ONE, 1, |_| pending::<()>()));
        near.write_all(vec![1; 10]).await.0.expect("nobody has heard anything");
        let (result, _) = near.read(Vec::with_capacity(8)).await;
        assert_eq!(result.expect_err("unknown").kind(), std::io::ErrorKind::ConnectionReset);
    });
}
