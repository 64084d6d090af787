//! Queues of durable sessions that lie on the disk while their clients are away.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Case;
use crate::broker::{Broker, Options, temporary_folder};
use crate::column::Column;
use crate::raw::{
    Got, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet, Raw, ack, deliver, resume, sleeper,
};
use crate::wait::PATIENCE;

pub const CASES: &[Case] = &[
    Case::new("queues::lie_on_the_disk", lie_on_the_disk),
    Case::new("queues::a_damaged_message_is_lost_alone", damaged_message),
    Case::new("queues::a_message_that_waits_keeps_no_segments", moving_message),
    Case::new("queues::what_a_leaving_member_was_owed_is_read_first", leaving_member),
];

const SMALL: [(&str, &str); 3] = [
    ("GEARBOX_LIMITS__READ_AHEAD_MESSAGES", "5"),
    ("GEARBOX_LIMITS__MAX_READ_AHEAD_BYTES", "20000"),
    ("GEARBOX_LIMITS__MAX_INFLIGHT", "7"),
];

fn start(column: &Column, dir: &Path) -> Broker {
    let options = Options { data_dir: Some(dir), environment: &SMALL, shards: 2 };
    Broker::start_with(column, &options)
}

fn sum(broker: &Broker, metric: &str) -> u64 {
    broker.metric(metric).iter().sum()
}

/// Publishes at QoS 1 and waits until all are taken.
fn fill(broker: &Broker, topic: &str, payloads: impl Iterator<Item = String>, qos: u8) {
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    for (number, payload) in payloads.enumerate() {
        let id = (number % 100) as u16 + 1;
        deliver(&mut talker, topic, &payload, qos, id);
    }
}

fn next(client: &mut Raw) -> Packet {
    match client.next(PATIENCE) {
        Got::Packet(packet) => packet,
        other => panic!("instead of a packet: {other:?}"),
    }
}

fn id_of(packet: &Packet) -> u16 {
    u16::from_be_bytes([packet.body[0], packet.body[1]])
}

/// Much more queued than may be in memory, read in order under a small read-ahead, by clients that
/// go away and a broker that is killed in between.
fn lie_on_the_disk(column: &Column) {
    const MESSAGES: u32 = 400;
    let folder = temporary_folder();
    let mut broker = start(column, folder.path());
    let mut readers = [("one", 1, 0), ("two", 2, 0), ("three", 2, 0)];
    for (name, qos, _) in readers {
        sleeper(broker.mqtt, name, "t/#", qos);
    }
    let payload = |number: u32| format!("{number:05}{}", "x".repeat(1_000));
    fill(&broker, "t/1", (0..MESSAGES).map(payload), 2);
    assert_eq!(sum(&broker, "queued_messages"), u64::from(MESSAGES) * 3);
    assert_eq!(sum(&broker, "queued_memory_bytes"), 0, "nobody is there");
    for round in 0..4_u32 {
        if round % 2 == 0 {
            broker.kill();
            broker = start(column, folder.path());
            assert_eq!(sum(&broker, "queued_memory_bytes"), 0, "a start reads no messages");
        }
        let last = round == 3;
        for (name, _, due) in &mut readers {
            let (mut reader, present) = resume(broker.mqtt, name, false, 3600, None);
            assert!(present);
            let end = if last { MESSAGES } else { 90 * (round + 1) };
            let mut received = Vec::new();
            while *due < end || (last && !received.is_empty()) {
                let packet = next(&mut reader);
                if packet.head == PUBREL {
                    let id = id_of(&packet);
                    reader.send(&ack(PUBCOMP, id));
                    received.retain(|open| *open != id);
                    continue;
                }
                let (_, got, id) = packet.publish(5);
                let id = id.expect("QoS 1 or 2");
                let number: u32 = String::from_utf8_lossy(&got[..5]).parse().expect("a number");
                assert_eq!(String::from_utf8_lossy(&got), payload(number));
                // What was sent and not acknowledged comes again.
                assert!(number <= *due, "{name} got {number} in place of {due} in round {round}");
                *due = (*due).max(number + 1);
                if packet.head & 0x06 == 2 {
                    reader.send(&ack(PUBACK, id));
                } else {
                    received.push(id);
                    reader.send(&ack(PUBREC, id));
                }
                if number.is_multiple_of(40) {
                    assert!(sum(&broker, "queued_memory_bytes") < 60_000);
                }
            }
            if last {
                reader.ping();
            }
        }
    }
    broker.metric_until("queued_messages", |now| now == 0);
    broker.metric_until("inflight_messages", |now| now == 0);
    broker.metric_until("journal_live_records", |now| now == 0);
}

