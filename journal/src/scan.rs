//! Reading segments in order and finding where the log ends.
//!
//! A frame is written only after the one before it was synced. So where reading meets something
//! that is no frame, a valid frame of a later sequence behind it, in this segment or a later one,
//! proves damage; without one it is the end, torn or not.

use std::path::{Path, PathBuf};

use rt_abstract::planted::{Bug, is_planted};
use rt_abstract::{File, MaybeSend, OpenOptions, Runtime};

use crate::error::{JournalError, OpenError};
use crate::format::{
    BLOCK_BYTES, FRAME_HEADER_BYTES, FrameHeader, Mark, Position, SEGMENT_HEADER_BYTES,
    SegmentHeader, decode_frame_header, frame_is_valid, padded, records,
};
use crate::segment::{damaged, log_path, read_header};

/// How much is read at once. The buffer grows beyond it for a longer frame only.
const READ_BYTES: usize = 1 << 20;

/// One segment being read, in order.
pub(crate) struct Scan<R: Runtime> {
    pub header: SegmentHeader,
    pub path: PathBuf,
    file: R::File,
    /// Nothing is read from here on: the file may be shorter than it should be.
    end: u64,
    /// What lies at `begin` and behind.
    buffer: Vec<u8>,
    begin: u64,
}

/// Where the frames end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub segment: u64,
    pub offset: u64,
    /// Of the last frame, when there is one.
    pub sequence: Option<u64>,
    /// How long it is, padding included: it ends at `offset`.
    pub frame_bytes: u64,
    /// Whether a frame was begun there: what the loss of power leaves.
    pub torn: bool,
}

/// Damage, and what proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The segment where the valid part ends.
    pub segment: u64,
    /// The end of the valid part; 0 when the segment's own header is damaged.
    pub offset: u64,
    /// Where the damage was noticed, for people.
    pub path: PathBuf,
    pub at: u64,
    pub reason: String,
}

/// A frame that was read.
pub(crate) struct Found<'a> {
    pub segment: u64,
    pub offset: u64,
    pub frame: &'a [u8],
    pub header: FrameHeader,
    segment_bytes: u64,
    salt: u64,
}

impl Found<'_> {
    /// What tells this frame from all others.
    pub fn mark(&self) -> Mark {
        Mark {
            at: Position::of(self.segment, self.offset, self.segment_bytes),
            sequence: self.header.sequence,
            salt: self.salt,
            crc: self.header.crc,
        }
    }

    /// The records, each with its position.
    pub fn records(&self) -> impl Iterator<Item = (Position, &[u8])> {
        records(self.frame).map(|(at, record)| {
            (Position::of(self.segment, self.offset + at as u64, self.segment_bytes), record)
        })
    }
}

impl From<Damage> for OpenError {
    fn from(damage: Damage) -> Self {
        Self::Damaged { path: damage.path, offset: damage.at, reason: damage.reason }
    }
}

/// Where reading begins: the index of a segment, and the offset of a frame in it, or of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    pub index: usize,
    pub offset: u64,
}

impl Begin {
    /// With the oldest segment.
    pub const OLDEST: Self = Self { index: 0, offset: SEGMENT_HEADER_BYTES };

