//! A disk without space, for real: the journal lies on a small file system of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Case;
use crate::broker::{Broker, Options, temporary_folder};
use crate::column::Column;
use crate::raw::{Got, PUBACK, PUBLISH, Raw, ack, publish, resume, sleeper};
use crate::wait::{PATIENCE, until};

pub const CASES: &[Case] =
    &[Case::new("disk::full_and_with_space_again", full_and_with_space_again)];

/// Eight segments of the size that these tests use.
const SIZE: &str = "size=8m";
/// What somebody else has on the same disk: the rest has room for two more segments than a start takes.
const BALLAST_BYTES: usize = 3 << 20;
const QUOTA_EXCEEDED: u8 = 0x97;
/// More would be more than the disk has room for.
const MAX_MESSAGES: u16 = 2_000;

/// A file system in memory, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this process may not mount.
    fn mount(dir: &Path) -> Option<Self> {
        std::fs::create_dir(dir).expect("a folder can be made");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", SIZE, "gearbox-test"])
            .arg(dir)
            .output()
            .expect("`mount` is there");
        if mounted.status.success() {
            return Some(Self(dir.to_owned()));
        }
        let why = String::from_utf8_lossy(&mounted.stderr);
        eprintln!("NOT RUN: a full disk takes the right to mount: {}", why.trim());
        None
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a broker that a failed test left behind may still end.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Publishes at QoS 1 to the sleeper; the reason in the PUBACK.
fn store(talker: &mut Raw, number: u16) -> u8 {
    let payload = format!("{number:08}{:8000}", "");
    talker.send(&publish(5, "sleeper/t", payload.as_bytes(), 1, number));
    talker.expect(PUBACK).body.get(2).copied().unwrap_or(0)
}

fn logged(broker: &Broker, text: &str) {
    until(text, || broker.has_logged(&[text]).then_some(()));
}

fn full_and_with_space_again(column: &Column) {
    let folder = temporary_folder();
    let Some(disk) = SmallDisk::mount(&folder.path().join("journal")) else { return };
    std::fs::write(disk.ballast(), vec![1; BALLAST_BYTES]).expect("the disk has room");
    let options = Options { data_dir: Some(folder.path()), ..Options::default() };
    let mut broker = Broker::start_with(column, &options);
    sleeper(broker.mqtt, "sleeper", "sleeper/#", 1);
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    // Unacknowledged until the disk is full.
    let (mut reader, _) = resume(broker.mqtt, "reader", false, 3600, None);
    reader.subscribe("reader/#", 1);
    let mut unacknowledged = Vec::new();
    for number in 1..=5 {
        talker.send(&publish(5, "reader/t", b"x", 1, number));
        talker.expect(PUBACK);
        unacknowledged.extend(reader.expect(PUBLISH).publish(5).2);
    }
    let mut stored = Vec::new();
    let refused = (1..MAX_MESSAGES).find(|&number| {
        let reason = store(&mut talker, number);
        assert!(matches!(reason, 0 | QUOTA_EXCEEDED), "{reason:#x}");
        if reason == 0 {
            stored.push(number);
        }
        reason == QUOTA_EXCEEDED
    });
    let mut number = refused.expect("the disk is full");
    logged(&broker, "the disk is nearly full");
    assert!(broker.metric("refused_journal").iter().sum::<u64>() > 0);

    // Who has no reason code is disconnected, and sends again.
    let mut old = Raw::connect(broker.mqtt, 4, "old", 600);
    old.send(&publish(4, "sleeper/t", b"x", 1, 1));
    assert_eq!(old.until_closed(PATIENCE), Ok(Vec::new()));
    // What needs no space goes on: QoS 0, what only transient sessions get, acknowledgements.
    let mut live = Raw::connect(broker.mqtt, 5, "live", 600);
    live.subscribe("live/#", 1);
    for qos in [0, 1] {
        talker.send(&publish(5, "live/t", b"x", qos, 9_000));
        let id = live.expect(PUBLISH).publish(5).2;
        if let Some(id) = id {
            live.send(&ack(PUBACK, id));
            assert_eq!(talker.expect(PUBACK).body.get(2).copied().unwrap_or(0), 0);
        }
    }
    for id in unacknowledged {
        reader.send(&ack(PUBACK, id));
    }
    reader.ping();

    std::fs::remove_file(disk.ballast()).expect("it is there");
    until("the journal to go on by itself", || {
        number += 1;
        let reason = store(&mut talker, number);
        if reason == 0 {
            stored.push(number);
        }
        (reason == 0).then_some(())
    });
    logged(&broker, "the journal has space again");

    broker.kill();
    let broker = Broker::start_with(column, &options);
    let (mut sleeper, present) = resume(broker.mqtt, "sleeper", false, 3600, None);
    assert!(present);
    for number in stored {
        let (_, payload, id) = sleeper.expect(PUBLISH).publish(5);
        assert_eq!(&payload[..8], format!("{number:08}").as_bytes(), "in order, without a gap");
        sleeper.send(&ack(PUBACK, id.expect("QoS 1")));
    }
    sleeper.ping();
    let (mut reader, present) = resume(broker.mqtt, "reader", false, 3600, None);
    reader.send(&[0xC0, 0]);
    let next = reader.next(PATIENCE);
    let is_ping = matches!(&next, Got::Packet(packet) if packet.head == crate::raw::PINGRESP);
    assert!(present && is_ping, "acknowledged on the full disk: {next:?}");
}
