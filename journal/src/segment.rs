//! The files of a journal: `NNNNNNNNNNNNNNNN.log` in use, `.spare` ready for use, `.new` being made.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use rt_abstract::{File, OpenOptions, Runtime, write_all_at};

use crate::error::{JournalError, OpenError};
use crate::format::{BadHeader, SEGMENT_HEADER_BYTES, SegmentHeader, VERSION};
use crate::options::Options;

const CREATE: OpenOptions = OpenOptions { create: true, ..OpenOptions::WRITE };

const DAMAGED: &str = "damaged";

/// Zeros are written in pieces of this size, and synced every so many pieces: the syncs of frames
/// should not have to wait for a whole segment of them.
const ZEROS_BYTES: usize = 256 << 10;
const PIECES_PER_SYNC: usize = 16;

/// A segment in use.
pub(crate) struct Segment<R: Runtime> {
    pub header: SegmentHeader,
    pub path: PathBuf,
    pub file: R::File,
}

/// What a directory holds, by number and in order. Files with other names are ignored.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub logs: Vec<u64>,
    pub spares: Vec<u64>,
    pub unfinished: Vec<u64>,
    /// The first number that no segment ever had, also none that a repair set aside.
    pub next_number: u64,
    /// The first number that no spare has.
    pub next_id: u64,
}

pub(crate) fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.log"))
}

/// Where a repair puts what lay at `offset` and behind.
pub(crate) fn damaged_path(dir: &Path, number: u64, offset: u64, attempt: u32) -> PathBuf {
    dir.join(format!("{number:016x}.{offset}.{attempt}.{DAMAGED}"))
}

pub(crate) fn spare_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.spare"))
}

pub(crate) fn new_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.new"))
}

/// Lists `dir`.
///
/// # Errors
/// A file that is called `.log` without a number.
pub(crate) async fn list<R: Runtime>(dir: &Path) -> Result<Listing, OpenError> {
    let names = R::read_dir(dir).await.map_err(JournalError::on("list", dir))?;
    let mut listing = Listing { next_number: 1, ..Listing::default() };
    for name in names {
        let Some((number, kind)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        let is_number = number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(number, 16).ok().filter(|_| is_number);
        match (number, kind) {
            (Some(number), "log") => listing.logs.push(number),
            (Some(id), "spare") => listing.spares.push(id),
            (Some(id), "new") => listing.unfinished.push(id),
            (None, "log") => return Err(OpenError::Foreign { path: dir.join(name) }),
            _ => {}
        }
        let Some(number) = number else { continue };
        let free = match kind {
            "log" => &mut listing.next_number,
            "spare" | "new" => &mut listing.next_id,
            kind if kind.ends_with(DAMAGED) => &mut listing.next_number,
            _ => continue,
        };
        *free = (*free).max(number.saturating_add(1));
    }
    for numbers in [&mut listing.logs, &mut listing.spares, &mut listing.unfinished] {
        numbers.sort_unstable();
    }
    Ok(listing)
}

/// Reads and checks the header of segment `number`.
pub(crate) async fn read_header<R: Runtime>(
    file: &R::File,
    path: &Path,
    number: u64,
) -> Result<SegmentHeader, OpenError> {
    let block = read_block::<R>(file, path).await?;
    let header = SegmentHeader::decode(&block).map_err(|bad| match bad {
        BadHeader::Foreign => OpenError::Foreign { path: path.to_owned() },
        BadHeader::Newer(version) => {
            OpenError::Newer { path: path.to_owned(), version, known: VERSION }
        }
        BadHeader::Damaged => damaged(path, 0, "the checksum of the header block is wrong"),
    })?;
    if header.number != number {
        return Err(damaged(
            path,
            0,
            &format!("it says that it is segment {:016x}", header.number),
        ));
    }
    if !Options::is_segment_size(header.segment_bytes) {
        return Err(damaged(path, 0, "the size of the segment is impossible"));
    }
    Ok(header)
}

pub(crate) fn damaged(path: &Path, offset: u64, reason: &str) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), offset, reason: reason.to_owned() }
}

