//! How it looks on disk. All numbers are little endian.
//!
//! ```text
//! segment  header block of 4096 bytes, then frames, each beginning at a multiple of 4096
//! header   magic 8, version u32, reserved u32, number u64, segment bytes u64, salt u64, crc u32
//! frame    magic u32, length u32, crc u32, records u32, segment u64, sequence u64, salt u64,
//!          reserved u64; records; zeros up to a multiple of 4096
//! record   length u32, crc u32, bytes
//! ```
//!
//! The crc of a frame covers all of it but itself and the padding; the one of a record covers its
//! length, its bytes and its position, so that what an earlier use left in a segment is never taken
//! for a record. The salt is drawn anew for every use of a file: no old frame, and no payload that
//! imitates one, is valid in it.

use std::fmt;

/// The version that this program writes.
pub(crate) const VERSION: u32 = 1;
/// A frame begins at a multiple of this, so that it shares no sector with one that is synced: most
/// disks write sectors of 4096 bytes, also those that take 512. It is the page of the cache as well.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Frames begin behind it.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 4096;
pub(crate) const FRAME_HEADER_BYTES: usize = 48;
pub(crate) const RECORD_HEADER_BYTES: usize = 8;

const SEGMENT_MAGIC: [u8; 8] = *b"GEARJRNL";
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"GJF1");
const SEGMENT_CRC_AT: usize = 40;

/// Where a record lies: number of its segment times the size of segments, plus the offset in it.
/// A later record has a greater position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

/// How far the log has come: the sequence number of a frame. Tickets go on after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// A frame by what nothing else has in common with it: all that lies before its end is what it was
/// when the mark was made, as long as the frame is where the mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Where the frame begins.
    pub(crate) at: Position,
    pub(crate) sequence: u64,
    /// Of the use of the segment.
    pub(crate) salt: u64,
    pub(crate) crc: u32,
}

/// What the header block of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub number: u64,
    pub segment_bytes: u64,
    pub salt: u64,
}

/// Why a block is no header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// Nothing of a journal.
    Foreign,
    /// Of a version that is not known.
    Newer(u32),
    /// The checksum is wrong.
    Damaged,
}

/// What the header of a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Header and records, without padding.
    pub length: usize,
    pub crc: u32,
    pub records: u32,
    pub sequence: u64,
}

impl Position {
    /// A position that [`Position::get`] gave.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// As a number, to be kept in records.
    pub const fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn of(segment: u64, offset: u64, segment_bytes: u64) -> Self {
        Self(segment * segment_bytes + offset)
    }

