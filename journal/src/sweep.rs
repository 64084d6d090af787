//! What is durable, read in order from a journal that is being written.

use std::sync::Arc;

use rt_abstract::{MaybeSend, Runtime};

use crate::error::{OpenError, VisitError};
use crate::format::{Mark, Position, SEGMENT_HEADER_BYTES, padded};
use crate::handle::{Inner, Journal};
use crate::scan::Scan;
use crate::segment::damaged;

/// Reads all that was durable when it began, one frame at a time, and nothing that came later. It holds
/// nothing: a segment that is released before it was read is an error.
pub struct Sweep<R: Runtime> {
    inner: Arc<Inner>,
    /// The last frame that is read.
    until: u64,
    scan: Option<Scan<R>>,
    /// Where the next frame begins, if it lies in the same segment.
    at: u64,
    /// The frame before it.
    last: Option<Mark>,
    /// The segment that reading begins with.
    first: u64,
}

/// A frame that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Which one.
    pub mark: Mark,
    /// What it takes in its segment.
    pub bytes: u64,
}

impl Journal {
    /// Begins to read behind the frame of `after`, or with the oldest segment.
    pub fn sweep<R: Runtime>(&self, after: Option<Mark>) -> Sweep<R> {
        let (oldest, until) =
            self.inner.with(|gather| (gather.durable_range().0, self.durable().get()));
        let (first, at) = match after {
            Some(mark) => (self.segment_of(mark.at), mark.at.get() % self.inner.segment_bytes),
            None => (oldest, SEGMENT_HEADER_BYTES),
        };
        Sweep { inner: self.inner.clone(), until, scan: None, at, last: after, first }
    }
}

impl<R: Runtime> Sweep<R> {
    /// Whether everything was read.
    pub fn is_over(&self) -> bool {
        self.last.map_or(0, |mark| mark.sequence) >= self.until
    }

    /// Reads the next frame and shows its records; `None` at the end.
    ///
    /// # Errors
    /// The frame of `after` is not there any more, a segment was released, damage, or what the system
    /// or `visit` said. There is no going on then.
    pub async fn next(
        &mut self,
        mut visit: impl FnMut(Position, &[u8]) -> Result<(), VisitError> + MaybeSend,
    ) -> Result<Option<Swept>, OpenError> {
        if self.is_over() {
            return Ok(None);
        }
        let dir = &self.inner.dir;
        let mut scan = match self.scan.take() {
            Some(scan) => scan,
            None => {
                let mut scan = Scan::<R>::open(dir, self.first).await?;
                if let Some(mark) = &self.last {
                    let found = scan.frame(self.at).await?;
                    let found = found.filter(|found| found.mark() == *mark);
                    let found = found.ok_or(OpenError::NoMark { position: mark.at })?;
                    self.at += padded(found.header.length as u64);
                }
                scan
            }
        };
        let expected = self.last.map(|mark| mark.sequence + 1);
        if !is_next(&mut scan, self.at, expected).await? {
            // It did not fit there.
            let at = self.at;
            let number = scan.header.number + 1;
            let before = std::mem::replace(&mut scan, Scan::open(dir, number).await?);
            self.at = SEGMENT_HEADER_BYTES;
            if !is_next(&mut scan, self.at, expected).await? {
                return Err(damaged(&before.path, at, "the next frame is neither here nor behind"));
            }
        }
        let Some(found) = scan.frame(self.at).await? else { return Ok(None) };
        for (position, record) in found.records() {
            visit(position, record).map_err(|source| OpenError::Visit { position, source })?;
        }
        let (mark, bytes) = (found.mark(), padded(found.header.length as u64));
        self.at += bytes;
        self.last = Some(mark);
        self.scan = Some(scan);
        Ok(Some(Swept { mark, bytes }))
    }
}

async fn is_next<R: Runtime>(
    scan: &mut Scan<R>,
    at: u64,
    expected: Option<u64>,
) -> Result<bool, OpenError> {
    let found = scan.frame(at).await?;
    Ok(found.is_some_and(|found| expected.is_none_or(|next| found.header.sequence == next)))
}
