//! Operations under way.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rand::RngExt;
use rt_abstract::OpenOptions;
use rt_abstract::faults::Op;

use super::image::InodeId;
use super::inode::Syncing;
use crate::config::Latency;
use crate::coverage::Fault;
use crate::world::events::Event;
use crate::world::nodes::{Crash, NodeId};
use crate::world::random::chance;
use crate::world::tasks::Place;
use crate::world::{Seen, State, try_with, with};

pub(crate) type OpId = u64;

#[derive(Debug, Default)]
pub(crate) struct Ops {
    pending: BTreeMap<OpId, Pending>,
    last: OpId,
}

#[derive(Debug)]
struct Pending {
    node: NodeId,
    state: Progress,
    waker: Option<Waker>,
    /// Nobody waits for it any more.
    abandoned: bool,
}

#[derive(Debug)]
enum Progress {
    Under(Work),
    Failing(ErrorKind),
    Done(io::Result<Outcome>),
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Work {
    Open(PathBuf, OpenOptions),
    Read(InodeId, u64, usize),
    Write(InodeId, u64, Vec<u8>),
    Sync(InodeId, Option<Syncing>),
    Allocate(InodeId, u64),
    Truncate(InodeId, u64),
    Size(InodeId),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    SyncDir(PathBuf),
    CreateDir(PathBuf),
    ReadDir(PathBuf),
}

/// What came out.
#[derive(Debug)]
pub(crate) enum Outcome {
    Nothing,
    File(InodeId),
    Bytes(Vec<u8>),
    Count(u64),
    Names(Vec<OsString>),
}

/// Waits for an operation, which goes on also when this is dropped.
pub(crate) struct Doing {
    place: Place,
    path: PathBuf,
    work: Option<Work>,
    id: Option<OpId>,
}

impl Doing {
    /// `path` is what planned faults look at. Begins when it is polled first.
    pub fn new(place: Place, path: PathBuf, work: Work) -> Self {
        Self { place, path, work: Some(work), id: None }
    }
}

impl Future for Doing {
    type Output = io::Result<Outcome>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        with(|state| {
            if !state.is_alive(self.place.node, self.place.boot) {
                return Poll::Ready(Err(io::Error::other("the node has crashed")));
            }
            if let Some(work) = self.work.take() {
                self.id = Some(state.begin_disk_op(self.place.node, &self.path, work));
            }
            let Some(id) = self.id else { return Poll::Ready(Err(ErrorKind::Other.into())) };
            let ops = &mut state.disk_ops.pending;
            let Some(pending) = ops.get_mut(&id) else {
                return Poll::Ready(Err(io::Error::other("the node has crashed")));
            };
            if !matches!(pending.state, Progress::Done(_)) {
                pending.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            self.id = None;
            match ops.remove(&id).map(|pending| pending.state) {
                Some(Progress::Done(result)) => Poll::Ready(result),
                _ => Poll::Ready(Err(ErrorKind::Other.into())),
            }
        })
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        try_with(|state| {
            let Some(pending) = state.disk_ops.pending.get_mut(&id) else { return };
            pending.abandoned = true;
            if let Progress::Done(result) = &pending.state {
                let opened = if let Ok(Outcome::File(file)) = result { Some(*file) } else { None };
                let node = pending.node;
                state.disk_ops.pending.remove(&id);
                opened.into_iter().for_each(|file| state.machines.get(node).disk.close(file));
            }
        });
    }
}

impl Work {
    fn op(&self) -> Op {
        match self {
            Self::Open(..) | Self::CreateDir(_) => Op::Open,
            Self::Read(..) | Self::Size(_) | Self::ReadDir(_) => Op::Read,
            Self::Write(..) | Self::Truncate(..) => Op::Write,
            Self::Sync(..) => Op::Sync,
            Self::Allocate(..) => Op::Allocate,
            Self::Rename(..) => Op::Rename,
            Self::Remove(_) => Op::Remove,
            Self::SyncDir(_) => Op::SyncDir,
        }
    }
}

impl State {
    fn begin_disk_op(&mut self, node: NodeId, path: &std::path::Path, mut work: Work) -> OpId {
        let op = work.op();
        let latency: Latency = match op {
            Op::Write | Op::Allocate => self.config.disk.write,
            Op::Sync | Op::SyncDir => self.config.disk.sync,
            _ => self.config.disk.read,
        };
        let drawn = latency.draw(&mut self.random.disk);
        if drawn > crate::config::nanos(latency.max) {
            self.count(Fault::LatencySpike);
        }
        let disk = &mut self.machines.get(node).disk;
        let at_ns = self.now_ns + drawn + disk.slower_ns;
        let progress = match disk.fault(op, path) {
            Ok(()) => {
                if let Work::Sync(inode, syncing) = &mut work {
                    *syncing = disk.inode(*inode).map(|inode| inode.begin_sync());
                }
                Progress::Under(work)
            }
            Err(error) => {
                if let Work::Sync(inode, _) = &work
                    && let Some(inode) = disk.inode(*inode)
                {
                    inode.fail_sync();
                }
                self.count(Fault::DiskError);
                Progress::Failing(error.kind())
            }
        };
        self.disk_ops.last += 1;
        let id = self.disk_ops.last;
        let pending = Pending { node, state: progress, waker: None, abandoned: false };
        self.disk_ops.pending.insert(id, pending);
        self.events.plan(at_ns, Event::Disk(id));
        id
    }

