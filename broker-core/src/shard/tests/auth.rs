//! Who may connect: passwords, and exchanges of AUTH packets.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mqtt::access::{Credentials, PasswordCheck, Users};
use mqtt::wire::{ConnAck, Connect, Disconnect, Packet, PropertyBuf, QoS, ReasonCode, Version};

use rt_abstract::Peer;

use super::{Bench, Client, qos, request};
use crate::access::Access;
use crate::config::{AuthConfig, Level, Limits};
use crate::shard::testing::scram as sasl;
use crate::shard::{Next, Verified};

const METHOD: &str = "SCRAM-SHA-256";
const FIRST: &str = "n,,n=ann,r=abc";

fn users() -> Users {
    let record = |word| Credentials::derive(word, b"0123456789abcdef", 4096).unwrap();
    Users::parse(&format!("ann:{}\nbob:{}", record("a"), record("b"))).unwrap()
}

pub(super) fn bench(
    allow_anonymous: bool,
    max_pending_verifications: usize,
    shards: usize,
) -> Bench {
    let mut bench = Bench::with(shards, Limits::default());
    let users = Some(users());
    let config = AuthConfig { allow_anonymous, users, max_pending_verifications };
    let access = Arc::new(Access::new(&config, [7; 32]));
    bench.shards.iter_mut().for_each(|shard| shard.set_access(access.clone()));
    bench
}

pub(super) fn login<'a>(
    version: Version,
    id: &'a str,
    user: &'a str,
    password: &'a str,
) -> Connect<'a> {
    let password = Some(password.as_bytes());
    Connect { username: Some(user), password, ..request(version, id, true) }
}

/// Opens a connection and sends bytes behind CONNECT; the password is not verified yet.
pub(super) fn begin(bench: &mut Bench, request: &Connect<'_>, behind: &[u8]) -> (Client, Next) {
    let shard = usize::from(bench.shards[0].owner_of(request.client_id));
    let key = bench.shards[shard].open(bench.now_ms).unwrap();
    bench.written.remove(&(shard, key));
    bench.finished.retain(|ended| *ended != (shard, key));
    let client = Client { shard, key, version: request.version };
    let mut bytes = Vec::new();
    mqtt::wire::encode(&Packet::Connect(*request), request.version, &mut bytes);
    bytes.extend_from_slice(behind);
    let next = bench.send_bytes(client, &bytes);
    bench.run();
    (client, next)
}

pub(super) fn check(next: Next) -> Box<PasswordCheck> {
    let Next::Verify(check) = next else { panic!("nothing to verify: {next:?}") };
    check
}

fn report(bench: &mut Bench, client: Client, verified: Verified) -> Next {
    let received = bench.shards[client.shard].on_verified(client.key, verified, bench.now_ms);
    bench.run();
    received.next
}

fn verify(bench: &mut Bench, client: Client, next: Next) -> Next {
    let verified = if check(next).run() { Verified::Right } else { Verified::Wrong };
    report(bench, client, verified)
}

fn connack(bench: &mut Bench, client: Client) -> ConnAck<'static> {
    let Packet::ConnAck(connack) = bench.next(client) else { panic!("no CONNACK") };
    connack
}

fn scram<'a>(properties: &'a mut PropertyBuf, method: &str, data: Option<&str>) -> Connect<'a> {
    properties.auth_method(method);
    if let Some(data) = data {
        properties.auth_data(data.as_bytes());
    }
    Connect { properties: properties.as_properties(), ..request(Version::V5, "scram", true) }
}

fn send_auth(bench: &mut Bench, client: Client, reason: ReasonCode, data: &str) {
    let mut properties = PropertyBuf::new();
    properties.auth_method(METHOD).auth_data(data.as_bytes());
    let properties = properties.as_properties();
    bench.send(client, &Packet::Auth(Disconnect { reason, properties }));
}

fn continue_with(bench: &mut Bench, client: Client, data: &str) {
    send_auth(bench, client, ReasonCode::ContinueAuthentication, data);
}

/// The data of the AUTH packet that came, which must carry `reason` and the method.
fn challenge(bench: &mut Bench, client: Client, reason: ReasonCode) -> &'static str {
    let Packet::Auth(auth) = bench.next(client) else { panic!("no AUTH") };
    assert_eq!((auth.reason, auth.properties.auth_method()), (reason, Some(METHOD)));
    str::from_utf8(auth.properties.auth_data().unwrap_or_default()).unwrap()
}