    /// With the frame of `mark`, when it is still there.
    pub async fn at<R: Runtime>(
        dir: &Path,
        numbers: &[u64],
        segment_bytes: u64,
        mark: &Mark,
    ) -> Result<Option<Self>, OpenError> {
        let (number, offset) = (mark.at.get() / segment_bytes, mark.at.get() % segment_bytes);
        let Ok(index) = numbers.binary_search(&number) else { return Ok(None) };
        let mut scan = match Scan::<R>::open(dir, number).await {
            Ok(scan) if scan.header.segment_bytes == segment_bytes => scan,
            // Whatever is wrong with it, who reads everything will say so.
            Ok(_) | Err(OpenError::Damaged { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = scan.frame(offset).await?;
        Ok(found.is_some_and(|found| found.mark() == *mark).then_some(Self { index, offset }))
    }
}

/// Reads the segments `numbers`, which are in order, and shows every frame from `begin` on, which is
/// where one begins; of the segments before it only the headers are checked.
///
/// # Errors
/// What is no damage: files that are none of ours, errors of the system, errors of `visit`.
pub(crate) async fn walk<R: Runtime>(
    dir: &Path,
    numbers: &[u64],
    begin: Begin,
    mut visit: impl FnMut(&Found<'_>) -> Result<(), OpenError> + MaybeSend,
) -> Result<Result<End, Damage>, OpenError> {
    let mut end = End { segment: 0, offset: 0, sequence: None, frame_bytes: 0, torn: false };
    // Where a frame was begun that is not whole: the likeliest place of the damage.
    let mut begun: Option<(PathBuf, u64)> = None;
    let mut segment_bytes = None;
    let mut ended = false;
    for (index, &number) in numbers.iter().enumerate() {
        if index > 0 && number != numbers[index - 1] + 1 {
            let missing = log_path(dir, numbers[index - 1] + 1);
            return Ok(Err(end.damage(missing, 0, "the segment is missing".into())));
        }
        if index <= begin.index {
            end = End { segment: number, offset: 0, ..end };
        }
        let mut scan = match Scan::<R>::open(dir, number).await {
            Ok(scan)
                if *segment_bytes.get_or_insert(scan.header.segment_bytes)
                    == scan.header.segment_bytes =>
            {
                scan
            }
            Ok(scan) => {
                let reason = "its size is not that of the other segments".into();
                return Ok(Err(end.damage(scan.path, 0, reason)));
            }
            Err(OpenError::Damaged { path, offset, reason }) => {
                return Ok(Err(end.damage(path, offset, reason)));
            }
            Err(error) => return Err(error),
        };
        if index < begin.index {
            end.offset = scan.header.segment_bytes;
            continue;
        }
        let mut at = SEGMENT_HEADER_BYTES;
        if index == begin.index {
            at = begin.offset;
            end.offset = at;
        }
        while !ended && let Some(found) = scan.frame(at).await? {
            if end.sequence.is_some_and(|last| found.header.sequence != last + 1) {
                break;
            }
            visit(&found)?;
            let frame_bytes = padded(found.header.length as u64);
            at += frame_bytes;
            let sequence = Some(found.header.sequence);
            end = End { segment: number, offset: at, sequence, frame_bytes, torn: false };
            begun = None;
        }
        // A segment without a frame ends the log: one that follows it was never written.
        ended |= at == SEGMENT_HEADER_BYTES;
        if begun.is_none() && scan.is_torn(at).await? {
            begun = Some((scan.path.clone(), at));
        }
        if let Some(later) = scan.find_later(at, end.sequence).await? {
            let reason =
                format!("a valid frame lies behind, in {} at {later}", scan.path.display());
            let (path, at) = begun.unwrap_or_else(|| (log_path(dir, end.segment), end.offset));
            return Ok(Err(end.damage(path, at, reason)));
        }
    }
    end.torn = begun.is_some();
    Ok(Ok(end))
}

impl End {
    fn damage(&self, path: PathBuf, at: u64, reason: String) -> Damage {
        Damage { segment: self.segment, offset: self.offset, path, at, reason }
    }
}

impl<R: Runtime> Scan<R> {
    pub async fn open(dir: &Path, number: u64) -> Result<Self, OpenError> {
        let path = log_path(dir, number);
        let file =
            R::open(&path, OpenOptions::READ).await.map_err(JournalError::on("open", &path))?;
        let header = read_header::<R>(&file, &path, number).await?;
        if number.checked_add(1).and_then(|next| next.checked_mul(header.segment_bytes)).is_none() {
            return Err(damaged(&path, 0, "its number is impossible"));
        }
        let size = file.size().await.map_err(JournalError::on("measure", &path))?;
        let end = size.min(header.segment_bytes);
        Ok(Self { header, path, file, end, buffer: Vec::new(), begin: 0 })
    }

    /// The frame at `at`, if a whole one lies there.
    pub async fn frame(&mut self, at: u64) -> Result<Option<Found<'_>>, OpenError> {
        let Some(header) = self.header_at(at).await? else { return Ok(None) };
        if at + header.length as u64 > self.header.segment_bytes {
            return Ok(None);
        }
        let frame = self.bytes(at, header.length).await?;
        let SegmentHeader { number: segment, segment_bytes, salt } = self.header;
        let begin = (at - self.begin) as usize;
        let frame = &self.buffer[begin..begin + frame];
        let valid = frame_is_valid(frame, &header) || is_planted(Bug::TrustedLength);
        Ok(valid.then_some(Found { segment, offset: at, frame, header, segment_bytes, salt }))
    }

    /// Whether a frame was begun at `at` that is not whole.
    async fn is_torn(&mut self, at: u64) -> Result<bool, OpenError> {
        Ok(self.header_at(at).await?.is_some() && self.frame(at).await?.is_none())
    }

    /// The first valid frame at or behind `from` that is later than `sequence`.
    async fn find_later(
        &mut self,
        from: u64,
        sequence: Option<u64>,
    ) -> Result<Option<u64>, OpenError> {
        let mut at = from;
        while at + FRAME_HEADER_BYTES as u64 <= self.header.segment_bytes {
            let found = self.frame(at).await?.map(|found| found.header.sequence);
            if found.is_some_and(|found| sequence.is_none_or(|sequence| found > sequence)) {
                return Ok(Some(at));
            }
            at += BLOCK_BYTES;
        }
        Ok(None)
    }

    async fn header_at(&mut self, at: u64) -> Result<Option<FrameHeader>, OpenError> {
        if at + FRAME_HEADER_BYTES as u64 > self.header.segment_bytes {
            return Ok(None);
        }
        let len = self.bytes(at, FRAME_HEADER_BYTES).await?;
        let begin = (at - self.begin) as usize;
        Ok(decode_frame_header(&self.buffer[begin..begin + len], &self.header))
    }

    /// Has the buffer hold `len` bytes from `at` on, or as many as there are; says how many, and
    /// `at` lies within the buffer or at its end.
    async fn bytes(&mut self, at: u64, len: usize) -> Result<usize, OpenError> {
        let held = self.begin + self.buffer.len() as u64;
        if at < self.begin || at > held {
            self.buffer.clear();
            self.begin = at;
        }
        let mut skip = (at - self.begin) as usize;
        if self.buffer.len() < skip + len && self.begin + (self.buffer.len() as u64) < self.end {
            self.buffer.drain(..skip);
            (self.begin, skip) = (at, 0);
            let wanted = (self.end - at).min(len.max(READ_BYTES) as u64) as usize;
            self.buffer.reserve_exact(wanted.saturating_sub(self.buffer.len()));
            while self.buffer.len() < len.min(wanted) {
                let buffer = std::mem::take(&mut self.buffer);
                let from = at + buffer.len() as u64;
                let (result, buffer) = self.file.read_at(buffer, from).await;
                self.buffer = buffer;
                if result.map_err(JournalError::on("read", &self.path))? == 0 {
                    self.end = from; // cut meanwhile
                    break;
                }
            }
        }
        Ok(len.min(self.buffer.len() - skip))
    }
}
