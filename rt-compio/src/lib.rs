//! Gearbox on compio: completion I/O over io_uring, one thread per core.
//!
//! What this backend does in its own way:
//!
//! * **Two drivers, chosen once per run.** io_uring where a ring of the wished size can be made,
//!   with `SINGLE_ISSUER` and `DEFER_TASKRUN` (Linux 6.1) or the next best flags; else compio's
//!   polling driver over epoll, and [`Probe::fallback_reason`] says why.
//! * **Sockets** block on io_uring, which waits by itself, and do not block on the polling driver,
//!   which calls the kernel itself. Whoever adopts a descriptor sets its mode.
//! * **A lazy read** is a poll operation, and a non-blocking `recv(2)` once that completes: an idle
//!   connection holds no buffer on either driver. compio's provided buffers would save the second
//!   call, but what they have received and nobody has asked for yet could not stay in the socket
//!   when its descriptor moves to another core.
//! * **A plain read** is one receive operation, which holds the caller's buffer until bytes come.
//! * **Nothing is cancelled.** A read ends by its closer (`shutdown(2)`); compio's `with_cancel`
//!   is not used, because a read cancelled by it was seen never to end in release builds.
//! * **A dropped join handle detaches**, where compio's own would cancel the task.
//! * **Files** go to the ring, except `allocate`, for which compio has no operation. The polling
//!   driver does all file work on the blocking pool, which is shared by all cores and takes 32
//!   calls of each; further ones wait.
//! * **At the end of a core** all its tasks are dropped while its ring still turns, so that the
//!   kernel is done with their buffers before these are freed.

mod blocking;
mod buf;
mod cores;
mod driver;
mod file;
mod listener;
mod stream;
mod task;

use std::io;
use std::path::Path;
use std::time::Duration;

use rt_abstract::{
    Address, Core, Instant, OpenOptions, Probe, RunOptions, Runtime, Socket, TaskPanicked, os,
};

pub use file::File;
pub use listener::Listener;
pub use stream::{Closer, ReadHalf, Stream, WriteHalf};
pub use task::JoinHandle;

/// The compio runtime.
#[derive(Clone, Copy, Debug)]
pub struct Compio;

/// compio adds a sleep to the clock without a check; nobody waits this long.
const LONGEST_SLEEP: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Runtime for Compio {
    const NAME: &'static str = "compio";

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
        blocking::run(f)
    }

    async fn sleep(duration: Duration) {
        compio::time::sleep(duration.min(LONGEST_SLEEP)).await;
    }

    async fn yield_now() {
        task::yield_now().await;
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
        Stream::adopt(socket.into_fd()?)
    }

    async fn connect(address: &Address) -> io::Result<Stream> {
        Stream::connect(address).await
    }

    async fn open(path: &Path, options: OpenOptions) -> io::Result<File> {
        File::open(path, options).await
    }

    async fn rename(from: &Path, to: &Path) -> io::Result<()> {
        file::rename(from, to).await
    }

    async fn remove_file(path: &Path) -> io::Result<()> {
        file::remove(path).await
    }

    async fn sync_dir(path: &Path) -> io::Result<()> {
        file::sync_dir(path).await
    }

    fn live_tasks() -> usize {
        task::live()
    }
}
