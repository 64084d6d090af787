//! What the metadata commits although nobody waits for the answer any more, and what it refuses.

use meta::ProposeError;
use meta::command::{Command, Refusal, Reply};
use mqtt::wire::{Disconnect, FilterBuf, ReasonCode, SubAck, Unsubscribe};

use super::durable::{answer, owe_bytes, subscribe_packet};
use super::stored::Stored;
use super::*;

/// CONNECT that is refused after its time, and committed later if `commands` are.
fn refused(stored: &mut Stored, clean_start: bool) -> Vec<Command> {
    let (client, commit, commands) = stored.ask(clean_start, None);
    answer(&mut stored.bench, client, *commit, Err(ProposeError::Timeout));
    let Packet::ConnAck(connack) = stored.bench.next(client) else { panic!("no CONNACK") };
    assert_eq!(connack.reason, ReasonCode::ServerUnavailable);
    stored.bench.end(client);
    commands
}

fn subscribed(stored: &mut Stored, client: Client, packet: &[u8]) -> Vec<u8> {
    let (commit, commands) = owe_bytes(&mut stored.bench, client, packet);
    let (replies, _) = stored.commit(&commands);
    answer(&mut stored.bench, client, *commit, Ok(replies));
    match stored.bench.next(client) {
        Packet::SubAck(SubAck { codes, .. }) | Packet::UnsubAck(SubAck { codes, .. }) => {
            codes.to_vec()
        }
        other => panic!("{other:?}"),
    }
}

fn unsubscribe_packet(filter: &str) -> Vec<u8> {
    let mut filters = FilterBuf::for_unsubscribe();
    filters.push(filter, SubscribeOptions::default());
    let (packet_id, properties) = (PacketId::MIN, Properties::EMPTY);
    let packet = Unsubscribe { packet_id, properties, filters: filters.as_filters() };
    let mut bytes = Vec::new();
    encode(&Packet::Unsubscribe(packet), Version::V5, &mut bytes);
    bytes
}

/// What is stored is what the shard has, and a change is not refused as stale.
fn check(stored: &mut Stored, filters: usize) {
    assert_eq!(stored.stored_filters(), stored.held_filters());
    assert_eq!(stored.stored_filters().len(), filters);
    let (client, present) = stored.connect(false, None);
    assert!(present);
    assert_eq!(subscribed(stored, client, &subscribe_packet(Version::V5, "new")), [1]);
    assert_eq!(stored.stored_filters(), stored.held_filters());
    stored.bench.end(client);
    stored.record();
    assert!(!stored.record_of().expect("is there").connected);
}

#[test]
fn an_opening_that_comes_late_takes_over() {
    let mut stored = Stored::new();
    let (old, _) = stored.connect(true, None);
    subscribed(&mut stored, old, &subscribe_packet(Version::V5, "a"));
    let late = refused(&mut stored, false);
    let (_, told) = stored.commit(&late);
    stored.tell(&told);
    assert!(matches!(stored.bench.next(old), Packet::Disconnect(_)), "taken over");
    stored.record();
    let record = stored.record_of().expect("is there");
    assert!(!record.connected && record.expires_at_ms.is_some(), "{record:?}");
    check(&mut stored, 1);
}

#[test]
fn an_opening_that_comes_late_begins_a_session() {
    for known in [false, true] {
        let mut stored = Stored::new();
        if known {
            let (old, _) = stored.connect(true, None);
            subscribed(&mut stored, old, &subscribe_packet(Version::V5, "a"));
            stored.bench.end(old);
            stored.record();
        }
        let late = refused(&mut stored, true);
        let (_, told) = stored.commit(&late);
        stored.tell(&told);
        stored.record();
        assert!(!stored.record_of().expect("is there").connected);
        check(&mut stored, 0);
    }
}

#[test]
fn an_opening_that_comes_late_is_known_to_the_next_one() {
    for connected in [true, false] {
        let mut stored = Stored::new();
        let (old, _) = stored.connect(true, None);
        subscribed(&mut stored, old, &subscribe_packet(Version::V5, "a"));
        if !connected {
            stored.bench.end(old);
            stored.record();
        }
        let late = refused(&mut stored, true);
        let (_, told) = stored.commit(&late);
        // The client is faster than the tick.
        let (client, present) = stored.connect(false, None);
        assert!(present);
        assert_eq!((stored.held_filters(), stored.stored_filters()), (vec![], vec![]));
        stored.tell(&told);
        stored.bench.send(client, &Packet::PingReq);
        assert!(matches!(stored.bench.next(client), Packet::PingResp));
        stored.bench.end(client);
        stored.record();
        check(&mut stored, 0);
    }
}

#[test]
fn an_opening_that_is_told_before_its_time_is_over_counts_behind_it() {
    let mut stored = Stored::new();
    let (old, _) = stored.connect(true, None);
    let (client, commit, commands) = stored.ask(false, None);
    let (_, told) = stored.commit(&commands);
    stored.tell(&told);
    assert!(stored.bench.try_next(old).is_none(), "its answer may be on its way");
    answer(&mut stored.bench, client, *commit, Err(ProposeError::Timeout));
    assert!(matches!(stored.bench.next(old), Packet::Disconnect(_)));
    stored.record();
    check(&mut stored, 0);
}

