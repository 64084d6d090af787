//! From publisher to subscriber.

use mqtt::wire::{
    Ack, AckKind, Connect, Packet, PacketId, Properties, PropertyBuf, QoS, ReasonCode, Version,
};

use super::{Bench, Client, publish_bytes, qos, request};
use crate::config::Limits;
use crate::shard::Next;
use mqtt::wire::{FilterBuf, RetainHandling, SubscribeOptions, Unsubscribe};

const VERSIONS: [Version; 3] = [Version::V3_1, Version::V3_1_1, Version::V5];

fn ack(bench: &mut Bench, client: Client, kind: AckKind, packet_id: PacketId) {
    let reason = ReasonCode::Success;
    bench
        .send(client, &Packet::Ack(Ack { kind, packet_id, reason, properties: Properties::EMPTY }));
}

#[track_caller]
fn expect_ack(bench: &mut Bench, client: Client, kind: AckKind) -> PacketId {
    match bench.next(client) {
        Packet::Ack(got) if got.kind == kind => got.packet_id,
        other => panic!("not a {kind:?}: {other:?}"),
    }
}

#[test]
fn every_qos_between_every_pair_of_versions() {
    for (from, to) in VERSIONS.iter().flat_map(|a| VERSIONS.map(|b| (*a, b))) {
        for level in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut bench = Bench::new();
            let publisher = bench.connect(from, "p", true);
            let subscriber = bench.connect(to, "s", true);
            bench.subscribe(subscriber, "a/+", qos(level), 0);
            bench.publish(publisher, "a/b", "hello", level, false);
            let Packet::Publish(got) = bench.next(subscriber) else { panic!("no PUBLISH") };
            assert_eq!(
                (got.topic, got.payload, got.qos, got.dup),
                ("a/b", &b"hello"[..], level, false)
            );
            match level {
                QoS::AtMostOnce => {}
                QoS::AtLeastOnce => {
                    expect_ack(&mut bench, publisher, AckKind::PubAck);
                    ack(&mut bench, subscriber, AckKind::PubAck, got.packet_id.unwrap());
                }
                QoS::ExactlyOnce => {
                    let id = expect_ack(&mut bench, publisher, AckKind::PubRec);
                    ack(&mut bench, publisher, AckKind::PubRel, id);
                    assert_eq!(expect_ack(&mut bench, publisher, AckKind::PubComp), id);
                    ack(&mut bench, subscriber, AckKind::PubRec, got.packet_id.unwrap());
                    let id = expect_ack(&mut bench, subscriber, AckKind::PubRel);
                    ack(&mut bench, subscriber, AckKind::PubComp, id);
                }
            }
            assert!(bench.try_next(publisher).is_none() && bench.try_next(subscriber).is_none());
            assert_eq!(bench.stats[0].snapshot().queued_messages, 0);
        }
    }
}

#[test]
fn a_repeated_qos_2_publish_is_answered_each_time_and_delivered_once() {
    let mut bench = Bench::new();
    let publisher = bench.connect(Version::V5, "p", true);
    let subscriber = bench.connect(Version::V5, "s", true);
    bench.subscribe(subscriber, "t", qos(QoS::AtMostOnce), 0);
    for _ in 0..3 {
        bench.publish(publisher, "t", "once", QoS::ExactlyOnce, false);
        expect_ack(&mut bench, publisher, AckKind::PubRec);
    }
    assert_eq!(bench.payloads(subscriber), ["once"]);
}

#[test]
fn packets_split_at_every_byte_and_many_packets_at_once() {
    let mut bytes = Vec::new();
    for n in 0..3 {
        publish_bytes(&mut bytes, "t", &[b'0' + n], false);
    }
    for at in 0..bytes.len() {
        let mut bench = Bench::new();
        let client = bench.connect(Version::V3_1_1, "c", true);
        bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
        assert_eq!(bench.send_bytes(client, &bytes[..at]), Next::Read);
        assert_eq!(bench.send_bytes(client, &bytes[at..]), Next::Read);
        bench.run();
        assert_eq!(bench.payloads(client), ["0", "1", "2"], "split at {at}");
    }
    let mut bench = Bench::new();
    let client = bench.connect(Version::V3_1_1, "c", true);
    bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
    bench.send_bytes(client, &bytes.repeat(1000));
    bench.run();
    assert_eq!(bench.payloads(client).len(), 3000);
}

