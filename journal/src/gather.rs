//! Who appends what where: plain data, under one lock that is held for a copy at most.
//!
//! Positions are given out at append, so the gather knows where every frame will lie before it is
//! written: behind the one before it, or at the begin of the next segment when it does not fit.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::batch::{Appended, Batch};
use crate::error::Refused;
use crate::format::{
    BLOCK_BYTES, FRAME_HEADER_BYTES, Position, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Ticket,
    padded, record_len,
};
use crate::options::{Class, Options, State, Usage};

/// Buffers that are kept for reuse.
const KEPT_BUFFERS: usize = 3;

/// The state that everybody shares.
///
/// Bounds: the frames hold `max_waiting_bytes` (and a quarter of it for [`Class::Always`]), and at most
/// one batch more that is larger than that by itself; releases that wait are fewer than segments.
pub(crate) struct Gather {
    options: Options,
    state: State,
    /// The frame that takes batches.
    open: Option<Open>,
    /// Frames that are complete, in order.
    closed: VecDeque<Frame>,
    /// The one at the disk.
    in_flight: Option<Frame>,
    /// Where the next frame begins: segment and offset.
    next: (u64, u64),
    /// Of the last frame that was begun.
    sequence: u64,
    durable: u64,
    /// Where the last durable frame ends: segment and offset.
    durable_end: (u64, u64),
    waiting_bytes: usize,
    buffers: Vec<BytesMut>,
    space: Space,
    counts: Counts,
}

/// Segments by number.
struct Space {
    /// The oldest that was not released.
    oldest: u64,
    /// The one that the writer writes.
    active: u64,
    /// The last one that there is space for.
    available: u64,
    /// Segments before the first number may go when the frame with the second is durable.
    releases: VecDeque<(u64, u64)>,
    /// While there are any, nothing is released.
    holds: usize,
}

#[derive(Default)]
struct Counts {
    batches: u64,
    records: u64,
    refused: u64,
    syncs: u64,
    synced_bytes: u64,
}

struct Open {
    segment: u64,
    offset: u64,
    records: u32,
    /// Space for the header, then records.
    bytes: BytesMut,
}

/// A frame for the disk.
#[derive(Clone)]
pub(crate) struct Frame {
    pub segment: u64,
    pub offset: u64,
    pub sequence: u64,
    pub records: u32,
    /// Without padding.
    pub length: usize,
    /// With padding; the header is missing until [`Gather::seal`].
    pub bytes: Bytes,
}

/// Where reading of the log ended, and with it where writing begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub oldest: u64,
    pub segment: u64,
    pub offset: u64,
    pub sequence: u64,
}

/// What memory knows about a position.
pub(crate) enum Lookup {
    Released,
    /// There is no record yet.
    NotFound,
    /// The record with its header.
    Here(Vec<u8>),
    /// In this segment, at this offset.
    OnDisk(u64, u64),
}

impl Gather {
    pub fn new(options: Options, tail: Tail, spares: u64) -> Self {
        Self {
            options,
            state: State::Running,
            open: None,
            closed: VecDeque::new(),
            in_flight: None,
            next: (tail.segment, tail.offset),
            sequence: tail.sequence,
            durable: tail.sequence,
            durable_end: (tail.segment, tail.offset),
            waiting_bytes: 0,
            buffers: Vec::new(),
            space: Space {
                oldest: tail.oldest,
                active: tail.segment,
                available: tail.segment + spares,
                releases: VecDeque::new(),
                holds: 0,
            },
            counts: Counts::default(),
        }
    }

    /// Takes a batch and empties it, or refuses it and leaves it as it is.
    pub fn append(&mut self, batch: &mut Batch, class: Class) -> Result<Appended, Refused> {
        let placed = self.place(batch.bytes(), class);
        if placed.is_err() {
            self.counts.refused += 1;
        }
        match placed? {
            Place::Open => {}
            Place::New { segment, offset } => {
                self.close();
                self.sequence += 1;
                let mut bytes = self.buffers.pop().unwrap_or_default();
                bytes.resize(FRAME_HEADER_BYTES, 0);
                self.open = Some(Open { segment, offset, records: 0, bytes });
            }
        }
        let ticket = Ticket(self.sequence);
        let segment_bytes = self.options.segment_bytes;
        let Some(open) = &mut self.open else { return Err(Refused::Closed) };
        let offset = open.offset + open.bytes.len() as u64;
        let base = Position::of(open.segment, offset, segment_bytes);
        self.waiting_bytes += batch.bytes();
        self.counts.batches += 1;
        self.counts.records += batch.len() as u64;
        open.records += batch.len() as u32;
        batch.seal_into(base, &mut open.bytes);
        Ok(Appended::new(ticket, base))
    }

