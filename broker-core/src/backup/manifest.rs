//! What a backup holds, by its own word: the text file `MANIFEST`, without which it is not complete.
//!
//! ```text
//! gearbox-backup 1
//! program 0.1.0
//! node 1
//! began 1767225600000
//! ended 1767225601000
//! journal 3 1200
//! file 8d3c91f0 4096 journal/0000000000000001.log
//! end 5e0a77c1
//! ```
//!
//! Times are in milliseconds since 1970; `journal` counts segments and records; a file has its CRC32C,
//! its length and its path; the end has the CRC32C of all lines before it.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Component, Path};
use std::str::FromStr;

use bytes::Bytes;
use meta::store::DB_DIR;
use rt_abstract::{File, OpenOptions, Runtime};
use serde::{Deserialize, Serialize};

use super::copy::{on, sync_dir, write_new};
use super::{BackupError, JOURNAL_DIR, META_DIR, refused};

/// The layout of backups: 1 is the first.
const FORMAT: u32 = 1;
const MAGIC: &str = "gearbox-backup";
/// The name of the file that completes a backup.
pub const MANIFEST: &str = "MANIFEST";
/// While it is being written.
const NEW: &str = "MANIFEST.new";
/// Of a manifest: a line for each of millions of files.
const MAX_BYTES: usize = 1 << 28;
/// Read at once.
const PIECE_BYTES: usize = 64 << 10;

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let (new, path) = (dir.join(NEW), dir.join(MANIFEST));
        write_new::<R>(&new, Bytes::from(self.text())).await?;
        R::rename(&new, &path).await.map_err(on("rename", &new))?;
        sync_dir::<R>(dir).await
    }

    /// Reads that of the backup in `dir`.
    pub(super) async fn read<R: Runtime>(dir: &Path) -> Result<Self, BackupError> {
        let path = dir.join(MANIFEST);
        let file = match R::open(&path, OpenOptions::READ).await {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let dir = dir.display();
                return refused(format!("{dir} holds no complete backup: there is no {MANIFEST}"));
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

    fn text(&self) -> String {
        let Self { program, node, began_ms, ended_ms, counts, files } = self;
        let Counts { segments, records, .. } = counts;
        let mut text = format!(
            "{MAGIC} {FORMAT}\nprogram {program}\nnode {node}\nbegan {began_ms}\nended {ended_ms}\n\
             journal {segments} {records}\n"
        );
        for FileEntry { name, bytes, crc32c } in files {
            let _ = writeln!(text, "file {crc32c:08x} {bytes} {name}");
        }
        let crc32c = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "end {crc32c:08x}");
        text
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let damaged = || "damaged, or not the manifest of a backup".to_owned();
        let text = std::str::from_utf8(text).map_err(|_| damaged())?;
        let first =
            text.lines().next().and_then(|line| line.strip_prefix(MAGIC)?.strip_prefix(' '));
        // A newer version may say the rest in another way.
        match first.and_then(|version| version.parse::<u32>().ok()) {
            Some(FORMAT) => {}
            Some(other) => {
                return Err(format!("a backup of format {other}, this program reads {FORMAT}"));
            }
            None => return Err(damaged()),
        }
        let manifest = Self::fields(text).ok_or_else(damaged)?;
        match manifest.files.iter().find(|entry| !is_ours(Path::new(&entry.name))) {
            Some(entry) => Err(format!("{:?} is no file of a backup", entry.name)),
            None => Ok(manifest),
        }
    }

    /// `None` unless it is all there, in its order.
    fn fields(text: &str) -> Option<Self> {
        let (body, crc32c) = text.strip_suffix('\n')?.rsplit_once("\nend ")?;
        let body = text.get(..body.len() + 1)?;
        if u32::from_str_radix(crc32c, 16).ok()? != crc32c::crc32c(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines().skip(1);
        let mut manifest = Self {
            program: field(lines.next()?, "program ")?,
            node: field(lines.next()?, "node ")?,
            began_ms: field(lines.next()?, "began ")?,
            ended_ms: field(lines.next()?, "ended ")?,
            counts: Counts::default(),
            files: Vec::new(),
        };
        let (segments, records) = lines.next()?.strip_prefix("journal ")?.split_once(' ')?;
        manifest.counts.segments = segments.parse().ok()?;
        manifest.counts.records = records.parse().ok()?;
        for line in lines {
            let (crc32c, rest) = line.strip_prefix("file ")?.split_once(' ')?;
            let (bytes, name) = rest.split_once(' ')?;
            manifest.add(FileEntry {
                name: name.to_owned(),
                bytes: bytes.parse().ok()?,
                crc32c: u32::from_str_radix(crc32c, 16).ok()?,
            });
        }
        Some(manifest)
    }
}

fn field<T: FromStr>(line: &str, name: &str) -> Option<T> {
    line.strip_prefix(name)?.parse().ok()
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
        Some([dir, inner, _]) => *dir == META_DIR && *inner == DB_DIR,
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
        Manifest::parse(manifest.text().as_bytes())
    }

    #[test]
    fn it_comes_back() {
        for name in ["journal/0000000000000001.log", "meta/FORMAT", "meta/db/CURRENT", "meta/a b"] {
            let manifest = manifest(name);
            assert_eq!((manifest.counts.files, manifest.counts.bytes), (1, 5));
            assert_eq!(parsed(&manifest), Ok(manifest));
        }
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        for name in
            ["", "/etc/passwd", "journal", "../x", "journal/../../x", "meta/db/../../../x", "x/y"]
        {
            let error = parsed(&manifest(name)).expect_err("refused");
            assert!(error.ends_with("is no file of a backup"), "{name}: {error}");
        }
    }

    #[test]
    fn other_versions_and_damage_are_named() {
        let error = Manifest::parse(b"gearbox-backup 2\nunknown\n").expect_err("refused");
        assert_eq!(error, "a backup of format 2, this program reads 1");
        let text = manifest("meta/FORMAT").text().into_bytes();
        for end in 0..text.len() {
            Manifest::parse(&text[..end]).expect_err("cut short");
        }
        for bit in 0..text.len() * 8 {
            let mut text = text.clone();
            text[bit / 8] ^= 1 << (bit % 8);
            // But for the letters of the checksum, which may be large or small.
            let parsed = Manifest::parse(&text);
            assert!(parsed.is_err() || bit / 8 > text.len() - 10 && bit % 8 == 5, "bit {bit}");
        }
    }
}
