//! Connected streams, TCP and Unix-domain alike.
//!
//! monoio's own split halves end the connection when the writing one is dropped, and its
//! `TcpStream` carries 100 bytes of cached addresses. Here every handle is one pointer to a shared
//! socket, which monoio sees as a Unix stream: to the kernel the operations are the same.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;

use monoio::io::{AsyncReadRent, AsyncWriteRent};
use monoio::net::UnixStream;
use rt_abstract::{AsyncRead, AsyncWrite, BufResult, IoBuf, IoBufMut};
use rustix::net::Shutdown;

use crate::buf::{Cursor, Pieces, Rest, Spare};
use crate::driver;

/// A connected TCP or Unix-domain stream; one pointer.
#[derive(Debug)]
pub struct Stream {
    socket: Rc<Socket>,
}

/// The reading half of a [`Stream`]; one pointer.
#[derive(Debug)]
pub struct ReadHalf {
    socket: Rc<Socket>,
}

/// The writing half of a [`Stream`]; one pointer. Dropping it sends nothing.
#[derive(Debug)]
pub struct WriteHalf {
    socket: Rc<Socket>,
}

/// Ends a [`Stream`] from outside; keeps its descriptor open.
#[derive(Clone, Debug)]
pub struct Closer {
    socket: Rc<Socket>,
}

#[derive(Debug)]
struct Socket {
    io: UnsafeCell<UnixStream>,
    /// Reads and writes that have begun and not come to their end: not zero when one was dropped.
    moving: Cell<u32>,
}

impl Stream {
    /// Takes a connected socket over on the calling core.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        // epoll needs sockets that do not block; io_uring waits for those that do.
        rustix::io::ioctl_fionbio(&fd, !driver::on_ring())?;
        Self::prepared(fd)
    }

    /// As [`Stream::new`], for a socket that blocks or not as the driver wants it.
    pub(crate) fn prepared(fd: OwnedFd) -> io::Result<Self> {
        UnixStream::from_std(StdUnixStream::from(fd)).map(Self::from_monoio)
    }

    pub(crate) fn from_monoio(stream: UnixStream) -> Self {
        let socket = Socket { io: UnsafeCell::new(stream), moving: Cell::new(0) };
        Self { socket: Rc::new(socket) }
    }
}

impl rt_abstract::Stream for Stream {
    type ReadHalf = ReadHalf;
    type WriteHalf = WriteHalf;
    type Closer = Closer;

    fn into_split(self) -> (ReadHalf, WriteHalf) {
        (ReadHalf { socket: self.socket.clone() }, WriteHalf { socket: self.socket })
    }

    fn closer(&self) -> Closer {
        Closer { socket: self.socket.clone() }
    }

    fn into_socket(self) -> io::Result<rt_abstract::Socket> {
        let busy = |text| io::Error::new(ErrorKind::ResourceBusy, text);
        let socket = Rc::try_unwrap(self.socket)
            .map_err(|_| busy("a closer of this stream is still alive"))?;
        if socket.moving.get() > 0 {
            return Err(busy("a read or write of this stream was dropped before its end"));
        }
        // A duplicate, because monoio panics when asked for the original while any operation on
        // it, such as a dropped poll, has not come back from the kernel.
        Ok(rustix::io::fcntl_dupfd_cloexec(socket.fd(), 0)?.into())
    }
}

impl rt_abstract::Closer for Closer {
    fn kill(&self) {
        // Not connected any more is as good as killed.
        let _ = rustix::net::shutdown(self.socket.fd(), Shutdown::Both);
    }
}

impl AsyncRead for ReadHalf {
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        self.socket.read(buf)
    }

    fn read_lazy<B: IoBufMut>(
        &mut self,
        get: impl FnMut() -> B,
        put: impl FnMut(B),
    ) -> impl Future<Output = BufResult<usize, Option<B>>> {
        self.socket.read_lazy(get, put)
    }
}

impl AsyncRead for Stream {
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        self.socket.read(buf)
    }

    fn read_lazy<B: IoBufMut>(
        &mut self,
        get: impl FnMut() -> B,
        put: impl FnMut(B),
    ) -> impl Future<Output = BufResult<usize, Option<B>>> {
        self.socket.read_lazy(get, put)
    }
}

impl AsyncWrite for WriteHalf {
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        self.socket.write(buf)
    }

    fn writev<B: IoBuf>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<usize, Vec<B>>> {
        self.socket.writev(bufs)
    }

    fn write_all<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
        self.socket.write_all(buf)
    }

    fn writev_all<B: IoBuf>(
        &mut self,
        bufs: Vec<B>,
    ) -> impl Future<Output = BufResult<(), Vec<B>>> {
        self.socket.writev_all(bufs)
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.socket.shutdown()
    }
}

impl AsyncWrite for Stream {
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>> {
        self.socket.write(buf)
    }

    fn writev<B: IoBuf>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<usize, Vec<B>>> {
        self.socket.writev(bufs)
    }