fn damaged_message(column: &Column) {
    let folder = temporary_folder();
    let broker = start(column, folder.path());
    sleeper(broker.mqtt, "reader", "t", 1);
    fill(&broker, "t", ["first", "victim", "last"].map(str::to_owned).into_iter(), 1);
    let mut damaged = 0;
    for entry in fs::read_dir(folder.path().join("journal")).expect("there is a journal") {
        let path = entry.expect("an entry").path();
        let bytes = fs::read(&path).expect("it can be read");
        if let Some(at) = bytes.windows(6).position(|bytes| bytes == b"victim") {
            let file = fs::OpenOptions::new().write(true).open(&path).expect("it can be written");
            file.write_all_at(b"V", at as u64).expect("it can be written");
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    let (mut reader, _) = resume(broker.mqtt, "reader", false, 3600, None);
    for expected in ["first", "last"] {
        let packet = reader.expect(PUBLISH);
        let (_, payload, id) = packet.publish(5);
        assert_eq!(String::from_utf8_lossy(&payload), expected);
        reader.send(&ack(PUBACK, id.expect("QoS 1")));
    }
    reader.ping();
    broker.metric_until("dropped_damaged", |now| now == 1);
    broker.metric_until("journal_live_records", |now| now == 0);
}

/// Traffic of eighty segments flows while a client with one message stays away.
fn moving_message(column: &Column) {
    let folder = temporary_folder();
    let start = || {
        let environment = [("GEARBOX_JOURNAL__SEGMENT_BYTES", "65536")];
        let options =
            Options { data_dir: Some(folder.path()), environment: &environment, shards: 2 };
        Broker::start_with(column, &options)
    };
    let mut broker = start();
    sleeper(broker.mqtt, "away", "t", 2);
    fill(&broker, "t", ["it waits".to_owned()].into_iter(), 2);
    let (mut reader, _) = resume(broker.mqtt, "reader", false, 3600, None);
    reader.subscribe("busy", 1);
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    let payload = "x".repeat(16_000);
    let mut most = 0;
    for number in 0..220_u16 {
        deliver(&mut talker, "busy", &payload, 1, number + 1);
        let (_, _, id) = reader.expect(PUBLISH).publish(5);
        reader.send(&ack(PUBACK, id.expect("QoS 1")));
        if number % 20 == 19 {
            // All that was superfluous may go before the next ones come.
            most = most.max(sum(&broker, "journal_segments"));
            broker.metric_until("journal_segments", |now| now <= 8);
        }
    }
    let synced = sum(&broker, "journal_synced_bytes");
    assert!(synced > 50 * 65_536, "{synced} bytes were written");
    assert!(most < 30, "there were {most} segments");
    assert!(sum(&broker, "journal_moved_records") > 0);
    for round in 0..3 {
        broker.kill();
        broker = start();
        let (mut away, present) = resume(broker.mqtt, "away", false, 3600, None);
        assert!(present);
        // It is sent, then received, then there is nothing.
        if round == 0 {
            assert_eq!(away.expect(PUBLISH).publish(5).1, b"it waits");
        }
        if round == 1 {
            let packet = away.expect(PUBLISH);
            let (_, got, id) = packet.publish(5);
            assert_eq!(got, b"it waits");
            away.send(&ack(PUBREC, id.expect("QoS 2")));
            let packet = next(&mut away);
            assert_eq!(packet.head, PUBREL, "{packet:?}");
            away.send(&ack(PUBCOMP, id_of(&packet)));
            broker.metric_until("inflight_messages", |now| now == 0);
            // Recorded, and so on the disk with the next message that is acknowledged.
            let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
            deliver(&mut talker, "busy", "x", 1, 1);
        }
        away.ping();
    }
}

fn leaving_member(column: &Column) {
    let folder = temporary_folder();
    let broker = start(column, folder.path());
    sleeper(broker.mqtt, "leaver", "$share/g/t", 1);
    fill(&broker, "t", (0..50).map(|number| number.to_string()), 1);
    let (mut stayer, _) = resume(broker.mqtt, "stayer", false, 3600, None);
    stayer.subscribe("$share/g/t", 1);
    // A clean start ends the session that had it all.
    drop(resume(broker.mqtt, "leaver", true, 0, None));
    for number in 0..50 {
        let packet = stayer.expect(PUBLISH);
        let (_, payload, id) = packet.publish(5);
        assert_eq!(String::from_utf8_lossy(&payload), number.to_string());
        stayer.send(&ack(PUBACK, id.expect("QoS 1")));
    }
    stayer.ping();
    broker.metric_until("journal_live_records", |now| now == 0);
}
