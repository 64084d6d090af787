//! What can be chosen, and what can be asked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::format::{BLOCK_BYTES, Position};

/// How a journal works. Everything may change between two runs; the size of segments then changes
/// only once the journal is empty.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the segments are. Created when it is missing; its parent must be there.
    pub dir: PathBuf,
    /// Size of one segment: a multiple of 4096, 64 KiB to 1 GiB. It bounds a batch.
    pub segment_bytes: u64,
    /// A frame takes no further batch that would make it longer than this. A single batch may be
    /// longer, up to a segment.
    pub max_batch_bytes: usize,
    /// How much may wait in memory, the frame in flight included. [`Class::Always`] may go over it
    /// by a quarter.
    pub max_waiting_bytes: usize,
    /// How many segments are kept ready beside the one that is written, at least 2: one to go on
    /// with, and one as the reserve of [`Class::Always`].
    pub spare_segments: usize,
    /// How long to wait before a segment is prepared again after the disk was full.
    pub retry: Duration,
}

/// What a batch is for, which decides whether it may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Makes the journal longer lived: refused with [`crate::Refused::NearlyFull`] when the disk is
    /// nearly full.
    New,
    /// Lets something be released later, like acknowledgements: may use the reserve.
    Always,
}

/// How the journal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Appends are taken.
    Running,
    /// No further segment could be prepared: only [`Class::Always`] is taken, from the reserve.
    /// It ends by itself when there is space again.
    NearlyFull,
    /// A write or a sync has failed, which is final: nothing becomes durable any more.
    Failed(Arc<str>),
    /// It was stopped, and everything that was appended is durable.
    Closed,
}

/// Figures, counted since the journal was opened where they are counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Segments that hold records or may get some, the one that is written included.
    pub segments: u64,
    /// Prepared segments, the reserve included.
    pub spares: u64,
    /// Size of all of them on disk.
    pub disk_bytes: u64,
    /// The begin of the oldest segment.
    pub oldest: Position,
    /// Where the next record will lie at the earliest.
    pub end: Position,
    /// Bytes in memory that are not durable.
    pub waiting_bytes: u64,
    /// Batches appended.
    pub batches: u64,
    /// Records appended.
    pub records: u64,
    /// Batches refused.
    pub refused: u64,
    /// Syncs of frames that succeeded.
    pub syncs: u64,
    /// Bytes of the frames that were synced, padding included.
    pub synced_bytes: u64,
}

impl State {
    /// Whether anything may still be appended.
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running | Self::NearlyFull)
    }
}

impl Options {
    /// The defaults: segments of 64 MiB, frames up to 1 MiB, 32 MiB in memory, two spare segments.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            segment_bytes: 64 << 20,
            max_batch_bytes: 1 << 20,
            max_waiting_bytes: 32 << 20,
            spare_segments: 2,
            retry: Duration::from_secs(1),
        }
    }

    /// Whether segments may have this size.
    pub fn is_segment_size(bytes: u64) -> bool {
        bytes.is_multiple_of(BLOCK_BYTES) && (64 << 10..=1 << 30).contains(&bytes)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if !Self::is_segment_size(self.segment_bytes) {
            return Err(format!(
                "a segment of {} bytes: it must be a multiple of 4096 between 64 KiB and 1 GiB",
                self.segment_bytes
            ));
        }
        if self.max_batch_bytes == 0 || self.max_waiting_bytes < self.max_batch_bytes {
            return Err(format!(
                "batches of {} bytes with {} bytes waiting at most",
                self.max_batch_bytes, self.max_waiting_bytes
            ));
        }
        if !(2..=64).contains(&self.spare_segments) {
            return Err(format!("{} spare segments: 2 to 64 are possible", self.spare_segments));
        }
        Ok(())
    }
}
