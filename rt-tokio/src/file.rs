//! Files: every operation is a system call on the blocking pool.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use rt_abstract::{BufResult, IoBuf, IoBufMut, MaybeSend, OpenOptions};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::retry_on_intr;

use crate::gather::Position;
use crate::spare;
use crate::task::offload;

/// An open file. An operation in flight shares the descriptor, so that it stays open under it.
#[derive(Debug)]
pub struct File {
    fd: Arc<OwnedFd>,
}

impl File {
    pub(crate) async fn open(path: PathBuf, options: OpenOptions) -> io::Result<Self> {
        offload(move || {
            let mut open = std::fs::OpenOptions::new();
            open.read(true)
                .write(options.write)
                .create(options.create)
                .create_new(options.create_new);
            if options.direct {
                open.custom_flags(OFlags::DIRECT.bits().cast_signed());
            }
            Ok(Self { fd: Arc::new(open.open(path)?.into()) })
        })
        .await
    }

    fn offload<T: Send + 'static>(
        &self,
        f: impl FnOnce(&OwnedFd) -> T + Send + 'static,
    ) -> impl Future<Output = T> + MaybeSend {
        let fd = self.fd.clone();
        offload(move || f(&fd))
    }
}

impl rt_abstract::File for File {
    fn read_at<B: IoBufMut>(
        &self,
        mut buf: B,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, B>> + MaybeSend {
        self.offload(move |fd| {
            if spare::room(&buf) == 0 {
                return (Err(io::ErrorKind::InvalidInput.into()), buf);
            }
            let result = retry_on_intr(|| spare::pread(fd, &mut buf, offset));
            (result.map_err(io::Error::from), buf)
        })
    }

    fn write_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, B>> + MaybeSend {
        self.offload(move |fd| {
            let result = retry_on_intr(|| rustix::io::pwrite(fd, buf.as_slice(), offset));
            (result.map_err(io::Error::from), buf)
        })
    }

    fn writev_all_at<B: IoBuf>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> impl Future<Output = BufResult<(), Vec<B>>> + MaybeSend {
        self.offload(move |fd| (write_all(fd, &bufs, offset), bufs))
    }

    fn write_all_and_sync_at(
        &self,
        bytes: Bytes,
        offset: u64,
        written: impl FnOnce() + Send + 'static,
    ) -> impl Future<Output = io::Result<()>> + MaybeSend {
        self.offload(move |fd| {
            write_all(fd, &[bytes], offset)?;
            written();
            Ok(rustix::fs::fdatasync(fd)?)
        })
    }

    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + MaybeSend {
        // Not retried on an error of any kind: see the trait.
        self.offload(|fd| Ok(rustix::fs::fdatasync(fd)?))
    }

    fn allocate(&self, len: u64) -> impl Future<Output = io::Result<()>> + MaybeSend {
        self.offload(move |fd| {
            if len == 0 {
                return Ok(()); // fallocate(2) refuses to reserve nothing
            }
            let reserve = || rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, len);
            Ok(retry_on_intr(reserve)?)
        })
    }

    fn truncate(&self, len: u64) -> impl Future<Output = io::Result<()>> + MaybeSend {
        self.offload(move |fd| Ok(retry_on_intr(|| rustix::fs::ftruncate(fd, len))?))
    }

    fn size(&self) -> impl Future<Output = io::Result<u64>> + MaybeSend {
        self.offload(|fd| {
            let size = rustix::fs::fstat(fd)?.st_size;
            u64::try_from(size).map_err(io::Error::other)
        })
    }
}

fn write_all<B: IoBuf>(fd: &OwnedFd, bufs: &[B], mut offset: u64) -> io::Result<()> {
    let mut position = Position::default();
    loop {
        let written = position
            .gather(bufs, |pieces, _| retry_on_intr(|| rustix::io::pwritev(fd, pieces, offset)));
        match written {
            None => return Ok(()),
            Some(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Some(Ok(count)) => {
                position.advance(bufs, count);
                offset += count as u64;
            }
            Some(Err(error)) => return Err(error.into()),
        }
    }
}
