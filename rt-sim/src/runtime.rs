//! The simulation as a runtime.

use std::cell::RefCell;
use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use rand::Rng;
use rt_abstract::{
    Address, Core, Instant, MaybeSend, OpenOptions, Probe, RunOptions, Runtime, Scheduler, Socket,
    TaskPanicked,
};

use crate::config::Config;
use crate::task::{self, JoinHandle, Sleep, panic_message};
use crate::world::nodes::NodeId;
use crate::world::tasks::{here, place};
use crate::world::{Seen, World, exists, with};
use crate::{Control, disk, net};

/// The simulated backend. Its functions act on the world of the calling thread.
///
/// [`Runtime::run_cores`] and [`Runtime::block_on`] use that world, between its runs; on a thread
/// without one they make one for this call, with what [`Sim::prepare`] said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sim;

/// The node that programs run on which say nothing about nodes.
const ONLY_NODE: NodeId = NodeId(1);

thread_local! {
    static PREPARED: RefCell<(u64, Config)> = RefCell::default();
}

impl Sim {
    /// The seed and the configuration of worlds that this thread makes by itself.
    pub fn prepare(seed: u64, config: Config) {
        PREPARED.set((seed, config));
    }
}

impl Runtime for Sim {
    const NAME: &'static str = "sim";
    const HAS_THREADS: bool = false;

    type Stream = net::Stream;
    type Listener = net::Listener;
    type File = disk::File;
    type JoinHandle<T: MaybeSend + 'static> = JoinHandle<T>;

    fn probe() -> Probe {
        Probe {
            driver: "simulation",
            completion: true,
            fallback_reason: None,
            schedulers: vec![Scheduler::ThreadPerCore],
        }
    }

    fn run_cores<F, Fut, T>(options: &RunOptions, main: F) -> io::Result<Vec<T>>
    where
        F: Fn(Core) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = T> + MaybeSend + 'static,
        T: Send + 'static,
    {
        check(options)?;
        let _world = own_world()?;
        let cores = Control::current().start_node(ONLY_NODE, options.cores, main);
        let results = crate::world::run::run(NodeId::CLIENTS, cores.join());
        results.map_err(io::Error::other)?.map_err(io::Error::other)
    }

    fn block_on<F: Future>(options: &RunOptions, future: F) -> io::Result<F::Output> {
        check(options)?;
        let world = own_world()?;
        let result = catch_unwind(AssertUnwindSafe(|| crate::world::run::run(ONLY_NODE, future)));
        drop(world);
        match result {
            Ok(result) => result.map_err(io::Error::other),
            Err(panic) => Err(io::Error::other(TaskPanicked(panic_message(&*panic)))),
        }
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
        Sleep::new(duration)
    }

    fn yield_now() -> impl Future<Output = ()> + MaybeSend {
        task::yield_now()
    }

    fn now() -> Instant {
        let node = here().node;
        with(|state| Instant::from_nanos(state.monotonic_ns(node)))
    }

    fn wall_clock_ms() -> u64 {
        let node = here().node;
        with(|state| state.wall_clock_ms(node))
    }

    /// As if nobody had waited: all time is spent running.
    fn thread_cpu_time() -> Duration {
        with(|state| Duration::from_nanos(state.now_ns))
    }

    fn fill_random(bytes: &mut [u8]) {
        with(|state| {
            state.random.programs.fill_bytes(bytes);
            state.saw(Seen::Drawn, bytes.len() as u64, bytes);
        });
    }

    fn bind(address: &Address, backlog: i32) -> io::Result<Socket> {
        net::bind(address, backlog)
    }

    fn listener(socket: Socket) -> io::Result<Self::Listener> {
        net::listener(socket)
    }

    fn adopt(socket: Socket) -> io::Result<Self::Stream> {
        net::Stream::adopt(socket)
    }

    fn connect(address: &Address) -> impl Future<Output = io::Result<Self::Stream>> + MaybeSend {
        net::connect(address.clone())
    }

    fn open(
        path: &Path,
        options: OpenOptions,
    ) -> impl Future<Output = io::Result<Self::File>> + MaybeSend {
        disk::open(path, options)
    }

    fn rename(from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend {
        disk::rename(from, to)
    }

    fn remove_file(path: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend {
        disk::remove_file(path)
    }

    fn sync_dir(path: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend {
        disk::sync_dir(path)
    }

    fn live_tasks() -> usize {
        place().map_or(0, |place| with(|state| state.tasks.live(place)))
    }

    fn create_dir(path: &Path) -> impl Future<Output = io::Result<()>> + MaybeSend {
        disk::create_dir(path)
    }

    fn read_dir(path: &Path) -> impl Future<Output = io::Result<Vec<OsString>>> + MaybeSend {
        disk::read_dir(path)
    }
}

fn check(options: &RunOptions) -> io::Result<()> {
    if options.cores == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no core to run on"));
    }
    if options.scheduler == Scheduler::WorkStealing || options.require_io_uring {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(())
}

/// A world for one call, where the thread has none.
fn own_world() -> io::Result<Option<World>> {
    if place().is_some() {
        let text = "a simulated task cannot wait for another run";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    if exists() {
        return Ok(None);
    }
    let (seed, config) = PREPARED.with_borrow(Clone::clone);
    Ok(Some(World::new(seed, config)))
}
