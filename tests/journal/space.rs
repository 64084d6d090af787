//! Segments: made ahead, let go, used again; and a disk without space for them.

use std::io::ErrorKind;
use std::path::Path;

use journal::{Class, Position, ReadError, Refused, State};
use rt_abstract::faults::{Disk, Faulty, Op};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::tools::{Record, Running, SEGMENT_BYTES, append, found, record, small};

in_each_column!(
    segments_are_used_again,
    nothing_is_released_before_what_releases_it_is_durable,
    a_full_disk_refuses_what_is_new,
    space_that_returns_is_noticed,
    a_restart_keeps_what_was_prepared,
    what_was_being_made_is_removed,
    a_larger_segment_size_is_for_an_empty_journal,
);

fn segments_are_used_again<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        let reader = running.journal.reader::<R>();
        let mut kept: Vec<Record> = Vec::new();
        let mut released: Vec<Record> = Vec::new();
        for index in 0..200 {
            let placed = running.commit(&[record(index, 5_000)]).await;
            reader.read(placed[0].0).await.expect("is there");
            kept.extend(placed);
            if kept.len() > 20 {
                released.extend(kept.drain(..10));
                running.journal.release_before(kept[0].0);
            }
            let usage = running.journal.usage();
            assert!(usage.spares <= 4, "{usage:?}");
        }
        let oldest = running.journal.segment_of(kept[0].0);
        let end = running.journal.segment_start(oldest);
        running.until(|journal| journal.usage().oldest == end).await;
        let usage = running.journal.usage();
        assert_eq!(usage.disk_bytes, (usage.segments + usage.spares) * SEGMENT_BYTES);
        assert!(usage.segments <= 4 && oldest > 10, "{usage:?}");
        for (position, _) in released {
            if position < usage.oldest {
                let error = reader.read(position).await.expect_err("released");
                assert!(matches!(error, ReadError::Released(_)), "{error}");
            }
        }
        for (position, record) in &kept {
            assert_eq!(&reader.read(*position).await.expect("is there"), record);
        }
        running.journal.release_before(Position::new(u64::MAX)); // all but the last
        running.stop().await.expect("ends well");
        let files = std::fs::read_dir(dir.path()).expect("lists").count() as u64;
        assert!(files <= 8, "{files} files");
        let rest = found::<R>(dir.path()).await.expect("opens");
        assert!(!rest.is_empty() && kept.ends_with(&rest));
    });
}

fn nothing_is_released_before_what_releases_it_is_durable<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let disk = Disk::new(dir.path());
        let running = Running::<Faulty<R>>::open(small(dir.path())).await;
        for index in 0..30 {
            running.commit(&[record(index, 5_000)]).await;
        }
        let journal = running.journal.clone();
        disk.hold_syncs(".log");
        running.append(&[b"all before is done".to_vec()], Class::Always).await;
        journal.release_before(journal.usage().end);
        disk.sync_waits().await;
        for _ in 0..100 {
            R::yield_now().await;
        }
        assert_eq!(journal.usage().oldest, journal.segment_start(1));
        disk.release_syncs();
        let active = journal.segment_start(journal.segment_of(journal.usage().end));
        running.until(|journal| journal.usage().oldest == active).await;
        running.stop().await.expect("ends well");
    });
}

fn a_full_disk_refuses_what_is_new<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let disk = Disk::new(dir.path());
        let running = Running::<Faulty<R>>::open(small(dir.path())).await;
        running.until(|journal| journal.usage().spares == 2).await;
        disk.set_full(true);
        let mut all = Vec::new();
        // Up to the next segment nothing is felt.
        let refused = loop {
            match append(&running.journal, &[record(all.len(), 5_000)], Class::New) {
                Ok((appended, placed)) => {
                    all.extend(placed);
                    running.durable(appended.ticket).await;
                }
                Err(refused) => break refused,
            }
            running.until(|journal| journal.usage().spares == 2 || is_full(journal)).await;
        };
        assert_eq!(refused, Refused::NearlyFull);
        assert_eq!(running.journal.state(), State::NearlyFull);
        // What frees space has the reserve, and then no more.
        let before = all.len();
        let refused = loop {
            match append(&running.journal, &[record(all.len(), 5_000)], Class::Always) {
                Ok((appended, placed)) => {
                    all.extend(placed);
                    running.durable(appended.ticket).await;
                }
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused, Refused::Full);
        assert!(all.len() - before >= 12, "the reserve is a whole segment");
        // Released segments need no space.
        running.journal.release_before(all[all.len() - 1].0);
        running.until(|journal| journal.state() == State::Running).await;
        all.extend(running.commit(&[record(0, 5_000)]).await);
        running.stop().await.expect("ends well");
        let found = found::<R>(dir.path()).await.expect("opens");
        assert!(found.len() < all.len() && all.ends_with(&found));
    });
}

