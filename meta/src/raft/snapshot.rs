//! Snapshots: the state of one moment, for a node that is too far behind for the log.
//!
//! The state machine's state is durable by itself (its writes lie before the purge of the log in one
//! write-ahead log), so that *building* a snapshot takes no more than noting how far it is. The
//! data, a checkpoint of the store, is made when a node needs it.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use openraft::RaftSnapshotBuilder;
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use rt_abstract::{Runtime, Shared};

use super::entry::{LogId, StoredMembership, decode_membership, decode_position};
use super::types::TypeConfig;
use crate::state::export::{Chunk, ChunkError, Importer, export};
use crate::state::keys;
use crate::store::{Batch, Checkpoint, Family, Store, StoreError, View};

/// Records that are copied at once, in bytes.
const COPY_BYTES: usize = 1 << 20;

/// What openraft carries around for us.
#[derive(Debug)]
pub enum SnapshotData {
    /// The state as it is now: what building a snapshot gives. Not to be sent.
    Here,
    /// A checkpoint, to be sent.
    Local(LocalSnapshot),
    /// What another node sent, whole and waiting to be put in place.
    Received(Received),
}

/// A checkpoint of this node's state. Clones are the same one; it is removed with the last.
#[derive(Clone)]
pub struct LocalSnapshot {
    checkpoint: Arc<Checkpoint>,
    position: Position,
}

/// Takes a snapshot that another node sends. One at a time: a new one drops what an older one has
/// gathered, and the older one must not be used any more.
pub struct Import {
    store: Arc<dyn Store>,
    importer: Importer,
    applied: Option<Vec<u8>>,
    membership: Option<Vec<u8>>,
}

/// See [`SnapshotData::Received`].
#[derive(Debug)]
pub struct Received {
    position: Position,
}

/// Why a piece of a snapshot was not taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ImportError {
    /// The piece is not the one that is expected, or damaged: nothing of it was taken.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// The store failed, or the snapshot is incomplete.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How far a state is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The last entry that was applied.
    pub applied: Option<LogId>,
    /// The last membership among them.
    pub membership: StoredMembership,
}

/// Builds snapshots for openraft.
pub struct Builder<R> {
    store: Arc<dyn Store>,
    known: Shared<Known>,
    runtime: PhantomData<fn() -> R>,
}

/// What the machine and its builders know about snapshots.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The last one that openraft was told of: the log may be purged up to there.
    built: Option<Position>,
    /// A checkpoint that may still be in use.
    checkpoint: Option<(Weak<Checkpoint>, Position)>,
}

impl LocalSnapshot {
    /// How far its state is.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The piece behind `after` (`None`: the first), of at most `max_bytes` encoded. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// As the store says.
    pub fn chunk(&self, after: Option<&[u8]>, max_bytes: usize) -> Result<Chunk, StoreError> {
        export(&**self.checkpoint, after, max_bytes)
    }
}

impl Import {
    /// Begins, and drops what an earlier one has gathered. Blocks on the disk, as all calls do.
    ///
    /// # Errors
    /// As the store says.
    pub fn begin(store: Arc<dyn Store>) -> Result<Self, StoreError> {
        store.begin_import()?;
        Ok(Self { store, importer: Importer::new(), applied: None, membership: None })
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// [`ImportError::Chunk`] for a piece that does not fit, which changes nothing; otherwise as the
    /// store says.
    pub fn accept(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        let records = self.importer.accept(bytes)?;
        let (applied, membership) = (keys::raft(APPLIED), keys::raft(MEMBERSHIP));
        for (key, value) in &records {
            if *key == applied {
                self.applied = Some(value.clone());
            } else if *key == membership {
                self.membership = Some(value.clone());
            }
        }
        Ok(self.store.import(records)?)
    }

    /// What has arrived: the number of the next piece, the last key, and whether that was all.
    pub fn progress(&self) -> &Importer {
        &self.importer
    }

    /// All pieces have arrived: for openraft to install.
    ///
    /// # Errors
    /// When pieces are missing, or the state does not say how far it is.
    pub fn finish(self) -> Result<SnapshotData, StoreError> {
        if !self.importer.is_finished() {
            return Err(StoreError::Damaged("a snapshot without its last piece".into()));
        }
        let applied = self.applied.as_deref().map(decode_position).transpose()?;
        let membership = self.membership.as_deref().map(decode_membership).transpose()?;
        let position = Position { applied, membership: membership.unwrap_or_default() };
        Ok(SnapshotData::Received(Received { position }))
    }
}

impl Position {
    /// How far the state in `view` is.
    ///
    /// # Errors
    /// As the store says.
    pub fn read(view: &dyn View) -> Result<Self, StoreError> {
        let get = |name| view.get(Family::State, &keys::raft(name));
        let applied = get(APPLIED)?.map(|bytes| decode_position(&bytes)).transpose()?;
        let membership = get(MEMBERSHIP)?.map(|bytes| decode_membership(&bytes)).transpose()?;
        Ok(Self { applied, membership: membership.unwrap_or_default() })
    }

