//! What can go wrong, in words that name the file.

use std::io;
use std::path::{Path, PathBuf};

use crate::format::Position;

/// What a visitor of records says when it cannot use one.
pub type VisitError = Box<dyn std::error::Error + Send + Sync>;

/// Why a batch was not taken. It is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The disk is behind: try again when something has become durable.
    #[error("too much waits to be written")]
    Busy,
    /// The disk is nearly full, and the batch is of [`crate::Class::New`].
    #[error("the disk is nearly full")]
    NearlyFull,
    /// The disk is full, and the reserve is used up.
    #[error("the disk is full, and so is the reserve")]
    Full,
    /// No segment can hold it.
    #[error("a batch of {bytes} bytes where a segment holds {max_bytes}")]
    TooLarge {
        /// Of the batch.
        bytes: usize,
        /// Of the longest batch possible.
        max_bytes: usize,
    },
    /// The journal has failed; see [`crate::State::Failed`].
    #[error("the journal has failed")]
    Failed,
    /// The journal was stopped.
    #[error("the journal is closed")]
    Closed,
}

/// Why a journal could not be opened, inspected or repaired.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The options make no sense.
    #[error("journal: {0}")]
    Options(String),
    /// The system said no.
    #[error("journal: cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that has a segment's name but is none. It was left alone.
    #[error("journal: {} is not a segment of a journal; move it away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Written by a newer program.
    #[error("journal: {} has format version {version}, this program knows up to {known}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The newest version that is understood.
        known: u32,
    },
    /// Damage with valid records behind it: not the trace of a crash.
    #[error(
        "journal: {} is damaged at byte {offset} ({reason}); `gearbox repair` sets aside what lies \
         behind",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// How it is known.
        reason: String,
    },
    /// The frame that reading was to begin behind is not there, or not any more.
    #[error("journal: what lay at {position} is not there any more")]
    NoMark {
        /// Where it was.
        position: Position,
    },
    /// The visitor could not use a record.
    #[error("journal: the record at {position}: {source}")]
    Visit {
        /// Where the record lies.
        position: Position,
        /// What the visitor said.
        source: VisitError,
    },
}

/// Why the writer ended: the disk failed, and nothing is durable any more.
#[derive(Debug, thiserror::Error)]
#[error("journal: cannot {action} {}: {source}", path.display())]
pub struct JournalError {
    /// What was tried.
    pub action: &'static str,
    /// On what.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// Why a checkpoint cannot be used. The journal has everything that is in it.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It is not as it was written, or none.
    #[error("{} is damaged at byte {offset}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
    },
    /// Written by a newer program.
    #[error("{} has format {version}, this program knows {known}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The version that is understood.
        known: u32,
    },
    /// The system said no.
    #[error(transparent)]
    Io(#[from] JournalError),
}

/// Why a record was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Its segment was released.
    #[error("journal: the record at {0} was released")]
    Released(Position),
    /// There is no record at this position.
    #[error("journal: there is no record at {0}")]
    NotFound(Position),
    /// What lies there is not what was written, or no record begins there.
    #[error("journal: {} is damaged at byte {offset}, or no record begins there", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
    },
    /// The system said no.
    #[error("journal: cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl JournalError {
    /// For `map_err` on an operation on `path`.
    pub(crate) fn on(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

impl From<JournalError> for OpenError {
    fn from(JournalError { action, path, source }: JournalError) -> Self {
        Self::Io { action, path, source }
    }
}
