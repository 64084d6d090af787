//! Losing power, and being killed.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use journal::{Class, State};
use rt_abstract::faults::{Disk, Faulty, Keep, Op};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::tools::{Running, found, place, record, small};

in_each_column!(
    a_frame_torn_at_any_byte_is_dropped,
    what_is_durable_survives_a_loss_of_power,
    a_kill_loses_nothing_that_was_written,
    what_a_kill_left_is_synced_before_it_counts,
    what_a_sync_failed_for_is_written_again,
    a_torn_frame_never_comes_back,
);

/// Cut behind any byte, and before any byte: the frame is there when all of it is, or not at all.
fn a_frame_torn_at_any_byte_is_dropped<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let running = Running::<R>::open(small(dir)).await;
        let mut all = running.commit(&[record(1, 100)]).await;
        let before = all.len();
        all.extend(running.commit(&[record(2, 300), record(3, 0), record(4, 200)]).await);
        running.stop().await.expect("ends well");
        let _disk = Disk::new(dir); // thousands of syncs need not reach the real one
        let (path, offset) = place(dir, all[before].0);
        let begin = offset - 48;
        let file = std::fs::File::options().read(true).write(true).open(path).expect("opens");
        let mut whole = vec![0; 1024];
        file.read_exact_at(&mut whole, begin).expect("reads");
        let length = 48 + 3 * 8 + 500;
        for cut in 0..=whole.len() {
            for (kept, complete) in [(0..cut, cut >= length), (cut..whole.len(), cut == 0)] {
                let mut torn = vec![0; whole.len()];
                torn[kept.clone()].copy_from_slice(&whole[kept]);
                // also over what an earlier use has left there
                if cut % 2 == 1 {
                    torn[cut / 2..cut].iter_mut().for_each(|byte| *byte ^= 0x55);
                }
                let complete = complete && torn[..length] == whole[..length];
                file.write_all_at(&torn, begin).expect("writes");
                let found = found::<Faulty<R>>(dir).await.expect("opens");
                assert_eq!(found, all[..if complete { all.len() } else { before }], "at {cut}");
            }
        }
    });
}

fn what_is_durable_survives_a_loss_of_power<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let disk = Disk::new(dir);
        let mut all = Vec::new();
        for round in 0..12 {
            let running = Running::<Faulty<R>>::open(small(dir)).await;
            assert_eq!(running.found, all, "round {round}");
            for index in 0..8 {
                all.extend(running.commit(&[record(index, 5_000), record(round, 7)]).await);
            }
            disk.hold_syncs(".log");
            running.append(&[record(100 + round, 3_000)], Class::New).await;
            disk.sync_waits().await;
            running.append(&[record(200 + round, 3_000)], Class::New).await;
            assert!(disk.unsynced_bytes() >= 3_000);
            disk.cut_power(Keep::Bytes(200 * round as u64)).await;
            running.end().await.expect_err("its disk was gone");
        }
    });
}

fn a_kill_loses_nothing_that_was_written<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let disk = Disk::new(dir);
        let running = Running::<Faulty<R>>::open(small(dir)).await;
        let mut all = running.commit(&[record(1, 3_000)]).await;
        disk.hold_syncs(".log");
        all.extend(running.append(&[record(2, 3_000)], Class::New).await);
        disk.sync_waits().await;
        assert!(running.journal.written() > running.journal.durable());
        running.append(&[record(3, 3_000)], Class::New).await; // not written yet
        disk.cut_power(Keep::All).await;
        running.end().await.expect_err("its disk was gone");
        assert_eq!(found::<R>(dir).await.expect("opens"), all);
    });
}

fn what_a_kill_left_is_synced_before_it_counts<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let disk = Disk::new(dir);
        let running = Running::<Faulty<R>>::open(small(dir)).await;
        let all = running.commit(&[record(1, 300)]).await;
        running.stop().await.expect("ends well");
        let before = disk.syncs("log");
        let running = Running::<Faulty<R>>::open(small(dir)).await;
        assert_eq!(running.found, all);
        assert_eq!(disk.syncs("log"), before + 1, "what was read may be in the page cache only");
        running.stop().await.expect("ends well");
    });
}

/// After a sync that failed the pages are clean, and still there to be read.
fn what_a_sync_failed_for_is_written_again<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        for bytes in [300, 20_000] {
            let dir = TempDir::new().expect("a directory");
            let dir = dir.path();
            let disk = Disk::new(dir);
            let running = Running::<Faulty<R>>::open(small(dir)).await;
            let mut all = running.commit(&[record(1, 3_000)]).await;
            disk.fail(Op::Sync, ".log", 0, ErrorKind::Other);
            all.extend(running.append(&[record(2, bytes), record(3, 7)], Class::New).await);
            running.until(|journal| matches!(journal.state(), State::Failed(_))).await;
            running.end().await.expect_err("the sync failed");
            let running = Running::<Faulty<R>>::open(small(dir)).await;
            assert_eq!(running.found, all, "it can be read, so it counts");
            disk.cut_power(Keep::Nothing).await;
            running.stop().await.expect("ends well");
            assert_eq!(found::<R>(dir).await.expect("opens"), all);
        }
    });
}

/// A frame that lost its middle must not be completed by the one that is written over it.
fn a_torn_frame_never_comes_back<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let disk = Disk::new(dir);
        let first = record(1, 2_000);
        let mut all = Vec::new();
        for (round, kept) in [[true, false, true, true, true], [false, true, true, true, true]]
            .into_iter()
            .enumerate()
        {
            let running = Running::<Faulty<R>>::open(small(dir)).await;
            assert_eq!(running.found, all, "round {round}");
            disk.hold_syncs(".log");
            running.append(std::slice::from_ref(&first), Class::New).await;
            disk.sync_waits().await;
            // its five sectors that are not zero, in order; whatever else is unsynced goes
            let mut kept = kept.into_iter();
            let mut keep = || kept.next().unwrap_or(false);
            disk.cut_power(Keep::Sectors(&mut keep)).await;
            running.end().await.expect_err("its disk was gone");
        }
        let running = Running::<Faulty<R>>::open(small(dir)).await;
        assert_eq!(running.found, all);
        all.extend(running.commit(&[first]).await);
        running.stop().await.expect("ends well");
        assert_eq!(found::<R>(dir).await.expect("opens"), all);
    });
}
