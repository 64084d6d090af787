//! Bounds, and what clients do wrong.

use mqtt::wire::{
    Connect, Packet, PacketId, Properties, PropertyBuf, Publish, QoS, ReasonCode, Version, encode,
};

use super::{Bench, Client, qos, request};
use crate::config::{Limits, QueueFull};
use crate::shard::Next;

/// The reason in the DISCONNECT that ends the connection, which must come.
#[track_caller]
fn told(bench: &mut Bench, client: Client) -> ReasonCode {
    bench.run();
    loop {
        match bench.next(client) {
            Packet::Disconnect(disconnect) => {
                assert!(bench.is_finished(client));
                return disconnect.reason;
            }
            Packet::Ack(_) => {}
            other => panic!("not a DISCONNECT: {other:?}"),
        }
    }
}

#[test]
fn nothing_is_answered_before_connect() {
    for bytes in [
        &[0xc0, 0][..],
        &[0x00],
        &[0xff],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x10, 0xff, 0xff, 0xff, 0xff],
    ] {
        let mut bench = Bench::new();
        let key = bench.shards[0].open(bench.now_ms).unwrap();
        let client = Client { shard: 0, key, version: Version::V5 };
        assert_eq!(bench.send_bytes(client, bytes), Next::Drain, "{bytes:x?}");
        bench.run();
        assert!(bench.try_next(client).is_none());
        assert!(bench.is_finished(client));
    }
}

#[test]
fn an_unknown_protocol_level_is_refused() {
    let mut bench = Bench::new();
    let key = bench.shards[0].open(bench.now_ms).unwrap();
    let client = Client { shard: 0, key, version: Version::V3_1_1 };
    let mut bytes = Vec::new();
    encode(&Packet::Connect(request(Version::V3_1_1, "c", true)), Version::V3_1_1, &mut bytes);
    bytes[8] = 9;
    bench.send_bytes(client, &bytes);
    bench.run();
    let Packet::ConnAck(connack) = bench.next(client) else { panic!("no CONNACK") };
    assert!(connack.reason.is_error());
    assert!(bench.is_finished(client));
}

#[test]
fn violations_end_the_connection_with_their_reason_and_disturb_nobody() {
    let second_connect = {
        let mut bytes = Vec::new();
        encode(&Packet::Connect(request(Version::V5, "bad", true)), Version::V5, &mut bytes);
        bytes
    };
    let cases: &[(&[u8], ReasonCode)] = &[
        (&second_connect, ReasonCode::ProtocolError),
        (&[0x20, 2, 0, 0], ReasonCode::ProtocolError), // a server's packet
        (&[0x30, 0xff, 0xff, 0xff, 0x7f], ReasonCode::PacketTooLarge), // 256 MiB
        (&[0x36, 3, 0, 1, b't'], ReasonCode::MalformedPacket), // QoS 3
        (&[0x32, 6, 0, 1, b't', 0, 0, 0], ReasonCode::ProtocolError), // identifier 0
        (&[0x30, 4, 0, 1, 0xff, 0], ReasonCode::MalformedPacket), // not UTF-8
        (&[0x30, 4, 0, 1, b'#', 0], ReasonCode::TopicNameInvalid),
        (&[0x80, 0], ReasonCode::MalformedPacket), // SUBSCRIBE with wrong flags
    ];
    for (bytes, reason) in cases {
        let mut bench = Bench::new();
        let neighbour = bench.connect(Version::V5, "good", true);
        bench.subscribe(neighbour, "t", qos(QoS::AtMostOnce), 0);
        let bad = bench.connect(Version::V5, "bad", true);
        bench.send_bytes(bad, bytes);
        assert_eq!(told(&mut bench, bad), *reason, "{bytes:x?}");
        bench.publish(neighbour, "t", "still here", QoS::AtMostOnce, false);
        assert_eq!(bench.payloads(neighbour), ["still here"]);
        bench.end(bad);
        assert_eq!(bench.stats[0].snapshot().connections, 1);
    }
}

#[test]
fn a_long_claim_takes_no_memory() {
    let mut bench = Bench::with(1, Limits { max_packet_size_bytes: u32::MAX, ..Limits::default() });
    let client = bench.connect(Version::V3_1_1, "c", true);
    bench.send_bytes(client, &[0x30, 0xff, 0xff, 0xff, 0x7f, 0, 1]);
    let buffer = bench.shards[0].read_buffer(client.key);
    assert!(buffer.capacity() < 64 << 10, "{} bytes for seven", buffer.capacity());
}

#[test]
fn more_than_the_receive_maximum_is_refused() {
    let mut bench = Bench::with(1, Limits { receive_maximum: 3, ..Limits::default() });
    let client = bench.connect(Version::V5, "c", true);
    for n in 1..=4 {
        let publish = Publish {
            dup: false,
            qos: QoS::ExactlyOnce,
            retain: false,
            topic: "t",
            packet_id: PacketId::new(n),
            properties: Properties::EMPTY,
            payload: b"",
        };
        bench.send(client, &Packet::Publish(publish));
    }
    assert_eq!(told(&mut bench, client), ReasonCode::ReceiveMaximumExceeded);
}

