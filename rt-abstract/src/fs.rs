//! Files with owned buffers and explicit offsets.

use std::future::Future;
use std::io;

use bytes::Bytes;

use crate::buf::{IoBuf, IoBufMut};
use crate::io::BufResult;
use crate::send::{MaybeSend, MaybeSync};

/// How to open a file. The default opens an existing file for reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Allow writing as well as reading.
    pub write: bool,
    /// Create the file when it is missing (needs `write`).
    pub create: bool,
    /// Fail with `ErrorKind::AlreadyExists` when the file exists (needs `create`).
    pub create_new: bool,
    /// Bypass the page cache (`O_DIRECT`): offsets, lengths and buffer addresses must then be
    /// multiples of the device's block size.
    pub direct: bool,
}

impl OpenOptions {
    /// An existing file, to read.
    pub const READ: Self = Self { write: false, create: false, create_new: false, direct: false };
    /// An existing file, to read and write.
    pub const WRITE: Self = Self { write: true, ..Self::READ };
    /// A file that is not there yet, to read and write.
    pub const CREATE_NEW: Self = Self { create: true, create_new: true, ..Self::WRITE };
}

/// Writes all of `bytes` at `offset`, however the system splits it.
///
/// # Errors
/// What the system said; `ErrorKind::WriteZero` when it takes nothing.
pub async fn write_all_at<F: File>(file: &F, mut bytes: Bytes, mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let (result, back) = file.write_at(bytes, offset).await;
        bytes = back;
        match result {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = bytes.slice(count..);
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// An open file. All operations take `&self`: several may be pending at once, on ranges that
/// must not overlap when one of them writes.
///
/// tokio has no asynchronous file I/O: its backend runs each operation on its blocking pool.
/// monoio and compio submit to their ring, and use a blocking pool where io_uring is refused.
pub trait File: MaybeSend + MaybeSync + 'static {
    /// Reads once from `offset` (bytes) into the spare capacity of `buf`; 0 is the end of file.
    fn read_at<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, B>> + MaybeSend;

    /// Writes once at `offset` (bytes) and returns how many bytes were taken.
    fn write_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> impl Future<Output = BufResult<usize, B>> + MaybeSend;

    /// Writes all pieces, in order, at `offset` (bytes), however many they are.
    fn writev_all_at<B: IoBuf>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> impl Future<Output = BufResult<(), Vec<B>>> + MaybeSend;

    /// Makes all completed writes durable (`fdatasync`). An error is final: the kernel may have
    /// dropped the dirty pages, and a second call that succeeds proves nothing.
    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + MaybeSend;

    /// [`write_all_at`], then `written`, on any thread, then [`File::sync_data`]: in one trip where each
    /// would be a trip to a pool of threads. An error before `written` was called is the write's.
    fn write_all_and_sync_at(
        &self,
        bytes: Bytes,
        offset: u64,
        written: impl FnOnce() + Send + 'static,
    ) -> impl Future<Output = io::Result<()>> + MaybeSend
    where
        Self: Sized,
    {
        async move {
            write_all_at(self, bytes, offset).await?;
            written();
            self.sync_data().await
        }
    }

    /// Reserves space for the first `len` bytes and extends the file to that length (`fallocate`);
    /// `ErrorKind::StorageFull` when there is none.
    fn allocate(&self, len: u64) -> impl Future<Output = io::Result<()>> + MaybeSend;

    /// Cuts or extends the file to `len` bytes.
    fn truncate(&self, len: u64) -> impl Future<Output = io::Result<()>> + MaybeSend;

    /// The file's length in bytes.
    fn size(&self) -> impl Future<Output = io::Result<u64>> + MaybeSend;
}
