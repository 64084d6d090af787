//! What one session holds for its client, as the shard's gauges count it.

use mqtt::session::Outgoing;

use crate::config::Limits;
use crate::stats::ShardStats;

/// A session's share of the gauges. Take it before and after whatever changes an [`Outgoing`], and
/// report both with [`Held::became`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    queued: usize,
    queued_bytes: usize,
    /// In memory, of the bytes.
    here_bytes: usize,
    inflight: usize,
    /// The queue is more than half full.
    slow: bool,
}

impl Held {
    /// What `outgoing` holds now.
    #[inline]
    pub fn of(outgoing: &Outgoing, limits: &Limits) -> Self {
        let (queued, queued_bytes) = (outgoing.queued(), outgoing.queued_bytes());
        Self {
            queued,
            queued_bytes,
            here_bytes: outgoing.queued_here_bytes(),
            inflight: outgoing.inflight(),
            slow: queued > limits.max_queued_messages / 2
                || queued_bytes > limits.max_queued_bytes / 2,
        }
    }

    /// Moves the gauges from `self` to `after`.
    #[inline]
    pub fn became(self, after: Self, stats: &ShardStats) {
        stats.queued_messages.change(self.queued as u64, after.queued as u64);
        stats.queued_bytes.change(self.queued_bytes as u64, after.queued_bytes as u64);
        stats.queued_memory_bytes.change(self.here_bytes as u64, after.here_bytes as u64);
        stats.inflight_messages.change(self.inflight as u64, after.inflight as u64);
        stats.slow_queues.change(self.slow.into(), after.slow.into());
    }
}
