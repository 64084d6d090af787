//! Connected sockets, TCP and Unix-domain alike.
#![allow(unsafe_code)]

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use compio::BufResult;
use compio::buf::IntoInner;
use compio::driver::op::{
    Connect, Interest, PollOnce, Recv, RecvFlags, Send, SendFlags, SendVectored,
};
use compio::runtime::submit;
use rt_abstract::{Address, AsyncRead, AsyncWrite, BufResult as Outcome, IoBuf, IoBufMut};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::buf::{Pieces, Rest, Spare};
use crate::driver::is_polling;

/// A descriptor that its operations, halves and closers keep open.
pub(crate) type Shared = Rc<OwnedFd>;

/// A connected stream. One pointer, as are its halves.
#[derive(Debug)]
pub struct Stream(Shared);

/// The reading half of a [`Stream`].
#[derive(Debug)]
pub struct ReadHalf(Shared);

/// The writing half of a [`Stream`]. Dropping it sends nothing.
#[derive(Debug)]
pub struct WriteHalf(Shared);

/// Ends a [`Stream`] or a [`Listener`](crate::Listener) by `shutdown(2)`.
#[derive(Clone, Debug)]
pub struct Closer(Shared);

impl Stream {
    /// Takes a connected descriptor over.
    pub(crate) fn adopt(fd: OwnedFd) -> io::Result<Self> {
        set_mode(&fd)?;
        Ok(Self(Rc::new(fd)))
    }

    /// An accepted socket, which already is in the driver's mode.
    pub(crate) fn accepted(fd: OwnedFd) -> Self {
        Self(Rc::new(fd))
    }

    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        let (domain, target) = match address {
            Address::Tcp(target) => (Domain::for_address(*target), SockAddr::from(*target)),
            Address::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
        };
        let socket = Socket::new(domain, Type::STREAM.cloexec(), None)?;
        socket.set_nonblocking(is_polling())?;
        if domain == Domain::UNIX && is_polling() {
            // Succeeds or fails at once. With a full backlog it is EAGAIN, which the driver would
            // take for a connect under way.
            socket.connect(&target)?;
            return Ok(Self(Rc::new(socket.into())));
        }
        let fd = Shared::new(socket.into());
        submit(Connect::new(fd.clone(), target)).await.0?;
        if domain != Domain::UNIX {
            sockopt::set_tcp_nodelay(&fd, true)?;
        }
        Ok(Self(fd))
    }
}

impl Closer {
    pub(crate) fn of(fd: &Shared) -> Self {
        Self(fd.clone())
    }
}

impl rt_abstract::Closer for Closer {
    fn kill(&self) {
        // An error says that it is not connected any more.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

impl rt_abstract::Stream for Stream {
    type ReadHalf = ReadHalf;
    type WriteHalf = WriteHalf;
    type Closer = Closer;

    fn into_split(self) -> (ReadHalf, WriteHalf) {
        (ReadHalf(self.0.clone()), WriteHalf(self.0))
    }

    fn closer(&self) -> Closer {
        Closer::of(&self.0)
    }

    fn into_socket(self) -> io::Result<rt_abstract::Socket> {
        Rc::try_unwrap(self.0).map(rt_abstract::Socket::from).map_err(|_| {
            io::Error::new(ErrorKind::ResourceBusy, "an operation or a closer holds the stream")
        })
    }
}

/// The readiness driver calls the kernel itself and must not block; io_uring waits by itself, and
/// some kernels give up early on a descriptor that does not block.
pub(crate) fn set_mode(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, is_polling())?)
}

/// Waits until the descriptor can be read, or has ended. Holds no buffer.
pub(crate) async fn readable(fd: &Shared) -> io::Result<()> {
    submit(PollOnce::new(fd.clone(), Interest::Readable)).await.0.map(drop)
}

macro_rules! reads {
    ($type:ty) => {
        impl AsyncRead for $type {
            async fn read<B: IoBufMut>(&mut self, buf: B) -> Outcome<usize, B> {
                read(&self.0, buf).await
            }

            async fn read_lazy<B: IoBufMut>(
                &mut self,
                get: impl FnMut() -> B,
                put: impl FnMut(B),
            ) -> Outcome<usize, Option<B>> {
                read_lazy(&self.0, get, put).await
            }
        }
    };
}

