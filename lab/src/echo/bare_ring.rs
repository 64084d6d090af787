//! As little as a program over io_uring can do: one operation under way for each connection, a receive
//! or a send, all submitted with the wait for the next completions.
#![allow(unsafe_code, reason = "the kernel works on memory that its entries name")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types::Fd};
use rustix::io::Errno;

use super::READ_BYTES;

/// Entries of the ring, as the backends take by default.
const ENTRIES: u32 = 512;
/// Marks the accept.
const LISTENER: u64 = u64::MAX;

/// A connection. Its buffer stays where it is as long as the kernel may use it: until the one
/// operation that is under way has ended.
struct Connection {
    fd: OwnedFd,
    buffer: Box<[u8; READ_BYTES]>,
    /// What of the buffer is still to be sent; empty while it receives.
    owed: std::ops::Range<usize>,
}

/// Serves for ever.
pub fn serve(listener: OwnedFd) -> io::Result<()> {
    let mut ring = ring()?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut done: Vec<(u64, i32)> = Vec::with_capacity(ENTRIES as usize);
    push(&mut ring, &accept(&listener))?;
    loop {
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => continue,
            Err(error) => return Err(error),
        }
        done.clear();
        done.extend(
            ring.completion().map(|entry: cqueue::Entry| (entry.user_data(), entry.result())),
        );
        for &(token, result) in &done {
            if token == LISTENER {
                push(&mut ring, &accept(&listener))?;
                if result < 0 {
                    return Err(io::Error::from_raw_os_error(-result));
                }
                // SAFETY: the kernel has just made this descriptor for us, and nobody else has it.
                let fd = unsafe { OwnedFd::from_raw_fd(result) };
                rustix::net::sockopt::set_tcp_nodelay(&fd, true)?;
                let mut connection =
                    Connection { fd, buffer: Box::new([0; READ_BYTES]), owed: 0..0 };
                let entry = connection.next(connections.len() as u64);
                connections.push(Some(connection));
                push(&mut ring, &entry)?;
                continue;
            }
            let Some(slot) = connections.get_mut(token as usize) else { continue };
            let Some(connection) = slot else { continue };
            // 0 and errors end it; nothing of it is under way.
            match usize::try_from(result) {
                Ok(count @ 1..) => {
                    connection.moved(count);
                    let entry = connection.next(token);
                    push(&mut ring, &entry)?;
                }
                _ => *slot = None,
            }
        }
    }
}

impl Connection {
    /// The last operation has moved so many bytes.
    fn moved(&mut self, count: usize) {
        if self.owed.is_empty() {
            self.owed = 0..count;
        } else {
            self.owed.start += count;
        }
    }

    /// The next operation: to send what is owed, or to receive.
    fn next(&mut self, token: u64) -> squeue::Entry {
        let fd = Fd(self.fd.as_raw_fd());
        if self.owed.is_empty() {
            let entry = opcode::Recv::new(fd, self.buffer.as_mut_ptr(), READ_BYTES as u32);
            return entry.build().user_data(token);
        }
        let owed = self.buffer.get(self.owed.clone()).unwrap_or_default();
        opcode::Send::new(fd, owed.as_ptr(), owed.len() as u32).build().user_data(token)
    }
}

/// With the flags that make a ring cheapest for one thread, or without where the kernel has not got
/// them.
fn ring() -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(ENTRIES)
        .or_else(|_| IoUring::new(ENTRIES))
}

fn accept(listener: &OwnedFd) -> squeue::Entry {
    let (address, length) = (std::ptr::null_mut(), std::ptr::null_mut());
    opcode::Accept::new(Fd(listener.as_raw_fd()), address, length)
        .flags(libc::SOCK_CLOEXEC)
        .build()
        .user_data(LISTENER)
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) -> io::Result<()> {
    loop {
        // SAFETY: what the entry names lives until it has completed: the listener as long as the
        // ring, a connection's descriptor and buffer until its only operation has ended.
        if unsafe { ring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        ring.submit()?;
    }
}
