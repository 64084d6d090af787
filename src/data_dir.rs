//! The data directory: exists, is writable, and belongs to this process alone.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use broker_core::backup::MANIFEST;

/// Keeps the directory locked until dropped, or until the process ends, however it ends.
#[derive(Debug)]
pub struct DataDir {
    _lock: File,
}

/// Is there from before the first file of a restore until it is whole.
const RESTORING: &str = "RESTORING";

/// Creates `dir` when it is missing and locks it.
///
/// # Errors
/// One line that names the directory: not creatable, not writable, in use (and by which process, when it
/// said so), a backup, or left by a restore that was interrupted.
pub fn lock(dir: &Path) -> Result<DataDir, String> {
    let shown = dir.display();
    std::fs::create_dir_all(dir)
        .map_err(|error| format!("cannot create the data directory {shown}: {error}"))?;
    if dir.join(MANIFEST).exists() {
        return Err(format!(
            "{shown} is a backup, which a broker would change: `gearbox restore --from {shown} \
             --data-dir DIR` makes a data directory of it"
        ));
    }
    let locked = lock_existing(dir)?;
    if dir.join(RESTORING).exists() {
        return Err(format!(
            "the data directory {shown} is not whole: a restore was interrupted or failed; remove \
             it and restore again"
        ));
    }
    Ok(locked)
}

/// Makes `dir`, which must be empty or not there, and locks it for a restore.
///
/// # Errors
/// As for [`lock`], and when there is something in it.
pub fn begin_restore(dir: &Path) -> Result<DataDir, String> {
    let shown = dir.display();
    let cannot = |error| format!("cannot create the data directory {shown}: {error}");
    std::fs::create_dir_all(dir).map_err(cannot)?;
    if dir.join(RESTORING).exists() {
        return Err(format!(
            "the data directory {shown} is what a restore left that was interrupted or failed: remove it, \
             or restore to another one"
        ));
    }
    if let Some(entry) = std::fs::read_dir(dir).map_err(cannot)?.next() {
        let name = entry.map_err(cannot)?.file_name();
        let name = name.display();
        return Err(format!("the data directory {shown} is not empty: it holds {name}"));
    }
    let locked = lock_existing(dir)?;
    File::create(dir.join(RESTORING))
        .and_then(|file| file.sync_all())
        .and_then(|()| sync(dir))
        .map_err(cannot)?;
    Ok(locked)
}

/// The restore is whole.
///
/// # Errors
/// One line that names the directory.
pub fn finish_restore(dir: &Path) -> Result<(), String> {
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::remove_file(dir.join(RESTORING))
        .and_then(|()| sync(dir))
        .and_then(|()| sync(parent))
        .map_err(|error| format!("cannot finish the data directory {}: {error}", dir.display()))
}

fn sync(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Locks a directory that is there.
fn lock_existing(dir: &Path) -> Result<DataDir, String> {
    let shown = dir.display();
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
    fn a_restore_goes_to_an_empty_directory_and_is_whole_at_its_end() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("restored");
        drop(begin_restore(&dir).unwrap());
        for refused in [lock(&dir), begin_restore(&dir)] {
            let error = refused.unwrap_err();
            assert!(error.contains("was interrupted or failed"), "{error}");
        }
        finish_restore(&dir).unwrap();
        drop(lock(&dir).unwrap());
        let error = begin_restore(&dir).unwrap_err();
        assert!(error.contains("is not empty: it holds "), "{error}");
    }

    #[test]
    fn a_backup_is_no_data_directory() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join(MANIFEST), "").unwrap();
        let error = lock(temp.path()).unwrap_err();
        assert!(error.contains("is a backup"), "{error}");
        assert!(!temp.path().join(LOCK_FILE).exists());
    }

    #[test]
    fn a_place_that_cannot_be_a_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = lock(&file.path().join("x")).unwrap_err();
        assert!(error.starts_with("cannot create the data directory "), "{error}");
    }
}
