//! A start reads the last segments of the journal alone, and what a checkpoint says of the others.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Case;
use crate::broker::{Broker, Options, temporary_folder};
use crate::column::{Column, discover};
use crate::raw::{
    Got, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Raw, ack, deliver, resume, sleeper,
};
use crate::wait::{PATIENCE, until};

pub const CASES: &[Case] = &[
    Case::new("starts::read_the_last_segments_alone", last_segments),
    Case::new("starts::read_everything_without_a_checkpoint", without),
    Case::new("starts::a_checkpoint_that_is_damaged_meanwhile_is_made_anew", damaged_meanwhile),
];

const SEGMENT_BYTES: u64 = 65_536;
/// Nothing moves: how much a checkpoint reads is known then.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("GEARBOX_JOURNAL__SEGMENT_BYTES", "65536"),
    ("GEARBOX_JOURNAL__MOVED_PERCENT", "0"),
    ("GEARBOX_LIMITS__MAX_INFLIGHT", "1"),
];
const MESSAGES: u32 = 600;
const READERS: [(&str, u8); 3] = [("one", 1), ("two", 2), ("three", 2)];

fn start(column: &Column, dir: &Path) -> Broker {
    let options = Options { data_dir: Some(dir), environment: &ENVIRONMENT, shards: 2 };
    Broker::start_with(column, &options)
}

fn sum(broker: &Broker, metric: &str) -> u64 {
    broker.metric(metric).iter().sum()
}

fn payload(number: u32) -> String {
    format!("{number:05}{}", "x".repeat(1_000))
}

/// Many segments of messages for clients that are away.
fn filled(column: &Column, dir: &Path) -> Broker {
    let broker = start(column, dir);
    for (name, qos) in READERS {
        sleeper(broker.mqtt, name, "t/#", qos);
    }
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    for number in 0..MESSAGES {
        let qos = if number.is_multiple_of(10) { 2 } else { 1 };
        deliver(&mut talker, "t/1", &payload(number), qos, (number % 100) as u16 + 1);
    }
    assert!(sum(&broker, "journal_segments") >= 20);
    broker
}

/// Waits for a checkpoint of all but the last segments.
fn until_checkpoint(broker: &Broker, read_before: u64) -> u64 {
    let segments = sum(broker, "journal_segments");
    broker.metric_until("journal_checkpoint_read_bytes", |now| {
        now - read_before >= (segments - 4) * (SEGMENT_BYTES - 8_192)
    })
}

/// Reads all that one reader is owed, and acknowledges it.
fn read(broker: &Broker, name: &str) {
    let (mut reader, present) = resume(broker.mqtt, name, false, 3600, None);
    assert!(present);
    for number in 0..MESSAGES {
        let packet = match reader.next(PATIENCE) {
            Got::Packet(packet) => packet,
            other => panic!("instead of a packet: {other:?}"),
        };
        let (_, got, id) = packet.publish(5);
        assert!(got == payload(number).as_bytes(), "{name}: {number} is not what came");
        let id = id.expect("QoS 1 or 2");
        if packet.head == PUBLISH | 2 {
            reader.send(&ack(PUBACK, id));
        } else {
            assert_eq!(packet.head, PUBLISH | 4);
            reader.send(&ack(PUBREC, id));
            assert_eq!(reader.expect(PUBREL & 0xF0).body[..2], id.to_be_bytes());
            reader.send(&ack(PUBCOMP, id));
        }
    }
}

fn stop(mut broker: Broker) {
    broker.terminate();
    assert!(broker.exit_status(PATIENCE).success());
}

