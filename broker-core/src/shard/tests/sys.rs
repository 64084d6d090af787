//! `$SYS/`, the counters behind it, and what is refused by rate or by payload format.

use std::collections::HashMap;
use std::sync::Arc;

use mqtt::wire::{
    Ack, AckKind, Connect, Packet, PacketId, Properties, PropertyBuf, Publish, QoS, ReasonCode,
    Version, Will,
};

use super::{Bench, Client, publish_bytes, qos, request};
use crate::config::{Limits, QueueFull};
use crate::shard::{Sys, TICK_MS};
use crate::stats::Snapshot;

const NOT_UTF8: &[u8] = b"\xff\xfe";

/// A node whose first shard speaks every ten seconds, from the first tick on.
fn speaking(shards: usize, limits: Limits) -> Bench {
    let mut bench = Bench::with(shards, limits);
    let stats: Arc<[_]> = bench.stats.clone().into();
    let sys = Sys::new(10, stats, bench.now_ms).expect("an interval");
    bench.shards[0].speak_for_node(sys);
    bench
}

/// The messages that came, by topic; of each topic at most one.
fn heard(bench: &mut Bench, client: Client) -> HashMap<&'static str, &'static str> {
    let mut heard = HashMap::new();
    while let Some(packet) = bench.try_next(client) {
        let Packet::Publish(publish) = packet else { panic!("not a PUBLISH: {packet:?}") };
        assert_eq!(publish.qos, QoS::AtMostOnce);
        let value = std::str::from_utf8(publish.payload).expect("text");
        assert!(heard.insert(publish.topic, value).is_none(), "{} twice", publish.topic);
    }
    heard
}

fn sum(bench: &Bench) -> Snapshot {
    Snapshot::sum(&bench.stats.iter().map(|stats| stats.snapshot()).collect::<Vec<_>>())
}

fn refused(bench: &mut Bench, request: &Connect<'_>) -> ReasonCode {
    let client = bench.connect_with(request);
    let Packet::ConnAck(connack) = bench.next(client) else { panic!("no CONNACK") };
    assert_eq!(connack.reason.is_error(), bench.is_finished(client), "an error closes");
    connack.reason
}

#[test]
fn the_brokers_topics_reach_early_and_late_subscribers_of_every_shard() {
    // No room for users' retained messages: the broker's own need none.
    let mut bench = speaking(2, Limits { max_retained_messages: 0, ..Limits::default() });
    let early = bench.connect(Version::V5, &bench.name_on(1, "early"), true);
    bench.subscribe(early, "$SYS/#", qos(QoS::AtLeastOnce), 0);
    let other = bench.connect(Version::V5, &bench.name_on(1, "other"), true);
    for filter in ["#", "+/broker/uptime", "+/#"] {
        bench.subscribe(other, filter, qos(QoS::AtMostOnce), 0);
    }
    bench.pass_ms(TICK_MS);
    let first = heard(&mut bench, early);
    assert_eq!(first["$SYS/broker/clients/connected"], "2");
    assert_eq!(first["$SYS/broker/subscriptions/count"], "4");
    assert_eq!(first["$SYS/broker/shards/1/connections"], "2");
    assert_eq!(first["$SYS/broker/retained messages/count"], "0");
    bench.pass_ms(5_000);
    assert!(heard(&mut bench, early).is_empty(), "not before ten seconds are over");

    let late = bench.connect(Version::V3_1_1, &bench.name_on(0, "late"), true);
    bench.subscribe(late, "$SYS/broker/clients/+", qos(QoS::AtMostOnce), 0);
    let last_values = heard(&mut bench, late);
    assert_eq!(last_values.len(), 5);
    assert_eq!(last_values["$SYS/broker/clients/connected"], "2");

    bench.pass_ms(5_000);
    let changed = heard(&mut bench, early);
    assert_eq!(changed["$SYS/broker/clients/connected"], "3");
    assert_eq!(changed["$SYS/broker/clients/maximum"], "3");
    assert_eq!(changed["$SYS/broker/uptime"], "10");
    assert!(!changed.contains_key("$SYS/broker/version"), "it did not change");
    assert!(heard(&mut bench, other).is_empty(), "wildcards do not match [MQTT-4.7.2-1]");
    let all = sum(&bench);
    assert_eq!((all.retained_messages, all.retained_bytes, all.dropped_retained), (0, 0, 0));
}

#[test]
fn nothing_is_said_while_the_node_goes_down() {
    let mut bench = speaking(1, Limits::default());
    let client = bench.connect(Version::V5, "c", true);
    bench.subscribe(client, "$SYS/#", qos(QoS::AtMostOnce), 0);
    bench.shards[0].shut_down(bench.now_ms);
    bench.pass_ms(TICK_MS);
    assert!(matches!(bench.next(client), Packet::Disconnect(_)));
    assert!(heard(&mut bench, client).is_empty());
}

