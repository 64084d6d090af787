//! Files that are not as they were written.

use std::fs;
use std::path::{Path, PathBuf};

use journal::{OpenError, Verdict, inspect, repair};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::log::flip;
use crate::tools::{Record, Running, SEGMENT_BYTES, found, place, record, small};

in_each_column!(
    damage_in_the_middle_is_refused_and_repaired,
    damage_of_the_last_frame_is_dropped,
    a_lost_tail_is_dropped,
    a_missing_segment_is_damage,
    a_damaged_header_is_damage,
    what_is_not_a_journal_is_left_alone,
    a_journal_that_was_cut_to_nothing_goes_on,
    a_sound_journal_is_only_looked_at,
);

/// A journal of three segments, closed. One record per frame.
async fn three_segments<R: Runtime>(dir: &Path) -> Vec<Record> {
    let running = Running::<R>::open(small(dir)).await;
    let mut all = Vec::new();
    while all.last().is_none_or(|(at, _): &Record| at.get() / SEGMENT_BYTES < 3) {
        all.extend(running.commit(&[record(all.len(), 5_000)]).await);
    }
    for len in [5_000, 700] {
        all.extend(running.commit(&[record(all.len(), len)]).await);
    }
    running.stop().await.expect("ends well");
    all
}

fn damage_in_the_middle_is_refused_and_repaired<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let mut at_end_of_segment = false;
        for hit in [0, 1, 5, 6, 7, 13, 14, 15] {
            let dir = TempDir::new().expect("a directory");
            let dir = dir.path();
            let mut all = three_segments::<R>(dir).await;
            let (path, offset) = place(dir, all[hit].0);
            at_end_of_segment |= place(dir, all[hit + 1].0).0 != path;
            flip(&path, offset + 1_000);
            let before = files(dir);
            let error = found::<R>(dir).await.expect_err("refused");
            let OpenError::Damaged { path: named, offset: at, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((named, *at), (&path, offset - 48), "the frame's begin");
            assert!(error.to_string().contains("gearbox repair"), "{error}");
            let report = inspect::<R>(dir, |_, _| {}).await.expect("reads");
            assert_eq!(report.records, hit as u64);
            assert_eq!(report.range.map(|range| range.0), (hit > 0).then(|| all[0].0));
            let Verdict::Damaged { path: named, offset: at, lost, .. } = &report.verdict else {
                panic!("{report:?}")
            };
            assert_eq!((named, *at), (&path, offset - 48));
            assert_eq!(lost.records, (all.len() - hit - 1) as u64, "all but the damaged one");
            assert!(lost.bytes > (lost.records - 1) * 5_000, "{lost:?}"); // the last one is short
            assert_eq!(lost.frames, lost.records);
            assert_eq!(files(dir), before, "neither changes anything");

            let repaired = repair::<R>(dir).await.expect("repairs");
            assert_eq!(repaired.report, report);
            assert!(repaired.set_aside.iter().all(|path| path.exists()));
            let aside: u64 = repaired.set_aside.iter().map(|path| bytes_of(path)).sum();
            assert!(aside >= (all.len() - hit) as u64 * 5_000 - 5_000, "nothing is thrown away");
            all.truncate(hit);
            assert_eq!(found::<R>(dir).await.expect("opens"), all);
            let running = Running::<R>::open(small(dir)).await;
            all.extend(running.commit(&[record(1, 100)]).await);
            running.stop().await.expect("ends well");
            assert_eq!(found::<R>(dir).await.expect("opens"), all);
            assert!(all.is_sorted_by(|one, two| one.0 < two.0));
        }
        assert!(at_end_of_segment);
    });
}

fn damage_of_the_last_frame_is_dropped<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let mut all = three_segments::<R>(dir).await;
        let (last, _) = all.pop().expect("is there");
        let (path, offset) = place(dir, last);
        flip(&path, offset + 100);
        let report = inspect::<R>(dir, |_, _| {}).await.expect("reads");
        assert_eq!(report.verdict, Verdict::Torn { path, offset: offset - 48 });
        assert!(repair::<R>(dir).await.expect("has nothing to do").set_aside.is_empty());
        assert_eq!(found::<R>(dir).await.expect("opens"), all);
        assert_eq!(inspect::<R>(dir, |_, _| {}).await.expect("reads").verdict, Verdict::Clean);
        let running = Running::<R>::open(small(dir)).await;
        let placed = running.commit(&[record(1, 100)]).await;
        assert_eq!(placed[0].0, last, "its place is used again");
        all.extend(placed);
        running.stop().await.expect("ends well");
        assert_eq!(found::<R>(dir).await.expect("opens"), all);
    });
}

