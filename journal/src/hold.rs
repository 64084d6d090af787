//! What is on the disk at one moment, kept there while somebody copies it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::format::Ticket;
use crate::handle::{Inner, Journal};
use crate::segment::log_path;

/// Keeps all segments: while it lives none is released, and the journal grows. There is no bound of
/// its own: who holds one bounds the time, looks at [`crate::State::NearlyFull`], and drops it.
#[must_use = "dropping it lets segments go again"]
pub struct Hold {
    inner: Arc<Inner>,
    since: Ticket,
}

/// A segment, as far as it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// Where it is.
    pub path: PathBuf,
    /// How much of it will not change. It may be shorter.
    pub bytes: u64,
}

impl Journal {
    /// Keeps all segments from being released or used again, from now on.
    pub fn hold(&self) -> Hold {
        let since = self.inner.with(|gather| {
            gather.hold();
            gather.last()
        });
        Hold { inner: self.inner.clone(), since }
    }
}

impl Hold {
    /// The ticket of what was appended last before the hold began.
    pub fn since(&self) -> Ticket {
        self.since
    }

    /// What is durable now: copies of these bytes, by their names in an empty directory, are a
    /// journal that opens.
    ///
    /// Never what is being written: a copy of half a frame with a whole one behind it would look
    /// like damage.
    pub fn files(&self) -> Vec<HeldFile> {
        let Inner { dir, segment_bytes, .. } = &*self.inner;
        let (oldest, (segment, offset)) = self.inner.with(|gather| gather.durable_range());
        let file = |number, bytes| HeldFile { path: log_path(dir, number), bytes };
        let whole = (oldest..segment).map(|number| file(number, *segment_bytes));
        whole.chain([file(segment, offset)]).collect()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.with(|gather| gather.let_go());
        self.inner.house.notify();
    }
}
