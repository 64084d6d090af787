//! Errors of the disk, and writes that it takes in parts.

use std::io::ErrorKind;

use journal::{Class, Refused, State};
use rt_abstract::faults::{Disk, Faulty, Op};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::tools::{Running, append, found, record, small};

in_each_column!(
    an_error_is_final,
    an_error_beside_the_frames_is_final,
    short_writes_are_continued,
    who_appends_may_end_it
);

fn an_error_is_final<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        for (op, action) in [(Op::Write, "write"), (Op::Sync, "sync")] {
            let dir = TempDir::new().expect("a directory");
            let disk = Disk::new(dir.path());
            let running = Running::<Faulty<R>>::open(small(dir.path())).await;
            let good = running.commit(&[record(1, 100)]).await;
            let (durable, journal) = (running.journal.durable(), running.journal.clone());
            disk.fail(op, ".log", 0, ErrorKind::Other);
            running.append(&[record(2, 100)], Class::New).await;
            running.until(|journal| matches!(journal.state(), State::Failed(_))).await;
            for class in [Class::New, Class::Always] {
                assert_eq!(append(&journal, &[record(3, 1)], class), Err(Refused::Failed));
            }
            let error = running.end().await.expect_err("the writer ends with it").to_string();
            assert!(error.contains(action) && error.contains(".log"), "{error}");
            assert_eq!(journal.state(), State::Failed(error.as_str().into()));
            assert_eq!(journal.durable(), durable);
            let found = found::<R>(dir.path()).await.expect("opens");
            assert!(found.starts_with(&good) && found.len() <= 2);
        }
    });
}

fn an_error_beside_the_frames_is_final<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let cases =
            [(Op::Write, ".new"), (Op::Sync, ".spare"), (Op::Rename, ".spare"), (Op::SyncDir, "")];
        for (op, ending) in cases {
            let dir = TempDir::new().expect("a directory");
            let disk = Disk::new(dir.path());
            let opened = journal::open::<Faulty<R>>(small(dir.path()), None, |_, _| Ok(()));
            drop(opened.await.expect("opens"));
            disk.fail(op, ending, 0, ErrorKind::Other);
            let running = Running::<Faulty<R>>::open(small(dir.path())).await;
            running.until(|journal| matches!(journal.state(), State::Failed(_))).await;
            let journal = running.journal.clone();
            running.end().await.expect_err("the writer ends with it");
            assert_eq!(append(&journal, &[record(3, 1)], Class::New), Err(Refused::Failed));
        }
    });
}

fn who_appends_may_end_it<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        running.commit(&[record(1, 100)]).await;
        running.journal.fail("a unit is lost");
        let journal = running.journal.clone();
        let error = running.end().await.expect_err("the writer ends with it").to_string();
        assert!(error.contains("a unit is lost"), "{error}");
        assert_eq!(append(&journal, &[record(3, 1)], Class::Always), Err(Refused::Failed));
    });
}

fn short_writes_are_continued<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let disk = Disk::new(dir.path());
        disk.set_max_write_bytes(Some(700));
        let running = Running::<Faulty<R>>::open(small(dir.path())).await;
        let mut all = Vec::new();
        for index in 0..5 {
            all.extend(running.commit(&[record(index, 3_000), record(index, 3)]).await);
        }
        running.stop().await.expect("ends well");
        assert_eq!(found::<R>(dir.path()).await.expect("opens"), all);
    });
}
