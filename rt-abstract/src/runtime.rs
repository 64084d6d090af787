//! The runtime as the broker sees it.

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::fs::{File, OpenOptions};
use crate::net::{self, Address, Listener, Stream};
use crate::os;
use crate::send::MaybeSend;
use crate::socket::Socket;
use crate::time::{Instant, Interval};

/// One async runtime. The type is a name only; all functions act on the executor of the thread
/// that calls them, and panic outside of [`Runtime::run_cores`].
pub trait Runtime: Copy + fmt::Debug + Send + Sync + 'static {
    /// The name in flags, logs and reports: `tokio`, `monoio`, `compio`.
    const NAME: &'static str;

    /// Whether work may have a thread of its own, to block on. A simulation has none: what would be
    /// such a thread is a task there.
    const HAS_THREADS: bool = true;

    /// A connected TCP or Unix-domain stream.
    type Stream: Stream;
    /// A TCP or Unix-domain listener.
    type Listener: Listener<Stream = Self::Stream>;
    /// An open file.
    type File: File;
    /// Waits for a task. Dropping it detaches the task, on every backend.
    type JoinHandle<T: MaybeSend + 'static>: Future<Output = Result<T, TaskPanicked>>
        + MaybeSend
        + Unpin
        + 'static;

    /// What this backend can do on this machine, found by trying.
    fn probe() -> Probe;

    /// Runs `main` once per core and returns all results in core order once every one has ended.
    ///
    /// Tasks that are still alive when a core's `main` ends are dropped; on a completion backend
    /// their pending operations may then lose bytes, so join them first. A panic of a `main` is
    /// returned as an error after the other cores have ended.
    ///
    /// # Errors
    /// `ErrorKind::Unsupported` for a scheduler this build lacks, or for a missing io_uring that
    /// `options` requires; otherwise what the system said.
    fn run_cores<F, Fut, T>(options: &RunOptions, main: F) -> io::Result<Vec<T>>
    where
        F: Fn(Core) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = T> + MaybeSend + 'static,
        T: Send + 'static;

    /// Runs one future to its end on the calling thread, which must not be a core of a run: for
    /// tools and tests whose futures may neither move to another thread nor be `'static`. What it
    /// spawns runs as under [`Runtime::run_cores`], and ends with it.
    ///
    /// `options.pinning` is ignored; `options.cores` counts only under work-stealing, as threads
    /// beside the calling one.
    ///
    /// # Errors
    /// As `run_cores`. A panic of the future is returned as an error.
    fn block_on<F: Future>(options: &RunOptions, future: F) -> io::Result<F::Output>;

    /// Starts a task. A panic inside ends that task alone and reaches whoever joins it.
    fn spawn<F>(future: F) -> Self::JoinHandle<F::Output>
    where
        F: Future + MaybeSend + 'static,
        F::Output: MaybeSend + 'static;

    /// Runs a blocking function on a thread of a bounded pool.
    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, TaskPanicked>> + MaybeSend
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static;

    /// Waits at least `duration`; timers are coarse, up to 2 ms late on an idle machine.
    fn sleep(duration: Duration) -> impl Future<Output = ()> + MaybeSend;

    /// Lets the other ready tasks of this core run first.
    fn yield_now() -> impl Future<Output = ()> + MaybeSend;

    /// The monotonic clock.
    fn now() -> Instant;

    /// Wall-clock milliseconds since 1970, only for deadlines that must survive a restart.
    fn wall_clock_ms() -> u64;

    /// CPU time that the calling thread has used: tells running from waiting to run.
    fn thread_cpu_time() -> Duration {
        os::thread_cpu_time()
    }

    /// Fills `bytes` with unpredictable bytes. May be called outside of a run.
    fn fill_random(bytes: &mut [u8]);

    /// [`crate::bind`], or what comes instead of it where there is no kernel. May be called outside
    /// of a run.
    ///
    /// # Errors
    /// As `bind`.
    fn bind(address: &Address, backlog: i32) -> io::Result<Socket> {
        net::bind(address, backlog).map(Socket::from)
    }

    /// Takes over a listening socket, as [`Runtime::bind`] makes it.
    fn listener(socket: Socket) -> io::Result<Self::Listener>;

    /// Takes over a connected stream socket, TCP or Unix, on this core.
    fn adopt(socket: Socket) -> io::Result<Self::Stream>;

    /// Connects to a peer; TCP streams have `TCP_NODELAY` set.
    fn connect(address: &Address) -> impl Future<Output = io::Result<Self::Stream>> + MaybeSend;

    /// Opens a file.
    fn open(
        path: &Path,
        options: OpenOptions,
    ) -> impl Future<Output = io::Result<Self::File>> + MaybeSend;

    /// Renames a file, replacing the target. Durable only after [`Runtime::sync_dir`].
    fn rename(from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend;

    /// Removes a file. Durable only after [`Runtime::sync_dir`].
    fn remove_file(path: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend;

    /// Makes the names in a directory durable (`fsync` on it).
    fn sync_dir(path: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend;

    /// Tasks spawned on the calling core that have not ended yet.
    fn live_tasks() -> usize;

    /// Creates a directory whose parent exists; one that exists already is fine. Durable only after
    /// [`Runtime::sync_dir`] on the parent.
    fn create_dir(path: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend {
        let path = path.to_owned();
        let work = Self::spawn_blocking(move || os::create_dir(&path));
        async move { work.await.map_err(io::Error::other)? }
    }

    /// The names in a directory, in no order.
    fn read_dir(path: &Path) -> impl Future<Output = io::Result<Vec<OsString>>> + MaybeSend {
        let path = path.to_owned();
        let work = Self::spawn_blocking(move || os::read_dir(&path));
        async move { work.await.map_err(io::Error::other)? }
    }

    /// Ticks every `period`, which must not be zero; the first tick comes after one period.
    /// Missed ticks are skipped.
    fn interval(period: Duration) -> Interval<Self> {
        Interval::new(period)
    }
}

/// Which core a `main` runs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// 0 to `count - 1`.
    pub index: usize,
    /// How many cores run.
    pub count: usize,
}

/// How tokio places tasks on threads; monoio and compio know thread-per-core only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// One thread, one executor, one driver per core; tasks stay where they were spawned.
    #[default]
    ThreadPerCore,
    /// One pool: tasks move to whichever thread is free. Only in the Send build.
    WorkStealing,
}

/// Which CPU a core's thread may run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// Threads go where the kernel puts them.
    #[default]
    None,
    /// Core `i` runs on the `i`-th CPU that this process is allowed to use, modulo their number.
    Auto,
    /// Core `i` runs on the CPU with the `i`-th number of this list, modulo its length.
    Cpus(Vec<usize>),
}

