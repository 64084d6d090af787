//! A journal on a good disk.

use futures_util::future::join_all;
use journal::{Batch, Class, Journal, Position, ReadError, Refused, State};
use rt_abstract::faults::{Disk, Faulty};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::tools::{Running, SEGMENT_BYTES, append, found, in_fallback_too, place, record, small};

in_each_column!(
    what_is_appended_comes_back,
    records_are_read_from_memory_and_from_disk,
    one_sync_serves_all,
    what_waits_is_bounded,
    a_stop_makes_everything_durable,
    a_writer_that_is_dropped_is_a_failure,
    a_visitor_that_fails_is_quoted,
);
in_fallback_too!(what_is_appended_comes_back, one_sync_serves_all);

fn what_is_appended_comes_back<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path().join("journal"); // it is made
        let mut all = Vec::new();
        let mut last = None;
        for round in 0..3 {
            let running = Running::<R>::open(small(&dir)).await;
            assert_eq!(running.found, all, "round {round}");
            assert_eq!(last, (round > 0).then(|| running.journal.durable()), "tickets go on");
            for index in 0..20 {
                let len = [0, 1, 100, 9_000][index % 4];
                let records = [record(round * 100 + index, len), record(index, 17)];
                all.extend(running.append(&records, Class::New).await);
            }
            all.extend(running.commit(&[record(round, 5)]).await);
            let usage = running.journal.usage();
            assert_eq!((usage.records, usage.batches, usage.waiting_bytes), (41, 21, 0));
            assert!(usage.syncs > 0 && usage.synced_bytes >= 5 * 9_000, "{usage:?}");
            last = Some(running.journal.durable());
            running.stop().await.expect("ends well");
        }
        assert!(all.is_sorted_by(|one, two| one.0 < two.0));
        let segments: Vec<u64> = all.iter().map(|(at, _)| at.get() / SEGMENT_BYTES).collect();
        assert!(segments.first() < segments.last(), "more than one segment was used");
    });
}

fn records_are_read_from_memory_and_from_disk<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let disk = Disk::new(dir.path());
        let running = Running::<Faulty<R>>::open(small(dir.path())).await;
        let reader = running.journal.reader::<Faulty<R>>();
        disk.hold_syncs(".log");
        let mut placed = running.append(&[record(1, 100)], Class::New).await;
        disk.sync_waits().await; // in flight
        placed.extend(running.append(&[record(2, 7_000)], Class::New).await);
        placed.extend(running.append(&[record(3, 0), record(4, 7_000)], Class::New).await);
        for held in [true, false] {
            if !held {
                disk.release_syncs();
                running.commit(&[record(5, 5)]).await;
            }
            for (position, record) in &placed {
                assert_eq!(reader.read(*position).await.expect("is there"), record.0);
                let once = running.journal.read::<Faulty<R>>(*position).await;
                assert_eq!(once.expect("is there"), record.0);
            }
        }
        let (position, _) = placed[1];
        for wrong in [1, 8, 3_000] {
            let wrong = Position::new(position.get() + wrong);
            let error = reader.read(wrong).await.expect_err("no record begins there");
            assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
        }
        for wrong in [0, 3, SEGMENT_BYTES - 1, SEGMENT_BYTES, running.journal.usage().end.get()] {
            let wrong = Position::new(wrong);
            let error = reader.read(wrong).await.expect_err("nothing is there");
            assert!(matches!(error, ReadError::Released(_) | ReadError::NotFound(_)), "{error}");
        }
        let (path, offset) = place(dir.path(), position);
        flip(&path, offset + 500);
        let error = reader.read(position).await.expect_err("damaged");
        assert!(error.to_string().contains(&format!("at byte {offset}")), "{error}");
        running.stop().await.expect("ends well");
    });
}

