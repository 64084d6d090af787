//! `gearbox repair`: is a data directory sound, what is in it, and what is lost when its journal is cut
//! where it is damaged. The metadata cannot be repaired: for that there are backups, and other nodes.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

use broker_core::Replay;
use broker_core::backup::{JOURNAL_DIR, META_DIR};
use journal::{OpenError, Repaired, Report, Verdict};
use meta::store::{Inspection, StoreError};
use rt_abstract::{RunOptions, Runtime};

use crate::backend::{Backend, Visit};
use crate::cli::RepairArgs;
use crate::data_dir;

/// What was found, for people.
#[derive(Debug, Default)]
pub struct Findings {
    /// Lines.
    pub text: String,
    /// The node that the metadata belongs to.
    pub node: Option<u64>,
}

/// Looks at the directory and, when that is asked for, repairs it. Returns what is to be printed, and
/// whether a broker can start on it now.
///
/// # Errors
/// One line for the operator: nothing could be looked at, or the repair failed.
pub fn repair(args: &RepairArgs) -> Result<(String, bool), String> {
    let dir = &args.data_dir;
    if !dir.is_dir() {
        return Err(format!("there is no data directory {}", dir.display()));
    }
    let _locked = data_dir::lock(dir)?;
    let (found, sound) = inspect(dir)?;
    if sound || !args.write {
        return Ok((found.text, sound));
    }
    let journal = dir.join(JOURNAL_DIR);
    let repaired = match journal.is_dir() {
        true => on_a_backend(Cut(&journal))?.map_err(|error| error.to_string())?,
        false => return Ok((found.text, sound)),
    };
    let mut text = found.text;
    if repaired.set_aside.is_empty() {
        text.push_str(
            "\nnothing was changed: --write cuts a damaged journal, and can do no more\n",
        );
        return Ok((text, sound));
    }
    text.push_str("\nrepaired: what lay behind the damage is kept in\n");
    for path in &repaired.set_aside {
        let _ = writeln!(text, "  {}", path.display());
    }
    text.push_str("now there is:\n\n");
    let (after, sound) = inspect(dir)?;
    Ok((text + &after.text, sound))
}

/// Reads everything in a data directory that is locked, and changes nothing.
///
/// # Errors
/// One line for the operator, when no backend can run.
pub fn inspect(dir: &Path) -> Result<(Findings, bool), String> {
    let (meta, journal) = (dir.join(META_DIR), dir.join(JOURNAL_DIR));
    let mut found = Findings::default();
    let stored = meta::inspect(&meta);
    let looked = match journal.is_dir() {
        true => Some(on_a_backend(Look(&journal))?),
        false => None,
    };
    let stored_sound = found.metadata(&meta, &stored);
    let generations = match &stored {
        Ok(Some(stored)) => stored.generations.iter().copied().collect(),
        _ => HashSet::new(),
    };
    let sound = found.journal(&journal, looked, &generations) & stored_sound;
    found.text.push_str(match sound {
        true => "sound: a broker can start on it\n",
        false => "NOT SOUND: see above\n",
    });
    Ok((found, sound))
}

/// A journal as it was found.
struct Looked {
    report: Report,
    replay: Replay,
    /// The first record that is not understood.
    odd: Option<String>,
}

struct Look<'a>(&'a Path);

impl Visit for Look<'_> {
    type Output = Result<Result<Looked, OpenError>, String>;

    fn visit<R: Runtime>(self) -> Self::Output {
        let mut replay = Replay::new();
        let mut odd = None;
        let work = journal::inspect::<R>(self.0, |position, record| {
            if let Err(error) = replay.visit(position.get(), record) {
                odd.get_or_insert_with(|| format!("at {position}: {error}"));
            }
        });
        let report = R::block_on(&RunOptions::default(), work)
            .map_err(|error| format!("cannot run on {}: {error}", R::NAME))?;
        replay.finish();
        Ok(report.map(|report| Looked { report, replay, odd }))
    }
}

struct Cut<'a>(&'a Path);

impl Visit for Cut<'_> {
    type Output = Result<Result<Repaired, OpenError>, String>;

    fn visit<R: Runtime>(self) -> Self::Output {
        R::block_on(&RunOptions::default(), journal::repair::<R>(self.0))
            .map_err(|error| format!("cannot run on {}: {error}", R::NAME))
    }
}

/// Runs it on whichever backend this build has.
pub fn on_a_backend<T>(work: impl Visit<Output = Result<T, String>>) -> Result<T, String> {
    let backend = Backend::for_tools();
    backend.and_then(|backend| backend.with(work)).ok_or("this build has no backend")?
}

