//! Connections and sessions: beginnings, takeovers, ends.

use mqtt::wire::{
    Connect, Disconnect, Packet, Properties, PropertyBuf, QoS, ReasonCode, Version, Will,
};

use super::{Bench, Client, qos, request};
use crate::config::Limits;
use crate::shard::Next;
use crate::shard::conn::PROGRESS_BYTES;

const WILL: Will<'static> = Will {
    topic: "will",
    payload: b"gone",
    qos: QoS::AtMostOnce,
    retain: false,
    properties: Properties::EMPTY,
};

fn expiry(seconds: u32) -> PropertyBuf {
    let mut properties = PropertyBuf::new();
    properties.session_expiry_interval_s(seconds);
    properties
}

fn delay(seconds: u32) -> PropertyBuf {
    let mut properties = PropertyBuf::new();
    properties.will_delay_interval_s(seconds);
    properties
}

/// Connects and returns "session present".
fn connect(bench: &mut Bench, request: &Connect<'_>) -> (Client, bool) {
    let client = bench.connect_with(request);
    let Packet::ConnAck(connack) = bench.next(client) else { panic!("no CONNACK") };
    assert_eq!(connack.reason, ReasonCode::Success);
    (client, connack.session_present)
}

fn watcher(bench: &mut Bench) -> Client {
    let watcher = bench.connect(Version::V5, "watcher", true);
    bench.subscribe(watcher, "will", qos(QoS::AtMostOnce), 0);
    watcher
}

#[test]
fn a_takeover_of_an_expiring_session_ends_it_and_sends_its_will() {
    let mut bench = Bench::new();
    let watcher = watcher(&mut bench);
    let with_will = Connect { will: Some(WILL), ..request(Version::V5, "c", false) };
    let (old, _) = connect(&mut bench, &with_will);
    let (new, present) = connect(&mut bench, &request(Version::V5, "c", false));
    assert!(!present, "its expiry was zero");
    let Packet::Disconnect(told) = bench.next(old) else { panic!("not told") };
    assert_eq!(told.reason, ReasonCode::SessionTakenOver);
    assert!(bench.is_finished(old) && !bench.is_finished(new));
    assert_eq!(bench.payloads(watcher), ["gone"]);
}

#[test]
fn a_takeover_within_a_living_session_keeps_what_was_not_acknowledged() {
    let mut bench = Bench::new();
    let properties = expiry(100);
    let resume =
        Connect { properties: properties.as_properties(), ..request(Version::V5, "c", false) };
    let (old, present) = connect(&mut bench, &resume);
    assert!(!present);
    bench.subscribe(old, "t", qos(QoS::AtLeastOnce), 0);
    let publisher = bench.connect(Version::V5, "p", true);
    bench.publish(publisher, "t", "first", QoS::AtLeastOnce, false);
    bench.end(old);
    bench.publish(publisher, "t", "second", QoS::AtLeastOnce, false);
    let (new, present) = connect(&mut bench, &resume);
    assert!(present);
    let mut got = Vec::new();
    while let Some(Packet::Publish(publish)) = bench.try_next(new) {
        got.push((publish.payload, publish.dup));
    }
    assert_eq!(got, [(&b"first"[..], true), (&b"second"[..], false)]);
}

#[test]
fn only_a_normal_disconnect_discards_the_will() {
    for (reason, expected) in [
        (ReasonCode::Success, 0),
        (ReasonCode::DisconnectWithWill, 1),
        (ReasonCode::UnspecifiedError, 1),
    ] {
        let mut bench = Bench::new();
        let watcher = watcher(&mut bench);
        let with_will = Connect { will: Some(WILL), ..request(Version::V5, "c", true) };
        let (client, _) = connect(&mut bench, &with_will);
        let disconnect = Disconnect { reason, properties: Properties::EMPTY };
        bench.send(client, &Packet::Disconnect(disconnect));
        bench.end(client);
        assert_eq!(bench.payloads(watcher).len(), expected, "{reason:?}");
    }
}