#[test]
fn clients_come_go_and_expire() {
    let mut bench = Bench::with(2, Limits::default());
    let mut properties = PropertyBuf::new();
    properties.session_expiry_interval_s(3);
    let keeps =
        Connect { properties: properties.as_properties(), ..request(Version::V5, "k", true) };
    let kept = bench.connect_with(&keeps);
    bench.next(kept);
    let gone = bench.connect(Version::V5, "g", true);
    bench.subscribe(gone, "$share/g/t", qos(QoS::AtMostOnce), 0);
    bench.subscribe(gone, "t", qos(QoS::AtMostOnce), 0);
    let all = sum(&bench);
    assert_eq!((all.clients_connected, all.sessions, all.connects_accepted), (2, 2, 2));
    assert_eq!((all.subscriptions, all.shared_subscriptions), (2, 1));
    assert_eq!((all.other_packets_received, all.other_packets_sent), (4, 4));
    // The same client again takes its session over.
    let again = bench.connect_with(&keeps);
    bench.next(again);
    assert_eq!(sum(&bench).clients_connected, 2);
    bench.end(kept);
    bench.end(again);
    bench.end(gone);
    let all = sum(&bench);
    assert_eq!((all.clients_connected, all.sessions), (0, 1));
    assert_eq!((all.subscriptions, all.shared_subscriptions), (0, 0));
    bench.pass_ms(3_000 + TICK_MS);
    let all = sum(&bench);
    assert_eq!((all.sessions, all.sessions_expired), (0, 1));
}

