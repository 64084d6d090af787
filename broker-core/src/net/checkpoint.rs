//! When a checkpoint of the journal's index is made, and how fast: beside the journal's writer while the
//! node runs, within a budget, and once more when it has stopped.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use journal::{OpenError, State, remove_checkpoint};
use rt_abstract::{Instant, Runtime, Shutdown};

use crate::messages::{Checkpoint, Messages, Pace, Unmade, make_checkpoint};

/// How often is looked whether there is something to do.
const LOOK: Duration = Duration::from_secs(1);
/// After an error of the disk nothing is tried for so long.
const REST: Duration = Duration::from_secs(60);
/// A start reads so many segments at most, beside the one that is written and what comes while a
/// checkpoint is made.
const SEGMENTS: u64 = 2;
/// What a start may have to read after a stop, at most; a segment where that is less.
const READ_AFTER_STOP_BYTES: u64 = 4 << 20;
/// A stopped node ends after this also when its checkpoint is not complete.
const STOP_TIME: Duration = Duration::from_secs(3);

/// Work is done for so long at once: frames wait for it.
const SLICE: Duration = Duration::from_millis(1);
/// And then so many times as long it is not: a tenth of a core.
const REST_PER_SLICE: u32 = 9;

/// Makes checkpoints of a node's journal.
///
/// One is made when the part of the journal that a start would read has [`SEGMENTS`] full segments, and
/// as many bytes as the last checkpoint, so that all of them together are written in no more bytes than
/// the journal. Not while the oldest of these segments is given back by itself from one look to the next,
/// which is what a journal does whose messages are soon acknowledged; nor while the disk is nearly full.
pub(super) struct Keeper {
    messages: Arc<Messages>,
    dir: PathBuf,
    last: Option<Checkpoint>,
}

impl Keeper {
    /// `last` is the one in `dir`, if there is any.
    pub(super) fn new(messages: Arc<Messages>, dir: PathBuf, last: Option<Checkpoint>) -> Self {
        Self { messages, dir, last }
    }

    /// Until the writer is `over`, and then what is missing, if it ended well.
    pub(super) async fn keep<R: Runtime>(mut self, over: &Shutdown) {
        let mut pace = Budget { over: over.clone(), began: R::now(), deadline: None };
        let mut seen = None;
        let mut pause = LOOK;
        while !over.is_triggered() {
            select(pin!(R::sleep(pause)), pin!(over.wait())).await;
            pause = LOOK;
            let (first, unread_bytes) = self.unread();
            let enough = SEGMENTS * self.messages.journal().segment_bytes();
            let wanted = unread_bytes >= enough.max(self.last.map_or(0, |last| last.bytes))
                && self.messages.journal().state() == State::Running;
            let stays = std::mem::replace(&mut seen, wanted.then_some(first)) == Some(first);
            if wanted && stays && self.make::<R>(&mut pace).await == Came::ToNothing {
                pause = REST;
            }
        }
        let wanted = READ_AFTER_STOP_BYTES.min(self.messages.journal().segment_bytes());
        if self.messages.journal().state() == State::Closed && self.unread().1 >= wanted {
            while self.make::<R>(&mut pace).await == Came::HalfWay {}
        }
    }

    /// What a start would read: its first segment, and how many bytes.
    fn unread(&self) -> (u64, u64) {
        let journal = self.messages.journal();
        let usage = journal.usage();
        let from = self.last.map_or(usage.oldest, |last| last.mark.position().max(usage.oldest));
        (journal.segment_of(from), usage.end.get().saturating_sub(from.get()))
    }

    async fn make<R: Runtime>(&mut self, pace: &mut Budget) -> Came {
        let journal = self.messages.journal();
        let first = self.unread().0;
        pace.began = R::now();
        match make_checkpoint::<R>(journal, &self.dir, self.last, pace).await {
            Ok(None) => Came::ToTheEnd,
            Ok(Some(made)) => {
                self.messages.checkpoints().made(made.checkpoint.bytes, made.read_bytes);
                self.last = Some(made.checkpoint);
                if made.is_complete { Came::ToTheEnd } else { Came::HalfWay }
            }
            // Given back meanwhile.
            Err(_) if journal.segment_of(journal.usage().oldest) > first => Came::ToTheEnd,
            Err(Unmade::Late) => Came::ToTheEnd,
            Err(error @ (Unmade::Records(OpenError::NoMark { .. }) | Unmade::Earlier(_))) => {
                tracing::warn!("the checkpoint is made anew: {error}");
                self.last = None;
                match remove_checkpoint::<R>(&self.dir).await {
                    Ok(()) => Came::HalfWay,
                    Err(error) => {
                        tracing::warn!(%error, "it stays");
                        Came::ToNothing
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no checkpoint: a start reads more of the journal");
                Came::ToNothing
            }
        }
    }
}

/// What making one came to.
#[derive(PartialEq, Eq)]
enum Came {
    ToTheEnd,
    /// There is more to be done.
    HalfWay,
    /// The disk fails.
    ToNothing,
}

/// See [`SLICE`]; nothing rests when the node has stopped.
struct Budget {
    over: Shutdown,
    began: Instant,
    deadline: Option<Instant>,
}

impl Pace for Budget {
    async fn go_on<R: Runtime>(&mut self) -> bool {
        let now = R::now();
        if self.over.is_triggered() {
            return now < *self.deadline.get_or_insert(now + STOP_TIME);
        }
        let worked = now.saturating_since(self.began);
        if worked >= SLICE {
            let rest = LOOK.min(worked * REST_PER_SLICE);
            select(pin!(R::sleep(rest)), pin!(self.over.wait())).await;
            self.began = R::now();
        }
        true
    }
}