impl Findings {
    fn line(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "  {name:<14}{value}");
    }

    fn metadata(&mut self, dir: &Path, stored: &Result<Option<Inspection>, StoreError>) -> bool {
        let _ = writeln!(self.text, "metadata in {}", dir.display());
        let stored = match stored {
            Ok(Some(stored)) => stored,
            Ok(None) => {
                self.line("store", "none");
                return true;
            }
            Err(error) => {
                self.line("ERROR", error);
                if matches!(error, StoreError::Damaged(_)) {
                    self.line("", LOST_METADATA);
                }
                return false;
            }
        };
        self.node = Some(stored.node);
        self.line("store", format!("node {}, format {}", stored.node, stored.format));
        let index = |index: Option<u64>| index.map_or("none".into(), |index| index.to_string());
        let (last, applied) = (index(stored.last_log), index(stored.applied));
        self.line("raft log", format!("last entry {last}, applied {applied}"));
        let members = stored.members.iter().map(|(node, address)| match address.as_str() {
            "" => node.to_string(),
            address => format!("{node} at {address}"),
        });
        let members: Vec<_> = members.collect();
        self.line("members", if members.is_empty() { "none".into() } else { members.join(", ") });
        match &stored.totals {
            Ok(totals) => {
                self.line("sessions", totals.sessions);
                self.line("subscriptions", totals.subscriptions);
                let bytes = totals.retained_bytes;
                self.line("retained", format!("{} in {bytes} bytes", totals.retained));
                true
            }
            Err(wrong) => {
                self.line("ERROR", format!("the tables contradict each other: {wrong}"));
                self.line("", LOST_METADATA);
                false
            }
        }
    }

    fn journal(
        &mut self,
        dir: &Path,
        looked: Option<Result<Looked, OpenError>>,
        generations: &HashSet<u64>,
    ) -> bool {
        let _ = writeln!(self.text, "journal in {}", dir.display());
        let Looked { report, replay, odd } = match looked {
            Some(Ok(looked)) => looked,
            Some(Err(error)) => {
                self.line("ERROR", error);
                return false;
            }
            None => {
                self.line("segments", "none");
                return true;
            }
        };
        let ends = report.segments.first().zip(report.segments.last());
        let which = ends.map_or(String::new(), |(first, last)| {
            format!(", {:016x} to {:016x}", first.number, last.number)
        });
        let count = report.segments.len();
        self.line("segments", format!("{count} with records{which}, {} spare", report.spares));
        let bytes: u64 = report.segments.iter().map(|segment| segment.bytes).sum();
        let frames: u64 = report.segments.iter().map(|segment| segment.frames).sum();
        self.line("records", format!("{} in {frames} frames, {bytes} bytes", report.records));
        let (mut owed, mut nobodys, mut sessions) = (0, 0, 0);
        for (generation, messages) in replay.owed() {
            if generations.contains(&generation) {
                owed += messages;
                sessions += 1;
            } else {
                nobodys += messages;
            }
        }
        self.line(
            "messages",
            format!("{owed} owed to {sessions} sessions, {nobodys} of sessions that are gone"),
        );
        if let Some(odd) = &odd {
            self.line("ERROR", format!("a record that is not understood, {odd}"));
        }
        self.verdict(&report.verdict) && odd.is_none()
    }

    fn verdict(&mut self, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::Clean => self.line("end", "with the last frame"),
            Verdict::Torn { path, offset } => self.line(
                "end",
                format!(
                    "{} at byte {offset}: a frame that was not written completely, as a crash leaves \
                     it; starting drops it",
                    path.display()
                ),
            ),
            Verdict::Damaged { path, offset, reason, lost } => {
                self.line("DAMAGED", format!("{} at byte {offset}: {reason}", path.display()));
                self.line("", cut_at(&lost.path, lost.offset));
                self.line(
                    "",
                    format!(
                        "that loses what is damaged, and {} records behind it that can still be \
                         read, in {} bytes",
                        lost.records, lost.bytes
                    ),
                );
                if lost.unreadable > 0 {
                    let segments = lost.unreadable;
                    self.line("", format!("and all of {segments} segments that cannot be read"));
                }
            }
        }
        !matches!(verdict, Verdict::Damaged { .. })
    }
}

const LOST_METADATA: &str = "--write cannot mend it: restore a backup, or remove the node from its \
                             cluster and let it join with an empty directory";

fn cut_at(path: &Path, offset: u64) -> String {
    let path = path.display();
    match offset {
        0 => format!("--write sets aside {path} and all later segments"),
        _ => format!("--write cuts {path} at byte {offset} and sets aside all later segments"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::Lost;

    fn args(dir: &Path, write: bool) -> RepairArgs {
        RepairArgs { data_dir: dir.to_owned(), write }
    }

    #[test]
    fn an_empty_directory_is_sound_and_a_missing_one_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        for write in [false, true] {
            let (text, sound) = repair(&args(temp.path(), write)).unwrap();
            assert!(sound && text.ends_with("sound: a broker can start on it\n"), "{text}");
        }
        let missing = temp.path().join("x");
        assert!(
            repair(&args(&missing, true)).unwrap_err().starts_with("there is no data directory")
        );
        assert!(!missing.exists());
    }

    #[test]
    fn newer_versions_are_named_and_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let (meta, journal) = (temp.path().join(META_DIR), temp.path().join(JOURNAL_DIR));
        std::fs::create_dir(&meta).unwrap();
        std::fs::write(meta.join("FORMAT"), "gearbox-meta 7\n").unwrap();
        std::fs::create_dir(&journal).unwrap();
        let mut header = vec![0; 4096];
        header[..12].copy_from_slice(b"GEARJRNL\x09\0\0\0");
        let segment = journal.join("0000000000000001.log");
        std::fs::write(&segment, &header).unwrap();
        let (text, sound) = repair(&args(temp.path(), false)).unwrap();
        assert!(!sound && text.contains("has format 7") && text.contains("version 9"), "{text}");
        let error = repair(&args(temp.path(), true)).unwrap_err();
        assert!(error.contains("version 9"), "{error}");
        assert_eq!(std::fs::read(&segment).unwrap(), header);
    }

    #[test]
    fn damage_says_where_and_what_is_lost() {
        let path = std::path::PathBuf::from("/j/1.log");
        let (records, bytes) = (3, 1536);
        let lost =
            Lost { path: path.clone(), offset: 512, frames: 2, records, bytes, unreadable: 1 };
        let damaged = Verdict::Damaged { path, offset: 1024, reason: "why".into(), lost };
        let mut found = Findings::default();
        assert!(!found.verdict(&damaged));
        for part in
            ["/j/1.log at byte 1024: why", "cuts /j/1.log at byte 512", "3 records", "1 seg"]
        {
            assert!(found.text.contains(part), "{part}: {}", found.text);
        }
    }
}