#[test]
fn a_large_payload_arrives_piece_by_piece_and_is_shared() {
    let mut bench = Bench::new();
    let publisher = bench.connect(Version::V3_1_1, "p", true);
    let subscriber = bench.connect(Version::V5, "s", true);
    bench.subscribe(subscriber, "t", qos(QoS::AtMostOnce), 0);
    let payload = "x".repeat(1 << 20);
    let mut bytes = Vec::new();
    publish_bytes(&mut bytes, "t", payload.as_bytes(), false);
    for chunk in bytes.chunks(10_000) {
        bench.send_bytes(publisher, chunk);
    }
    bench.publish(publisher, "t", "after", QoS::AtMostOnce, false);
    let got = bench.payloads(subscriber);
    assert_eq!(got.len(), 2);
    assert!(got[0] == payload && got[1] == "after");
}

#[test]
fn overlapping_subscriptions_make_one_delivery_with_all_identifiers() {
    let mut bench = Bench::new();
    let client = bench.connect(Version::V5, "c", true);
    bench.subscribe(client, "a/b", qos(QoS::AtMostOnce), 7);
    bench.subscribe(client, "a/+", qos(QoS::AtLeastOnce), 8);
    bench.subscribe(client, "#", qos(QoS::AtMostOnce), 0);
    bench.publish(client, "a/b", "x", QoS::AtLeastOnce, false);
    let mut publishes = Vec::new();
    while let Some(packet) = bench.try_next(client) {
        if let Packet::Publish(publish) = packet {
            publishes.push(publish);
        }
    }
    assert_eq!(publishes.len(), 1);
    assert_eq!(publishes[0].qos, QoS::AtLeastOnce);
    let mut ids: Vec<u32> = publishes[0].properties.subscription_ids().collect();
    ids.sort_unstable();
    assert_eq!(ids, [7, 8]);
}

#[test]
fn no_local_and_retain_as_published() {
    let mut bench = Bench::new();
    let own = bench.connect(Version::V5, "own", true);
    let other = bench.connect(Version::V5, "other", true);
    let options = SubscribeOptions { no_local: true, ..qos(QoS::AtMostOnce) };
    bench.subscribe(own, "t", options, 0);
    let options = SubscribeOptions { retain_as_published: true, ..qos(QoS::AtMostOnce) };
    bench.subscribe(other, "t", options, 0);
    bench.publish(own, "t", "x", QoS::AtMostOnce, true);
    assert!(bench.try_next(own).is_none());
    let Packet::Publish(got) = bench.next(other) else { panic!("no PUBLISH") };
    assert!(got.retain);
}

#[test]
fn retained_messages_come_once_as_asked() {
    let mut bench = Bench::new();
    let publisher = bench.connect(Version::V5, "p", true);
    for (topic, payload) in [("a/1", "old"), ("a/1", "1"), ("a/2", "2"), ("b", "b"), ("a/3", "3")] {
        bench.publish(publisher, topic, payload, QoS::AtMostOnce, true);
    }
    bench.publish(publisher, "a/3", "", QoS::AtMostOnce, true);
    let client = bench.connect(Version::V5, "s", true);
    bench.subscribe(client, "a/+", qos(QoS::AtMostOnce), 0);
    assert_eq!(bench.payloads(client), ["1", "2"]);
    let handling = |retain_handling| SubscribeOptions { retain_handling, ..qos(QoS::AtMostOnce) };
    bench.subscribe(client, "a/+", handling(RetainHandling::IfNew), 0);
    bench.subscribe(client, "a/1", handling(RetainHandling::Never), 0);
    bench.subscribe(client, "$share/g/a/+", qos(QoS::AtMostOnce), 0);
    assert_eq!(bench.payloads(client), [""; 0]);
    bench.subscribe(client, "a/+", handling(RetainHandling::Always), 0);
    assert_eq!(bench.payloads(client), ["1", "2"]);
}

#[test]
fn many_retained_messages_are_paged_and_none_is_lost() {
    for level in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let limits = Limits { max_outbox_bytes: 4_000, max_inflight: 10, ..Limits::default() };
        let mut bench = Bench::with(1, limits);
        let publisher = bench.connect(Version::V5, "p", true);
        for n in 0..3_000 {
            bench.publish(publisher, &format!("r/{n}"), &n.to_string(), QoS::AtLeastOnce, true);
        }
        let client = bench.connect(Version::V5, "s", true);
        bench.subscribe(client, "#", qos(level), 0);
        let mut count = 0;
        while let Some(packet) = bench.try_next(client) {
            let Packet::Publish(publish) = packet else { panic!("not a PUBLISH") };
            count += 1;
            if let Some(id) = publish.packet_id {
                ack(&mut bench, client, AckKind::PubAck, id);
            }
        }
        assert_eq!(count, 3_000);
        assert_eq!(bench.stats[0].snapshot().dropped_outbox, 0);
    }
}

