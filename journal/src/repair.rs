//! Looking at a journal without changing it, and cutting it where it is damaged.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rt_abstract::{File, MaybeSend, OpenOptions, Runtime, write_all_at};

use crate::error::{JournalError, OpenError};
use crate::format::{BLOCK_BYTES, FRAME_HEADER_BYTES, Position, SEGMENT_HEADER_BYTES, padded};
use crate::scan::{Begin, End, Scan, walk};
use crate::segment::{damaged_path, list, log_path, rename};

/// What is copied or zeroed at once.
const PIECE_BYTES: usize = 1 << 20;
/// Repairs of one place that may be interrupted.
const MAX_ATTEMPTS: u32 = 99;

/// What a journal holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The segments, oldest first, as far as they could be read.
    pub segments: Vec<SegmentReport>,
    /// Prepared segments.
    pub spares: usize,
    /// Records in all of them.
    pub records: u64,
    /// The first and the last valid record.
    pub range: Option<(Position, Position)>,
    /// What follows the last valid record.
    pub verdict: Verdict,
}

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its number.
    pub number: u64,
    /// Its file.
    pub path: PathBuf,
    /// Valid frames.
    pub frames: u64,
    /// Valid records.
    pub records: u64,
    /// Bytes of the frames.
    pub bytes: u64,
}

/// How a journal ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// With the last frame.
    Clean,
    /// With a frame that was not written completely, which opening drops.
    Torn {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
    },
    /// Before its end: opening refuses, [`repair`] cuts.
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// How it is known.
        reason: String,
        /// What [`repair`] would set aside.
        lost: Lost,
    },
}

/// What lies behind the valid part of a damaged journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The file that is cut.
    pub path: PathBuf,
    /// Where: the end of the valid part. 0: the file goes as a whole, and so do later ones always.
    pub offset: u64,
    /// Valid frames behind it. What is damaged itself cannot be counted.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Segments of which nothing can be read, because their header is damaged.
    pub unreadable: u64,
}

/// What a repair did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// What was found before.
    pub report: Report,
    /// Files that what lay behind the damage was moved to. Empty when there was no damage.
    pub set_aside: Vec<PathBuf>,
}

/// Reads a journal that nobody has open, and shows every valid record before the first damage.
/// Changes nothing.
///
/// # Errors
/// Files that are none of a journal or of a newer version, and what the system said.
pub async fn inspect<R: Runtime>(
    dir: &Path,
    visit: impl FnMut(Position, &[u8]) + MaybeSend,
) -> Result<Report, OpenError> {
    Ok(look::<R>(dir, visit).await?.0)
}

/// Cuts the journal `dir`, which nobody has open, at its first damage. What lies behind is kept
/// in files called `*.damaged`, which a journal ignores. Without damage nothing is changed.
///
/// # Errors
/// As for [`inspect`]. A repair that was interrupted can be repeated.
pub async fn repair<R: Runtime>(dir: &Path) -> Result<Repaired, OpenError> {
    let (report, cut, logs) = look::<R>(dir, |_, _| {}).await?;
    let mut set_aside = Vec::new();
    let Some((segment, offset)) = cut else { return Ok(Repaired { report, set_aside }) };
    // The last one first: until the cut itself, the damage stays visible.
    for &number in logs.iter().rev().take_while(|&&number| number > segment) {
        let aside = damaged_path(dir, number, 0, 0);
        rename::<R>(dir, &log_path(dir, number), &aside).await?;
        set_aside.push(aside);
    }
    if offset == 0 {
        let aside = damaged_path(dir, segment, 0, 0);
        rename::<R>(dir, &log_path(dir, segment), &aside).await?;
        set_aside.push(aside);
    } else {
        set_aside.push(cut_off::<R>(dir, segment, offset).await?);
    }
    set_aside.reverse();
    Ok(Repaired { report, set_aside })
}

