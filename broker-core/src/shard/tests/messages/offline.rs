//! Messages that lie in the journal alone while their clients are away.

use super::*;
use crate::config::QueueFull;
use crate::shard::Lost;

fn limited(limits: Limits) -> Kept {
    Kept::limited(1, DurabilityConfig::default(), limits)
}

fn small() -> Limits {
    Limits { read_ahead_messages: 4, ..Limits::default() }
}

/// Publishes numbered messages that are durable.
fn fill(kept: &mut Kept, topic: &str, numbers: std::ops::Range<u16>, level: QoS) {
    let client = kept.bench.connect(Version::V5, "filler", true);
    for number in numbers {
        kept.publish(client, topic, &number.to_string(), level, number + 1);
        kept.sync();
        kept.got(client);
        if level == ExactlyOnce {
            kept.ack(client, PubRel, number + 1);
            kept.sync();
            kept.got(client);
        }
    }
    kept.bench.end(client);
}

fn in_memory(kept: &Kept) -> u64 {
    kept.bench.stats.iter().map(|stats| stats.queued_memory_bytes.get()).sum()
}

fn payloads(got: &[String]) -> Vec<u16> {
    got.iter().map(|got| got.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap()).collect()
}

#[test]
fn nothing_of_a_client_that_is_away_is_in_memory() {
    for crash in [false, true] {
        let mut kept = limited(small());
        kept.sleeper("s", "t", ExactlyOnce);
        fill(&mut kept, "t", 0..30, AtLeastOnce);
        fill(&mut kept, "t", 30..60, ExactlyOnce);
        if crash {
            kept.crash();
        }
        let stats = kept.bench.stats[0].snapshot();
        assert_eq!((stats.queued_messages, stats.queued_memory_bytes), (60, 0));
        let reader = kept.connect("s");
        assert_eq!(kept.bench.stats[0].queued_messages.get(), 60, "they are being read");
        let got = kept.got(reader);
        assert_eq!(payloads(&got), (0..60).collect::<Vec<_>>());
        assert_eq!(kept.bench.stats[0].messages_read_back.get(), 60);
        assert_eq!((in_memory(&kept), kept.live()), (0, 60));
        // They are gone again with the connection, and keep their identifiers.
        kept.bench.end(reader);
        assert!(kept.bench.shards[0].sessions.iter().all(|(_, entry)| {
            entry.session.outgoing.as_ref().is_none_or(|it| it.stored() == it.inflight())
        }));
        let reader = kept.connect("s");
        let again: Vec<_> = got.iter().map(|got| format!("{got} dup")).collect();
        assert_eq!(kept.got(reader), again);
    }
}

#[test]
fn what_is_not_durable_yet_is_read_from_where_it_waits() {
    let mut kept = Kept::new(1);
    kept.sleeper("s", "t", AtLeastOnce);
    let client = kept.bench.connect(Version::V5, "p", true);
    kept.publish(client, "t", "a", AtLeastOnce, 1);
    assert_eq!((in_memory(&kept), kept.log.len()), (0, 0));
    let reader = kept.connect("s");
    assert_eq!(kept.got(reader), ["pub a 2"]);
}

#[test]
fn what_is_far_behind_in_the_queue_of_a_slow_client_goes_too() {
    let mut kept = limited(Limits { max_inflight: 2, ..small() });
    let reader = kept.connect("s");
    kept.subscribe(reader, "s", "t", AtLeastOnce);
    fill(&mut kept, "t", 0..40, AtLeastOnce);
    let size = size_of::<mqtt::session::Queued>() as u64 + 3;
    assert!(in_memory(&kept) > 0 && in_memory(&kept) <= 6 * size, "{}", in_memory(&kept));
    let mut all = Vec::new();
    for id in 2..42 {
        all.extend(payloads(&kept.got(reader)));
        assert!(in_memory(&kept) <= 6 * size);
        kept.ack(reader, PubAck, id);
    }
    assert_eq!(all, (0..40).collect::<Vec<_>>());
    kept.sync();
    assert_eq!((in_memory(&kept), kept.live()), (0, 0));
}

#[test]
fn one_message_each_when_all_have_too_much() {
    let mut kept = limited(Limits { max_read_ahead_bytes: 0, max_inflight: 1, ..small() });
    for name in ["a", "b"] {
        kept.sleeper(name, "t", AtLeastOnce);
    }
    fill(&mut kept, "t", 0..10, AtLeastOnce);
    for name in ["a", "b"] {
        let reader = kept.connect(name);
        for number in 0..10 {
            assert_eq!(payloads(&kept.got(reader)), [number]);
            kept.ack(reader, PubAck, number + 2);
        }
    }
    kept.sync();
    assert_eq!((in_memory(&kept), kept.live()), (0, 0));
}

