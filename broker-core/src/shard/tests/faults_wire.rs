//! The rest of the faults of `faults`: retained messages, subscriptions, and the wire.

use mqtt::wire::{
    Connect, Packet, PropertyBuf, Publish, QoS, ReasonCode, RetainHandling, SubscribeOptions,
    Version, encode,
};
use rt_abstract::Piece;

use super::faults::{ack, connect, message, publishes, resume, texts, told, wishes};
use super::{Bench, Client, qos, request};
use crate::config::Limits;
use crate::shard::conn::PROGRESS_BYTES;
use crate::shard::{Output, Write};
use mqtt::wire::AckKind;

fn handling(retain_handling: RetainHandling) -> SubscribeOptions {
    SubscribeOptions { retain_handling, ..qos(QoS::AtLeastOnce) }
}

fn unsubscribe(bench: &mut Bench, client: Client, filter: &str) {
    let mut filters = mqtt::wire::FilterBuf::for_unsubscribe();
    filters.push(filter, SubscribeOptions::default());
    let unsubscribe = mqtt::wire::Unsubscribe {
        packet_id: mqtt::wire::PacketId::MIN,
        properties: mqtt::wire::Properties::EMPTY,
        filters: filters.as_filters(),
    };
    bench.send(client, &Packet::Unsubscribe(unsubscribe));
    assert!(matches!(bench.next(client), Packet::UnsubAck(ack) if ack.codes == [0]));
}

#[test]
fn fault_13_expired_retained_messages_stay_until_somebody_asks() {
    let mut bench = Bench::new();
    let publisher = bench.connect(Version::V5, "p", true);
    let mut expiry = PropertyBuf::new();
    expiry.message_expiry_interval_s(2);
    for topic in ["a", "b"] {
        let publish = Publish {
            retain: true,
            properties: expiry.as_properties(),
            ..message(topic, b"short", 0)
        };
        bench.send(publisher, &Packet::Publish(publish));
    }
    bench.publish(publisher, "c", "for ever", QoS::AtMostOnce, true);
    let held = |bench: &Bench| bench.shards[0].fabric.retained.lock().size();
    assert_eq!(held(&bench), (3, 2 * 6 + 9));
    bench.pass_ms(2_100);
    assert_eq!(held(&bench), (1, 9), "nobody subscribed, and the memory is free");
    assert_eq!(bench.stats[0].snapshot().retained_messages, 1);
}

#[test]
fn fault_14_a_resumed_session_forgets_retain_handling_and_retain_as_published() {
    let mut bench = Bench::new();
    let publisher = bench.connect(Version::V5, "p", true);
    bench.publish(publisher, "t", "1", QoS::AtLeastOnce, true);
    let wishes = wishes(100, 0);
    let (client, _) = resume(&mut bench, "s", &wishes);
    let options = SubscribeOptions { retain_as_published: true, ..handling(RetainHandling::IfNew) };
    bench.subscribe(client, "t", options, 0);
    let got = publishes(&mut bench, client);
    assert_eq!(got.len(), 1, "a new subscription");
    ack(&mut bench, client, AckKind::PubAck, got[0].packet_id.unwrap());
    bench.end(client);
    bench.publish(publisher, "t", "2", QoS::AtLeastOnce, true);
    bench.publish(publisher, "t", "3", QoS::AtLeastOnce, false);
    let (client, present) = resume(&mut bench, "s", &wishes);
    assert!(present);
    let got = publishes(&mut bench, client);
    let got: Vec<_> = got.iter().map(|publish| (publish.payload, publish.retain)).collect();
    assert_eq!(got, [(&b"2"[..], true), (&b"3"[..], false)], "the flag passed the queue");
    // The subscription is in the session still: not a new one.
    bench.subscribe(client, "t", options, 0);
    assert_eq!(texts(&mut bench, client), [""; 0]);
}

