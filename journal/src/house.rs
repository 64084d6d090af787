//! Segments beside the one that is written: made ahead, recycled, removed. Runs in the writer's
//! task, so that its I/O never stands in the way of a frame.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::pin::pin;

use futures_util::future::select;
use rt_abstract::{Instant, Runtime, Shutdown};

use crate::error::JournalError;
use crate::format::SegmentHeader;
use crate::handle::Inner;
use crate::options::State;
use crate::segment::{activate, log_path, make_spare, rename, salt, spare_path};
use crate::writer::Next;

/// Keeps `spare_segments` ready; released segments are kept up to twice that, because they need no
/// preparation, and removed beyond.
pub(crate) struct House<'a, R: Runtime> {
    inner: &'a Inner,
    next: &'a Next<R>,
    /// Of the segment after the last one that was activated.
    next_number: u64,
    spares: VecDeque<u64>,
    next_id: u64,
    /// When the disk was found full, unless it has had space since.
    full_at: Option<Instant>,
}

impl<'a, R: Runtime> House<'a, R> {
    pub fn new(
        inner: &'a Inner,
        next: &'a Next<R>,
        active: &SegmentHeader,
        spares: VecDeque<u64>,
        next_id: u64,
    ) -> Self {
        Self { inner, next, next_number: active.number + 1, spares, next_id, full_at: None }
    }

    /// Works until the journal has ended.
    pub async fn keep(mut self, stop: &Shutdown) -> Result<(), JournalError> {
        while !self.inner.with(|gather| gather.has_ended()) {
            let worked =
                self.retire().await? || self.activate().await? || self.prepare(stop).await?;
            if !worked {
                self.wait().await;
            }
        }
        Ok(())
    }

    /// Lets the oldest segment go, if it may. Its name is gone for good before the next one is
    /// touched or it is written again: a crash must not bring it back, nor leave a gap.
    async fn retire(&mut self) -> Result<bool, JournalError> {
        let Some(number) = self.inner.with(|gather| gather.release_one()) else {
            return Ok(false);
        };
        let Inner { dir, options, .. } = self.inner;
        let path = log_path(dir, number);
        if self.inner.with(|gather| gather.spares()) < 2 * options.spare_segments as u64 {
            let id = self.take_id();
            rename::<R>(dir, &path, &spare_path(dir, id)).await?;
            self.add(id);
        } else {
            R::remove_file(&path).await.map_err(JournalError::on("remove", &path))?;
            R::sync_dir(dir).await.map_err(JournalError::on("sync", dir))?;
            self.inner.tell(); // the usage has changed
        }
        Ok(true)
    }

    /// Has the next segment ready for the writer.
    async fn activate(&mut self) -> Result<bool, JournalError> {
        if self.next.with(|next| next.is_some()) {
            return Ok(false);
        }
        let Some(id) = self.spares.pop_front() else { return Ok(false) };
        let segment_bytes = self.inner.segment_bytes;
        let header = SegmentHeader { number: self.next_number, segment_bytes, salt: salt::<R>() };
        let segment = activate(&self.inner.dir, id, header).await?;
        self.next_number += 1;
        self.next.with(|next| *next = Some(segment));
        self.inner.work.notify();
        Ok(true)
    }

    /// Makes one spare, if one is missing and the disk was not full a moment ago.
    async fn prepare(&mut self, stop: &Shutdown) -> Result<bool, JournalError> {
        let Inner { dir, options, segment_bytes, .. } = self.inner;
        let missing = self.inner.with(|gather| gather.spares()) < options.spare_segments as u64;
        let now = R::now();
        let early = self.full_at.is_some_and(|at| now < at + options.retry);
        if !missing || early || stop.is_triggered() {
            return Ok(false);
        }
        let id = self.take_id();
        let go_on = || !stop.is_triggered() && !self.inner.with(|gather| gather.has_ended());
        match make_spare::<R>(dir, id, *segment_bytes, go_on).await {
            Ok(Some(())) => {
                self.full_at = None;
                self.add(id);
            }
            Ok(None) => {}
            Err(error) if is_full(&error) => {
                if self.full_at.is_none() {
                    tracing::warn!(%error, "the disk is nearly full: the journal takes only what frees space");
                }
                self.full_at = Some(R::now());
                self.inner.with(|gather| gather.set_nearly_full(true));
                self.inner.tell();
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn add(&mut self, id: u64) {
        self.spares.push_back(id);
        let wanted = self.inner.options.spare_segments as u64;
        let recovered = self.inner.with(|gather| {
            gather.add_spare();
            let enough = gather.spares() >= wanted;
            let recovered = enough && *gather.state() == State::NearlyFull;
            if recovered {
                gather.set_nearly_full(false);
            }
            recovered
        });
        if recovered {
            tracing::info!("the journal has space again");
            self.full_at = None;
        }
        self.inner.tell(); // who was refused may try again
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    async fn wait(&self) {
        let notified = pin!(self.inner.house.notified());
        match self.full_at {
            None => notified.await,
            Some(at) => {
                let rest = (at + self.inner.options.retry) - R::now();
                select(notified, pin!(R::sleep(rest))).await;
            }
        }
    }
}

fn is_full(error: &JournalError) -> bool {
    matches!(error.source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
