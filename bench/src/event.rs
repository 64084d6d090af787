//! The clock and the readiness of sockets: plain epoll, none of the runtimes under comparison.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

/// The longest wait, so that bounds are looked at in time.
const MAX_WAIT_NS: u64 = 50_000_000;
/// Events taken at once; more wait in the kernel.
const EVENTS: usize = 512;

/// Nanoseconds since a run began.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

/// Sockets that are waited for.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

/// That a socket is ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// What it was added with.
    pub token: usize,
    /// There is something to read, or the end.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
}

impl Clock {
    /// Starts at 0.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time. In 64 bits it lasts for centuries.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

impl Poller {
    /// Waits for nothing yet. Sleeps of this thread get as exact as the kernel makes them.
    pub fn new() -> io::Result<Self> {
        // The default adds up to 50 us to each sleep. Where it is refused, lateness says so.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS) })
    }

    /// Adds a socket, to read from it and perhaps to write.
    pub fn add(&self, socket: impl AsFd, token: usize, writable: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token as u64);
        Ok(epoll::add(&self.epoll, socket, data, flags(writable))?)
    }

    /// Changes whether room to write is waited for.
    pub fn set(&self, socket: impl AsFd, token: usize, writable: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token as u64);
        Ok(epoll::modify(&self.epoll, socket, data, flags(writable))?)
    }

    /// Takes a socket out.
    pub fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits until something is ready or `timeout_ns` has passed, and fills `ready` anew.
    pub fn wait(&mut self, timeout_ns: u64, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        self.take(ready)?;
        if !ready.is_empty() || timeout_ns == 0 {
            return Ok(());
        }
        // epoll_wait knows milliseconds only; ppoll on the epoll descriptor knows nanoseconds.
        let nanoseconds = timeout_ns.min(MAX_WAIT_NS) as i64;
        let timeout = Timespec { tv_sec: 0, tv_nsec: nanoseconds };
        match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => self.take(ready),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        self.events.clear();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, spare, Some(&now)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            Ready {
                token: data.u64() as usize,
                // An error or a hang-up is found by reading.
                readable: flags != epoll::EventFlags::OUT,
                writable: flags.contains(epoll::EventFlags::OUT),
            }
        }));
        Ok(())
    }
}

fn flags(writable: bool) -> epoll::EventFlags {
    let out = if writable { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
    epoll::EventFlags::IN | out
}
