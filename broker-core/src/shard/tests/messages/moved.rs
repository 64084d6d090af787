//! What is owed in old segments is moved to the end of the log, and the segments go.

use super::*;

/// A message each for a client that is there and answers.
fn traffic(kept: &mut Kept, publisher: Client, reader: Client, count: usize) {
    for _ in 0..count {
        kept.publish(publisher, "busy", &"x".repeat(4_000), AtLeastOnce, 1);
        kept.sync();
        assert_eq!(kept.got(publisher), ["PubAck 1"]);
        let got = kept.got(reader);
        let id = got[0].split(' ').nth(2).and_then(|id| id.parse().ok()).expect("one message");
        kept.ack(reader, PubAck, id);
        kept.bench.pass_ms(64);
        kept.fetch();
        kept.sync();
    }
}

/// A client with messages that stays away, and two that are busy.
fn busy() -> (Kept, Client, Client) {
    let mut kept = Kept::new(1);
    let reader = kept.connect("r");
    kept.subscribe(reader, "r", "busy", AtLeastOnce);
    let publisher = kept.connect("p");
    (kept, publisher, reader)
}

fn moved(kept: &Kept, name: &str) -> u64 {
    kept.node.metrics().find(|metric| metric.name == name).expect("a metric").value
}

fn payloads(got: Vec<String>) -> Vec<String> {
    got.iter().map(|got| got.split(' ').nth(1).expect("a payload").to_owned()).collect()
}

#[test]
fn one_message_for_a_client_that_stays_away_keeps_no_segment() {
    let (mut kept, publisher, reader) = busy();
    kept.sleeper("s", "t", AtLeastOnce);
    kept.publish(publisher, "t", "first", AtLeastOnce, 9);
    kept.sync();
    assert_eq!(kept.got(publisher), ["PubAck 9"]);
    let mut most = 0;
    for _ in 0..10 {
        traffic(&mut kept, publisher, reader, 60);
        most = most.max(kept.node.usage().segments);
    }
    assert!(kept.node.usage().end.get() > 30 * (64 << 10), "{:?}", kept.node.usage());
    assert!(most <= 6, "{most} segments");
    let (records, bytes) =
        (moved(&kept, "journal_moved_records"), moved(&kept, "journal_moved_bytes"));
    assert!((3..60).contains(&records) && bytes < 60 * 100, "{records} records, {bytes} bytes");
    assert!(kept.log.len() < 200, "what is left: {}", kept.log.len());
    kept.crash();
    let sleeper = kept.connect("s");
    assert_eq!(kept.got(sleeper), ["pub first 2"]);
    kept.ack(sleeper, PubAck, 2);
    kept.sync();
    kept.crash();
    let sleeper = kept.connect("s");
    assert_eq!(kept.got(sleeper), NOTHING);
}

/// Each takes half of a segment, so that a segment holds one: moving them gives nothing back.
#[test]
fn what_was_moved_stays_until_some_of_it_is_done() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let reader = kept.connect("r");
    kept.subscribe(reader, "r", "other", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    for id in 1..=20 {
        let topic = if id % 2 == 0 { "t" } else { "other" };
        kept.publish(client, topic, &"x".repeat(30_000), AtLeastOnce, id);
        kept.sync();
        for id in 2..22 {
            kept.ack(reader, PubAck, id);
        }
        kept.sync();
    }
    let mut rounds = Vec::new();
    for _ in 0..3 {
        for _ in 0..400 {
            kept.bench.pass_ms(64);
            kept.fetch();
            kept.sync();
        }
        rounds.push(moved(&kept, "journal_moved_records"));
    }
    assert_eq!((rounds[1], rounds[2]), (rounds[0], rounds[0]));
    assert_eq!(kept.live(), 10);
}

#[test]
fn a_message_for_many_is_moved_once() {
    let (mut kept, publisher, _) = busy();
    let names: Vec<_> = (0..50).map(|number| format!("s{number}")).collect();
    for name in &names {
        kept.sleeper(name, "t", AtLeastOnce);
    }
    kept.publish(publisher, "t", &"a".repeat(5_000), AtLeastOnce, 1);
    kept.publish(publisher, "t", "b", AtLeastOnce, 2);
    kept.sync();
    let gone = kept.connect_as(&names[0], true); // it is owed nothing any more
    kept.fill();
    kept.move_all(0);
    kept.sync();
    assert_eq!(moved(&kept, "journal_moved_records"), 2);
    let bytes = moved(&kept, "journal_moved_bytes");
    assert!((5_000..5_000 + 2 * 60 * 10).contains(&bytes), "{bytes}");
    assert_eq!(kept.live(), 98);
    kept.fill();
    kept.move_all(0);
    kept.sync();
    kept.bench.end(gone);
    assert!(kept.node.usage().segments <= 4, "{:?}", kept.node.usage());
    kept.crash();
    for name in &names[1..] {
        let client = kept.connect(name);
        assert_eq!(payloads(kept.got(client)), [&"a".repeat(5_000), "b"]);
    }
}

