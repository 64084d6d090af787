//! A copy of a running node's data directory, and the way back.
//!
//! The journal is copied first, as far as it is durable, then the metadata. What was acknowledged
//! before the backup began is in both. Of what comes in between the metadata has more than the
//! journal: a session without its messages. The other order would be wrong: records of a session that
//! the restored metadata does not know would be taken for those of the next session that gets its
//! generation.
//!
//! A backup is complete once it has its [`Manifest`], which is written last.

mod copy;
mod manifest;

use std::path::{Component, Path};
use std::time::Duration;

use journal::{Hold, OpenError, State, Verdict};
use meta::store::{DB_DIR, StoreError};
use rt_abstract::{Instant, Runtime, Shutdown};

use crate::node::Node;
use copy::{make_dir, on, sync_dir};
pub use manifest::{Counts, FileEntry, MANIFEST, Manifest};

/// Below a data directory, and below a backup: the journal.
pub const JOURNAL_DIR: &str = "journal";
/// Below a data directory, and below a backup: the metadata.
pub const META_DIR: &str = "meta";

/// A backup may take so long, since it keeps the journal from freeing space.
const MAX_TIME: Duration = Duration::from_secs(3600);
/// How long what was appended before it may take to become durable.
const DURABLE_TIME: Duration = Duration::from_secs(30);
/// How often that is looked at.
const DURABLE_PAUSE: Duration = Duration::from_millis(2);

/// Why there is no backup, or nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// It cannot be, as things are.
    #[error("{0}")]
    Refused(String),
    /// The system said no.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The copy of the journal is not sound.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The metadata cannot be frozen.
    #[error(transparent)]
    Meta(#[from] StoreError),
}

/// What ends the copying early.
struct Bound<'a> {
    deadline: Option<Instant>,
    stop: Option<&'a Shutdown>,
    /// Held, so that it must not run out of space.
    journal: Option<&'a journal::Journal>,
}

/// Writes a backup of `node` to `dir`, an absolute path that is not there or an empty directory.
/// What was acknowledged before the call is in it: all metadata of the cluster, and the messages of
/// this node. Meanwhile the node goes on; only the journal frees no space until it is copied.
///
/// After an error `dir` may hold an incomplete backup, without a manifest.
///
/// # Errors
/// Nothing is kept that could be copied, the node is not serving yet or ends, the metadata has no
/// leader, the disk is nearly full,
/// it took more than an hour, what is copied is damaged, or the system said no.
pub async fn back_up<R: Runtime>(node: &Node, dir: &Path) -> Result<Manifest, BackupError> {
    let (Some(meta), Some(messages)) = (node.meta(), node.messages()) else {
        return refused("this node keeps nothing, or has not started");
    };
    if !node.is_serving() {
        return refused("this node is starting or stopping");
    }
    check_target(dir)?;
    let began_ms = R::wall_clock_ms();
    let deadline = Some(R::now() + MAX_TIME);
    let stop = Some(node.shutdown());
    empty_dir::<R>(dir).await?;

    let journal = messages.journal();
    let bound = Bound { deadline, stop, journal: Some(journal) };
    let hold = journal.hold();
    until_durable::<R>(&hold, &bound).await?;
    let files = hold.files();
    let mut manifest = Manifest::new(meta.node(), began_ms);
    make_dir::<R>(&dir.join(JOURNAL_DIR)).await?;
    for file in &files {
        let name = Path::new(JOURNAL_DIR).join(file.path.file_name().unwrap_or_default());
        let entry = copy::copy::<R>(&file.path, dir, &name, file.bytes, &bound).await?;
        manifest.add(entry);
    }
    drop(hold);
    sync_dir::<R>(&dir.join(JOURNAL_DIR)).await?;
    manifest.counts.segments = files.len() as u64;
    let copied = journal::inspect::<R>(&dir.join(JOURNAL_DIR), |_, _| {}).await?;
    manifest.counts.records = copied.records;
    if let Verdict::Damaged { path, offset, reason, .. } = copied.verdict {
        let name = path.file_name().unwrap_or_default().display();
        return refused(format!("the journal is damaged: {name} at byte {offset} ({reason})"));
    }

    // What other nodes have acknowledged is in it as well.
    meta.linearize().await.map_err(|error| BackupError::Refused(error.to_string()))?;
    let bound = Bound { journal: None, ..bound };
    let handle = meta.clone();
    let frozen = R::spawn_blocking(move || handle.freeze()).await;
    let frozen = frozen.map_err(|panicked| BackupError::Refused(panicked.to_string()))??;
    let copied = copy_all::<R>(frozen.dir(), frozen.files(), dir, &bound, &mut manifest).await;
    let gone = R::spawn_blocking(move || drop(frozen)).await;
    copied?;
    gone.map_err(|panicked| BackupError::Refused(panicked.to_string()))?;
    bound.check::<R>()?;
    sync_dir::<R>(dir).await?;
    manifest.ended_ms = R::wall_clock_ms();
    manifest.write::<R>(dir).await?;
    Ok(manifest)
}

