//! Reading on behind a mark: in a journal that is written, and at a start.

use std::fs;

use journal::{Mark, OpenError, repair};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::log::flip;
use crate::tools::{
    Record, Running, SEGMENT_BYTES, found, found_after, in_fallback_too, place, record, small,
    swept,
};

in_each_column!(
    reading_goes_on_behind_any_frame,
    a_sweep_ends_where_it_began,
    what_lies_before_a_mark_is_not_read,
    a_torn_end_behind_a_mark_is_dropped_and_damage_refused,
    a_mark_that_is_not_there_is_told,
    a_segment_that_was_released_ends_a_sweep,
);
in_fallback_too!(reading_goes_on_behind_any_frame);

/// Frames of some segments, with their records.
async fn filled<R: Runtime>(running: &Running<R>, frames: usize) -> Vec<(Mark, Vec<Record>)> {
    for index in 0..frames {
        running.commit(&[record(index, 3_000), record(index, 2_000)]).await;
    }
    let all = swept::<R>(&running.journal, None).await.expect("reads");
    assert_eq!(all.len(), frames, "one per commit");
    all
}

fn records(frames: &[(Mark, Vec<Record>)]) -> Vec<Record> {
    frames.iter().flat_map(|(_, records)| records.clone()).collect()
}

fn reading_goes_on_behind_any_frame<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        let all = filled(&running, 30).await;
        let segment = |at: usize| place(dir.path(), all[at].0.position()).0;
        assert!((1..30).any(|at| segment(at) != segment(at - 1)));
        for (at, (mark, _)) in all.iter().enumerate() {
            let rest = swept::<R>(&running.journal, Some(*mark)).await.expect("reads");
            assert_eq!(rest, all[at + 1..]);
        }
        running.stop().await.expect("ends well");
        assert_eq!(found::<R>(dir.path()).await.expect("opens"), records(&all));
        for (at, (mark, _)) in all.iter().enumerate() {
            let rest = found_after::<R>(dir.path(), Some(*mark)).await.expect("opens");
            assert_eq!(rest, records(&all[at + 1..]), "behind {at}");
        }
        // and the log goes on behind its end
        let running = Running::<R>::open(small(dir.path())).await;
        let mut all = records(&all);
        all.extend(running.commit(&[record(99, 10)]).await);
        running.stop().await.expect("ends well");
        assert_eq!(found::<R>(dir.path()).await.expect("opens"), all);
    });
}

fn a_sweep_ends_where_it_began<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        assert_eq!(swept::<R>(&running.journal, None).await.expect("reads"), []);
        let all = filled(&running, 20).await;
        let mut sweep = running.journal.sweep::<R>(None);
        let mut count = 0;
        while sweep.next(|_, _| Ok(())).await.expect("reads").is_some() {
            count += 1;
            running.commit(&[record(count, 900)]).await;
        }
        assert_eq!(count, all.len());
        running.stop().await.expect("ends well");
    });
}

fn what_lies_before_a_mark_is_not_read<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        let all = filled(&running, 30).await;
        running.stop().await.expect("ends well");
        let (path, offset) = place(dir.path(), all[2].1[0].0);
        flip(&path, offset + 500);
        assert!(matches!(found::<R>(dir.path()).await, Err(OpenError::Damaged { .. })));
        let rest = found_after::<R>(dir.path(), Some(all[20].0)).await.expect("opens");
        assert_eq!(rest, records(&all[21..]));
        // but a segment that is missing is noticed
        let path = place(dir.path(), all[15].0.position()).0;
        assert!(path != place(dir.path(), all[0].0.position()).0);
        fs::remove_file(&path).expect("removes");
        let error = found_after::<R>(dir.path(), Some(all[29].0)).await.expect_err("refused");
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    });
}

