//! Clock, randomness, names, directories and CPU placement of the machine, and what the kernel says
//! about this process: shared by the real backends.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::runtime::Pinning;
use crate::time::Instant;

/// What the kernel says about this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// CPU time used by all threads, user and system, in seconds.
    pub cpu_seconds: Option<f64>,
}

/// The monotonic clock, counted from its first use in this process plus one second, so that
/// arithmetic a little before the start stays positive.
pub fn now() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(1_000_000_000 + u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX / 2))
}

/// CPU time that the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}

/// Wall-clock milliseconds since 1970; 0 for a clock before that.
pub fn wall_clock_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Fills `bytes` from the kernel's generator.
pub fn fill_random(bytes: &mut [u8]) {
    // The kernel's generator fails only on systems without getrandom(2), which Gearbox's minimum
    // kernel has; running on with predictable bytes would be worse than stopping.
    getrandom::fill(bytes).expect("getrandom(2) works on every supported kernel");
}

/// The addresses of `host:port`. Asks the system's resolver, which may block for seconds.
///
/// # Errors
/// What the resolver said.
pub fn resolve(name: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(name.to_socket_addrs()?.collect())
}

/// What the kernel says about this process; what it does not say is left out. Reads two small files
/// that are in memory.
pub fn process_usage() -> ProcessUsage {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    ProcessUsage {
        resident_bytes: resident_bytes(&read("/proc/self/status")),
        cpu_seconds: cpu_seconds(&read("/proc/self/stat")),
    }
}

/// Creates a directory whose parent exists; one that exists already is fine. Blocks.
///
/// # Errors
/// What the system said, also when something else has the name.
pub fn create_dir(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result,
    }
}

/// The names in a directory, in no order. Blocks.
///
/// # Errors
/// What the system said.
pub fn read_dir(path: &Path) -> io::Result<Vec<OsString>> {
    std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Pins the calling thread for core `index`.
///
/// # Errors
/// A CPU number that this process may not use.
pub fn pin_thread(pinning: &Pinning, index: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let cpu = match pinning {
        Pinning::None => return Ok(()),
        Pinning::Auto => {
            let allowed = sched_getaffinity(None)?;
            let cpus: Vec<usize> =
                (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
            cpus[index % cpus.len()]
        }
        Pinning::Cpus(cpus) if cpus.is_empty() => return Ok(()),
        Pinning::Cpus(cpus) => cpus[index % cpus.len()],
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("no CPU number {cpu}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)?;
    Ok(())
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    // The second field is the program's name in parentheses, which may hold spaces.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    // The kernel's unit here is 1/100 s on every architecture that Gearbox runs on.
    Some((user + system) as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_understood() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t  12 kB\n"), Some(12288));
        assert_eq!(resident_bytes(""), None);
        let stat = "1 (a) b) S 0 1 1 0 -1 4194560 1 2 3 4 150 50 0 0 20 0";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds(""), None);
        let process = process_usage();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 0));
        assert!(process.cpu_seconds.is_some());
    }
}
