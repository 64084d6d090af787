//! Full queues, members of share groups that end, and a journal that is behind.

use mqtt::wire::AckKind::{PubAck, PubRec, PubRel};
use mqtt::wire::QoS::{AtLeastOnce, ExactlyOnce};

use super::kept::{Kept, publish_packet};
use super::*;
use crate::config::{DurabilityConfig, Level, QueueFull};

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
