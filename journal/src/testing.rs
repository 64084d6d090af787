//! A journal without files, for tests of those who write to one: the test decides when something
//! becomes durable.

use std::sync::Arc;

use crate::format::{Position, SEGMENT_HEADER_BYTES, checked_record, records};
use crate::gather::{Lookup, Tail};
use crate::handle::{Inner, Journal};
use crate::options::Options;

/// The disk of a journal that has none. Dropping it lets the journal be as it is.
pub struct FakeDisk(Arc<Inner>);

/// An empty journal, and what decides about its disk. There are always spare segments.
///
/// # Panics
/// When the options are impossible.
pub fn fake(options: Options) -> (Journal, FakeDisk) {
    options.check().expect("options of a test");
    let tail = Tail { oldest: 1, segment: 1, offset: SEGMENT_HEADER_BYTES, sequence: 0 };
    let inner = Arc::new(Inner::new(options, tail, 1 << 20));
    (Journal { inner: inner.clone() }, FakeDisk(inner))
}

impl FakeDisk {
    /// Makes the next frame written and durable, and gives its records; `None` when nothing waits.
    pub fn sync_one(&self) -> Option<Vec<(Position, Vec<u8>)>> {
        let frame = self.0.with(|gather| gather.take())?;
        let begin = Position::of(frame.segment, frame.offset, self.0.segment_bytes);
        let found = records(&frame.bytes[..frame.length])
            .map(|(at, record)| (begin.plus(at as u64), record.to_vec()))
            .collect();
        let (segment, sequence) = (frame.segment, frame.sequence);
        drop(frame);
        self.0.with(|gather| gather.set_active(segment));
        self.0.set_written(sequence);
        self.0.set_durable(sequence);
        while self.0.with(|gather| gather.release_one()).is_some() {}
        Some(found)
    }

    /// Makes everything durable, and gives all records.
    pub fn sync(&self) -> Vec<(Position, Vec<u8>)> {
        std::iter::from_fn(|| self.sync_one()).flatten().collect()
    }

    /// A record that is not durable.
    pub fn waiting(&self, position: Position) -> Option<Vec<u8>> {
        match self.0.with(|gather| gather.find(position)) {
            Lookup::Here(record) => checked_record(&record, position).map(<[u8]>::to_vec),
            _ => None,
        }
    }

    /// The disk is nearly full, or is no more.
    pub fn set_nearly_full(&self, nearly_full: bool) {
        self.0.with(|gather| gather.set_nearly_full(nearly_full));
        self.0.tell();
    }

    /// The disk fails, for ever.
    pub fn fail(&self, reason: &str) {
        self.0.fail(reason);
    }
}
