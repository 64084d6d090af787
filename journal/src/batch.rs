//! Records on their way into the journal.

use crate::format::{Position, RECORD_HEADER_BYTES, Ticket, put_record_header, seal_record};

/// Records that are appended together: after a crash all of them are there, or none. One buffer,
/// which is used again after each append.
///
/// Bound: what [`crate::Options::segment_bytes`] leaves after headers; `append` refuses more.
#[derive(Debug, Default)]
pub struct Batch {
    /// Records with their headers; the checksums lack the position until the batch is placed.
    bytes: Vec<u8>,
    count: u32,
}

/// Where a record lies in its batch. The distance between two of them is the distance between
/// their positions, so a record can name another one of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Relative(u32);

/// A batch that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Durable when [`crate::Journal::durable`] has reached it.
    pub ticket: Ticket,
    base: Position,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one record: what `encode` appends to the buffer. It must leave alone what is there
    /// already; whatever it appends, also nothing, is the record.
    pub fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Relative {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
        encode(&mut self.bytes);
        put_record_header(&mut self.bytes, begin);
        self.count += 1;
        Relative(u32::try_from(begin).unwrap_or(u32::MAX)) // such a batch is refused
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What the records take in the journal.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Drops the records and keeps the buffer.
    fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    /// Takes the records out to lie at `base`, checksums completed.
    pub(crate) fn seal_into(&mut self, base: Position, out: &mut bytes::BytesMut) {
        let (mut at, mut position) = (0, base);
        while at < self.bytes.len() {
            let len = seal_record(&mut self.bytes[at..], position);
            at += len;
            position = position.plus(len as u64);
        }
        out.extend_from_slice(&self.bytes);
        self.clear();
    }
}

impl Appended {
    pub(crate) fn new(ticket: Ticket, base: Position) -> Self {
        Self { ticket, base }
    }

    /// Where the first record lies, or would lie.
    pub fn base(&self) -> Position {
        self.base
    }

    /// Where a record of the batch lies.
    pub fn at(&self, relative: Relative) -> Position {
        self.base.plus(u64::from(relative.0))
    }
}