#[test]
fn a_connection_whose_successor_is_gone_is_over() {
    let mut stored = Stored::new();
    let (old, _) = stored.connect(true, None);
    let (new, commit, commands) = stored.ask(false, None);
    stored.bench.pass_ms(60_000); // the connect timeout
    let (replies, told) = stored.commit(&commands);
    answer(&mut stored.bench, new, *commit, Ok(replies));
    assert!(matches!(stored.bench.next(old), Packet::Disconnect(_)));
    stored.tell(&told);
    stored.record();
    check(&mut stored, 0);
}

#[test]
fn an_opening_that_was_answered_and_has_ended_does_not_come_back() {
    let mut stored = Stored::new();
    let (client, commit, commands) = stored.ask(true, None);
    let (replies, told) = stored.commit(&commands);
    answer(&mut stored.bench, client, *commit, Ok(replies));
    let mut over = PropertyBuf::new();
    over.session_expiry_interval_s(0);
    let (reason, properties) = (ReasonCode::Success, over.as_properties());
    stored.bench.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
    stored.tell(&told);
    assert!(stored.shard().find_session("c").is_none());
    stored.record();
    assert_eq!(stored.record_of(), None);
}

#[test]
fn a_transient_session_after_a_refusal_is_left_alone() {
    let mut stored = Stored::new();
    let late = refused(&mut stored, false);
    let client = stored.bench.connect(Version::V5, "c", false);
    let (_, told) = stored.commit(&late);
    stored.tell(&told);
    assert!(stored.bench.try_next(client).is_none());
    stored.record();
    assert_eq!(stored.record_of(), None);
    stored.bench.send(client, &Packet::PingReq);
    assert!(matches!(stored.bench.next(client), Packet::PingResp));
}

/// A change whose outcome nobody knows ends the connection, and what is committed in the end is what
/// the shard has: `late` is when that is.
fn left_in_doubt(packet: &[u8], late: Option<Late>, filters: usize) {
    let mut stored = Stored::new();
    let (client, _) = stored.connect(true, None);
    subscribed(&mut stored, client, &subscribe_packet(Version::V5, "a"));
    let (commit, commands) = owe_bytes(&mut stored.bench, client, packet);
    answer(&mut stored.bench, client, *commit, Err(ProposeError::Timeout));
    let Packet::Disconnect(disconnect) = stored.bench.next(client) else { panic!("no word") };
    assert_eq!(disconnect.reason, ReasonCode::ServerBusy);
    if late == Some(Late::BeforeTheClose) {
        assert_eq!(stored.commit(&commands).0, [Reply::Done]);
    }
    stored.record();
    assert_eq!(stored.stored_filters(), stored.held_filters());
    if late == Some(Late::BehindTheClose) {
        assert_eq!(stored.commit(&commands).0, [Reply::Done]);
    }
    let (client, present) = stored.connect(false, None);
    assert!(present);
    // No later than that.
    assert_eq!(stored.commit(&commands).0, [Reply::Refused(Refusal::Stale)]);
    stored.bench.end(client);
    stored.record();
    check(&mut stored, filters);
}

#[derive(Clone, Copy, PartialEq)]
enum Late {
    BeforeTheClose,
    BehindTheClose,
}

#[test]
fn a_subscribe_that_is_in_doubt_becomes_what_is_stored() {
    let packet = subscribe_packet(Version::V5, "b");
    left_in_doubt(&packet, None, 1);
    left_in_doubt(&packet, Some(Late::BeforeTheClose), 2);
    left_in_doubt(&packet, Some(Late::BehindTheClose), 2);
}

#[test]
fn an_unsubscribe_that_is_in_doubt_becomes_what_is_stored() {
    let packet = unsubscribe_packet("a");
    left_in_doubt(&packet, None, 1);
    left_in_doubt(&packet, Some(Late::BeforeTheClose), 0);
    left_in_doubt(&packet, Some(Late::BehindTheClose), 0);
}

#[test]
fn a_refused_change_leaves_what_was_there() {
    let mut stored = Stored::new();
    let (client, _) = stored.connect(true, None);
    subscribed(&mut stored, client, &subscribe_packet(Version::V5, "a"));
    let before = stored.held_filters();
    let mut again = Vec::new();
    let options = qos(QoS::AtMostOnce);
    subscribe_bytes(&mut again, Version::V5, Properties::EMPTY, "a", options);
    for refusal in [Ok(vec![Reply::Refused(Refusal::Stale)]), Err(ProposeError::NoLeader)] {
        let (commit, _) = owe_bytes(&mut stored.bench, client, &again);
        answer(&mut stored.bench, client, *commit, refusal);
        let Packet::SubAck(suback) = stored.bench.next(client) else { panic!("no SUBACK") };
        assert_eq!(suback.codes, [0x80]);
        assert_eq!(stored.held_filters(), before);
    }
    let (commit, _) = owe_bytes(&mut stored.bench, client, &unsubscribe_packet("a"));
    answer(&mut stored.bench, client, *commit, Err(ProposeError::NoLeader));
    assert_eq!(stored.held_filters(), before);
    assert!(matches!(stored.bench.next(client), Packet::Disconnect(_)));
}

#[test]
fn a_change_of_a_connection_that_is_gone_is_in_doubt_as_well() {
    let mut stored = Stored::new();
    let (client, _) = stored.connect(true, None);
    let packet = subscribe_packet(Version::V5, "b");
    let (commit, _) = owe_bytes(&mut stored.bench, client, &packet);
    stored.shard().shut_down(0);
    stored.record();
    answer(&mut stored.bench, client, *commit, Err(ProposeError::Timeout));
    assert_eq!(stored.held_filters().len(), 1);
    stored.record();
    assert_eq!(stored.held_filters(), []);
}
