//! Connected streams, TCP or Unix: one shared pointer per handle.
//!
//! The futures are `poll_fn` closures instead of `async` blocks: a closure stores its buffer
//! once, and an idle connection's memory is mostly its read future.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rt_abstract::{AsyncRead, AsyncWrite, BufResult, IoBuf, IoBufMut, MaybeSend};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown};

use crate::gather::Position;
use crate::socket::{Moved, Socket};
use crate::spare;

/// A connected stream.
#[derive(Debug)]
pub struct Stream {
    socket: Arc<Socket>,
}

/// The reading half of a [`Stream`].
#[derive(Debug)]
pub struct ReadHalf {
    socket: Arc<Socket>,
}

/// The writing half of a [`Stream`].
#[derive(Debug)]
pub struct WriteHalf {
    socket: Arc<Socket>,
}

/// Ends a stream or a listener by shutting its socket down.
#[derive(Clone, Debug)]
pub struct Closer {
    socket: Arc<Socket>,
}

impl Stream {
    /// Takes over a non-blocking, connected socket.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        Socket::stream(fd).map(Self::from_socket)
    }

    pub(crate) fn from_socket(socket: Socket) -> Self {
        Self { socket: Arc::new(socket) }
    }
}

impl Closer {
    pub(crate) fn new(socket: &Arc<Socket>) -> Self {
        Self { socket: socket.clone() }
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
        Closer::new(&self.socket)
    }

    fn into_socket(self) -> io::Result<rt_abstract::Socket> {
        match Arc::try_unwrap(self.socket) {
            Ok(socket) => Ok(socket.into_fd().into()),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "a closer of this stream is still alive",
            )),
        }
    }
}

impl rt_abstract::Closer for Closer {
    fn kill(&self) {
        self.socket.kill();
    }
}

macro_rules! readable {
    ($type:ty) => {
        impl AsyncRead for $type {
            fn read<B: IoBufMut>(
                &mut self,
                buf: B,
            ) -> impl Future<Output = BufResult<usize, B>> + MaybeSend {
                read(&self.socket, buf)
            }

            fn read_lazy<B: IoBufMut>(
                &mut self,
                get: impl FnMut() -> B + MaybeSend,
                put: impl FnMut(B) + MaybeSend,
            ) -> impl Future<Output = BufResult<usize, Option<B>>> + MaybeSend {
                read_lazy(&self.socket, get, put)
            }
        }
    };
}

macro_rules! writable {
    ($type:ty) => {
        impl AsyncWrite for $type {
            fn write<B: IoBuf>(
                &mut self,
                buf: B,
            ) -> impl Future<Output = BufResult<usize, B>> + MaybeSend {
                write(&self.socket, buf)
            }

            fn writev<B: IoBuf>(
                &mut self,
                bufs: Vec<B>,
            ) -> impl Future<Output = BufResult<usize, Vec<B>>> + MaybeSend {
                writev(&self.socket, bufs)
            }

            fn write_all<B: IoBuf>(
                &mut self,
                buf: B,
            ) -> impl Future<Output = BufResult<(), B>> + MaybeSend {
                write_all(&self.socket, buf)
            }

            fn writev_all<B: IoBuf>(
                &mut self,
                bufs: Vec<B>,
            ) -> impl Future<Output = BufResult<(), Vec<B>>> + MaybeSend {
                writev_all(&self.socket, bufs)
            }

            fn shutdown(&mut self) -> impl Future<Output = io::Result<()>> + MaybeSend {
                let result = rustix::net::shutdown(&*self.socket, Shutdown::Write);
                std::future::ready(result.map_err(io::Error::from))
            }
        }
    };
}

readable!(Stream);
readable!(ReadHalf);
writable!(Stream);
writable!(WriteHalf);

fn read<B: IoBufMut>(
    socket: &Socket,
    buf: B,
) -> impl Future<Output = BufResult<usize, B>> + MaybeSend {
    lend(buf, move |cx, buf| {
        if spare::room(buf) == 0 {
            return Poll::Ready(Err(no_room()));
        }
        socket.poll_read(cx, |fd| {
            let of = spare::room(buf);
            Ok(Moved { bytes: spare::recv(fd, buf)?, of })
        })
    })
}

