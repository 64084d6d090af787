//! Which faults really happened.

use std::collections::BTreeMap;
use std::fmt;

/// A kind of fault, counted when it takes effect and not when it is arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names say it
pub enum Fault {
    PartialRead,
    PartialWrite,
    SwallowedRead,
    Reset,
    HalfOpen,
    Blocked,
    TimedOut,
    Refused,
    LatencySpike,
    ProcessKilled,
    PowerCut,
    Paused,
    ClockJump,
    ClockDrift,
    UnsyncedLost,
    TornWrite,
    NameLost,
    DiskError,
    DiskFull,
    ShortDiskWrite,
    BitFlip,
}

/// How often each kind of fault happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<Fault, u64>,
}

impl Coverage {
    /// How often.
    pub fn count(&self, fault: Fault) -> u64 {
        self.counts.get(&fault).copied().unwrap_or(0)
    }

    /// All that happened, by kind.
    pub fn iter(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        self.counts.iter().map(|(&fault, &count)| (fault, count))
    }

    /// Adds what happened in another world.
    pub fn merge(&mut self, other: &Self) {
        for (fault, count) in other.iter() {
            *self.counts.entry(fault).or_default() += count;
        }
    }

    pub(crate) fn add(&mut self, fault: Fault) {
        *self.counts.entry(fault).or_default() += 1;
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (fault, count) in self.iter() {
            write!(f, "{}{fault:?} {count}", if first { "" } else { ", " })?;
            first = false;
        }
        Ok(())
    }
}