macro_rules! writes {
    ($type:ty) => {
        impl AsyncWrite for $type {
            async fn write<B: IoBuf>(&mut self, buf: B) -> Outcome<usize, B> {
                let (result, rest) = send(&self.0, Rest::of(buf)).await;
                (result, rest.into_inner())
            }

            async fn writev<B: IoBuf>(&mut self, bufs: Vec<B>) -> Outcome<usize, Vec<B>> {
                let (result, pieces) = send_pieces(&self.0, Pieces::of(bufs)).await;
                (result, pieces.into_inner())
            }

            async fn write_all<B: IoBuf>(&mut self, buf: B) -> Outcome<(), B> {
                let mut rest = Rest::of(buf);
                while !rest.is_done() {
                    let result;
                    (result, rest) = send(&self.0, rest).await;
                    match taken(result) {
                        Ok(count) => rest.advance(count),
                        Err(error) => return (Err(error), rest.into_inner()),
                    }
                }
                (Ok(()), rest.into_inner())
            }

            async fn writev_all<B: IoBuf>(&mut self, bufs: Vec<B>) -> Outcome<(), Vec<B>> {
                let mut pieces = Pieces::of(bufs);
                while !pieces.is_done() {
                    let result;
                    (result, pieces) = send_pieces(&self.0, pieces).await;
                    match taken(result) {
                        Ok(count) => pieces.advance(count),
                        Err(error) => return (Err(error), pieces.into_inner()),
                    }
                }
                (Ok(()), pieces.into_inner())
            }

            async fn shutdown(&mut self) -> io::Result<()> {
                match shutdown(&self.0, Shutdown::Write) {
                    // The peer has reset the connection: there is no direction left to end.
                    Err(Errno::NOTCONN) => Ok(()),
                    result => Ok(result?),
                }
            }
        }
    };
}

reads!(Stream);
reads!(ReadHalf);
writes!(Stream);
writes!(WriteHalf);

async fn read<B: IoBufMut>(fd: &Shared, buf: B) -> Outcome<usize, B> {
    let mut spare = match Spare::of(buf) {
        Ok(spare) => spare,
        Err(buf) => return (Err(no_room()), buf),
    };
    loop {
        let result;
        if is_polling() {
            // compio's operation would complete without a turn of the loop while bytes are there:
            // a peer that never stops sending could keep the core to itself.
            result = match readable(fd).await {
                Ok(()) => receive(fd, &mut spare),
                Err(error) => Err(error),
            };
        } else {
            let op = Recv::new(fd.clone(), spare, RecvFlags::empty());
            let op = submit(op).await;
            (result, spare) = (op.0, op.1.into_inner());
        }
        match result {
            // SAFETY: the kernel reported that it wrote `count` bytes there.
            Ok(count) => return (Ok(count), unsafe { spare.filled(count) }),
            Err(error) if came_to_nothing(&error) => {}
            Err(error) => return (Err(error), spare.into_inner()),
        }
    }
}

async fn read_lazy<B: IoBufMut>(
    fd: &Shared,
    mut get: impl FnMut() -> B,
    mut put: impl FnMut(B),
) -> Outcome<usize, Option<B>> {
    loop {
        if let Err(error) = readable(fd).await {
            return (Err(error), None);
        }
        let mut spare = match Spare::of(get()) {
            Ok(spare) => spare,
            Err(buf) => return (Err(no_room()), Some(buf)),
        };
        match receive(fd, &mut spare) {
            // SAFETY: the kernel reported that it wrote `count` bytes there.
            Ok(count) => return (Ok(count), Some(unsafe { spare.filled(count) })),
            Err(error) if came_to_nothing(&error) => put(spare.into_inner()),
            Err(error) => return (Err(error), Some(spare.into_inner())),
        }
    }
}

/// Takes what is there.
fn receive<B: IoBufMut>(fd: &Shared, spare: &mut Spare<B>) -> io::Result<usize> {
    let (_, count) = rustix::net::recv(fd, spare.as_uninit(), RecvFlags::DONTWAIT)?;
    Ok(count)
}

async fn send<B: IoBuf>(fd: &Shared, mut rest: Rest<B>) -> Outcome<usize, Rest<B>> {
    loop {
        // Without NOSIGNAL a peer that is gone would raise SIGPIPE.
        let op = Send::new(fd.clone(), rest, SendFlags::NOSIGNAL);
        let BufResult(result, op) = submit(op).await;
        rest = op.into_inner();
        if !is_interrupted(&result) {
            return (result, rest);
        }
    }
}

async fn send_pieces<B: IoBuf>(fd: &Shared, mut pieces: Pieces<B>) -> Outcome<usize, Pieces<B>> {
    loop {
        let op = SendVectored::new(fd.clone(), pieces, SendFlags::NOSIGNAL);
        let BufResult(result, op) = submit(op).await;
        pieces = op.into_inner();
        if !is_interrupted(&result) {
            return (result, pieces);
        }
    }
}

/// No progress would loop forever.
pub(crate) fn taken(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::Error::new(ErrorKind::WriteZero, "the kernel took no bytes")),
        result => result,
    }
}

pub(crate) fn no_room() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "the buffer has no spare capacity")
}

fn is_interrupted(result: &io::Result<usize>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted)
}

fn came_to_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