#[test]
fn shared_subscriptions_take_turns_on_one_shard_and_on_two() {
    for shards in [1, 2] {
        let mut bench = Bench::with(shards, Limits::default());
        let publisher = bench.connect(Version::V5, "publisher", true);
        let names = [bench.name_on(0, "a"), bench.name_on(shards as u8 - 1, "b")];
        let members = names.map(|name| bench.connect(Version::V5, &name, true));
        for member in members {
            bench.subscribe(member, "$share/group/t/#", qos(QoS::AtMostOnce), 0);
        }
        let plain = bench.connect(Version::V5, "plain", true);
        bench.subscribe(plain, "t/#", qos(QoS::AtMostOnce), 0);
        for n in 0..10 {
            bench.publish(publisher, "t/x", &n.to_string(), QoS::AtMostOnce, false);
        }
        assert_eq!(bench.payloads(plain).len(), 10);
        let shares = members.map(|member| bench.payloads(member).len());
        assert_eq!(shares, [5, 5], "{shards} shards");
        bench.end(members[0]);
        bench.publish(publisher, "t/x", "rest", QoS::AtMostOnce, false);
        assert_eq!(bench.payloads(members[1]), ["rest"]);
    }
}

#[test]
fn publishes_cross_shards_in_order_and_once() {
    let mut bench = Bench::with(3, Limits { max_mailbox_messages: 4, ..Limits::default() });
    let names: Vec<String> = (0..3).map(|shard| bench.name_on(shard, "client")).collect();
    let clients: Vec<Client> =
        names.iter().map(|name| bench.connect(Version::V5, name, true)).collect();
    for client in &clients {
        bench.subscribe(*client, "t", qos(QoS::AtLeastOnce), 0);
        bench.subscribe(*client, "+", qos(QoS::AtMostOnce), 0);
    }
    let expected: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    for payload in &expected {
        bench.publish(clients[0], "t", payload, QoS::AtMostOnce, false);
    }
    for client in &clients {
        assert_eq!(bench.payloads(*client), expected);
    }
    bench.end(clients[1]);
    bench.publish(clients[0], "t", "last", QoS::AtMostOnce, false);
    assert_eq!(bench.payloads(clients[2]), ["last"]);
}

#[test]
fn a_full_mailbox_pauses_the_publisher_and_loses_nothing() {
    let mut bench = Bench::with(2, Limits { max_mailbox_messages: 4, ..Limits::default() });
    let (near, far) = (bench.name_on(0, "near"), bench.name_on(1, "far"));
    let publisher = bench.connect(Version::V3_1_1, &near, true);
    let subscriber = bench.connect(Version::V3_1_1, &far, true);
    bench.subscribe(subscriber, "t", qos(QoS::AtMostOnce), 0);
    let mut bytes = Vec::new();
    for n in 0..50u8 {
        publish_bytes(&mut bytes, "t", &[b'0' + n], false);
    }
    assert_eq!(bench.send_bytes(publisher, &bytes), Next::Wait);
    bench.run();
    assert_eq!(bench.payloads(subscriber).len(), 50);
    assert!(bench.stats[0].snapshot().publisher_pauses >= 1);
}

