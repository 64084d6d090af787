//! Gearbox on monoio: completion I/O over io_uring, one thread and one executor per core.
//!
//! Where io_uring is refused (an old kernel, a container's seccomp profile), cores run on monoio's
//! epoll driver instead; [`Runtime::probe`] says why.
//!
//! # What this backend does differently
//!
//! Beside a comparison with the other backends, know that
//!
//! * **a lazy read costs two operations**, a poll and a receive: monoio has neither provided
//!   buffers nor multishot receives or accepts. On epoll it costs a `poll(2)` and a `recv(2)`;
//! * **accepting over TCP costs one `fcntl(2)`** more on io_uring (monoio does not ask for
//!   close-on-exec); Unix-domain listeners, and all on epoll, wait for readiness and `accept4(2)`;
//! * **handing a socket over costs a `dup`** and a close;
//! * **files have no vectored ring write**: runs of small pieces are copied together (up to 1 MiB)
//!   and written at once, pieces of 64 KiB and more one by one. Allocating, truncating, renaming
//!   and removing go to a blocking pool, as does all file work on epoll;
//! * **a core of its own thread is never the caller's**: `run_cores` starts all of them;
//! * **`ring_entries` below 256 are raised to 256** by monoio; the completion queue has four
//!   times as many;
//! * **timers have millisecond steps** and end up to 2 ms late;
//! * **a task that wakes itself while it is polled runs again before all others**, and while any
//!   task is ready, neither timers nor wake-ups from other threads are served. Only
//!   `Runtime::yield_now` gives way to all of them; it waits for the driver to come round once
//!   (one more ring operation; on epoll three system calls, shared by all who yield);
//! * **a dropped operation is cancelled**, and its buffer is freed only after the kernel let go.
//!   At the end of a core its remaining tasks are dropped and their operations waited for, at most
//!   for a second; what is left then is leaked rather than freed under the kernel;
//! * **vectored writes go without `MSG_NOSIGNAL`**, which monoio's operation cannot carry. Rust
//!   programs ignore `SIGPIPE`, so the write fails with `EPIPE`; a program that resets the signal
//!   would die of it.

mod buf;
mod cores;
mod driver;
mod fs;
mod listener;
mod pool;
mod stream;
mod task;
mod turn;

use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use rt_abstract::{
    Address, Core, Instant, OpenOptions, Probe, RunOptions, Runtime, Socket, TaskPanicked, os,
};

pub use fs::File;
pub use listener::{Listener, ListenerCloser};
pub use stream::{Closer, ReadHalf, Stream, WriteHalf};
pub use task::JoinHandle;

rt_abstract::if_single_threaded!({} else {
    compile_error!("rt-monoio needs the feature single-threaded of rt-abstract");
});

/// The monoio runtime.
#[derive(Clone, Copy, Debug)]
pub struct Monoio;

impl Runtime for Monoio {
    const NAME: &'static str = "monoio";

    type Stream = Stream;
    type Listener = Listener;
    type File = File;
    type JoinHandle<T: 'static> = JoinHandle<T>;

    fn probe() -> Probe {
        driver::probe()
    }

    fn run_cores<F, Fut, T>(options: &RunOptions, main: F) -> io::Result<Vec<T>>
    where
        F: Fn(Core) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        cores::run(options, main)
    }

    fn block_on<F: Future>(options: &RunOptions, future: F) -> io::Result<F::Output> {
        cores::block_on(options, future)
    }

    fn spawn<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        task::spawn(future)
    }

    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, TaskPanicked>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        pool::run(f)
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> {
        monoio::time::sleep(duration)
    }

    fn yield_now() -> impl Future<Output = ()> {
        turn::turn()
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

    fn listener(socket: Socket) -> io::Result<Listener> {
        Listener::new(socket.into_fd()?)
    }

    fn adopt(socket: Socket) -> io::Result<Stream> {
        Stream::new(socket.into_fd()?)
    }

    async fn connect(address: &Address) -> io::Result<Stream> {
        match address {
            Address::Tcp(address) => {
                let stream = monoio::net::TcpStream::connect_addr(*address).await?;
                stream.set_nodelay(true)?;
                listener::from_tcp(stream)
            }
            Address::Unix(path) => {
                monoio::net::UnixStream::connect(path).await.map(Stream::from_monoio)
            }
        }
    }

    fn open(path: &Path, options: OpenOptions) -> impl Future<Output = io::Result<File>> {
        fs::open(path, options)
    }

    fn rename(from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> {
        fs::rename(from, to)
    }

    fn remove_file(path: &Path) -> impl Future<Output = io::Result<()>> {
        fs::remove_file(path)
    }

    fn sync_dir(path: &Path) -> impl Future<Output = io::Result<()>> {
        fs::sync_dir(path)
    }

    fn live_tasks() -> usize {
        task::live()
    }
}
