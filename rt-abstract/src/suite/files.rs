//! Files: what was written is there, in the right place, under the right name.

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::path::Path;
use std::task::Poll;

use bytes::Bytes;

use super::tools::{TempDir, check, pattern, run_one};
use crate::buf::{IoBuf, Piece};
use crate::fs::{File, OpenOptions};
use crate::runtime::{RunOptions, Runtime};

const CREATE: OpenOptions =
    OpenOptions { write: true, create: true, create_new: false, direct: false };
const CREATE_NEW: OpenOptions =
    OpenOptions { write: true, create: true, create_new: true, direct: false };
const READ: OpenOptions =
    OpenOptions { write: false, create: false, create_new: false, direct: false };

/// Writes `$len` bytes of the test stream at their place. A macro, because a function would hold
/// a reference to the file across its awaits, and a `File` need not be `Sync`.
macro_rules! write_part {
    ($file:expr, $from:expr, $len:expr) => {
        let (mut at, to): (usize, usize) = ($from, $from + $len);
        while at < to {
            let (result, buf) = $file.write_at(pattern(at, to - at), at as u64).await;
            let count = result.expect("write");
            assert!(count > 0 && count <= buf.len());
            at += count;
        }
    };
}

/// Reads and checks bytes `$from..$to` of the test stream.
macro_rules! read_part {
    ($file:expr, $from:expr, $to:expr) => {
        let (mut at, to): (usize, usize) = ($from, $to);
        while at < to {
            let buf = Vec::with_capacity((to - at).min(10_000));
            let (result, buf) = $file.read_at(buf, at as u64).await;
            let count = result.expect("read");
            assert!(count > 0, "the file ends at {at} instead of {to}");
            assert_eq!(count, buf.len());
            check(at, &buf);
            at += count;
        }
    };
}

/// Create, append, sync, open again, read back.
pub fn written_bytes_come_back<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        let path = dir.join("log");
        let file = R::open(&path, CREATE).await.expect("create");
        for at in (0..100_000).step_by(1_000) {
            write_part!(file, at, 1_000);
        }
        file.sync_data().await.expect("sync");
        assert_eq!(file.size().await.expect("size"), 100_000);
        drop(file);

        // Opening for writing leaves what is there.
        let file = R::open(&path, CREATE).await.expect("open again");
        write_part!(file, 100_000, 500);
        file.sync_data().await.expect("sync");
        drop(file);

        let file = R::open(&path, READ).await.expect("open");
        assert_eq!(file.size().await.expect("size"), 100_500);
        read_part!(file, 0, 100_500);
        let mut buf = Vec::with_capacity(64);
        buf.extend_from_slice(&pattern(0, 8));
        let (result, buf) = file.read_at(buf, 8).await;
        assert_eq!(result.expect("read"), buf.len() - 8, "a read appends");
        check(0, &buf);
        let (result, buf) = file.read_at(Vec::with_capacity(10), 100_500).await;
        assert_eq!((result.expect("end of file"), buf.len()), (0, 0));
        let (result, buf) = file.write_at(vec![1, 2, 3], 0).await;
        result.expect_err("opened for reading");
        assert_eq!(buf, [1, 2, 3]);
        let (result, _) = file.read_at(Vec::new(), 0).await;
        assert_eq!(result.expect_err("no room").kind(), ErrorKind::InvalidInput);
    });
}

/// One gathering write of more pieces than the kernel takes at once.
pub fn many_pieces_reach_the_file<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        let file = R::open(&dir.join("pieces"), CREATE).await.expect("create");
        let sizes: Vec<usize> = (0..3_000).map(|index| index * 11 % 90).collect();
        let total: usize = sizes.iter().sum();
        let (mut at, mut pieces) = (0, Vec::new());
        for (index, &size) in sizes.iter().enumerate() {
            let bytes = pattern(at, size);
            pieces.push(match index % 2 {
                0 => Piece::Owned(bytes),
                _ => Piece::Shared(Bytes::from(bytes)),
            });
            at += size;
        }
        let (result, pieces) = file.writev_all_at(pieces, 0).await;
        result.expect("write");
        assert_eq!(pieces.iter().map(IoBuf::len).collect::<Vec<_>>(), sizes);
        let slices: Vec<_> =
            (0..1_500).map(|i| pattern(total + i * 4 - 1, 5).slice_from(1)).collect();
        file.writev_all_at(slices, total as u64).await.0.expect("write");
        file.writev_all_at(Vec::<Vec<u8>>::new(), 7).await.0.expect("no pieces");
        file.writev_all_at(vec![Vec::new(), Vec::new()], 7).await.0.expect("empty pieces");
        file.sync_data().await.expect("sync");
        assert_eq!(file.size().await.expect("size"), total as u64 + 6_000);
        read_part!(file, 0, total + 6_000);
    });
}

