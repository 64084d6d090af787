//! Time.

use std::time::Duration;

use rt_abstract::Runtime;
use rt_sim::{Config, Crash, NodeId, Sim, Stuck, World};

use super::{ONE, in_world, in_worlds};

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a_day_takes_a_few_polls() {
    in_world(1, Config::default(), |control| async move {
        let start = control.now();
        Sim::sleep(DAY).await;
        assert!(control.now() - start >= DAY);
        assert!(control.polls() < 10);
    });
}

#[test]
fn a_world_without_an_end_is_given_up() {
    let world = World::new(1, Config { max_polls: 1_000, ..Config::default() });
    assert_eq!(world.block_on(std::future::pending::<()>()), Err(Stuck::Deadlock));
    let spinning = async {
        loop {
            Sim::yield_now().await;
        }
    };
    assert_eq!(
        world.block_on::<std::pin::Pin<Box<dyn Future<Output = ()>>>>(Box::pin(spinning)),
        Err(Stuck::TooManyPolls)
    );
}

#[test]
fn time_can_be_let_pass_from_outside() {
    let world = World::new(1, Config::default());
    let control = world.control();
    let cores = control.start_node(ONE, 1, |_| Sim::sleep(DAY));
    world.run_until(DAY / 2).expect("runs");
    assert!(control.is_running(ONE));
    assert_eq!(control.now(), DAY / 2);
    world.run_until(DAY * 2).expect("runs");
    assert!(!control.is_running(ONE));
    world.block_on(cores.join()).expect("ends").expect("no panic");
}

#[test]
fn wall_clocks_jump_and_drift_while_timers_do_not() {
    in_worlds(|control| async move {
        let minute = Duration::from_secs(60);
        let read = move || control.wall_clock_ms(ONE);
        let start = read();
        control.jump_wall_clock(ONE, -3_600_000);
        assert_eq!(read(), start - 3_600_000);
        control.drift_wall_clock(ONE, 500_000);
        let (before, begin) = (read(), control.now());
        let monotonic = control.on_node(ONE, Sim::now);
        Sim::sleep(minute).await;
        let passed_ms = (control.now() - begin).as_millis() as u64;
        let measured = read() - before;
        assert!(measured.abs_diff(passed_ms * 3 / 2) <= 2, "{measured} ms in {passed_ms} ms");
        let after = control.on_node(ONE, Sim::now);
        assert_eq!(after - monotonic, control.now() - begin);
        assert!(control.wall_clock_ms(NodeId(2)) > read());
    });
}

#[test]
fn a_monotonic_clock_begins_anew_with_the_power() {
    in_worlds(|control| async move {
        let read = move || control.on_node(ONE, Sim::now);
        let first = read();
        control.crash(ONE, Crash::Process);
        assert_eq!(read(), first, "the machine has gone on");
        control.crash(ONE, Crash::Power);
        assert_ne!(read(), first);
    });
}

#[test]
fn a_paused_node_does_nothing_and_goes_on() {
    in_worlds(|control| async move {
        let cores = control.start_node(ONE, 1, move |_| async move {
            Sim::sleep(Duration::from_millis(10)).await;
            control.now()
        });
        let until = control.now() + Duration::from_secs(9);
        control.pause(ONE, Duration::from_secs(9));
        assert!(cores.join().await.expect("ends")[0] >= until);
    });
}
