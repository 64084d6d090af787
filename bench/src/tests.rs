//! The generator against a broker whose faults are known.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::peer::{Faults, Made, Peer};
use crate::result::{DELIVERY, PER_SECOND, Run};
use crate::scenario::{conn, idle, pubsub, replay, stream, subs};

/// A featureless broker in a thread.
struct Running {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Made>>,
}

impl Running {
    fn start(faults: Faults) -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut peer = Peer::bind(SocketAddr::from(([127, 0, 0, 1], 0)), faults).unwrap();
            tell.send(peer.address().unwrap()).unwrap();
            peer.run(&seen).unwrap()
        });
        let address = told.recv().unwrap();
        Self { address, stop, thread: Some(thread) }
    }

    fn end(mut self) -> Made {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }

    /// Runs a scenario by its command line.
    fn scenario(&self, line: &str) -> Result<Run, String> {
        let line = format!("gearbox-bench {line} --address {}", self.address);
        scenario(&line)
    }
}

/// Runs a scenario by its command line.
fn scenario(line: &str) -> Result<Run, String> {
    let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|it| it.to_string())?;
    match cli.command {
        Command::Conn(args) => conn::run(&args),
        Command::Pubsub(args) => pubsub::run(&args),
        Command::Stream(args) => stream::run(&args),
        Command::Idle(args) => idle::run(&args),
        Command::Subs(args) => subs::run(&args),
        Command::Replay(args) => replay::run(&args),
        _ => panic!("no scenario: {line}"),
    }
}

/// Without faults, and with nothing lost at the end.
fn clean(line: &str) -> Run {
    let peer = Running::start(Faults::default());
    let run = peer.scenario(&format!("{line} --quiet 20")).unwrap();
    let made = peer.end();
    assert_eq!(run.problems, Vec::<String>::new(), "{line}");
    let account = run.account.unwrap();
    assert!(account.is_clean() && account.sent > 0 && account.received == account.sent);
    assert_eq!(made.deliveries, account.sent, "{line}: the peer counted the same");
    run
}

#[test]
fn every_shape_and_qos_is_counted_whole() {
    for line in [
        "pubsub --pairs 3 --qos 0 --seconds 0.1",
        "pubsub --pairs 3 --qos 1 --seconds 0.1 --size 24-5000",
        "pubsub --pairs 3 --qos 2 --seconds 0.1 --protocol 5",
        "pubsub --publishers 1 --subscribers 20 --seconds 0.1 --rate 500",
        "pubsub --publishers 20 --subscribers 2 --seconds 0.1 --qos 1 --rate 2000",
        "pubsub --publishers 3 --subscribers 4 --shared --seconds 0.1 --qos 1",
        "stream --producers 2 --topics 3 --seconds 0.1 --rate 3000",
        "subs --filters 300 --clients 5 --publishers 2 --seconds 0.1",
    ] {
        let run = clean(line);
        assert!(run.value(PER_SECOND).unwrap() > 0.0, "{line}");
        let open_loop = line.contains("--rate");
        assert_eq!(run.latencies(DELIVERY).is_some(), open_loop, "{line}");
        assert_eq!(run.latencies("lateness").is_some(), open_loop, "{line}");
    }
}

#[test]
fn the_open_loop_sends_exactly_what_is_due() {
    // A tenth of a second of warm-up, half a second measured.
    let run = clean("pubsub --pairs 7 --qos 1 --seconds 0.5 --warm-up 0.1 --rate 2000");
    assert_eq!(run.account.unwrap().sent, 1_200);
    for name in [DELIVERY, "acknowledgement"] {
        let latencies = run.latencies(name).unwrap().unwrap();
        assert_eq!((latencies.count(), latencies.missing), (1_000, 0), "{name}");
    }
}

#[test]
fn known_faults_are_reported_exactly() {
    let faults = Faults { drop_every: 7, double_every: 11, swap_every: 13 };
    let peer = Running::start(faults);
    let line = "pubsub --pairs 4 --seconds 0.5 --warm-up 0 --rate 4000";
    let run = peer.scenario(line).unwrap();
    let made = peer.end();
    let account = run.account.unwrap();
    assert_eq!(made.deliveries, 2_000);
    assert!(made.dropped > 200 && made.doubled > 100 && made.swapped > 100, "{made:?}");
    assert_eq!(account.sent, 2_000);
    assert_eq!(account.lost, made.dropped);
    assert_eq!(account.doubled, made.doubled);
    assert_eq!(account.reordered, made.swapped);
    assert_eq!(account.received, 2_000 - made.dropped);
    assert_eq!(run.faults.len(), 4, "each pair by itself");
    let latencies = run.latencies(DELIVERY).unwrap().unwrap();
    assert_eq!((latencies.count(), latencies.missing), (account.received, account.lost));
    assert!(run.problems.iter().any(|it| it.contains("messages lost")), "{:?}", run.problems);
}

#[test]
fn queues_are_filled_and_drained() {
    for qos in [1, 2] {
        let run = clean(&format!("replay --consumers 3 --messages 200 --qos {qos}"));
        assert_eq!(run.account.unwrap().sent, 600);
        assert!(run.value("drained, from coming back").unwrap() > 0.0);
    }
    let peer = Running::start(Faults { drop_every: 10, ..Faults::default() });
    let run = peer.scenario("replay --consumers 2 --messages 50").unwrap();
    peer.end();
    assert_eq!((run.account.unwrap().lost, run.account.unwrap().received), (10, 90));
    let peer = Running::start(Faults::default());
    assert!(peer.scenario("replay --qos 0").is_err());
    peer.end();
}

#[test]
fn storms_and_idle_connections() {
    let peer = Running::start(Faults::default());
    let at = format!("--address {}", peer.address);
    for more in ["", "--rate 2000", "--durable", "--durable --protocol 5"] {
        let line = format!("x conn --clients 50 --rounds 2 --hold 0 --pause 0 {at} {more}");
        let run = scenario(&line).unwrap();
        assert_eq!(run.problems, Vec::<String>::new(), "{line}");
        let latencies = run.latencies("connect, from own").unwrap().unwrap();
        assert_eq!(latencies.count(), 100, "{line}");
    }
    let own = std::process::id();
    let line = format!("x idle --connections 50 --hold 0.05 --subscribe --pid {own} {at}");
    let run = scenario(&line).unwrap();
    assert_eq!(run.problems, Vec::<String>::new());
    assert_eq!(run.value("connections"), Some(50.0));
    assert!(run.value("broker memory per connection").is_some());
    peer.end();
}

#[test]
fn a_broker_that_is_not_there_is_an_error() {
    // Nobody listens there.
    let error = scenario("x pubsub --pairs 2 --seconds 0.1 --address 127.0.0.1:1").unwrap_err();
    assert!(error.contains("could not be opened"), "{error}");
}

#[test]
fn a_broker_that_goes_away_is_a_problem_and_no_hang() {
    let peer = Running::start(Faults::default());
    let line =
        format!("x pubsub --pairs 2 --seconds 1 --quiet 0.2 --rate 100 --address {}", peer.address);
    let load = std::thread::spawn(move || scenario(&line));
    // The load cannot be over before the second that it measures.
    peer.end();
    match load.join().unwrap() {
        Ok(run) => assert!(run.problems.iter().any(|it| it.contains("ended by the broker"))),
        Err(error) => assert!(error.contains("could not be opened"), "{error}"),
    }
}