    pub(crate) fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl Ticket {
    /// As a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Mark {
    /// Where the frame begins: its records lie behind, and nothing that they do not follow.
    pub const fn position(&self) -> Position {
        self.at
    }

    /// The frame's ticket.
    pub const fn ticket(&self) -> Ticket {
        Ticket(self.sequence)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl SegmentHeader {
    /// The whole header block.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(SEGMENT_HEADER_BYTES as usize);
        block.extend_from_slice(&SEGMENT_MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        for field in [self.number, self.segment_bytes, self.salt] {
            block.extend_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c::crc32c(&block);
        block.extend_from_slice(&crc.to_le_bytes());
        block.resize(SEGMENT_HEADER_BYTES as usize, 0);
        block
    }

    /// Reads a header block, which may be cut short.
    pub fn decode(block: &[u8]) -> Result<Self, BadHeader> {
        if block.get(..8) != Some(&SEGMENT_MAGIC[..]) {
            return Err(BadHeader::Foreign);
        }
        let version = u32_at(block, 8).ok_or(BadHeader::Damaged)?;
        if version > VERSION {
            return Err(BadHeader::Newer(version));
        }
        let field = |at| u64_at(block, at).ok_or(BadHeader::Damaged);
        let header = Self { number: field(16)?, segment_bytes: field(24)?, salt: field(32)? };
        let covered = block.get(..SEGMENT_CRC_AT).ok_or(BadHeader::Damaged)?;
        if version == 0 || u32_at(block, SEGMENT_CRC_AT) != Some(crc32c::crc32c(covered)) {
            return Err(BadHeader::Damaged);
        }
        Ok(header)
    }
}

/// The checksum of a frame whose records stand behind the space for its header.
pub(crate) fn frame_crc(frame: &[u8], records: u32, sequence: u64, of: &SegmentHeader) -> u32 {
    let header = encode_frame_header(frame.len(), 0, records, sequence, of);
    crc_of_frame(&header, &frame[FRAME_HEADER_BYTES..])
}

/// The header of a frame.
pub(crate) fn encode_frame_header(
    length: usize,
    crc: u32,
    records: u32,
    sequence: u64,
    of: &SegmentHeader,
) -> [u8; FRAME_HEADER_BYTES] {
    let mut header = [0; FRAME_HEADER_BYTES];
    let length = u32::try_from(length).unwrap_or(u32::MAX); // a segment is shorter
    for (at, field) in [(0, FRAME_MAGIC), (4, length), (8, crc), (12, records)] {
        header[at..at + 4].copy_from_slice(&field.to_le_bytes());
    }
    for (at, field) in [(16, of.number), (24, sequence), (32, of.salt)] {
        header[at..at + 8].copy_from_slice(&field.to_le_bytes());
    }
    header
}

/// Reads the header of a frame that was written in this use of the segment. Its length is at least
/// the header's; the frame is valid only when [`frame_is_valid`] says so.
pub(crate) fn decode_frame_header(bytes: &[u8], of: &SegmentHeader) -> Option<FrameHeader> {
    let known = u32_at(bytes, 0)? == FRAME_MAGIC
        && u64_at(bytes, 16)? == of.number
        && u64_at(bytes, 32)? == of.salt;
    let header = FrameHeader {
        length: u32_at(bytes, 4)? as usize,
        crc: u32_at(bytes, 8)?,
        records: u32_at(bytes, 12)?,
        sequence: u64_at(bytes, 24)?,
    };
    (known && header.length >= FRAME_HEADER_BYTES).then_some(header)
}

/// Whether all of a frame, padding left out, is as it was written.
pub(crate) fn frame_is_valid(frame: &[u8], header: &FrameHeader) -> bool {
    frame.len() == header.length
        && crc_of_frame(&frame[..FRAME_HEADER_BYTES], &frame[FRAME_HEADER_BYTES..]) == header.crc
        && records(frame).count() == header.records as usize
        && records(frame).map(|(_, record)| RECORD_HEADER_BYTES + record.len()).sum::<usize>()
            == frame.len() - FRAME_HEADER_BYTES
}

/// The records of a frame: offset in it, and bytes. Ends early where lengths do not fit.
pub(crate) fn records(frame: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = FRAME_HEADER_BYTES;
    std::iter::from_fn(move || {
        let len = u32_at(frame, at)? as usize;
        let begin = at;
        let body = begin + RECORD_HEADER_BYTES;
        let record = frame.get(body..body.checked_add(len)?)?;
        at = body + len;
        Some((begin, record))
    })
}

/// How long the record is that begins here, header left out, as it says itself.
pub(crate) fn record_len(bytes: &[u8]) -> Option<usize> {
    u32_at(bytes, 0).map(|len| len as usize)
}

/// The bytes of the record that begins here, when it was written at `position`.
pub(crate) fn checked_record(bytes: &[u8], position: Position) -> Option<&[u8]> {
    let len = record_len(bytes)?;
    let crc = u32_at(bytes, 4)?;
    let record = bytes.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES.checked_add(len)?)?;
    let found =
        crc32c::crc32c_append(crc_of_record(&bytes[..4], record), &position.0.to_le_bytes());
    (found == crc).then_some(record)
}

/// Fills in the header of the record that begins at `begin` and reaches to the end.
pub(crate) fn put_record_header(bytes: &mut [u8], begin: usize) {
    let len = bytes.len() - begin - RECORD_HEADER_BYTES;
    let len = u32::try_from(len).unwrap_or(u32::MAX); // such a batch is refused
    bytes[begin..begin + 4].copy_from_slice(&len.to_le_bytes());
    let crc = crc_of_record(&bytes[begin..begin + 4], &bytes[begin + RECORD_HEADER_BYTES..]);
    bytes[begin + 4..begin + 8].copy_from_slice(&crc.to_le_bytes());
}

/// Takes the position of the record that begins here into its checksum; gives its whole length.
pub(crate) fn seal_record(bytes: &mut [u8], position: Position) -> usize {
    let (len, crc) = (u32_at(bytes, 0).unwrap_or(0), u32_at(bytes, 4).unwrap_or(0));
    let crc = crc32c::crc32c_append(crc, &position.0.to_le_bytes());
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    RECORD_HEADER_BYTES + len as usize
}

/// The next multiple of [`BLOCK_BYTES`].
pub(crate) fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

fn crc_of_record(len: &[u8], record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(len), record)
}

fn crc_of_frame(header: &[u8], records: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&header[..8]);
    let crc = crc32c::crc32c_append(crc, &header[12..FRAME_HEADER_BYTES]);
    crc32c::crc32c_append(crc, records)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: SegmentHeader = SegmentHeader { number: 7, segment_bytes: 65536, salt: 0x0123_4567 };

    #[test]
    fn a_segment_header_is_as_it_always_was() {
        let block = OF.encode();
        assert_eq!(block.len(), 4096);
        assert_eq!(&block[..16], b"GEARJRNL\x01\0\0\0\0\0\0\0");
        assert_eq!(&block[16..40], b"\x07\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\x67\x45\x23\x01\0\0\0\0");
        assert!(block[44..].iter().all(|&byte| byte == 0));
        assert_eq!(SegmentHeader::decode(&block), Ok(OF));
    }

    #[test]
    fn what_is_no_segment_header_is_told_apart() {
        let block = OF.encode();
        assert_eq!(SegmentHeader::decode(b""), Err(BadHeader::Foreign));
        assert_eq!(SegmentHeader::decode(&[0; 4096]), Err(BadHeader::Foreign));
        for len in 8..44 {
            assert_eq!(SegmentHeader::decode(&block[..len]), Err(BadHeader::Damaged));
        }
        for bit in 12 * 8..44 * 8 {
            let mut block = block.clone();
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&block), Err(BadHeader::Damaged), "bit {bit}");
        }
        let mut newer = block;
        newer[8] = 2;
        assert_eq!(SegmentHeader::decode(&newer), Err(BadHeader::Newer(2)));
    }

    fn frame(bodies: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0; FRAME_HEADER_BYTES];
        for body in bodies {
            let begin = bytes.len();
            bytes.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
            bytes.extend_from_slice(body);
            put_record_header(&mut bytes, begin);
        }
        let count = bodies.len() as u32;
        let crc = frame_crc(&bytes, count, 9, &OF);
        let header = encode_frame_header(bytes.len(), crc, count, 9, &OF);
        bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header);
        bytes
    }

    #[test]
    fn a_frame_is_valid_as_a_whole_only() {
        let good = frame(&[b"one", b"", b"three"]);
        let header = decode_frame_header(&good, &OF).expect("is a header");
        assert_eq!((header.records, header.sequence, header.length), (3, 9, good.len()));
        assert!(frame_is_valid(&good, &header));
        let found: Vec<_> = records(&good).map(|(_, record)| record.to_vec()).collect();
        assert_eq!(found, [b"one".to_vec(), b"".to_vec(), b"three".to_vec()]);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let valid = decode_frame_header(&bad, &OF)
                .is_some_and(|header| header.length == bad.len() && frame_is_valid(&bad, &header));
            assert!(!valid, "bit {bit}");
        }
        let later = SegmentHeader { salt: OF.salt + 1, ..OF };
        assert_eq!(decode_frame_header(&good, &later), None, "left by an earlier use");
        for len in 0..FRAME_HEADER_BYTES - 8 {
            assert_eq!(decode_frame_header(&good[..len], &OF), None);
        }
    }

    #[test]
    fn a_record_is_valid_at_its_position_only() {
        let mut bytes = vec![0; RECORD_HEADER_BYTES];
        bytes.extend_from_slice(b"hello");
        put_record_header(&mut bytes, 0);
        assert_eq!(seal_record(&mut bytes, Position(77)), 13);
        bytes.extend_from_slice(b"behind");
        assert_eq!(checked_record(&bytes, Position(77)), Some(&b"hello"[..]));
        assert_eq!(checked_record(&bytes, Position(78)), None);
        assert_eq!(checked_record(&bytes[..12], Position(77)), None);
        bytes[9] ^= 1;
        assert_eq!(checked_record(&bytes, Position(77)), None);
    }
}
