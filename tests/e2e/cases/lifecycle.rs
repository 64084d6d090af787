//! Keep-alive, SIGTERM, and that nothing is left when clients have come and gone.

use crate::Case;
use crate::broker::{Broker, Options};
use crate::column::Column;
use crate::raw::{self, Got, Raw};
use crate::wait::until;
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    Case::smoke("lifecycle::sigterm_drains", sigterm_drains),
    Case::new("lifecycle::sigterm_one_shard", sigterm_one_shard),
    Case::smoke("lifecycle::keep_alive_closes_silent_clients", keep_alive),
    Case::new("lifecycle::ping_keeps_alive", ping_keeps_alive),
    Case::new("lifecycle::no_descriptor_left", no_descriptor_left),
];

/// The time that a drain may take, with room for a busy machine.
const DRAIN: Duration = Duration::from_secs(20);

fn sigterm_drains(column: &Column) {
    sigterm(column, 2);
}

fn sigterm_one_shard(column: &Column) {
    sigterm(column, 1);
}

fn sigterm(column: &Column, shards: usize) {
    let options = Options { shards, ..Options::default() };
    let mut broker = Broker::start_with(column, &options);
    let mut clients: Vec<Raw> = (0..50)
        .map(|n| {
            let version = if n % 2 == 0 { 5 } else { 4 };
            let mut client = Raw::connect(broker.mqtt, version, &format!("drain-{n}"), 60);
            client.subscribe("drain/#", 1);
            client
        })
        .collect();
    broker.terminate();
    for client in &mut clients {
        let before = client.until_closed(DRAIN).expect("a drain closes every client");
        let reasons: Vec<_> = before.iter().map(raw::Packet::reason).collect();
        if client.version == 5 {
            assert_eq!(reasons, [Some(0x8B)], "version 5 is told: server shutting down");
        } else {
            assert!(before.is_empty(), "version 4 knows no DISCONNECT from a server: {before:?}");
        }
    }
    let status = broker.exit_status(DRAIN);
    assert_eq!(status.code(), Some(0), "{status}");
}

/// A client is given one and a half times its keep-alive [MQTT-3.1.2-22].
fn keep_alive(column: &Column) {
    let broker = Broker::start(column);
    let mut silent: Vec<(Raw, Instant)> = [3, 4, 5, 4, 5]
        .into_iter()
        .enumerate()
        .map(|(n, version)| {
            let client = Raw::connect(broker.mqtt, version, &format!("silent-{n}"), 1);
            (client, Instant::now())
        })
        .collect();
    // Each on a thread of its own, so that one's wait does not delay the look at another.
    std::thread::scope(|scope| {
        for (client, since) in &mut silent {
            scope.spawn(|| {
                let before = client.until_closed(Duration::from_secs(10));
                let waited = since.elapsed();
                let before = before.expect("a silent client is closed");
                // The broker's clock starts with the CONNECT, a little before the CONNACK is here.
                let wanted = Duration::from_millis(1450)..Duration::from_millis(3000);
                assert!(wanted.contains(&waited), "v{} after {waited:?}", client.version);
                let reasons: Vec<_> = before.iter().map(raw::Packet::reason).collect();
                if client.version == 5 {
                    assert_eq!(reasons, [Some(0x8D)], "version 5 is told: keep alive timeout");
                } else {
                    assert!(before.is_empty(), "{before:?}");
                }
            });
        }
    });
}

/// Keep-alive 0 never times out, and any packet restarts the clock of others.
fn ping_keeps_alive(column: &Column) {
    let broker = Broker::start(column);
    let mut pinging = Raw::connect(broker.mqtt, 4, "pinging", 1);
    let mut publishing = Raw::connect(broker.mqtt, 5, "publishing", 1);
    let mut for_ever = Raw::connect(broker.mqtt, 5, "for-ever", 0);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(3500) {
        pinging.ping();
        publishing.send(&raw::publish(5, "alive", b"", 0, 0));
        // Half a keep-alive passes; the silence is what the test is about.
        assert_eq!(for_ever.next(Duration::from_millis(500)), Got::Silence);
    }
    pinging.ping();
    publishing.ping();
    for_ever.ping();
}

fn no_descriptor_left(column: &Column) {
    let broker = Broker::start(column);
    let visit = |n: usize| {
        let version = [3, 4, 5][n % 3];
        let mut client = Raw::connect(broker.mqtt, version, &format!("visitor-{n}"), 60);
        client.subscribe(&format!("visit/{n}"), 0);
        match n % 4 {
            0 => client.send(&[raw::DISCONNECT, 0]),
            1 => client.half_close(),
            2 => client.send(&raw::publish(version, "visit/all", b"", 3, 1)),
            _ => {}
        }
        client
    };
    // What is made on first use (buffers, wakers) is there before the base is taken.
    drop((0..24).map(visit).collect::<Vec<_>>());
    broker.metric_until("connections", |now| now == 0);
    let mut last = usize::MAX;
    let base = until("descriptors at rest", || {
        let now = broker.descriptors();
        let settled = now == last;
        last = now;
        settled.then_some(now)
    });
    for wave in 0..4 {
        let clients: Vec<Raw> = (0..50).map(|n| visit(1000 + wave * 50 + n)).collect();
        drop(clients);
    }
    broker.metric_until("connections", |now| now == 0);
    broker.metric_until("sessions", |now| now == 0);
    until("the descriptors of 200 clients to be gone", || {
        (broker.descriptors() <= base).then_some(())
    });
}
