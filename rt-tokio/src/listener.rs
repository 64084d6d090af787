//! Listening sockets, TCP or Unix.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rt_abstract::{Address, MaybeSend, Peer};
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::SockRef;

use crate::socket::Socket;
use crate::stream::{Closer, Stream};

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<Socket>,
}

impl Listener {
    /// Takes over a listening socket.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        if SockRef::from(&fd).local_addr()?.as_socket().is_some() {
            // On Linux accepted sockets inherit this, which saves a system call for each.
            rustix::net::sockopt::set_tcp_nodelay(&fd, true)?;
        }
        Ok(Self { socket: Arc::new(Socket::listening(fd)?) })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, Peer)>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (fd, address) = ready!(self.socket.poll_accept(cx, |fd| acceptfrom_with(fd, flags)))?;
        let peer = match address.map(SocketAddr::try_from) {
            Some(Ok(address)) => Peer::Tcp(address),
            _ => Peer::Unix,
        };
        Poll::Ready(Ok((Stream::new(fd)?, peer)))
    }
}

impl rt_abstract::Listener for Listener {
    type Stream = Stream;
    type Closer = Closer;

    fn accept(&mut self) -> impl Future<Output = io::Result<(Stream, Peer)>> + MaybeSend {
        poll_fn(|cx| self.poll_accept(cx))
    }

    fn closer(&self) -> Closer {
        Closer::new(&self.socket)
    }

    fn local_address(&self) -> io::Result<Address> {
        let address = SockRef::from(&*self.socket).local_addr()?;
        if let Some(address) = address.as_socket() {
            return Ok(Address::Tcp(address));
        }
        match address.as_pathname() {
            Some(path) => Ok(Address::Unix(path.to_owned())),
            None => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "neither a TCP socket nor a Unix socket with a path",
            )),
        }
    }
}
