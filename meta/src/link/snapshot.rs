//! Snapshots on their way: sent in pieces over a connection of their own, taken by an [`Inbox`].
//!
//! Few pieces are on their way at a time: the receiver's answers set the pace. When the connection
//! is lost, the sender connects again and goes on behind what the receiver has. Two snapshots that
//! are equally far hold the same state, so that even another sender can go on with it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::raft::SnapshotResponse;
use rt_abstract::{AsyncWrite, Closer, MaybeSend, Runtime, Shared, Shutdown, TaskPanicked};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Settings;
use super::backoff::Backoff;
use super::client::read_answer;
use super::connect::connect;
use super::connection::{CloserOf, LinkError, Parts, at_most, within};
use super::frame::{self, Frame, Kind};
use super::hello::{Hello, Purpose};
use super::message::{Offer, Resume};
use super::service::Service;
use super::work::refusal;
use crate::raft::snapshot::{Import, LocalSnapshot, SnapshotData};
use crate::raft::types::TypeConfig;
use crate::record::NodeId;
use crate::state::export::Chunk;
use crate::store::{Store, StoreError};

/// Pieces that are sent before the first of them is answered.
pub const WINDOW: usize = 4;
/// Attempts in a row that may bring nothing across, before the sender gives up.
pub const MAX_FRUITLESS_ATTEMPTS: usize = 5;
/// How long putting a snapshot in place may take.
pub const FINISH_LIMIT: Duration = Duration::from_secs(120);

/// Where the pieces come from. Calls block on the disk.
pub trait Source: Send + Sync + 'static {
    /// The piece behind the key `after` (`None`: the first), of at most `max_bytes` encoded.
    ///
    /// # Errors
    /// As the store says.
    fn chunk(&self, after: Option<&[u8]>, max_bytes: usize) -> Result<Chunk, StoreError>;
}

/// Why a snapshot did not get across.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The receiver cannot be reached, or not for long enough to take a piece.
    #[error("{0}")]
    Unreachable(String),
    /// The receiver does not want it.
    #[error("the peer says: {0}")]
    Refused(String),
    /// It could not be read here.
    #[error(transparent)]
    Source(#[from] StoreError),
    /// [`Cancel::cancel`] was called.
    #[error("cancelled")]
    Cancelled,
}

/// Ends a snapshot's way from outside. Clones end the same one.
pub struct Cancel<R: Runtime> {
    stop: Shutdown,
    closer: Shared<Option<CloserOf<R>>>,
}

/// Takes snapshots in, one at a time; what a [`Service`] needs for that. Clones are the same one.
pub struct Inbox<R: Runtime> {
    store: Arc<dyn Store>,
    state: Arc<Mutex<State<R>>>,
}

/// A snapshot is being put in place; no other one is taken until this is dropped.
pub struct Installing<R: Runtime> {
    state: Arc<Mutex<State<R>>>,
}

enum State<R: Runtime> {
    Empty,
    Taking { from: NodeId, meta: SnapshotMetaOf<TypeConfig<R>>, import: Box<Import> },
    Installing,
}

/// Sends a snapshot to node `target` at `address`. Reads the socket: drive it to its end, as a task
/// of its own, and end it by `cancel`.
///
/// # Errors
/// [`SendError`].
pub async fn send<R: Runtime>(
    settings: Settings,
    target: NodeId,
    address: String,
    offer: Offer<R>,
    source: Arc<impl Source>,
    cancel: Cancel<R>,
) -> Result<SnapshotResponse<TypeConfig<R>>, SendError> {
    let mut backoff = Backoff::<R>::new(settings.min_backoff, settings.max_backoff);
    let mut fruitless = 0;
    let hello = Hello {
        cluster: settings.cluster.clone(),
        from: settings.node,
        to: target,
        purpose: Purpose::Snapshot,
    };
    loop {
        let mut taken = 0_u64;
        let error = match connect::<R>(&settings, &address, &hello, &cancel.stop).await {
            Ok(mut parts) => {
                cancel.enter(parts.closer.clone());
                let end = transfer(&settings, &mut parts, &offer, &source, &mut taken).await;
                cancel.leave();
                parts.closer.kill();
                match end {
                    Ok(response) => return Ok(response),
                    Err(End::Lost(error)) => SendError::Unreachable(error.to_string()),
                    Err(End::Refused(text)) => SendError::Refused(text),
                    Err(End::Source(error)) => return Err(error.into()),
                }
            }
            Err(error) => SendError::Unreachable(error.to_string()),
        };
        fruitless = if taken > 0 { 0 } else { fruitless + 1 };
        if taken > 0 {
            backoff.reset();
        }
        if fruitless >= MAX_FRUITLESS_ATTEMPTS {
            return Err(error);
        }
        tracing::debug!(node = target, %error, "a snapshot did not get across yet");
        at_most::<R, _>(backoff.next(), cancel.stop.wait()).await;
        if cancel.stop.is_triggered() {
            return Err(SendError::Cancelled);
        }
    }
}

