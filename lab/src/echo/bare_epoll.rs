//! As little as a program over epoll can do: one buffer for all connections, one read and one write
//! for what came.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;

use super::READ_BYTES;

const EVENTS: usize = 256;
/// Marks the listener's events.
const LISTENER: u64 = u64::MAX;

/// A connection, and what the socket has not taken yet; nothing is read before it has.
struct Connection {
    stream: TcpStream,
    owed: Vec<u8>,
}

/// Serves for ever.
pub fn serve(listener: OwnedFd) -> io::Result<()> {
    let listener = TcpListener::from(listener);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Vec::with_capacity(EVENTS);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let token = event.data.u64();
            if token == LISTENER {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let data = epoll::EventData::new_u64(connections.len() as u64);
                epoll::add(&epoll, &stream, data, epoll::EventFlags::IN)?;
                connections.push(Some(Connection { stream, owed: Vec::new() }));
                continue;
            }
            let Some(slot) = connections.get_mut(token as usize) else { continue };
            let Some(connection) = slot else { continue };
            let waited = !connection.owed.is_empty();
            match connection.turn(&mut buffer) {
                Ok(true) => {
                    let waits = !connection.owed.is_empty();
                    if waits != waited {
                        let flags =
                            if waits { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
                        let data = epoll::EventData::new_u64(token);
                        epoll::modify(&epoll, &connection.stream, data, flags)?;
                    }
                }
                // Closing takes it out of epoll.
                Ok(false) | Err(_) => *slot = None,
            }
        }
    }
}

impl Connection {
    /// Writes what is owed, or else reads once and writes that; whether it goes on.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        if !self.owed.is_empty() {
            let count = written(&mut self.stream, &self.owed)?;
            self.owed.drain(..count);
            return Ok(true);
        }
        let count = match self.stream.read(buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        };
        let bytes = buffer.get(..count).unwrap_or_default();
        let sent = written(&mut self.stream, bytes)?;
        self.owed.extend_from_slice(&bytes[sent..]);
        Ok(true)
    }
}

/// Bytes that the socket took; 0 when it has no room.
fn written(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match stream.write(bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}
