//! Bounds, and what clients do wrong.

use mqtt::wire::{
    Connect, Packet, PacketId, Properties, PropertyBuf, Publish, QoS, ReasonCode, Version, encode,
};

use super::{Bench, Client, publish_bytes, qos, request};
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
fn a_reason_that_disconnect_must_not_have_becomes_a_general_one() {
    let mut bench = Bench::new();
    let client = bench.connect(Version::V5, "c", true);
    let mut bytes = Vec::new();
    encode(&Packet::Connect(request(Version::V5, "c", true)), Version::V5, &mut bytes);
    bytes[4] = b'X'; // of "MQTT"; alone it means 0x84, which only CONNACK may say
    bench.send_bytes(client, &bytes);
    assert_eq!(told(&mut bench, client), ReasonCode::ProtocolError);
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
    publish_bytes(&mut bytes, "t", &payload, false);
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

#[test]
fn a_second_connect_of_an_unknown_level_leaves_no_session_behind() {
    let mut bench = Bench::new();
    let bad = bench.connect(Version::V3_1_1, "bad", true);
    bench.subscribe(bad, "secret", qos(QoS::AtMostOnce), 0);
    let mut bytes = Vec::new();
    encode(&Packet::Connect(request(Version::V3_1_1, "bad", true)), Version::V3_1_1, &mut bytes);
    bytes[8] = 9;
    bench.send_bytes(bad, &bytes);
    bench.run();
    assert!(bench.is_finished(bad));
    assert!(bench.try_next(bad).is_none(), "no CONNACK in the middle of a connection");
    bench.end(bad);
    assert_eq!(bench.stats[0].snapshot().sessions, 0);
    // Gets the same slot, and nothing of what was there before.
    let stranger = bench.connect(Version::V3_1_1, "stranger", true);
    assert_eq!(stranger.key, bad.key);
    bench.publish(stranger, "secret", "x", QoS::AtMostOnce, false);
    assert!(bench.try_next(stranger).is_none());
}

#[test]
fn a_client_that_does_not_read_its_answers_is_not_read() {
    let mut bench = Bench::with(1, Limits { max_outbox_bytes: 4096, ..Limits::default() });
    let client = bench.connect(Version::V3_1_1, "c", true);
    let pings = [0xc0, 0].repeat(8_000);
    let mut next = Next::Read;
    let mut sent = 0;
    while next == Next::Read && sent < 100 {
        next = bench.send_bytes(client, &pings); // no writer runs in between
        sent += 1;
    }
    assert_eq!(next, Next::Wait, "after {sent} times {} bytes", pings.len());
    assert!(!bench.shards[0].may_read(client.key, bench.now_ms));
    bench.run();
    let answers = std::iter::from_fn(|| bench.try_next(client)).count();
    assert_eq!(answers, sent * 8_000, "late, but none is lost");
}

#[test]
fn a_small_payload_does_not_hold_on_to_a_large_block() {
    let mut bench = Bench::new();
    let client = bench.connect(Version::V3_1_1, "c", true);
    let mut bytes = Vec::new();
    let large = vec![b'x'; 1 << 20];
    for (payload, retain) in [(&large[..], false), (&large[..20_000], true)] {
        publish_bytes(&mut bytes, "t", payload, retain);
    }
    bench.send_bytes(client, &bytes);
    let mut kept = Vec::new();
    let mut cursor = mqtt::routing::ScanCursor::new();
    let store = bench.shards[0].fabric.retained.lock();
    store.scan("t", &mut cursor, 9, 0, |message| kept.push(message.clone()));
    let draft = kept[0].draft();
    let owner = draft.owner.cloned().expect("a shared payload").try_into_mut();
    drop(store);
    // The store still shares it, so it cannot be taken over; but it must be a block of its own.
    assert!(owner.is_err());
    assert_eq!(draft.payload.len(), 20_000);
    assert_eq!(draft.owner.map(|owner| owner.len()), Some(20_000));
}

#[test]
fn more_than_a_session_may_subscribe_is_refused() {
    let limits = Limits { max_subscription_bytes: 2_000, ..Limits::default() };
    let mut bench = Bench::with(1, limits);
    let client = bench.connect(Version::V5, "c", true);
    let mut codes = Vec::new();
    for n in 0..10 {
        let mut bytes = Vec::new();
        let filter = format!("a/b/c/{n}");
        let none = Properties::EMPTY;
        super::subscribe_bytes(&mut bytes, Version::V5, none, &filter, qos(QoS::AtMostOnce));
        bench.send_bytes(client, &bytes);
        bench.run();
        let Packet::SubAck(suback) = bench.next(client) else { panic!("no SUBACK") };
        codes.push(suback.codes[0]);
    }
    let granted = codes.iter().filter(|code| **code == 0).count();
    assert!((1..10).contains(&granted));
    assert!(codes[granted..].iter().all(|code| *code == ReasonCode::QuotaExceeded as u8));
}

#[test]
fn others_mail_does_not_keep_a_client_from_connecting() {
    let mut bench = Bench::with(2, Limits { max_mailbox_messages: 2, ..Limits::default() });
    let far = bench.connect(Version::V3_1_1, &bench.name_on(1, "far"), true);
    bench.subscribe(far, "t", qos(QoS::AtMostOnce), 0);
    let publisher = bench.connect(Version::V3_1_1, &bench.name_on(0, "near"), true);
    let mut bytes = Vec::new();
    publish_bytes(&mut bytes, "t", b"x", false);
    assert_eq!(bench.send_bytes(publisher, &bytes.repeat(10)), Next::Wait);
    assert!(bench.shards[0].is_congested());
    // No mail is carried in between.
    let name = bench.name_on(0, "new");
    let key = bench.shards[0].open(bench.now_ms).unwrap();
    let client = Client { shard: 0, key, version: Version::V3_1_1 };
    let mut bytes = Vec::new();
    encode(&Packet::Connect(request(Version::V3_1_1, &name, true)), Version::V3_1_1, &mut bytes);
    assert_eq!(bench.send_bytes(client, &bytes), Next::Read);
    assert!(!bench.shards[0].in_handshake(key));
    bench.run();
    assert_eq!(bench.payloads(far).len(), 10);
}
