//! The one task that writes: one frame, one sync, then what gathered meanwhile.

use std::collections::VecDeque;
use std::io::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{join, select};
use rt_abstract::{File, Runtime, Shared, Shutdown};

use crate::error::JournalError;
use crate::format::{encode_frame_header, frame_crc};
use crate::gather::Frame;
use crate::handle::Inner;
use crate::house::House;
use crate::options::State;
use crate::segment::Segment;

/// Writes what is appended. Dropping it instead of running it to its end makes the journal fail.
pub struct Writer<R: Runtime> {
    guard: Guard,
    active: Segment<R>,
    spares: VecDeque<u64>,
    /// Names for new spares begin here.
    next_id: u64,
}

/// The segment that is ready to be written next: from the house to the writer.
pub(crate) type Next<R> = Shared<Option<Segment<R>>>;

struct Guard(Arc<Inner>);

impl<R: Runtime> Writer<R> {
    pub(crate) fn new(
        inner: Arc<Inner>,
        active: Segment<R>,
        spares: VecDeque<u64>,
        next_id: u64,
    ) -> Self {
        Self { guard: Guard(inner), active, spares, next_id }
    }

    /// Writes until `stop` is triggered and everything that was appended is durable. Must run on
    /// the backend, and in the completion backends on the core, that opened the journal.
    ///
    /// # Errors
    /// The first error of a write or a sync, or what [`crate::Journal::fail`] was told. It is final:
    /// [`State::Failed`] is seen, and those who watch are woken, before this returns.
    pub async fn run(self, stop: Shutdown) -> Result<(), JournalError> {
        let Self { guard, active, spares, next_id } = self;
        let inner = &guard.0;
        let next = Shared::new(None);
        let house = House::new(inner, &next, &active.header, spares, next_id);
        let keep = async {
            let result = house.keep(&stop).await;
            report(inner, result)
        };
        let write = async {
            let result = write_frames(inner, active, &next, &stop).await;
            let result = report(inner, result);
            inner.house.notify(); // it ends too
            result
        };
        let (written, kept) = join(write, keep).await;
        written.and(kept)?;
        match inner.with(|gather| gather.state().clone()) {
            // Neither of them did it: somebody who appends.
            State::Failed(reason) => {
                Err(JournalError::on("append to", &inner.dir)(Error::other(&*reason)))
            }
            _ => Ok(()),
        }
    }
}

fn report(inner: &Inner, result: Result<(), JournalError>) -> Result<(), JournalError> {
    if let Err(error) = &result {
        inner.fail(&error.to_string());
    }
    result
}

async fn write_frames<R: Runtime>(
    inner: &Arc<Inner>,
    mut active: Segment<R>,
    next: &Next<R>,
    stop: &Shutdown,
) -> Result<(), JournalError> {
    loop {
        if inner.with(|gather| gather.has_ended()) {
            return Ok(()); // the house failed, and says why
        }
        let stopping = stop.is_triggered();
        let Some(frame) = inner.with(|gather| gather.take()) else {
            if stopping && inner.with(|gather| gather.close_when_idle()) {
                inner.tell();
                return Ok(());
            }
            if !stopping {
                select(pin!(inner.work.notified()), pin!(stop.wait())).await;
            }
            continue;
        };
        if frame.segment != active.header.number {
            let Some(segment) = next_segment(inner, next).await else { return Ok(()) };
            active = segment;
            inner.with(|gather| gather.set_active(active.header.number));
            inner.house.notify();
        }
        write_frame(inner, &active, frame).await?;
    }
}

async fn write_frame<R: Runtime>(
    inner: &Arc<Inner>,
    active: &Segment<R>,
    frame: Frame,
) -> Result<(), JournalError> {
    let Frame { offset, sequence, records, length, bytes, .. } = frame;
    let crc = frame_crc(&bytes[..length], records, sequence, &active.header);
    drop(bytes); // so that the header can be put in
    let header = encode_frame_header(length, crc, records, sequence, &active.header);
    let Some(bytes) = inner.with(|gather| gather.seal(header)) else { return Ok(()) };
    let is_written = Arc::new(AtomicBool::new(false));
    let written = {
        let (inner, is_written) = (inner.clone(), is_written.clone());
        move || {
            is_written.store(true, Ordering::Release);
            inner.set_written(sequence);
        }
    };
    let result = active.file.write_all_and_sync_at(bytes, offset, written).await;
    result.map_err(|error| {
        let action = if is_written.load(Ordering::Acquire) { "sync" } else { "write" };
        JournalError::on(action, &active.path)(error)
    })?;
    inner.set_durable(sequence);
    if inner.with(|gather| gather.has_releases()) {
        inner.house.notify();
    }
    Ok(())
}

/// Waits for the house. `None` when the journal failed meanwhile.
async fn next_segment<R: Runtime>(inner: &Inner, next: &Next<R>) -> Option<Segment<R>> {
    loop {
        if let Some(segment) = next.with(Option::take) {
            return Some(segment);
        }
        if inner.with(|gather| gather.has_ended()) {
            return None;
        }
        inner.work.notified().await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.0.with(|gather| gather.has_ended()) {
            self.0.fail("journal: the writer is gone");
        }
    }
}