#[test]
fn a_delayed_will_waits_unless_the_session_ends_or_resumes_first() {
    let delayed = delay(5);
    let will = Will { properties: delayed.as_properties(), ..WILL };
    // (session expiry, resumed before the delay is over, seconds until the will comes)
    for (expiry_s, resumed, due_s) in
        [(0, false, Some(0)), (100, false, Some(5)), (2, false, Some(2)), (100, true, None)]
    {
        let mut bench = Bench::new();
        let watcher = watcher(&mut bench);
        let properties = expiry(expiry_s);
        let with_will = Connect {
            will: Some(will),
            properties: properties.as_properties(),
            ..request(Version::V5, "c", false)
        };
        let (client, _) = connect(&mut bench, &with_will);
        bench.end(client);
        let wait = |bench: &mut Bench, seconds: u64| {
            bench.pass_ms(seconds * 1000);
            bench.payloads(watcher).len()
        };
        match due_s {
            Some(0) => assert_eq!(bench.payloads(watcher).len(), 1),
            Some(due_s) => {
                assert_eq!(wait(&mut bench, due_s - 1), 0);
                assert_eq!(wait(&mut bench, 2), 1);
            }
            None => {
                assert!(resumed);
                let properties = expiry(expiry_s);
                let again = Connect {
                    properties: properties.as_properties(),
                    ..request(Version::V5, "c", false)
                };
                connect(&mut bench, &again);
                assert_eq!(wait(&mut bench, 10), 0);
            }
        }
    }
}

#[test]
fn sessions_expire_and_their_subscriptions_with_them() {
    let mut bench = Bench::new();
    let properties = expiry(10);
    let wish =
        Connect { properties: properties.as_properties(), ..request(Version::V5, "c", false) };
    let (client, _) = connect(&mut bench, &wish);
    bench.subscribe(client, "t/+", qos(QoS::AtLeastOnce), 0);
    bench.end(client);
    bench.pass_ms(9_000);
    assert_eq!(bench.stats[0].snapshot().sessions, 1);
    bench.pass_ms(2_000);
    let stats = bench.stats[0].snapshot();
    assert_eq!((stats.sessions, stats.subscriptions, stats.connections), (0, 0, 0));
    assert!(!connect(&mut bench, &wish).1);
}

#[test]
fn an_expiry_of_zero_cannot_be_raised_by_disconnect() {
    let mut bench = Bench::new();
    let client = bench.connect(Version::V5, "c", true);
    let properties = expiry(100);
    let raise = Disconnect { reason: ReasonCode::Success, properties: properties.as_properties() };
    bench.send(client, &Packet::Disconnect(raise));
    let Packet::Disconnect(told) = bench.next(client) else { panic!("not told") };
    assert_eq!(told.reason, ReasonCode::ProtocolError);
    assert_eq!(bench.stats[0].snapshot().sessions, 0);
}

#[test]
fn silence_ends_a_connection_after_one_and_a_half_intervals() {
    let mut bench = Bench::new();
    let wish = Connect { keep_alive_s: 10, ..request(Version::V5, "c", true) };
    let (client, _) = connect(&mut bench, &wish);
    bench.pass_ms(14_000);
    bench.send(client, &Packet::PingReq);
    assert_eq!(bench.next(client), Packet::PingResp);
    bench.pass_ms(14_900);
    assert!(!bench.is_finished(client));
    // A long packet under way is a sign of life, a few bytes of one are not.
    let mut long = vec![0x30, 0xff, 0x7f, 0, 1, b't'];
    long.resize(PROGRESS_BYTES as usize, b'x');
    bench.send_bytes(client, &long);
    bench.pass_ms(14_900);
    assert!(!bench.is_finished(client));
    bench.send_bytes(client, b"xxxx");
    bench.pass_ms(200);
    let Packet::Disconnect(told) = bench.next(client) else { panic!("not told") };
    assert_eq!(told.reason, ReasonCode::KeepAliveTimeout);
    assert!(bench.is_finished(client));
    assert_eq!(bench.stats[0].snapshot().keep_alive_timeouts, 1);
}

#[test]
fn a_connection_that_says_nothing_is_cut_off() {
    let mut bench = Bench::with(1, Limits { connect_timeout_ms: 1_000, ..Limits::default() });
    let key = bench.shards[0].open(bench.now_ms).unwrap();
    bench.pass_ms(900);
    assert!(bench.shards[0].take_kills().is_empty());
    bench.pass_ms(200);
    assert_eq!(bench.shards[0].take_kills(), [key]);
}

