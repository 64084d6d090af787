//! Reading and writing with owned buffers.

use std::future::Future;
use std::io;

use crate::buf::{IoBuf, IoBufMut};
use crate::send::{MaybeSend, MaybeSync};

/// What an operation that took a buffer gives back: its result, and always the buffer.
pub type BufResult<T, B> = (io::Result<T>, B);

/// The reading side of a byte stream. At most one read is pending at a time (`&mut self`).
pub trait AsyncRead: MaybeSend + 'static {
    /// Reads once into the spare capacity of `buf`, after the bytes it already holds, and returns
    /// how many bytes arrived. 0 means that the peer closed its side, or that the socket was
    /// killed. A buffer without spare capacity is `ErrorKind::InvalidInput`.
    ///
    /// The future must be driven to its end: dropped while pending, a completion backend may have
    /// taken bytes off the socket that nobody sees any more.
    fn read<B: IoBufMut>(
        &mut self,
        buf: B,
    ) -> impl Future<Output = BufResult<usize, B>> + MaybeSend;

    /// Waits until bytes are there and only then takes a buffer from `get`, so that an idle
    /// connection holds none. A buffer that was taken in vain goes back through `put`; the one
    /// that was read into is returned (`None` only together with an error).
    ///
    /// tokio waits on its readiness driver; monoio and compio submit a poll operation first and
    /// receive after it, monoio by a second ring operation, compio by a direct call.
    fn read_lazy<B: IoBufMut>(
        &mut self,
        get: impl FnMut() -> B + MaybeSend,
        put: impl FnMut(B) + MaybeSend,
    ) -> impl Future<Output = BufResult<usize, Option<B>>> + MaybeSend;
}

/// The writing side of a byte stream. At most one write is pending at a time (`&mut self`).
pub trait AsyncWrite: MaybeSend + 'static {
    /// Writes once and returns how many bytes of `buf` the kernel took.
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> + MaybeSend;

    /// Writes once from several pieces, in order, and returns how many bytes the kernel took. Of
    /// more than 1024 pieces (the kernel's IOV_MAX) only the first 1024 are offered.
    fn writev<B: IoBuf>(
        &mut self,
        bufs: Vec<B>,
    ) -> impl Future<Output = BufResult<usize, Vec<B>>> + MaybeSend;

    /// Writes the whole buffer. On an error an unknown part of it has been sent.
    fn write_all<B: IoBuf>(&mut self, buf: B)
    -> impl Future<Output = BufResult<(), B>> + MaybeSend;

    /// Writes all pieces, in order, however many they are and however the kernel splits them.
    fn writev_all<B: IoBuf>(
        &mut self,
        bufs: Vec<B>,
    ) -> impl Future<Output = BufResult<(), Vec<B>>> + MaybeSend;

    /// Ends the writing direction (`SHUT_WR`): the peer reads the rest, then end of stream.
    fn shutdown(&mut self) -> impl Future<Output = io::Result<()>> + MaybeSend;
}

/// Ends a socket from outside of the tasks that read and write it.
///
/// A closer keeps the descriptor open, so that its number cannot be reused under it; the socket
/// is closed when both halves and all closers are gone.
pub trait Closer: Clone + MaybeSend + MaybeSync + 'static {
    /// Shuts both directions down (`SHUT_RDWR`): a pending read returns 0 with its buffer, a
    /// pending write an error. Calling it again, or on a socket that is already closed by its
    /// peer, does nothing. On a listener it makes a pending accept return an error.
    fn kill(&self);
}
