//! Files, as programs hold them.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use rt_abstract::{BufResult, IoBuf, IoBufMut, OpenOptions};

use super::image::InodeId;
use super::ops::{Doing, Outcome, Work};
use crate::buf::{append, gather};
use crate::world::tasks::{Place, here};
use crate::world::try_with;

/// An open file.
#[derive(Debug)]
pub struct File {
    guard: Arc<FileGuard>,
}

/// Keeps a file that has lost its name.
#[derive(Debug)]
struct FileGuard {
    place: Place,
    inode: InodeId,
    path: std::path::PathBuf,
    write: bool,
}

impl Drop for FileGuard {
    fn drop(&mut self) {
        try_with(|state| {
            // A file of an earlier start was closed by the crash.
            if state.boot(self.place.node) == self.place.boot {
                state.machines.get(self.place.node).disk.close(self.inode);
            }
        });
    }
}

impl File {
    fn doing(&self, work: Work) -> Doing {
        Doing::new(self.guard.place, self.guard.path.clone(), work)
    }

    fn may_write(&self) -> io::Result<()> {
        if self.guard.write { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
    }

    async fn write_once(&self, bytes: Vec<u8>, offset: u64) -> io::Result<usize> {
        self.may_write()?;
        match self.doing(Work::Write(self.guard.inode, offset, bytes)).await? {
            Outcome::Count(count) => Ok(count as usize),
            _ => Err(ErrorKind::Other.into()),
        }
    }

    async fn change(&self, work: Work) -> io::Result<()> {
        self.may_write()?;
        self.doing(work).await.map(drop)
    }
}

impl rt_abstract::File for File {
    async fn read_at<B: IoBufMut>(&self, mut buf: B, offset: u64) -> BufResult<usize, B> {
        let room = buf.capacity() - buf.len();
        if room == 0 {
            return (Err(ErrorKind::InvalidInput.into()), buf);
        }
        match self.doing(Work::Read(self.guard.inode, offset, room)).await {
            Ok(Outcome::Bytes(bytes)) => {
                let count = append(&mut buf, &bytes);
                (Ok(count), buf)
            }
            Ok(_) => (Err(ErrorKind::Other.into()), buf),
            Err(error) => (Err(error), buf),
        }
    }

    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let bytes = buf.as_slice().to_vec();
        (self.write_once(bytes, offset).await, buf)
    }

    async fn writev_all_at<B: IoBuf>(
        &self,
        bufs: Vec<B>,
        mut offset: u64,
    ) -> BufResult<(), Vec<B>> {
        let mut bytes = gather(&bufs);
        while !bytes.is_empty() {
            match self.write_once(bytes.clone(), offset).await {
                Ok(count) => {
                    bytes.drain(..count);
                    offset += count as u64;
                }
                Err(error) => return (Err(error), bufs),
            }
        }
        (Ok(()), bufs)
    }

    async fn sync_data(&self) -> io::Result<()> {
        self.doing(Work::Sync(self.guard.inode, None)).await.map(drop)
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        self.change(Work::Allocate(self.guard.inode, len)).await
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        self.change(Work::Truncate(self.guard.inode, len)).await
    }

    async fn size(&self) -> io::Result<u64> {
        match self.doing(Work::Size(self.guard.inode)).await? {
            Outcome::Count(len) => Ok(len),
            _ => Err(ErrorKind::Other.into()),
        }
    }
}

pub(crate) async fn open(path: &Path, options: OpenOptions) -> io::Result<File> {
    let place = here();
    match named(path, Work::Open(path.to_owned(), options)).await? {
        Outcome::File(inode) => {
            let path = path.to_owned();
            let guard = Arc::new(FileGuard { place, inode, path, write: options.write });
            Ok(File { guard })
        }
        _ => Err(ErrorKind::Other.into()),
    }
}

pub(crate) async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    named(from, Work::Rename(from.to_owned(), to.to_owned())).await.map(drop)
}

pub(crate) async fn remove_file(path: &Path) -> io::Result<()> {
    named(path, Work::Remove(path.to_owned())).await.map(drop)
}

pub(crate) async fn sync_dir(path: &Path) -> io::Result<()> {
    named(path, Work::SyncDir(path.to_owned())).await.map(drop)
}

pub(crate) async fn create_dir(path: &Path) -> io::Result<()> {
    named(path, Work::CreateDir(path.to_owned())).await.map(drop)
}

pub(crate) async fn read_dir(path: &Path) -> io::Result<Vec<OsString>> {
    match named(path, Work::ReadDir(path.to_owned())).await? {
        Outcome::Names(names) => Ok(names),
        _ => Err(ErrorKind::Other.into()),
    }
}

fn named(path: &Path, work: Work) -> Doing {
    Doing::new(here(), path.to_owned(), work)
}
