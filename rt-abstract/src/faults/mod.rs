//! A disk that fails as a test says: [`Faulty`] is a runtime like the one that it wraps, but files
//! under a directory with a [`Disk`] can fail, be slow, be full, and lose their power.
//!
//! Everything is written to real files at once; what is not synced is remembered, so that
//! [`Disk::cut_power`] can take it back. Syncs do not reach the real disk. Not remembered, and so not
//! taken back: `truncate`, and directories that were made.

mod disk;
mod file;
mod state;

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

pub use self::disk::{Disk, Keep};
pub use self::file::FaultyFile;
pub use self::state::Op;

use self::state::HIDDEN;
use crate::fs::OpenOptions;
use crate::net::Address;
use crate::runtime::{Core, Probe, RunOptions, Runtime, TaskPanicked};
use crate::send::MaybeSend;
use crate::socket::Socket;
use crate::time::Instant;

/// The runtime `R` with disks that can fail.
#[derive(Clone, Copy, Debug)]
pub struct Faulty<R>(PhantomData<R>);

impl<R: Runtime> Runtime for Faulty<R> {
    const NAME: &'static str = R::NAME;

    type Stream = R::Stream;
    type Listener = R::Listener;
    type File = FaultyFile<R>;
    type JoinHandle<T: MaybeSend + 'static> = R::JoinHandle<T>;

    fn probe() -> Probe {
        R::probe()
    }

    fn run_cores<F, Fut, T>(options: &RunOptions, main: F) -> io::Result<Vec<T>>
    where
        F: Fn(Core) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = T> + MaybeSend + 'static,
        T: Send + 'static,
    {
        R::run_cores(options, main)
    }

    fn block_on<F: Future>(options: &RunOptions, future: F) -> io::Result<F::Output> {
        R::block_on(options, future)
    }

    fn spawn<F>(future: F) -> Self::JoinHandle<F::Output>
    where
        F: Future + MaybeSend + 'static,
        F::Output: MaybeSend + 'static,
    {
        R::spawn(future)
    }

    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, TaskPanicked>> + MaybeSend
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        R::spawn_blocking(f)
    }

    fn sleep(duration: Duration) -> impl Future<Output = ()> + MaybeSend {
        R::sleep(duration)
    }

    fn yield_now() -> impl Future<Output = ()> + MaybeSend {
        R::yield_now()
    }

    fn now() -> Instant {
        R::now()
    }

    fn wall_clock_ms() -> u64 {
        R::wall_clock_ms()
    }

    fn fill_random(bytes: &mut [u8]) {
        R::fill_random(bytes);
    }

    fn bind(address: &Address, backlog: i32) -> io::Result<Socket> {
        R::bind(address, backlog)
    }

    fn listener(socket: Socket) -> io::Result<Self::Listener> {
        R::listener(socket)
    }

    fn adopt(socket: Socket) -> io::Result<Self::Stream> {
        R::adopt(socket)
    }

    fn connect(address: &Address) -> impl Future<Output = io::Result<Self::Stream>> + MaybeSend {
        R::connect(address)
    }

    async fn open(path: &Path, options: OpenOptions) -> io::Result<Self::File> {
        FaultyFile::open(path, options).await
    }

    async fn rename(from: &Path, to: &Path) -> io::Result<()> {
        let Some(busy) = Disk::begin(from, Op::Rename)? else { return R::rename(from, to).await };
        busy.facts.with(|state| state.rename(from, to))
    }

    async fn remove_file(path: &Path) -> io::Result<()> {
        let Some(busy) = Disk::begin(path, Op::Remove)? else { return R::remove_file(path).await };
        busy.facts.with(|state| state.remove(path))
    }

    async fn sync_dir(path: &Path) -> io::Result<()> {
        let Some(busy) = Disk::begin_in(path, Op::SyncDir)? else {
            return R::sync_dir(path).await;
        };
        busy.facts.with(|state| state.names_are_durable())
    }

    fn live_tasks() -> usize {
        R::live_tasks()
    }

    async fn create_dir(path: &Path) -> io::Result<()> {
        R::create_dir(path).await
    }

    async fn read_dir(path: &Path) -> io::Result<Vec<OsString>> {
        let mut names = R::read_dir(path).await?;
        names.retain(|name| !name.as_encoded_bytes().starts_with(HIDDEN.as_bytes()));
        Ok(names)
    }
}