#[test]
fn what_sessions_hold_is_counted_until_it_is_gone() {
    let limits = Limits { max_inflight: 1, max_queued_messages: 4, ..Limits::default() };
    let mut bench = Bench::with(1, limits);
    let slow = bench.connect(Version::V5, "slow", true);
    bench.subscribe(slow, "t", qos(QoS::AtLeastOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    let held = |bench: &Bench| {
        let all = sum(bench);
        (all.inflight_messages, all.queued_messages, all.queued_bytes, all.slow_queues)
    };
    let mut seen = Vec::new();
    for _ in 0..5 {
        bench.publish(publisher, "t", "12", QoS::AtLeastOnce, false);
        seen.push(held(&bench));
    }
    let each = size_of::<mqtt::session::Queued>() as u64 + 3;
    let expected = [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)];
    assert_eq!(seen, expected.map(|(queued, slow)| (1, queued, queued * each, slow)));
    for _ in 0..2 {
        let Packet::Publish(publish) = bench.next(slow) else { panic!("no PUBLISH") };
        let ack = Ack {
            kind: AckKind::PubAck,
            packet_id: publish.packet_id.expect("QoS 1"),
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        };
        bench.send(slow, &Packet::Ack(ack));
    }
    assert_eq!(held(&bench), (1, 2, 2 * each, 0));
    bench.end(slow);
    assert_eq!(held(&bench), (0, 0, 0, 0));
}

#[test]
fn a_client_thrown_out_for_its_full_queue_is_counted_and_has_broken_no_rule() {
    let limits = Limits {
        max_inflight: 1,
        max_queued_messages: 1,
        queue_full: QueueFull::Disconnect,
        ..Limits::default()
    };
    let mut bench = Bench::with(2, limits);
    let slow = bench.connect(Version::V5, &bench.name_on(1, "slow"), true);
    bench.subscribe(slow, "t", qos(QoS::AtLeastOnce), 0);
    let publisher = bench.connect(Version::V5, &bench.name_on(0, "p"), true);
    for _ in 0..4 {
        bench.publish(publisher, "t", "x", QoS::AtLeastOnce, false);
    }
    let all = sum(&bench);
    assert_eq!((all.disconnected_queue_full, all.dropped_queue, all.protocol_errors), (1, 1, 0));
    assert!(bench.is_finished(slow));
}

#[test]
fn a_slow_outbox_is_seen_while_it_is_more_than_half_full() {
    let mut bench = Bench::with(1, Limits { max_outbox_bytes: 100, ..Limits::default() });
    let client = bench.connect(Version::V3_1_1, "c", true);
    bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
    let mut bytes = Vec::new();
    publish_bytes(&mut bytes, "t", &[b'x'; 35], false);
    bench.send_bytes(client, &bytes); // no writer runs in between
    assert_eq!(sum(&bench).slow_outboxes, 0);
    bench.send_bytes(client, &bytes.repeat(3));
    let all = sum(&bench);
    assert_eq!((all.slow_outboxes, all.dropped_outbox), (1, 2));
    bench.run();
    assert_eq!(sum(&bench).slow_outboxes, 0);
    // A connection that goes takes its mark along.
    bench.send_bytes(client, &bytes.repeat(2));
    assert_eq!(sum(&bench).slow_outboxes, 1);
    bench.end(client);
    let all = sum(&bench);
    assert_eq!((all.slow_outboxes, all.connections), (0, 0));
}

#[test]
fn connects_beyond_the_rate_are_turned_away_on_all_shards_together() {
    let mut bench = Bench::with(2, Limits { max_connect_rate_per_s: 2, ..Limits::default() });
    let names: Vec<String> = (0..4).map(|n| bench.name_on(n % 2, &format!("{n}-"))).collect();
    let connect =
        |bench: &mut Bench, version, n: usize| refused(bench, &request(version, &names[n], true));
    assert_eq!(connect(&mut bench, Version::V5, 0), ReasonCode::Success);
    assert_eq!(connect(&mut bench, Version::V3_1, 1), ReasonCode::Success);
    assert_eq!(connect(&mut bench, Version::V5, 2), ReasonCode::ConnectionRateExceeded);
    assert_eq!(connect(&mut bench, Version::V3_1_1, 3), ReasonCode::ServerUnavailable);
    // The client of a refused CONNECT keeps the session it has.
    assert_eq!(connect(&mut bench, Version::V5, 0), ReasonCode::ConnectionRateExceeded);
    let all = sum(&bench);
    assert_eq!((all.connects_accepted, all.connects_rate_limited), (2, 3));
    assert_eq!((all.clients_connected, all.takeovers, all.protocol_errors), (2, 0, 0));
    bench.pass_ms(500);
    assert_eq!(connect(&mut bench, Version::V5, 2), ReasonCode::Success);
    assert_eq!(connect(&mut bench, Version::V5, 3), ReasonCode::ConnectionRateExceeded);
}

#[test]
fn wills_that_could_not_be_published_are_refused() {
    let mut says_utf8 = PropertyBuf::new();
    says_utf8.payload_is_utf8(true);
    let says_utf8 = says_utf8.as_properties();
    let plain = Properties::EMPTY;
    let text = &b"t"[..];
    for (version, topic, payload, properties, expected) in [
        (Version::V5, "$SYS/broker/uptime", text, plain, ReasonCode::TopicNameInvalid),
        (Version::V3_1_1, "$SYS/broker/uptime", text, plain, ReasonCode::ServerUnavailable),
        (Version::V5, "$other", text, plain, ReasonCode::Success),
        (Version::V5, "w", NOT_UTF8, says_utf8, ReasonCode::PayloadFormatInvalid),
        (Version::V5, "w", text, says_utf8, ReasonCode::Success),
        (Version::V5, "w", NOT_UTF8, plain, ReasonCode::Success),
    ] {
        let mut bench = Bench::new();
        let will = Will { topic, payload, qos: QoS::AtMostOnce, retain: true, properties };
        let request = Connect { will: Some(will), ..request(version, "c", true) };
        assert_eq!(refused(&mut bench, &request), expected, "{topic}");
        assert_eq!(sum(&bench).sessions, u64::from(!expected.is_error()));
    }
}

#[test]
fn a_payload_must_be_what_it_is_announced_as() {
    let mut says_utf8 = PropertyBuf::new();
    says_utf8.payload_is_utf8(true);
    for (check, payload, good) in
        [(true, NOT_UTF8, false), (true, "\u{e9}".as_bytes(), true), (false, NOT_UTF8, true)]
    {
        for level in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut bench =
                Bench::with(1, Limits { check_payload_format: check, ..Limits::default() });
            let subscriber = bench.connect(Version::V5, "s", true);
            bench.subscribe(subscriber, "t", qos(QoS::AtMostOnce), 0);
            let client = bench.connect(Version::V5, "c", true);
            let publish = Publish {
                dup: false,
                qos: level,
                retain: true,
                topic: "t",
                packet_id: PacketId::new(7).filter(|_| level > QoS::AtMostOnce),
                properties: says_utf8.as_properties(),
                payload,
            };
            bench.send(client, &Packet::Publish(publish));
            assert_eq!(bench.try_next(subscriber).is_some(), good, "{level:?}");
            assert_eq!(sum(&bench).retained_messages, 0, "counted at the next tick");
            bench.pass_ms(TICK_MS);
            assert_eq!(sum(&bench).retained_messages, u64::from(good));
            let expected =
                if good { ReasonCode::Success } else { ReasonCode::PayloadFormatInvalid };
            match (level, bench.try_next(client)) {
                (QoS::AtMostOnce, None) => assert!(good),
                (QoS::AtMostOnce, Some(Packet::Disconnect(told))) => {
                    assert_eq!(told.reason, expected);
                    assert!(!good && bench.is_finished(client));
                }
                (_, Some(Packet::Ack(ack))) => {
                    assert_eq!(ack.reason, expected);
                    assert!(!bench.is_finished(client), "an acknowledgement says it all");
                }
                (_, other) => panic!("{other:?}"),
            }
        }
    }
}
