//! Waiting with a bound: the only way these tests wait for anything.

use std::time::{Duration, Instant};

/// How long a thing that must happen may take. Generous: a debug build on a busy machine is slow,
/// and a passing test never waits this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Polls `probe` until it yields a value; panics with `what` after [`PATIENCE`].
pub fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(5)); // pace of the poll, not a synchronisation
    }
}

/// Time left until `deadline`, at least a millisecond (a zero socket timeout means "for ever").
pub fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
