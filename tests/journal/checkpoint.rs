//! The file beside the segments.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use journal::{
    CheckpointError, CheckpointReader, CheckpointWriter, Mark, OpenError, remove_checkpoint,
};
use rt_abstract::faults::{Disk, Faulty, Keep, Op};
use rt_abstract::{RunOptions, Runtime};
use tempfile::TempDir;

use crate::column::{in_each_column, run};
use crate::tools::{Running, found, found_after, in_fallback_too, record, small, swept};

in_each_column!(
    a_checkpoint_comes_back,
    one_that_is_torn_or_damaged_anywhere_is_none,
    newer_ones_are_named,
    an_error_leaves_the_one_before,
    a_loss_of_power_leaves_one_or_the_other,
    it_is_of_one_journal,
);
in_fallback_too!(a_checkpoint_comes_back);

const CONTENT: u32 = 3;

/// A journal with some frames, and the mark of the last one.
async fn mark<R: Runtime>(dir: &Path) -> Mark {
    let running = Running::<R>::open(small(dir)).await;
    running.commit(&[record(1, 100), record(2, 3)]).await;
    let all = swept::<R>(&running.journal, None).await.expect("reads");
    running.stop().await.expect("ends well");
    all[all.len() - 1].0
}

async fn write<R: Runtime>(dir: &Path, mark: &Mark, blocks: &[Vec<u8>]) -> std::io::Result<u64> {
    let mut writer =
        CheckpointWriter::<R>::create(dir, CONTENT, mark).await.map_err(|e| e.source)?;
    for block in blocks {
        if let Err(error) = writer.write(block).await {
            writer.abandon().await;
            return Err(error.source);
        }
    }
    writer.finish().await.map_err(|e| e.source)
}

async fn read<R: Runtime>(dir: &Path) -> Result<Option<(Mark, Vec<Vec<u8>>)>, CheckpointError> {
    let Some(mut reader) = CheckpointReader::<R>::open(dir, CONTENT).await? else {
        return Ok(None);
    };
    let mut blocks = Vec::new();
    while let Some(block) = reader.next().await? {
        blocks.push(block);
    }
    Ok(Some((reader.mark(), blocks)))
}

fn a_checkpoint_comes_back<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let mark = mark::<R>(dir).await;
        assert!(read::<R>(dir).await.expect("there is none").is_none());
        remove_checkpoint::<R>(dir).await.expect("nothing is to be done");
        fs::write(dir.join("checkpoint.new"), b"what a crash left").expect("writes");
        for lens in [vec![], vec![1], vec![700, 3, 6 << 20], vec![16 << 20]] {
            let blocks: Vec<_> = lens.iter().map(|&len| record(len, len)).collect();
            let bytes = write::<R>(dir, &mark, &blocks).await.expect("writes");
            assert_eq!(bytes, fs::metadata(dir.join("checkpoint")).expect("is there").len());
            let reader = CheckpointReader::<R>::open(dir, CONTENT).await.expect("opens");
            assert_eq!(reader.expect("is there").size_bytes(), bytes);
            let (found, read) = read::<R>(dir).await.expect("reads").expect("is there");
            assert_eq!(found, mark);
            assert!(read == blocks);
            assert!(!dir.join("checkpoint.new").exists());
        }
        let error = write::<R>(dir, &mark, &[vec![0; (16 << 20) + 1]]).await.expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        // the journal does not mind it
        assert_eq!(found::<R>(dir).await.expect("opens").len(), 2);
        assert!(read::<R>(dir).await.expect("reads").is_some());
        remove_checkpoint::<R>(dir).await.expect("removes");
        assert!(read::<R>(dir).await.expect("there is none").is_none());
    });
}