fn last_segments(column: &Column) {
    let folder = temporary_folder();
    let dir = folder.path();
    let mut broker = filled(column, dir);
    until_checkpoint(&broker, 0);
    broker.kill();

    let mut broker = start(column, dir);
    // A record takes a block of 4096 bytes here.
    let records = sum(&broker, "journal_start_read_records");
    assert!(records <= 4 * SEGMENT_BYTES / 4_096, "{records} records were read");
    let queued = u64::from(MESSAGES) * READERS.len() as u64;
    assert_eq!(sum(&broker, "queued_messages"), queued);
    assert_eq!(sum(&broker, "journal_live_records"), queued);
    read(&broker, "one");
    broker.metric_until("journal_live_records", |now| now == queued * 2 / 3);
    broker.metric_until("journal_waiting_bytes", |now| now == 0);
    broker.kill(); // perhaps before the next checkpoint

    let broker = start(column, dir);
    assert!(sum(&broker, "journal_start_read_bytes") <= 5 * SEGMENT_BYTES);
    assert_eq!(sum(&broker, "queued_messages"), queued * 2 / 3);
    read(&broker, "two");
    broker.metric_until("inflight_messages", |now| now == 0);
    stop(broker);

    // A stop leaves less, for whichever runtime comes next.
    let columns = discover().ready;
    let at = columns.iter().position(|other| other.name == column.name).expect("it is one");
    let broker = start(&columns[(at + 1) % columns.len()], dir);
    let read_bytes = sum(&broker, "journal_start_read_bytes");
    assert!(read_bytes <= SEGMENT_BYTES, "{read_bytes} bytes were read after a stop");
    assert_eq!(sum(&broker, "queued_messages"), queued / 3);
    read(&broker, "three");
    broker.metric_until("inflight_messages", |now| now == 0);
    broker.metric_until("journal_live_records", |now| now == 0);

    // Segments are given back whose messages only the checkpoint spoke of.
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    let (mut reader, _) = resume(broker.mqtt, "passing", true, 3600, None);
    reader.subscribe("p", 1);
    until("the old segments to go", || {
        deliver(&mut talker, "p", &payload(0), 1, 1);
        let (_, _, id) = reader.expect(PUBLISH).publish(5);
        reader.send(&ack(PUBACK, id.expect("QoS 1")));
        (sum(&broker, "journal_segments") <= 4).then_some(())
    });
}

fn damaged_meanwhile(column: &Column) {
    let folder = temporary_folder();
    let dir = folder.path();
    let mut broker = filled(column, dir);
    let read_bytes = until_checkpoint(&broker, 0);
    let path = dir.join("journal/checkpoint");
    let file = fs::File::options().write(true).open(&path).expect("opens");
    file.write_all_at(&[0xFF; 9], fs::metadata(&path).expect("is there").len() / 2)
        .expect("writes");
    // Enough for the next one, which begins with the oldest segment again.
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    for number in 0..200 {
        deliver(&mut talker, "t/1", &payload(number), 1, (number % 100) as u16 + 1);
    }
    until_checkpoint(&broker, read_bytes);
    broker.kill();
    let broker = start(column, dir);
    let records = sum(&broker, "journal_start_read_records");
    assert!(records <= 4 * SEGMENT_BYTES / 4_096, "{records} records were read");
    let queued = u64::from(MESSAGES + 200) * READERS.len() as u64;
    assert_eq!(sum(&broker, "queued_messages"), queued);
    read(&broker, "one");
}

fn without(column: &Column) {
    let folder = temporary_folder();
    let dir = folder.path();
    let checkpoint = dir.join("journal/checkpoint");
    stop(filled(column, dir));
    let whole = fs::read(&checkpoint).expect("a stop leaves one");
    let flip = |at: u64| {
        let file = fs::File::options().write(true).open(&checkpoint).expect("opens");
        file.write_all_at(&[!whole[at as usize]], at).expect("writes");
    };
    type Harm<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let harms: [Harm<'_>; 5] = [
        ("missing", Box::new(|| fs::remove_file(&checkpoint).expect("removes"))),
        ("torn", Box::new(|| fs::write(&checkpoint, &whole[..whole.len() - 9]).expect("writes"))),
        ("empty", Box::new(|| fs::write(&checkpoint, b"").expect("writes"))),
        ("damaged", Box::new(|| flip(whole.len() as u64 / 2))),
        (
            "of another journal",
            Box::new(|| {
                let other = temporary_folder();
                stop(filled(column, other.path()));
                fs::copy(other.path().join("journal/checkpoint"), &checkpoint).expect("copies");
            }),
        ),
    ];
    let queued = u64::from(MESSAGES) * READERS.len() as u64;
    for (what, harm) in harms {
        fs::write(&checkpoint, &whole).expect("writes");
        harm();
        let mut broker = start(column, dir);
        let read_bytes = sum(&broker, "journal_start_read_bytes");
        assert!(read_bytes > u64::from(MESSAGES) * 1_000, "{what}: {read_bytes} bytes were read");
        assert_eq!(sum(&broker, "queued_messages"), queued, "{what}");
        broker.kill();
    }
    let broker = start(column, dir);
    for (name, _) in READERS {
        read(&broker, name);
    }
    broker.metric_until("queued_messages", |now| now == 0);
}
