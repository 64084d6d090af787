//! Connecting.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use rt_abstract::Address;
use socket2::{Domain, SockAddr, Socket as NewSocket, Type};

use crate::socket::Socket;
use crate::stream::Stream;

/// How long a full accept queue of a Unix socket is waited for: from 1 ms on, doubling, about
/// two seconds in all.
const UNIX_RETRIES: u32 = 11;

/// Connects a new socket to `address`.
pub(crate) async fn connect(address: &Address) -> io::Result<Stream> {
    let (domain, target) = match address {
        Address::Tcp(addr) => (Domain::for_address(*addr), SockAddr::from(*addr)),
        Address::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
    };
    let socket = NewSocket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?;
    if domain != Domain::UNIX {
        socket.set_tcp_nodelay(true)?;
    }
    let mut attempts = 0;
    loop {
        match socket.connect(&target) {
            Ok(()) => return Stream::new(socket.into()),
            Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => break,
            // A Unix socket does not tell when its accept queue has room again.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempts < UNIX_RETRIES => {
                tokio::time::sleep(Duration::from_millis(1 << attempts)).await;
                attempts += 1;
            }
            Err(error) => return Err(error),
        }
    }
    let socket = Socket::stream(socket.into())?;
    poll_fn(|cx| socket.poll_connected(cx)).await?;
    Ok(Stream::from_socket(socket))
}

const IN_PROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();