/// Whether `dir` can be where a backup goes, as far as its name says.
///
/// # Errors
/// It is not absolute, or goes back by `..`.
pub fn check_target(dir: &Path) -> Result<(), BackupError> {
    let plain = !dir.components().any(|part| part == Component::ParentDir);
    match dir.is_absolute() && plain && dir.file_name().is_some() {
        true => Ok(()),
        false => refused(format!("{} is not an absolute path without `..`", dir.display())),
    }
}

/// Copies the backup in `from` to `to`, a directory that is there, and compares every byte with the
/// manifest. Durable when it returns; whether it opens is for the caller to find out.
///
/// # Errors
/// The backup is incomplete, damaged or of a newer version, or the system said no.
pub async fn restore<R: Runtime>(from: &Path, to: &Path) -> Result<Manifest, BackupError> {
    let manifest = Manifest::read::<R>(from).await?;
    let bound = Bound { deadline: None, stop: None, journal: None };
    let (meta, journal) = (to.join(META_DIR), to.join(JOURNAL_DIR));
    let inner = meta.join(DB_DIR);
    for dir in [&meta, &inner, &journal] {
        make_dir::<R>(dir).await?;
    }
    for entry in &manifest.files {
        let name = Path::new(&entry.name);
        let copied = copy::copy::<R>(&from.join(name), to, name, u64::MAX, &bound).await?;
        if copied != *entry {
            return refused(format!(
                "{} is damaged: {} bytes with the checksum {:08x}, not {} with {:08x}",
                from.join(name).display(),
                copied.bytes,
                copied.crc32c,
                entry.bytes,
                entry.crc32c
            ));
        }
    }
    for dir in [&inner, &meta, &journal] {
        sync_dir::<R>(dir).await?;
    }
    sync_dir::<R>(to).await?;
    Ok(manifest)
}

/// Copies files of the metadata.
async fn copy_all<R: Runtime>(
    from: &Path,
    names: &[std::path::PathBuf],
    dir: &Path,
    bound: &Bound<'_>,
    manifest: &mut Manifest,
) -> Result<(), BackupError> {
    let meta = dir.join(META_DIR);
    let inner = meta.join(DB_DIR);
    make_dir::<R>(&meta).await?;
    make_dir::<R>(&inner).await?;
    for name in names {
        let to = Path::new(META_DIR).join(name);
        manifest.add(copy::copy::<R>(&from.join(name), dir, &to, u64::MAX, bound).await?);
    }
    sync_dir::<R>(&inner).await?;
    sync_dir::<R>(&meta).await
}

/// Makes `dir`, or makes sure that it is empty.
async fn empty_dir<R: Runtime>(dir: &Path) -> Result<(), BackupError> {
    match R::read_dir(dir).await {
        Ok(names) if names.is_empty() => Ok(()),
        Ok(_) => refused(format!("{} is not empty", dir.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            make_dir::<R>(dir).await?;
            match dir.parent() {
                Some(parent) => sync_dir::<R>(parent).await,
                None => Ok(()),
            }
        }
        Err(error) => Err(on("list", dir)(error)),
    }
}

/// What is in the journal when the backup begins may have been acknowledged without being durable.
async fn until_durable<R: Runtime>(hold: &Hold, bound: &Bound<'_>) -> Result<(), BackupError> {
    let Some(journal) = bound.journal else { return Ok(()) };
    let deadline = R::now() + DURABLE_TIME;
    while journal.durable() < hold.since() {
        bound.check::<R>()?;
        if R::now() > deadline {
            return refused("what is in memory does not become durable");
        }
        R::sleep(DURABLE_PAUSE).await;
    }
    Ok(())
}

impl Bound<'_> {
    /// Whether copying may go on.
    fn check<R: Runtime>(&self) -> Result<(), BackupError> {
        if self.stop.is_some_and(Shutdown::is_triggered) {
            return refused("the broker ends");
        }
        if self.deadline.is_some_and(|deadline| R::now() > deadline) {
            return refused("it took more than an hour");
        }
        match self.journal.map(journal::Journal::state) {
            Some(State::NearlyFull) => refused("the disk of the journal is nearly full"),
            Some(State::Failed(reason)) => refused(&*reason),
            _ => Ok(()),
        }
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, BackupError> {
    Err(BackupError::Refused(why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_goes_to_a_plain_absolute_path() {
        assert!(check_target(Path::new("/backups/monday")).is_ok());
        for wrong in ["", "monday", "./monday", "/", "/backups/../data"] {
            assert!(check_target(Path::new(wrong)).is_err(), "{wrong}");
        }
    }
}
