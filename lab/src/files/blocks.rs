//! Buffers that direct I/O takes, and what the system knows of files.

use std::fs;
use std::path::Path;

use bytes::BytesMut;
use rustix::fs::{Advice, fadvise, statfs};

use super::BLOCK_BYTES;

/// More than any device's block size asks for.
const ALIGNMENT: usize = 4_096;
/// The kernel's numbers of file systems in memory: tmpfs and ramfs.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// An empty buffer for one block, at an address that direct I/O takes.
pub fn empty() -> BytesMut {
    let mut whole = BytesMut::with_capacity(BLOCK_BYTES + ALIGNMENT);
    whole.resize(BLOCK_BYTES + ALIGNMENT, 0);
    let skipped = whole.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let mut block = whole.split_off(skipped);
    // What is cut off is not offered to the kernel as room.
    let _ = block.split_off(BLOCK_BYTES);
    block.clear();
    block
}

/// A full one.
pub fn full(fill: u8) -> BytesMut {
    let mut block = empty();
    block.resize(BLOCK_BYTES, fill);
    block
}

/// # Errors
/// The folder is in memory, where nothing of this means anything.
pub fn must_be_on_a_disk(folder: &Path) -> Result<(), String> {
    let facts = statfs(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if IN_MEMORY.contains(&facts.f_type) {
        return Err(format!("{} is in memory: name another folder by --dir", folder.display()));
    }
    Ok(())
}

/// Lets the page cache forget a file: what is not on the device yet goes there first.
///
/// # Errors
/// What the system said.
pub fn forget(path: &Path) -> Result<(), String> {
    let text = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = fs::File::open(path).map_err(text)?;
    file.sync_all().map_err(text)?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| text(error.into()))
}

/// Bytes that this process made come from devices so far; 0 where the system does not tell.
pub fn device_bytes() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("read_bytes:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_offer_nothing_beyond() {
        for _ in 0..100 {
            let block = empty();
            assert_eq!(block.as_ptr().align_offset(ALIGNMENT), 0);
            assert_eq!((block.len(), block.capacity()), (0, BLOCK_BYTES));
            let block = full(7);
            assert_eq!(block.as_ptr().align_offset(ALIGNMENT), 0);
            assert!(block.len() == BLOCK_BYTES && block.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn folders_in_memory_are_refused() {
        let shm = Path::new("/dev/shm");
        if shm.is_dir() {
            assert!(must_be_on_a_disk(shm).unwrap_err().contains("in memory"));
        }
        assert!(must_be_on_a_disk(Path::new("/nowhere")).is_err());
    }
}