/// The client's last message, and what the server must answer.
fn prove(password: &str, first: &str, answer: &str) -> (String, String) {
    let part = |name| answer.split(',').find_map(|part| part.strip_prefix(name)).unwrap();
    let salt = STANDARD.decode(part("s=")).unwrap();
    let salted = sasl::stretch(password, &salt, part("i=").parse().unwrap());
    sasl::prove(&salted, first, answer)
}

/// A client connected by an exchange.
fn connected(bench: &mut Bench) -> Client {
    let client = bench.connect_with(&scram(&mut PropertyBuf::new(), METHOD, Some(FIRST)));
    let answer = challenge(bench, client, ReasonCode::ContinueAuthentication);
    continue_with(bench, client, &prove("a", FIRST, answer).0);
    assert_eq!(connack(bench, client).reason, ReasonCode::Success);
    client
}

fn failures(bench: &Bench) -> u64 {
    bench.stats.iter().map(|stats| stats.authentication_failures.get()).sum()
}

#[test]
fn passwords_in_every_version() {
    let mut bench = bench(false, 10, 1);
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        let (client, next) = begin(&mut bench, &login(version, "c", "ann", "a"), &[]);
        assert!(bench.try_next(client).is_none(), "no CONNACK before the result");
        assert_eq!(verify(&mut bench, client, next), Next::Read);
        assert_eq!(connack(&mut bench, client).reason, ReasonCode::Success);
        bench.publish(client, "t", "", QoS::AtMostOnce, false);
        assert!(!bench.is_finished(client));
        bench.end(client);

        for (user, password) in [("ann", "b"), ("eve", "a"), ("", ""), ("\u{7}", "a")] {
            let (client, next) = begin(&mut bench, &login(version, "c", user, password), &[]);
            assert_eq!(verify(&mut bench, client, next), Next::Drain);
            assert_eq!(connack(&mut bench, client).reason, ReasonCode::BadUserNameOrPassword);
            assert!(bench.is_finished(client));
            bench.end(client);
        }
        let client = bench.connect_with(&request(version, "c", true));
        assert_eq!(connack(&mut bench, client).reason, ReasonCode::NotAuthorized);
        assert!(bench.is_finished(client));
        bench.end(client);
    }
    assert_eq!(failures(&bench), 15);
    assert_eq!(bench.shards[0].connections(), 0);
    assert_eq!(bench.stats[0].sessions.get(), 0);
}

#[test]
fn what_follows_connect_waits_for_the_result() {
    let mut bench = bench(false, 10, 1);
    let mut behind = Vec::new();
    super::subscribe_bytes(
        &mut behind,
        Version::V5,
        mqtt::wire::Properties::EMPTY,
        "t",
        qos(QoS::AtMostOnce),
    );
    let (client, next) = begin(&mut bench, &login(Version::V5, "c", "ann", "a"), &behind);
    assert_eq!(bench.stats[0].subscriptions.get(), 0);
    verify(&mut bench, client, next);
    assert_eq!(connack(&mut bench, client).reason, ReasonCode::Success);
    assert!(matches!(bench.next(client), Packet::SubAck(_)));

    let (client, next) = begin(&mut bench, &login(Version::V5, "d", "ann", "x"), &behind);
    verify(&mut bench, client, next);
    assert!(connack(&mut bench, client).reason.is_error());
    assert!(bench.try_next(client).is_none());
    assert_eq!(bench.stats[0].subscriptions.get(), 1);

    // A CONNECT beyond the size of a read buffer, with a will that is published later.
    let large = "x".repeat(40_000);
    let will = mqtt::wire::Will {
        topic: "t",
        payload: large.as_bytes(),
        qos: QoS::AtMostOnce,
        retain: false,
        properties: mqtt::wire::Properties::EMPTY,
    };
    let watcher = client_on(&mut bench, "watcher");
    let request = Connect { will: Some(will), ..login(Version::V5, "e", "ann", "a") };
    let (client, next) = begin(&mut bench, &request, &behind);
    verify(&mut bench, client, next);
    assert_eq!(connack(&mut bench, client).reason, ReasonCode::Success);
    assert!(matches!(bench.next(client), Packet::SubAck(_)));
    bench.end(client);
    assert_eq!(bench.payloads(watcher), [large.as_str()]);
}

/// A client that logs in and subscribes to `t`.
fn client_on(bench: &mut Bench, id: &str) -> Client {
    let (client, next) = begin(bench, &login(Version::V5, id, "bob", "b"), &[]);
    verify(bench, client, next);
    assert_eq!(connack(bench, client).reason, ReasonCode::Success);
    bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
    client
}

