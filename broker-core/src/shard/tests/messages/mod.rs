//! Messages that outlive the process: who waits for what, and what a crash leaves.

mod corners;
mod kept;
mod ledger;
mod moved;
mod offline;
mod restarts;

use mqtt::wire::AckKind::{PubAck, PubComp, PubRec, PubRel};
use mqtt::wire::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};

use super::*;
use crate::config::{DurabilityConfig, Level};
use kept::{Kept, publish_packet};

const NOTHING: [&str; 0] = [];

#[test]
fn acknowledgements_wait_for_the_disk_in_their_order() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t/#", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "other", "x", AtLeastOnce, 1);
    assert_eq!(kept.got(client), ["PubAck 1 NoMatchingSubscribers"], "nothing to wait for");
    kept.publish(client, "t/1", "a", AtLeastOnce, 2);
    kept.publish(client, "t/0", "zero", AtMostOnce, 0);
    kept.publish(client, "other", "x", AtLeastOnce, 3);
    kept.publish(client, "other", "x", ExactlyOnce, 4);
    assert_eq!(kept.got(client), NOTHING);
    let quick = kept.bench.connect(Version::V5, "q", true);
    kept.publish(quick, "other", "x", AtLeastOnce, 1);
    assert_eq!(
        kept.got(quick),
        ["PubAck 1 NoMatchingSubscribers"],
        "another's wait is not its own"
    );
    kept.sync();
    let no = "NoMatchingSubscribers";
    assert_eq!(
        kept.got(client),
        ["PubAck 2", &format!("PubAck 3 {no}"), &format!("PubRec 4 {no}")]
    );
}

#[test]
fn transient_sessions_never_touch_the_journal() {
    let mut kept = Kept::new(2);
    for shard in 0..2 {
        let name = kept.bench.name_on(shard, "s");
        let reader = kept.bench.connect(Version::V5, &name, true);
        kept.bench.subscribe(reader, "t", qos(ExactlyOnce), 0);
    }
    let name = kept.bench.name_on(0, "p");
    let client = kept.bench.connect(Version::V5, &name, true);
    for (id, qos) in [(1, AtLeastOnce), (2, ExactlyOnce)] {
        kept.publish(client, "t", "x", qos, id);
    }
    assert_eq!(kept.got(client), ["PubAck 1", "PubRec 2"]);
    assert_eq!(kept.node.usage().records, 0);
}

#[test]
fn qos_1_goes_out_at_once_and_qos_2_when_it_is_durable() {
    let mut kept = Kept::new(1);
    let reader = kept.connect("s");
    kept.subscribe(reader, "s", "t", ExactlyOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "t", "a", AtLeastOnce, 1);
    kept.publish(client, "t", "b", ExactlyOnce, 2);
    kept.publish(client, "t", "c", AtLeastOnce, 3);
    assert_eq!(kept.got(reader), ["pub a 2"], "c waits behind b");
    kept.sync();
    assert_eq!(kept.got(reader), ["pub b 3", "pub c 4"]);
    kept.ack(reader, PubAck, 2);
    kept.ack(reader, PubAck, 4);
    kept.ack(reader, PubRec, 3);
    assert_eq!(kept.got(reader), NOTHING, "PUBREL before the PUBREC is durable");
    kept.sync();
    assert_eq!(kept.got(reader), ["PubRel 3"]);
    assert_eq!(kept.live(), 1);
    kept.ack(reader, PubComp, 3);
    kept.sync();
    assert_eq!(kept.live(), 0);
}

#[test]
fn a_crash_leaves_what_was_acknowledged() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    for (id, payload) in ["a", "b", "c"].iter().enumerate() {
        kept.publish(client, "t", payload, AtLeastOnce, id as u16 + 1);
    }
    kept.sync();
    kept.publish(client, "t", "lost", AtLeastOnce, 4);
    assert_eq!(kept.got(client), ["PubAck 1", "PubAck 2", "PubAck 3"]);
    kept.crash();
    assert_eq!(kept.live(), 3);
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader), ["pub a 2", "pub b 3", "pub c 4"]);
    kept.ack(reader, PubAck, 2);
    kept.bench.pass_ms(1_000); // what was sent is recorded now and then
    kept.sync();
    kept.crash();
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader), ["pub b 3 dup", "pub c 4 dup"], "the same identifiers");
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "t", "d", AtLeastOnce, 1);
    let got = kept.got(reader);
    assert!(got.len() == 1 && got[0].starts_with("pub d "), "{got:?}");
    kept.sync();
    assert_eq!(kept.live(), 3);
}