#[test]
fn what_is_read_for_somebody_who_left_is_read_again() {
    let mut kept = limited(small());
    kept.sleeper("s", "t", AtLeastOnce);
    fill(&mut kept, "t", 0..10, AtLeastOnce);
    for taken_over in [false, true] {
        let reader = kept.connect("s");
        let fetch = kept.bench.shards[0].take_fetch().expect("it wants its messages");
        let read = fetch.positions().map(|at| kept.read(at)).collect();
        if !taken_over {
            kept.bench.end(reader);
            kept.bench.run();
        }
        let reader = kept.connect("s");
        let now_ms = kept.bench.now_ms;
        kept.bench.shards[0].on_fetched(fetch, read, now_ms);
        kept.bench.run();
        assert_eq!(payloads(&kept.got(reader)), (0..10).collect::<Vec<_>>());
        kept.bench.end(reader);
    }
    // The session itself is gone.
    let _reader = kept.connect("s");
    let fetch = kept.bench.shards[0].take_fetch().expect("it wants its messages");
    let read = fetch.positions().map(|at| kept.read(at)).collect();
    let reader = kept.connect_as("s", true);
    kept.bench.shards[0].on_fetched(fetch, read, kept.bench.now_ms);
    kept.bench.run();
    assert_eq!(kept.got(reader), NOTHING);
    kept.sync();
    assert_eq!((in_memory(&kept), kept.live()), (0, 0));
}

#[test]
fn a_damaged_record_is_the_end_of_one_message() {
    let mut kept = limited(small());
    kept.sleeper("s", "t", AtLeastOnce);
    fill(&mut kept, "t", 0..6, AtLeastOnce);
    let reader = kept.connect("s");
    let fetch = kept.bench.shards[0].take_fetch().expect("it wants its messages");
    let mut read: Vec<_> = fetch.positions().map(|at| kept.read(at)).collect();
    assert_eq!(read.len(), 4);
    read[1] = Err(Lost);
    read.truncate(3); // and the system could not read the fourth now
    kept.bench.shards[0].on_fetched(fetch, read, kept.bench.now_ms);
    kept.bench.run();
    assert_eq!(payloads(&kept.got(reader)), [0, 2, 3, 4, 5]);
    kept.sync();
    assert_eq!(kept.bench.stats[0].dropped_damaged.get(), 1);
    assert_eq!(kept.live(), 5);
    kept.crash();
    let reader = kept.connect("s");
    assert_eq!(payloads(&kept.got(reader)), [0, 2, 3, 4, 5], "for ever");
}

#[test]
fn the_oldest_make_room_wherever_they_are() {
    let limits = Limits { max_queued_messages: 5, queue_full: QueueFull::DropOld, ..small() };
    let mut kept = limited(limits);
    kept.sleeper("s", "t", AtLeastOnce);
    fill(&mut kept, "t", 0..12, AtLeastOnce);
    assert_eq!(kept.live(), 5);
    kept.crash();
    fill(&mut kept, "t", 12..14, AtLeastOnce);
    let reader = kept.connect("s");
    assert_eq!(payloads(&kept.got(reader)), [9, 10, 11, 12, 13]);
}

#[test]
fn what_is_owed_to_a_share_group_is_read_and_handed_on_in_order() {
    for ends in [false, true] {
        let mut kept = limited(small());
        kept.sleeper("l", "$share/g/t", AtLeastOnce);
        fill(&mut kept, "t", 0..10, AtLeastOnce);
        let stayer = kept.connect("m");
        kept.subscribe(stayer, "m", "$share/g/t", AtLeastOnce);
        assert_eq!(kept.live(), 10);
        if ends {
            let _ = kept.connect_as("l", true);
        } else {
            let leaver = kept.connect("l");
            kept.unsubscribe(leaver, "l", "$share/g/t");
        }
        assert_eq!(payloads(&kept.got(stayer)), (0..10).collect::<Vec<_>>(), "{ends}");
        kept.sync();
        assert_eq!((in_memory(&kept), kept.live()), (0, 10));
        for id in 2..12 {
            kept.ack(stayer, PubAck, id);
        }
        kept.sync();
        assert_eq!(kept.live(), 0);
        kept.crash();
        let leaver = kept.connect("l");
        assert_eq!(kept.got(leaver), NOTHING);
    }
}

#[test]
fn a_session_that_becomes_transient_still_gets_its_messages() {
    let mut kept = limited(Limits { max_inflight: 3, ..small() });
    kept.sleeper("s", "t", AtLeastOnce);
    fill(&mut kept, "t", 0..10, AtLeastOnce);
    // Another node has taken it over, as far as the records go; here it lives on.
    let key = kept.bench.shards[0].find_session("s").expect("restored");
    kept.bench.shards[0].set_generation(key, 0);
    kept.sync();
    assert_eq!(kept.live(), 10, "they can be read");
    let reader = kept.connect("s"); // with a generation again
    let mut all = Vec::new();
    for _ in 0..10 {
        let got = kept.got(reader);
        for got in &got {
            let id = got.split(' ').nth(2).and_then(|id| id.parse().ok()).expect("an identifier");
            kept.ack(reader, PubAck, id);
        }
        all.extend(payloads(&got));
        if all.len() == 10 {
            break;
        }
    }
    assert_eq!(all, (0..10).collect::<Vec<_>>());
    kept.sync();
    assert_eq!((in_memory(&kept), kept.live()), (0, 0));
}