#[test]
fn a_takeover_happens_only_after_the_proof() {
    let mut bench = bench(false, 10, 1);
    let old = client_on(&mut bench, "c");
    let (wrong, next) = begin(&mut bench, &login(Version::V5, "c", "ann", "x"), &[]);
    verify(&mut bench, wrong, next);
    assert!(connack(&mut bench, wrong).reason.is_error());
    assert!(bench.try_next(old).is_none(), "whoever fails disturbs nobody");
    let (new, next) = begin(&mut bench, &login(Version::V5, "c", "ann", "a"), &[]);
    assert!(bench.try_next(old).is_none());
    verify(&mut bench, new, next);
    let Packet::Disconnect(told) = bench.next(old) else { panic!("no DISCONNECT") };
    assert_eq!(told.reason, ReasonCode::SessionTakenOver);
}

#[test]
fn verifications_are_bounded_and_end_with_their_connection() {
    let mut bench = bench(false, 2, 1);
    let ask = login(Version::V5, "", "ann", "a");
    let (first, first_next) = begin(&mut bench, &ask, &[]);
    let (second, second_next) = begin(&mut bench, &ask, &[]);
    let (third, _) = begin(&mut bench, &ask, &[]);
    assert_eq!(connack(&mut bench, third).reason, ReasonCode::ServerBusy);
    let old = bench.connect_with(&login(Version::V3_1_1, "3", "ann", "a"));
    assert_eq!(connack(&mut bench, old).reason, ReasonCode::ServerUnavailable);
    assert_eq!(failures(&bench), 0);

    // The connect timeout goes on.
    bench.pass_ms(u64::from(Limits::default().connect_timeout_ms) + 200);
    assert!(bench.is_finished(first) && bench.is_finished(second));
    assert!(bench.shards[0].take_kills().contains(&first.key));
    assert_eq!(verify(&mut bench, first, first_next), Next::Drain);
    assert!(bench.try_next(first).is_none(), "too late");
    bench.end(first);
    // The task that was to report is gone.
    drop(second_next);
    bench.end(second);
    bench.end(third);

    for _ in 0..2 {
        let (client, next) = begin(&mut bench, &ask, &[]);
        check(next);
        report(&mut bench, client, Verified::Failed);
        assert_eq!(connack(&mut bench, client).reason, ReasonCode::ServerUnavailable);
        bench.end(client);
    }
    assert_eq!(bench.stats[0].sessions.get(), 0);
}

#[test]
fn a_client_is_verified_by_the_shard_that_owns_it() {
    let mut bench = bench(false, 10, 2);
    let id = bench.name_on(1, "c");
    let key = bench.shards[0].open(bench.now_ms).unwrap();
    let client = Client { shard: 0, key, version: Version::V5 };
    let mut bytes = Vec::new();
    let packet = Packet::Connect(login(Version::V5, &id, "ann", "wrong"));
    mqtt::wire::encode(&packet, Version::V5, &mut bytes);
    assert_eq!(bench.send_bytes(client, &bytes), Next::Handoff(1));
}

#[test]
fn an_exchange_of_auth_packets() {
    let mut bench = bench(false, 10, 1);
    for data in [Some(FIRST), None] {
        let client = bench.connect_with(&scram(&mut PropertyBuf::new(), METHOD, data));
        let mut answer = challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
        if data.is_none() {
            assert_eq!(answer, "");
            continue_with(&mut bench, client, FIRST);
            answer = challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
        }
        let (last, verifier) = prove("a", FIRST, answer);
        continue_with(&mut bench, client, &last);
        let told = connack(&mut bench, client);
        assert_eq!(told.reason, ReasonCode::Success);
        assert_eq!(told.properties.auth_method(), Some(METHOD));
        assert_eq!(told.properties.auth_data(), Some(verifier.as_bytes()));
        bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
        bench.end(client);
    }
    assert_eq!(bench.stats[0].sessions.get(), 0);
}

