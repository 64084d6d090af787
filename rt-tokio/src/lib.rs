//! Gearbox on tokio: readiness I/O.
//!
//! What this backend does differently from the completion backends:
//!
//! * **Sockets** wait for epoll to say that a socket is ready and then make the system call; the
//!   kernel never holds a buffer of ours. So a read may be given up without losing bytes, a lazy
//!   read costs nothing more than a plain one, and dropping a pending accept is harmless.
//!   epoll is edge-triggered here: after a read or write that was shorter than asked, readiness
//!   is cleared at once, which saves the system call that would only say "not now". The first
//!   write on a socket does not wait for readiness at all.
//! * **Files** have no readiness. Each operation runs on the runtime's blocking pool
//!   ([`BLOCKING_THREADS_PER_CORE`] threads per core) with its buffers handed over: two thread
//!   switches per operation, which the comparison with the other backends has to mention.
//! * **Schedulers**: thread-per-core (one current-thread runtime per core) in both builds, and
//!   work-stealing (one multi-thread runtime) in the Send build. Under work-stealing a `main` is
//!   a task like any other, pinning is ignored, and [`Runtime::live_tasks`] counts the tasks of
//!   all cores, because tasks belong to none.
//! * `require_io_uring` is refused; `force_fallback` and `ring_entries` mean nothing here.
//!
//! Several listeners on one socket (duplicated descriptors) wake together when a peer arrives;
//! one of them gets it, the others go back to sleep.

mod connect;
mod file;
mod gather;
mod listener;
mod run;
mod socket;
mod spare;
mod stream;
mod task;

use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use rt_abstract::{
    Address, Core, Instant, MaybeSend, OpenOptions, Probe, RunOptions, Runtime, Scheduler, Socket,
    TaskPanicked, os,
};

pub use crate::file::File;
pub use crate::listener::Listener;
pub use crate::run::BLOCKING_THREADS_PER_CORE;
pub use crate::stream::{Closer, ReadHalf, Stream, WriteHalf};
pub use crate::task::JoinHandle;

/// The tokio backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokio;

impl Runtime for Tokio {
    const NAME: &'static str = "tokio";

    type Stream = Stream;
    type Listener = Listener;
    type File = File;
    type JoinHandle<T: MaybeSend + 'static> = JoinHandle<T>;

    fn probe() -> Probe {
        let mut schedulers = vec![Scheduler::ThreadPerCore];
        if run::HAS_WORK_STEALING {
            schedulers.push(Scheduler::WorkStealing);
        }
        Probe { driver: "epoll", completion: false, fallback_reason: None, schedulers }
    }

    fn run_cores<F, Fut, T>(options: &RunOptions, main: F) -> io::Result<Vec<T>>
    where
        F: Fn(Core) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = T> + MaybeSend + 'static,
        T: Send + 'static,
    {
        run::run_cores(options, main)
    }

    fn block_on<F: Future>(options: &RunOptions, future: F) -> io::Result<F::Output> {
        run::block_on(options, future)
    }

    fn spawn<F>(future: F) -> Self::JoinHandle<F::Output>
    where
        F: Future + MaybeSend + 'static,
        F::Output: MaybeSend + 'static,
    {
        task::spawn(future)
    }

    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, TaskPanicked>> + MaybeSend
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        task::spawn_blocking(f)
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + MaybeSend {
        tokio::time::sleep(duration)
    }

    fn yield_now() -> impl Future<Output = ()> + MaybeSend {
        tokio::task::yield_now()
    }

    fn now() -> Instant {
        os::now()
    }

    fn wall_clock_ms() -> u64 {
        os::wall_clock_ms()
    }

    fn fill_random(bytes: &mut [u8]) {
        os::fill_random(bytes);
    }

    fn listener(socket: Socket) -> io::Result<Self::Listener> {
        Listener::new(socket.into_fd()?)
    }

    fn adopt(socket: Socket) -> io::Result<Self::Stream> {
        let fd = socket.into_fd()?;
        // A completion backend, or whoever made the socket, may have left it blocking.
        rustix::io::ioctl_fionbio(&fd, true)?;
        Stream::new(fd)
    }

    fn connect(address: &Address) -> impl Future<Output = io::Result<Self::Stream>> + MaybeSend {
        connect::connect(address)
    }

    fn open(
        path: &Path,
        options: OpenOptions,
    ) -> impl Future<Output = io::Result<Self::File>> + MaybeSend {
        File::open(path.to_owned(), options)
    }

    fn rename(from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend {
        let (from, to) = (from.to_owned(), to.to_owned());
        task::offload(move || std::fs::rename(from, to))
    }

    fn remove_file(path: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend {
        let path = path.to_owned();
        task::offload(move || std::fs::remove_file(path))
    }

    fn sync_dir(path: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend {
        let path = path.to_owned();
        task::offload(move || std::fs::File::open(path)?.sync_all())
    }

    fn live_tasks() -> usize {
        run::live_tasks()
    }
}
