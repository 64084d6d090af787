//! A whole state as a sequence of bounded pieces, to be carried to another node, or into a file.
//!
//! [`export`](fn@export) cuts a piece out of a view; the sender numbers the pieces and the receiver's
//! [`Importer`] takes them in that order and no other. Both can go on after an interruption, behind
//! the last key that arrived, as long as the view is the same one: what ties the pieces to one
//! snapshot is for the carrier to see to.
//!
//! A piece is: version byte 1, flags (1: the last one), sequence u64, number of records u32, the
//! records (length of key u32, of value u32, key, value), CRC32C u32 of all before; numbers are
//! little-endian.

use std::ops::ControlFlow;

use crate::store::{Family, StoreError, View};

const VERSION: u8 = 1;
const LAST: u8 = 1;
const HEAD_BYTES: usize = 14;
const CRC_BYTES: usize = 4;
const RECORD_HEAD_BYTES: usize = 8;

pub use crate::store::Record;

/// Records of [`Family::State`], in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Empty only when the state has nothing more.
    pub records: Vec<Record>,
    /// Nothing comes behind it.
    pub last: bool,
}

/// Why a piece is not taken. Nothing of it counts, and the importer is as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// Its bytes are not those that were sent, or not a piece at all.
    #[error("a damaged piece of a snapshot: {0}")]
    Damaged(String),
    /// It is of a newer build.
    #[error("a piece of a snapshot of version {0}, but this build reads version {VERSION} only")]
    Version(u8),
    /// Pieces are missing before it, or it was there already.
    #[error("piece {found} of a snapshot where {expected} is expected")]
    Sequence {
        /// The number that comes next.
        expected: u64,
        /// The number it has.
        found: u64,
    },
    /// Its keys do not go on behind those before.
    #[error("piece {0} of a snapshot has keys that are out of order")]
    Order(u64),
    /// The last one was there already.
    #[error("a piece of a snapshot behind the last one")]
    Finished,
}

/// Cuts the next piece, behind the key `after_key` (`None`: the first), of at most `max_bytes`
/// encoded; a record that is larger by itself makes a piece of its own.
///
/// # Errors
/// As the store says.
pub fn export(
    view: &dyn View,
    after_key: Option<&[u8]>,
    max_bytes: usize,
) -> Result<Chunk, StoreError> {
    let mut from = after_key.unwrap_or_default().to_vec();
    if after_key.is_some() {
        from.push(0);
    }
    let mut chunk = Chunk { records: Vec::new(), last: true };
    let mut bytes = HEAD_BYTES + CRC_BYTES;
    view.scan(Family::State, &from, None, &mut |key, value| {
        bytes = bytes.saturating_add(RECORD_HEAD_BYTES + key.len() + value.len());
        if bytes > max_bytes && !chunk.records.is_empty() {
            chunk.last = false;
            return ControlFlow::Break(());
        }
        chunk.records.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(chunk)
}

impl Chunk {
    /// The key to go on behind; `None` in an empty piece.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.records.last().map(|(key, _)| key.as_slice())
    }

    /// Its bytes, as piece number `sequence` of its snapshot, from 0.
    pub fn encode(&self, sequence: u64) -> Vec<u8> {
        let held = |(key, value): &Record| RECORD_HEAD_BYTES + key.len() + value.len();
        let length = HEAD_BYTES + CRC_BYTES + self.records.iter().map(held).sum::<usize>();
        let mut bytes = Vec::with_capacity(length);
        bytes.push(VERSION);
        bytes.push(if self.last { LAST } else { 0 });
        bytes.extend_from_slice(&sequence.to_le_bytes());
        bytes.extend_from_slice(&length_of(self.records.len()));
        for (key, value) in &self.records {
            bytes.extend_from_slice(&length_of(key.len()));
            bytes.extend_from_slice(&length_of(value.len()));
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Its number and itself.
    ///
    /// # Errors
    /// [`ChunkError::Damaged`] and [`ChunkError::Version`].
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), ChunkError> {
        let damaged = |what: &str| ChunkError::Damaged(what.to_owned());
        let short = || damaged("it is cut short");
        let (body, crc) = bytes.split_last_chunk::<CRC_BYTES>().ok_or_else(short)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(damaged("its checksum does not fit"));
        }
        let (&[version, flags], rest) = body.split_first_chunk().ok_or_else(short)?;
        if version != VERSION {
            return Err(ChunkError::Version(version));
        }
        if flags & !LAST != 0 {
            return Err(damaged("it has unknown flags"));
        }
        let (&sequence, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (&count, mut rest) = rest.split_first_chunk().ok_or_else(short)?;
        let mut records = Vec::new();
        for _ in 0..u32::from_le_bytes(count) {
            let (&key, tail) = rest.split_first_chunk().ok_or_else(short)?;
            let (&value, tail) = tail.split_first_chunk().ok_or_else(short)?;
            let (key, tail) = tail.split_at_checked(size(key)).ok_or_else(short)?;
            let (value, tail) = tail.split_at_checked(size(value)).ok_or_else(short)?;
            records.push((key.to_vec(), value.to_vec()));
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(damaged("it is too long"));
        }
        Ok((u64::from_le_bytes(sequence), Self { records, last: flags & LAST != 0 }))
    }
}

/// Takes the pieces of one snapshot, each once and in order. Holds no records.
#[derive(Clone, Debug, Default)]
pub struct Importer {
    next: u64,
    last_key: Option<Vec<u8>>,
    finished: bool,
}

impl Importer {
    /// Expects the first piece.
    pub fn new() -> Self {
        Self::default()
    }

    /// The records of the next piece, to be put into the new state.
    ///
    /// # Errors
    /// Whatever is wrong with it; see [`ChunkError`].
    pub fn accept(&mut self, bytes: &[u8]) -> Result<Vec<Record>, ChunkError> {
        let (found, chunk) = Chunk::decode(bytes)?;
        if found != self.next {
            return Err(ChunkError::Sequence { expected: self.next, found });
        }
        if self.finished {
            return Err(ChunkError::Finished);
        }
        if chunk.records.is_empty() && !chunk.last {
            return Err(ChunkError::Damaged("it is empty, but not the last one".to_owned()));
        }
        let mut before = self.last_key.as_deref();
        for (key, _) in &chunk.records {
            if before.is_some_and(|before| before >= key.as_slice()) {
                return Err(ChunkError::Order(found));
            }
            before = Some(key);
        }
        self.next += 1;
        self.finished = chunk.last;
        if let Some(key) = chunk.last_key() {
            self.last_key = Some(key.to_vec());
        }
        Ok(chunk.records)
    }

    /// The number of the piece that comes next.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// The last key that arrived: where the sender goes on.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.last_key.as_deref()
    }

    /// The last piece has arrived: the state is whole.
    pub fn is_finished(&self) -> bool {
        self.finished
    }
}

/// Nothing stored comes near the bound; if it did, the receiver would refuse the piece.
fn length_of(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}

fn size(bytes: [u8; 4]) -> usize {
    u32::from_le_bytes(bytes) as usize
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
