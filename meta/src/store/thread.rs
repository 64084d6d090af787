//! The storage threads: what waits for the disk does so here, and not on an executor.

use std::io;
use std::thread::Builder;

pub use std::thread::JoinHandle;

/// Runs `work` on a thread of its own, which the operator sees as `name`.
///
/// # Errors
/// When the system has no thread left.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(work)
}