/// How an attempt failed.
enum End {
    Lost(LinkError),
    /// Perhaps for what an earlier connection was still doing.
    Refused(String),
    Source(StoreError),
}

impl From<LinkError> for End {
    fn from(error: LinkError) -> Self {
        Self::Lost(error)
    }
}

async fn transfer<R: Runtime>(
    settings: &Settings,
    parts: &mut Parts<R>,
    offer: &Offer<R>,
    source: &Arc<impl Source>,
    taken: &mut u64,
) -> Result<SnapshotResponse<TypeConfig<R>>, End> {
    write(settings, parts, Kind::Offer, &to_bytes(offer)?).await?;
    let resume: Resume = parse(&hear(parts, Kind::Resume, settings.silence).await?)?;
    let (mut sequence, mut after) = (resume.sequence, resume.after_key);
    let mut all_sent = resume.complete;
    let mut on_their_way = 0;
    loop {
        while !all_sent && on_their_way < WINDOW {
            let (source, max_bytes) = (source.clone(), settings.chunk_bytes);
            let reading = R::spawn_blocking(move || {
                let chunk = source.chunk(after.as_deref(), max_bytes);
                (chunk, after)
            });
            let (chunk, before) =
                reading.await.map_err(|panic| LinkError::Protocol(panic.to_string()))?;
            let chunk = chunk.map_err(End::Source)?;
            after = chunk.last_key().map(<[u8]>::to_vec).or(before);
            all_sent = chunk.last;
            write(settings, parts, Kind::Chunk, &chunk.encode(sequence)).await?;
            sequence += 1;
            on_their_way += 1;
        }
        if on_their_way == 0 {
            break;
        }
        hear(parts, Kind::Taken, settings.silence).await?;
        on_their_way -= 1;
        *taken += 1;
    }
    write(settings, parts, Kind::Finish, &[]).await?;
    parse(&hear(parts, Kind::Finished, FINISH_LIMIT).await?)
}

async fn write<R: Runtime>(
    settings: &Settings,
    parts: &mut Parts<R>,
    kind: Kind,
    body: &[u8],
) -> Result<(), LinkError> {
    let frame = frame::encode(kind, 0, body, settings.max_frame_bytes)?;
    let write = async { Ok(parts.writer.write_all(frame).await.0?) };
    within::<R, _>(settings.silence, &parts.closer, write).await
}

/// The body of the next frame, which must be of `kind`.
async fn hear<R: Runtime>(
    parts: &mut Parts<R>,
    kind: Kind,
    limit: Duration,
) -> Result<bytes::Bytes, End> {
    let next = async { parts.reader.next().await?.ok_or(LinkError::Ended) };
    let Frame { kind: found, body, .. } = within::<R, _>(limit, &parts.closer, next).await?;
    if found == kind {
        return Ok(body);
    }
    if found == Kind::Refused {
        return Err(End::Refused(String::from_utf8_lossy(&body).into_owned()));
    }
    Err(LinkError::Protocol(format!("a frame of kind {found:?} where {kind:?} is due")).into())
}