#[test]
fn the_clients_window_and_packet_size_are_kept() {
    let mut bench = Bench::new();
    let mut properties = PropertyBuf::new();
    properties.receive_maximum(2).maximum_packet_size_bytes(20);
    let wish =
        Connect { properties: properties.as_properties(), ..request(Version::V5, "c", true) };
    let client = bench.connect_with(&wish);
    assert!(matches!(bench.next(client), Packet::ConnAck(_)));
    bench.subscribe(client, "t", qos(QoS::AtLeastOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    // Header 2, topic 3, identifier 2, properties 1: 12 bytes of payload make 20.
    bench.publish(publisher, "t", "123456789012", QoS::AtLeastOnce, false);
    bench.publish(publisher, "t", "1234567890123", QoS::AtLeastOnce, false);
    bench.publish(publisher, "t", "b", QoS::AtLeastOnce, false);
    bench.publish(publisher, "t", "c", QoS::AtLeastOnce, false);
    assert_eq!(bench.payloads(client), ["123456789012", "b"]);
    let stats = bench.stats[0].snapshot();
    assert_eq!((stats.dropped_too_large, stats.queued_messages), (1, 1));
}

#[test]
fn full_queues_follow_their_policy() {
    for (policy, expected) in [
        (QueueFull::DropNew, vec!["0", "1"]),
        (QueueFull::DropOld, vec!["3", "4"]),
        (QueueFull::Disconnect, vec!["0", "1"]),
    ] {
        let limits = Limits {
            max_queued_messages: 2,
            max_inflight: 1,
            queue_full: policy,
            ..Limits::default()
        };
        let mut bench = Bench::with(1, limits);
        let absent = bench.connect(Version::V3_1_1, "absent", false);
        bench.subscribe(absent, "t", qos(QoS::AtLeastOnce), 0);
        bench.end(absent);
        let slow = bench.connect(Version::V5, "slow", true);
        bench.subscribe(slow, "t", qos(QoS::AtLeastOnce), 0);
        let publisher = bench.connect(Version::V5, "p", true);
        for n in 0..5 {
            bench.publish(publisher, "t", &n.to_string(), QoS::AtLeastOnce, false);
        }
        if policy == QueueFull::Disconnect {
            let Packet::Publish(_) = bench.next(slow) else { panic!("no PUBLISH") };
            assert_eq!(told(&mut bench, slow), ReasonCode::QuotaExceeded);
        } else {
            assert!(!bench.is_finished(slow));
        }
        let absent = bench.connect(Version::V3_1_1, "absent", false);
        let mut got = Vec::new();
        while let Some(Packet::Publish(publish)) = bench.try_next(absent) {
            got.push(std::str::from_utf8(publish.payload).unwrap());
            let ack = mqtt::wire::Ack {
                kind: mqtt::wire::AckKind::PubAck,
                packet_id: publish.packet_id.unwrap(),
                reason: ReasonCode::Success,
                properties: Properties::EMPTY,
            };
            bench.send(absent, &Packet::Ack(ack));
        }
        assert_eq!(got, expected, "{policy:?}");
        assert_eq!(
            bench.stats[0].snapshot().queued_messages,
            if policy == QueueFull::Disconnect { 0 } else { 2 }
        );
    }
}

#[test]
fn a_full_outbox_drops_qos_0_and_counts_it() {
    let mut bench = Bench::with(1, Limits { max_outbox_bytes: 100, ..Limits::default() });
    let client = bench.connect(Version::V3_1_1, "c", true);
    bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
    let mut bytes = Vec::new();
    let payload = [b'x'; 40];
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: None,
        properties: Properties::EMPTY,
        payload: &payload,
    };
    encode(&Packet::Publish(publish), Version::V3_1_1, &mut bytes);
    bench.send_bytes(client, &bytes.repeat(5)); // no writer runs in between
    bench.run();
    assert_eq!(bench.payloads(client).len(), 2);
    assert_eq!(bench.stats[0].snapshot().dropped_outbox, 3);
}

#[test]
fn connections_are_bounded() {
    let mut bench = Bench::with(2, Limits { max_connections: 2, ..Limits::default() });
    let now_ms = bench.now_ms;
    assert!(bench.shards[0].open(now_ms).is_some());
    let second = bench.shards[1].open(now_ms).unwrap();
    assert!(bench.shards[0].open(now_ms).is_none());
    bench.shards[1].on_end(second, now_ms);
    bench.run();
    assert!(bench.shards[0].open(now_ms).is_some());
    assert_eq!(bench.stats[0].snapshot().connections_refused, 1);
}
