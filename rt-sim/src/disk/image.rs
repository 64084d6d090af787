//! A disk with its names, and what shall go wrong on it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rand::RngExt;
use rt_abstract::OpenOptions;
use rt_abstract::faults::Op;

use super::inode::Inode;
use crate::coverage::Fault;
use crate::world::nodes::{Crash, NodeId};
use crate::world::{Seen, State};

pub(crate) type InodeId = u64;

#[derive(Debug)]
pub(crate) struct Image {
    inodes: BTreeMap<InodeId, Inode>,
    /// What programs see, and what is on the medium.
    names: BTreeMap<PathBuf, Entry>,
    durable: BTreeMap<PathBuf, Entry>,
    /// Changes of names that are not durable, in order.
    changes: Vec<Change>,
    last: InodeId,
    faults: Vec<Planned>,
    /// `None`: as the configuration says.
    pub capacity: Option<Option<u64>>,
    pub slower_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Dir,
    File(InodeId),
}

#[derive(Debug)]
enum Change {
    Put(PathBuf, Entry),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, Entry),
}

#[derive(Debug)]
struct Planned {
    op: Op,
    ending: String,
    after: u64,
    kind: ErrorKind,
}

impl Default for Image {
    fn default() -> Self {
        let roots = ["/", "/tmp", "/data"].map(|path| (PathBuf::from(path), Entry::Dir));
        let names = BTreeMap::from(roots);
        Self {
            inodes: BTreeMap::new(),
            durable: names.clone(),
            names,
            changes: Vec::new(),
            last: 0,
            faults: Vec::new(),
            capacity: None,
            slower_ns: 0,
        }
    }
}

impl Change {
    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Put(path, _) | Self::Remove(path) | Self::Rename(_, path, _) => path.parent(),
        }
    }

    fn apply(self, names: &mut BTreeMap<PathBuf, Entry>) {
        match self {
            Self::Put(path, entry) => drop(names.insert(path, entry)),
            Self::Remove(path) => drop(names.remove(&path)),
            Self::Rename(from, to, entry) => {
                // Not if the old name has got another file since.
                if names.get(&from) == Some(&entry) {
                    names.remove(&from);
                }
                names.insert(to, entry);
            }
        }
    }
}

impl Image {
    pub fn fail(&mut self, op: Op, ending: &str, after: u64, kind: ErrorKind) {
        self.faults.push(Planned { op, ending: ending.to_owned(), after, kind });
    }

    pub fn mend(&mut self) {
        self.faults.clear();
    }

    /// Whether this operation shall fail now.
    pub fn fault(&mut self, op: Op, path: &Path) -> io::Result<()> {
        let name = path.to_string_lossy();
        let planned = self.faults.iter().position(|it| it.op == op && name.ends_with(&it.ending));
        let Some(index) = planned else { return Ok(()) };
        if self.faults[index].after > 0 {
            self.faults[index].after -= 1;
            return Ok(());
        }
        Err(self.faults.remove(index).kind.into())
    }

    pub fn inode(&mut self, id: InodeId) -> Option<&mut Inode> {
        self.inodes.get_mut(&id)
    }

    pub fn used_bytes(&self) -> u64 {
        self.inodes.values().map(Inode::len).sum()
    }