#[test]
fn a_publish_that_was_taken_is_not_taken_again() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", ExactlyOnce);
    let client = kept.connect("p");
    kept.publish(client, "t", "a", ExactlyOnce, 7);
    assert_eq!(kept.got(client), NOTHING);
    kept.sync_quietly();
    kept.crash();
    // Nobody was told; the record of it says that it was taken.
    let client = kept.connect("p");
    kept.publish_again(client, "t", "a", ExactlyOnce, 7, true);
    kept.sync();
    assert_eq!(kept.got(client), ["PubRec 7"]);
    kept.ack(client, PubRel, 7);
    assert_eq!(kept.got(client), NOTHING, "PUBCOMP before the release is durable");
    // After a crash the identifier is open still, and released then.
    kept.crash();
    let client = kept.connect("p");
    kept.ack(client, PubRel, 7);
    kept.sync();
    assert_eq!(kept.got(client), ["PubComp 7"]);
    kept.publish(client, "t", "b", ExactlyOnce, 7);
    kept.sync();
    assert_eq!(kept.got(client), ["PubRec 7"]);
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader), ["pub a 2", "pub b 1003"]);
}

#[test]
fn a_pubrel_that_comes_again_waits_for_the_first() {
    let mut kept = Kept::new(1);
    let client = kept.connect("p");
    kept.publish(client, "t", "a", ExactlyOnce, 7);
    kept.sync();
    kept.ack(client, PubRel, 7);
    let again = kept.connect("p"); // takes over, and sends it again
    kept.ack(again, PubRel, 7);
    assert_eq!(kept.got(again), NOTHING);
    kept.sync();
    assert_eq!(kept.got(again), ["PubComp 7 PacketIdentifierNotFound"]);
}

/// The publisher's shard is 0, readers are on both.
fn across() -> (Kept, String, Client) {
    let mut kept = Kept::new(2);
    for shard in 0..2 {
        let name = kept.bench.name_on(shard, "s");
        kept.sleeper(&name, "t", ExactlyOnce);
    }
    let publisher = kept.bench.name_on(0, "p");
    let client = kept.connect(&publisher);
    (kept, publisher, client)
}

#[test]
fn another_shards_part_is_waited_for() {
    let (mut kept, _, client) = across();
    for (id, qos) in [(1, AtLeastOnce), (2, ExactlyOnce)] {
        let bytes = publish_packet(Version::V5, "t", "a", qos, id, false);
        kept.bench.send_bytes(client, &bytes);
    }
    // The other shard has its mail, and has not looked at it.
    kept.sync_quietly();
    kept.bench.shards[0].on_stored(kept.bench.now_ms);
    kept.bench.flush(0);
    assert_eq!(kept.got(client), NOTHING, "own records alone are not enough");
    kept.bench.run();
    assert_eq!(kept.got(client), NOTHING, "it has appended them, and nothing is durable");
    kept.sync();
    assert_eq!(kept.got(client), ["PubAck 1", "PubRec 2"]);
}

#[test]
fn exactly_once_over_shards_whatever_part_a_crash_leaves() {
    // What is durable: the publisher's shard's part, the other's too, and the taking.
    for parts in 0..3 {
        let (mut kept, publisher, client) = across();
        let bytes = publish_packet(Version::V5, "t", "a", ExactlyOnce, 5, false);
        kept.bench.send_bytes(client, &bytes);
        match parts {
            0 => {}
            1 => {
                let now_ms = kept.bench.now_ms;
                let mut mail = Vec::new();
                kept.bench.shards[0].post_mail();
                use futures_util::FutureExt;
                let received = kept.bench.mailboxes[1].receive(&mut mail, 10).now_or_never();
                assert_eq!(received, Some(1));
                for mail in mail {
                    let Mail::Publish(remote) = mail else { panic!("{mail:?}") };
                    kept.bench.shards[1].on_mail(&remote, now_ms);
                }
            }
            _ => kept.bench.run(),
        }
        kept.sync_quietly();
        kept.crash();
        let client = kept.connect(&publisher);
        kept.publish_again(client, "t", "a", ExactlyOnce, 5, true);
        kept.sync();
        assert_eq!(kept.got(client), ["PubRec 5"], "{parts}");
        kept.ack(client, PubRel, 5);
        kept.sync();
        assert_eq!(kept.got(client), ["PubComp 5"]);
        // The identifier means something new from here on.
        kept.publish(client, "t", "b", ExactlyOnce, 5);
        kept.sync();
        for shard in 0..2 {
            let name = kept.bench.name_on(shard, "s");
            let reader = kept.connect(&name);
            let payloads: Vec<_> = kept
                .got(reader)
                .iter()
                .map(|got| got.split(' ').nth(1).unwrap().to_owned())
                .collect();
            assert_eq!(payloads, ["a", "b"], "shard {shard}, {parts} parts were durable");
        }
    }
}