#[test]
fn what_was_sent_and_received_and_taken_moves_as_it_is() {
    let (mut kept, publisher, _) = busy();
    let reader = kept.connect("s");
    kept.subscribe(reader, "s", "t", ExactlyOnce);
    for (id, payload) in [(5, "received"), (6, "sent")] {
        kept.publish(publisher, "t", payload, ExactlyOnce, id);
        kept.sync();
    }
    assert_eq!(kept.got(publisher), ["PubRec 5", "PubRec 6"]);
    kept.ack(publisher, PubRel, 6);
    assert_eq!(kept.got(reader), ["pub received 2", "pub sent 3"]);
    kept.ack(reader, PubRec, 2);
    kept.bench.pass_ms(200); // what was sent is recorded
    kept.sync();
    kept.bench.end(reader);
    kept.publish(publisher, "t", "queued", AtLeastOnce, 7);
    kept.sync();
    kept.fill();
    let first = kept.log.len();
    kept.move_all(0);
    kept.bench.pass_ms(200);
    kept.sync();
    assert_eq!(kept.live(), 4, "two messages, a PUBREC and an exchange");
    assert!(kept.log.len() < first, "what lay before is gone");
    kept.crash();
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader), ["PubRel 2", "pub sent 3 dup", "pub queued 4"]);
    let publisher = kept.connect("p");
    kept.publish_again(publisher, "t", "received", ExactlyOnce, 5, true);
    kept.sync();
    assert_eq!(kept.got(publisher), ["PubRec 5"]);
    assert_eq!(kept.got(reader), NOTHING, "it was taken");
    // The end of each stands behind its last record.
    for (kind, id) in [(PubComp, 2), (PubRec, 3), (PubAck, 4)] {
        kept.ack(reader, kind, id);
    }
    kept.ack(publisher, PubRel, 5);
    kept.sync();
    kept.ack(reader, PubComp, 3);
    kept.sync();
    assert_eq!(kept.live(), 0);
    kept.crash();
    assert_eq!(kept.live(), 0);
}

#[test]
fn nothing_moves_before_the_exchange_that_it_came_in_by_is_taken() {
    let mut kept = Kept::new(2);
    for shard in 0..2 {
        let name = kept.bench.name_on(shard, "s");
        kept.sleeper(&name, "t", ExactlyOnce);
    }
    let publisher = kept.bench.name_on(0, "p");
    let client = kept.connect(&publisher);
    let bytes = publish_packet(Version::V5, "t", "a", ExactlyOnce, 5, false);
    kept.bench.send_bytes(client, &bytes);
    // The other shard has its mail, and has not looked at it.
    kept.sync_quietly();
    kept.fill();
    for shard in [1, 0] {
        let now_ms = kept.bench.now_ms;
        kept.bench.shards[shard].move_all(now_ms);
        assert!(kept.bench.shards[shard].take_fetch().is_none(), "it may be sent again");
    }
    kept.sync(); // the other shard's part
    kept.sync(); // that it was taken
    assert_eq!(kept.got(client), ["PubRec 5"]);
    kept.fill();
    for shard in [1, 0, 1] {
        kept.move_all(shard);
    }
    kept.sync();
    assert_eq!(moved(&kept, "journal_moved_records"), 3, "two parts, and that it was taken");
}

#[test]
fn an_exchange_that_was_not_taken_is_known_however_often_it_moves() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", ExactlyOnce);
    let client = kept.connect("p");
    kept.publish(client, "t", "a", ExactlyOnce, 5);
    kept.sync_quietly();
    kept.log.retain(|bytes| bytes[0] != 0x15); // the taking was not durable
    for _ in 0..3 {
        kept.crash();
        kept.fill();
        kept.move_all(0);
        kept.sync();
        kept.fill();
        kept.move_all(0);
        kept.sync();
        let (oldest, first) = (kept.node.usage().oldest.get(), 2 * (64 << 10));
        assert!(oldest >= first, "the segments found at start are gone: {oldest}");
    }
    let client = kept.connect("p");
    kept.publish_again(client, "t", "a", ExactlyOnce, 5, true);
    kept.sync();
    assert_eq!(kept.got(client), ["PubRec 5"]);
    let reader = kept.connect("s");
    assert_eq!(payloads(kept.got(reader)), ["a"]);
}