    pub fn unsynced_bytes(&self) -> u64 {
        self.inodes.values().map(Inode::unsynced_bytes).sum()
    }

    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let files = self.names.iter().filter_map(|(path, entry)| match entry {
            Entry::File(id) => Some((path.clone(), self.inodes.get(id).map_or(0, Inode::len))),
            Entry::Dir => None,
        });
        files.collect()
    }

    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        match self.names.get(path) {
            Some(Entry::File(id)) => self.inodes.get(id).map(|inode| inode.bytes().to_vec()),
            _ => None,
        }
    }

    /// Opens or makes a file, which has one more user from now on.
    pub fn open(&mut self, path: &Path, options: OpenOptions) -> io::Result<InodeId> {
        let id = match self.names.get(path) {
            Some(_) if options.create_new => return Err(ErrorKind::AlreadyExists.into()),
            Some(Entry::Dir) => return Err(ErrorKind::IsADirectory.into()),
            Some(Entry::File(id)) => *id,
            None if !options.create => return Err(ErrorKind::NotFound.into()),
            None => {
                self.has_parent(path)?;
                self.last += 1;
                self.inodes.insert(self.last, Inode::default());
                self.change(Change::Put(path.to_owned(), Entry::File(self.last)));
                self.last
            }
        };
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.opens += 1;
        }
        Ok(id)
    }

    pub fn close(&mut self, id: InodeId) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.opens = inode.opens.saturating_sub(1);
        }
        self.free(id);
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let entry = *self.names.get(from).ok_or(ErrorKind::NotFound)?;
        self.has_parent(to)?;
        if self.names.get(to) == Some(&Entry::Dir) {
            return Err(ErrorKind::IsADirectory.into());
        }
        self.change(Change::Rename(from.to_owned(), to.to_owned(), entry));
        Ok(())
    }

    pub fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        match self.names.get(path) {
            None => Err(ErrorKind::NotFound.into()),
            Some(Entry::Dir) => Err(ErrorKind::IsADirectory.into()),
            Some(Entry::File(_)) => {
                self.change(Change::Remove(path.to_owned()));
                Ok(())
            }
        }
    }

    pub fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        match self.names.get(path) {
            Some(Entry::Dir) => return Ok(()),
            Some(Entry::File(_)) => return Err(ErrorKind::AlreadyExists.into()),
            None => self.has_parent(path)?,
        }
        self.change(Change::Put(path.to_owned(), Entry::Dir));
        Ok(())
    }

    pub fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>> {
        if self.names.get(path) != Some(&Entry::Dir) {
            return Err(ErrorKind::NotFound.into());
        }
        let names = self.names.keys().filter(|name| name.parent() == Some(path));
        Ok(names.filter_map(|name| name.file_name().map(OsString::from)).collect())
    }

    /// The names in a directory are durable.
    pub fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        if self.names.get(path) != Some(&Entry::Dir) {
            return Err(ErrorKind::NotFound.into());
        }
        for change in std::mem::take(&mut self.changes) {
            match change.dir() == Some(path) {
                true => change.apply(&mut self.durable),
                false => self.changes.push(change),
            }
        }
        self.free_all();
        Ok(())
    }

    fn has_parent(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().and_then(|parent| self.names.get(parent));
        if parent == Some(&Entry::Dir) { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
    }

    fn change(&mut self, change: Change) {
        let change = match change {
            Change::Put(path, entry) => {
                self.names.insert(path.clone(), entry);
                Change::Put(path, entry)
            }
            Change::Remove(path) => {
                self.names.remove(&path);
                Change::Remove(path)
            }
            Change::Rename(from, to, entry) => {
                self.names.remove(&from);
                self.names.insert(to.clone(), entry);
                Change::Rename(from, to, entry)
            }
        };
        self.changes.push(change);
    }

    /// Removes a file that nobody can find and nobody has open.
    fn free(&mut self, id: InodeId) {
        let named = |names: &BTreeMap<PathBuf, Entry>| {
            names.values().any(|entry| *entry == Entry::File(id))
        };
        let free = self.inodes.get(&id).is_some_and(|inode| inode.opens == 0)
            && !named(&self.names)
            && !named(&self.durable);
        if free {
            self.inodes.remove(&id);
        }
    }

    fn free_all(&mut self) {
        let closed = self.inodes.iter().filter(|(_, inode)| inode.opens == 0);
        let closed: Vec<_> = closed.map(|(&id, _)| id).collect();
        closed.into_iter().for_each(|id| self.free(id));
    }
}

impl State {
    /// What a crash does to the disk of a node.
    pub fn crash_disk(&mut self, node: NodeId, how: Crash) {
        self.crash_disk_ops(node, how);
        let random = &mut self.random.disk;
        let machine = self.machines.get(node);
        let disk = &mut machine.disk;
        let (mut torn, mut lost, mut lost_names) = (false, false, false);
        if how == Crash::Power {
            let kept = random.random_range(0..=disk.changes.len());
            lost_names = kept < disk.changes.len();
            for change in std::mem::take(&mut disk.changes).into_iter().take(kept) {
                change.apply(&mut disk.durable);
            }
            disk.names = disk.durable.clone();
            for inode in disk.inodes.values_mut() {
                // Often everything or nothing, else each sector by itself.
                let probability = [0.0, 1.0, 0.5, 0.9][random.random_range(0..4)];
                let counted = inode.lose(|| random.random_bool(probability));
                torn |= counted.kept > 0 && counted.lost > 0;
                lost |= counted.lost > 0;
            }
        }
        disk.inodes.values_mut().for_each(|inode| inode.opens = 0);
        disk.faults.clear();
        disk.slower_ns = 0;
        disk.free_all();
        let seen =
            [(torn, Fault::TornWrite), (lost, Fault::UnsyncedLost), (lost_names, Fault::NameLost)];
        seen.into_iter().filter(|(seen, _)| *seen).for_each(|(_, fault)| self.count(fault));
    }

    pub fn flip_bit(&mut self, node: NodeId, ending: &str) -> Option<(PathBuf, u64)> {
        let disk = &mut self.machines.get(node).disk;
        let files = disk.files();
        let mut files = files
            .into_iter()
            .filter(|(path, len)| *len > 0 && path.to_string_lossy().ends_with(ending));
        let count = files.clone().count();
        if count == 0 {
            return None;
        }
        let (path, len) = files.nth(self.random.disk.random_range(0..count))?;
        let (byte, bit) = (self.random.disk.random_range(0..len), self.random.disk.random());
        if let Some(Entry::File(id)) = disk.names.get(&path).copied()
            && let Some(inode) = disk.inodes.get_mut(&id)
        {
            inode.flip(byte as usize, bit);
        }
        self.count(Fault::BitFlip);
        self.saw(Seen::Written, byte, path.as_os_str().as_encoded_bytes());
        Some((path, byte))
    }
}
