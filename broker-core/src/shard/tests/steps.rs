//! The step clock: which time of a CONNECT is whose.

use std::cell::Cell;
use std::time::Duration;

use meta::command::Reply;
use meta::steps::{StepOptions, Steps, Summary};
use rt_abstract::Instant;

use super::auth::{begin, bench as access_bench, check, login};
use super::durable::{answer, durable_bench, owe};
use super::*;
use crate::shard::{CONNECT_STEPS, ConnectStep, Verified};

thread_local! {
    static NOW_US: Cell<u64> = const { Cell::new(0) };
}

/// Every look takes a microsecond.
fn now() -> Instant {
    pass(1);
    Instant::from_nanos(NOW_US.get() * 1000)
}

fn pass(us: u64) {
    NOW_US.set(NOW_US.get() + us);
}

fn measured(bench: &mut Bench) -> Arc<Steps> {
    let steps = Arc::new(Steps::new(&CONNECT_STEPS, 2, StepOptions::default()));
    for shard in &mut bench.shards {
        shard.measure_steps(now, steps.clone());
    }
    steps
}

/// Opens a connection as the connection's task does: `us` after accept.
fn open(bench: &mut Bench, shard: usize, us: u64) -> ConnKey {
    let times = bench.shards[shard].accepted();
    pass(us);
    let times = bench.shards[shard].begin_building(times);
    let key = bench.shards[shard].open(bench.now_ms).expect("room");
    bench.shards[shard].set_times(key, times);
    key
}

fn of(steps: &Steps, step: ConnectStep) -> Summary {
    steps.summaries().swap_remove(step as usize)
}

/// Running and waiting in microseconds, within what a histogram tells.
#[track_caller]
fn assert_took(steps: &Steps, step: ConnectStep, ran_us: u64, waited_us: u64) {
    let Summary { count, running, waiting, .. } = of(steps, step);
    assert_eq!(count, 1, "{step:?}");
    for (is, expected) in [(running.mean_us, ran_us), (waiting.mean_us, waited_us)] {
        // Beside the time that passes there are the looks at the clock.
        let range = expected as f64..=expected as f64 + 6.0;
        assert!(range.contains(&is), "{step:?}: {is} us, not {expected}");
    }
}

#[test]
fn a_hand_off_is_waited_for_and_the_client_is_not() {
    let mut bench = Bench::with(2, Limits::default());
    let steps = measured(&mut bench);
    let name = bench.name_on(1, "far");
    let mut bytes = Vec::new();
    encode(&Packet::Connect(request(Version::V5, &name, true)), Version::V5, &mut bytes);
    let key = open(&mut bench, 0, 70);
    pass(1_000_000); // the client takes its time
    let mut buffer = bench.shards[0].read_buffer(key);
    buffer.extend_from_slice(&bytes);
    let received = bench.shards[0].on_bytes(key, bytes.len(), buffer, bench.now_ms);
    assert_eq!(received.next, Next::Handoff(1));
    let times = bench.shards[0].take_times(key);
    bench.shards[0].on_handed_off(key);
    pass(500); // in the mailbox
    let times = bench.shards[1].begin_building(times);
    let key = bench.shards[1].open(bench.now_ms).expect("room");
    bench.shards[1].set_times(key, times);
    bench.shards[1].on_bytes(key, bytes.len(), received.handoff, bench.now_ms);
    pass(30); // until a writer comes
    assert_eq!(of(&steps, ConnectStep::StReport).count, 0, "not written yet");
    bench.run();
    for step in steps.summaries() {
        assert_eq!(step.count, 1, "{step:?}");
    }
    assert_took(&steps, ConnectStep::BuildConn, 2, 70);
    assert_took(&steps, ConnectStep::GetCluster, 2, 500);
    assert_took(&steps, ConnectStep::StReport, 1, 30);
    assert_took(&steps, ConnectStep::SessionProcess, 1, 0);
}

#[test]
fn verifying_runs_elsewhere() {
    let mut bench = access_bench(false, 10, 1);
    let steps = measured(&mut bench);
    let key = open(&mut bench, 0, 0);
    let client = Client { shard: 0, key, version: Version::V5 };
    let mut bytes = Vec::new();
    let connect = login(Version::V5, "c", "ann", "a");
    encode(&Packet::Connect(connect), Version::V5, &mut bytes);
    let next = bench.send_bytes(client, &bytes);
    assert!(check(next).run());
    pass(5_000);
    bench.shards[0].ran_elsewhere(key, Duration::from_micros(3_000));
    bench.shards[0].on_verified(key, Verified::Right, bench.now_ms);
    bench.run();
    assert!(matches!(bench.next(client), Packet::ConnAck(_)));
    assert_took(&steps, ConnectStep::LoginCheck, 3_000, 2_000);
}

#[test]
fn a_durable_session_waits_for_its_commit() {
    let mut bench = durable_bench();
    let steps = measured(&mut bench);
    let key = open(&mut bench, 0, 0);
    let client = Client { shard: 0, key, version: Version::V5 };
    let mut properties = PropertyBuf::new();
    properties.session_expiry_interval_s(3600);
    let properties = properties.as_properties();
    let connect = Connect { properties, ..request(Version::V5, "c", false) };
    let (commit, _) = owe(&mut bench, client, &Packet::Connect(connect));
    pass(8_000);
    let reply = Reply::Session { epoch: 7, generation: 7, present: false };
    answer(&mut bench, client, *commit, Ok(vec![reply]));
    assert!(matches!(bench.next(client), Packet::ConnAck(_)));
    assert_took(&steps, ConnectStep::SessionProcess, 2, 8_000);
    assert_took(&steps, ConnectStep::AddCache, 2, 0);
}

#[test]
fn a_refused_connect_counts_as_far_as_it_came() {
    let limits = Limits { max_connect_rate_per_s: 1, ..Limits::default() };
    let mut bench = Bench::with(1, limits);
    let steps = measured(&mut bench);
    for id in ["a", "b"] {
        let key = open(&mut bench, 0, 0);
        let client = Client { shard: 0, key, version: Version::V5 };
        bench.send(client, &Packet::Connect(request(Version::V5, id, true)));
    }
    // One more has no answer.
    let key = open(&mut bench, 0, 0);
    bench.end(Client { shard: 0, key, version: Version::V5 });
    let counts: Vec<u64> = steps.summaries().iter().map(|step| step.count).collect();
    assert_eq!(counts, [2, 2, 1, 2, 1, 1, 2]);
}

#[test]
fn without_a_clock_nothing_is_measured() {
    let mut bench = Bench::new();
    let off = StepOptions { enabled: false, ..StepOptions::default() };
    let steps = Arc::new(Steps::new(&CONNECT_STEPS, 1, off));
    bench.shards[0].measure_steps(now, steps.clone());
    assert!(bench.shards[0].accepted().is_none());
    let (_, next) = begin(&mut bench, &request(Version::V5, "c", true), &[]);
    assert_eq!(next, Next::Read);
    assert!(steps.summaries().is_empty());
}
