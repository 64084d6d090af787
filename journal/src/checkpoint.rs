//! A file beside the segments: what the records up to a [`Mark`] have come to, kept by those who know
//! what records mean, so that a start reads only what lies behind.
//!
//! ```text
//! block  length u32, crc u32, bytes
//! first  magic 8, version u32, version of the content u32, position u64, sequence u64, salt u64, crc u32
//! then   the content; the last block is empty
//! ```
//!
//! All numbers are little endian. The crc of a block covers the one of the block before it, so that it
//! speaks for all bytes up to there.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rt_abstract::{File, OpenOptions, Runtime, write_all_at};

use crate::error::{CheckpointError, JournalError};
use crate::format::{Mark, Position};

const NAME: &str = "checkpoint";
const NEW_NAME: &str = "checkpoint.new";

const MAGIC: [u8; 8] = *b"GEARCHKP";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 44;
const BLOCK_HEADER_BYTES: usize = 8;
/// The longest block.
const MAX_BLOCK_BYTES: usize = 16 << 20;
/// A sync comes after so many bytes: those of frames should not have to wait for all of a file.
const BYTES_PER_SYNC: u64 = 4 << 20;

/// A checkpoint being read, in order. What was read counts once the end has been reached.
pub struct CheckpointReader<R: Runtime> {
    path: PathBuf,
    file: R::File,
    size_bytes: u64,
    mark: Mark,
    at: u64,
    crc: u32,
    ended: bool,
}

/// A checkpoint being written, beside the one that there may be.
pub struct CheckpointWriter<R: Runtime> {
    dir: PathBuf,
    path: PathBuf,
    file: R::File,
    at: u64,
    synced: u64,
    crc: u32,
}

/// Removes the checkpoint of the journal in `dir`, if there is one. Durable when it returns.
///
/// # Errors
/// What the system said.
pub async fn remove_checkpoint<R: Runtime>(dir: &Path) -> Result<(), JournalError> {
    let path = dir.join(NAME);
    match R::remove_file(&path).await {
        Ok(()) => R::sync_dir(dir).await.map_err(JournalError::on("sync", dir)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(JournalError::on("remove", &path)(error)),
    }
}

impl<R: Runtime> CheckpointReader<R> {
    /// Opens the checkpoint of the journal in `dir`, if there is one. `content` is the version of the
    /// content that is understood.
    ///
    /// # Errors
    /// It is damaged or of a newer version, or what the system said.
    pub async fn open(dir: &Path, content: u32) -> Result<Option<Self>, CheckpointError> {
        let path = dir.join(NAME);
        let file = match R::open(&path, OpenOptions::READ).await {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(JournalError::on("open", &path)(error).into()),
        };
        let size_bytes = file.size().await.map_err(JournalError::on("measure", &path))?;
        let mark = Mark { at: Position::new(0), sequence: 0, salt: 0, crc: 0 };
        let mut reader = Self { path, file, size_bytes, mark, at: 0, crc: 0, ended: false };
        let head = reader.block().await?;
        let (Some(magic), Some(versions)) = (head.get(..8), head.get(8..16)) else {
            return Err(reader.damaged());
        };
        let versions = [u32_at(versions, 0), u32_at(versions, 4)];
        if magic != MAGIC || versions.contains(&0) {
            return Err(reader.damaged());
        }
        for (version, known) in versions.into_iter().zip([VERSION, content]) {
            if version > known {
                return Err(CheckpointError::Newer { path: reader.path, version, known });
            }
        }
        if head.len() != HEAD_BYTES || versions != [VERSION, content] {
            return Err(reader.damaged());
        }
        let at = Position::new(u64_at(&head, 16));
        let (sequence, salt) = (u64_at(&head, 24), u64_at(&head, 32));
        reader.mark = Mark { at, sequence, salt, crc: u32_at(&head, 40) };
        Ok(Some(reader))
    }

    /// Where the records end that it speaks for.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// How long the file is.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The next block; `None` at the end, which proves that nothing is missing.
    ///
    /// # Errors
    /// It is damaged: what was read before means nothing. Or what the system said.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, CheckpointError> {
        if self.ended {
            return Ok(None);
        }
        let block = self.block().await?;
        self.ended = block.is_empty();
        if self.ended && self.at != self.size_bytes {
            return Err(self.damaged());
        }
        Ok((!self.ended).then_some(block))
    }

    async fn block(&mut self) -> Result<Vec<u8>, CheckpointError> {
        let header = self.bytes(BLOCK_HEADER_BYTES).await?;
        let (len, crc) = (u32_at(&header, 0) as usize, u32_at(&header, 4));
        if len > MAX_BLOCK_BYTES {
            return Err(self.damaged());
        }
        let block = self.bytes(len).await?;
        if crc != crc_of(self.crc, &block) {
            return Err(self.damaged());
        }
        self.crc = crc;
        Ok(block)
    }

    /// So many bytes, never less.
    async fn bytes(&mut self, len: usize) -> Result<Vec<u8>, CheckpointError> {
        if self.size_bytes - self.at < len as u64 {
            return Err(self.damaged());
        }
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = self.at + bytes.len() as u64;
            let (result, back) = self.file.read_at(bytes, at).await;
            bytes = back;
            match result {
                Ok(0) => return Err(self.damaged()), // cut meanwhile
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(JournalError::on("read", &self.path)(error).into()),
            }
        }
        bytes.truncate(len); // an allocator may give more room than was asked for
        self.at += len as u64;
        Ok(bytes)
    }

    fn damaged(&self) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), offset: self.at }
    }
}