    fn write_all<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
        self.socket.write_all(buf)
    }

    fn writev_all<B: IoBuf>(
        &mut self,
        bufs: Vec<B>,
    ) -> impl Future<Output = BufResult<(), Vec<B>>> {
        self.socket.writev_all(bufs)
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.socket.shutdown()
    }
}

impl Socket {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the stream keeps the descriptor open for as long as this socket lives, and the
        // reference to it ends here.
        unsafe { BorrowedFd::borrow_raw((*self.io.get()).as_raw_fd()) }
    }

    /// The stream, to begin an operation with.
    ///
    /// # Safety
    /// The reference must not be used after the call that begins the operation. (monoio's futures
    /// name its lifetime, but from their first poll on they own a handle of the descriptor and do
    /// not look at the stream again. Nothing here crosses threads.)
    #[allow(clippy::mut_from_ref)]
    unsafe fn begin(&self) -> &mut UnixStream {
        // SAFETY: the caller's promise; the two halves never run at the same time.
        unsafe { &mut *self.io.get() }
    }

    async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        let mut spare = match Spare::new(buf) {
            Ok(spare) => spare,
            Err(buf) => return (Err(no_room()), buf),
        };
        loop {
            let moving = Moving::begin(&self.moving);
            // SAFETY: `read` makes its operation before it returns and borrows nothing after.
            let (result, back) = unsafe { self.begin() }.read(spare).await;
            moving.end();
            spare = back;
            if !interrupted(&result) {
                return (result, spare.into_inner());
            }
        }
    }

    async fn read_lazy<B: IoBufMut>(
        &self,
        mut get: impl FnMut() -> B,
        mut put: impl FnMut(B),
    ) -> BufResult<usize, Option<B>> {
        // Not relaxed: on epoll the remembered readiness is often stale, and believing it would
        // hold a buffer through the next idle hour.
        // SAFETY: `readable` uses the stream at its first poll only.
        if let Err(error) = unsafe { self.begin() }.readable(false).await {
            return (Err(error), None);
        }
        match self.read(get()).await {
            (Ok(bytes), buf) => (Ok(bytes), Some(buf)),
            (Err(error), buf) => {
                put(buf);
                (Err(error), None)
            }
        }
    }

    async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        self.write_from(buf, 0).await
    }

    async fn write_from<B: IoBuf>(&self, buf: B, begin: usize) -> BufResult<usize, B> {
        let mut rest = Rest::new(buf, begin);
        loop {
            let moving = Moving::begin(&self.moving);
            // SAFETY: `write` makes its operation before it returns and borrows nothing after.
            let (result, back) = unsafe { self.begin() }.write(rest).await;
            moving.end();
            rest = back;
            if !interrupted(&result) {
                return (result, rest.into_inner());
            }
        }
    }

    async fn write_all<B: IoBuf>(&self, mut buf: B) -> BufResult<(), B> {
        let mut done = 0;
        while done < buf.len() {
            let (result, back) = self.write_from(buf, done).await;
            buf = back;
            match result {
                Ok(0) => return (Err(ErrorKind::WriteZero.into()), buf),
                Ok(bytes) => done += bytes,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    async fn write_pieces<B: IoBuf>(&self, mut pieces: Pieces<B>) -> BufResult<usize, Pieces<B>> {
        loop {
            let moving = Moving::begin(&self.moving);
            // SAFETY: `writev` makes its operation before it returns and borrows nothing after.
            let (result, back) = unsafe { self.begin() }.writev(pieces).await;
            moving.end();
            pieces = back;
            if !interrupted(&result) {
                return (result, pieces);
            }
        }
    }

    async fn writev<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        let (result, pieces) = self.write_pieces(Pieces::new(bufs, Cursor::default())).await;
        (result, pieces.into_inner())
    }

    async fn writev_all<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<(), Vec<B>> {
        let mut at = Cursor::default();
        at.advance(&bufs, 0);
        let mut pieces = Pieces::new(bufs, at);
        while at.current(pieces.bufs()).is_some() {
            let (result, back) = self.write_pieces(pieces).await;
            pieces = back;
            match result {
                Ok(0) => return (Err(ErrorKind::WriteZero.into()), pieces.into_inner()),
                Ok(bytes) => at.advance(pieces.bufs(), bytes),
                Err(error) => return (Err(error), pieces.into_inner()),
            }
            pieces.seek(at);
        }
        (Ok(()), pieces.into_inner())
    }

    fn shutdown(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self.fd(), Shutdown::Write)?)
    }
}

/// Marks an operation as begun; only [`Moving::end`] takes the mark away, a drop does not.
struct Moving<'a> {
    count: &'a Cell<u32>,
}

impl<'a> Moving<'a> {
    fn begin(count: &'a Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self { count }
    }

    fn end(self) {
        self.count.set(self.count.get() - 1);
    }
}

fn interrupted<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::Interrupted)
}

fn no_room() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "the buffer has no spare capacity to read into")
}