/// Space is reserved, cut and extended.
pub fn sizes_change<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        let file = R::open(&dir.join("segment"), CREATE_NEW).await.expect("create");
        assert_eq!(file.size().await.expect("size"), 0);
        file.allocate(100_000).await.expect("allocate");
        assert_eq!(file.size().await.expect("size"), 100_000);
        write_part!(file, 0, 5_000);
        file.allocate(50_000).await.expect("allocate less");
        assert_eq!(file.size().await.expect("size"), 100_000, "allocating never cuts");
        file.truncate(3_000).await.expect("cut");
        assert_eq!(file.size().await.expect("size"), 3_000);
        file.truncate(4_000).await.expect("extend");
        read_part!(file, 0, 3_000);
        let (result, buf) = file.read_at(Vec::with_capacity(2_000), 3_000).await;
        assert_eq!(result.expect("read"), 1_000);
        assert!(buf.iter().all(|&byte| byte == 0), "what was cut does not come back");
        file.sync_data().await.expect("sync");
    });
}

/// Rename replaces, remove removes, and the directory can be synced.
pub fn names_change<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        let (old, new) = (dir.join("old"), dir.join("new"));
        let file = R::open(&old, CREATE_NEW).await.expect("create");
        write_part!(file, 0, 100);
        file.sync_data().await.expect("sync");
        drop(R::open(&new, CREATE).await.expect("create the target"));
        R::rename(&old, &new).await.expect("rename");
        R::sync_dir(dir.path()).await.expect("sync the directory");
        assert!(is_missing::<R>(&old).await);
        let renamed = R::open(&new, READ).await.expect("open");
        read_part!(renamed, 0, 100);
        R::remove_file(&new).await.expect("remove");
        R::sync_dir(dir.path()).await.expect("sync the directory");
        assert!(is_missing::<R>(&new).await);
        read_part!(file, 0, 100); // an open file outlives its name
        let error = R::remove_file(&new).await.expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = R::rename(&old, &new).await.expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = R::sync_dir(&dir.join("missing")).await.expect_err("no such directory");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

/// Directories are made and listed.
pub fn directories_are_listed<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        let inner = dir.join("inner");
        for _ in 0..2 {
            R::create_dir(&inner).await.expect("create, and once more");
        }
        R::sync_dir(dir.path()).await.expect("sync the parent");
        assert!(R::read_dir(&inner).await.expect("list").is_empty());
        for name in ["b", "a"] {
            drop(R::open(&inner.join(name), CREATE_NEW).await.expect("create"));
        }
        let mut names = R::read_dir(&inner).await.expect("list");
        names.sort();
        assert_eq!(names, ["a", "b"]);
        let error = R::create_dir(&inner.join("a")).await.expect_err("a file");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        let error = R::create_dir(&dir.join("missing/inner")).await.expect_err("no parent");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = R::read_dir(&dir.join("missing")).await.expect_err("missing");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

/// Missing, present although it must not be, not allowed.
pub fn open_errors_say_what_is_wrong<R: Runtime>(options: &RunOptions) {
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        let path = dir.join("file");
        let write = OpenOptions { write: true, ..READ };
        for options in [READ, write] {
            let error = R::open(&path, options).await.err().expect("missing");
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        drop(R::open(&path, CREATE_NEW).await.expect("create"));
        let error = R::open(&path, CREATE_NEW).await.err().expect("exists");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        drop(R::open(&path, CREATE).await.expect("exists, and that is fine"));
        let error = R::open(dir.path(), write).await.err().expect("a directory");
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
    });
}

/// Several operations on one file may be pending at once while other tasks of the core go on.
pub fn files_pin_no_core<R: Runtime>(options: &RunOptions) {
    const PART: usize = 64 * 1024;
    run_one::<R, _, _>(options, || async {
        let dir = TempDir::new::<R>().await;
        let file = R::open(&dir.join("shared"), CREATE).await.expect("create");
        let bystander = R::spawn(async { R::yield_now().await });
        let mut writes: Vec<_> = (0..32)
            .map(|part| {
                let at = part * PART;
                Box::pin(file.write_at(pattern(at, PART), at as u64))
            })
            .collect();
        let mut taken = vec![None; writes.len()];
        poll_fn(|cx| {
            for (write, taken) in writes.iter_mut().zip(&mut taken) {
                if taken.is_none()
                    && let Poll::Ready((result, buf)) = write.as_mut().poll(cx)
                {
                    assert_eq!(buf.len(), PART);
                    *taken = Some(result.expect("write"));
                }
            }
            if taken.contains(&None) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        drop(writes);
        for (part, taken) in taken.into_iter().enumerate() {
            let taken = taken.expect("all writes are done");
            write_part!(file, part * PART + taken, PART - taken);
        }
        file.sync_data().await.expect("sync");
        bystander.await.expect("bystander");
        read_part!(file, 0, 32 * PART);
    });
}

async fn is_missing<R: Runtime>(path: &Path) -> bool {
    let opened = R::open(path, READ).await;
    opened.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}
