//! Faults of disks.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use rt_abstract::{File, OpenOptions, Runtime};
use rt_sim::{Config, Control, Crash, Fault, Op, Sim};

use super::{ONE, in_world, in_worlds};

const PATH: &str = "/data/file";

/// Opens the file on node one, from outside.
async fn open(control: Control, options: OpenOptions) -> rt_sim::File {
    let cores = control.start_node(ONE, 1, move |_| Sim::open(Path::new(PATH), options));
    cores.join().await.expect("no panic").remove(0).expect("opens")
}

/// Runs something on node one.
macro_rules! on_one {
    ($control:expr, $work:expr) => {{
        let mut results = $control.start_node(ONE, 1, |_| $work).join().await.expect("no panic");
        results.remove(0)
    }};
}

async fn write_all(file: &rt_sim::File, bytes: &[u8]) {
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    rt_abstract::write_all_at(file, bytes, 0).await.expect("writes");
}

/// A file of sixteen sectors of ones, durable with its name.
async fn make_file() {
    let file = Sim::open(Path::new(PATH), OpenOptions::CREATE_NEW).await.expect("creates");
    write_all(&file, &[1; 8_192]).await;
    file.sync_data().await.expect("syncs");
    Sim::sync_dir(Path::new("/data")).await.expect("syncs");
}

#[test]
fn what_was_not_synced_is_lost_in_part_or_whole() {
    let (mut whole, mut torn, mut kept) = (0, 0, 0);
    for seed in 1..=40 {
        let new = in_world(seed, Config::default(), |control| async move {
            on_one!(control, make_file());
            on_one!(control, async {
                let file = Sim::open(Path::new(PATH), OpenOptions::WRITE).await.expect("opens");
                write_all(&file, &[2; 8_192]).await;
            });
            assert_eq!(control.unsynced_bytes(ONE), 8_192);
            control.crash(ONE, Crash::Power);
            assert_eq!(control.unsynced_bytes(ONE), 0);
            let content = control.read_file(ONE, Path::new(PATH)).expect("the file is there");
            assert_eq!(content.len(), 8_192);
            assert!(content.chunks(512).all(|sector| sector.iter().all(|&it| it == sector[0])));
            content.chunks(512).filter(|sector| sector[0] == 2).count()
        });
        match new {
            0 => whole += 1,
            16 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(whole > 0 && torn > 0 && kept > 0, "{whole} {torn} {kept}");
}

#[test]
fn a_killed_process_loses_nothing_that_was_written() {
    in_worlds(|control| async move {
        on_one!(control, async {
            let file = Sim::open(Path::new(PATH), OpenOptions::CREATE_NEW).await.expect("creates");
            write_all(&file, &[1; 1_000]).await;
        });
        control.crash(ONE, Crash::Process);
        assert_eq!(control.read_file(ONE, Path::new(PATH)), Some(vec![1; 1_000]));
    });
}

#[test]
fn a_name_without_a_synced_directory_may_be_lost() {
    let mut found = Vec::new();
    for seed in 1..=30 {
        found.push(in_world(seed, Config::default(), |control| async move {
            on_one!(control, async {
                let file =
                    Sim::open(Path::new(PATH), OpenOptions::CREATE_NEW).await.expect("creates");
                write_all(&file, &[1; 1_000]).await;
                file.sync_data().await.expect("syncs");
            });
            control.crash(ONE, Crash::Power);
            control.read_file(ONE, Path::new(PATH)).is_some()
        }));
    }
    assert!(found.contains(&true) && found.contains(&false));
}

#[test]
fn a_rename_is_whole_or_has_not_happened() {
    let mut found = Vec::new();
    for seed in 1..=30 {
        found.push(in_world(seed, Config::default(), |control| async move {
            on_one!(control, make_file());
            let to = Path::new("/data/new");
            on_one!(control, Sim::rename(Path::new(PATH), Path::new("/data/new")))
                .expect("renames");
            control.crash(ONE, Crash::Power);
            let (old, new) = (control.read_file(ONE, Path::new(PATH)), control.read_file(ONE, to));
            assert!(old.is_some() != new.is_some());
            new.is_some()
        }));
    }
    assert!(found.contains(&true) && found.contains(&false));
}

#[test]
fn planned_errors_come_when_they_should() {
    in_worlds(|control| async move {
        on_one!(control, make_file());
        control.fail_disk(ONE, Op::Write, "file", 1, ErrorKind::Other);
        control.fail_disk(ONE, Op::Sync, "file", 0, ErrorKind::Other);
        let file = open(control, OpenOptions::WRITE).await;
        file.write_at(vec![2; 1], 0).await.0.expect("the first goes well");
        file.write_at(vec![3; 1], 1).await.0.expect_err("planned");
        file.sync_data().await.expect_err("planned");
        file.sync_data().await.expect("but proves nothing");
        control.crash(ONE, Crash::Power);
        assert_eq!(control.read_file(ONE, Path::new(PATH)).expect("is there")[1], 1);
        assert_eq!(control.coverage().count(Fault::DiskError), 2);
    });
}

#[test]
fn a_full_disk_says_so_until_there_is_room() {
    in_worlds(|control| async move {
        on_one!(control, make_file());
        control.set_disk_capacity(ONE, Some(8_192));
        let file = open(control, OpenOptions::WRITE).await;
        let error = file.allocate(8_193).await.expect_err("full");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let (result, _) = file.write_at(vec![1; 2], 8_192).await;
        assert_eq!(result.expect_err("full").kind(), ErrorKind::StorageFull);
        file.write_at(vec![1; 2], 0).await.0.expect("where there is something already");
        control.set_disk_capacity(ONE, None);
        file.allocate(10_000).await.expect("room");
        assert_eq!(control.coverage().count(Fault::DiskFull), 2);
    });
}

#[test]
fn one_bit_flips() {
    in_worlds(|control| async move {
        on_one!(control, make_file());
        assert_eq!(control.flip_bit(ONE, "other"), None);
        let (path, byte) = control.flip_bit(ONE, "file").expect("a file");
        assert_eq!(path, Path::new(PATH));
        let content = control.read_file(ONE, &path).expect("is there");
        let changed: Vec<_> = (0..).zip(&content).filter(|(_, it)| **it != 1).collect();
        assert_eq!(changed.len(), 1);
        assert_eq!((changed[0].0, (changed[0].1 ^ 1).count_ones()), (byte, 1));
    });
}

#[test]
fn a_slow_disk_is_slow() {
    in_worlds(|control| async move {
        on_one!(control, make_file());
        let file = open(control, OpenOptions::WRITE).await;
        control.slow_disk(ONE, Duration::from_secs(1));
        let begin = control.now();
        file.sync_data().await.expect("syncs");
        assert!(control.now() - begin >= Duration::from_secs(1));
    });
}

#[test]
fn files_of_an_earlier_start_are_dead() {
    in_worlds(|control| async move {
        on_one!(control, make_file());
        let file = open(control, OpenOptions::WRITE).await;
        control.crash(ONE, Crash::Process);
        file.write_at(vec![9], 0).await.0.expect_err("a file of a dead process");
        file.sync_data().await.expect_err("a file of a dead process");
        control.wipe_disk(ONE);
        assert!(control.files(ONE).is_empty());
    });
}
