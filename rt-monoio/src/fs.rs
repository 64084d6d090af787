//! Files: ring operations on io_uring, the blocking pool elsewhere.
//!
//! monoio has no vectored write at an offset, no fallocate and no truncate. Small neighbouring
//! pieces are therefore copied together and written at once; the other two, and operations on
//! names, go to the pool on both drivers.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rt_abstract::{BufResult, IoBuf, IoBufMut, OpenOptions};
use rustix::fs::FallocateFlags;

use crate::buf::{Cursor, MAX_PIECES, OnePiece, Rest, Spare};
use crate::{driver, pool};

/// Pieces from this size on are written on their own: copying them costs more than it saves.
const GATHER_BELOW_BYTES: usize = 64 * 1024;

/// How many bytes are copied together at most.
const GATHER_BYTES: usize = 1024 * 1024;

/// An open file.
#[derive(Debug)]
pub struct File {
    inner: Inner,
    /// Opened with `O_DIRECT`: alignment is the caller's, so nothing is copied together.
    direct: bool,
}

#[derive(Debug)]
enum Inner {
    Ring(monoio::fs::File),
    Pool(Arc<OwnedFd>),
}

pub(crate) async fn open(path: &Path, options: OpenOptions) -> io::Result<File> {
    let OpenOptions { write, create, create_new, direct } = options;
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let inner = if driver::on_ring() {
        let mut open = monoio::fs::OpenOptions::new();
        open.read(true).write(write).create(create).create_new(create_new).custom_flags(flags);
        Inner::Ring(open.open(path).await?)
    } else {
        let path = path.to_owned();
        let mut open = std::fs::OpenOptions::new();
        open.read(true).write(write).create(create).create_new(create_new).custom_flags(flags);
        Inner::Pool(Arc::new(pool::run_io(move || open.open(path)).await?.into()))
    };
    Ok(File { inner, direct })
}

pub(crate) async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (from.to_owned(), to.to_owned());
    pool::run_io(move || std::fs::rename(from, to)).await
}

pub(crate) async fn remove_file(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    pool::run_io(move || std::fs::remove_file(path)).await
}

pub(crate) async fn sync_dir(path: &Path) -> io::Result<()> {
    if driver::on_ring() {
        return monoio::fs::File::open(path).await?.sync_all().await;
    }
    let path: PathBuf = path.to_owned();
    pool::run_io(move || std::fs::File::open(path)?.sync_all()).await
}

impl rt_abstract::File for File {
    async fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let mut spare = match Spare::new(buf) {
            Ok(spare) => spare,
            Err(buf) => {
                let text = "the buffer has no spare capacity to read into";
                return (Err(io::Error::new(ErrorKind::InvalidInput, text)), buf);
            }
        };
        match &self.inner {
            Inner::Ring(file) => loop {
                let (result, back) = file.read_at(spare, offset).await;
                spare = back;
                if !interrupted(&result) {
                    return (result, spare.into_inner());
                }
            },
            Inner::Pool(fd) => {
                let fd = fd.clone();
                with_buf(spare.into_inner(), move |buf| pread(&fd, buf, offset)).await
            }
        }
    }

    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        match &self.inner {
            Inner::Ring(file) => write_from(file, buf, 0, offset).await,
            Inner::Pool(fd) => {
                let fd = fd.clone();
                with_buf(buf, move |buf| {
                    Ok(rustix::io::retry_on_intr(|| {
                        rustix::io::pwrite(&fd, buf.as_slice(), offset)
                    })?)
                })
                .await
            }
        }
    }

    async fn writev_all_at<B: IoBuf>(&self, bufs: Vec<B>, offset: u64) -> BufResult<(), Vec<B>> {
        match &self.inner {
            Inner::Ring(file) => gather(file, bufs, offset, self.direct).await,
            Inner::Pool(fd) => {
                let fd = fd.clone();
                with_buf(bufs, move |bufs| pwritev_all(&fd, bufs, offset)).await
            }
        }
    }

    async fn sync_data(&self) -> io::Result<()> {
        match &self.inner {
            Inner::Ring(file) => file.sync_data().await,
            Inner::Pool(_) => self.on_pool(|fd| Ok(rustix::fs::fdatasync(fd)?)).await,
        }
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(()); // fallocate(2) refuses to reserve nothing
        }
        let flags = FallocateFlags::empty();
        self.on_pool(move |fd| {
            Ok(rustix::io::retry_on_intr(|| rustix::fs::fallocate(fd, flags, 0, len))?)
        })
        .await
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        self.on_pool(move |fd| Ok(rustix::io::retry_on_intr(|| rustix::fs::ftruncate(fd, len))?))
            .await
    }

    async fn size(&self) -> io::Result<u64> {
        match &self.inner {
            Inner::Ring(file) => file.metadata().await.map(|metadata| metadata.len()),
            Inner::Pool(_) => self.on_pool(|fd| Ok(file_size(&rustix::fs::fstat(fd)?))).await,
        }
    }
}