#[test]
fn an_identifier_that_is_used_anew_is_no_repetition() {
    let mut kept = Kept::new(1);
    let name = "p";
    kept.sleeper("s", "t", ExactlyOnce);
    let client = kept.connect(name);
    kept.publish(client, "t", "a", ExactlyOnce, 5);
    kept.sync_quietly();
    // As if the taking had been lost alone.
    kept.log.retain(|bytes| bytes[0] != 0x15);
    kept.crash();
    let client = kept.connect(name);
    kept.publish_again(client, "t", "b", ExactlyOnce, 5, false);
    kept.sync();
    let reader = kept.connect("s");
    let got = kept.got(reader);
    assert_eq!(got.len(), 2, "{got:?}");
}

#[test]
fn a_nearly_full_disk_refuses_what_would_be_kept_and_nothing_else() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let reader = kept.connect("r");
    kept.subscribe(reader, "r", "u", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "u", "a", AtLeastOnce, 9);
    kept.sync();
    kept.disk.set_nearly_full(true);
    kept.bench.run();
    for (id, qos) in [(1, AtLeastOnce), (2, ExactlyOnce), (0, AtMostOnce)] {
        kept.publish(client, "t", "x", qos, id);
    }
    kept.publish(client, "other", "x", AtLeastOnce, 3);
    assert_eq!(
        kept.got(client),
        [
            "PubAck 9",
            "PubAck 1 QuotaExceeded",
            "PubRec 2 QuotaExceeded",
            "PubAck 3 NoMatchingSubscribers"
        ]
    );
    let old = kept.bench.connect(Version::V3_1_1, "old", true);
    let bytes = publish_packet(Version::V3_1_1, "t", "x", AtLeastOnce, 1, false);
    kept.bench.send_bytes(old, &bytes);
    kept.bench.run();
    assert!(kept.got(old).is_empty() && kept.bench.is_finished(old), "3.x cannot be told");
    // What frees space goes on.
    assert_eq!(kept.got(reader), ["pub a 2"]);
    kept.ack(reader, PubAck, 2);
    kept.sync();
    assert_eq!(kept.live(), 0);
    kept.disk.set_nearly_full(false);
    kept.bench.run();
    kept.publish(client, "t", "x", AtLeastOnce, 4);
    kept.sync();
    assert_eq!(kept.got(client), ["PubAck 4"]);
}

#[test]
fn a_message_that_no_segment_holds_is_refused() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "t", &"x".repeat(40_000), AtLeastOnce, 1);
    assert_eq!(kept.got(client), ["PubAck 1 QuotaExceeded"]);
    kept.publish(client, "t", &"x".repeat(30_000), AtLeastOnce, 2);
    kept.sync();
    assert_eq!(kept.got(client), ["PubAck 2"]);
}

#[test]
fn nothing_is_acknowledged_after_the_disk_has_failed() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "t", "a", AtLeastOnce, 1);
    kept.disk.fail("no disk");
    kept.bench.run();
    kept.publish(client, "t", "a", AtLeastOnce, 2);
    assert_eq!(kept.got(client), NOTHING);
    assert!(!kept.bench.shards[0].has_unappended(), "a stop does not wait for it");
    assert!(kept.bench.shards[0].is_backed_up());
}

#[test]
fn publishers_wait_while_the_journal_is_behind() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    let payload = "x".repeat(30_000);
    // 32 MiB may wait, and a quarter of it more.
    let mut stopped = 0;
    for id in 1..2_000 {
        let bytes = publish_packet(Version::V5, "t", &payload, AtLeastOnce, id, false);
        if kept.bench.send_bytes(client, &bytes) == Next::Wait {
            stopped = id;
            break;
        }
        kept.bench.shards[0].end_turn();
    }
    assert!((1_100..1_900).contains(&stopped), "stopped at {stopped}");
    assert!(kept.bench.shards[0].has_unappended());
    while kept.bench.shards[0].has_unappended() {
        kept.sync();
    }
    kept.sync();
    assert_eq!(kept.got(client).len(), usize::from(stopped), "all were acknowledged");
    assert!(kept.bench.stopped.is_empty(), "and it reads on");
}

