//! The data directory: exists, is writable, and belongs to this process alone.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

/// Keeps the directory locked until dropped, or until the process ends, however it ends.
#[derive(Debug)]
pub struct DataDir {
    _lock: File,
}

/// Creates `dir` when it is missing and locks it.
///
/// # Errors
/// One line that names the directory: not creatable, not writable, or in use (and by which
/// process, when it said so).
pub fn lock(dir: &Path) -> Result<DataDir, String> {
    let shown = dir.display();
    std::fs::create_dir_all(dir)
        .map_err(|error| format!("cannot create the data directory {shown}: {error}"))?;
    let not_writable = |error| format!("cannot write to the data directory {shown}: {error}");
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join(LOCK_FILE))
        .map_err(not_writable)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            let _ = (&mut lock).take(32).read_to_string(&mut owner);
            let owner = owner.trim();
            let by = if owner.is_empty() { String::new() } else { format!(" (process {owner})") };
            return Err(format!("the data directory {shown} is in use by another gearbox{by}"));
        }
        Err(TryLockError::Error(error)) => {
            return Err(format!("cannot lock the data directory {shown}: {error}"));
        }
    }
    lock.set_len(0)
        .and_then(|()| lock.rewind())
        .and_then(|()| writeln!(lock, "{}", std::process::id()))
        .map_err(not_writable)?;
    Ok(DataDir { _lock: lock })
}

/// Its lock counts, not its existence: it stays behind. Its text is the last owner's process id.
const LOCK_FILE: &str = "gearbox.lock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        let first = lock(&dir).unwrap();
        let error = lock(&dir).unwrap_err();
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        drop(first);
        lock(&dir).unwrap();
    }

    #[test]
    fn a_place_that_cannot_be_a_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = lock(&file.path().join("x")).unwrap_err();
        assert!(error.starts_with("cannot create the data directory "), "{error}");
    }
}
