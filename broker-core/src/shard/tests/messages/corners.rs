//! Full queues, members of share groups that end, and a journal that is behind.

use mqtt::session::{Delivery, Draft, Message};
use mqtt::wire::AckKind::{PubAck, PubRec, PubRel};
use mqtt::wire::QoS::{AtLeastOnce, ExactlyOnce};

use proptest::prelude::*;

use super::kept::{Kept, publish_packet};
use super::*;
use crate::config::{DurabilityConfig, Level, QueueFull};
use crate::messages::{Done, Record};

fn levels() -> DurabilityConfig {
    DurabilityConfig { level: Level::Disk, topics: vec![("none/#".to_owned(), Level::None)] }
}

#[test]
fn a_member_that_ends_records_nothing_for_what_it_hands_on() {
    let mut kept = Kept::new(1);
    kept.sleeper("l", "$share/g/t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "t", "a", AtLeastOnce, 1);
    kept.sync();
    let reader = kept.connect("l");
    assert_eq!(kept.got(reader), ["pub a 2"], "sent, not acknowledged");
    kept.sleeper("m", "$share/g/t", AtLeastOnce);
    kept.bench.end(reader);
    let again = kept.connect_as("l", true);
    kept.bench.end(again);
    kept.fetch();
    kept.sync();
    assert_eq!(kept.live(), 1, "the other member's");
    kept.crash();
    let reader = kept.connect("m");
    assert_eq!(kept.got(reader), ["pub a 2"]);
    kept.ack(reader, PubAck, 2);
    kept.sync();
    assert_eq!(kept.live(), 0);
}

#[test]
fn a_repeated_publish_is_answered_though_nothing_more_is_recorded() {
    let mut kept = Kept::new(1);
    let client = kept.connect("p");
    kept.publish(client, "t", "a", ExactlyOnce, 1);
    kept.bench.end(client);
    kept.sync();
    let client = kept.connect("p");
    kept.publish_again(client, "t", "a", ExactlyOnce, 1, true);
    assert_eq!(kept.got(client), ["PubRec 1"]);
    kept.ack(client, PubRel, 1);
    kept.sync();
    kept.ack(client, PubRel, 1);
    assert_eq!(kept.got(client).len(), 2, "also the end of the exchange is");
}

#[test]
fn what_one_session_lost_is_not_recorded_of_another() {
    let limits =
        Limits { max_queued_messages: 2, queue_full: QueueFull::DropOld, ..Limits::default() };
    let mut kept = Kept::limited(1, levels(), limits);
    kept.sleeper("a", "+/a", AtLeastOnce);
    kept.sleeper("b", "+/b", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "disk/b", "b1", AtLeastOnce, 1);
    kept.publish(client, "disk/a", "a1", AtLeastOnce, 2);
    kept.publish(client, "disk/a", "a2", AtLeastOnce, 3);
    kept.publish(client, "none/a", "a3", AtLeastOnce, 4); // a1 makes room
    kept.publish(client, "disk/b", "b2", AtLeastOnce, 5);
    kept.sync();
    assert_eq!(kept.live(), 3);
    kept.crash();
    let reader = kept.connect("b");
    assert_eq!(kept.got(reader), ["pub b1 2", "pub b2 3"]);
    let reader = kept.connect("a");
    assert_eq!(kept.got(reader), ["pub a2 3"]);
}

#[test]
fn nobody_waits_for_records_of_messages_that_were_refused() {
    let limits = Limits { max_queued_messages: 1, ..Limits::default() };
    let mut kept = Kept::limited(1, levels(), limits);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.connect("p");
    kept.publish(client, "t", "a", AtLeastOnce, 1);
    kept.publish(client, "other", "b", ExactlyOnce, 2);
    kept.sync();
    let _ = kept.got(client);
    let mut bytes = publish_packet(Version::V5, "t", "refused", AtLeastOnce, 3, false);
    bytes.extend(publish_packet(Version::V5, "other", "b", ExactlyOnce, 2, true));
    bytes.extend([0x62, 2, 0, 9]); // PUBREL of nothing
    kept.bench.send_bytes(client, &bytes);
    kept.bench.run();
    kept.sync();
    let got = kept.got(client);
    assert_eq!(got.len(), 3, "{got:?}");
    assert_eq!(got[2], format!("{PubComp:?} 9 PacketIdentifierNotFound"));
}

/// The first segment holds nothing that is live, but what it holds now, and is not written any more.
fn leave_first_segment(kept: &mut Kept) {
    kept.sleeper("e", "e", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "filler", true);
    for id in 1..5 {
        kept.publish(client, "e", &"x".repeat(30_000), AtLeastOnce, id);
        kept.sync();
    }
    let again = kept.connect_as("e", true);
    kept.bench.end(again);
    kept.sync();
}

/// Publishes until the journal takes no more.
fn fill(kept: &mut Kept) {
    kept.sleeper("f", "f", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "filler", true);
    let payload = "x".repeat(30_000);
    for id in 1..2_000 {
        let bytes = publish_packet(Version::V5, "f", &payload, AtLeastOnce, id, false);
        if kept.bench.send_bytes(client, &bytes) == Next::Wait {
            break;
        }
        kept.bench.shards[0].end_turn();
    }
    assert!(kept.bench.shards[0].has_unappended());
}

fn oldest_segment(kept: &Kept) -> u64 {
    kept.node.journal().segment_of(kept.node.usage().oldest)
}

/// What the first segment holds is needed until the record that replaces it is appended.
fn replaced_later(kept: &mut Kept) {
    kept.sync_quietly();
    assert!(kept.bench.shards[0].has_unappended());
    assert_eq!(oldest_segment(kept), 1, "neither the old record nor the new one is there");
    while kept.bench.shards[0].has_unappended() {
        kept.sync();
    }
    kept.sync();
    assert!(oldest_segment(kept) > 1, "and then it is not");
}

#[test]
fn a_message_is_kept_until_its_pubrec_is_recorded() {
    let mut kept = Kept::new(1);
    let reader = kept.connect("s");
    kept.subscribe(reader, "s", "q", ExactlyOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "q", "a", ExactlyOnce, 1);
    kept.sync();
    assert_eq!(kept.got(reader), ["pub a 2"]);
    leave_first_segment(&mut kept);
    fill(&mut kept);
    kept.ack(reader, PubRec, 2);
    replaced_later(&mut kept);
    assert_eq!(kept.got(reader), [format!("{PubRel:?} 2")]);
}

#[test]
fn a_message_is_kept_until_the_next_members_is_recorded() {
    let limits = Limits { max_inflight: 1, ..Limits::default() };
    let mut kept = Kept::limited(1, levels(), limits);
    let leaver = kept.connect("l");
    kept.subscribe(leaver, "l", "none/z", AtLeastOnce);
    kept.subscribe(leaver, "l", "$share/g/t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "none/z", "z", AtLeastOnce, 1);
    kept.publish(client, "t", "a", AtLeastOnce, 2);
    kept.sync();
    assert_eq!(kept.got(leaver).len(), 1, "the window is full");
    kept.sleeper("m", "$share/g/t", AtLeastOnce);
    leave_first_segment(&mut kept);
    fill(&mut kept);
    kept.unsubscribe(leaver, "l", "$share/g/t");
    replaced_later(&mut kept);
    kept.crash();
    let reader = kept.connect("m");
    assert_eq!(kept.got(reader), ["pub a 2"]);
}

#[test]
fn a_turn_makes_no_unit_that_is_too_large() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", ExactlyOnce);
    let client = kept.connect("p");
    let payload = "x".repeat(2_500);
    let packet = |id| publish_packet(Version::V5, "t", &payload, ExactlyOnce, id, false);
    let bytes: Vec<u8> = (1..26).flat_map(packet).collect();
    kept.bench.send_bytes(client, &bytes);
    kept.bench.run();
    kept.sync();
    assert_eq!(kept.got(client).len(), 25);
}

proptest! {
    /// Whatever a turn records: the journal can take all of its units.
    #[test]
    fn all_units_fit_a_segment(
        records in prop::collection::vec((0..3_u8, 0..32_000_usize, 1..400_u64), 1..60),
    ) {
        let mut kept = Kept::new(1);
        let recording = kept.bench.shards[0].recording.as_mut().expect("there is a journal");
        let generation = u64::MAX >> 1;
        for (kind, bytes, count) in records {
            match kind {
                0 => {
                    let message = message(bytes);
                    prop_assume!(message.size_bytes() <= recording.node.max_message_bytes());
                    let (qos, retain) = (AtLeastOnce, false);
                    let ids = (0..count as u32 / 50).map(|id| u32::MAX - id).collect();
                    let delivery = Delivery { qos, retain, subscription_ids: ids, share: None };
                    for seq in 1..=count {
                        recording.open(&message);
                        recording.add_target(Done { generation, seq }, &delivery);
                    }
                }
                1 => {
                    let record = Record::Sent(Done { generation, seq: count });
                    for _ in 0..count {
                        recording.push(&record);
                    }
                }
                _ => (1..=count).for_each(|seq| recording.done(Done { generation, seq })),
            }
        }
        recording.complete();
        for unit in &mut recording.full {
            let result = recording.node.journal().append(&mut unit.batch, journal::Class::Always);
            prop_assert!(result.is_ok(), "{:?}", result);
        }
    }
}

fn message(bytes: usize) -> Arc<Message> {
    Arc::new(Message::keep(&Draft {
        topic: "t",
        payload: &vec![0; bytes],
        owner: None,
        properties: &[],
        qos: AtLeastOnce,
        retain: false,
        expires_at_ms: None,
        origin: 0,
    }))
}

#[test]
fn nothing_is_acknowledged_behind_a_unit_that_is_lost() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    let bytes = publish_packet(Version::V5, "t", "a", AtLeastOnce, 1, false);
    kept.bench.send_bytes(client, &bytes);
    let recording = kept.bench.shards[0].recording.as_mut().expect("there is a journal");
    recording.gathering.batch.push(|out| out.resize(70_000, 0));
    kept.bench.run();
    kept.sync();
    let other = kept.bench.connect(Version::V5, "q", true);
    kept.publish(other, "t", "b", AtLeastOnce, 1);
    kept.sync();
    assert_eq!([kept.got(client), kept.got(other)].concat(), NOTHING);
    let state = kept.node.journal().state();
    assert!(matches!(state, journal::State::Failed(_)), "{state:?}: the node goes on");
}