/// Whether a spare can be used; what has its name and is none is refused. What is unusable, because
/// it is no whole segment, is removed.
pub(crate) async fn check_spare<R: Runtime>(
    path: &Path,
    segment_bytes: Option<u64>,
) -> Result<bool, OpenError> {
    let file = R::open(path, OpenOptions::READ).await.map_err(JournalError::on("open", path))?;
    let block = read_block::<R>(&file, path).await?;
    let ours = match SegmentHeader::decode(&block) {
        Err(BadHeader::Foreign) => block.iter().all(|&byte| byte == 0),
        _ => true,
    };
    if !ours {
        return Err(OpenError::Foreign { path: path.to_owned() });
    }
    let size = file.size().await.map_err(JournalError::on("measure", path))?;
    drop(file);
    if Some(size) == segment_bytes {
        return Ok(true);
    }
    R::remove_file(path).await.map_err(JournalError::on("remove", path))?;
    Ok(false)
}

/// Makes a spare: space reserved, zeros written, name durable. `None` when `go_on` said so in
/// between; nothing is left of it then, nor after an error.
pub(crate) async fn make_spare<R: Runtime>(
    dir: &Path,
    id: u64,
    segment_bytes: u64,
    go_on: impl Fn() -> bool + rt_abstract::MaybeSend,
) -> Result<Option<()>, JournalError> {
    let path = new_path(dir, id);
    let filled = fill::<R>(&path, segment_bytes, go_on).await;
    if !matches!(filled, Ok(Some(()))) {
        match R::remove_file(&path).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "an unfinished segment stays");
            }
            _ => {}
        }
        return filled;
    }
    rename::<R>(dir, &path, &spare_path(dir, id)).await?;
    Ok(Some(()))
}

async fn fill<R: Runtime>(
    path: &Path,
    segment_bytes: u64,
    go_on: impl Fn() -> bool + rt_abstract::MaybeSend,
) -> Result<Option<()>, JournalError> {
    let file = R::open(path, CREATE).await.map_err(JournalError::on("create", path))?;
    file.allocate(segment_bytes).await.map_err(JournalError::on("reserve space for", path))?;
    let zeros = Bytes::from(vec![0; ZEROS_BYTES]);
    let (mut at, mut pieces) = (0, 0);
    while at < segment_bytes {
        if !go_on() {
            return Ok(None);
        }
        let len = (segment_bytes - at).min(ZEROS_BYTES as u64);
        write_all_at(&file, zeros.slice(..len as usize), at)
            .await
            .map_err(JournalError::on("write", path))?;
        at += len;
        pieces += 1;
        if pieces % PIECES_PER_SYNC == 0 || at == segment_bytes {
            file.sync_data().await.map_err(JournalError::on("sync", path))?;
        }
    }
    Ok(Some(()))
}

/// Turns a spare into segment `header.number`. The header is durable before the name is.
pub(crate) async fn activate<R: Runtime>(
    dir: &Path,
    id: u64,
    header: SegmentHeader,
) -> Result<Segment<R>, JournalError> {
    let (spare, path) = (spare_path(dir, id), log_path(dir, header.number));
    let file =
        R::open(&spare, OpenOptions::WRITE).await.map_err(JournalError::on("open", &spare))?;
    let block = Bytes::from(header.encode());
    write_all_at(&file, block, 0).await.map_err(JournalError::on("write", &spare))?;
    file.sync_data().await.map_err(JournalError::on("sync", &spare))?;
    rename::<R>(dir, &spare, &path).await?;
    Ok(Segment { header, path, file })
}

/// Renames within `dir`, durably.
pub(crate) async fn rename<R: Runtime>(
    dir: &Path,
    from: &Path,
    to: &Path,
) -> Result<(), JournalError> {
    R::rename(from, to).await.map_err(JournalError::on("rename", from))?;
    R::sync_dir(dir).await.map_err(JournalError::on("sync", dir))
}

/// A salt for the next use of a file.
pub(crate) fn salt<R: Runtime>() -> u64 {
    let mut bytes = [0; 8];
    R::fill_random(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// The header block, or as much of it as there is.
async fn read_block<R: Runtime>(file: &R::File, path: &Path) -> Result<Vec<u8>, OpenError> {
    let mut block = Vec::with_capacity(SEGMENT_HEADER_BYTES as usize);
    while block.len() < SEGMENT_HEADER_BYTES as usize {
        let at = block.len() as u64;
        let (result, back) = file.read_at(block, at).await;
        block = back;
        if result.map_err(JournalError::on("read", path))? == 0 {
            break;
        }
    }
    block.truncate(SEGMENT_HEADER_BYTES as usize);
    Ok(block)
}
