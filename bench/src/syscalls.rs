//! Counting the system calls of a process, where the kernel lets us: with its tracepoint
//! `raw_syscalls:sys_enter`, for threads that exist when it begins and for those that they start.
//!
//! Each call costs the process some more while it is counted: CPU times and latencies of such a run
//! say nothing.

use std::fs;
use std::io;

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};

/// Where tracefs may be mounted.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// A count under way.
#[derive(Debug)]
pub struct Syscalls {
    /// One for each thread.
    counters: Vec<Counter>,
}

impl Syscalls {
    /// Counts from now on.
    ///
    /// # Errors
    /// Why they cannot be counted here, as a clause.
    pub fn of(pid: u32) -> Result<Self, String> {
        let id = TRACEFS
            .iter()
            .find_map(|at| {
                fs::read_to_string(format!("{at}/events/raw_syscalls/sys_enter/id")).ok()
            })
            .and_then(|id| id.trim().parse().ok())
            .ok_or("tracefs cannot be read (root may mount it: mount -t tracefs none /sys/kernel/tracing)")?;
        let threads = fs::read_dir(format!("/proc/{pid}/task"))
            .map_err(|error| format!("the threads of {pid} cannot be read: {error}"))?;
        let mut counters = Vec::new();
        for thread in threads.flatten() {
            let name = thread.file_name();
            let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            match counter(id, thread) {
                Ok(counter) => counters.push(counter),
                // It ended meanwhile.
                Err(error) if error.raw_os_error() == Some(NO_SUCH_PROCESS) => {}
                Err(error) => return Err(format!("the kernel does not count them: {error}")),
            }
        }
        Ok(Self { counters })
    }

    /// Calls so far; `None` when a counter cannot be read.
    pub fn total(&mut self) -> Option<u64> {
        self.counters.iter_mut().map(|counter| counter.read().ok()).sum()
    }
}

const NO_SUCH_PROCESS: i32 = rustix::io::Errno::SRCH.raw_os_error();

fn counter(id: u64, thread: i32) -> io::Result<Counter> {
    // The tracepoint itself lies in the kernel, which is left out unless asked for.
    let mut counter = Builder::new(Tracepoint::with_id(id))
        .observe_pid(thread)
        .any_cpu()
        .inherit(true)
        .include_kernel()
        .build()?;
    counter.enable()?;
    Ok(counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_called_or_says_why_not() {
        let mut syscalls = match Syscalls::of(std::process::id()) {
            Ok(syscalls) => syscalls,
            Err(reason) => return assert!(!reason.is_empty()),
        };
        let before = syscalls.total().unwrap();
        for _ in 0..100 {
            std::hint::black_box(rustix::process::getppid());
        }
        assert!(syscalls.total().unwrap() >= before + 100);
        assert!(Syscalls::of(u32::MAX).is_err());
    }
}