impl File {
    /// Runs `f` on the blocking pool with a descriptor that stays open meanwhile.
    async fn on_pool<T: Send + 'static>(
        &self,
        f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        use std::os::fd::AsFd;
        let fd = match &self.inner {
            Inner::Ring(file) => Arc::new(duplicate(file)?),
            Inner::Pool(fd) => fd.clone(),
        };
        pool::run_io(move || f(fd.as_fd())).await
    }
}

/// Runs `f` on the blocking pool and gives the buffer back.
async fn with_buf<B, T, F>(mut buf: B, f: F) -> BufResult<T, B>
where
    B: Send + 'static,
    T: Send + 'static,
    F: FnOnce(&mut B) -> io::Result<T> + Send + 'static,
{
    let ran = pool::run(move || {
        let result = f(&mut buf);
        (result, buf)
    });
    match ran.await {
        Ok(back) => back,
        // Only the buffer type itself can have done that, and it took the buffer along.
        Err(panicked) => std::panic::resume_unwind(Box::new(panicked.0)),
    }
}

#[allow(unsafe_code)]
fn duplicate(file: &monoio::fs::File) -> io::Result<OwnedFd> {
    // SAFETY: the file keeps the descriptor open during this borrow.
    let fd = unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) };
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, 0)?)
}

#[allow(unsafe_code)]
fn pread<B: IoBufMut>(fd: &OwnedFd, buf: &mut B, offset: u64) -> io::Result<usize> {
    let begin = buf.len();
    // SAFETY: the trait promises that the block has `capacity` writable bytes, and nobody else
    // looks at them while `buf` is borrowed.
    let spare = unsafe {
        let block = buf.as_mut_ptr().cast::<std::mem::MaybeUninit<u8>>();
        std::slice::from_raw_parts_mut(block.add(begin), buf.capacity() - begin)
    };
    let read = rustix::io::retry_on_intr(|| {
        rustix::io::pread(fd, &mut *spare, offset).map(|(filled, _)| filled.len())
    })?;
    // SAFETY: the kernel has just filled `read` bytes behind the first `begin`.
    unsafe { buf.set_len(begin + read) };
    Ok(read)
}

fn pwritev_all<B: IoBuf>(fd: &OwnedFd, bufs: &[B], mut offset: u64) -> io::Result<()> {
    let mut at = Cursor::default();
    at.advance(bufs, 0);
    while at.current(bufs).is_some() {
        let slices: Vec<IoSlice<'_>> = at.rest(bufs).take(MAX_PIECES).map(IoSlice::new).collect();
        match rustix::io::retry_on_intr(|| rustix::io::pwritev(fd, &slices, offset))? {
            0 => return Err(ErrorKind::WriteZero.into()),
            bytes => {
                offset += bytes as u64;
                at.advance(bufs, bytes);
            }
        }
    }
    Ok(())
}

async fn write_from<B: IoBuf>(
    file: &monoio::fs::File,
    buf: B,
    begin: usize,
    offset: u64,
) -> BufResult<usize, B> {
    let mut rest = Rest::new(buf, begin);
    loop {
        let (result, back) = file.write_at(rest, offset).await;
        rest = back;
        if !interrupted(&result) {
            return (result, rest.into_inner());
        }
    }
}

/// Writes all pieces in order: large ones from where they are, runs of small ones copied together.
async fn gather<B: IoBuf>(
    file: &monoio::fs::File,
    mut bufs: Vec<B>,
    mut offset: u64,
    direct: bool,
) -> BufResult<(), Vec<B>> {
    let mut at = Cursor::default();
    at.advance(&bufs, 0);
    let mut copied = Vec::new();
    while let Some(piece) = at.current(&bufs) {
        let written = if direct || piece.len() >= GATHER_BELOW_BYTES {
            let (result, back) = file.write_at(OnePiece::new(bufs, at), offset).await;
            bufs = back.into_inner();
            result
        } else {
            copied.clear();
            for piece in at.rest(&bufs) {
                if piece.len() >= GATHER_BELOW_BYTES || copied.len() + piece.len() > GATHER_BYTES {
                    break;
                }
                copied.extend_from_slice(piece);
            }
            let (result, back) = write_from(file, copied, 0, offset).await;
            copied = back;
            result
        };
        match written {
            Ok(0) => return (Err(ErrorKind::WriteZero.into()), bufs),
            Ok(bytes) => {
                offset += bytes as u64;
                at.advance(&bufs, bytes);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (Err(error), bufs),
        }
    }
    (Ok(()), bufs)
}

fn file_size(stat: &rustix::fs::Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn interrupted<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::Interrupted)
}