    fn place(&self, bytes: usize, class: Class) -> Result<Place, Refused> {
        match (&self.state, class) {
            (State::Running, _) | (State::NearlyFull, Class::Always) => {}
            (State::NearlyFull, Class::New) => return Err(Refused::NearlyFull),
            (State::Failed(_), _) => return Err(Refused::Failed),
            (State::Closed, _) => return Err(Refused::Closed),
        }
        let segment_bytes = self.options.segment_bytes;
        let max_bytes = (segment_bytes - SEGMENT_HEADER_BYTES) as usize - FRAME_HEADER_BYTES;
        if bytes > max_bytes {
            return Err(Refused::TooLarge { bytes, max_bytes });
        }
        let max_waiting = match class {
            Class::New => self.options.max_waiting_bytes,
            Class::Always => self.options.max_waiting_bytes / 4 * 5,
        };
        // Also a batch that is larger than the bound has to come in, and cannot wait until nothing
        // else is there: others go on.
        let is_busy = match bytes > max_waiting {
            true => self.waiting_bytes >= max_waiting,
            false => self.waiting_bytes + bytes > max_waiting,
        };
        if is_busy {
            return Err(Refused::Busy);
        }
        let next = match &self.open {
            Some(open) => {
                let length = open.bytes.len() + bytes;
                let fits = open.offset + length as u64 <= segment_bytes;
                if fits && length <= self.options.max_batch_bytes {
                    return Ok(Place::Open);
                }
                (open.segment, open.offset + padded(open.bytes.len() as u64))
            }
            None => self.next,
        };
        let (segment, offset) = next;
        if offset + (FRAME_HEADER_BYTES + bytes) as u64 <= segment_bytes {
            return Ok(Place::New { segment, offset });
        }
        let segment = segment + 1;
        let needed = match class {
            Class::New => segment + 1, // the last one is the reserve
            Class::Always => segment,
        };
        match (needed <= self.space.available, &self.state) {
            (true, _) => Ok(Place::New { segment, offset: SEGMENT_HEADER_BYTES }),
            (false, State::NearlyFull) => Err(Refused::Full),
            (false, _) => Err(Refused::Busy), // being prepared
        }
    }

    /// Ends the open frame, if there is one.
    fn close(&mut self) {
        let Some(Open { segment, offset, records, mut bytes }) = self.open.take() else { return };
        let length = bytes.len();
        bytes.resize(length.next_multiple_of(BLOCK_BYTES as usize), 0);
        self.next = (segment, offset + bytes.len() as u64);
        let (sequence, bytes) = (self.sequence, bytes.freeze());
        self.closed.push_back(Frame { segment, offset, sequence, records, length, bytes });
    }

    /// The next frame for the disk. The one before must be finished.
    pub fn take(&mut self) -> Option<Frame> {
        if self.closed.is_empty() {
            self.close();
        }
        self.in_flight = self.closed.pop_front();
        self.in_flight.clone()
    }

