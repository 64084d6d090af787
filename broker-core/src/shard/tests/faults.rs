//! Faults that other brokers really had, one test each: the symptom in the name, the right
//! behaviour in the assertions. Sessions, identifiers and wills here, messages and the wire in
//! `faults_wire`; the numbers run through both.

use mqtt::wire::{
    Ack, AckKind, Connect, Packet, PacketId, Properties, PropertyBuf, Publish, QoS, ReasonCode,
    Version, Will,
};

use super::{Bench, Client, qos, request};
use crate::config::Limits;

pub(super) const WILL: Will<'static> = Will {
    topic: "will",
    payload: b"gone",
    qos: QoS::AtLeastOnce,
    retain: false,
    properties: Properties::EMPTY,
};

/// Session expiry and receive maximum of a CONNECT; 0 leaves the latter out.
pub(super) fn wishes(expiry_s: u32, receive_maximum: u16) -> PropertyBuf {
    let mut properties = PropertyBuf::new();
    properties.session_expiry_interval_s(expiry_s);
    if receive_maximum > 0 {
        properties.receive_maximum(receive_maximum);
    }
    properties
}

/// Connects, version 5 with a session to keep; whether the session was present.
pub(super) fn resume(bench: &mut Bench, client_id: &str, wishes: &PropertyBuf) -> (Client, bool) {
    let properties = wishes.as_properties();
    connect(bench, &Connect { properties, ..request(Version::V5, client_id, false) })
}

pub(super) fn connect(bench: &mut Bench, request: &Connect<'_>) -> (Client, bool) {
    let client = bench.connect_with(request);
    let Packet::ConnAck(connack) = bench.next(client) else { panic!("no CONNACK") };
    assert_eq!(connack.reason, ReasonCode::Success);
    (client, connack.session_present)
}

pub(super) fn ack(bench: &mut Bench, client: Client, kind: AckKind, packet_id: PacketId) {
    let (reason, properties) = (ReasonCode::Success, Properties::EMPTY);
    bench.send(client, &Packet::Ack(Ack { kind, packet_id, reason, properties }));
}

/// What came, answers to the client's own packets left out.
pub(super) fn publishes(bench: &mut Bench, client: Client) -> Vec<Publish<'static>> {
    let packets = std::iter::from_fn(|| bench.try_next(client));
    packets
        .filter_map(|packet| match packet {
            Packet::Publish(publish) => Some(publish),
            _ => None,
        })
        .collect()
}

/// The payloads of [`publishes`], as text.
pub(super) fn texts(bench: &mut Bench, client: Client) -> Vec<&'static str> {
    let all = publishes(bench, client).into_iter();
    all.map(|publish| std::str::from_utf8(publish.payload).expect("text")).collect()
}

/// The reason of the DISCONNECT that must have come.
#[track_caller]
pub(super) fn told(bench: &mut Bench, client: Client) -> ReasonCode {
    let mut packets = std::iter::from_fn(|| bench.try_next(client));
    let told = packets.find_map(|packet| match packet {
        Packet::Disconnect(disconnect) => Some(disconnect.reason),
        _ => None,
    });
    assert!(bench.is_finished(client));
    told.expect("a DISCONNECT")
}

pub(super) fn message<'a>(topic: &'a str, payload: &'a [u8], id: u16) -> Publish<'a> {
    let packet_id = PacketId::new(id);
    Publish {
        dup: false,
        qos: if id > 0 { QoS::ExactlyOnce } else { QoS::AtMostOnce },
        retain: false,
        topic,
        packet_id,
        properties: Properties::EMPTY,
        payload,
    }
}

fn watcher(bench: &mut Bench) -> Client {
    let watcher = bench.connect(Version::V5, "watcher", true);
    bench.subscribe(watcher, "will", qos(QoS::AtMostOnce), 0);
    watcher
}