fn to_bytes<T: Serialize>(message: &T) -> Result<Vec<u8>, LinkError> {
    postcard::to_allocvec(message).map_err(|error| LinkError::Protocol(error.to_string()))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, End> {
    read_answer(body).map_err(|error| LinkError::Protocol(error.to_string()).into())
}

/// Serves a connection that brings a snapshot; says why it ended.
pub(super) async fn receive<R, S>(
    settings: &Settings,
    mut parts: Parts<R>,
    service: &S,
    from: NodeId,
) -> LinkError
where
    R: Runtime,
    S: Service<R>,
{
    let mut offer = None;
    loop {
        let next = async { parts.reader.next().await?.ok_or(LinkError::Ended) };
        let frame = match within::<R, _>(settings.silence, &parts.closer, next).await {
            Ok(frame) => frame,
            Err(error) => return error,
        };
        let answer = match take(service, from, frame, &mut offer).await {
            Ok((kind, body)) => frame::encode(kind, 0, &body, settings.max_frame_bytes),
            Err(text) => Ok(refusal(0, &text)),
        };
        let bytes = match answer {
            Ok(bytes) => bytes,
            Err(error) => return error.into(),
        };
        let write = async { Ok(parts.writer.write_all(bytes).await.0?) };
        if let Err(error) = within::<R, _>(settings.silence, &parts.closer, write).await {
            return error;
        }
    }
}

/// What is to be answered.
async fn take<R, S>(
    service: &S,
    from: NodeId,
    frame: Frame,
    offer: &mut Option<Offer<R>>,
) -> Result<(Kind, Vec<u8>), String>
where
    R: Runtime,
    S: Service<R>,
{
    let unreadable = |error: postcard::Error| format!("an unreadable offer: {error}");
    let encoded = |error: postcard::Error| error.to_string();
    match (frame.kind, &offer) {
        (Kind::Offer, _) => {
            let offered: Offer<R> = postcard::from_bytes(&frame.body).map_err(unreadable)?;
            *offer = Some(offered.clone());
            let resume = service.begin_snapshot(from, offered).await?;
            Ok((Kind::Resume, postcard::to_allocvec(&resume).map_err(encoded)?))
        }
        (Kind::Chunk, Some(_)) => {
            service.snapshot_chunk(from, frame.body.to_vec()).await?;
            Ok((Kind::Taken, Vec::new()))
        }
        (Kind::Finish, Some(offered)) => {
            let response = service.finish_snapshot(from, offered.clone()).await?;
            Ok((Kind::Finished, postcard::to_allocvec(&response).map_err(encoded)?))
        }
        (kind, _) => Err(format!("a frame of kind {kind:?} makes no sense here")),
    }
}

impl<R: Runtime> Cancel<R> {
    /// For one [`send`].
    pub fn new() -> Self {
        Self { stop: Shutdown::new(), closer: Shared::new(None) }
    }

    /// Ends it soon: it returns with an error.
    pub fn cancel(&self) {
        self.stop.trigger();
        let closer = self.closer.with(|closer| closer.clone());
        if let Some(closer) = closer {
            closer.kill();
        }
    }

    fn enter(&self, closer: CloserOf<R>) {
        if self.stop.is_triggered() {
            closer.kill();
        }
        self.closer.with(|place| *place = Some(closer));
    }

    fn leave(&self) {
        let closer = self.closer.with(Option::take);
        drop(closer);
    }
}

impl<R: Runtime> Default for Cancel<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Runtime> Clone for Cancel<R> {
    fn clone(&self) -> Self {
        Self { stop: self.stop.clone(), closer: self.closer.clone() }
    }
}

impl<R: Runtime> std::fmt::Debug for Cancel<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cancel").field("stop", &self.stop).finish_non_exhaustive()
    }
}

impl Source for LocalSnapshot {
    fn chunk(&self, after: Option<&[u8]>, max_bytes: usize) -> Result<Chunk, StoreError> {
        Self::chunk(self, after, max_bytes)
    }
}

