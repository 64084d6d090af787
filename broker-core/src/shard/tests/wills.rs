//! Wills of durable sessions: published when the metadata has given them away, and once.

use meta::ProposeError;
use meta::command::{Command, Reply};
use meta::record::StoredMessage;
use mqtt::wire::{Disconnect, ReasonCode};

use super::durable::answer;
use super::stored::Stored;
use super::*;
use crate::shard::posted::Posted;

/// The client `c` is lost with a will, of which an heir reads.
fn lost(delay_s: u32) -> (Stored, Client) {
    let mut stored = Stored::new();
    let heir = stored.heir();
    let (client, _) = stored.connect(true, Some(delay_s));
    stored.bench.end(client);
    (stored, heir)
}

fn takes_will(commands: &[Command]) -> bool {
    commands.iter().any(|command| matches!(command, Command::TakeWill { .. }))
}

#[test]
fn a_will_is_published_when_it_is_taken() {
    for delay_s in [0, 5] {
        let (mut stored, heir) = lost(delay_s);
        if delay_s > 0 {
            assert!(!takes_will(&stored.record()));
        }
        stored.bench.pass_ms(u64::from(delay_s) * 1000 + 200);
        let posted = stored.shard().take_posted(10);
        assert!(takes_will(&posted), "{posted:?}");
        assert!(stored.bench.payloads(heir).is_empty(), "published before it is taken");
        stored.answer_posted(&posted);
        assert_eq!(stored.bench.payloads(heir), ["gone"]);
        assert_eq!(stored.record_of().expect("is there").will, None);
        stored.bench.pass_ms(10_000);
        assert!(stored.record().is_empty() && stored.bench.payloads(heir).is_empty(), "twice");
    }
}

#[test]
fn a_will_that_was_given_away_elsewhere_is_not_published() {
    let (mut stored, heir) = lost(5);
    stored.record();
    stored.bench.pass_ms(5_200);
    let mut posted = stored.shard().take_posted(10);
    assert!(takes_will(&posted));
    // Another node was asked by the client.
    let Command::TakeWill { client, .. } = &posted[0] else { panic!("{posted:?}") };
    let open = meta::command::OpenSession {
        client: client.clone(),
        clean_start: false,
        node: 2,
        expiry_interval_s: 60,
        will: None,
        now_ms: u64::MAX / 2,
    };
    stored.commit(&[Command::OpenSession(open)]);
    let replies = stored.answer_posted(&std::mem::take(&mut posted));
    assert!(matches!(&replies[..], [Reply::Refused(_)]), "{replies:?}");
    assert!(stored.bench.payloads(heir).is_empty());
}

#[test]
fn a_will_does_not_wait_for_a_majority() {
    for error in [ProposeError::Timeout, ProposeError::NoLeader] {
        let (mut stored, heir) = lost(0);
        let mut posted = stored.shard().take_posted(10);
        stored.posted_in_vain(&mut posted, error);
        assert_eq!(stored.bench.payloads(heir), ["gone"]);
        stored.posted_in_vain(&mut posted, error);
        stored.answer_posted(&posted);
        assert!(stored.bench.payloads(heir).is_empty(), "twice");
        assert_eq!(stored.record_of().expect("is there").will, None);
    }
}

#[test]
fn the_will_of_a_session_that_ends_is_published_when_that_is_recorded() {
    let (mut stored, heir) = lost(4_000_000);
    stored.record();
    stored.bench.pass_ms(3_600_200);
    assert!(stored.shard().find_session("c").is_none());
    let posted = stored.shard().take_posted(10);
    assert!(matches!(&posted[..], [Command::EndSession { .. }]), "{posted:?}");
    assert!(stored.bench.payloads(heir).is_empty());
    stored.answer_posted(&posted);
    assert_eq!(stored.bench.payloads(heir), ["gone"]);
}

/// The client is back before the end of its session is recorded: whoever opens it gives its will away.
#[test]
fn the_will_of_a_session_that_is_opened_again_behind_its_end() {
    for node in [1, 2] {
        let (mut stored, heir) = lost(4_000_000);
        stored.record();
        stored.bench.pass_ms(3_600_200);
        let posted = stored.shard().take_posted(10);
        assert!(matches!(&posted[..], [Command::EndSession { .. }]), "{posted:?}");
        let (_, _, mut commands) = stored.ask(false, None);
        let [Command::OpenSession(open)] = &mut commands[..] else { panic!("{commands:?}") };
        assert!(open.clean_start, "what is over here is not resumed there");
        open.node = node;
        stored.commit(&commands);
        let replies = stored.answer_posted(&posted);
        assert!(matches!(&replies[..], [Reply::Refused(_)]), "{replies:?}");
        let wanted: &[&str] = if node == 1 { &["gone"] } else { &[] };
        assert_eq!(stored.bench.payloads(heir), wanted, "opened on node {node}");
    }
}