fn ids(publishes: &[Publish<'_>]) -> Vec<u16> {
    publishes.iter().map(|publish| publish.packet_id.map_or(0, |id| id.get())).collect()
}

#[test]
fn fault_01_a_takeover_inherits_a_session_that_expires_at_once_and_loses_its_will() {
    let mut bench = Bench::new();
    let watcher = watcher(&mut bench);
    let with_will = Connect { will: Some(WILL), ..request(Version::V5, "c", false) };
    let (old, _) = connect(&mut bench, &with_will);
    bench.subscribe(old, "t", qos(QoS::AtLeastOnce), 0);
    // The new connection wants a session that lives on; the old one's still ends.
    let (new, present) = resume(&mut bench, "c", &wishes(100, 0));
    assert!(!present);
    assert_eq!(told(&mut bench, old), ReasonCode::SessionTakenOver);
    assert_eq!(texts(&mut bench, watcher), ["gone"]);
    bench.publish(watcher, "t", "for the old session", QoS::AtLeastOnce, false);
    assert_eq!(texts(&mut bench, new), [""; 0], "subscriptions ended with their session");
}

#[test]
fn fault_02_messages_that_arrive_during_a_takeover_are_lost() {
    for shards in [1, 2] {
        let mut bench = Bench::with(shards, Limits::default());
        let (near, far) = (bench.name_on(0, "p"), bench.name_on(shards as u8 - 1, "s"));
        let publisher = bench.connect(Version::V5, &near, true);
        let wishes = wishes(100, 0);
        let (old, _) = resume(&mut bench, &far, &wishes);
        bench.subscribe(old, "t", qos(QoS::AtLeastOnce), 0);
        let send = |bench: &mut Bench, payload: &str| {
            let publish = Publish { qos: QoS::AtLeastOnce, ..message("t", payload.as_bytes(), 1) };
            let mut bytes = Vec::new();
            mqtt::wire::encode(&Packet::Publish(publish), Version::V5, &mut bytes);
            bench.send_bytes(publisher, &bytes);
        };
        // One written and never acknowledged, one still on its way when the CONNECT arrives, one
        // after it.
        send(&mut bench, "written");
        bench.run();
        send(&mut bench, "on its way");
        let (new, present) = resume(&mut bench, &far, &wishes);
        send(&mut bench, "after");
        bench.run();
        assert!(present);
        let got = publishes(&mut bench, new);
        let texts: Vec<&[u8]> = got.iter().map(|publish| publish.payload).collect();
        assert_eq!(texts, [&b"written"[..], b"on its way", b"after"], "{shards} shards");
        assert!(got[0].dup && !got[2].dup);
        assert_eq!(told(&mut bench, old), ReasonCode::SessionTakenOver);
    }
}

/// The fault is about sessions restored at a restart, which needs durable sessions. What can be
/// shown without them: a session without a connection is routable, from every shard, from the
/// first moment at which a publisher can be acknowledged.
#[test]
fn fault_03_sessions_without_a_connection_are_not_routable_when_publishers_are_served() {
    let mut bench = Bench::with(3, Limits::default());
    let absent = bench.name_on(2, "absent");
    let wishes = wishes(u32::MAX, 0);
    let (client, _) = resume(&mut bench, &absent, &wishes);
    bench.subscribe(client, "t/#", qos(QoS::AtLeastOnce), 0);
    bench.end(client);
    for shard in 0..3 {
        let name = bench.name_on(shard, "p");
        let publisher = bench.connect(Version::V5, &name, true);
        bench.publish(publisher, "t/x", &name, QoS::AtLeastOnce, false);
        let Packet::Ack(puback) = bench.next(publisher) else { panic!("no PUBACK") };
        assert_eq!(puback.reason, ReasonCode::Success, "somebody subscribed");
    }
    let (client, present) = resume(&mut bench, &absent, &wishes);
    assert!(present);
    assert_eq!(texts(&mut bench, client).len(), 3);
}

#[test]
fn fault_04_a_queue_stalls_after_a_resume_because_the_quota_was_not_reset() {
    let mut bench = Bench::new();
    let wishes = wishes(100, 2);
    let (client, _) = resume(&mut bench, "s", &wishes);
    bench.subscribe(client, "t", qos(QoS::AtLeastOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    for n in 0..6 {
        bench.publish(publisher, "t", &n.to_string(), QoS::AtLeastOnce, false);
    }
    assert_eq!(publishes(&mut bench, client).len(), 2, "the window is full");
    bench.end(client);
    let (client, _) = resume(&mut bench, "s", &wishes);
    let mut got = Vec::new();
    loop {
        let batch = publishes(&mut bench, client);
        assert!(batch.len() <= 2, "the window holds after the resume too");
        if batch.is_empty() {
            break;
        }
        for publish in batch {
            got.push(publish.payload[0] - b'0');
            ack(&mut bench, client, AckKind::PubAck, publish.packet_id.unwrap());
        }
    }
    assert_eq!(got, [0, 1, 2, 3, 4, 5]);
}

/// Belongs to the same family: a quota below what the session has in flight, and a client that
/// refuses a message whose repetition is still waiting.
#[test]
fn fault_04b_a_message_refused_before_it_was_repeated_upsets_the_quota() {
    let mut bench = Bench::new();
    let (client, _) = resume(&mut bench, "s", &wishes(100, 3));
    bench.subscribe(client, "t", qos(QoS::ExactlyOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    for id in 1..=4 {
        let payload = [b'0' + id as u8];
        bench.send(publisher, &Packet::Publish(message("t", &payload, id)));
    }
    let first = ids(&publishes(&mut bench, client));
    assert_eq!(first.len(), 3);
    bench.end(client);
    let (client, _) = resume(&mut bench, "s", &wishes(100, 1));
    assert_eq!(ids(&publishes(&mut bench, client)), first[..1]);
    for id in first.iter().rev() {
        let refusal = Ack {
            kind: AckKind::PubRec,
            packet_id: PacketId::new(*id).unwrap(),
            reason: ReasonCode::QuotaExceeded,
            properties: Properties::EMPTY,
        };
        bench.send(client, &Packet::Ack(refusal));
    }
    assert_eq!(texts(&mut bench, client), ["4"], "the next message follows");
}

#[test]
fn fault_05_an_overrun_of_the_servers_receive_maximum_is_answered_by_pubrec() {
    let mut bench = Bench::with(1, Limits { receive_maximum: 3, ..Limits::default() });
    let client = bench.connect(Version::V5, "c", true);
    for id in 1..=3 {
        bench.send(client, &Packet::Publish(message("t", b"", id)));
        assert!(matches!(bench.next(client), Packet::Ack(ack) if !ack.reason.is_error()));
    }
    // A repetition is none too many.
    let again = Publish { dup: true, ..message("t", b"", 3) };
    bench.send(client, &Packet::Publish(again));
    assert!(matches!(bench.next(client), Packet::Ack(ack) if ack.kind == AckKind::PubRec));
    bench.send(client, &Packet::Publish(message("t", b"", 4)));
    assert_eq!(told(&mut bench, client), ReasonCode::ReceiveMaximumExceeded);
}

#[test]
fn fault_06_identifiers_wrap_onto_one_that_was_never_acknowledged() {
    let mut bench = Bench::new();
    let client = bench.connect(Version::V5, "s", true);
    bench.subscribe(client, "t", qos(QoS::AtLeastOnce), 0);
    let publisher = bench.connect(Version::V3_1_1, "p", true);
    bench.publish(publisher, "t", "old", QoS::AtLeastOnce, false);
    let old = ids(&publishes(&mut bench, client))[0];
    let mut bytes = Vec::new();
    let publish = Publish { qos: QoS::AtLeastOnce, ..message("t", b"x", 7) };
    mqtt::wire::encode(&Packet::Publish(publish), Version::V3_1_1, &mut bytes);
    let batch = bytes.repeat(500);
    let mut seen = 0;
    while seen < 70_000 {
        bench.send_bytes(publisher, &batch);
        bench.run();
        let mut answers = Vec::new();
        for id in ids(&publishes(&mut bench, client)) {
            assert_ne!(id, old, "after {seen} messages");
            answers.extend_from_slice(&[0x40, 2, (id >> 8) as u8, id as u8]);
            seen += 1;
        }
        bench.send_bytes(client, &answers);
        bench.written.clear();
    }
}

#[test]
fn fault_07_a_resumed_session_counts_identifiers_from_1_and_overwrites_what_is_in_flight() {
    let mut bench = Bench::new();
    let wishes = wishes(100, 0);
    let (client, _) = resume(&mut bench, "s", &wishes);
    bench.subscribe(client, "t", qos(QoS::AtLeastOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    for payload in ["a", "b", "c"] {
        bench.publish(publisher, "t", payload, QoS::AtLeastOnce, false);
    }
    let sent = ids(&publishes(&mut bench, client));
    bench.end(client);
    let (client, _) = resume(&mut bench, "s", &wishes);
    let repeated = publishes(&mut bench, client);
    assert_eq!(ids(&repeated), sent, "the same identifiers, in the same order");
    assert!(repeated.iter().all(|publish| publish.dup));
    bench.publish(publisher, "t", "d", QoS::AtLeastOnce, false);
    let new = ids(&publishes(&mut bench, client))[0];
    assert!(!sent.contains(&new), "{new} is in flight");
}

#[test]
fn fault_08_a_second_duplicate_of_a_qos_2_publish_is_refused() {
    let mut bench = Bench::new();
    let subscriber = bench.connect(Version::V5, "s", true);
    bench.subscribe(subscriber, "t", qos(QoS::ExactlyOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    for dup in [false, true, true, true] {
        let publish = Publish { dup, ..message("t", b"once", 9) };
        bench.send(publisher, &Packet::Publish(publish));
        let Packet::Ack(pubrec) = bench.next(publisher) else { panic!("no PUBREC") };
        assert_eq!((pubrec.kind, pubrec.packet_id.get()), (AckKind::PubRec, 9));
        assert!(!pubrec.reason.is_error());
    }
    assert_eq!(texts(&mut bench, subscriber), ["once"]);
    ack(&mut bench, publisher, AckKind::PubRel, PacketId::new(9).unwrap());
    bench.send(publisher, &Packet::Publish(message("t", b"another", 9)));
    assert_eq!(texts(&mut bench, subscriber), ["another"], "released: free for another message");
}

#[test]
fn fault_09_message_expiry_removes_a_qos_2_exchange_that_had_its_pubrec() {
    let mut bench = Bench::new();
    let wishes = wishes(100, 0);
    let (client, _) = resume(&mut bench, "s", &wishes);
    bench.subscribe(client, "t", qos(QoS::ExactlyOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    let mut expiry = PropertyBuf::new();
    expiry.message_expiry_interval_s(1);
    let publish = Publish { properties: expiry.as_properties(), ..message("t", b"x", 1) };
    bench.send(publisher, &Packet::Publish(publish));
    let id = publishes(&mut bench, client)[0].packet_id.unwrap();
    ack(&mut bench, client, AckKind::PubRec, id);
    assert!(matches!(bench.next(client), Packet::Ack(ack) if ack.kind == AckKind::PubRel));
    bench.end(client);
    bench.pass_ms(5_000);
    let (client, _) = resume(&mut bench, "s", &wishes);
    let Packet::Ack(pubrel) = bench.next(client) else { panic!("no PUBREL") };
    assert_eq!((pubrel.kind, pubrel.packet_id), (AckKind::PubRel, id));
    ack(&mut bench, client, AckKind::PubComp, id);
    bench.end(client);
    let (client, _) = resume(&mut bench, "s", &wishes);
    assert!(bench.try_next(client).is_none(), "the exchange is over");
}

#[test]
fn fault_10_a_delayed_will_waits_although_its_session_ends_at_once() {
    let mut bench = Bench::new();
    let watcher = watcher(&mut bench);
    let mut delay = PropertyBuf::new();
    delay.will_delay_interval_s(5);
    let will = Some(Will { properties: delay.as_properties(), ..WILL });
    let (client, _) = connect(&mut bench, &Connect { will, ..request(Version::V5, "c", false) });
    bench.end(client);
    assert_eq!(texts(&mut bench, watcher), ["gone"], "no time has passed");
    bench.pass_ms(10_000);
    assert_eq!(texts(&mut bench, watcher), [""; 0], "and once only");
}

#[test]
fn fault_11_the_wills_delay_is_published_with_it() {
    let mut bench = Bench::new();
    let watcher = watcher(&mut bench);
    let mut properties = PropertyBuf::new();
    properties.will_delay_interval_s(1).content_type("text").user_property("k", "v");
    let will = Some(Will { properties: properties.as_properties(), ..WILL });
    let wishes = wishes(100, 0);
    let properties = wishes.as_properties();
    let wish = Connect { will, properties, ..request(Version::V5, "c", false) };
    let (client, _) = connect(&mut bench, &wish);
    bench.end(client);
    bench.pass_ms(2_000);
    let got = publishes(&mut bench, watcher);
    assert_eq!(got.len(), 1);
    // Would not decode as a server's PUBLISH with a delay; what belongs to the message stays.
    assert_eq!(got[0].properties.will_delay_interval_s(), None);
    assert_eq!(got[0].properties.content_type(), Some("text"));
    assert_eq!(got[0].properties.user_properties().collect::<Vec<_>>(), [("k", "v")]);
}

#[test]
fn fault_12_a_disconnect_with_a_reserved_reason_discards_the_will() {
    // 0x05 has no meaning, 0x8E is the server's to send.
    for reason in [0x05, 0x8e] {
        let mut bench = Bench::new();
        let watcher = watcher(&mut bench);
        let wish = Connect { will: Some(WILL), ..request(Version::V5, "c", true) };
        let (client, _) = connect(&mut bench, &wish);
        bench.send_bytes(client, &[0xe0, 1, reason]);
        bench.run();
        assert!(told(&mut bench, client).is_error());
        assert_eq!(texts(&mut bench, watcher), ["gone"], "reason {reason:#x}");
    }
}
