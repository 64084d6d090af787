//! Listeners, TCP and Unix-domain.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;

use monoio::net::{TcpListener, TcpStream, UnixListener};
use rt_abstract::{Address, Peer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{DupFlags, Errno, FdFlags};
use rustix::net::{AddressFamily, Shutdown, SocketFlags};
use socket2::SockRef;

use crate::driver;
use crate::stream::Stream;

/// Accepts TCP or Unix-domain streams.
#[derive(Debug)]
pub struct Listener {
    shared: Rc<Shared>,
}

/// Ends a [`Listener`] from outside; keeps its descriptor open.
#[derive(Clone, Debug)]
pub struct ListenerCloser {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    kind: Kind,
    closed: Cell<bool>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Takes a listening socket over on the calling core.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, !driver::on_ring())?;
        let kind = if rustix::net::sockopt::socket_domain(&fd)? == AddressFamily::UNIX {
            Kind::Unix(UnixListener::from_std(fd.into())?)
        } else {
            // Linux hands this down to every accepted socket: no call per connection.
            SockRef::from(&fd).set_tcp_nodelay(true)?;
            Kind::Tcp(TcpListener::from_std(fd.into())?)
        };
        Ok(Self { shared: Rc::new(Shared { kind, closed: Cell::new(false) }) })
    }
}

impl rt_abstract::Listener for Listener {
    type Stream = Stream;
    type Closer = ListenerCloser;

    async fn accept(&mut self) -> io::Result<(Stream, Peer)> {
        if self.shared.closed.get() {
            return Err(closed());
        }
        let accepted = match &self.shared.kind {
            Kind::Tcp(listener) if driver::on_ring() => {
                let accepted = listener.accept().await;
                accepted.and_then(|(stream, peer)| Ok((from_tcp(stream)?, Peer::Tcp(peer))))
            }
            _ => self.shared.accept_when_ready().await,
        };
        match accepted {
            Err(_) if self.shared.closed.get() => Err(closed()),
            accepted => accepted,
        }
    }

    fn closer(&self) -> ListenerCloser {
        ListenerCloser { shared: self.shared.clone() }
    }

    fn local_address(&self) -> io::Result<Address> {
        let address = SockRef::from(&self.shared.fd()).local_addr()?;
        if let Some(address) = address.as_socket() {
            return Ok(Address::Tcp(address));
        }
        match address.as_pathname() {
            Some(path) => Ok(Address::Unix(path.to_owned())),
            None => Err(io::Error::other("the listening socket has no name")),
        }
    }
}

impl rt_abstract::Closer for ListenerCloser {
    fn kill(&self) {
        self.shared.closed.set(true);
        // Of a listener that is shut down already, there is nothing left to end.
        let _ = rustix::net::shutdown(self.shared.fd(), Shutdown::Both);
    }
}

impl Shared {
    /// Waits for readiness and accepts by a system call.
    ///
    /// On epoll this saves registering the socket twice. Unix-domain listeners need it everywhere:
    /// after a shutdown the kernel answers an accept that may not block with "try again".
    async fn accept_when_ready(&self) -> io::Result<(Stream, Peer)> {
        let flags = match driver::on_ring() {
            true => SocketFlags::CLOEXEC,
            false => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        };
        loop {
            match &self.kind {
                Kind::Tcp(listener) => listener.readable(false).await?,
                Kind::Unix(listener) => listener.readable(false).await?,
            }
            if self.closed.get() {
                return Err(closed());
            }
            let (fd, peer) = match rustix::net::acceptfrom_with(self.fd(), flags) {
                // Another core that listens on the same socket was faster.
                Err(Errno::AGAIN | Errno::INTR) => continue,
                accepted => accepted?,
            };
            let peer = match peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
                Some(peer) => Peer::Tcp(peer),
                None => Peer::Unix,
            };
            return Ok((Stream::prepared(fd)?, peer));
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        let fd = match &self.kind {
            Kind::Tcp(listener) => listener.as_raw_fd(),
            Kind::Unix(listener) => listener.as_raw_fd(),
        };
        // SAFETY: the listener keeps the descriptor open for as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Shared {
    /// On io_uring monoio only queues the close, and until the next turn the socket would go on
    /// listening: who binds its address again now would find it in use. So the descriptor is put
    /// on something harmless first, which closes the socket at once.
    fn drop(&mut self) {
        if !driver::on_ring() {
            return;
        }
        let Ok(harmless) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
        // SAFETY: the descriptor is open, and stays the listener's: it is not closed here.
        let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(self.fd().as_raw_fd()) });
        // If it fails, the queued close does it a little later.
        let _ = rustix::io::dup3(&harmless, &mut fd, DupFlags::CLOEXEC);
    }
}

/// Leaves monoio's TCP type, and the addresses that it caches, behind.
pub(crate) fn from_tcp(stream: TcpStream) -> io::Result<Stream> {
    // SAFETY: the descriptor is open, and `into_raw_fd` has just given up its ownership.
    let fd = unsafe { OwnedFd::from_raw_fd(stream.into_raw_fd()) };
    // monoio's accept does not ask for it on io_uring.
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Stream::prepared(fd)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the listener was closed")
}