fn space_that_returns_is_noticed<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let disk = Disk::new(dir.path());
        disk.fail(Op::Write, ".new", 2, ErrorKind::StorageFull); // later than at the reservation
        disk.fail(Op::Allocate, ".new", 1, ErrorKind::QuotaExceeded);
        let opened = journal::open::<Faulty<R>>(small(dir.path()), None, |_, _| Ok(())).await;
        drop(opened.expect("the first segment has space"));
        disk.set_full(true);
        let running = Running::<Faulty<R>>::open(small(dir.path())).await;
        running.until(is_full).await;
        for _ in 0..3 {
            R::sleep(small(dir.path()).retry * 2).await; // tried again, and again in vain
            assert_eq!(running.journal.state(), State::NearlyFull);
        }
        disk.set_full(false);
        running.until(|journal| journal.state() == State::Running).await;
        assert_eq!(running.journal.usage().spares, 2);
        running.commit(&[record(0, 5_000)]).await;
        running.stop().await.expect("ends well");
        assert_eq!(files(dir.path(), ".new"), 0);
    });
}

fn a_restart_keeps_what_was_prepared<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        for _ in 0..3 {
            let running = Running::<R>::open(small(dir.path())).await;
            running.until(|journal| journal.usage().spares == 2).await;
            running.commit(&[record(0, 5_000)]).await;
            running.stop().await.expect("ends well");
            let opened = journal::open::<R>(small(dir.path()), None, |_, _| Ok(())).await;
            assert_eq!(opened.expect("opens").0.usage().spares, 2);
            assert_eq!(files(dir.path(), ".log") + files(dir.path(), ".spare"), 3);
        }
    });
}

fn what_was_being_made_is_removed<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        drop(found::<R>(dir.path()).await.expect("opens"));
        std::fs::write(dir.path().join("0000000000000005.new"), [0; 100]).expect("writes");
        std::fs::write(dir.path().join("0000000000000006.spare"), [0; 100]).expect("writes");
        std::fs::write(dir.path().join("notes.txt"), "mine").expect("writes");
        drop(found::<R>(dir.path()).await.expect("opens"));
        assert_eq!(files(dir.path(), ".new") + files(dir.path(), ".spare"), 0);
        assert_eq!(files(dir.path(), "notes.txt"), 1);
        for name in ["0000000000000007.spare", "0000000000000007.new", "x.log"] {
            let path = dir.path().join(name);
            std::fs::write(&path, "something of somebody").expect("writes");
            let error = found::<R>(dir.path()).await.expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
            assert_eq!(std::fs::read(&path).expect("is there"), b"something of somebody");
            std::fs::remove_file(path).expect("removes");
        }
    });
}

fn a_larger_segment_size_is_for_an_empty_journal<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let larger = || journal::Options { segment_bytes: 2 * SEGMENT_BYTES, ..small(dir.path()) };
        let running = Running::<R>::open(small(dir.path())).await;
        let mut all = running.commit(&[record(1, 9)]).await;
        running.stop().await.expect("ends well");
        let running = Running::<R>::open(larger()).await;
        assert_eq!(running.journal.segment_bytes(), SEGMENT_BYTES);
        all.extend(running.commit(&[record(2, 9)]).await);
        running.stop().await.expect("ends well");
        assert_eq!(found::<R>(dir.path()).await.expect("opens"), all);
        for (name, value) in [("segment_bytes", 5_000), ("spare_segments", 1)] {
            let mut options = larger();
            match name {
                "segment_bytes" => options.segment_bytes = value,
                _ => options.spare_segments = value as usize,
            }
            let opened = journal::open::<R>(options, None, |_, _| Ok(())).await;
            let error = opened.err().expect("refused").to_string();
            assert!(error.contains(&value.to_string()), "{error}");
        }
    });
}

fn is_full(journal: &journal::Journal) -> bool {
    journal.state() == State::NearlyFull
}

fn files(dir: &Path, ending: &str) -> usize {
    let names =
        std::fs::read_dir(dir).expect("lists").map(|entry| entry.expect("lists").file_name());
    names.filter(|name| name.to_string_lossy().ends_with(ending)).count()
}
