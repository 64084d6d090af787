//! The load on an echo: one thread over plain epoll.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bench::Latencies;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

const EVENTS: usize = 256;
const READ_BYTES: usize = 64 << 10;
/// A server that is silent for so long has lost something.
const SILENCE: Duration = Duration::from_secs(5);

/// Connections to a server, with nothing under way between two runs.
pub struct Load {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// Bytes of a message.
    bytes: usize,
    /// The stream of every connection, from any place of a message on: as long as a read and one
    /// message more.
    pattern: Vec<u8>,
    buffer: Vec<u8>,
}

/// What a run took.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Messages that were back.
    pub messages: u64,
    /// Until the last of them was.
    pub seconds: f64,
}

struct Connection {
    stream: TcpStream,
    /// Bytes that were given to the socket, and that came back.
    sent: u64,
    received: u64,
    /// Bytes that the socket has still to take.
    owed: usize,
    /// When the messages under way were due; at a rate only.
    due: VecDeque<Instant>,
}

impl Load {
    /// Connects.
    pub fn connect(address: SocketAddr, connections: u32, bytes: u32) -> Result<Self, String> {
        Self::try_connect(address, connections, bytes)
            .map_err(|error| format!("{address}: {error}"))
    }

    fn try_connect(address: SocketAddr, connections: u32, bytes: u32) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut all = Vec::new();
        for number in 0..connections {
            let stream = TcpStream::connect(address)?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let data = epoll::EventData::new_u64(number.into());
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN)?;
            all.push(Connection { stream, sent: 0, received: 0, owed: 0, due: VecDeque::new() });
        }
        let bytes = bytes as usize;
        let pattern = (0..READ_BYTES + 2 * bytes).map(|at| (at % bytes) as u8).collect();
        Ok(Self { epoll, connections: all, bytes, pattern, buffer: vec![0; READ_BYTES] })
    }

    /// As fast as it goes with `window` messages under way on each connection.
    pub fn full_speed(&mut self, window: u32, seconds: f64) -> Result<Spent, String> {
        let started = Instant::now();
        let end = started + Duration::from_secs_f64(seconds);
        for connection in &mut self.connections {
            connection.owed = window as usize * self.bytes;
            connection.send(&self.pattern, self.bytes).map_err(text)?;
        }
        let mut messages = 0;
        let mut last = started;
        let mut under_way = u64::from(window) * self.connections.len() as u64;
        let mut events = Vec::with_capacity(EVENTS);
        while under_way > 0 {
            self.wait(&mut events, Some(Duration::from_millis(50)))?;
            let now = Instant::now();
            if events.is_empty() && now - last > SILENCE {
                return Err(format!("{under_way} messages were not sent back"));
            }
            for event in &events {
                let Some(connection) = self.connections.get_mut(event.data.u64() as usize) else {
                    continue;
                };
                let back = connection.receive(&mut self.buffer, &self.pattern, self.bytes)?;
                (messages, under_way) = (messages + back, under_way - back);
                if now < end {
                    under_way += back;
                    connection.owed += back as usize * self.bytes;
                }
                connection.send(&self.pattern, self.bytes).map_err(text)?;
            }
            if !events.is_empty() {
                last = now;
            }
        }
        Ok(Spent { messages, seconds: started.elapsed().as_secs_f64() })
    }

    /// So many messages a second, whatever comes back; each latency runs from when it was due.
    pub fn at_rate(&mut self, rate: f64, seconds: f64) -> Result<(Spent, Latencies), String> {
        let started = Instant::now();
        let total = (rate * seconds) as u64;
        let due = |number: u64| started + Duration::from_secs_f64(number as f64 / rate);
        let mut latencies = Latencies::new();
        let (mut next, mut back, mut last) = (0, 0, started);
        let mut events = Vec::with_capacity(EVENTS);
        let count = self.connections.len() as u64;
        while back < total {
            let now = Instant::now();
            while next < total && due(next) <= now {
                let Some(connection) = self.connections.get_mut((next % count) as usize) else {
                    break;
                };
                connection.due.push_back(due(next));
                connection.owed += self.bytes;
                connection.send(&self.pattern, self.bytes).map_err(text)?;
                next += 1;
            }
            // It has a CPU of its own: sleeping would make it late.
            self.wait(&mut events, Some(Duration::ZERO))?;
            if events.is_empty() && now - last > SILENCE {
                return Err(format!("{} messages were not sent back", next - back));
            }
            for event in &events {
                let Some(connection) = self.connections.get_mut(event.data.u64() as usize) else {
                    continue;
                };
                let here = connection.receive(&mut self.buffer, &self.pattern, self.bytes)?;
                let now = Instant::now();
                for due in connection.due.drain(..here as usize) {
                    latencies.record((now - due).as_nanos() as u64);
                }
                back += here;
                last = now;
                connection.send(&self.pattern, self.bytes).map_err(text)?;
            }
        }
        Ok((Spent { messages: back, seconds: started.elapsed().as_secs_f64() }, latencies))
    }

    fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        timeout: Option<Duration>,
    ) -> Result<(), String> {
        events.clear();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(text(error.into())),
        }
    }
}

impl Connection {
    /// Gives the socket what it takes of what is owed. With a window of a few messages it takes all,
    /// and what it does not take goes with the next answer.
    fn send(&mut self, pattern: &[u8], bytes: usize) -> io::Result<()> {
        while self.owed > 0 {
            let at = (self.sent % bytes as u64) as usize;
            let end = pattern.len().min(at + self.owed);
            match self.stream.write(&pattern[at..end]) {
                Ok(count) => {
                    self.sent += count as u64;
                    self.owed -= count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads once; returns how many messages are back with it.
    fn receive(&mut self, buffer: &mut [u8], pattern: &[u8], bytes: usize) -> Result<u64, String> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err("the server closed a connection".to_owned()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(text(error)),
        };
        let at = (self.received % bytes as u64) as usize;
        if buffer[..count] != pattern[at..at + count] {
            return Err("what came back is not what was sent".to_owned());
        }
        let before = self.received / bytes as u64;
        self.received += count as u64;
        if self.received > self.sent {
            return Err("more came back than was sent".to_owned());
        }
        Ok(self.received / bytes as u64 - before)
    }
}

fn text(error: io::Error) -> String {
    error.to_string()
}