#[test]
fn a_client_that_takes_aliases_gets_each_name_once() {
    let mut bench = Bench::new();
    let mut properties = PropertyBuf::new();
    properties.topic_alias_maximum(2).maximum_packet_size_bytes(60);
    let wish =
        Connect { properties: properties.as_properties(), ..request(Version::V5, "s", true) };
    let client = bench.connect_with(&wish);
    assert!(matches!(bench.next(client), Packet::ConnAck(_)));
    bench.subscribe(client, "#", qos(QoS::AtLeastOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    let long = "x".repeat(53); // fits without an alias only
    for (topic, payload) in
        [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("b", "5"), ("d", &*long)]
    {
        bench.publish(publisher, topic, payload, QoS::AtMostOnce, false);
    }
    let mut got = Vec::new();
    while let Some(Packet::Publish(publish)) = bench.try_next(client) {
        got.push((publish.topic, publish.properties.topic_alias()));
    }
    let expected = [
        ("a", Some(1)),
        ("b", Some(2)),
        ("", Some(1)),
        ("c", Some(2)), // b was used least recently
        ("b", Some(1)),
        ("d", None),
    ];
    assert_eq!(got, expected);
}

#[test]
fn what_a_leaving_member_was_owed_goes_to_another() {
    for shards in [1, 2] {
        let mut bench = Bench::with(shards, Limits { max_inflight: 2, ..Limits::default() });
        let names = [bench.name_on(0, "a"), bench.name_on(shards as u8 - 1, "b")];
        let publisher = bench.connect(Version::V5, "publisher", true);
        let leaving = bench.connect(Version::V5, &names[0], true);
        bench.subscribe(leaving, "$share/g/t", qos(QoS::ExactlyOnce), 0);
        for (payload, level) in [
            ("sent once", QoS::AtLeastOnce),
            ("sent twice", QoS::ExactlyOnce),
            ("queued 1", QoS::AtLeastOnce),
            ("queued 2", QoS::ExactlyOnce),
        ] {
            bench.publish(publisher, "t", payload, level, false);
            // QoS 2 publishes of this test reuse one identifier: end the exchange.
            ack(&mut bench, publisher, AckKind::PubRel, PacketId::new(77).unwrap());
        }
        assert_eq!(bench.payloads(leaving), ["sent once", "sent twice"]);
        let staying = bench.connect(Version::V5, &names[1], true);
        bench.subscribe(staying, "$share/g/t", qos(QoS::ExactlyOnce), 0);
        bench.end(leaving); // its session ends with it
        let mut got = Vec::new();
        while let Some(Packet::Publish(publish)) = bench.try_next(staying) {
            got.push((publish.payload, publish.dup));
            ack(&mut bench, staying, AckKind::PubAck, publish.packet_id.unwrap());
            ack(&mut bench, staying, AckKind::PubRec, publish.packet_id.unwrap());
        }
        // What was sent at QoS 2 goes to nobody else [MQTT-4.8.2-5].
        let expected =
            [&b"sent once"[..], b"queued 1", b"queued 2"].map(|payload| (payload, false));
        assert_eq!(got, expected, "{shards} shards");
        let queued: u64 = bench.stats.iter().map(|stats| stats.snapshot().queued_messages).sum();
        assert_eq!(queued, 0);
    }
}

#[test]
fn a_member_that_unsubscribes_leaves_its_queue_to_the_others() {
    let mut bench = Bench::with(1, Limits { max_inflight: 1, ..Limits::default() });
    let publisher = bench.connect(Version::V5, "p", true);
    let leaving = bench.connect(Version::V5, "a", true);
    bench.subscribe(leaving, "$share/g/t", qos(QoS::AtLeastOnce), 0);
    for payload in ["1", "2"] {
        bench.publish(publisher, "t", payload, QoS::AtLeastOnce, false);
    }
    assert_eq!(bench.payloads(leaving), ["1"]);
    let staying = bench.connect(Version::V5, "b", true);
    bench.subscribe(staying, "$share/g/t", qos(QoS::AtLeastOnce), 0);
    let mut filters = FilterBuf::for_unsubscribe();
    filters.push("$share/g/t", SubscribeOptions::default());
    bench.send(
        leaving,
        &Packet::Unsubscribe(Unsubscribe {
            packet_id: PacketId::MIN,
            properties: Properties::EMPTY,
            filters: filters.as_filters(),
        }),
    );
    assert!(matches!(bench.next(leaving), Packet::UnsubAck(_)));
    assert_eq!(bench.payloads(staying), ["2"]);
    assert_eq!(bench.stats[0].snapshot().queued_messages, 0);
}

#[test]
fn share_groups_prefer_connected_members_on_whatever_shard() {
    use crate::config::SharedStrategy::{HashTopic, LeastInflight, RoundRobin, Sticky};
    for shared_strategy in [RoundRobin, LeastInflight, Sticky, HashTopic] {
        let mut bench = Bench::with(2, Limits { shared_strategy, ..Limits::default() });
        let publisher = bench.connect(Version::V5, "publisher", true);
        let absent = bench.connect(Version::V3_1_1, &bench.name_on(0, "absent"), false);
        bench.subscribe(absent, "$share/g/t", qos(QoS::AtLeastOnce), 0);
        bench.end(absent);
        let present = bench.connect(Version::V3_1_1, &bench.name_on(1, "present"), true);
        bench.subscribe(present, "$share/g/t", qos(QoS::AtLeastOnce), 0);
        for n in 0..6 {
            bench.publish(publisher, "t", &n.to_string(), QoS::AtMostOnce, false);
        }
        assert_eq!(bench.payloads(present).len(), 6, "{shared_strategy:?}");
        bench.end(present);
        // Nobody is there: the one that will come back gets it.
        bench.publish(publisher, "t", "kept", QoS::AtLeastOnce, false);
        let back = bench.connect(Version::V3_1_1, &bench.name_on(0, "absent"), false);
        assert_eq!(bench.payloads(back), ["kept"], "{shared_strategy:?}");
    }
}