fn one_sync_serves_all<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let disk = Disk::new(dir.path());
        let running = Running::<Faulty<R>>::open(small(dir.path())).await;
        running.commit(&[record(0, 10)]).await;
        let before = disk.syncs("log");
        disk.hold_syncs(".log");
        running.append(&[record(1, 10)], Class::New).await;
        disk.sync_waits().await;
        let written = running.journal.written();
        assert!(written > running.journal.durable());
        let tasks = (0..50).map(|task: usize| {
            let journal = running.journal.clone();
            R::spawn(async move {
                R::yield_now().await;
                append(&journal, &[record(task, 50)], Class::New).expect("is taken").0.ticket
            })
        });
        let tickets: Vec<_> =
            join_all(tasks).await.into_iter().map(|ticket| ticket.expect("no panic")).collect();
        assert!(tickets.iter().all(|ticket| *ticket == tickets[0]), "they gather in one frame");
        assert_eq!(running.journal.written(), written);
        disk.release_syncs();
        running.durable(tickets[0]).await;
        assert_eq!(disk.syncs("log") - before, 2);
        running.stop().await.expect("ends well");
    });
}

fn what_waits_is_bounded<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let disk = Disk::new(dir.path());
        let options = small(dir.path());
        let running = Running::<Faulty<R>>::open(options.clone()).await;
        running.until(|journal| journal.usage().spares == 2).await;
        disk.hold_syncs(".log");
        let journal = &running.journal;
        let fill = |class| {
            let mut taken = 0;
            loop {
                match append(journal, &[record(taken, 1_000)], class) {
                    Ok(_) => taken += 1,
                    Err(refused) => return (taken, refused),
                }
            }
        };
        assert_eq!(fill(Class::New), (40, Refused::Busy));
        assert_eq!(fill(Class::Always), (10, Refused::Busy), "a quarter more");
        assert!(journal.usage().waiting_bytes <= options.max_waiting_bytes as u64 / 4 * 5);
        assert_eq!(journal.usage().refused, 2);
        disk.release_syncs();
        running.until(|journal| journal.usage().waiting_bytes == 0).await;
        // larger than all bounds, but a segment holds it
        running.commit(&[record(0, 60_000)]).await;
        let too_large = append(journal, &[record(0, 62_000)], Class::Always);
        assert!(matches!(too_large, Err(Refused::TooLarge { .. })), "{too_large:?}");
        running.stop().await.expect("ends well");
    });
}

fn a_stop_makes_everything_durable<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        let mut all = Vec::new();
        for index in 0..9 {
            all.extend(running.append(&[record(index, 3_000)], Class::New).await);
        }
        let journal = running.journal.clone();
        running.stop().await.expect("ends well");
        assert_eq!(journal.state(), State::Closed);
        let last = append(&journal, &[], Class::New).expect("nothing is always taken").0.ticket;
        assert_eq!(journal.durable(), last);
        assert_eq!(append(&journal, &[record(0, 1)], Class::Always), Err(Refused::Closed));
        assert_eq!(found::<R>(dir.path()).await.expect("opens"), all);
    });
}

fn a_writer_that_is_dropped_is_a_failure<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let opened = journal::open::<R>(small(dir.path()), None, |_, _| Ok(())).await;
        let (journal, writer): (Journal, _) = opened.expect("opens");
        let mut batch = Batch::new();
        batch.push(|out| out.push(1));
        journal.append(&mut batch, Class::New).expect("is taken");
        drop(writer);
        assert!(matches!(journal.state(), State::Failed(_)));
        batch.push(|out| out.push(2));
        assert_eq!(journal.append(&mut batch, Class::Always), Err(Refused::Failed));
    });
}

fn a_visitor_that_fails_is_quoted<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        let placed = running.commit(&[record(1, 3)]).await;
        running.stop().await.expect("ends well");
        let opened =
            journal::open::<R>(small(dir.path()), None, |_, _| Err("what is this?".into()));
        let error = opened.await.err().expect("refused").to_string();
        let text = format!("the record at {}: what is this?", placed[0].0);
        assert!(error.contains(&text), "{error}");
    });
}

/// Turns one bit over.
pub fn flip(path: &std::path::Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("reads");
    byte[0] ^= 4;
    file.write_all_at(&byte, offset).expect("writes");
}
