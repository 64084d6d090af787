//! What is owed until it is committed: no answer before, the right one after, and after a refusal.

use std::sync::Arc;

use meta::command::{Command, OpenSession, Refusal, Reply};
use meta::record::{SessionRecord, StoredSubscription};
use meta::state::{Tx, apply};
use meta::store::{MemoryStore, Store};
use meta::{Answer, Handle, ProposeError};
use mqtt::wire::{AckKind, Disconnect, ReasonCode};

use super::*;
use crate::shard::Commit;
use crate::shard::stored::client_key;

pub(super) const WALL_MS: u64 = 1_000_000;

pub(super) fn durable_bench() -> Bench {
    let mut bench = Bench::new();
    let handle = Handle::detached(1, Arc::new(MemoryStore::new()));
    bench.shards[0].set_durability(handle, bench.now_ms, WALL_MS);
    bench
}

/// Sends a packet that has to be committed.
pub(super) fn owe(
    bench: &mut Bench,
    client: Client,
    packet: &Packet<'_>,
) -> (Box<Commit>, Vec<Command>) {
    let mut bytes = Vec::new();
    encode(packet, client.version, &mut bytes);
    owe_bytes(bench, client, &bytes)
}

pub(super) fn owe_bytes(
    bench: &mut Bench,
    client: Client,
    bytes: &[u8],
) -> (Box<Commit>, Vec<Command>) {
    match bench.send_bytes(client, bytes) {
        Next::Commit(mut commit) => {
            bench.run();
            let commands = commit.take_commands();
            (commit, commands)
        }
        other => panic!("not to be committed: {other:?}"),
    }
}

pub(super) fn answer(
    bench: &mut Bench,
    client: Client,
    commit: Commit,
    result: Result<Vec<Reply>, ProposeError>,
) -> Next {
    let result = result.map(|replies| Answer { index: 1, replies });
    let next = bench.shards[0].on_committed(client.key, commit, result, bench.now_ms).next;
    bench.run();
    next
}

pub(super) fn open(bench: &mut Bench, version: Version) -> Client {
    let key = bench.shards[0].open(bench.now_ms).expect("room for a connection");
    Client { shard: 0, key, version }
}

/// CONNECT that keeps its session for an hour, committed as `epoch`.
fn connect_durably(bench: &mut Bench, version: Version, epoch: u64, present: bool) -> Client {
    let client = open(bench, version);
    let mut properties = PropertyBuf::new();
    if version == Version::V5 {
        properties.session_expiry_interval_s(3600);
    }
    let request =
        Connect { properties: properties.as_properties(), ..request(version, "c", false) };
    let (commit, commands) = owe(bench, client, &Packet::Connect(request));
    assert!(matches!(&commands[..], [Command::OpenSession(open)] if open.client.client_id == "c"));
    assert!(bench.try_next(client).is_none(), "CONNACK before the commit");
    answer(bench, client, *commit, Ok(vec![Reply::Session { epoch, generation: epoch, present }]));
    let Packet::ConnAck(connack) = bench.next(client) else { panic!("no CONNACK") };
    assert!(!connack.reason.is_error());
    client
}

pub(super) fn subscribe_packet(version: Version, filter: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    subscribe_bytes(&mut bytes, version, Properties::EMPTY, filter, qos(QoS::AtLeastOnce));
    bytes
}

fn retained(topic: &str, qos: QoS, id: u16) -> Vec<u8> {
    let publish = Publish {
        dup: false,
        qos,
        retain: true,
        topic,
        packet_id: PacketId::new(id),
        properties: Properties::EMPTY,
        payload: b"x",
    };
    let mut bytes = Vec::new();
    encode(&Packet::Publish(publish), Version::V5, &mut bytes);
    bytes
}

#[test]
fn a_transient_session_is_not_proposed() {
    let mut bench = durable_bench();
    let client = bench.connect(Version::V5, "t", true);
    bench.subscribe(client, "a", qos(QoS::AtLeastOnce), 0);
    bench.publish(client, "a", "x", QoS::AtLeastOnce, false);
    bench.end(client);
    assert!(!bench.shards[0].has_posted());
}

