//! Which of compio's two drivers a core uses, and with which ring flags.

use std::io::{self, ErrorKind};
use std::time::Duration;

use compio::driver::op::OpCodeFlag;
use compio::driver::{AsyncifyPool, DriverType, ProactorBuilder};
use compio::runtime::{Runtime, RuntimeBuilder};
use rt_abstract::{Probe, RunOptions, Scheduler};

/// Tasks of other cores and threads that can have woken a task here between two turns of the
/// loop. A waker that finds this queue full spins until the loop has turned, and two cores could
/// spin for each other: it must never fill. One task takes at most one place, and only mailboxes
/// and signals wake across cores, so hundreds would be many.
const REMOTE_WAKES: usize = 4096;

/// The driver of all cores of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Completion I/O with the best ring flags that this kernel takes.
    IoUring(RingFlags),
    /// Readiness I/O over epoll.
    Polling,
}

/// How the ring hands completions over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingFlags {
    /// Linux 6.1: completions are worked off when the loop waits for them, and only then.
    Deferred,
    /// Linux 5.19: without interrupting the thread.
    Cooperative,
    /// Older.
    Plain,
}

/// What this machine offers, by the size of ring that runs by default.
pub(crate) fn probe() -> Probe {
    let (driver, fallback_reason) = match try_rings(RunOptions::default().ring_entries) {
        Ok(_) => ("io_uring", None),
        Err(reason) => ("epoll", Some(reason)),
    };
    Probe { driver, completion: true, fallback_reason, schedulers: vec![Scheduler::ThreadPerCore] }
}

/// The driver for a run with `options`.
///
/// # Errors
/// `ErrorKind::Unsupported` when io_uring is required and refused.
pub(crate) fn choose(options: &RunOptions) -> io::Result<Driver> {
    let refused = if options.force_fallback {
        "force_fallback excludes it".to_string()
    } else {
        match try_rings(options.ring_entries) {
            Ok(flags) => return Ok(Driver::IoUring(flags)),
            Err(reason) => reason,
        }
    };
    if options.require_io_uring {
        return Err(io::Error::new(
            ErrorKind::Unsupported,
            format!("io_uring is required but cannot be used: {refused}"),
        ));
    }
    Ok(Driver::Polling)
}

/// Builds the runtime of the calling thread; a ring belongs to the thread that makes it.
pub(crate) fn build(driver: Driver, entries: u32, pool: AsyncifyPool) -> io::Result<Runtime> {
    let mut proactor = builder(driver, entries);
    proactor.reuse_thread_pool(pool);
    RuntimeBuilder::new().with_proactor(proactor).sync_queue_size(REMOTE_WAKES).build()
}

/// A pool of blocking threads, for all cores of a run.
pub(crate) fn pool(threads: usize) -> AsyncifyPool {
    AsyncifyPool::new(threads, Duration::from_secs(10))
}

/// Whether the calling core's driver is the readiness driver.
pub(crate) fn is_polling() -> bool {
    Runtime::with_current(|runtime| runtime.driver_type().is_polling())
}

fn builder(driver: Driver, entries: u32) -> ProactorBuilder {
    let mut builder = ProactorBuilder::new();
    builder.capacity(entries);
    match driver {
        Driver::Polling => {
            builder.driver_type(DriverType::Poll);
        }
        Driver::IoUring(flags) => {
            builder.driver_type(DriverType::IoUring);
            match flags {
                RingFlags::Deferred => builder.single_issuer(true).defer_taskrun(true),
                RingFlags::Cooperative => builder.coop_taskrun(true),
                RingFlags::Plain => &mut builder,
            };
        }
    }
    builder
}

/// The best flags that a ring of this size can be made with, or why none can.
fn try_rings(entries: u32) -> Result<RingFlags, String> {
    let mut refusal = None;
    for flags in [RingFlags::Deferred, RingFlags::Cooperative, RingFlags::Plain] {
        match try_ring(Driver::IoUring(flags), entries) {
            Ok(()) => return Ok(flags),
            // Unknown flags are EINVAL; everything else would fail the same way again.
            Err(error) if error.kind() == ErrorKind::InvalidInput => refusal = Some(error),
            Err(error) => return Err(explain(&error, entries)),
        }
    }
    Err(refusal.map_or_else(String::new, |error| explain(&error, entries)))
}

fn try_ring(driver: Driver, entries: u32) -> io::Result<()> {
    let mut builder = builder(driver, entries);
    // First without the check of the operations, whose own failure to make a ring says nothing.
    drop(builder.build()?);
    builder.detect_opcode_support(OpCodeFlag::basic());
    drop(builder.build()?);
    Ok(())
}

fn explain(error: &io::Error, entries: u32) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => format!(
            "io_uring_setup was refused ({error}): by a seccomp profile, as containers have, or by \
             the sysctl kernel.io_uring_disabled"
        ),
        ErrorKind::OutOfMemory => format!(
            "no memory for a ring of {entries} entries ({error}): lower the number of entries or \
             raise the limit of locked memory"
        ),
        ErrorKind::Unsupported => format!("this kernel's io_uring is missing or too old ({error})"),
        _ => format!("io_uring_setup failed ({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fallback_can_be_forced_but_not_required_away() {
        let forced = RunOptions { force_fallback: true, ..RunOptions::default() };
        assert_eq!(choose(&forced).expect("works everywhere"), Driver::Polling);
        let both = RunOptions { require_io_uring: true, ..forced };
        let error = choose(&both).expect_err("contradiction");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("force_fallback"), "{error}");
    }

    #[test]
    fn probe_and_choice_agree() {
        let chosen = choose(&RunOptions::default()).expect("falls back at worst");
        let probe = probe();
        assert_eq!(probe.driver == "epoll", chosen == Driver::Polling);
        assert_eq!(probe.fallback_reason.is_some(), chosen == Driver::Polling);
    }

    #[test]
    fn reasons_say_what_to_do() {
        let text = |code| explain(&io::Error::from_raw_os_error(code), 4096);
        assert!(text(1).contains("seccomp"));
        assert!(text(12).contains("4096 entries"));
        assert!(text(38).contains("too old"));
    }
}
