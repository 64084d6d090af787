//! What a world is like before anything goes wrong, and how often small things do.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

/// A world. The default has a fast network and disk with small disturbances that every program must
/// bear: partial reads and writes, late timers, tasks in any order.
#[derive(Clone, Debug)]
pub struct Config {
    /// Virtual time that polling a task takes, in nanoseconds; at least 1, so that a task that wakes
    /// itself for ever does not stop the clock.
    pub poll_ns: u64,
    /// Timers fire up to so much late.
    pub timer_lateness: Duration,
    /// Probability that the task that runs next is any that is ready, not the one that waits longest.
    pub disorder: f64,
    /// A dropped `read` takes the next bytes with it, as on a completion backend.
    pub dropped_reads_swallow: bool,
    /// Wall-clock milliseconds since 1970 at the start.
    pub wall_clock_start_ms: u64,
    /// Polls after which a run is given up: a task that never sleeps, or a world without an end.
    pub max_polls: u64,
    /// What lies between two nodes, unless something else is said for a pair.
    pub link: Link,
    /// What lies between two sockets of one node.
    pub loopback: Link,
    /// Connections.
    pub network: Network,
    /// Every node's disk.
    pub disk: Disk,
}

/// A span of time that is drawn anew each time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// At least.
    pub min: Duration,
    /// At most, without a spike.
    pub max: Duration,
    /// Probability of a spike.
    pub spike: f64,
    /// A spike lasts up to so much longer.
    pub spike_max: Duration,
}

/// One direction between two nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// How long a segment takes. Segments of one connection stay in order, those of two do not.
    pub latency: Latency,
    /// How many bytes of one connection come through per second; `None`: no limit.
    pub bytes_per_second: Option<u64>,
}

/// How connections behave.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Bytes that one direction holds, sent and not read yet.
    pub window_bytes: usize,
    /// Probability that a read gets a part of what is there.
    pub partial_reads: f64,
    /// Probability that a write takes a part of what there is room for.
    pub partial_writes: f64,
    /// A peer that does not answer for so long is gone: the connection fails with `TimedOut`.
    pub timeout: Duration,
}

/// How a disk behaves.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// Reading, opening, names.
    pub read: Latency,
    /// Writing to the page cache.
    pub write: Latency,
    /// Making durable.
    pub sync: Latency,
    /// Probability that a write takes a part of its bytes.
    pub partial_writes: f64,
    /// Bytes that files may have; `None`: no limit.
    pub capacity_bytes: Option<u64>,
}

impl Latency {
    /// Between two spans, without spikes.
    pub const fn between(min: Duration, max: Duration) -> Self {
        Self { min, max, spike: 0.0, spike_max: Duration::ZERO }
    }

    /// In nanoseconds.
    pub(crate) fn draw(&self, random: &mut SmallRng) -> u64 {
        let (min, max) = (nanos(self.min), nanos(self.max));
        let mut drawn = random.random_range(min..=max.max(min));
        if self.spike > 0.0 && random.random_bool(self.spike.min(1.0)) {
            drawn += random.random_range(0..=nanos(self.spike_max));
        }
        drawn
    }
}

impl Default for Config {
    fn default() -> Self {
        let micros = Duration::from_micros;
        Self {
            poll_ns: 500,
            timer_lateness: Duration::from_millis(1),
            disorder: 0.5,
            dropped_reads_swallow: true,
            wall_clock_start_ms: 1_767_225_600_000, // 2026-01-01
            max_polls: 200_000_000,
            link: Link {
                latency: Latency::between(micros(100), micros(1_000)),
                bytes_per_second: None,
            },
            loopback: Link {
                latency: Latency::between(micros(5), micros(30)),
                bytes_per_second: None,
            },
            network: Network {
                window_bytes: 64 * 1024,
                partial_reads: 0.1,
                partial_writes: 0.1,
                timeout: Duration::from_secs(30),
            },
            disk: Disk {
                read: Latency::between(micros(5), micros(100)),
                write: Latency::between(micros(5), micros(50)),
                sync: Latency::between(micros(200), micros(3_000)),
                partial_writes: 0.05,
                capacity_bytes: None,
            },
        }
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}
