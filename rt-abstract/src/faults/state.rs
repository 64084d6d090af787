//! What a disk remembers, as plain data: what is not durable, and what shall go wrong.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::task::Waker;

/// Names of files that are gone until the directory is synced begin with it.
pub(super) const HIDDEN: &str = ".lost-";

/// What can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Opening, also creating.
    Open,
    /// Reading once.
    Read,
    /// Writing once.
    Write,
    /// `sync_data`.
    Sync,
    /// Reserving space.
    Allocate,
    /// Renaming; the name is the old one.
    Rename,
    /// Removing.
    Remove,
    /// Making names durable.
    SyncDir,
}

#[derive(Default)]
pub(super) struct State {
    /// Since the last loss of power; files of an earlier epoch are dead.
    pub epoch: u64,
    /// Power is being cut: everything fails.
    pub cutting: bool,
    /// Operations under way.
    pub busy: usize,
    pub faults: Vec<Fault>,
    /// Syncs of files with this ending of the name wait.
    pub held: Option<String>,
    /// Syncs that wait.
    pub waiting_syncs: usize,
    /// Syncs of files that succeeded, by what the names ended with.
    pub syncs: HashMap<String, u64>,
    pub max_write_bytes: Option<usize>,
    pub full: bool,
    pub wakers: Vec<Waker>,
    files: HashMap<u64, FileState>,
    ids: HashMap<PathBuf, u64>,
    next_id: u64,
    /// Changes of names that are not durable, in order.
    names: Vec<Name>,
    hidden: u64,
}

pub(super) struct Fault {
    pub op: Op,
    /// The file's name ends with it.
    pub ending: String,
    /// So many operations go well before.
    pub after: u64,
    pub kind: ErrorKind,
}

struct FileState {
    path: PathBuf,
    /// Not durable, in order.
    changes: Vec<Change>,
}

/// What was written and what was there before.
struct Change {
    offset: u64,
    old_size: u64,
    old: Vec<u8>,
    new: Vec<u8>,
    /// A sync failed for it: the system takes it for written, and no later sync writes it.
    given_up: bool,
}

enum Name {
    Created(PathBuf),
    Renamed { from: PathBuf, to: PathBuf, replaced: Option<PathBuf> },
    Removed { path: PathBuf, hidden: PathBuf },
}

impl Change {
    /// What was written there later is durable: it is what would be found.
    fn is_overwritten_by(&mut self, durable: &Self) {
        let begin = self.offset.max(durable.offset);
        for part in [&mut self.old, &mut self.new] {
            let end =
                (self.offset + part.len() as u64).min(durable.offset + durable.new.len() as u64);
            if begin < end {
                let from = (begin - durable.offset) as usize..(end - durable.offset) as usize;
                let to = (begin - self.offset) as usize..(end - self.offset) as usize;
                part[to].copy_from_slice(&durable.new[from]);
            }
        }
    }
}

impl State {
    /// Whether this operation shall fail now.
    pub fn fault(&mut self, op: Op, path: &Path) -> io::Result<()> {
        if op == Op::Allocate && self.full {
            return Err(ErrorKind::StorageFull.into());
        }
        let name = path.to_string_lossy();
        let Some(index) =
            self.faults.iter().position(|fault| fault.op == op && name.ends_with(&fault.ending))
        else {
            return Ok(());
        };
        if self.faults[index].after > 0 {
            self.faults[index].after -= 1;
            return Ok(());
        }
        let kind = self.faults.remove(index).kind;
        if op == Op::Sync
            && let Some(file) = self.ids.get(path).and_then(|id| self.files.get_mut(id))
        {
            file.changes.iter_mut().for_each(|change| change.given_up = true);
        }
        Err(kind.into())
    }

    /// The file that has this name, from now on followed.
    pub fn file(&mut self, path: &Path, created: bool) -> u64 {
        if created {
            self.names.push(Name::Created(path.to_owned()));
        }
        if let Some(&id) = self.ids.get(path) {
            return id;
        }
        self.next_id += 1;
        let file = FileState { path: path.to_owned(), changes: Vec::new() };
        self.files.insert(self.next_id, file);
        self.ids.insert(path.to_owned(), self.next_id);
        self.next_id
    }

    /// Where the file is now.
    pub fn path(&self, id: u64) -> PathBuf {
        self.files.get(&id).map(|file| file.path.clone()).unwrap_or_default()
    }

    /// Remembers what lies where `new` will be written.
    pub fn before_write(&mut self, id: u64, offset: u64, new: &[u8]) -> io::Result<()> {
        let Some(state) = self.files.get_mut(&id) else { return Ok(()) };
        let file = fs::File::open(&state.path)?;
        let old_size = file.metadata()?.len();
        let mut old = vec![0; new.len().min(old_size.saturating_sub(offset) as usize)];
        file.read_exact_at(&mut old, offset)?;
        state.changes.push(Change { offset, old_size, old, new: new.to_vec(), given_up: false });
        Ok(())
    }

    /// How much of the last write was taken.
    pub fn after_write(&mut self, id: u64, written: usize) {
        if let Some(change) = self.files.get_mut(&id).and_then(|file| file.changes.last_mut()) {
            change.new.truncate(written);
        }
    }