fn one_that_is_torn_or_damaged_anywhere_is_none<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let mark = mark::<R>(dir).await;
        write::<R>(dir, &mark, &[record(1, 60), record(2, 1), record(3, 90)])
            .await
            .expect("writes");
        let path = dir.join("checkpoint");
        let whole = fs::read(&path).expect("reads");
        let expect_none = async |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).expect("writes");
            let error = read::<R>(dir).await.expect_err(what);
            let newer = matches!(error, CheckpointError::Newer { .. });
            assert!(newer || matches!(error, CheckpointError::Damaged { .. }), "{what}: {error}");
        };
        for len in 0..whole.len() {
            expect_none(&whole[..len], &format!("cut at {len}")).await;
            // what was reserved and not written
            let mut zeros = whole.clone();
            zeros[len..].fill(0);
            if zeros != whole {
                expect_none(&zeros, &format!("zeros from {len} on")).await;
            }
        }
        for bit in 0..whole.len() * 8 {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            expect_none(&bad, &format!("bit {bit}")).await;
        }
        expect_none(&[&whole[..], b"x"].concat(), "something behind").await;
        expect_none(&[&whole[..], &whole[..]].concat(), "twice").await;
        // a block left out
        let head = 8 + 44;
        expect_none(&[&whole[..head], &whole[head + 68..]].concat(), "a block is missing").await;
        fs::write(&path, &whole).expect("writes");
        assert_eq!(read::<R>(dir).await.expect("reads").expect("is there").1.len(), 3);
    });
}

fn newer_ones_are_named<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let mark = mark::<R>(dir).await;
        let writer = CheckpointWriter::<R>::create(dir, CONTENT + 1, &mark).await.expect("begins");
        writer.finish().await.expect("writes");
        let error = read::<R>(dir).await.expect_err("newer").to_string();
        assert!(error.contains("format 4, this program knows 3"), "{error}");
        let writer = CheckpointWriter::<R>::create(dir, CONTENT - 1, &mark).await.expect("begins");
        writer.finish().await.expect("writes");
        assert!(matches!(read::<R>(dir).await, Err(CheckpointError::Damaged { .. })), "older");
    });
}

fn an_error_leaves_the_one_before<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        let disk = Disk::new(dir);
        let mark = mark::<Faulty<R>>(dir).await;
        let blocks = [record(1, 5 << 20), record(2, 7)];
        write::<Faulty<R>>(dir, &mark, &blocks).await.expect("writes");
        for (op, after) in [
            (Op::Write, 0),
            (Op::Write, 1),
            (Op::Write, 3),
            (Op::Sync, 0),
            (Op::Sync, 1),
            (Op::Rename, 0),
        ] {
            disk.fail(op, "checkpoint.new", after, ErrorKind::StorageFull);
            let other = [record(8, 5 << 20), record(9, 9)];
            write::<Faulty<R>>(dir, &mark, &other).await.expect_err("fails");
            let (_, read) = read::<Faulty<R>>(dir).await.expect("reads").expect("is there");
            assert!(read == blocks, "after {op:?} {after}");
        }
    });
}

fn a_loss_of_power_leaves_one_or_the_other<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        for (keep, finished) in [(true, false), (false, false), (true, true), (false, true)] {
            let dir = TempDir::new().expect("a directory");
            let dir = dir.path();
            let disk = Disk::new(dir);
            let mark = mark::<Faulty<R>>(dir).await;
            let old = [record(1, 5_000)];
            write::<Faulty<R>>(dir, &mark, &old).await.expect("writes");
            let new = [record(2, 9_000)];
            if finished {
                write::<Faulty<R>>(dir, &mark, &new).await.expect("writes");
            } else {
                let writer = CheckpointWriter::<Faulty<R>>::create(dir, CONTENT, &mark).await;
                let mut writer = writer.expect("begins");
                writer.write(&new[0]).await.expect("writes");
            }
            disk.cut_power(if keep { Keep::All } else { Keep::Nothing }).await;
            let (_, read) = read::<Faulty<R>>(dir).await.expect("reads").expect("is there");
            assert!(read == if finished { new } else { old });
        }
    });
}

fn it_is_of_one_journal<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let (dir, other) = (TempDir::new().expect("a directory"), TempDir::new().expect("another"));
        let own = mark::<R>(dir.path()).await;
        mark::<R>(other.path()).await;
        write::<R>(dir.path(), &own, &[record(1, 9)]).await.expect("writes");
        fs::copy(dir.path().join("checkpoint"), other.path().join("checkpoint")).expect("copies");
        let (copied, _) = read::<R>(other.path()).await.expect("reads").expect("is there");
        let error = found_after::<R>(other.path(), Some(copied)).await.expect_err("not its own");
        assert!(matches!(error, OpenError::NoMark { .. }), "{error}");
        assert_eq!(found_after::<R>(dir.path(), Some(copied)).await.expect("opens"), []);
    });
}
