//! One record back by its position.

use std::collections::VecDeque;
use std::sync::Arc;

use rt_abstract::{File, OpenOptions, Runtime, Shared};

use crate::error::ReadError;
use crate::format::{Position, RECORD_HEADER_BYTES, checked_record, record_len};
use crate::gather::Lookup;
use crate::handle::Inner;
use crate::segment::log_path;

/// Files that a reader keeps open, the ones used last.
const OPEN_FILES: usize = 16;
/// Read at first; more only for a record that is longer.
const FIRST_BYTES: usize = 4096;

/// Reads records on one core, and keeps some files open.
#[allow(clippy::arc_with_non_send_sync, reason = "local in the single-threaded build")]
pub struct Reader<R: Runtime> {
    inner: Arc<Inner>,
    files: Shared<VecDeque<(u64, Arc<R::File>)>>,
}

impl<R: Runtime> Reader<R> {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner, files: Shared::new(VecDeque::new()) }
    }

    /// The record at `position`, from memory while it is not durable.
    ///
    /// # Errors
    /// What was released is not read, and what fails its checksum is not returned.
    pub async fn read(&self, position: Position) -> Result<Vec<u8>, ReadError> {
        let (segment, offset) = match self.inner.with(|gather| gather.find(position)) {
            Lookup::Released => return Err(ReadError::Released(position)),
            Lookup::NotFound => return Err(ReadError::NotFound(position)),
            Lookup::Here(record) => {
                return match checked_record(&record, position) {
                    Some(record) => Ok(record.to_vec()),
                    None => Err(ReadError::NotFound(position)),
                };
            }
            Lookup::OnDisk(segment, offset) => (segment, offset),
        };
        let read = self.read_file(segment, offset, position).await;
        // Meanwhile the segment may have gone, or have become another one.
        match read {
            Err(_)
                if matches!(self.inner.with(|gather| gather.find(position)), Lookup::Released) =>
            {
                Err(ReadError::Released(position))
            }
            read => read,
        }
    }

    async fn read_file(
        &self,
        segment: u64,
        offset: u64,
        position: Position,
    ) -> Result<Vec<u8>, ReadError> {
        let path = || log_path(&self.inner.dir, segment);
        let on = |source| ReadError::Io { path: path(), source };
        let file = self.file(segment).await.map_err(on)?;
        let room = (self.inner.segment_bytes - offset) as usize;
        let mut bytes = Vec::with_capacity(room.min(FIRST_BYTES));
        loop {
            let at = offset + bytes.len() as u64;
            let (result, back) = file.read_at(bytes, at).await;
            bytes = back;
            let end = result.map_err(on)? == 0;
            let damaged = || ReadError::Damaged { path: path(), offset };
            let Some(len) = record_len(&bytes) else {
                if end {
                    return Err(damaged());
                }
                continue;
            };
            let whole = RECORD_HEADER_BYTES.saturating_add(len);
            if bytes.len() >= whole {
                let record = checked_record(&bytes, position).ok_or_else(damaged)?.len();
                bytes.truncate(RECORD_HEADER_BYTES + record);
                bytes.drain(..RECORD_HEADER_BYTES);
                return Ok(bytes);
            }
            if whole > room || end {
                return Err(damaged());
            }
            bytes.reserve_exact(whole - bytes.len());
        }
    }

    async fn file(&self, segment: u64) -> std::io::Result<Arc<R::File>> {
        let known = self.files.with(|files| {
            let index = files.iter().position(|(number, _)| *number == segment)?;
            let entry = files.remove(index)?;
            let file = entry.1.clone();
            files.push_front(entry);
            Some(file)
        });
        if let Some(file) = known {
            return Ok(file);
        }
        #[allow(clippy::arc_with_non_send_sync, reason = "local in the single-threaded build")]
        let file = Arc::new(R::open(&log_path(&self.inner.dir, segment), OpenOptions::READ).await?);
        self.files.with(|files| {
            files.push_front((segment, file.clone()));
            files.truncate(OPEN_FILES);
        });
        Ok(file)
    }
}
