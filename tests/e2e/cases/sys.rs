//! What the broker says below `$SYS/`, and CONNECTs that come too fast.

use crate::Case;
use crate::broker::{Broker, Options};
use crate::column::Column;
use crate::raw::{self, Got, Raw};
use crate::wait::{PATIENCE, left};
use std::time::Instant;

pub const CASES: &[Case] = &[
    Case::smoke("sys::topics_follow_the_broker", topics),
    Case::new("sys::connect_rate_is_kept", connect_rate),
    Case::new("sys::payload_format_is_checked", payload_format),
];

const CONNECTED: &str = "$SYS/broker/clients/connected";

fn topics(column: &Column) {
    let environment = &[("GEARBOX_SYS__INTERVAL_S", "1")];
    let broker = Broker::start_with(column, &Options { environment, ..Options::default() });
    let mut everything = Raw::connect(broker.mqtt, 5, "everything", 60);
    everything.subscribe("#", 0);
    everything.subscribe("+/broker/clients/connected", 0);
    let mut watcher = Raw::connect(broker.mqtt, 5, "watcher", 60);
    watcher.subscribe("$SYS/#", 0);
    until_said(&mut watcher, CONNECTED, "2");
    let more: Vec<Raw> =
        (0..3).map(|n| Raw::connect(broker.mqtt, 4, &format!("more-{n}"), 60)).collect();
    until_said(&mut watcher, CONNECTED, "5");
    drop(more);
    until_said(&mut watcher, CONNECTED, "2");
    // A late subscriber need not wait for a change.
    let mut late = Raw::connect(broker.mqtt, 4, "late", 60);
    late.subscribe("$SYS/broker/version", 1);
    let version = format!("gearbox {}", env!("CARGO_PKG_VERSION"));
    let (topic, payload, _) = late.expect(raw::PUBLISH).publish(4);
    assert_eq!((topic.as_str(), payload), ("$SYS/broker/version", version.into_bytes()));
    // Nobody else may speak there, and nobody's retained message is there.
    late.send(&raw::publish(4, CONNECTED, b"9999", 1, 1));
    late.expect(raw::PUBACK);
    until_said(&mut watcher, CONNECTED, "3");
    assert!(broker.metric("retained_messages").iter().all(|&count| count == 0));
    // A leading wildcard has seen nothing of it [MQTT-4.7.2-1].
    everything.ping();
}

/// Waits until a topic says `wanted`; other topics and values may come before.
fn until_said(client: &mut Raw, wanted: &str, value: &str) {
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    loop {
        match client.next(left(deadline)) {
            Got::Packet(packet) if packet.head & 0xF0 == raw::PUBLISH => {
                let (topic, payload, _) = packet.publish(5);
                assert!(topic.starts_with("$SYS/broker/"), "{topic}");
                assert_ne!(payload, b"9999", "a client's message");
                if topic == wanted {
                    if payload == value.as_bytes() {
                        return;
                    }
                    last = Some(payload);
                }
            }
            other => panic!("{wanted} did not become {value} ({last:?}): {other:?}"),
        }
    }
}

fn connect_rate(column: &Column) {
    let environment = &[("GEARBOX_LIMITS__MAX_CONNECT_RATE_PER_S", "2")];
    let broker = Broker::start_with(column, &Options { environment, ..Options::default() });
    // Far more than a slow machine could spread over the time that their tokens take.
    let mut clients: Vec<Raw> = (0..60)
        .map(|n| {
            let version = [3, 4, 5][n % 3];
            let mut client = Raw::open(broker.mqtt, version);
            client.send(&raw::connect(version, &format!("fast-{n}"), 60));
            client
        })
        .collect();
    let mut refused = 0;
    for client in &mut clients {
        let code = client.expect(raw::CONNACK).reason();
        let too_fast = if client.version == 5 { 0x9F } else { 3 };
        if code == Some(0) {
            continue;
        }
        assert_eq!(code, Some(too_fast), "version {}", client.version);
        assert!(client.until_closed(PATIENCE).is_ok(), "a refused client stays connected");
        refused += 1;
    }
    assert!(refused > 0, "all 60 were let in");
    assert_eq!(broker.metric("connects_rate_limited").iter().sum::<u64>(), refused);
    assert_eq!(broker.metric("connects_accepted").iter().sum::<u64>(), 60 - refused);
}

fn payload_format(column: &Column) {
    let broker = Broker::start(column);
    let mut subscriber = Raw::connect(broker.mqtt, 5, "format-subscriber", 60);
    subscriber.subscribe("format", 0);
    let says_utf8 = &[0x01, 0x01];
    let publish = |qos: u8, payload: &[u8]| {
        raw::publish_raw(5, raw::PUBLISH | qos << 1, b"format", says_utf8, payload, 1)
    };
    let mut client = Raw::connect(broker.mqtt, 5, "format-publisher", 60);
    client.send(&publish(1, b"\xff"));
    assert_eq!(client.expect(raw::PUBACK).body.get(2), Some(&0x99));
    client.send(&publish(1, "\u{e9}".as_bytes()));
    client.expect(raw::PUBACK);
    let (_, payload, _) = subscriber.expect(raw::PUBLISH).publish(5);
    assert_eq!(payload, "\u{e9}".as_bytes(), "only what is as announced comes through");
    client.send(&publish(0, b"\xff"));
    let before = client.until_closed(PATIENCE).expect("QoS 0 has no other answer");
    assert_eq!(before.iter().map(raw::Packet::reason).collect::<Vec<_>>(), [Some(0x99)]);
    subscriber.ping();
}