    /// Puts the header into the frame in flight. No other handle on its bytes may be left.
    pub fn seal(&mut self, header: [u8; FRAME_HEADER_BYTES]) -> Option<Bytes> {
        let frame = self.in_flight.as_mut()?;
        let bytes = std::mem::take(&mut frame.bytes);
        let mut bytes = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header);
        frame.bytes = bytes.freeze();
        Some(frame.bytes.clone())
    }

    /// The frame in flight is durable.
    pub fn finish(&mut self) {
        let Some(frame) = self.in_flight.take() else { return };
        self.durable = frame.sequence;
        self.durable_end = (frame.segment, frame.offset + frame.bytes.len() as u64);
        self.waiting_bytes -= frame.length - FRAME_HEADER_BYTES;
        self.counts.syncs += 1;
        self.counts.synced_bytes += frame.bytes.len() as u64;
        if self.buffers.len() < KEPT_BUFFERS
            && let Ok(mut buffer) = frame.bytes.try_into_mut()
            && buffer.capacity() <= 2 * self.options.max_batch_bytes.max(4096)
        {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Takes no more appends, unless something still waits.
    pub fn close_when_idle(&mut self) -> bool {
        let idle = self.open.is_none() && self.closed.is_empty() && self.in_flight.is_none();
        if idle && !matches!(self.state, State::Failed(_)) {
            self.state = State::Closed;
        }
        idle
    }

    /// Takes no more appends, for ever. The first reason stays.
    pub fn fail(&mut self, reason: &str) {
        if !self.has_ended() {
            self.state = State::Failed(Arc::from(reason));
        }
    }

    pub fn has_ended(&self) -> bool {
        !self.state.is_running()
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    #[cfg(test)]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// The ticket of what was appended last.
    pub fn last(&self) -> Ticket {
        Ticket(self.sequence)
    }

    /// The writer goes on with this segment.
    pub fn set_active(&mut self, segment: u64) {
        self.space.active = segment;
    }

    /// One more segment is ready.
    pub fn add_spare(&mut self) {
        self.space.available += 1;
    }

    /// How many segments are ready beside the one that is written.
    pub fn spares(&self) -> u64 {
        self.space.available - self.space.active
    }

    /// Whether preparing a further segment failed for want of space.
    pub fn set_nearly_full(&mut self, nearly_full: bool) {
        if !self.has_ended() {
            self.state = if nearly_full { State::NearlyFull } else { State::Running };
        }
    }

    /// Segments before the one of `position` may go, once everything appended so far is durable:
    /// what makes them superfluous may be among it.
    pub fn release_before(&mut self, position: Position) {
        let segment = position.get() / self.options.segment_bytes;
        let known = self.space.releases.back().map_or(self.space.oldest, |&(segment, _)| segment);
        if segment > known {
            self.space.releases.push_back((segment, self.sequence));
        }
    }

    /// Whether segments wait to be released.
    pub fn has_releases(&self) -> bool {
        !self.space.releases.is_empty()
    }

    /// Nothing is released until [`Gather::let_go`] was called as often.
    pub fn hold(&mut self) {
        self.space.holds += 1;
    }

    /// See [`Gather::hold`].
    pub fn let_go(&mut self) {
        self.space.holds = self.space.holds.saturating_sub(1);
    }

    /// The oldest segment, and the segment and offset where what is durable ends.
    pub fn durable_range(&self) -> (u64, (u64, u64)) {
        let oldest = self.space.oldest;
        // The last frame's segment may be gone while the next one has no durable frame yet.
        (oldest, self.durable_end.max((oldest, SEGMENT_HEADER_BYTES)))
    }

    /// The oldest segment, when it may go: from now on it is released.
    pub fn release_one(&mut self) -> Option<u64> {
        let Space { oldest, active, releases, holds, .. } = &mut self.space;
        if *holds > 0 {
            return None;
        }
        while let [(_, _), (_, after), ..] = releases.make_contiguous()
            && *after <= self.durable
        {
            releases.pop_front(); // the second one says more
        }
        let &(before, after) = releases.front()?;
        if after > self.durable || *oldest >= before.min(*active) {
            return None;
        }
        *oldest += 1;
        if *oldest == before {
            releases.pop_front();
        }
        Some(*oldest - 1)
    }

    /// Where a record is.
    pub fn find(&self, position: Position) -> Lookup {
        let segment_bytes = self.options.segment_bytes;
        let (segment, offset) = (position.get() / segment_bytes, position.get() % segment_bytes);
        if segment < self.space.oldest {
            return Lookup::Released;
        }
        let (end_segment, end_offset) = self.end();
        if (segment, offset) >= (end_segment, end_offset) || offset < SEGMENT_HEADER_BYTES {
            return Lookup::NotFound;
        }
        let frames = self.in_flight.iter().chain(&self.closed);
        let frames =
            frames.map(|frame| (frame.segment, frame.offset, &frame.bytes[..frame.length]));
        let open = self.open.iter().map(|open| (open.segment, open.offset, &open.bytes[..]));
        for (of, begin, bytes) in frames.chain(open) {
            if of != segment || !(begin..begin + bytes.len() as u64).contains(&offset) {
                continue;
            }
            let record = &bytes[(offset - begin) as usize..];
            let whole = record_len(record).and_then(|len| record.get(..RECORD_HEADER_BYTES + len));
            return whole.map_or(Lookup::NotFound, |record| Lookup::Here(record.to_vec()));
        }
        Lookup::OnDisk(segment, offset)
    }

    /// Where the next record lies at the earliest: segment and offset.
    fn end(&self) -> (u64, u64) {
        match &self.open {
            Some(open) => (open.segment, open.offset + open.bytes.len() as u64),
            None => (self.next.0, self.next.1 + FRAME_HEADER_BYTES as u64),
        }
    }

    pub fn usage(&self) -> Usage {
        let Space { oldest, active, available, .. } = self.space;
        let (segment, offset) = self.end();
        let segment_bytes = self.options.segment_bytes;
        Usage {
            segments: active + 1 - oldest,
            spares: available - active,
            disk_bytes: (available + 1 - oldest) * segment_bytes,
            oldest: Position::of(oldest, 0, segment_bytes),
            end: Position::of(segment, offset, segment_bytes),
            waiting_bytes: self.waiting_bytes as u64,
            batches: self.counts.batches,
            records: self.counts.records,
            refused: self.counts.refused,
            syncs: self.counts.syncs,
            synced_bytes: self.counts.synced_bytes,
        }
    }
}

enum Place {
    /// In the open frame.
    Open,
    /// In a new one.
    New { segment: u64, offset: u64 },
}

#[cfg(test)]
mod tests;