impl<R: Runtime> CheckpointWriter<R> {
    /// Begins one for the records up to and with the frame of `mark`, which is durable.
    ///
    /// # Errors
    /// What the system said.
    pub async fn create(dir: &Path, content: u32, mark: &Mark) -> Result<Self, JournalError> {
        let path = dir.join(NEW_NAME);
        match R::remove_file(&path).await {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(JournalError::on("remove", &path)(error));
            }
            _ => {} // a crash left it
        }
        let file = R::open(&path, OpenOptions::CREATE_NEW).await;
        let file = file.map_err(JournalError::on("create", &path))?;
        let mut writer = Self { dir: dir.to_owned(), path, file, at: 0, synced: 0, crc: 0 };
        let mut head = MAGIC.to_vec();
        for version in [VERSION, content] {
            head.extend_from_slice(&version.to_le_bytes());
        }
        for field in [mark.at.get(), mark.sequence, mark.salt] {
            head.extend_from_slice(&field.to_le_bytes());
        }
        head.extend_from_slice(&mark.crc.to_le_bytes());
        writer.put(&head).await?;
        Ok(writer)
    }

    /// Writes a block of at most 16 MiB. An empty one is none.
    ///
    /// # Errors
    /// What the system said, or `ErrorKind::InvalidInput` for one that is longer.
    pub async fn write(&mut self, block: &[u8]) -> Result<(), JournalError> {
        if block.len() > MAX_BLOCK_BYTES {
            let error = Error::new(ErrorKind::InvalidInput, "a block that is too long");
            return Err(JournalError::on("write", &self.path)(error));
        }
        if block.is_empty() { Ok(()) } else { self.put(block).await }
    }

    /// Puts it in the place of the one before, and says how long it is. Durable when it returns.
    ///
    /// # Errors
    /// What the system said.
    pub async fn finish(mut self) -> Result<u64, JournalError> {
        self.put(&[]).await?;
        self.sync().await?;
        let Self { dir, path, file, at, .. } = self;
        drop(file);
        R::rename(&path, &dir.join(NAME)).await.map_err(JournalError::on("rename", &path))?;
        R::sync_dir(&dir).await.map_err(JournalError::on("sync", &dir))?;
        Ok(at)
    }

    /// Removes what was written.
    pub async fn abandon(self) {
        let Self { path, file, .. } = self;
        drop(file);
        if let Err(error) = R::remove_file(&path).await {
            tracing::warn!(path = %path.display(), %error, "an unfinished checkpoint stays");
        }
    }

    async fn put(&mut self, block: &[u8]) -> Result<(), JournalError> {
        self.crc = crc_of(self.crc, block);
        let mut bytes = Vec::with_capacity(BLOCK_HEADER_BYTES + block.len());
        bytes.extend_from_slice(&(block.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.crc.to_le_bytes());
        bytes.extend_from_slice(block);
        let len = bytes.len() as u64;
        let written = write_all_at(&self.file, Bytes::from(bytes), self.at).await;
        written.map_err(JournalError::on("write", &self.path))?;
        self.at += len;
        if self.at - self.synced >= BYTES_PER_SYNC {
            self.sync().await?;
        }
        Ok(())
    }

    async fn sync(&mut self) -> Result<(), JournalError> {
        self.file.sync_data().await.map_err(JournalError::on("sync", &self.path))?;
        self.synced = self.at;
        Ok(())
    }
}

fn crc_of(before: u32, block: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(before, &(block.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc, block)
}

/// The caller has looked at the length.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}