/// The report, where to cut, and the numbers of all segments.
async fn look<R: Runtime>(
    dir: &Path,
    mut visit: impl FnMut(Position, &[u8]) + MaybeSend,
) -> Result<(Report, Option<(u64, u64)>, Vec<u64>), OpenError> {
    let listing = list::<R>(dir).await?;
    let mut segments: Vec<SegmentReport> = Vec::new();
    let mut range: Option<(Position, Position)> = None;
    let walked = walk::<R>(dir, &listing.logs, Begin::OLDEST, |found| {
        if segments.last().is_none_or(|last| last.number != found.segment) {
            let (number, path) = (found.segment, log_path(dir, found.segment));
            segments.push(SegmentReport { number, path, frames: 0, records: 0, bytes: 0 });
        }
        if let Some(segment) = segments.last_mut() {
            segment.frames += 1;
            segment.records += u64::from(found.header.records);
            segment.bytes += padded(found.header.length as u64);
        }
        for (position, record) in found.records() {
            visit(position, record);
            range = Some((range.map_or(position, |(first, _)| first), position));
        }
        Ok(())
    })
    .await?;
    let (verdict, cut) = match walked {
        Ok(End { torn: false, .. }) => (Verdict::Clean, None),
        Ok(End { segment, offset, .. }) => {
            (Verdict::Torn { path: log_path(dir, segment), offset }, None)
        }
        Err(damage) => {
            let cut = (damage.segment, damage.offset);
            let (path, offset, reason) = (damage.path, damage.at, damage.reason);
            let lost = behind::<R>(dir, &listing.logs, cut).await?;
            (Verdict::Damaged { path, offset, reason, lost }, Some(cut))
        }
    };
    let records = segments.iter().map(|segment| segment.records).sum();
    let spares = listing.spares.len();
    Ok((Report { segments, spares, records, range, verdict }, cut, listing.logs))
}

/// Counts what can still be read at the place of the cut and behind.
async fn behind<R: Runtime>(
    dir: &Path,
    logs: &[u64],
    (segment, offset): (u64, u64),
) -> Result<Lost, OpenError> {
    let path = log_path(dir, segment);
    let mut lost = Lost { path, offset, frames: 0, records: 0, bytes: 0, unreadable: 0 };
    for &number in logs.iter().filter(|&&number| number >= segment) {
        let mut scan = match Scan::<R>::open(dir, number).await {
            Ok(scan) => scan,
            Err(OpenError::Damaged { .. }) => {
                lost.unreadable += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        let begin = if number == segment { offset } else { 0 };
        let mut at = begin.max(SEGMENT_HEADER_BYTES);
        while at + FRAME_HEADER_BYTES as u64 <= scan.header.segment_bytes {
            let Some(found) = scan.frame(at).await? else {
                at += BLOCK_BYTES;
                continue;
            };
            let bytes = padded(found.header.length as u64);
            lost.frames += 1;
            lost.records += u64::from(found.header.records);
            lost.bytes += bytes;
            at += bytes;
        }
    }
    Ok(lost)
}

/// Copies what lies at `offset` and behind, and zeroes it once the copy is durable.
async fn cut_off<R: Runtime>(dir: &Path, segment: u64, offset: u64) -> Result<PathBuf, OpenError> {
    let path = log_path(dir, segment);
    let file = R::open(&path, OpenOptions::WRITE).await.map_err(JournalError::on("open", &path))?;
    let (aside, copy) = create_aside::<R>(dir, segment, offset).await?;
    let size = file.size().await.map_err(JournalError::on("measure", &path))?;
    let (mut at, mut buffer) = (offset, Vec::new());
    while at < size {
        buffer.clear();
        buffer.reserve_exact((size - at).min(PIECE_BYTES as u64) as usize);
        let (result, back) = file.read_at(buffer, at).await;
        if result.map_err(JournalError::on("read", &path))? == 0 {
            break;
        }
        let piece = Bytes::from(back);
        let written = write_all_at(&copy, piece.clone(), at - offset).await;
        written.map_err(JournalError::on("write", &aside))?;
        at += piece.len() as u64;
        buffer = piece.try_into_mut().map(Vec::from).unwrap_or_default();
    }
    copy.sync_data().await.map_err(JournalError::on("sync", &aside))?;
    R::sync_dir(dir).await.map_err(JournalError::on("sync", dir))?;
    let zeros = Bytes::from(vec![0; PIECE_BYTES]);
    let mut at = offset;
    while at < size {
        let piece = zeros.slice(..(size - at).min(PIECE_BYTES as u64) as usize);
        let len = piece.len() as u64;
        let written = write_all_at(&file, piece, at).await;
        written.map_err(JournalError::on("write", &path))?;
        at += len;
    }
    file.sync_data().await.map_err(JournalError::on("sync", &path))?;
    Ok(aside)
}

/// A file for what is set aside. What an interrupted repair left is not touched: the original may
/// be gone in part.
async fn create_aside<R: Runtime>(
    dir: &Path,
    segment: u64,
    offset: u64,
) -> Result<(PathBuf, R::File), OpenError> {
    let mut attempt = 0;
    loop {
        let path = damaged_path(dir, segment, offset, attempt);
        match R::open(&path, OpenOptions::CREATE_NEW).await {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < MAX_ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(JournalError::on("create", &path)(error).into()),
        }
    }
}
