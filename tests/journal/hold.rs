//! Segments that are held while they are copied.

use std::fs;
use std::path::Path;

use journal::{Class, HeldFile, Hold, Position, Verdict, inspect};
use rt_abstract::faults::{Disk, Faulty};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::tools::{Record, Running, SEGMENT_BYTES, found, record, small};

in_each_column!(
    nothing_is_released_while_it_is_held,
    copies_under_load_are_journals,
    what_is_being_written_is_left_out,
);

fn nothing_is_released_while_it_is_held<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        let journal = running.journal.clone();
        let (one, other) = (journal.hold(), journal.hold());
        for index in 0..40 {
            running.commit(&[record(index, 5_000)]).await;
            journal.release_before(Position::new(u64::MAX));
        }
        drop(one);
        running.commit(&[record(40, 5_000)]).await;
        assert_eq!(journal.usage().oldest, journal.segment_start(1));
        assert_eq!(other.files().len() as u64, journal.usage().segments);
        drop(other);
        let active = journal.segment_start(journal.segment_of(journal.usage().end));
        running.until(|journal| journal.usage().oldest == active).await;
        running.stop().await.expect("ends well");
    });
}

fn copies_under_load_are_journals<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        let mut kept: Vec<Record> = Vec::new();
        for round in 0..12 {
            for index in 0..5 {
                kept.extend(running.append(&[record(index, 4_000)], Class::New).await);
            }
            kept.extend(running.commit(&[record(round, 9)]).await);
            let durable = kept.len();
            kept.extend(running.append(&[record(round, 6_000)], Class::New).await);
            let hold = running.journal.hold();
            running.journal.release_before(Position::new(u64::MAX));
            let copy = TempDir::new().expect("a directory");
            copy_to(copy.path(), &hold.files());
            drop(hold);
            let report = inspect::<R>(copy.path(), |_, _| {}).await.expect("reads");
            assert_eq!(report.verdict, Verdict::Clean);
            let copied = found::<R>(copy.path()).await.expect("opens");
            let oldest = copied[0].0.get() / SEGMENT_BYTES;
            let expected: Vec<_> =
                kept.iter().filter(|(at, _)| at.get() / SEGMENT_BYTES >= oldest).cloned().collect();
            let missing = expected.len() - copied.len();
            assert!(missing <= kept.len() - durable, "{missing} are missing");
            assert_eq!(copied, expected[..copied.len()]);
        }
        running.stop().await.expect("ends well");
    });
}

/// Written, and not synced; and a next frame behind it once it is.
fn what_is_being_written_is_left_out<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let disk = Disk::new(dir.path());
        let running = Running::<Faulty<R>>::open(small(dir.path())).await;
        let durable = running.commit(&[record(1, 100)]).await;
        disk.hold_syncs(".log");
        running.append(&[record(2, 100)], Class::New).await;
        disk.sync_waits().await;
        let hold: Hold = running.journal.hold();
        assert!(hold.since() > running.journal.durable());
        let copy = TempDir::new().expect("a directory");
        copy_to(copy.path(), &hold.files());
        disk.release_syncs();
        running.durable(hold.since()).await;
        assert_eq!(found::<R>(copy.path()).await.expect("opens"), durable);
        running.stop().await.expect("ends well");
    });
}

fn copy_to(dir: &Path, files: &[HeldFile]) {
    for HeldFile { path, bytes } in files {
        let mut content = fs::read(path).expect("reads");
        content.truncate(*bytes as usize);
        fs::write(dir.join(path.file_name().expect("a name")), content).expect("writes");
    }
}