#[test]
fn a_suback_waits_for_its_commit() {
    let mut bench = durable_bench();
    let client = connect_durably(&mut bench, Version::V5, 5, false);
    let (commit, commands) = owe_bytes(&mut bench, client, &subscribe_packet(Version::V5, "a/#"));
    let [Command::Subscribe { epoch: 5, subscriptions, .. }] = &commands[..] else {
        panic!("{commands:?}")
    };
    assert_eq!((subscriptions[0].filter.as_str(), subscriptions[0].options), ("a/#", 1));
    assert!(bench.try_next(client).is_none(), "SUBACK before the commit");
    answer(&mut bench, client, *commit, Ok(vec![Reply::Done]));
    let Packet::SubAck(suback) = bench.next(client) else { panic!("no SUBACK") };
    assert_eq!(suback.codes, [1]);
}

#[test]
fn a_subscription_that_is_not_committed_is_none() {
    for result in [Ok(vec![Reply::Refused(Refusal::Stale)]), Err(ProposeError::NoLeader)] {
        let mut bench = durable_bench();
        let client = connect_durably(&mut bench, Version::V5, 5, false);
        let (commit, _) = owe_bytes(&mut bench, client, &subscribe_packet(Version::V5, "a"));
        answer(&mut bench, client, *commit, result);
        let Packet::SubAck(suback) = bench.next(client) else { panic!("no SUBACK") };
        assert_eq!(suback.codes, [0x80]);
        bench.publish(client, "a", "x", QoS::AtMostOnce, false);
        assert!(bench.payloads(client).is_empty());
    }
}