    /// An operation's time is over.
    pub fn finish_disk_op(&mut self, id: OpId) {
        let Some(mut pending) = self.disk_ops.pending.remove(&id) else { return };
        let result = match pending.state {
            Progress::Under(work) => self.do_work(pending.node, work),
            Progress::Failing(kind) => Err(kind.into()),
            Progress::Done(result) => result,
        };
        if pending.abandoned {
            if let Ok(Outcome::File(file)) = result {
                self.machines.get(pending.node).disk.close(file);
            }
            return;
        }
        let waker = pending.waker.take();
        pending.state = Progress::Done(result);
        self.disk_ops.pending.insert(id, pending);
        waker.into_iter().for_each(Waker::wake);
    }

    fn do_work(&mut self, node: NodeId, work: Work) -> io::Result<Outcome> {
        let gone = || io::Error::from(ErrorKind::NotFound);
        match work {
            Work::Write(inode, offset, bytes) => {
                return self.write_file(node, inode, offset, bytes);
            }
            Work::Allocate(inode, len) => {
                let old = self.machines.get(node).disk.inode(inode).ok_or_else(gone)?.len();
                self.make_room(node, len.saturating_sub(old))?;
                let inode = self.machines.get(node).disk.inode(inode).ok_or_else(gone)?;
                inode.resize(len.max(old) as usize);
                return Ok(Outcome::Nothing);
            }
            _ => {}
        }
        let seen = match &work {
            Work::Sync(inode, _) => Some((Seen::Synced, *inode, Vec::new())),
            Work::Open(path, _)
            | Work::Rename(_, path)
            | Work::Remove(path)
            | Work::SyncDir(path)
            | Work::CreateDir(path) => {
                Some((Seen::Named, 0, path.as_os_str().as_encoded_bytes().to_vec()))
            }
            _ => None,
        };
        if let Some((seen, number, bytes)) = seen {
            self.saw(seen, number, &bytes);
        }
        let disk = &mut self.machines.get(node).disk;
        match work {
            Work::Open(path, options) => disk.open(&path, options).map(Outcome::File),
            Work::Read(inode, offset, room) => {
                let inode = disk.inode(inode).ok_or_else(gone)?;
                Ok(Outcome::Bytes(inode.read(offset, room).to_vec()))
            }
            Work::Sync(inode, syncing) => {
                let inode = disk.inode(inode).ok_or_else(gone)?;
                syncing.into_iter().for_each(|syncing| inode.end_sync(syncing));
                Ok(Outcome::Nothing)
            }
            Work::Truncate(inode, len) => {
                disk.inode(inode).ok_or_else(gone)?.resize(len as usize);
                Ok(Outcome::Nothing)
            }
            Work::Size(inode) => Ok(Outcome::Count(disk.inode(inode).ok_or_else(gone)?.len())),
            Work::Rename(from, to) => disk.rename(&from, &to).map(|()| Outcome::Nothing),
            Work::Remove(path) => disk.remove_file(&path).map(|()| Outcome::Nothing),
            Work::SyncDir(path) => disk.sync_dir(&path).map(|()| Outcome::Nothing),
            Work::CreateDir(path) => disk.create_dir(&path).map(|()| Outcome::Nothing),
            Work::ReadDir(path) => disk.read_dir(&path).map(Outcome::Names),
            Work::Write(..) | Work::Allocate(..) => Ok(Outcome::Nothing),
        }
    }

    fn write_file(
        &mut self,
        node: NodeId,
        inode: InodeId,
        offset: u64,
        mut bytes: Vec<u8>,
    ) -> io::Result<Outcome> {
        if bytes.len() > 1 && chance(&mut self.random.disk, self.config.disk.partial_writes) {
            bytes.truncate(self.random.disk.random_range(1..bytes.len()));
            self.count(Fault::ShortDiskWrite);
        }
        let gone = || io::Error::from(ErrorKind::NotFound);
        let len = self.machines.get(node).disk.inode(inode).ok_or_else(gone)?.len();
        self.make_room(node, (offset + bytes.len() as u64).saturating_sub(len))?;
        self.saw(Seen::Written, offset, &bytes);
        let inode = self.machines.get(node).disk.inode(inode).ok_or_else(gone)?;
        inode.write(offset as usize, &bytes);
        Ok(Outcome::Count(bytes.len() as u64))
    }

    /// Whether files may have so many bytes more.
    fn make_room(&mut self, node: NodeId, bytes: u64) -> io::Result<()> {
        let usual = self.config.disk.capacity_bytes;
        let disk = &self.machines.get(node).disk;
        let capacity = disk.capacity.unwrap_or(usual);
        if bytes > 0 && capacity.is_some_and(|capacity| disk.used_bytes() + bytes > capacity) {
            self.count(Fault::DiskFull);
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// What was under way when a node crashed: with a process some writes still reach the cache.
    pub fn crash_disk_ops(&mut self, node: NodeId, how: Crash) {
        let of_node = self.disk_ops.pending.iter().filter(|(_, pending)| pending.node == node);
        let ids: Vec<_> = of_node.map(|(&id, _)| id).collect();
        for id in ids {
            let Some(pending) = self.disk_ops.pending.remove(&id) else { continue };
            let Progress::Under(work) = pending.state else { continue };
            if how == Crash::Process && chance(&mut self.random.disk, 0.5) {
                // Nobody learns how it ended.
                let _ = self.do_work(node, work);
            }
        }
    }
}