#[test]
fn an_exchange_that_fails() {
    let mut bench = bench(false, 10, 1);
    let client = bench.connect_with(&scram(&mut PropertyBuf::new(), "SCRAM-SHA-1", None));
    assert_eq!(connack(&mut bench, client).reason, ReasonCode::BadAuthenticationMethod);
    bench.end(client);

    type Then = fn(&mut Bench, Client);
    let cases: [(Then, ReasonCode); 6] = [
        (
            |bench, client| continue_with(bench, client, "c=biws,r=x,p=AAAA"),
            ReasonCode::NotAuthorized,
        ),
        (|bench, client| bench.send(client, &Packet::PingReq), ReasonCode::ProtocolError),
        (
            |bench, client| bench.publish(client, "t", "", QoS::AtMostOnce, false),
            ReasonCode::ProtocolError,
        ),
        (
            |bench, client| send_auth(bench, client, ReasonCode::ReAuthenticate, FIRST),
            ReasonCode::ProtocolError,
        ),
        (
            // Topic alias 0 means 0x94, which CONNACK must not have.
            |bench, client| {
                bench.send_bytes(client, b"\x30\x08\x00\x01t\x03\x23\x00\x00x");
                bench.run();
            },
            ReasonCode::ProtocolError,
        ),
        (
            |bench, client| {
                let request = request(Version::V5, "again", true);
                bench.send(client, &Packet::Connect(request));
            },
            ReasonCode::ProtocolError,
        ),
    ];
    for (then, reason) in cases {
        let client = bench.connect_with(&scram(&mut PropertyBuf::new(), METHOD, Some(FIRST)));
        challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
        then(&mut bench, client);
        assert_eq!(connack(&mut bench, client).reason, reason);
        assert!(bench.is_finished(client));
        bench.end(client);
    }

    for (first, password) in [(FIRST, "wrong"), ("n,,n=eve,r=abc", "a")] {
        let client = bench.connect_with(&scram(&mut PropertyBuf::new(), METHOD, Some(first)));
        let answer = challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
        continue_with(&mut bench, client, &prove(password, first, answer).0);
        assert_eq!(connack(&mut bench, client).reason, ReasonCode::BadUserNameOrPassword);
        bench.end(client);
    }

    // Leaving in between, and saying nothing.
    let client = bench.connect_with(&scram(&mut PropertyBuf::new(), METHOD, Some(FIRST)));
    challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
    let (reason, properties) = (ReasonCode::Success, mqtt::wire::Properties::EMPTY);
    bench.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
    assert!(bench.is_finished(client) && bench.try_next(client).is_none());
    bench.end(client);
    let client = bench.connect_with(&scram(&mut PropertyBuf::new(), METHOD, Some(FIRST)));
    challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
    bench.pass_ms(u64::from(Limits::default().connect_timeout_ms) + 200);
    assert!(bench.is_finished(client) && bench.try_next(client).is_none());
    bench.end(client);
    assert_eq!(bench.stats[0].sessions.get(), 0);
}

#[test]
fn a_client_that_takes_only_small_packets_is_sent_none_larger() {
    let mut bench = bench(false, 10, 1);
    let mut properties = PropertyBuf::new();
    properties.maximum_packet_size_bytes(40);
    let client = bench.connect_with(&scram(&mut properties, METHOD, Some(FIRST)));
    assert_eq!(connack(&mut bench, client).reason, ReasonCode::PacketTooLarge);
}

#[test]
fn once_more_while_messages_flow() {
    let mut bench = bench(true, 10, 1);
    let publisher = bench.connect(Version::V5, "publisher", true);
    let client = connected(&mut bench);
    bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
    for _ in 0..2 {
        send_auth(&mut bench, client, ReasonCode::ReAuthenticate, FIRST);
        let answer = challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
        bench.publish(publisher, "t", "meanwhile", QoS::AtMostOnce, false);
        assert_eq!(bench.payloads(client), ["meanwhile"]);
        bench.send(client, &Packet::PingReq);
        assert!(matches!(bench.next(client), Packet::PingResp));
        let (last, verifier) = prove("a", FIRST, answer);
        continue_with(&mut bench, client, &last);
        assert_eq!(challenge(&mut bench, client, ReasonCode::Success), verifier);
    }

    send_auth(&mut bench, client, ReasonCode::ReAuthenticate, FIRST);
    let answer = challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
    continue_with(&mut bench, client, &prove("wrong", FIRST, answer).0);
    let Packet::Disconnect(told) = bench.next(client) else { panic!("no DISCONNECT") };
    assert_eq!(told.reason, ReasonCode::NotAuthorized);
    assert!(bench.is_finished(client));

    // Without a method at CONNECT there is nothing to do again.
    send_auth(&mut bench, publisher, ReasonCode::ReAuthenticate, FIRST);
    let Packet::Disconnect(told) = bench.next(publisher) else { panic!("no DISCONNECT") };
    assert_eq!(told.reason, ReasonCode::ProtocolError);
}

