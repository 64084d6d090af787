//! Accepting streams.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use compio::BufResult;
use compio::buf::IntoInner;
use compio::driver::op::Accept;
use compio::runtime::{Submit, submit};
use rt_abstract::{Address, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};
use socket2::SockRef;

use crate::driver::is_polling;
use crate::stream::{Closer, Shared, Stream, readable, set_mode};

/// A listening TCP or Unix-domain socket.
///
/// It owns the pending accept, so a dropped `accept` future loses no connection: the next call
/// goes on with the same operation.
pub struct Listener {
    fd: Shared,
    pending: Option<Submit<Accept<Shared>>>,
}

impl Listener {
    /// Takes a listening descriptor over.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        set_mode(&fd)?;
        Ok(Self { fd: Shared::new(fd), pending: None })
    }

    /// One attempt through the ring.
    async fn accept_completed(&mut self) -> io::Result<(OwnedFd, Peer)> {
        let fd = &self.fd;
        let pending = self.pending.get_or_insert_with(|| submit(Accept::new(fd.clone())));
        let BufResult(result, op) = pending.await;
        self.pending = None;
        result?;
        let (socket, address) = op.into_inner();
        Ok((socket.into(), address.as_socket().map_or(Peer::Unix, Peer::Tcp)))
    }

    /// One attempt once the socket is ready. Not compio's operation, which would go round for ever
    /// on a Unix listener that was shut down: that is ready, but accepts with `EAGAIN`.
    async fn accept_ready(&self) -> io::Result<(OwnedFd, Peer)> {
        readable(&self.fd).await?;
        match acceptfrom_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok((socket, address)) => {
                let address = address.and_then(|address| SocketAddr::try_from(address).ok());
                Ok((socket, address.map_or(Peer::Unix, Peer::Tcp)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether somebody shut the socket down, be it through another descriptor for it.
    fn is_shut_down(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.fd, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default()))?;
        Ok(polled[0].revents().contains(PollFlags::HUP))
    }
}

impl rt_abstract::Listener for Listener {
    type Stream = Stream;
    type Closer = Closer;

    async fn accept(&mut self) -> io::Result<(Stream, Peer)> {
        loop {
            let accepted = if is_polling() {
                self.accept_ready().await
            } else {
                self.accept_completed().await
            };
            let error = match accepted {
                Ok((socket, peer)) => {
                    if peer != Peer::Unix {
                        sockopt::set_tcp_nodelay(&socket, true)?;
                    }
                    return Ok((Stream::accepted(socket), peer));
                }
                Err(error) => error,
            };
            match error.kind() {
                // The peer was gone before it was accepted.
                ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock if self.is_shut_down()? => {
                    return Err(io::Error::new(ErrorKind::NotConnected, "the listener was killed"));
                }
                // Another core that shares the socket was faster.
                ErrorKind::WouldBlock => readable(&self.fd).await?,
                _ => return Err(error),
            }
        }
    }

    fn closer(&self) -> Closer {
        Closer::of(&self.fd)
    }

    fn local_address(&self) -> io::Result<Address> {
        let address = SockRef::from(&self.fd.as_fd()).local_addr()?;
        address
            .as_socket()
            .map(Address::Tcp)
            .or_else(|| address.as_pathname().map(|path| Address::Unix(path.into())))
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the socket has no address"))
    }
}