#[test]
fn retained_publishes_join_and_other_packets_wait_behind_them() {
    let mut bench = durable_bench();
    let reader = bench.connect(Version::V5, "reader", true);
    bench.subscribe(reader, "#", qos(QoS::AtMostOnce), 0);
    let client = bench.connect(Version::V5, "t", true);
    let bytes = [
        retained("a", QoS::AtLeastOnce, 1),
        retained("b", QoS::ExactlyOnce, 2),
        retained("c", QoS::AtMostOnce, 0),
        subscribe_packet(Version::V5, "other"),
    ]
    .concat();
    let (commit, commands) = owe_bytes(&mut bench, client, &bytes);
    let topics: Vec<_> = commands
        .iter()
        .map(|command| match command {
            Command::Retain(message) => message.topic.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(topics, ["a", "b", "c"]);
    assert!(bench.try_next(client).is_none() && bench.try_next(reader).is_none());
    answer(&mut bench, client, *commit, Ok(vec![Reply::Done; 3]));
    assert_eq!(bench.payloads(reader), ["x", "x", "x"]);
    let kinds: Vec<_> = std::iter::from_fn(|| bench.try_next(client))
        .map(|packet| match packet {
            Packet::Ack(ack) => (Some(ack.kind), ack.packet_id.get()),
            Packet::SubAck(_) => (None, 0),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, [(Some(AckKind::PubAck), 1), (Some(AckKind::PubRec), 2), (None, 0)]);
}

#[test]
fn a_retained_publish_that_is_not_committed_is_not_acknowledged() {
    let mut bench = durable_bench();
    let client = bench.connect(Version::V5, "t", true);
    let (commit, _) = owe_bytes(&mut bench, client, &retained("a", QoS::ExactlyOnce, 2));
    answer(&mut bench, client, *commit, Err(ProposeError::Timeout));
    let Packet::Ack(ack) = bench.next(client) else { panic!("no PUBREC") };
    assert_eq!(ack.reason, ReasonCode::QuotaExceeded);
    // The exchange is over: the same identifier begins a new one.
    let (commit, _) = owe_bytes(&mut bench, client, &retained("a", QoS::ExactlyOnce, 2));
    answer(&mut bench, client, *commit, Ok(vec![Reply::Done]));
    let Packet::Ack(ack) = bench.next(client) else { panic!("no PUBREC") };
    assert!(!ack.reason.is_error());

    let old = bench.connect(Version::V3_1_1, "old", true);
    let mut bytes = Vec::new();
    let publish = Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: "a",
        packet_id: PacketId::new(1),
        properties: Properties::EMPTY,
        payload: b"x",
    };
    encode(&Packet::Publish(publish), Version::V3_1_1, &mut bytes);
    let (commit, _) = owe_bytes(&mut bench, old, &bytes);
    answer(&mut bench, old, *commit, Err(ProposeError::Timeout));
    assert!(bench.try_next(old).is_none() && bench.is_finished(old), "3.x cannot be told");
}

#[test]
fn what_waited_for_its_turn_alone_is_acknowledged_whatever_came_of_the_commit() {
    for error in [ProposeError::NoLeader, ProposeError::Timeout] {
        let mut bench = durable_bench();
        let client = bench.connect(Version::V5, "t", true);
        let taken = retained("a", QoS::ExactlyOnce, 2);
        let (commit, _) = owe_bytes(&mut bench, client, &taken);
        answer(&mut bench, client, *commit, Ok(vec![Reply::Done]));
        assert!(matches!(bench.next(client), Packet::Ack(_)));
        let bytes = [retained("b", QoS::AtLeastOnce, 1), taken].concat();
        let (commit, commands) = owe_bytes(&mut bench, client, &bytes);
        assert_eq!(commands.len(), 1, "the other one is a repetition");
        answer(&mut bench, client, *commit, Err(error));
        let Packet::Ack(ack) = bench.next(client) else { panic!("no PUBACK") };
        assert_eq!((ack.packet_id.get(), ack.reason), (1, ReasonCode::QuotaExceeded));
        let Packet::Ack(ack) = bench.next(client) else { panic!("no PUBREC") };
        assert_eq!((ack.packet_id.get(), ack.reason), (2, ReasonCode::Success));
    }
}

#[test]
fn what_ends_is_posted_with_its_deadline() {
    let mut bench = durable_bench();
    let client = connect_durably(&mut bench, Version::V5, 5, false);
    bench.end(client);
    let posted = bench.shards[0].take_posted(10);
    let [Command::CloseSession(close)] = &posted[..] else { panic!("{posted:?}") };
    assert_eq!((close.epoch, close.expires_at_ms), (5, Some(WALL_MS + 3_600_000)));
    bench.pass_ms(3_600_000 + 200);
    let posted = bench.shards[0].take_posted(10);
    assert!(matches!(&posted[..], [Command::EndSession { epoch: 5, .. }]), "{posted:?}");
}

#[test]
fn the_later_of_two_openings_keeps_the_session() {
    let mut bench = durable_bench();
    let first = open(&mut bench, Version::V3_1_1);
    let (commit, _) =
        owe(&mut bench, first, &Packet::Connect(request(Version::V3_1_1, "c", false)));
    let second = connect_durably(&mut bench, Version::V3_1_1, 7, true);
    // The first one's answer comes late, and for an older epoch.
    answer(
        &mut bench,
        first,
        *commit,
        Ok(vec![Reply::Session { epoch: 6, generation: 6, present: false }]),
    );
    assert!(bench.try_next(first).is_none() && bench.is_finished(first));
    bench.send(second, &Packet::PingReq);
    assert!(matches!(bench.next(second), Packet::PingResp));
}

#[test]
fn a_restored_session_is_subscribed_and_has_its_deadline() {
    let mut bench = durable_bench();
    let record = SessionRecord {
        generation: 1,
        epoch: 3,
        node: 1,
        connected: true,
        expiry_interval_s: 60,
        expires_at_ms: None,
        will: None,
        will_at_ms: None,
        subscriptions: 1,
    };
    let stored = StoredSubscription { filter: "a/+".into(), options: 1, id: 0 };
    bench.shards[0].restore("c", &record, &[stored], bench.now_ms);
    let posted = bench.shards[0].take_posted(10);
    let [Command::CloseSession(close)] = &posted[..] else { panic!("{posted:?}") };
    assert_eq!(close.expires_at_ms, Some(WALL_MS + 60_000), "its connection was lost now");
    let talker = bench.connect(Version::V3_1_1, "talker", true);
    bench.publish(talker, "a/b", "queued", QoS::AtLeastOnce, false);
    let client = connect_durably(&mut bench, Version::V3_1_1, 9, true);
    assert_eq!(bench.payloads(client), ["queued"]);
    bench.end(client);
    let _ = bench.shards[0].take_posted(10);
}

#[test]
fn acknowledgements_keep_the_order_of_their_packets() {
    let mut bench = durable_bench();
    let client = bench.connect(Version::V5, "p", true);
    let mut bytes = retained("r/1", QoS::AtLeastOnce, 1);
    bytes.extend(retained("$SYS/x", QoS::AtLeastOnce, 2)); // refused at once
    bytes.extend(retained("r/3", QoS::ExactlyOnce, 3));
    bytes.extend(retained("r/3", QoS::ExactlyOnce, 3)); // a duplicate
    let (commit, commands) = owe_bytes(&mut bench, client, &bytes);
    assert_eq!(commands.len(), 2);
    assert!(bench.try_next(client).is_none(), "acknowledged before the commit");
    answer(&mut bench, client, *commit, Ok(vec![Reply::Done, Reply::Done]));
    let mut acks = Vec::new();
    while let Some(Packet::Ack(ack)) = bench.try_next(client) {
        acks.push((ack.kind, ack.packet_id.get(), ack.reason.is_error()));
    }
    let expected = [
        (AckKind::PubAck, 1, false),
        (AckKind::PubAck, 2, true),
        (AckKind::PubRec, 3, false),
        (AckKind::PubRec, 3, false),
    ];
    assert_eq!(acks, expected);
}

#[test]
fn a_retained_publish_that_was_not_committed_is_no_duplicate_later() {
    let mut bench = durable_bench();
    let client = connect_durably(&mut bench, Version::V5, 5, false);
    let bytes = retained("r", QoS::ExactlyOnce, 7);
    let (commit, _) = owe_bytes(&mut bench, client, &bytes);
    let again = connect_durably(&mut bench, Version::V5, 6, true); // takes over meanwhile
    answer(&mut bench, client, *commit, Err(ProposeError::Timeout));
    let (_, commands) = owe_bytes(&mut bench, again, &bytes);
    assert!(matches!(&commands[..], [Command::Retain(_)]), "{commands:?}");
}

#[test]
fn a_retained_publish_that_comes_again_before_its_commit_is_not_taken_for_granted() {
    // The first commit is answered before the second one, or after it; it fails or not.
    for (first_is_late, fails) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut bench = durable_bench();
        let reader = bench.connect(Version::V5, "reader", true);
        bench.subscribe(reader, "#", qos(QoS::AtMostOnce), 0);
        let client = connect_durably(&mut bench, Version::V5, 5, false);
        let bytes = retained("r", QoS::ExactlyOnce, 7);
        let (first, _) = owe_bytes(&mut bench, client, &bytes);
        let again = connect_durably(&mut bench, Version::V5, 6, true); // takes over meanwhile
        let (second, commands) = owe_bytes(&mut bench, again, &bytes);
        assert!(bench.try_next(again).is_none(), "nothing is decided");
        assert!(matches!(&commands[..], [Command::Retain(_)]), "{commands:?}");
        let outcome = if fails { Err(ProposeError::Timeout) } else { Ok(vec![Reply::Done]) };
        let mut answers =
            [(client, first, outcome), (again, second, Ok(vec![Reply::Done]))].map(Some);
        if first_is_late {
            answers.reverse();
        }
        for (client, commit, result) in answers.iter_mut().filter_map(Option::take) {
            answer(&mut bench, client, *commit, result);
        }
        let Packet::Ack(ack) = bench.next(again) else { panic!("no PUBREC") };
        assert_eq!((ack.kind, ack.reason), (AckKind::PubRec, ReasonCode::Success));
        assert_eq!(bench.payloads(reader), ["x"], "delivered once");
        // Now it is a repetition.
        bench.send_bytes(again, &bytes);
        bench.run();
        assert!(matches!(bench.next(again), Packet::Ack(ack) if ack.kind == AckKind::PubRec));
        assert_eq!(bench.payloads(reader), [""; 0]);
    }
}

#[test]
fn a_repetition_within_a_commit_shares_its_outcome() {
    let mut bench = durable_bench();
    let client = bench.connect(Version::V5, "p", true);
    let twice = retained("r", QoS::ExactlyOnce, 3).repeat(2);
    let (commit, _) = owe_bytes(&mut bench, client, &twice);
    answer(&mut bench, client, *commit, Err(ProposeError::NoLeader));
    for _ in 0..2 {
        let Packet::Ack(ack) = bench.next(client) else { panic!("no PUBREC") };
        assert_eq!(ack.reason, ReasonCode::QuotaExceeded);
    }
}

#[test]
fn a_client_is_not_silent_while_it_is_not_heard() {
    let mut bench = durable_bench();
    let client = open(&mut bench, Version::V5);
    let request = Connect { keep_alive_s: 1, ..request(Version::V5, "k", true) };
    bench.send(client, &Packet::Connect(request));
    assert!(matches!(bench.next(client), Packet::ConnAck(_)));
    let (commit, _) = owe_bytes(&mut bench, client, &retained("r", QoS::AtLeastOnce, 1));
    bench.pass_ms(5_000);
    assert!(bench.try_next(client).is_none(), "closed for its silence");
    answer(&mut bench, client, *commit, Ok(vec![Reply::Done]));
    assert!(matches!(bench.next(client), Packet::Ack(_)));
}

#[test]
fn a_session_that_is_over_is_not_resumed_before_its_end_is_applied() {
    let mut bench = Bench::new();
    let store = Arc::new(MemoryStore::new());
    bench.shards[0].set_durability(Handle::detached(1, store.clone()), bench.now_ms, WALL_MS);
    let session = OpenSession {
        client: client_key("c"),
        clean_start: false,
        node: 1,
        expiry_interval_s: 3600,
        will: None,
        now_ms: WALL_MS,
    };
    let mut tx = Tx::new(&*store);
    apply(&mut tx, 5, &Command::OpenSession(session), &mut Vec::new()).expect("applied");
    store.write(tx.into_changes()).expect("written");
    let client = connect_durably(&mut bench, Version::V5, 5, false);
    let mut over = PropertyBuf::new();
    over.session_expiry_interval_s(0);
    let (reason, properties) = (ReasonCode::Success, over.as_properties());
    bench.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
    // Posted, then taken and not answered, then answered: the store would know by then.
    for clean_start in [true, true, false] {
        let client = open(&mut bench, Version::V3_1_1);
        let connect = Packet::Connect(request(Version::V3_1_1, "c", false));
        let (_, commands) = owe(&mut bench, client, &connect);
        let [Command::OpenSession(open)] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!(open.clean_start, clean_start);
        let _ = bench.shards[0].take_posted(10);
    }
}

#[test]
fn a_retained_message_without_room_is_delivered_and_not_proposed() {
    let mut bench = Bench::with(1, Limits { max_retained_messages: 1, ..Limits::default() });
    let handle = Handle::detached(1, Arc::new(MemoryStore::new()));
    bench.shards[0].set_durability(handle, bench.now_ms, WALL_MS);
    let reader = bench.connect(Version::V5, "reader", true);
    bench.subscribe(reader, "#", qos(QoS::AtMostOnce), 0);
    let message = meta::record::StoredMessage {
        topic: "kept".into(),
        properties: Vec::new(),
        payload: b"x".to_vec(),
        qos: 1,
        expires_at_ms: Some(WALL_MS + 5_000),
    };
    let message = crate::shard::message_of(&message, true, 0, WALL_MS - 1_000);
    bench.shards[0].fabric.retained.lock().set_stored(Arc::new(message));
    let client = bench.connect(Version::V5, "t", true);
    bench.send_bytes(client, &retained("more", QoS::AtLeastOnce, 1));
    bench.run();
    let Packet::Ack(ack) = bench.next(client) else { panic!("no PUBACK") };
    assert!(!ack.reason.is_error());
    assert_eq!(bench.payloads(reader), ["x"]);
    assert!(!bench.shards[0].has_posted());
    // In time there is room again, and the metadata hears of it.
    bench.pass_ms(10_000);
    let posted = bench.shards[0].take_posted(10);
    let [Command::SweepRetained { topics, .. }] = &posted[..] else { panic!("{posted:?}") };
    assert_eq!(topics, &["kept"]);
    owe_bytes(&mut bench, client, &retained("more", QoS::AtLeastOnce, 1));
}
