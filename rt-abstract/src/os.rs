//! Clock, randomness and CPU placement of the machine, shared by the real backends.

use std::io;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::runtime::Pinning;
use crate::time::Instant;

/// The monotonic clock, counted from its first use in this process plus one second, so that
/// arithmetic a little before the start stays positive.
pub fn now() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(1_000_000_000 + u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX / 2))
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
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no CPU number {cpu}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)?;
    Ok(())
}