fn read_lazy<B: IoBufMut>(
    socket: &Socket,
    mut get: impl FnMut() -> B + MaybeSend,
    mut put: impl FnMut(B) + MaybeSend,
) -> impl Future<Output = BufResult<usize, Option<B>>> + MaybeSend {
    poll_fn(move |cx| {
        let mut filled = None;
        let result = ready!(socket.poll_read(cx, |fd| {
            let mut buf = get();
            let of = spare::room(&buf);
            let read = if of == 0 { Err(Errno::INVAL) } else { spare::recv(fd, &mut buf) };
            match read {
                Ok(bytes) => {
                    filled = Some(buf);
                    Ok(Moved { bytes, of })
                }
                Err(error) => {
                    put(buf);
                    Err(error)
                }
            }
        }));
        Poll::Ready((result, filled))
    })
}

fn write<B: IoBuf>(
    socket: &Socket,
    buf: B,
) -> impl Future<Output = BufResult<usize, B>> + MaybeSend {
    lend(buf, move |cx, buf| match buf.as_slice() {
        [] => Poll::Ready(Ok(0)),
        bytes => poll_send(socket, cx, bytes),
    })
}

fn write_all<B: IoBuf>(
    socket: &Socket,
    buf: B,
) -> impl Future<Output = BufResult<(), B>> + MaybeSend {
    let mut done = 0;
    lend(buf, move |cx, buf| {
        while done < buf.len() {
            done += ready!(poll_send(socket, cx, &buf.as_slice()[done..]))?;
        }
        Poll::Ready(Ok(()))
    })
}

fn writev<B: IoBuf>(
    socket: &Socket,
    bufs: Vec<B>,
) -> impl Future<Output = BufResult<usize, Vec<B>>> + MaybeSend {
    lend(bufs, move |cx, bufs| {
        Position::default()
            .gather(bufs, |pieces, bytes| poll_send_pieces(socket, cx, pieces, bytes))
            .unwrap_or(Poll::Ready(Ok(0)))
    })
}

fn writev_all<B: IoBuf>(
    socket: &Socket,
    bufs: Vec<B>,
) -> impl Future<Output = BufResult<(), Vec<B>>> + MaybeSend {
    let mut position = Position::default();
    lend(bufs, move |cx, bufs| {
        let mut write = |pieces: &[IoSlice<'_>], bytes| poll_send_pieces(socket, cx, pieces, bytes);
        while let Some(sent) = position.gather(bufs, &mut write) {
            position.advance(bufs, ready!(sent)?);
        }
        Poll::Ready(Ok(()))
    })
}

fn poll_send(socket: &Socket, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    socket.poll_write(cx, |fd| {
        let sent = rustix::net::send(fd, bytes, SendFlags::NOSIGNAL)?;
        Ok(Moved { bytes: sent, of: bytes.len() })
    })
}

fn poll_send_pieces(
    socket: &Socket,
    cx: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
    of: usize,
) -> Poll<io::Result<usize>> {
    socket.poll_write(cx, |fd| {
        let mut control = SendAncillaryBuffer::default();
        // Not writev(2), which would raise SIGPIPE.
        let bytes = rustix::net::sendmsg(fd, pieces, &mut control, SendFlags::NOSIGNAL)?;
        Ok(Moved { bytes, of })
    })
}

/// Holds `buf` while `step` is pending and gives it back with the result.
fn lend<B: MaybeSend, T>(
    buf: B,
    mut step: impl FnMut(&mut Context<'_>, &mut B) -> Poll<io::Result<T>> + MaybeSend,
) -> impl Future<Output = BufResult<T, B>> + MaybeSend {
    let mut held = Some(buf);
    poll_fn(move |cx| {
        let mut buf = held.take().expect("a future is not polled again after its end");
        match step(cx, &mut buf) {
            Poll::Ready(result) => Poll::Ready((result, buf)),
            Poll::Pending => {
                held = Some(buf);
                Poll::Pending
            }
        }
    })
}

fn no_room() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a read needs a buffer with spare capacity")
}