#[test]
fn what_is_being_read_while_it_moves_is_not_lost() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "t", "a", AtLeastOnce, 1);
    kept.sync();
    let reader = kept.connect("s");
    let fetch = kept.bench.shards[0].take_fetch().expect("it is wanted");
    kept.fill();
    kept.move_all(0);
    kept.sync();
    // Its segment went meanwhile.
    let now_ms = kept.bench.now_ms;
    kept.bench.shards[0].on_fetched(fetch, vec![Err(crate::shard::Lost)], now_ms);
    kept.bench.run();
    assert_eq!(kept.got(reader), ["pub a 2"]);
    assert_eq!(kept.bench.stats[0].dropped_damaged.get(), 0);
}

#[test]
fn a_nearly_full_disk_gets_segments_back_by_moving_little() {
    let (mut kept, publisher, reader) = busy();
    kept.sleeper("s", "t", AtLeastOnce);
    kept.publish(publisher, "t", "first", AtLeastOnce, 9);
    kept.sync();
    assert_eq!(kept.got(publisher), ["PubAck 9"]);
    traffic(&mut kept, publisher, reader, 10);
    kept.fill();
    kept.sync();
    let segments = kept.node.usage().segments;
    kept.disk.set_nearly_full(true);
    kept.bench.run();
    for _ in 0..5 {
        kept.bench.pass_ms(64);
        kept.fetch();
        kept.sync();
    }
    // What tells of it is appended, and makes the segments superfluous.
    assert!(kept.node.usage().segments < segments, "{segments}, then {:?}", kept.node.usage());
    kept.disk.set_nearly_full(false);
    kept.bench.run();
    traffic(&mut kept, publisher, reader, 1);
    kept.crash();
    let sleeper = kept.connect("s");
    assert_eq!(kept.got(sleeper), ["pub first 2"]);
}

#[test]
fn what_has_expired_is_dropped_instead_of_moved() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    let mut properties = PropertyBuf::new();
    properties.message_expiry_interval_s(1);
    let publish = Publish {
        dup: false,
        qos: AtLeastOnce,
        retain: false,
        topic: "t",
        packet_id: PacketId::new(1),
        properties: properties.as_properties(),
        payload: b"late",
    };
    let mut bytes = Vec::new();
    encode(&Packet::Publish(publish), Version::V5, &mut bytes);
    kept.bench.send_bytes(client, &bytes);
    kept.bench.run();
    kept.sync();
    assert_eq!(kept.live(), 1);
    kept.bench.pass_ms(5_000);
    kept.fill();
    kept.move_all(0);
    kept.sync();
    let stats = kept.bench.stats[0].snapshot();
    assert_eq!((kept.live(), stats.dropped_expired, stats.queued_messages), (0, 1, 0));
    assert_eq!(moved(&kept, "journal_moved_records"), 0);
}

#[test]
fn a_damaged_message_is_dropped_when_it_is_to_be_moved() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    for (id, payload) in [(1, "a"), (2, "b")] {
        kept.publish(client, "t", payload, AtLeastOnce, id);
    }
    kept.sync();
    *kept.records.values_mut().next().expect("a record") = vec![0x12, 0];
    kept.fill();
    kept.move_all(0);
    kept.sync();
    assert_eq!((kept.live(), kept.bench.stats[0].dropped_damaged.get()), (1, 1));
    kept.crash();
    let reader = kept.connect("s");
    assert_eq!(payloads(kept.got(reader)), ["b"]);
}

#[test]
fn what_an_ended_durability_left_to_be_read_moves_too() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "t", "a", AtLeastOnce, 1);
    kept.sync();
    // The session goes on and does not outlive the process any more.
    let key = kept.bench.shards[0].sessions.iter().find(|(_, entry)| entry.generation > 0);
    let key = crate::shard::SessionKey(key.expect("it is there").0 as u32);
    kept.bench.shards[0].set_generation(key, 0);
    kept.sync();
    assert_eq!(kept.live(), 1);
    kept.fill();
    kept.move_all(0);
    kept.sync();
    assert_eq!((kept.live(), kept.node.usage().segments), (1, 2));
    let mut replay = crate::Replay::new();
    for (position, bytes) in &kept.records {
        replay.visit(*position, bytes).expect("own records");
    }
    assert_eq!(replay.messages(), 0, "after a start it means nothing");
}
