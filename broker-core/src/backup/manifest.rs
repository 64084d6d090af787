//! What a backup holds, by its own word: JSON in the file `MANIFEST`, without which it is not
//! complete.

use std::io::ErrorKind;
use std::path::{Component, Path};

use bytes::Bytes;
use rt_abstract::{File, Runtime};
use serde::{Deserialize, Serialize};

use super::copy::{READ, on, sync_dir, write_new};
use super::{BackupError, JOURNAL_DIR, META_DIR, refused};

/// The layout of backups: 1 is the first.
const FORMAT: u32 = 1;
const FILE: &str = "MANIFEST";
/// While it is being written.
const NEW: &str = "MANIFEST.new";
/// Of a manifest: a line for each file of ten million.
const MAX_BYTES: usize = 1 << 30;
/// Read at once.
const PIECE_BYTES: usize = 64 << 10;

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the backup's layout.
    pub format: u32,
    /// The version of the program that wrote it.
    pub program: String,
    /// The node that it is of.
    pub node: u64,
    /// When it began, in milliseconds since 1970: all that was acknowledged before is in it.
    pub began_ms: u64,
    /// When it was complete, in milliseconds since 1970.
    pub ended_ms: u64,
    /// What is in it.
    pub counts: Counts,
    /// All files.
    pub files: Vec<FileEntry>,
}

/// What a backup holds, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Segments of the journal.
    pub segments: u64,
    /// Records in them.
    pub records: u64,
    /// Files in all.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path below the backup's directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its CRC32C.
    pub crc32c: u32,
}

impl Manifest {
    pub(super) fn new(node: u64, began_ms: u64) -> Self {
        Self {
            format: FORMAT,
            program: env!("CARGO_PKG_VERSION").into(),
            node,
            began_ms,
            ended_ms: began_ms,
            counts: Counts::default(),
            files: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, entry: FileEntry) {
        self.counts.files += 1;
        self.counts.bytes += entry.bytes;
        self.files.push(entry);
    }

    /// Writes it, which makes the backup complete.
    pub(super) async fn write<R: Runtime>(&self, dir: &Path) -> Result<(), BackupError> {
        let (new, path) = (dir.join(NEW), dir.join(FILE));
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| BackupError::Refused(format!("{}: {error}", path.display())))?;
        write_new::<R>(&new, Bytes::from(text)).await?;
        R::rename(&new, &path).await.map_err(on("rename", &new))?;
        sync_dir::<R>(dir).await
    }

    /// Reads that of the backup in `dir`.
    pub(super) async fn read<R: Runtime>(dir: &Path) -> Result<Self, BackupError> {
        let path = dir.join(FILE);
        let file = match R::open(&path, READ).await {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let dir = dir.display();
                return refused(format!("{dir} holds no complete backup: there is no {FILE}"));
            }
            Err(error) => return Err(on("open", &path)(error)),
        };
        let mut text = Vec::new();
        loop {
            text.reserve_exact(PIECE_BYTES);
            let at = text.len() as u64;
            let (result, back) = file.read_at(text, at).await;
            text = back;
            match result {
                Ok(0) => break,
                Ok(_) if text.len() > MAX_BYTES => {
                    return refused(format!("{}: longer than a manifest can be", path.display()));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(on("read", &path)(error)),
            }
        }
        Self::parse(&text)
            .map_err(|error| BackupError::Refused(format!("{}: {error}", path.display())))
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        /// All versions say which they are.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let damaged = |error| format!("not the manifest of a backup: {error}");
        let Version { format } = serde_json::from_slice(text).map_err(damaged)?;
        if format != FORMAT {
            return Err(format!("a backup of format {format}, this program reads format {FORMAT}"));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(damaged)?;
        match manifest.files.iter().find(|entry| !is_ours(Path::new(&entry.name))) {
            Some(entry) => Err(format!("{:?} is no file of a backup", entry.name)),
            None => Ok(manifest),
        }
    }
}

/// A file of the journal or of the metadata, and nothing outside of them.
fn is_ours(name: &Path) -> bool {
    let parts: Option<Vec<&str>> = name
        .components()
        .map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    match parts.as_deref() {
        Some([dir, _]) => [JOURNAL_DIR, META_DIR].contains(dir),
        Some([dir, inner, _]) => *dir == META_DIR && *inner == "db",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str) -> Manifest {
        let mut manifest = Manifest::new(7, 1_000);
        manifest.add(FileEntry { name: name.into(), bytes: 5, crc32c: 9 });
        manifest
    }

    fn parsed(manifest: &Manifest) -> Result<Manifest, String> {
        Manifest::parse(&serde_json::to_vec(manifest).expect("can be written"))
    }

    #[test]
    fn it_comes_back() {
        for name in ["journal/0000000000000001.log", "meta/FORMAT", "meta/db/CURRENT"] {
            let manifest = manifest(name);
            assert_eq!((manifest.counts.files, manifest.counts.bytes), (1, 5));
            assert_eq!(parsed(&manifest), Ok(manifest));
        }
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        for name in ["", "/etc/passwd", "journal", "../x", "journal/../../x", "meta/db/../../../x"]
        {
            let error = parsed(&manifest(name)).expect_err("refused");
            assert!(error.ends_with("is no file of a backup"), "{name}: {error}");
        }
        assert!(parsed(&manifest("other/x")).is_err());
    }

    #[test]
    fn other_versions_and_damage_are_named() {
        let newer = br#"{"format": 2, "things": "unknown"}"#;
        let error = Manifest::parse(newer).expect_err("refused");
        assert_eq!(error, "a backup of format 2, this program reads format 1");
        let text = serde_json::to_vec(&manifest("meta/FORMAT")).expect("can be written");
        for end in 0..text.len() {
            let error = Manifest::parse(&text[..end]).expect_err("cut short");
            assert!(error.starts_with("not the manifest of a backup: "), "{error}");
        }
    }
}