    /// What openraft calls it.
    pub fn meta<R: Runtime>(&self) -> SnapshotMetaOf<TypeConfig<R>> {
        SnapshotMetaOf::<TypeConfig<R>> {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
        }
    }
}

/// Name of the record of what was applied last, within [`keys::RAFT`].
pub(super) const APPLIED: &str = "applied";
/// Name of the record of the last membership that was applied.
pub(super) const MEMBERSHIP: &str = "membership";

impl<R: Runtime> Builder<R> {
    pub(super) fn new(store: Arc<dyn Store>, known: Shared<Known>) -> Self {
        Self { store, known, runtime: PhantomData }
    }
}

impl<R: Runtime> RaftSnapshotBuilder<TypeConfig<R>> for Builder<R> {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(
        &mut self,
    ) -> Result<SnapshotOf<TypeConfig<R>, SnapshotData>, io::Error> {
        let mut position = Ok(Position::default());
        self.store.with_snapshot(&mut |view| position = Position::read(view));
        let position = position?;
        let meta = position.meta::<R>();
        self.known.with(|known| known.built = Some(position));
        Ok(SnapshotOf::<TypeConfig<R>, SnapshotData> { meta, snapshot: SnapshotData::Here })
    }
}

/// The snapshot that openraft was told of, or a later one.
pub(super) async fn current<R: Runtime>(
    store: &Arc<dyn Store>,
    known: &Shared<Known>,
) -> Result<Option<LocalSnapshot>, StoreError> {
    let built = known.with(|known| known.built.clone());
    let Some(built) = built else { return Ok(None) };
    let at_hand = known.with(|known| {
        let (checkpoint, position) = known.checkpoint.as_ref()?;
        // the log behind an older one may be gone
        let new_enough = position.applied >= built.applied;
        Some((checkpoint.upgrade().filter(|_| new_enough)?, position.clone()))
    });
    if let Some((checkpoint, position)) = at_hand {
        return Ok(Some(LocalSnapshot { checkpoint, position }));
    }
    let store = store.clone();
    let made = R::spawn_blocking(move || {
        let checkpoint = store.checkpoint()?;
        let position = Position::read(&*checkpoint)?;
        Ok::<_, StoreError>(LocalSnapshot { checkpoint: Arc::new(checkpoint), position })
    });
    let snapshot =
        made.await.map_err(|panic| StoreError::failed("making a checkpoint", panic))??;
    known.with(|known| {
        let weak = Arc::downgrade(&snapshot.checkpoint);
        known.checkpoint = Some((weak, snapshot.position.clone()));
    });
    Ok(Some(snapshot))
}

/// Puts a snapshot in the place of the state, durably.
pub(super) async fn install<R: Runtime>(
    store: &Arc<dyn Store>,
    known: &Shared<Known>,
    meta: &SnapshotMetaOf<TypeConfig<R>>,
    data: SnapshotData,
) -> Result<(), StoreError> {
    let expected = Position { applied: meta.last_log_id, membership: meta.last_membership.clone() };
    let built = expected.clone();
    let store = store.clone();
    let installed = R::spawn_blocking(move || {
        let received = match data {
            SnapshotData::Here => {
                return Err(StoreError::failed("installing a snapshot", "it has no data"));
            }
            SnapshotData::Local(local) => copy(&store, &local)?,
            SnapshotData::Received(received) => received,
        };
        if received.position != expected {
            return Err(StoreError::Damaged(format!(
                "a snapshot whose state is at {:?}, not at {:?}",
                received.position.applied, expected.applied
            )));
        }
        store.finish_import(Batch::new())
    });
    installed.await.map_err(|panic| StoreError::failed("installing a snapshot", panic))??;
    known.with(|known| *known = Known { built: Some(built), checkpoint: None });
    Ok(())
}

/// Gathers a checkpoint's state in the store.
fn copy(store: &Arc<dyn Store>, local: &LocalSnapshot) -> Result<Received, StoreError> {
    store.begin_import()?;
    let mut after: Option<Vec<u8>> = None;
    loop {
        let chunk = local.chunk(after.as_deref(), COPY_BYTES)?;
        after = chunk.last_key().map(<[u8]>::to_vec).or(after);
        store.import(chunk.records)?;
        if chunk.last {
            return Ok(Received { position: local.position.clone() });
        }
    }
}

impl fmt::Debug for LocalSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalSnapshot").field(&self.position).finish()
    }
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import").field("importer", &self.importer).finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for Builder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Builder")
    }
}
