//! Files, copied piece by piece through the runtime, so that a shard on the same core goes on.

use std::io::{self, ErrorKind};
use std::path::Path;

use bytes::Bytes;
use rt_abstract::{File, OpenOptions, Runtime, write_all_at};

use super::{BackupError, Bound, FileEntry, refused};

/// Copied at once.
const PIECE_BYTES: u64 = 256 << 10;
/// A sync comes after so many pieces: those of the journal should not have to wait for a whole file.
const PIECES_PER_SYNC: usize = 16;

/// Copies the first `max_bytes` of a file, or all, to the new file `name` below `dir`. Durable when it
/// returns, but for the name.
pub(super) async fn copy<R: Runtime>(
    from: &Path,
    dir: &Path,
    name: &Path,
    max_bytes: u64,
    bound: &Bound<'_>,
) -> Result<FileEntry, BackupError> {
    let Some(text) = name.to_str().filter(|text| !text.contains(char::is_control)) else {
        return refused(format!("{} has a name that is not plain text", from.display()));
    };
    let to = dir.join(name);
    let source = R::open(from, OpenOptions::READ).await.map_err(on("open", from))?;
    let target = R::open(&to, OpenOptions::CREATE_NEW).await.map_err(on("create", &to))?;
    let mut entry = FileEntry { name: text.to_owned(), bytes: 0, crc32c: 0 };
    let (mut buffer, mut pieces) = (Vec::new(), 0);
    while entry.bytes < max_bytes {
        bound.check::<R>()?;
        let wanted = (max_bytes - entry.bytes).min(PIECE_BYTES) as usize;
        buffer.clear();
        buffer.reserve_exact(wanted);
        let (result, mut back) = source.read_at(buffer, entry.bytes).await;
        match result {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                buffer = back;
                continue;
            }
            Err(error) => return Err(on("read", from)(error)),
        }
        back.truncate(wanted); // the buffer may be larger
        let piece = Bytes::from(back);
        write_all_at(&target, piece.clone(), entry.bytes).await.map_err(on("write", &to))?;
        entry.crc32c = crc32c::crc32c_append(entry.crc32c, &piece);
        entry.bytes += piece.len() as u64;
        pieces += 1;
        if pieces % PIECES_PER_SYNC == 0 {
            target.sync_data().await.map_err(on("sync", &to))?;
        }
        buffer = piece.try_into_mut().map(Vec::from).unwrap_or_default();
    }
    target.sync_data().await.map_err(on("sync", &to))?;
    Ok(entry)
}

/// Writes a new file, durably but for its name.
pub(super) async fn write_new<R: Runtime>(path: &Path, bytes: Bytes) -> Result<(), BackupError> {
    let file = R::open(path, OpenOptions::CREATE_NEW).await.map_err(on("create", path))?;
    write_all_at(&file, bytes, 0).await.map_err(on("write", path))?;
    file.sync_data().await.map_err(on("sync", path))
}

pub(super) async fn make_dir<R: Runtime>(dir: &Path) -> Result<(), BackupError> {
    R::create_dir(dir).await.map_err(on("create", dir))
}

pub(super) async fn sync_dir<R: Runtime>(dir: &Path) -> Result<(), BackupError> {
    R::sync_dir(dir).await.map_err(on("sync", dir))
}

/// For `map_err` on an operation on `path`.
pub(super) fn on(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.display().to_string();
    move |source| BackupError::Io { action, path, source }
}
