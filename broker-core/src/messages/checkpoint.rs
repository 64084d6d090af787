//! The index of the journal on disk: reading it at start, and making the next one out of it and of what
//! was recorded since, beside everything else.

use journal::{
    CheckpointError, CheckpointReader, CheckpointWriter, Journal, JournalError, Mark, OpenError,
    Sweep,
};
use rt_abstract::{MaybeSend, Runtime};

use super::index::{Merge, VERSION};
use super::record::RecordError;
use super::replay::Replay;

/// Changes that are in memory at most while one is made; an eighth of what is queued, where that is more.
const MAX_CHANGES: usize = 1 << 18;

/// A checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    /// Where the records end that it speaks for.
    pub mark: Mark,
    /// How long it is.
    pub bytes: u64,
    /// Messages in it.
    pub messages: usize,
}

/// What making one came to.
#[derive(Debug)]
pub(crate) struct Made {
    /// The new one.
    pub checkpoint: Checkpoint,
    /// It speaks for all that was durable when it was begun.
    pub is_complete: bool,
    /// Bytes of the journal that were read for it.
    pub read_bytes: u64,
}

/// Why none was made, or read. Nothing is lost: the journal has it all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unmade {
    /// The one before is of no use: it is not as it was written, or of another journal or program.
    #[error("the checkpoint cannot be used: {0}")]
    Earlier(String),
    /// The records since cannot be read.
    #[error(transparent)]
    Records(#[from] OpenError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] JournalError),
    /// It took too long.
    #[error("there was no time to write a checkpoint")]
    Late,
}

/// How fast one is made. Asked often, with some milliseconds of work in between.
pub(crate) trait Pace: MaybeSend {
    /// Waits until work may go on; false when it is too late for it.
    fn go_on<R: Runtime>(&mut self) -> impl Future<Output = bool> + MaybeSend;
}

/// Reads the checkpoint of the journal in `dir` into `replay`, if there is one.
///
/// # Errors
/// It is of no use, and `replay` neither.
pub(crate) async fn load<R: Runtime>(
    dir: &std::path::Path,
    replay: &mut Replay,
) -> Result<Option<Checkpoint>, Unmade> {
    let Some(mut reader) = CheckpointReader::<R>::open(dir, VERSION).await? else {
        return Ok(None);
    };
    while let Some(block) = reader.next().await? {
        replay.load(&block)?;
    }
    let (mark, bytes, messages) = (reader.mark(), reader.size_bytes(), replay.messages());
    Ok(Some(Checkpoint { mark, bytes, messages }))
}

/// Makes the next checkpoint, `earlier` being the one that is there.
///
/// In memory are the changes since that one, as many as [`MAX_CHANGES`] says: the new one then ends with
/// them, and the next call goes on. And one session at a time.
///
/// # Errors
/// The one before stays where it is.
pub(crate) async fn make<R: Runtime>(
    journal: &Journal,
    dir: &std::path::Path,
    earlier: Option<Checkpoint>,
    pace: &mut impl Pace,
) -> Result<Option<Made>, Unmade> {
    let oldest = journal.usage().oldest;
    // When the segment that it ends in was released, all that is left lies behind it.
    let earlier = earlier.filter(|it| it.mark.position() >= oldest);
    let max_changes = MAX_CHANGES.max(earlier.map_or(0, |it| it.messages) / 8);
    let mut since = Replay::new();
    let mut base = Base::open(dir, earlier, &mut since).await?;
    let mut sweep: Sweep<R> = journal.sweep(earlier.map(|it| it.mark));
    let (mut last, mut read_bytes) = (None, 0);
    while since.changes() < max_changes {
        let visit = |position: journal::Position, bytes: &[u8]| since.visit(position.get(), bytes);
        let Some(swept) = sweep.next(visit).await? else { break };
        last = Some(swept.mark);
        read_bytes += swept.bytes;
        pause::<R>(pace).await?;
    }
    let Some(mark) = last else { return Ok(None) };
    let mut merge = Merge::new(since, oldest.get());
    let mut writer = CheckpointWriter::<R>::create(dir, VERSION, &mark).await?;
    let messages = match write(&mut base, &mut merge, &mut writer, pace).await {
        Ok(()) => merge.messages(),
        Err(error) => {
            writer.abandon().await;
            return Err(error);
        }
    };
    let bytes = writer.finish().await?;
    let checkpoint = Checkpoint { mark, bytes, messages };
    Ok(Some(Made { checkpoint, is_complete: sweep.is_over(), read_bytes }))
}

async fn write<R: Runtime>(
    base: &mut Option<Base<R>>,
    merge: &mut Merge,
    writer: &mut CheckpointWriter<R>,
    pace: &mut impl Pace,
) -> Result<(), Unmade> {
    let mut more = true;
    while more {
        let block = match base {
            Some(base) => base.next().await?,
            None => None,
        };
        match block {
            Some(block) => merge.add(&block)?,
            None => more = merge.rest(),
        }
        while let Some(block) = merge.take_block() {
            writer.write(&block).await?;
            pause::<R>(pace).await?;
        }
        pause::<R>(pace).await?;
    }
    Ok(())
}

async fn pause<R: Runtime>(pace: &mut impl Pace) -> Result<(), Unmade> {
    if pace.go_on::<R>().await { Ok(()) } else { Err(Unmade::Late) }
}

/// The checkpoint before, behind its exchanges.
struct Base<R: Runtime> {
    reader: CheckpointReader<R>,
    first: Option<Vec<u8>>,
}

impl<R: Runtime> Base<R> {
    /// Reads its exchanges into `since`.
    async fn open(
        dir: &std::path::Path,
        earlier: Option<Checkpoint>,
        since: &mut Replay,
    ) -> Result<Option<Self>, Unmade> {
        let Some(earlier) = earlier else { return Ok(None) };
        since.is_change = true;
        let reader = CheckpointReader::<R>::open(dir, VERSION).await?;
        let mut reader = reader
            .filter(|reader| reader.mark() == earlier.mark)
            .ok_or_else(|| Unmade::Earlier("it is another one than before".into()))?;
        let mut first = reader.next().await?;
        while let Some(block) = &first
            && since.load_unsettled(block)?
        {
            first = reader.next().await?;
        }
        Ok(Some(Self { reader, first }))
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, CheckpointError> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.reader.next().await,
        }
    }
}

impl From<CheckpointError> for Unmade {
    fn from(error: CheckpointError) -> Self {
        Self::Earlier(error.to_string())
    }
}

impl From<RecordError> for Unmade {
    fn from(error: RecordError) -> Self {
        Self::Earlier(error.to_string())
    }
}
