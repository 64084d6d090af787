//! Whose directory is it? Answered by a small text file before RocksDB touches anything, and by a
//! record in the database, so that neither can be swapped for another's.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::record::NodeId;
use crate::store::StoreError;

/// Key of the record in `Family::Meta`.
pub(super) const KEY: &[u8] = b"format";

/// Layout of keys and records: 1 is the first.
const VERSION: u32 = 1;
const MAGIC: &str = "gearbox-meta";
pub(super) const FILE: &str = "FORMAT";
/// Is there from before the first file until `FORMAT` says that the store is complete.
const CREATING: &str = "CREATING";

/// What lies in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, or a store whose making was interrupted.
    Nothing,
    /// A store of this node.
    Store,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    node: NodeId,
}

/// Whose store lies in `dir`, and of which version. `None` when nothing says so.
pub(super) fn read(dir: &Path) -> Result<Option<(NodeId, u32)>, StoreError> {
    match fs::read(dir.join(FILE)) {
        Ok(bytes) => parse(dir, &String::from_utf8_lossy(&bytes)).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::failed(format!("opening {}", dir.display()), error)),
    }
}

/// Looks at `dir`, and marks it as one where a store is being made if there is nothing.
pub(super) fn inspect(dir: &Path, node: NodeId) -> Result<Found, StoreError> {
    let failed = |error: io::Error| StoreError::failed(format!("opening {}", dir.display()), error);
    if let Some((found, version)) = read(dir)? {
        check(dir, node, version, found)?;
        return Ok(Found::Store);
    }
    fs::create_dir_all(dir).map_err(failed)?;
    if !dir.join(CREATING).exists() {
        if let Some(entry) = fs::read_dir(dir).map_err(failed)?.next() {
            let name = entry.map_err(failed)?.file_name();
            return Err(StoreError::Foreign(format!(
                "{} is not empty (it holds {}) and no Gearbox metadata either; nothing was changed",
                dir.display(),
                name.display(),
            )));
        }
        File::create(dir.join(CREATING)).and_then(|file| file.sync_all()).map_err(failed)?;
        sync_dir(dir).map_err(failed)?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_dir(parent).map_err(failed)?;
        }
    }
    Ok(Found::Nothing)
}

/// The store is complete.
pub(super) fn finish(dir: &Path, node: NodeId) -> Result<(), StoreError> {
    let write = || {
        self::write(dir, node)?;
        fs::remove_file(dir.join(CREATING))?;
        sync_dir(dir)
    };
    write().map_err(|error| StoreError::failed(format!("writing {}", dir.display()), error))
}

/// Writes what [`read`] reads.
pub(super) fn write(dir: &Path, node: NodeId) -> io::Result<()> {
    let new = dir.join("FORMAT.new");
    let mut file = File::create(&new)?;
    write!(file, "{MAGIC} {VERSION}\nnode {node}\n")?;
    file.sync_all()?;
    fs::rename(&new, dir.join(FILE))
}

/// The record that [`check_record`] reads.
pub(super) fn record(node: NodeId) -> Vec<u8> {
    codec::encode(&Record { version: VERSION, node })
}

/// Is the database the one that belongs here?
pub(super) fn check_record(dir: &Path, node: NodeId, bytes: &[u8]) -> Result<(), StoreError> {
    let record: Record = codec::decode(bytes)?;
    check(dir, node, record.version, record.node)
}

/// A database without our record.
pub(super) fn foreign_database(dir: &Path) -> StoreError {
    StoreError::Foreign(format!("the database in {} is not Gearbox's", dir.display()))
}

/// A database that was identified, and says no more.
pub(super) fn no_generation(dir: &Path) -> StoreError {
    StoreError::Damaged(format!("{}: nothing says which state is in use", dir.display()))
}

fn parse(dir: &Path, text: &str) -> Result<(NodeId, u32), StoreError> {
    let mut lines = text.lines();
    let version = lines.next().and_then(|line| line.strip_prefix(MAGIC)?.trim().parse().ok());
    let Some(version) = version else {
        return Err(StoreError::Foreign(format!(
            "{} holds a file {FILE} that is not Gearbox's; nothing was changed",
            dir.display()
        )));
    };
    // a newer version may say the rest in another way
    check_version(dir, version)?;
    match lines.next().and_then(|line| line.strip_prefix("node ")?.trim().parse().ok()) {
        Some(found) => Ok((found, version)),
        None => Err(StoreError::Damaged(format!(
            "{}: the file {FILE} does not say whose metadata it is",
            dir.display()
        ))),
    }
}

fn check_version(dir: &Path, version: u32) -> Result<(), StoreError> {
    if version != VERSION {
        return Err(StoreError::Foreign(format!(
            "the metadata in {} has format {version}, this build reads format {VERSION} only; \
             nothing was changed",
            dir.display()
        )));
    }
    Ok(())
}

fn check(dir: &Path, node: NodeId, version: u32, found: NodeId) -> Result<(), StoreError> {
    check_version(dir, version)?;
    if found != node {
        return Err(StoreError::Foreign(format!(
            "the metadata in {} belongs to node {found}, this is node {node}; nothing was changed",
            dir.display()
        )));
    }
    Ok(())
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
