//! Opening a journal: what is read, and what a crash left behind is tidied up.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rt_abstract::{File, MaybeSend, OpenOptions, Runtime, write_all_at};

use crate::error::{JournalError, OpenError, VisitError};
use crate::format::{BLOCK_BYTES, Mark, Position, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::gather::Tail;
use crate::handle::{Inner, Journal};
use crate::options::Options;
use crate::scan::{Begin, End, Scan, walk};
use crate::segment::{
    Listing, Segment, activate, check_spare, damaged, list, log_path, make_spare, new_path, rename,
    salt, spare_path,
};
use crate::writer::Writer;

/// What is written again at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Opens the journal of `options.dir`, or makes one, and calls `visit` for every record behind the
/// frame of `after` (or from the oldest) to the end, in order. A record was appended as part of a
/// batch whose other records are visited too.
///
/// Nothing that lies before the frame of `after` is read: damage there is found by who reads a record,
/// or by [`crate::inspect`].
///
/// What a crash left half written at the end is dropped: it was never durable. What is durable
/// after it: all that was visited.
///
/// # Errors
/// Damage before the end, files that are none of a journal or of a newer version, no frame of `after`
/// ([`OpenError::NoMark`]; nothing was visited): nothing is changed then. What the system or `visit`
/// said.
pub async fn open<R: Runtime>(
    mut options: Options,
    after: Option<Mark>,
    mut visit: impl FnMut(Position, &[u8]) -> Result<(), VisitError> + MaybeSend,
) -> Result<(Journal, Writer<R>), OpenError> {
    options.check().map_err(OpenError::Options)?;
    let dir = options.dir.clone();
    R::create_dir(&dir).await.map_err(JournalError::on("create", &dir))?;
    let listing = list::<R>(&dir).await?;
    if listing.logs.is_empty() {
        sync_parent::<R>(&dir).await?;
    }
    let mut end = None;
    if let Some(&oldest) = listing.logs.first() {
        options.segment_bytes = Scan::<R>::open(&dir, oldest).await?.header.segment_bytes;
        let begin = match &after {
            Some(mark) => Begin::at::<R>(&dir, &listing.logs, options.segment_bytes, mark)
                .await?
                .ok_or(OpenError::NoMark { position: mark.at })?,
            None => Begin::OLDEST,
        };
        end = Some(
            walk::<R>(&dir, &listing.logs, begin, |found| {
                if after.is_some_and(|mark| found.header.sequence <= mark.sequence) {
                    return Ok(());
                }
                for (position, record) in found.records() {
                    visit(position, record)
                        .map_err(|source| OpenError::Visit { position, source })?;
                }
                Ok(())
            })
            .await??,
        );
    } else if let Some(mark) = after {
        return Err(OpenError::NoMark { position: mark.at });
    }
    let mut spares = Spares { dir: &dir, ids: VecDeque::new(), next_id: listing.next_id };
    spares.take_over::<R>(&listing, options.segment_bytes).await?;
    let (segment, tail) = match end {
        Some(end) => {
            spares.take_behind::<R>(&listing.logs, end.segment).await?;
            let tail = Tail {
                oldest: listing.logs[0],
                segment: end.segment,
                offset: end.offset,
                sequence: end.sequence.unwrap_or(0),
            };
            (go_on::<R>(&dir, end).await?, tail)
        }
        None => {
            let segment = spares.begin::<R>(listing.next_number, options.segment_bytes).await?;
            let number = segment.header.number;
            (
                segment,
                Tail { oldest: number, segment: number, offset: SEGMENT_HEADER_BYTES, sequence: 0 },
            )
        }
    };
    let Spares { ids, next_id, .. } = spares;
    let inner = Arc::new(Inner::new(options, tail, ids.len() as u64));
    let journal = Journal { inner: inner.clone() };
    Ok((journal, Writer::new(inner, segment, ids, next_id)))
}

/// Makes the name of the directory durable, before anything is in it.
async fn sync_parent<R: Runtime>(dir: &Path) -> Result<(), JournalError> {
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    R::sync_dir(parent).await.map_err(JournalError::on("sync", parent))
}

/// Opens the last segment for writing behind its frames.
async fn go_on<R: Runtime>(dir: &Path, end: End) -> Result<Segment<R>, OpenError> {
    let path = log_path(dir, end.segment);
    let file = R::open(&path, OpenOptions::WRITE).await.map_err(JournalError::on("open", &path))?;
    let header = crate::segment::read_header::<R>(&file, &path, end.segment).await?;
    let size = file.size().await.map_err(JournalError::on("measure", &path))?;
    if size < header.segment_bytes {
        let allocated = file.allocate(header.segment_bytes).await;
        allocated.map_err(JournalError::on("reserve space for", &path))?;
    }
    if end.torn {
        tracing::warn!(
            path = %path.display(),
            offset = end.offset,
            "the last frame is not whole, as a crash leaves it while it is written: it is dropped"
        );
    }
    if end.torn && end.offset < header.segment_bytes {
        // Without its first block it can never be completed by what is written there later.
        let zeros = Bytes::from(vec![0; BLOCK_BYTES as usize]);
        let written = write_all_at(&file, zeros, end.offset).await;
        written.map_err(JournalError::on("write", &path))?;
    }
    // What was read may be known to the page cache only, which does not write it again when a sync
    // has failed for it before. Earlier frames were synced before this one was written.
    write_again::<R>(&file, &path, end.offset - end.frame_bytes, end.offset).await?;
    file.sync_data().await.map_err(JournalError::on("sync", &path))?;
    Ok(Segment { header, path, file })
}

/// Writes what a file holds from `begin` to `end` once more.
async fn write_again<R: Runtime>(
    file: &R::File,
    path: &Path,
    begin: u64,
    end: u64,
) -> Result<(), OpenError> {
    let (mut at, mut buffer) = (begin, Vec::new());
    while at < end {
        buffer.clear();
        buffer.reserve_exact((end - at).min(PIECE_BYTES) as usize);
        let (result, back) = file.read_at(buffer, at).await;
        if result.map_err(JournalError::on("read", path))? == 0 {
            break; // not written: it is padding
        }
        let mut piece = Bytes::from(back);
        piece.truncate((end - at) as usize); // an allocator may give more room than was asked for
        let written = write_all_at(file, piece.clone(), at).await;
        written.map_err(JournalError::on("write", path))?;
        at += piece.len() as u64;
        buffer = piece.try_into_mut().map(Vec::from).unwrap_or_default();
    }
    Ok(())
}

struct Spares<'a> {
    dir: &'a Path,
    ids: VecDeque<u64>,
    next_id: u64,
}