#[test]
fn acknowledgements_are_heard_while_the_journal_is_behind() {
    let mut kept = Kept::new(1);
    let reader = kept.connect("s");
    kept.subscribe(reader, "s", "t", ExactlyOnce);
    let publisher = kept.connect("p");
    for (id, qos) in [(1, ExactlyOnce), (2, ExactlyOnce), (3, AtLeastOnce)] {
        kept.publish(publisher, "t", "x", qos, id);
    }
    kept.sync();
    assert_eq!(kept.got(reader), ["pub x 2", "pub x 3", "pub x 4"]);
    let before = kept.live();
    kept.sleeper("z", "z", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "c", true);
    let payload = "x".repeat(30_000);
    for id in 1..2_000 {
        let bytes = publish_packet(Version::V5, "z", &payload, AtLeastOnce, id, false);
        if kept.bench.send_bytes(client, &bytes) == Next::Wait {
            break;
        }
        kept.bench.shards[0].end_turn();
    }
    assert!(kept.bench.shards[0].has_unappended());
    let stored = kept.live() - before;
    for (kind, id) in [(PubRec, 2), (PubRec, 3), (PubAck, 4)] {
        kept.ack(reader, kind, id);
    }
    kept.ack(publisher, PubRel, 1);
    kept.ack(publisher, PubRel, 2);
    assert_eq!(kept.bench.stopped, [(0, client.key)], "the others read on");
    assert!(kept.live() < before + stored, "and make room");
    while kept.bench.shards[0].has_unappended() {
        kept.sync();
    }
    kept.sync();
    assert_eq!(kept.got(reader), ["PubRel 2", "PubRel 3"]);
    assert_eq!(kept.got(publisher), ["PubRec 1", "PubRec 2", "PubAck 3", "PubComp 1", "PubComp 2"]);
}

#[test]
fn levels_by_topic() {
    let topics = vec![("none/#".to_owned(), Level::None), ("disk/#".to_owned(), Level::Disk)];
    let mut kept = Kept::with(1, DurabilityConfig { level: Level::Disk, topics });
    kept.sleeper("s", "#", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "none/1", "a", AtLeastOnce, 1);
    assert_eq!(kept.got(client), ["PubAck 1"]);
    assert_eq!(kept.node.usage().records, 0);
    kept.publish(client, "disk/1", "b", AtLeastOnce, 2);
    assert_eq!(kept.got(client), NOTHING);
    kept.sync();
    assert_eq!(kept.got(client), ["PubAck 2"]);
    let stats = kept.bench.stats[0].snapshot();
    assert_eq!((stats.queued_level_none, stats.queued_level_disk), (1, 1));
    kept.crash();
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader), ["pub b 3"], "the other one is lost, and its number is not used");
}

#[test]
fn a_session_that_ends_frees_its_records() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.connect("p");
    for id in 1..40 {
        kept.publish(client, "t", &"x".repeat(4_000), AtLeastOnce, id);
        kept.sync();
    }
    kept.publish(client, "u", "x", ExactlyOnce, 50);
    kept.sync();
    assert_eq!(kept.live(), 40);
    let before = kept.node.usage().segments;
    let again = kept.connect_as("s", true);
    kept.bench.end(again);
    kept.bench.run();
    assert_eq!(kept.live(), 1);
    kept.ack(client, PubRel, 50);
    kept.sync();
    assert_eq!(kept.live(), 0);
    kept.publish(client, "u", "x", ExactlyOnce, 51);
    kept.sync();
    let usage = kept.node.usage();
    assert!(before > 2 && usage.segments <= 2, "{before} segments, then {usage:?}");
    kept.crash();
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader), NOTHING);
}

#[test]
fn what_a_leaving_member_was_owed_is_another_ones() {
    for shard in 0..2 {
        let mut kept = Kept::new(2);
        let leaver = kept.bench.name_on(0, "l");
        let stayer = kept.bench.name_on(shard, "m");
        kept.sleeper(&leaver, "$share/g/t", AtLeastOnce);
        let name = kept.bench.name_on(0, "p");
        let client = kept.bench.connect(Version::V5, &name, true);
        kept.publish(client, "t", "a", AtLeastOnce, 1);
        kept.sync();
        kept.sleeper(&stayer, "$share/g/t", AtLeastOnce);
        let other = kept.connect(&leaver);
        let _ = kept.got(other); // sent, not acknowledged
        kept.bench.end(other);
        kept.publish(client, "t", "b", AtLeastOnce, 2);
        kept.publish(client, "t", "c", AtLeastOnce, 3);
        kept.sync();
        let other = kept.connect(&leaver);
        kept.unsubscribe(other, &leaver, "$share/g/t");
        kept.bench.end(other);
        kept.sync();
        kept.crash();
        let (leaver, stayer) = (kept.connect(&leaver), kept.connect(&stayer));
        let mut all: Vec<_> = [kept.got(leaver), kept.got(stayer)]
            .concat()
            .iter()
            .map(|got| got.split(' ').nth(1).unwrap_or_default().to_owned())
            .collect();
        all.sort();
        assert_eq!(all, ["a", "b", "c"], "shard {shard}");
    }
}

#[test]
fn records_that_end_with_their_session_mean_nothing_when_it_comes_back() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "t", "a", AtLeastOnce, 1);
    kept.sync();
    let moved = crate::shard::Elsewhere::Moved { client: "s".into(), epoch: u64::MAX };
    kept.bench.shards[0].on_elsewhere(&moved, kept.bench.now_ms);
    kept.sync();
    assert_eq!(kept.live(), 0);
    kept.crash(); // the metadata says that it is here again
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader), NOTHING);
}