#[test]
fn whoever_takes_a_session_over_decides_about_its_will() {
    // A clean start ends the session; otherwise a will without a delay is due.
    for (clean_start, delay_s, due) in [(true, 9, true), (false, 9, false), (false, 0, true)] {
        for connected in [true, false] {
            let mut stored = Stored::new();
            let heir = stored.heir();
            let (old, _) = stored.connect(true, Some(delay_s));
            if !connected {
                stored.bench.end(old);
            }
            // What was posted by then is late.
            let posted = stored.shard().take_posted(10);
            stored.connect(clean_start, None);
            stored.answer_posted(&posted);
            stored.record();
            stored.bench.pass_ms(20_000);
            stored.record();
            let wanted: &[&str] = if due { &["gone"] } else { &[] };
            let case = (clean_start, delay_s, connected);
            assert_eq!(stored.bench.payloads(heir), wanted, "{case:?}");
        }
    }
}

#[test]
fn a_transient_session_in_its_place_ends_a_durable_one_and_its_will() {
    for (clean_start, delay_s, due) in [(true, 9, true), (false, 9, false), (false, 0, true)] {
        let mut stored = Stored::new();
        let heir = stored.heir();
        stored.connect(true, Some(delay_s));
        let client = stored.bench.connect_with(&request(Version::V5, "c", clean_start));
        assert!(matches!(stored.bench.next(client), Packet::ConnAck(_)));
        let posted = stored.shard().take_posted(10);
        assert!(matches!(&posted[..], [Command::EndSession { .. }]), "{posted:?}");
        assert!(stored.bench.payloads(heir).is_empty());
        stored.answer_posted(&posted);
        let wanted: &[&str] = if due { &["gone"] } else { &[] };
        assert_eq!(stored.bench.payloads(heir), wanted, "{:?}", (clean_start, delay_s));
        assert_eq!(stored.record_of(), None);
    }
}

#[test]
fn a_discarded_will_is_none() {
    let mut stored = Stored::new();
    let heir = stored.heir();
    let (client, _) = stored.connect(true, Some(0));
    let (reason, properties) = (ReasonCode::Success, Properties::EMPTY);
    stored.bench.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
    assert!(!takes_will(&stored.record()));
    assert!(stored.bench.payloads(heir).is_empty());
}

/// Fills the list of posted commands until it takes no more; how many it took.
fn fill(stored: &mut Stored, draft: &mqtt::session::Draft<'_>) -> usize {
    let mut count = 0;
    loop {
        let before = stored.bench.stats[0].dropped_retained.get();
        stored.shard().post_retain(draft);
        if stored.bench.stats[0].dropped_retained.get() > before {
            return count;
        }
        count += 1;
    }
}

#[test]
fn what_finds_no_room_is_dropped_and_made_up_for() {
    let mut stored = Stored::new();
    let heir = stored.heir();
    let (client, _) = stored.connect(true, Some(0));
    let payload = vec![0; 1 << 20];
    let message = StoredMessage {
        topic: "t".into(),
        properties: Vec::new(),
        payload,
        qos: 0,
        expires_at_ms: None,
    };
    let message = crate::shard::message_of(&message, true, 0, 0);
    let messages = fill(&mut stored, &message.draft());
    assert!((60..=64).contains(&messages), "{messages}");
    // What ends sessions finds room behind messages, but not without end.
    let full = stored.shard().durability.as_mut().expect("is durable");
    full.posted = Posted::full();
    stored.bench.end(client);
    assert_eq!(stored.bench.payloads(heir), ["gone"], "its taking is not recorded");
    let (late, _, _) = stored.ask(false, None);
    stored.bench.end(late);
    stored.bench.pass_ms(1_100);
    assert_eq!(stored.bench.stats[0].dropped_posted.get(), 2);
    assert_eq!(stored.shard().to_compare(), None, "the list is not empty");
    while !stored.shard().take_posted(1000).is_empty() {}
    let overflows = stored.shard().to_compare().expect("sessions are to be compared");
    let record = stored.record_of().expect("is there");
    assert!(record.connected && record.will.is_some());
    stored.bench.shards[0].record_again("c", &record, 0);
    stored.shard().on_compared(overflows);
    assert_eq!(stored.shard().to_compare(), None);
    stored.record();
    let record = stored.record_of().expect("is there");
    assert!(!record.connected && record.will.is_none(), "{record:?}");
    assert!(stored.bench.payloads(heir).is_empty());
}

#[test]
fn a_stored_session_that_is_over_is_ended_unless_it_is_awaited() {
    let mut stored = Stored::new();
    let (client, commit, commands) = stored.ask(true, None);
    let (replies, _) = stored.commit(&commands);
    let record = stored.record_of().expect("is there");
    stored.shard().record_again("c", &record, 0);
    assert!(!stored.shard().has_posted(), "its answer is on its way");
    answer(&mut stored.bench, client, *commit, Ok(replies));
    stored.shard().record_again("c", &record, 0);
    assert!(!stored.shard().has_posted(), "it is as it should be");
    let record = meta::record::SessionRecord { epoch: 77, ..record };
    stored.shard().record_again("other", &record, 0);
    let posted = stored.shard().take_posted(10);
    assert!(matches!(&posted[..], [Command::EndSession { epoch: 77, .. }]), "{posted:?}");
}