fn a_torn_end_behind_a_mark_is_dropped_and_damage_refused<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        let all = filled(&running, 30).await;
        running.stop().await.expect("ends well");
        let after = Some(all[20].0);
        let (path, offset) = place(dir.path(), all[25].1[0].0);
        flip(&path, offset + 500);
        let error = found_after::<R>(dir.path(), after).await.expect_err("refused");
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        flip(&path, offset + 500);
        let (path, offset) = place(dir.path(), all[29].1[0].0);
        flip(&path, offset + 500);
        let rest = found_after::<R>(dir.path(), after).await.expect("opens");
        assert_eq!(rest, records(&all[21..29]));
        // It is gone for good, and the place is used again.
        let error = found_after::<R>(dir.path(), Some(all[29].0)).await.expect_err("no such frame");
        assert!(matches!(error, OpenError::NoMark { .. }), "{error}");
        let running = Running::<R>::open(small(dir.path())).await;
        running.commit(&[record(77, 3_000), record(78, 2_000)]).await;
        running.stop().await.expect("ends well");
        let error = found_after::<R>(dir.path(), Some(all[29].0)).await.expect_err("another frame");
        assert!(matches!(error, OpenError::NoMark { .. }), "{error}");
    });
}

fn a_mark_that_is_not_there_is_told<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let (dir, other) = (TempDir::new().expect("a directory"), TempDir::new().expect("another"));
        let mut marks = Vec::new();
        for dir in [dir.path(), other.path()] {
            let running = Running::<R>::open(small(dir)).await;
            marks.push(filled(&running, 30).await);
            running.stop().await.expect("ends well");
        }
        let (all, others) = (&marks[0], &marks[1]);
        let before = found::<R>(dir.path()).await.expect("opens");
        assert_eq!(before, records(others), "they differ by their salts alone");
        for (mark, _) in others {
            let error = found_after::<R>(dir.path(), Some(*mark)).await.expect_err("not its own");
            assert!(matches!(error, OpenError::NoMark { .. }), "{error}");
        }
        // after a cut
        let (path, offset) = place(dir.path(), all[17].1[0].0);
        flip(&path, offset + 9);
        repair::<R>(dir.path()).await.expect("repairs");
        for (at, (mark, _)) in all.iter().enumerate() {
            match found_after::<R>(dir.path(), Some(*mark)).await {
                Ok(rest) => assert_eq!(rest, records(&all[at + 1..17])),
                Err(error) => {
                    assert!(at >= 17 && matches!(error, OpenError::NoMark { .. }), "{error}");
                }
            }
        }
        // of a journal that is empty, or has another size of segments
        let empty = TempDir::new().expect("a directory");
        let error = found_after::<R>(empty.path(), Some(all[3].0)).await.expect_err("empty");
        assert!(matches!(error, OpenError::NoMark { .. }), "{error}");
        let larger = journal::Options { segment_bytes: 2 * SEGMENT_BYTES, ..small(empty.path()) };
        let running = Running::<R>::open(larger).await;
        filled(&running, 20).await;
        running.stop().await.expect("ends well");
        let error = found_after::<R>(empty.path(), Some(all[3].0)).await.expect_err("another");
        assert!(matches!(error, OpenError::NoMark { .. }), "{error}");
    });
}

fn a_segment_that_was_released_ends_a_sweep<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let running = Running::<R>::open(small(dir.path())).await;
        let all = filled(&running, 40).await;
        let journal = &running.journal;
        let mut sweep = journal.sweep::<R>(None);
        sweep.next(|_, _| Ok(())).await.expect("reads");
        let last = journal.segment_of(all[39].0.position());
        journal.release_before(journal.segment_start(last));
        running.until(|journal| journal.segment_of(journal.usage().oldest) == last).await;
        while let Ok(swept) = sweep.next(|_, _| Ok(())).await {
            assert!(swept.is_some(), "it never comes to its end");
        }
        let error = swept::<R>(journal, Some(all[0].0)).await.expect_err("gone");
        assert!(matches!(error, OpenError::NoMark { .. } | OpenError::Io { .. }), "{error}");
        assert!(!swept::<R>(journal, None).await.expect("reads").is_empty());
        running.stop().await.expect("ends well");
    });
}