#[test]
fn a_client_of_another_shard_is_handed_over_with_all_its_bytes() {
    let mut bench = Bench::with(2, Limits::default());
    let name = bench.name_on(1, "far");
    let mut bytes = Vec::new();
    mqtt::wire::encode(
        &Packet::Connect(request(Version::V5, &name, true)),
        Version::V5,
        &mut bytes,
    );
    bytes.extend_from_slice(&[0xc0, 0]); // a PINGREQ right behind it
    let key = bench.shards[0].open(bench.now_ms).unwrap();
    let mut buffer = bench.shards[0].read_buffer(key);
    buffer.extend_from_slice(&bytes);
    let received = bench.shards[0].on_bytes(key, bytes.len(), buffer, bench.now_ms);
    assert_eq!(received.next, Next::Handoff(1));
    assert_eq!(received.handoff, bytes);
    bench.shards[0].on_handed_off(key);
    assert_eq!(bench.shards[0].take_freed(), [key]);

    let key = bench.shards[1].open(bench.now_ms).unwrap();
    let client = Client { shard: 1, key, version: Version::V5 };
    let now_ms = bench.now_ms;
    bench.shards[1].on_bytes(key, bytes.len(), received.handoff, now_ms);
    bench.run();
    assert!(matches!(bench.next(client), Packet::ConnAck(_)));
    assert_eq!(bench.next(client), Packet::PingResp);
    assert_eq!(bench.stats[0].snapshot().connections + bench.stats[1].snapshot().connections, 1);
}

#[test]
fn shutting_down_tells_every_client() {
    let mut bench = Bench::new();
    let new = bench.connect(Version::V5, "new", true);
    let old = bench.connect(Version::V3_1_1, "old", true);
    let now_ms = bench.now_ms;
    bench.shards[0].shut_down(now_ms);
    bench.run();
    let Packet::Disconnect(told) = bench.next(new) else { panic!("not told") };
    assert_eq!(told.reason, ReasonCode::ServerShuttingDown);
    assert!(bench.try_next(old).is_none());
    assert!(bench.is_finished(new) && bench.is_finished(old));
    assert!(bench.shards[0].open(now_ms).is_none(), "takes no new ones");
    bench.end(new);
    bench.end(old);
    assert_eq!(bench.shards[0].connections(), 0);
}

#[test]
fn an_assigned_identifier_is_told_and_stays_on_its_shard() {
    let mut bench = Bench::with(4, Limits::default());
    for shard in 0..4 {
        let key = bench.shards[shard].open(bench.now_ms).unwrap();
        let client = Client { shard, key, version: Version::V5 };
        bench.send(client, &Packet::Connect(request(Version::V5, "", true)));
        let Packet::ConnAck(connack) = bench.next(client) else { panic!("no CONNACK") };
        let id = connack.properties.assigned_client_id().expect("an identifier");
        assert_eq!(usize::from(bench.shards[0].owner_of(id)), shard);
    }
}

#[test]
fn a_connect_larger_than_a_read_buffer_is_handed_over_whole() {
    let mut bench = Bench::with(2, Limits::default());
    let name = bench.name_on(1, "far");
    let payload = vec![b'w'; 40_000];
    let will = Will { payload: &payload, ..WILL };
    let mut bytes = Vec::new();
    let connect = Connect { will: Some(will), ..request(Version::V5, &name, true) };
    mqtt::wire::encode(&Packet::Connect(connect), Version::V5, &mut bytes);
    bytes.extend_from_slice(&[0xc0, 0]);
    let key = bench.shards[0].open(bench.now_ms).unwrap();
    let mut handoff = None;
    for chunk in bytes.chunks(10_000) {
        let mut buffer = bench.shards[0].read_buffer(key);
        buffer.extend_from_slice(chunk);
        let received = bench.shards[0].on_bytes(key, chunk.len(), buffer, bench.now_ms);
        if received.next == Next::Handoff(1) {
            handoff = Some(received.handoff);
        }
    }
    assert_eq!(handoff.expect("handed over"), bytes);
}
