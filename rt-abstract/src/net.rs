//! Addresses, listeners and streams: TCP and Unix-domain sockets behind one type each.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::io::{AsyncRead, AsyncWrite, Closer};
use crate::send::MaybeSend;
use crate::socket::Socket;

/// Where to listen or connect: `127.0.0.1:1883`, `[::1]:1883` or `unix:/run/gearbox.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix-domain stream socket.
    Unix(PathBuf),
}

/// Who is on the other side of an accepted stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP peer.
    Tcp(SocketAddr),
    /// A local peer over a Unix-domain socket, which has no address.
    Unix,
}

/// Accepts streams.
pub trait Listener: MaybeSend + 'static {
    /// The streams it accepts.
    type Stream: Stream;
    /// Ends it from outside.
    type Closer: Closer;

    /// Waits for the next peer. Accepted TCP streams have `TCP_NODELAY` set.
    ///
    /// One accept is kept pending for the listener's life: dropping the future on a completion
    /// backend can close a connection that was already accepted. End it with the closer.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + MaybeSend;

    /// A handle that ends the listener: the pending accept and all later ones fail.
    fn closer(&self) -> Self::Closer;

    /// The address it is bound to, with the port that the kernel chose.
    fn local_address(&self) -> io::Result<Address>;
}

/// A connected stream.
pub trait Stream: AsyncRead + AsyncWrite {
    /// The reading half.
    type ReadHalf: AsyncRead;
    /// The writing half. Dropping it sends nothing: the stream ends by `shutdown`, by a kill, or
    /// when the last handle is dropped.
    type WriteHalf: AsyncWrite;
    /// Ends the stream from outside.
    type Closer: Closer;

    /// Splits the stream so that one task reads while another writes.
    fn into_split(self) -> (Self::ReadHalf, Self::WriteHalf);

    /// A handle that ends the stream.
    fn closer(&self) -> Self::Closer;

    /// Gives the socket up, so that another core can adopt it with `Runtime::adopt`. No operation
    /// may be pending and no closer alive, else `ErrorKind::ResourceBusy`. Bytes not read yet stay
    /// in the socket.
    fn into_socket(self) -> io::Result<Socket>;
}

/// Binds and listens, without blocking, and returns the descriptor for `Runtime::listener`.
///
/// `backlog` is the length of the kernel's accept queue; the kernel caps it at `somaxconn`. A
/// Unix socket file that nobody listens on any more is replaced; one that answers is
/// `ErrorKind::AddrInUse`, as is a TCP port that is taken.
pub fn bind(address: &Address, backlog: i32) -> io::Result<OwnedFd> {
    use socket2::{Domain, SockAddr, Socket, Type};
    let (domain, sock_addr) = match address {
        Address::Tcp(addr) => (Domain::for_address(*addr), SockAddr::from(*addr)),
        Address::Unix(path) => {
            remove_stale_socket(path)?;
            (Domain::UNIX, SockAddr::unix(path)?)
        }
    };
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?;
    if matches!(address, Address::Tcp(_)) {
        // Allows a restart while old connections are in TIME_WAIT; a live listener still refuses.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&sock_addr)?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// The address that a listening descriptor is bound to, with the port that the kernel chose.
pub fn bound_address(fd: &impl AsFd) -> io::Result<Address> {
    let address = socket2::SockRef::from(fd).local_addr()?;
    if let Some(tcp) = address.as_socket() {
        return Ok(Address::Tcp(tcp));
    }
    match address.as_pathname() {
        Some(path) => Ok(Address::Unix(path.into())),
        None => Err(io::Error::new(io::ErrorKind::Unsupported, "not a TCP or named Unix socket")),
    }
}

/// Removes the file of a Unix-domain listener that has ended. Best effort: one that stays is
/// replaced by the next [`bind`].
pub fn remove_socket_file(address: &Address) {
    if let Address::Unix(path) = address {
        let _ = std::fs::remove_file(path);
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix => f.write_str("unix"),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: needs a path".into());
            }
            return Ok(Self::Unix(path.into()));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            format!("'{text}' is neither an IP address with a port (127.0.0.1:1883) nor unix:PATH")
        })
    }
}

fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Ok(()); // bind reports it as in use
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        _ => Ok(()),
    }
}