/// How to start.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// How many cores (executors) to run; at least 1.
    pub cores: usize,
    /// Where their threads run. Ignored under work-stealing.
    pub pinning: Pinning,
    /// How tasks are placed.
    pub scheduler: Scheduler,
    /// Entries of each core's io_uring submission queue: a power of two, 64 to 4096. Large rings
    /// can exceed the locked-memory limit.
    pub ring_entries: u32,
    /// Fail with `ErrorKind::Unsupported` where io_uring is refused, instead of falling back.
    pub require_io_uring: bool,
    /// Use the readiness driver even where io_uring works: for tests and comparisons.
    pub force_fallback: bool,
}

/// What a backend can do on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The driver that would be used: `epoll` or `io_uring`.
    pub driver: &'static str,
    /// Whether this backend can use io_uring at all (tokio does not).
    pub completion: bool,
    /// Why the driver is a fallback, when it is one.
    pub fallback_reason: Option<String>,
    /// The schedulers that this build has.
    pub schedulers: Vec<Scheduler>,
}

/// A task ended by a panic; carries the panic's message where it was a string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task panicked: {0}")]
pub struct TaskPanicked(pub String);

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            cores: 1,
            pinning: Pinning::None,
            scheduler: Scheduler::ThreadPerCore,
            ring_entries: 512,
            require_io_uring: false,
            force_fallback: false,
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ThreadPerCore => "thread-per-core",
            Self::WorkStealing => "work-stealing",
        })
    }
}
