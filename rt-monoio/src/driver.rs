//! Which driver runs: io_uring where the kernel lets us, else monoio's epoll driver.

use std::cell::Cell;
use std::future::Future;
use std::io;

use io_uring::{IoUring, Probe as Operations, opcode};
use monoio::time::TimeDriver;
use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};
use rt_abstract::{Probe, RunOptions, Scheduler};

/// Entries of the ring that is built only to see whether that works.
const TRIAL_ENTRIES: u32 = 8;

/// Completion entries per submission entry. Every connection has an operation pending, so many
/// more can complete in one turn than are submitted in one; what overflows the ring is kept by the
/// kernel, but at a price.
const COMPLETIONS_PER_ENTRY: u32 = 4;

thread_local! {
    static ON_RING: Cell<bool> = const { Cell::new(false) };
}

/// What was found to work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// io_uring, set up in this way.
    Ring(Setup),
    /// monoio's epoll driver.
    Legacy,
}

/// How rings are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setup {
    /// One thread submits, and completions wait until it enters the kernel (Linux 6.0).
    Cooperative,
    /// As in Linux 5.11.
    Plain,
}

/// A runtime that is ready to run one core.
pub(crate) enum Built {
    Ring(monoio::Runtime<TimeDriver<IoUringDriver>>),
    Legacy(monoio::Runtime<TimeDriver<LegacyDriver>>),
}

/// Whether the calling core's driver is io_uring.
pub(crate) fn on_ring() -> bool {
    ON_RING.get()
}

pub(crate) fn probe() -> Probe {
    let (driver, fallback_reason) = match try_ring() {
        Ok(_) => ("io_uring", None),
        Err(reason) => ("epoll", Some(reason)),
    };
    Probe { driver, completion: true, fallback_reason, schedulers: vec![Scheduler::ThreadPerCore] }
}

/// Picks the driver for `options`.
///
/// # Errors
/// `ErrorKind::Unsupported` when they require io_uring and it does not work.
pub(crate) fn plan(options: &RunOptions) -> io::Result<Plan> {
    if options.force_fallback && !options.require_io_uring {
        return Ok(Plan::Legacy);
    }
    match try_ring() {
        Ok(setup) if !options.force_fallback => Ok(Plan::Ring(setup)),
        Err(_) if !options.require_io_uring => Ok(Plan::Legacy),
        Ok(_) => Err(unsupported("io_uring is required and the fallback is forced".into())),
        Err(reason) => Err(unsupported(format!("io_uring is required, but {reason}"))),
    }
}

impl Plan {
    /// Builds a runtime for the calling thread.
    pub(crate) fn build(&self, entries: u32) -> io::Result<Built> {
        match self {
            Self::Ring(setup) => RuntimeBuilder::<IoUringDriver>::new()
                .with_entries(entries)
                .uring_builder(setup.builder(Some(entries.saturating_mul(COMPLETIONS_PER_ENTRY))))
                .enable_timer()
                .build()
                .map(Built::Ring)
                .map_err(|error| too_large(&error, entries)),
            Self::Legacy => RuntimeBuilder::<LegacyDriver>::new()
                .with_entries(entries)
                .enable_timer()
                .build()
                .map(Built::Legacy),
        }
    }
}

impl Built {
    pub(crate) fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        ON_RING.set(matches!(self, Self::Ring(_)));
        match self {
            Self::Ring(runtime) => runtime.block_on(future),
            Self::Legacy(runtime) => runtime.block_on(future),
        }
    }
}

impl Setup {
    const ALL: [Self; 2] = [Self::Cooperative, Self::Plain];

    /// Deferred task work (`DEFER_TASKRUN`) is left out on purpose: the kernel then posts
    /// completions only when asked to wait, and monoio does not ask while other threads keep
    /// waking it or tasks keep the queue full, so sockets would starve exactly under load. In an
    /// echo over 64 connections it saved no processor time either.
    fn builder(self, completions: Option<u32>) -> io_uring::Builder {
        let mut builder = IoUring::builder();
        if self == Self::Cooperative {
            builder.setup_single_issuer().setup_coop_taskrun().setup_submit_all();
        }
        if let Some(entries) = completions {
            builder.setup_clamp().setup_cqsize(entries);
        }
        builder
    }
}

/// The best setup that this kernel takes, or why there is none.
fn try_ring() -> Result<Setup, String> {
    let mut refusal = String::new();
    for setup in Setup::ALL {
        match setup.builder(None).build(TRIAL_ENTRIES) {
            Ok(ring) => return check_operations(&ring).map(|()| setup),
            Err(error) => refusal = refused(&error),
        }
    }
    Err(refusal)
}

fn refused(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM) => ": a seccomp profile or kernel.io_uring_disabled forbids it",
        Some(libc::ENOSYS) => ": this kernel has none, or a seccomp profile hides it",
        _ => "",
    };
    format!("io_uring_setup failed: {error}{hint}")
}

fn check_operations(ring: &IoUring) -> Result<(), String> {
    let mut known = Operations::new();
    ring.submitter()
        .register_probe(&mut known)
        .map_err(|error| format!("io_uring cannot list its operations: {error}"))?;
    let needed = [
        ("accept", opcode::Accept::CODE),
        ("cancel", opcode::AsyncCancel::CODE),
        ("close", opcode::Close::CODE),
        ("connect", opcode::Connect::CODE),
        ("fsync", opcode::Fsync::CODE),
        ("openat", opcode::OpenAt::CODE),
        ("poll", opcode::PollAdd::CODE),
        ("read", opcode::Read::CODE),
        ("recv", opcode::Recv::CODE),
        ("send", opcode::Send::CODE),
        ("statx", opcode::Statx::CODE),
        ("timeout", opcode::Timeout::CODE),
        ("write", opcode::Write::CODE),
        ("writev", opcode::Writev::CODE),
    ];
    match needed.into_iter().find(|&(_, code)| !known.is_supported(code)) {
        None => Ok(()),
        Some((name, _)) => Err(format!("this kernel's io_uring has no {name} operation")),
    }
}

fn too_large(error: &io::Error, entries: u32) -> io::Error {
    let text = format!(
        "an io_uring of {entries} entries could not be set up: {error}; a smaller ring or a \
         higher locked-memory limit may help"
    );
    io::Error::new(error.kind(), text)
}

fn unsupported(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
}