#[test]
fn fault_15_share_groups_get_retained_messages_and_keep_members_that_left() {
    for shards in [1, 2] {
        let mut bench = Bench::with(shards, Limits::default());
        let publisher = bench.connect(Version::V5, "p", true);
        bench.publish(publisher, "t", "retained", QoS::AtMostOnce, true);
        let names = [bench.name_on(0, "a"), bench.name_on(shards as u8 - 1, "b")];
        let [one, two] = names.map(|name| bench.connect(Version::V5, &name, true));
        for member in [one, two] {
            bench.subscribe(member, "$share/g/t", qos(QoS::AtMostOnce), 0);
            assert_eq!(texts(&mut bench, member), [""; 0]);
        }
        unsubscribe(&mut bench, one, "$share/g/t");
        for n in 0..4 {
            bench.publish(publisher, "t", &n.to_string(), QoS::AtMostOnce, false);
        }
        assert_eq!(texts(&mut bench, one), [""; 0]);
        assert_eq!(texts(&mut bench, two), ["0", "1", "2", "3"], "{shards} shards");
    }
}

#[test]
fn fault_16_a_large_wildcard_delivery_of_retained_messages_is_cut_short() {
    // Queues and outboxes smaller than one page of the scan.
    for level in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let limits = Limits {
            max_outbox_bytes: 4_000,
            max_inflight: 10,
            max_queued_messages: 20,
            ..Limits::default()
        };
        let mut bench = Bench::with(1, limits);
        let publisher = bench.connect(Version::V5, "p", true);
        let payload = "x".repeat(100);
        for n in 0..1_000 {
            bench.publish(publisher, &format!("r/{n}"), &payload, QoS::AtLeastOnce, true);
        }
        let client = bench.connect(Version::V5, "s", true);
        bench.subscribe(client, "#", qos(level), 0);
        let mut topics = std::collections::BTreeSet::new();
        while let Some(packet) = bench.try_next(client) {
            let Packet::Publish(publish) = packet else { panic!("not a PUBLISH") };
            assert!(topics.insert(publish.topic), "{} came twice", publish.topic);
            if let Some(id) = publish.packet_id {
                ack(&mut bench, client, AckKind::PubAck, id);
            }
        }
        let stats = bench.stats[0].snapshot();
        assert_eq!((stats.dropped_outbox, stats.dropped_queue), (0, 0), "{level:?}");
        assert_eq!(topics.len(), 1_000, "{level:?}");
    }
}

#[test]
fn fault_17_each_new_subscriber_copies_the_retained_payload() {
    let mut bench = Bench::new();
    let publisher = bench.connect(Version::V5, "p", true);
    let payload = "x".repeat(64 << 10);
    bench.publish(publisher, "t", &payload, QoS::AtMostOnce, true);
    let mut addresses = Vec::new();
    for (name, level) in [("a", QoS::AtMostOnce), ("b", QoS::AtLeastOnce)] {
        let client = bench.connect(Version::V5, name, true);
        let mut bytes = Vec::new();
        let properties = mqtt::wire::Properties::EMPTY;
        super::subscribe_bytes(&mut bytes, Version::V5, properties, "t", qos(level));
        bench.send_bytes(client, &bytes);
        let shard = &mut bench.shards[0];
        assert_eq!(shard.take_dirty(), Some(client.key));
        while let Write::Output(output) = shard.next_write(client.key, 1_000) {
            if let Output::Pieces(pieces) = &output {
                let shared = pieces.iter().filter_map(|piece| match piece {
                    Piece::Shared(bytes) => Some((bytes.as_ptr(), bytes.len())),
                    Piece::Owned(_) => None,
                });
                addresses.extend(shared);
            }
            shard.on_written(client.key, output, true, 1_000);
        }
    }
    assert_eq!(addresses.len(), 2, "both are sent without a copy");
    assert_eq!(addresses[0], addresses[1], "of the same memory");
    assert_eq!(addresses[0].1, payload.len());
}

