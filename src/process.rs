//! What the kernel is asked to do otherwise for this process, before it has threads.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Prepares the process for up to `max_connections`; what the kernel refuses is logged and done
/// without.
pub fn prepare(max_connections: usize) {
    if let Err(error) = raise_open_files() {
        warn!("cannot raise the limit of open files: {error}");
    }
    if let Err(error) = grow_descriptor_table(max_connections) {
        warn!("cannot make room for open files: {error}");
    }
    if let Err(error) = use_small_pages() {
        warn!("cannot do without huge pages: {error}");
    }
}

/// Descriptors to make room for at most; they take eight bytes each.
const MAX_TABLE: u64 = 65_536;
/// Descriptors that are no connections, about.
const OTHER_FILES: u64 = 512;

/// A connection is a descriptor; the soft limit of many systems is 1024.
fn raise_open_files() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(())
}

/// The kernel doubles a process's table of descriptors when it is full, and with threads it waits
/// 10 to 20 ms for all CPUs each time: the first thousand clients, coming at once, would wait
/// through five of these. So the table grows once, now.
fn grow_descriptor_table(max_connections: usize) -> io::Result<()> {
    let wanted = (max_connections as u64).saturating_add(OTHER_FILES);
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(MAX_TABLE);
    let highest = wanted.min(allowed).min(MAX_TABLE).saturating_sub(1);
    // Closed at once: the table stays as large.
    rustix::io::fcntl_dupfd_cloexec(io::stderr(), highest as i32)?;
    Ok(())
}

/// The allocator asks for huge pages. For a broker they cost 30 MB more memory and the time to clear
/// 2 MB for each one that is touched first, and no difference in throughput could be measured.
fn use_small_pages() -> io::Result<()> {
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_as_many_descriptors_as_connections() {
        raise_open_files().unwrap();
        grow_descriptor_table(1_000).unwrap();
        grow_descriptor_table(usize::MAX).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        let size: u64 = size.trim().parse().unwrap();
        let allowed = getrlimit(Resource::Nofile).current.unwrap_or(MAX_TABLE);
        assert!(size >= allowed.min(MAX_TABLE), "{size} of {allowed}");
    }
}
