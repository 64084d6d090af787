//! Files, and names of files.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use compio::BufResult;
use compio::buf::IntoInner;
use compio::driver::OpCode;
use compio::driver::op::{
    CurrentDir, FileStat, Mode, OFlags, OpenFile, ReadAt, Rename, Sync, TruncateFile, Unlink,
    WriteAt, WriteVectoredAt,
};
use rt_abstract::{BufResult as Outcome, IoBuf, IoBufMut, OpenOptions};

use crate::blocking;
use crate::buf::{Pieces, Rest, Spare};
use crate::driver::is_polling;
use crate::stream::{no_room, taken};

/// An open file. Its operations go to the ring; on the readiness driver, and for `allocate`
/// always, to the blocking pool.
#[derive(Debug)]
pub struct File(Arc<OwnedFd>);

impl File {
    pub(crate) async fn open(path: &Path, options: OpenOptions) -> io::Result<Self> {
        let create = options.create || options.create_new;
        if create && !options.write {
            return Err(io::Error::new(ErrorKind::InvalidInput, "creating a file needs write"));
        }
        let mut flags = if options.write { OFlags::RDWR } else { OFlags::RDONLY };
        flags.set(OFlags::CREATE, create);
        flags.set(OFlags::EXCL, options.create_new);
        flags.set(OFlags::DIRECT, options.direct);
        open(path, flags).await.map(Self)
    }
}

pub(crate) async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let op = Rename::new(CurrentDir, c_path(from)?, CurrentDir, c_path(to)?);
    perform(op).await.0.map(drop)
}

pub(crate) async fn remove(path: &Path) -> io::Result<()> {
    perform(Unlink::new(CurrentDir, c_path(path)?, false)).await.0.map(drop)
}

pub(crate) async fn sync_dir(path: &Path) -> io::Result<()> {
    let directory = open(path, OFlags::RDONLY | OFlags::DIRECTORY).await?;
    perform(Sync::new(directory, false)).await.0.map(drop)
}

impl rt_abstract::File for File {
    async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> Outcome<usize, B> {
        let spare = match Spare::of(buf) {
            Ok(spare) => spare,
            Err(buf) => return (Err(no_room()), buf),
        };
        let BufResult(result, op) = perform(ReadAt::new(self.0.clone(), offset, spare)).await;
        let spare = op.into_inner();
        match result {
            // SAFETY: the kernel reported that it wrote `count` bytes there.
            Ok(count) => (Ok(count), unsafe { spare.filled(count) }),
            Err(error) => (Err(error), spare.into_inner()),
        }
    }

    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> Outcome<usize, B> {
        let op = WriteAt::new(self.0.clone(), offset, Rest::of(buf));
        let BufResult(result, op) = perform(op).await;
        (result, op.into_inner().into_inner())
    }

    async fn writev_all_at<B: IoBuf>(&self, bufs: Vec<B>, mut offset: u64) -> Outcome<(), Vec<B>> {
        let mut pieces = Pieces::of(bufs);
        while !pieces.is_done() {
            let op = WriteVectoredAt::new(self.0.clone(), offset, pieces);
            let BufResult(result, op) = perform(op).await;
            pieces = op.into_inner();
            match taken(result) {
                Ok(count) => {
                    pieces.advance(count);
                    offset += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), pieces.into_inner()),
            }
        }
        (Ok(()), pieces.into_inner())
    }

    async fn sync_data(&self) -> io::Result<()> {
        perform(Sync::new(self.0.clone(), true)).await.0.map(drop)
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let fd = self.0.clone();
        let work = move || fallocate(&*fd, FallocateFlags::empty(), 0, len);
        Ok(blocking::run(work).await.map_err(io::Error::other)??)
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        perform(TruncateFile::new(self.0.clone(), len)).await.0.map(drop)
    }

    async fn size(&self) -> io::Result<u64> {
        let BufResult(result, op) = perform(FileStat::new(self.0.clone())).await;
        result?;
        u64::try_from(op.into_inner().st_size).map_err(io::Error::other)
    }
}

async fn open(path: &Path, flags: OFlags) -> io::Result<Arc<OwnedFd>> {
    let op = OpenFile::new(CurrentDir, c_path(path)?, flags, Mode::from_raw_mode(0o666));
    let BufResult(result, op) = perform(op).await;
    result?;
    Ok(Arc::new(op.into_inner()))
}

/// Submits an operation on a file. The readiness driver hands it to a blocking thread, whose
/// number is bounded.
async fn perform<T: OpCode + 'static>(op: T) -> BufResult<usize, T> {
    let _permit = if is_polling() { Some(blocking::permit().await) } else { None };
    compio::runtime::submit(op).await
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