#[test]
fn fault_18_a_clients_subscription_identifier_passes_and_overlaps_lose_the_highest_qos() {
    let mut bench = Bench::new();
    let subscriber = bench.connect(Version::V5, "s", true);
    bench.subscribe(subscriber, "a/b", qos(QoS::ExactlyOnce), 1);
    bench.subscribe(subscriber, "a/+", qos(QoS::AtMostOnce), 2);
    bench.subscribe(subscriber, "a/#", qos(QoS::AtLeastOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    bench.send(publisher, &Packet::Publish(message("a/b", b"x", 3)));
    let got = publishes(&mut bench, subscriber);
    let levels: Vec<QoS> = got.iter().map(|publish| publish.qos).collect();
    assert_eq!(levels, [QoS::ExactlyOnce], "one delivery, of the highest");
    let mut ids: Vec<u32> = got[0].properties.subscription_ids().collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);

    let mut properties = PropertyBuf::new();
    properties.subscription_id(1);
    let forged = Publish { properties: properties.as_properties(), ..message("a/b", b"y", 0) };
    bench.send(publisher, &Packet::Publish(forged));
    assert_eq!(told(&mut bench, publisher), ReasonCode::ProtocolError);
    assert_eq!(texts(&mut bench, subscriber), [""; 0]);
}

#[test]
fn fault_19_a_publishers_topic_alias_reaches_subscribers() {
    let mut bench = Bench::new();
    let subscriber = bench.connect(Version::V5, "s", true);
    bench.subscribe(subscriber, "t", qos(QoS::AtMostOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    for (topic, payload) in [("t", "named"), ("", "by its alias")] {
        let mut properties = PropertyBuf::new();
        properties.user_property("before", "").topic_alias(3).user_property("behind", "");
        let properties = properties.as_properties();
        let publish = Publish { properties, ..message(topic, payload.as_bytes(), 0) };
        bench.send(publisher, &Packet::Publish(publish));
        let got = publishes(&mut bench, subscriber);
        assert_eq!(got.len(), 1);
        // This client allows no aliases: its default is none.
        assert_eq!((got[0].topic, got[0].properties.topic_alias()), ("t", None));
        let names: Vec<_> = got[0].properties.user_properties().map(|(name, _)| name).collect();
        assert_eq!(names, ["before", "behind"]);
        assert_eq!(got[0].payload, payload.as_bytes());
    }
}

#[test]
fn fault_20_packet_size_limits_are_off_by_one_or_leave_the_header_out() {
    for (size, fits) in [(100, true), (101, false)] {
        // What the server takes.
        let mut bench = Bench::with(1, Limits { max_packet_size_bytes: 100, ..Limits::default() });
        let publisher = bench.connect(Version::V5, "p", true);
        let payload = vec![b'x'; size - 2 - 3 - 1]; // header, topic, property length
        let mut bytes = Vec::new();
        encode(&Packet::Publish(message("t", &payload, 0)), Version::V5, &mut bytes);
        assert_eq!(bytes.len(), size);
        bench.send_bytes(publisher, &bytes);
        bench.run();
        assert_eq!(bench.is_finished(publisher), !fits, "{size} bytes");
        if !fits {
            assert_eq!(told(&mut bench, publisher), ReasonCode::PacketTooLarge);
        }
        // What the client takes.
        let mut bench = Bench::new();
        let mut properties = PropertyBuf::new();
        properties.maximum_packet_size_bytes(100);
        let properties = properties.as_properties();
        let wish = Connect { properties, ..request(Version::V5, "s", true) };
        let (subscriber, _) = connect(&mut bench, &wish);
        bench.subscribe(subscriber, "t", qos(QoS::AtMostOnce), 0);
        let publisher = bench.connect(Version::V5, "p", true);
        bench.send_bytes(publisher, &bytes);
        bench.run();
        assert_eq!(publishes(&mut bench, subscriber).len(), usize::from(fits), "{size} bytes");
        assert!(!bench.is_finished(subscriber), "too large for it is no fault of its");
    }
}

/// The clock that shards are given is monotonic, and the only one they have: there is nothing a
/// change of the wall clock could reach. Here: the edges of what is counted on it.
#[test]
fn fault_21_keep_alive_kicks_clients_that_keep_to_it_or_send_a_long_packet() {
    let limits = Limits { max_keep_alive_s: 20, ..Limits::default() };
    let mut bench = Bench::with(1, limits);
    // Exactly the maximum: granted as it is, and one and a half times of it are waited for.
    let wish = Connect { keep_alive_s: 20, ..request(Version::V5, "c", true) };
    let client = bench.connect_with(&wish);
    let Packet::ConnAck(connack) = bench.next(client) else { panic!("no CONNACK") };
    assert_eq!(connack.properties.server_keep_alive_s(), None);
    for _ in 0..3 {
        bench.pass_ms(29_900);
        assert!(!bench.is_finished(client));
        bench.send(client, &Packet::PingReq);
        assert_eq!(bench.next(client), Packet::PingResp);
    }
    // A PUBLISH of 100 KB that takes longer than the interval.
    let mut long = Vec::new();
    let payload = vec![b'x'; 100_000];
    encode(&Packet::Publish(message("t", &payload, 0)), Version::V5, &mut long);
    for part in long.chunks(long.len() / 5) {
        assert!(part.len() > PROGRESS_BYTES as usize || part.len() < 5);
        bench.pass_ms(25_000);
        bench.send_bytes(client, part);
        bench.run();
        assert!(!bench.is_finished(client));
    }
    bench.pass_ms(30_200);
    assert_eq!(told(&mut bench, client), ReasonCode::KeepAliveTimeout);
    // The longest that the protocol can express.
    let mut bench = Bench::new();
    let wish = Connect { keep_alive_s: u16::MAX, ..request(Version::V3_1_1, "c", true) };
    let (client, _) = connect(&mut bench, &wish);
    bench.now_ms += 60_000_000;
    bench.pass_ms(200);
    assert!(!bench.is_finished(client));
}

#[test]
fn fault_22_packets_in_pieces_or_in_heaps_are_misread() {
    let mut bytes = Vec::new();
    for (payload, id) in [(&b"0"[..], 0), (b"1", 1), (b"2", 0)] {
        encode(&Packet::Publish(message("t", payload, id)), Version::V5, &mut bytes);
    }
    for at in 1..bytes.len() {
        let mut bench = Bench::new();
        let client = bench.connect(Version::V5, "c", true);
        bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
        bench.send_bytes(client, &bytes[..at]);
        bench.send_bytes(client, &bytes[at..]);
        bench.run();
        assert_eq!(texts(&mut bench, client), ["0", "1", "2"], "split at {at}");
    }
    let mut bench = Bench::new();
    let client = bench.connect(Version::V5, "c", true);
    bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
    for byte in &bytes {
        bench.send_bytes(client, std::slice::from_ref(byte));
    }
    bench.run();
    assert_eq!(texts(&mut bench, client), ["0", "1", "2"], "byte by byte");
    let mut heap = Vec::new();
    for n in 0..1_000 {
        encode(&Packet::Publish(message("t", n.to_string().as_bytes(), 0)), Version::V5, &mut heap);
    }
    bench.send_bytes(client, &heap);
    bench.run();
    let expected: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
    assert_eq!(texts(&mut bench, client), expected);
}

#[test]
fn fault_23_subscriptions_below_a_dollar_level_match_nothing() {
    for shards in [1, 2] {
        let mut bench = Bench::with(shards, Limits::default());
        let (near, far) = (bench.name_on(0, "p"), bench.name_on(shards as u8 - 1, "s"));
        let publisher = bench.connect(Version::V5, &near, true);
        let subscriber = bench.connect(Version::V5, &far, true);
        for (filter, wanted) in [
            ("$x/#", true),
            ("$x/+", true),
            ("$x/y", true),
            ("$share/g/$x/#", true),
            ("#", false),
            ("+/y", false),
            ("+/#", false),
        ] {
            bench.subscribe(subscriber, filter, handling(RetainHandling::Always), 0);
            bench.publish(publisher, "$x/y", filter, QoS::AtMostOnce, false);
            let got = texts(&mut bench, subscriber);
            assert_eq!(got.len(), usize::from(wanted), "{filter}, {shards} shards");
            unsubscribe(&mut bench, subscriber, filter);
        }
        // Retained ones are found by the same rule.
        bench.publish(publisher, "$x/y", "kept", QoS::AtMostOnce, true);
        bench.subscribe(subscriber, "#", handling(RetainHandling::Always), 0);
        assert_eq!(texts(&mut bench, subscriber), [""; 0]);
        bench.subscribe(subscriber, "$x/#", handling(RetainHandling::Always), 0);
        assert_eq!(texts(&mut bench, subscriber), ["kept"]);
    }
}