impl<R: Runtime> Inbox<R> {
    /// Gathers into `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, state: Arc::new(Mutex::new(State::Empty)) }
    }

    /// See [`Service::begin_snapshot`]. What another offer has brought is dropped, unless it is
    /// equally far.
    ///
    /// # Errors
    /// A text: one is being put in place, or the store failed.
    pub async fn begin(&self, from: NodeId, offer: &Offer<R>) -> Result<Resume, String> {
        let (store, meta) = (self.store.clone(), offer.meta.clone());
        self.blocking(move |state| {
            match state {
                State::Installing => return Err("a snapshot is being put in place".into()),
                State::Taking { from: sender, meta: taking, .. } if *taking == meta => {
                    *sender = from;
                }
                State::Taking { .. } | State::Empty => {
                    *state = State::Empty;
                    let import = Import::begin(store).map_err(|error| error.to_string())?;
                    *state = State::Taking { from, meta, import: Box::new(import) };
                }
            }
            let State::Taking { import, .. } = state else { return Err("no snapshot".into()) };
            let progress = import.progress();
            Ok(Resume {
                sequence: progress.next_sequence(),
                after_key: progress.last_key().map(<[u8]>::to_vec),
                complete: progress.is_finished(),
            })
        })
        .await
    }

    /// See [`Service::snapshot_chunk`].
    ///
    /// # Errors
    /// A text: another offer came meanwhile, the piece does not fit, or the store failed.
    pub async fn chunk(&self, from: NodeId, chunk: Vec<u8>) -> Result<(), String> {
        self.blocking(move |state| match state {
            State::Taking { from: sender, import, .. } if *sender == from => {
                import.accept(&chunk).map_err(|error| error.to_string())
            }
            _ => Err("another snapshot is being taken".into()),
        })
        .await
    }

    /// What [`Service::finish_snapshot`] has to give to raft; the guard is to be kept until raft is
    /// done with it.
    ///
    /// # Errors
    /// A text: another offer came meanwhile, or pieces are missing.
    pub async fn finish(
        &self,
        from: NodeId,
        offer: &Offer<R>,
    ) -> Result<(SnapshotOf<TypeConfig<R>, SnapshotData>, Installing<R>), String> {
        let meta = offer.meta.clone();
        let snapshot = self.blocking(move |state| {
            match state {
                State::Taking { from: sender, meta: taking, import }
                    if *sender == from && *taking == meta && import.progress().is_finished() => {}
                _ => return Err("this snapshot is not there as a whole".into()),
            }
            let State::Taking { import, .. } = std::mem::replace(state, State::Empty) else {
                return Err("no snapshot".into());
            };
            let snapshot = import.finish().map_err(|error| error.to_string())?;
            *state = State::Installing;
            Ok(SnapshotOf::<TypeConfig<R>, SnapshotData> { meta, snapshot })
        });
        Ok((snapshot.await?, Installing { state: self.state.clone() }))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State<R>) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let state = self.state.clone();
        let done = R::spawn_blocking(move || work(&mut lock(&state)));
        done.await.unwrap_or_else(|panic| Err(panic.to_string()))
    }
}

impl<R: Runtime> Clone for Inbox<R> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), state: self.state.clone() }
    }
}

impl<R: Runtime> std::fmt::Debug for Inbox<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

impl<R: Runtime> Drop for Installing<R> {
    fn drop(&mut self) {
        *lock(&self.state) = State::Empty;
    }
}

impl<R: Runtime> std::fmt::Debug for Installing<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Installing")
    }
}

fn lock<R: Runtime>(state: &Mutex<State<R>>) -> MutexGuard<'_, State<R>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the task of [`send`]; cancels it when `cancelled` is ready, or when this is given up.
pub(super) async fn until<R: Runtime, T, C>(
    mut task: R::JoinHandle<T>,
    cancel: Cancel<R>,
    cancelled: impl Future<Output = C>,
) -> Result<Result<T, TaskPanicked>, C>
where
    T: MaybeSend + 'static,
{
    struct Guard<R: Runtime>(Cancel<R>);
    impl<R: Runtime> Drop for Guard<R> {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    let _guard = Guard(cancel);
    let mut cancelled = pin!(cancelled);
    poll_fn(|cx| {
        if let Poll::Ready(end) = Pin::new(&mut task).poll(cx) {
            return Poll::Ready(Ok(end));
        }
        cancelled.as_mut().poll(cx).map(Err)
    })
    .await
}
