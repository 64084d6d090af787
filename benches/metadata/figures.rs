//! When changes were applied and answered.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use meta::Handle;
use meta::state::Effect;

/// Longer ones count as this.
pub const MAX_NS: u64 = 60_000_000_000;

/// When each proposer's last change was applied. The answer comes later by the time that the
/// proposer waits to run.
pub struct Applied {
    begin: Instant,
    at_ns: Arc<Vec<AtomicU64>>,
}

/// The times of one case.
pub struct Figures {
    answered: Histogram<u64>,
    applied: Histogram<u64>,
    took: Duration,
    commits: u64,
}

impl Applied {
    /// Watches the changes of so many proposers from now on.
    pub fn watch(handle: &Handle, proposers: usize) -> Self {
        let at_ns: Arc<Vec<_>> = Arc::new((0..proposers).map(|_| AtomicU64::new(0)).collect());
        let begin = Instant::now();
        let watched = at_ns.clone();
        handle.watch(move |effects| {
            let now_ns = begin.elapsed().as_nanos() as u64;
            for effect in effects {
                if let Effect::ConfigChanged { key, .. } = effect
                    && let Some(at) = key.parse().ok().and_then(|of: usize| watched.get(of))
                {
                    at.store(now_ns, Ordering::Release);
                }
            }
        });
        Self { begin, at_ns }
    }

    /// The key that this proposer changes.
    pub fn key(proposer: usize) -> String {
        format!("{proposer:08}")
    }

    /// From `start` until its last change was applied.
    pub fn since(&self, proposer: usize, start: Instant) -> Duration {
        let at = Duration::from_nanos(self.at_ns[proposer].load(Ordering::Acquire));
        at.saturating_sub(start.duration_since(self.begin))
    }
}

impl Figures {
    pub fn is_empty(&self) -> bool {
        self.commits == 0
    }

    pub fn len(&self) -> u64 {
        self.commits
    }

    /// One wait, and when its change was applied, where that is known.
    pub fn add(&mut self, answered: Duration, applied: Option<Duration>) {
        self.answered.saturating_record(answered.as_nanos() as u64);
        if let Some(applied) = applied {
            self.applied.saturating_record(applied.as_nanos() as u64);
        }
    }

    /// The waits of another run.
    pub fn merge(&mut self, other: &Self) {
        self.answered += &other.answered;
        self.applied += &other.applied;
    }

    /// A run of so many commits.
    pub fn add_run(&mut self, commits: u64, took: Duration) {
        self.commits += commits;
        self.took += took;
    }
}

impl Default for Figures {
    fn default() -> Self {
        let empty = || Histogram::new_with_bounds(1, MAX_NS, 2).expect("constants that are right");
        Self { answered: empty(), applied: empty(), took: Duration::ZERO, commits: 0 }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.commits as f64 / self.took.as_secs_f64();
        write!(f, "{rate:.0} commits/s, answered ms {}", Percentiles(&self.answered))?;
        match self.applied.is_empty() {
            true => Ok(()),
            false => write!(f, ", applied ms {}", Percentiles(&self.applied)),
        }
    }
}

/// p50/p99/p99.9 in milliseconds.
pub struct Percentiles<'a>(pub &'a Histogram<u64>);

impl fmt::Display for Percentiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e6;
        write!(f, "{:.3}/{:.3}/{:.3}", ms(0.5), ms(0.99), ms(0.999))
    }
}
