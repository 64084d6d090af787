//! Files of a disk that can fail.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Busy, Disk, Facts};
use super::state::Op;
use crate::buf::{IoBuf, IoBufMut};
use crate::fs::{File, OpenOptions};
use crate::io::BufResult;
use crate::runtime::Runtime;

/// An open file of the runtime `R`.
#[derive(Debug)]
pub struct FaultyFile<R: Runtime> {
    inner: R::File,
    watched: Option<Watched>,
}

#[derive(Debug)]
struct Watched {
    facts: Arc<Facts>,
    id: u64,
    epoch: u64,
}

impl<R: Runtime> FaultyFile<R> {
    pub(super) async fn open(path: &Path, options: OpenOptions) -> io::Result<Self> {
        let busy = Disk::begin(path, Op::Open)?;
        let existed = path.exists();
        let inner = R::open(path, options).await?;
        let watched = busy.map(|busy| {
            let facts = busy.facts.clone();
            let (id, epoch) = facts.with(|state| (state.file(path, !existed), state.epoch));
            Watched { facts, id, epoch }
        });
        Ok(Self { inner, watched })
    }

    fn begin(&self, op: Op) -> io::Result<Option<(Busy, &Watched)>> {
        let Some(watched) = &self.watched else { return Ok(None) };
        Ok(Some((Facts::begin(&watched.facts, Some(watched.epoch), op, &watched.path())?, watched)))
    }
}

impl Watched {
    fn path(&self) -> PathBuf {
        self.facts.with(|state| state.path(self.id))
    }
}

impl<R: Runtime> File for FaultyFile<R> {
    async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        match self.begin(Op::Read) {
            Ok(_busy) => self.inner.read_at(buf, offset).await,
            Err(error) => (Err(error), buf),
        }
    }

    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let (_busy, watched) = match self.begin(Op::Write) {
            Ok(Some(begun)) => begun,
            Ok(None) => return self.inner.write_at(buf, offset).await,
            Err(error) => return (Err(error), buf),
        };
        let max = watched.facts.with(|state| state.max_write_bytes).unwrap_or(usize::MAX);
        let part = buf.as_slice()[..buf.len().min(max)].to_vec();
        let before = watched.facts.with(|state| state.before_write(watched.id, offset, &part));
        if let Err(error) = before {
            return (Err(error), buf);
        }
        let result = self.inner.write_at(part, offset).await.0;
        let written = *result.as_ref().unwrap_or(&0);
        watched.facts.with(|state| state.after_write(watched.id, written));
        (result, buf)
    }

    async fn writev_all_at<B: IoBuf>(&self, bufs: Vec<B>, offset: u64) -> BufResult<(), Vec<B>> {
        let mut all: Vec<u8> = bufs.iter().flat_map(|buf| buf.as_slice()).copied().collect();
        let mut at = offset;
        while !all.is_empty() {
            let (result, back) = self.write_at(all, at).await;
            all = back;
            match result {
                Ok(count) => {
                    all.drain(..count);
                    at += count as u64;
                }
                Err(error) => return (Err(error), bufs),
            }
        }
        (Ok(()), bufs)
    }

    async fn sync_data(&self) -> io::Result<()> {
        let Some((_busy, watched)) = self.begin(Op::Sync)? else {
            return self.inner.sync_data().await;
        };
        let (facts, id) = (&watched.facts, watched.id);
        let changes = facts.with(|state| state.changes(id));
        let mut counted = false;
        let alive = facts
            .until(|state| {
                let name = state.path(id);
                let held = state.held.as_ref();
                let held = held.is_some_and(|end| name.to_string_lossy().ends_with(end.as_str()));
                if held && !state.cutting && !counted {
                    counted = true;
                    state.waiting_syncs += 1;
                    state.wakers.drain(..).for_each(std::task::Waker::wake);
                }
                (!held || state.cutting).then_some(!state.cutting)
            })
            .await;
        facts.with(|state| {
            if counted {
                state.waiting_syncs -= 1;
            }
            if !alive {
                return Err(io::Error::other("the power was cut"));
            }
            state.synced(id, changes);
            Ok(())
        })
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        let _busy = self.begin(Op::Allocate)?;
        self.inner.allocate(len).await
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        let _busy = self.begin(Op::Write)?;
        self.inner.truncate(len).await
    }

    async fn size(&self) -> io::Result<u64> {
        let _busy = self.begin(Op::Read)?;
        self.inner.size().await
    }
}