    /// How many changes a sync that begins now makes durable.
    pub fn changes(&self, id: u64) -> usize {
        self.files.get(&id).map_or(0, |file| file.changes.len())
    }

    /// The first changes are durable.
    pub fn synced(&mut self, id: u64, changes: usize) {
        if let Some(file) = self.files.get_mut(&id) {
            let later = file.changes.split_off(changes);
            let (mut given_up, mut durable) = (Vec::new(), Vec::new());
            for change in file.changes.drain(..) {
                if change.given_up { given_up.push(change) } else { durable.push(change) }
            }
            for change in &mut given_up {
                durable.iter().for_each(|durable| change.is_overwritten_by(durable));
            }
            given_up.retain(|change| change.old != change.new);
            file.changes = given_up;
            file.changes.extend(later);
            let ending = file.path.extension().unwrap_or_default().to_string_lossy();
            *self.syncs.entry(ending.into_owned()).or_default() += 1;
        }
    }

    /// Bytes that would be lost.
    pub fn unsynced_bytes(&self) -> u64 {
        let changes = self.files.values().flat_map(|file| &file.changes);
        changes.map(|change| change.new.len() as u64).sum()
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let replaced = match to.exists() {
            true => Some(self.hide(to)?),
            false => None,
        };
        self.move_file(from, to)?;
        self.names.push(Name::Renamed { from: from.into(), to: to.into(), replaced });
        Ok(())
    }

    pub fn remove(&mut self, path: &Path) -> io::Result<()> {
        let hidden = self.hide(path)?;
        self.names.push(Name::Removed { path: path.into(), hidden });
        Ok(())
    }

    pub fn names_are_durable(&mut self) -> io::Result<()> {
        for name in std::mem::take(&mut self.names) {
            match name {
                Name::Removed { hidden, .. } | Name::Renamed { replaced: Some(hidden), .. } => {
                    self.forget(&hidden)?;
                }
                Name::Created(_) | Name::Renamed { .. } => {}
            }
        }
        Ok(())
    }

    /// Takes back what is not durable: of names all from the first one on that `keep_name` does not
    /// keep, of bytes those that `keep` says no to (asked with their number in the order of
    /// writing and their offset in the file).
    pub fn lose(
        &mut self,
        mut keep_name: impl FnMut() -> bool,
        mut keep: impl FnMut(u64, u64) -> bool,
    ) -> io::Result<()> {
        let mut index = 0;
        let mut ids: Vec<u64> = self.files.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(state) = self.files.get_mut(&id) else { continue };
            let changes = std::mem::take(&mut state.changes);
            if changes.is_empty() {
                continue;
            }
            let file = fs::File::options().write(true).open(&state.path)?;
            for change in changes.iter().rev() {
                file.write_all_at(&change.old, change.offset)?;
                if change.old_size < change.offset + change.new.len() as u64 {
                    file.set_len(change.old_size)?;
                }
            }
            for change in &changes {
                let mut begin = None;
                for at in 0..=change.new.len() {
                    let kept = at < change.new.len() && {
                        index += 1;
                        keep(index - 1, change.offset + at as u64)
                    };
                    match (kept, begin) {
                        (true, None) => begin = Some(at),
                        (false, Some(from)) => {
                            file.write_all_at(&change.new[from..at], change.offset + from as u64)?;
                            begin = None;
                        }
                        _ => {}
                    }
                }
            }
        }
        let names = std::mem::take(&mut self.names);
        let kept = names.iter().take_while(|_| keep_name()).count();
        for name in names.into_iter().skip(kept).rev() {
            match name {
                Name::Created(path) => self.forget(&path)?,
                Name::Renamed { from, to, replaced } => {
                    self.move_file(&to, &from)?;
                    if let Some(hidden) = replaced {
                        self.move_file(&hidden, &to)?;
                    }
                }
                Name::Removed { path, hidden } => self.move_file(&hidden, &path)?,
            }
        }
        Ok(())
    }

    /// The power is back. The counters go on.
    pub fn start_again(&mut self) {
        let (epoch, syncs) = (self.epoch + 1, std::mem::take(&mut self.syncs));
        let hidden = self.hidden; // dead files may still have such names
        *self = Self { epoch, syncs, hidden, ..Self::default() };
    }

    fn hide(&mut self, path: &Path) -> io::Result<PathBuf> {
        self.hidden += 1;
        let hidden = path.with_file_name(format!("{HIDDEN}{}", self.hidden));
        self.move_file(path, &hidden)?;
        Ok(hidden)
    }

    fn move_file(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)?;
        if let Some(id) = self.ids.remove(from) {
            self.ids.insert(to.to_owned(), id);
            if let Some(file) = self.files.get_mut(&id) {
                file.path = to.to_owned();
            }
        }
        Ok(())
    }

    fn forget(&mut self, path: &Path) -> io::Result<()> {
        if let Some(id) = self.ids.remove(path) {
            self.files.remove(&id);
        }
        fs::remove_file(path)
    }
}