impl Spares<'_> {
    /// Keeps the spares that are whole, removes what was being made.
    async fn take_over<R: Runtime>(
        &mut self,
        listing: &Listing,
        segment_bytes: u64,
    ) -> Result<(), OpenError> {
        for &id in &listing.unfinished {
            check_spare::<R>(&new_path(self.dir, id), None).await?;
        }
        for &id in &listing.spares {
            if check_spare::<R>(&spare_path(self.dir, id), Some(segment_bytes)).await? {
                self.ids.push_back(id);
            }
        }
        Ok(())
    }

    /// Makes spares of the segments behind the last frame, the last one first so that a crash
    /// leaves no gap.
    async fn take_behind<R: Runtime>(&mut self, logs: &[u64], last: u64) -> Result<(), OpenError> {
        for &number in logs.iter().rev().take_while(|&&number| number > last) {
            let spare = spare_path(self.dir, self.next_id);
            rename::<R>(self.dir, &log_path(self.dir, number), &spare).await?;
            self.ids.push_back(self.next_id);
            self.next_id += 1;
        }
        Ok(())
    }

    /// The first segment of a journal that has none.
    async fn begin<R: Runtime>(
        &mut self,
        number: u64,
        segment_bytes: u64,
    ) -> Result<Segment<R>, OpenError> {
        if number.checked_add(1 << 20).and_then(|end| end.checked_mul(segment_bytes)).is_none() {
            let path = log_path(self.dir, number);
            return Err(damaged(&path, 0, "there are no numbers left behind what was set aside"));
        }
        if self.ids.is_empty() {
            make_spare::<R>(self.dir, self.next_id, segment_bytes, || true).await?;
            self.ids.push_back(self.next_id);
            self.next_id += 1;
        }
        let id = self.ids.pop_front().unwrap_or_default();
        let header = SegmentHeader { number, segment_bytes, salt: salt::<R>() };
        Ok(activate::<R>(self.dir, id, header).await?)
    }
}