fn a_lost_tail_is_dropped<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let mut all = three_segments::<R>(dir).await;
        let (path, offset) = place(dir, all[all.len() - 1].0);
        for (len, lost) in [(offset + 500, 1), (offset - 48, 0), (offset - 4_000, 1)] {
            fs::File::options().write(true).open(&path).expect("opens").set_len(len).expect("cuts");
            all.truncate(all.len() - lost);
            assert_eq!(found::<R>(dir).await.expect("opens"), all);
        }
        let running = Running::<R>::open(small(dir)).await;
        assert_eq!(bytes_of(&path), SEGMENT_BYTES, "it has its size again");
        all.extend(running.commit(&[record(1, 9_000)]).await);
        running.stop().await.expect("ends well");
        assert_eq!(found::<R>(dir).await.expect("opens"), all);
        // but not in a segment that others follow
        let path = place(dir, all[0].0).0;
        let file = fs::File::options().write(true).open(&path).expect("opens");
        file.set_len(20_000).expect("cuts");
        let error = found::<R>(dir).await.expect_err("refused").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    });
}

fn a_missing_segment_is_damage<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let mut all = three_segments::<R>(dir).await;
        let path = dir.join("0000000000000002.log");
        fs::remove_file(&path).expect("removes");
        let error = found::<R>(dir).await.expect_err("refused").to_string();
        assert!(error.contains("0000000000000002.log"), "{error}");
        repair::<R>(dir).await.expect("repairs");
        all.retain(|(position, _)| position.get() / SEGMENT_BYTES == 1);
        assert_eq!(found::<R>(dir).await.expect("opens"), all);
    });
}

fn a_damaged_header_is_damage<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        for segment in 1..=3 {
            let dir = TempDir::new().expect("a directory");
            let dir = dir.path();
            let mut all = three_segments::<R>(dir).await;
            let path = dir.join(format!("{segment:016x}.log"));
            flip(&path, 33);
            let error = found::<R>(dir).await.expect_err("refused");
            assert!(
                matches!(&error, OpenError::Damaged { path: named, offset: 0, .. } if *named == path),
                "{error}"
            );
            repair::<R>(dir).await.expect("repairs");
            all.retain(|(position, _)| position.get() / SEGMENT_BYTES < segment);
            assert_eq!(found::<R>(dir).await.expect("opens"), all);
        }
    });
}

fn what_is_not_a_journal_is_left_alone<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        three_segments::<R>(dir).await;
        let path = dir.join("0000000000000002.log");
        let whole = fs::read(&path).expect("reads");
        let newer = [&whole[..8], &[2, 0, 0, 0], &whole[12..]].concat();
        let other = [b"something else entirely".as_slice(), &whole[23..]].concat();
        let empty = Vec::new();
        for (content, text) in [
            (newer, "has format version 2, this program knows up to 1"),
            (other, "is not a segment"),
            (empty, "is not a segment"),
        ] {
            fs::write(&path, &content).expect("writes");
            let before = files(dir);
            let error = found::<R>(dir).await.expect_err("refused").to_string();
            assert!(error.contains(text) && error.contains("0000000000000002.log"), "{error}");
            let error = repair::<R>(dir).await.expect_err("refused").to_string();
            assert!(error.contains(text), "{error}");
            assert_eq!(files(dir), before);
        }
    });
}

fn a_journal_that_was_cut_to_nothing_goes_on<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let old = three_segments::<R>(dir).await;
        flip(&dir.join("0000000000000001.log"), 20);
        let repaired = repair::<R>(dir).await.expect("repairs");
        assert!(repaired.set_aside.len() >= 3, "{repaired:?}"); // the next one may be ready
        let running = Running::<R>::open(small(dir)).await;
        assert_eq!(running.found, []);
        let placed = running.commit(&[record(1, 9)]).await;
        assert!(placed[0].0 > old[old.len() - 1].0, "positions are not used again");
        running.stop().await.expect("ends well");
        assert_eq!(found::<R>(dir).await.expect("opens"), placed);
    });
}

fn a_sound_journal_is_only_looked_at<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let all = three_segments::<R>(dir).await;
        let before = files(dir);
        let report = inspect::<R>(dir, |_, _| {}).await.expect("reads");
        assert_eq!((report.records, &report.verdict), (all.len() as u64, &Verdict::Clean));
        assert_eq!(report.range, Some((all[0].0, all[all.len() - 1].0)));
        assert_eq!(report.segments.iter().map(|of| of.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(report.segments.iter().map(|of| of.frames).sum::<u64>(), all.len() as u64);
        let repaired = repair::<R>(dir).await.expect("has nothing to do");
        assert_eq!((repaired.set_aside, repaired.report), (Vec::new(), report));
        assert_eq!(files(dir), before);
        let missing =
            inspect::<R>(&dir.join("missing"), |_, _| {}).await.expect_err("is not there");
        assert!(missing.to_string().contains("missing"), "{missing}");
    });
}

fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(dir).expect("lists").map(|entry| entry.expect("lists").path());
    let mut files: Vec<_> =
        entries.map(|path| (path.clone(), fs::read(path).expect("reads"))).collect();
    files.sort();
    files
}

fn bytes_of(path: &Path) -> u64 {
    fs::metadata(path).expect("is there").len()
}