#[test]
fn an_exchange_on_an_open_connection_has_a_deadline_too() {
    let mut bench = bench(false, 10, 1);
    let (client, late) = (connected(&mut bench), u64::from(Limits::default().connect_timeout_ms));
    let failed = failures(&bench);
    for _ in 0..2 {
        send_auth(&mut bench, client, ReasonCode::ReAuthenticate, FIRST);
        let answer = challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
        bench.pass_ms(late - 200);
        continue_with(&mut bench, client, &prove("a", FIRST, answer).0);
        challenge(&mut bench, client, ReasonCode::Success);
        bench.pass_ms(late + 200);
        assert!(!bench.is_finished(client), "no exchange, no deadline");
    }
    send_auth(&mut bench, client, ReasonCode::ReAuthenticate, FIRST);
    challenge(&mut bench, client, ReasonCode::ContinueAuthentication);
    bench.pass_ms(late + 200);
    let Packet::Disconnect(told) = bench.next(client) else { panic!("no DISCONNECT") };
    assert_eq!(told.reason, ReasonCode::NotAuthorized);
    assert!(bench.is_finished(client));
    assert_eq!(failures(&bench), failed + 1);
}

#[test]
fn guessing_from_one_address_is_slow() {
    let per_min = Limits::default().max_failed_logins_per_min;
    let mut bench = bench(true, 10, 1);
    let from = |bench: &mut Bench, address: &str, request: &Connect<'_>| {
        let key = bench.shards[0].open(bench.now_ms).unwrap();
        bench.written.remove(&(0, key));
        bench.finished.retain(|ended| *ended != (0, key));
        bench.shards[0].set_origin(key, Peer::Tcp(address.parse().unwrap()).into(), Level::Disk);
        let client = Client { shard: 0, key, version: request.version };
        let mut bytes = Vec::new();
        mqtt::wire::encode(&Packet::Connect(*request), request.version, &mut bytes);
        let next = bench.send_bytes(client, &bytes);
        bench.run();
        if matches!(next, Next::Verify(_)) {
            let right = request.password == Some(b"a");
            report(bench, client, if right { Verified::Right } else { Verified::Wrong });
        }
        client
    };
    let wrong = login(Version::V5, "c", "ann", "x");
    for n in 0..per_min {
        let client = from(&mut bench, "192.0.2.1:1", &wrong);
        let reason = connack(&mut bench, client).reason;
        assert_eq!(reason, ReasonCode::BadUserNameOrPassword, "{n}");
        bench.end(client);
    }
    let right = login(Version::V5, "c", "ann", "a");
    let told = |bench: &mut Bench, address, request: &Connect<'_>| {
        let client = from(bench, address, request);
        let told = connack(bench, client).reason;
        bench.end(client);
        told
    };
    let rate = ReasonCode::ConnectionRateExceeded;
    assert_eq!(told(&mut bench, "192.0.2.1:2", &right), rate);
    assert_eq!(
        told(&mut bench, "192.0.2.1:2", &Connect { version: Version::V3_1_1, ..right }),
        ReasonCode::ServerUnavailable
    );
    let mut properties = PropertyBuf::new();
    let exchange = scram(&mut properties, METHOD, Some(FIRST));
    assert_eq!(told(&mut bench, "192.0.2.1:2", &exchange), rate);
    assert_eq!(bench.stats[0].logins_rate_limited.get(), 3);
    // Whoever proves nothing guesses nothing, and others have buckets of their own.
    let anonymous = request(Version::V5, "c", true);
    assert_eq!(told(&mut bench, "192.0.2.1:3", &anonymous), ReasonCode::Success);
    assert_eq!(told(&mut bench, "192.0.2.2:1", &right), ReasonCode::Success);
    bench.pass_ms(60_000 / u64::from(per_min) + 1);
    assert_eq!(told(&mut bench, "192.0.2.1:4", &right), ReasonCode::Success);
    assert_eq!(told(&mut bench, "192.0.2.1:4", &wrong), ReasonCode::BadUserNameOrPassword);
    assert_eq!(told(&mut bench, "192.0.2.1:4", &right), rate);
}

#[test]
fn users_are_replaced_while_clients_stay() {
    let mut bench = Bench::new();
    let config = AuthConfig { users: Some(users()), ..AuthConfig::default() };
    let access = Arc::new(Access::new(&config, [7; 32]));
    bench.shards[0].set_access(access.clone());
    let client = connected(&mut bench);
    access.replace_users(Users::default());
    bench.subscribe(client, "t", qos(QoS::AtMostOnce), 0);
    let (late, next) = begin(&mut bench, &login(Version::V5, "c", "ann", "a"), &[]);
    verify(&mut bench, late, next);
    assert_eq!(connack(&mut bench, late).reason, ReasonCode::BadUserNameOrPassword);

    let open = Access::default();
    open.replace_users(users());
    assert!(!open.policy().has_users, "a node without users stays one");
}
