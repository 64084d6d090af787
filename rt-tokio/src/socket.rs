//! One socket: its descriptor, its place in the readiness driver, and the system calls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::Shutdown;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A non-blocking socket in the driver of the core that made it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: AsyncFd<OwnedFd>,
    /// While no write has found the socket full, writes do not ask the driver first.
    never_full: AtomicBool,
}

/// What a read or write system call did.
pub(crate) struct Moved {
    /// Bytes that were read or written.
    pub bytes: usize,
    /// Bytes that could have been; more than `bytes` means that the socket is empty or full now.
    pub of: usize,
}

impl Socket {
    /// Registers a connected (or connecting) socket.
    pub(crate) fn stream(fd: OwnedFd) -> io::Result<Self> {
        Self::register(fd, Interest::READABLE | Interest::WRITABLE)
    }

    /// Registers a listening socket.
    pub(crate) fn listening(fd: OwnedFd) -> io::Result<Self> {
        Self::register(fd, Interest::READABLE)
    }

    #[allow(unsafe_code)]
    fn register(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` stays open and the same for as long as it is owned, and this one
        // is only lent out as a shared reference.
        let fd = unsafe { AsyncFd::register_with_interest(fd, interest)? };
        Ok(Self { fd, never_full: AtomicBool::new(true) })
    }

    /// The descriptor, out of the driver.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd.into_inner()
    }

    /// Shuts both directions down. That this fails on a socket that is no longer connected is
    /// what the caller wants anyway.
    pub(crate) fn kill(&self) {
        let _ = rustix::net::shutdown(self, Shutdown::Both);
    }

    /// Waits for bytes and makes one read system call through `read`.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<Moved>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut readiness = ready!(self.fd.poll_read_ready(cx))?;
            match read(self.as_fd()) {
                Ok(moved) => {
                    // Shorter than asked: the socket is empty, and epoll reports the next
                    // arrival. At the end of the stream the driver keeps it readable by itself.
                    if moved.is_short() {
                        readiness.clear_ready();
                    }
                    return Poll::Ready(Ok(moved.bytes));
                }
                Err(Errno::AGAIN) => readiness.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Waits for room and makes one write system call through `write`, which is only called when
    /// there is a byte to send.
    pub(crate) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<Moved>,
    ) -> Poll<io::Result<usize>> {
        if self.never_full.load(Ordering::Relaxed) {
            match write(self.as_fd()) {
                Ok(moved) => {
                    if moved.is_short() {
                        self.never_full.store(false, Ordering::Relaxed);
                    }
                    return Poll::Ready(at_least_one(moved));
                }
                Err(Errno::AGAIN) => self.never_full.store(false, Ordering::Relaxed),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        loop {
            // Readiness first: cleared without having been seen before the call, it could be the
            // one that is reported while the call fails, and be lost.
            let mut readiness = ready!(self.fd.poll_write_ready(cx))?;
            match write(self.as_fd()) {
                Ok(moved) => {
                    if moved.is_short() {
                        readiness.clear_ready();
                    }
                    return Poll::Ready(at_least_one(moved));
                }
                Err(Errno::AGAIN) => readiness.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Waits until a connecting socket is connected or has failed.
    pub(crate) fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.fd.poll_write_ready(cx))?.retain_ready();
        Poll::Ready(match rustix::net::sockopt::socket_error(self) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) | Err(error) => Err(error.into()),
        })
    }

    /// Waits for a peer and accepts it through `accept`.
    pub(crate) fn poll_accept<T>(
        &self,
        cx: &mut Context<'_>,
        mut accept: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            let mut readiness = ready!(self.fd.poll_read_ready(cx))?;
            match accept(self.as_fd()) {
                Ok(accepted) => return Poll::Ready(Ok(accepted)),
                // A Unix listener that was shut down has nothing to accept, for ever; the driver
                // goes on calling it readable.
                Err(Errno::AGAIN) if readiness.ready().is_read_closed() => {
                    let text = "the listener was shut down";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, text)));
                }
                Err(Errno::AGAIN) => readiness.clear_ready(),
                // The peer gave up before it was accepted: no error of the listener.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}

impl Moved {
    fn is_short(&self) -> bool {
        self.bytes < self.of
    }
}

/// A stream socket that takes nothing of something would make a write loop spin.
fn at_least_one(moved: Moved) -> io::Result<usize> {
    if moved.bytes == 0 && moved.of > 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(moved.bytes)
}
