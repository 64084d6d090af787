//! Asking a peer: one connection, made anew whenever it is lost.
//!
//! A client has one task that connects, writes, and tries the connection out; a second one reads.
//! Who asks waits for a channel.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rt_abstract::{AsyncWrite, Closer, MaybeSend, Runtime, Shutdown, Stream};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::Settings;
use super::backoff::Backoff;
use super::connect::connect;
use super::connection::{
    CloserOf, FrameReader, LastHeard, LinkError, Parts, WRITE_BYTES, at_most, within,
};
use super::frame::{self, Frame, Kind};
use super::hello::{Hello, Purpose};
use super::message::Request;
use crate::record::NodeId;

/// Requests of raft's own that are on their way at a time; further ones wait.
pub const MAX_RAFTS_IN_FLIGHT: usize = 128;
/// Other requests that are on their way at a time. Counted apart: raft must not wait behind proposals
/// that only raft can end.
pub const MAX_OTHERS_IN_FLIGHT: usize = 192;
/// All of them.
pub const MAX_IN_FLIGHT: usize = MAX_RAFTS_IN_FLIGHT + MAX_OTHERS_IN_FLIGHT;

/// Asks one peer. Clones use the same connection. It is made at once, and kept until
/// [`Client::close`] or until the last clone is dropped.
pub struct Client<R> {
    outgoing: mpsc::Sender<Vec<u8>>,
    shared: Arc<Shared>,
    runtime: PhantomData<fn() -> R>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no connection: not asked.
    #[error("cannot reach node {node}: {reason}")]
    Unreachable {
        /// Whom.
        node: NodeId,
        /// What was tried last, and failed.
        reason: String,
    },
    /// The connection was lost: whether it was asked is unknown.
    #[error("lost the connection to node {node}: {reason}")]
    Lost {
        /// To whom.
        node: NodeId,
        /// How.
        reason: String,
    },
    /// No answer came in time: whether one was on its way is unknown.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The peer could not carry it out.
    #[error("the peer says: {0}")]
    Refused(String),
    /// The request is too large, or the answer cannot be read.
    #[error("{0}")]
    Protocol(String),
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    target: NodeId,
    address: String,
    raft_permits: Arc<Semaphore>,
    other_permits: Arc<Semaphore>,
    stop: Shutdown,
    stopped: Shutdown,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next_request: u64,
    pending: BTreeMap<u64, oneshot::Sender<Result<Bytes, CallError>>>,
    /// Why the last attempt failed; `None` while connected, and while the first attempt lasts.
    down: Option<String>,
    connected: bool,
}

/// Takes a request off the list when nobody waits for it any more.
struct Waiting {
    shared: Arc<Shared>,
    request: u64,
}

impl<R: Runtime> Client<R> {
    /// Begins to connect to node `target` at `address` (`host:port`), on the calling executor.
    pub fn new(settings: Settings, target: NodeId, address: impl Into<String>) -> Self {
        let (outgoing, requests) = mpsc::channel(MAX_IN_FLIGHT);
        let state =
            State { next_request: 1, pending: BTreeMap::new(), down: None, connected: false };
        let shared = Arc::new(Shared {
            settings,
            target,
            address: address.into(),
            raft_permits: Arc::new(Semaphore::new(MAX_RAFTS_IN_FLIGHT)),
            other_permits: Arc::new(Semaphore::new(MAX_OTHERS_IN_FLIGHT)),
            stop: Shutdown::new(),
            stopped: Shutdown::new(),
            state: Mutex::new(state),
        });
        drop(R::spawn(keep_connected::<R>(shared.clone(), requests)));
        Self { outgoing, shared, runtime: PhantomData }
    }

    /// Where it connects to.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.shared.lock().connected
    }

    /// Asks, and waits at most `limit` for the answer, which is of the type that [`Request`] names.
    /// May be given up at any time.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call<T: DeserializeOwned>(
        &self,
        request: &Request<R>,
        limit: Duration,
    ) -> Result<T, CallError> {
        self.start(request, limit).await.and_then(|body| read_answer(&body))
    }

    /// As [`Client::call`], with the answer unread, and on its own: the request is on its way when
    /// this returns, so that requests go out in the order of the calls. Only when too many are, it
    /// waits as a part of the future.
    pub fn start(
        &self,
        request: &Request<R>,
        limit: Duration,
    ) -> impl Future<Output = Result<Bytes, CallError>> + MaybeSend + use<R> {
        let (outgoing, shared) = (self.outgoing.clone(), self.shared.clone());
        let permits = match request.is_rafts() {
            true => shared.raft_permits.clone(),
            false => shared.other_permits.clone(),
        };
        // Not left to the first poll: a runtime may put off the polls of some futures and not of
        // others, and a request that overtakes another one makes raft begin anew.
        let start = match postcard::to_allocvec(request) {
            Err(error) => Start::Begun(Err(CallError::Protocol(error.to_string()))),
            Ok(body) => match permits.clone().try_acquire_owned() {
                Ok(permit) => Start::Begun(begin(&outgoing, &shared, permit, &body)),
                Err(_) => Start::Waits(body),
            },
        };
        let exchange = async move {
            let begun = match start {
                Start::Begun(begun) => begun?,
                Start::Waits(body) => match permits.acquire_owned().await {
                    Ok(permit) => begin(&outgoing, &shared, permit, &body)?,
                    Err(_) => return Err(shared.unreachable()),
                },
            };
            let Begun { answered, unsent, waiting, permit } = begun;
            if let Some(frame) = unsent
                && outgoing.send(frame).await.is_err()
            {
                return Err(shared.unreachable());
            }
            let answer = answered.await.unwrap_or_else(|_| Err(shared.unreachable()));
            drop((waiting, permit));
            answer
        };
        async move { at_most::<R, _>(limit, exchange).await.unwrap_or(Err(CallError::Timeout(limit))) }
    }

    /// Ends the connection and its tasks soon. What is on its way is lost.
    pub fn stop(&self) {
        self.shared.stop.trigger();
    }

    /// As [`Client::stop`], and waits for the tasks.
    pub async fn close(&self) {
        self.stop();
        self.shared.stopped.wait().await;
    }
}

/// What an answer says.
///
/// # Errors
/// [`CallError::Protocol`].
pub fn read_answer<T: DeserializeOwned>(body: &[u8]) -> Result<T, CallError> {
    match postcard::take_from_bytes(body) {
        Ok((answer, [])) => Ok(answer),
        Ok((_, rest)) => Err(CallError::Protocol(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(CallError::Protocol(format!("an unreadable answer: {error}"))),
    }
}

impl<R> Clone for Client<R> {
    fn clone(&self) -> Self {
        Self { outgoing: self.outgoing.clone(), shared: self.shared.clone(), runtime: PhantomData }
    }
}

impl<R> std::fmt::Debug for Client<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("target", &self.shared.target)
            .field("address", &self.shared.address)
            .finish_non_exhaustive()
    }
}

/// How far a request is.
enum Start {
    Begun(Result<Begun, CallError>),
    /// There were too many.
    Waits(Vec<u8>),
}

/// A request that is entered in the list, and sent.
struct Begun {
    answered: oneshot::Receiver<Result<Bytes, CallError>>,
    /// It is not sent yet: there was no room.
    unsent: Option<Vec<u8>>,
    waiting: Waiting,
    permit: OwnedSemaphorePermit,
}

fn begin(
    outgoing: &mpsc::Sender<Vec<u8>>,
    shared: &Arc<Shared>,
    permit: OwnedSemaphorePermit,
    body: &[u8],
) -> Result<Begun, CallError> {
    let (answer, answered) = oneshot::channel();
    let waiting = shared.enter(answer)?;
    let limit = shared.settings.max_frame_bytes;
    let frame = frame::encode(Kind::Request, waiting.request, body, limit)
        .map_err(|error| CallError::Protocol(error.to_string()))?;
    let unsent = match outgoing.try_send(frame) {
        Ok(()) => None,
        Err(TrySendError::Full(frame)) => Some(frame),
        Err(TrySendError::Closed(_)) => return Err(shared.unreachable()),
    };
    Ok(Begun { answered, unsent, waiting, permit })
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(
        self: &Arc<Self>,
        answer: oneshot::Sender<Result<Bytes, CallError>>,
    ) -> Result<Waiting, CallError> {
        let mut state = self.lock();
        if let Some(reason) = &state.down {
            return Err(CallError::Unreachable { node: self.target, reason: reason.clone() });
        }
        let request = state.next_request;
        state.next_request += 1;
        state.pending.insert(request, answer);
        drop(state);
        Ok(Waiting { shared: self.clone(), request })
    }

    fn unreachable(&self) -> CallError {
        let reason = self.lock().down.clone().unwrap_or_else(|| "closed".into());
        CallError::Unreachable { node: self.target, reason }
    }

    fn answer(&self, request: u64, result: Result<Bytes, CallError>) {
        let waiting = self.lock().pending.remove(&request);
        // Nobody waits: it came too late.
        if let Some(waiting) = waiting {
            let _ = waiting.send(result);
        }
    }

    fn set_connected(&self) {
        let mut state = self.lock();
        state.down = None;
        state.connected = true;
    }

    /// Ends all that wait. Says whether this is news.
    fn set_down(&self, reason: &str, lost: bool) -> bool {
        let mut state = self.lock();
        let news = state.down.as_deref() != Some(reason);
        state.down = Some(reason.to_owned());
        state.connected = false;
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        for waiting in pending.into_values() {
            let (node, reason) = (self.target, reason.to_owned());
            let _ = waiting.send(Err(match lost {
                true => CallError::Lost { node, reason },
                false => CallError::Unreachable { node, reason },
            }));
        }
        news
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.lock().pending.remove(&self.request);
    }
}

/// Connects again and again until nobody wants it any more.
async fn keep_connected<R: Runtime>(shared: Arc<Shared>, mut requests: mpsc::Receiver<Vec<u8>>) {
    let settings = &shared.settings;
    let mut backoff = Backoff::<R>::new(settings.min_backoff, settings.max_backoff);
    let (node, address) = (shared.target, shared.address.as_str());
    while !shared.stop.is_triggered() && !requests.is_closed() {
        let hello = Hello {
            cluster: settings.cluster.clone(),
            from: settings.node,
            to: node,
            purpose: Purpose::Requests,
        };
        let (error, lost) = match connect::<R>(settings, address, &hello, &shared.stop).await {
            Ok(parts) => {
                backoff.reset();
                shared.set_connected();
                tracing::debug!(node, address, "connected to a peer");
                (talk::<R>(&shared, parts, &mut requests).await, true)
            }
            Err(error) => (error, false),
        };
        let reason = error.to_string();
        // What was queued and not written goes nowhere: its senders are told.
        while requests.try_recv().is_ok() {}
        if shared.set_down(&reason, lost) && !shared.stop.is_triggered() {
            tracing::warn!(node, address, reason, "no connection to a peer");
        }
        at_most::<R, _>(backoff.next(), shared.stop.wait()).await;
    }
    shared.set_down("closed", false);
    // Waits of those that come later end at once.
    requests.close();
    shared.stopped.trigger();
}

/// What the writing task is to do next.
enum Turn {
    Write(Vec<u8>),
    Tick,
    End(LinkError),
}

/// Carries requests and answers until the connection ends; says why it did.
async fn talk<R: Runtime>(
    shared: &Arc<Shared>,
    parts: Parts<R>,
    requests: &mut mpsc::Receiver<Vec<u8>>,
) -> LinkError {
    let Parts { reader, mut writer, closer } = parts;
    let heard = Arc::new(LastHeard::now::<R>());
    let mut reading =
        pin!(R::spawn(read_answers::<R>(shared.clone(), reader, closer.clone(), heard.clone(),)));
    let settings = &shared.settings;
    let ping = frame::encode(Kind::Ping, 0, &[], usize::MAX).unwrap_or_default();
    let mut has_read = false;
    let mut stopping = pin!(shared.stop.wait());
    let mut tick = Box::pin(R::sleep(settings.ping_interval));
    let error = loop {
        let turn = poll_fn(|cx: &mut Context<'_>| {
            if let Poll::Ready(end) = reading.as_mut().poll(cx) {
                let end = end.unwrap_or_else(|panic| LinkError::Protocol(panic.to_string()));
                has_read = true;
                return Poll::Ready(Turn::End(end));
            }
            if stopping.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Turn::End(LinkError::Stopped));
            }
            match requests.poll_recv(cx) {
                Poll::Ready(Some(frame)) => return Poll::Ready(Turn::Write(frame)),
                Poll::Ready(None) => return Poll::Ready(Turn::End(LinkError::Stopped)),
                Poll::Pending => {}
            }
            tick.as_mut().poll(cx).map(|()| Turn::Tick)
        });
        let mut bytes = match turn.await {
            Turn::Write(frame) => frame,
            Turn::Tick => {
                tick.set(R::sleep(settings.ping_interval));
                if heard.ago::<R>() >= settings.silence {
                    break LinkError::Silent(settings.silence);
                }
                ping.clone()
            }
            Turn::End(error) => break error,
        };
        while bytes.len() < WRITE_BYTES {
            let Ok(frame) = requests.try_recv() else { break };
            bytes.extend_from_slice(&frame);
        }
        let write = async { Ok(writer.write_all(bytes).await.0?) };
        if let Err(error) = within::<R, _>(settings.silence, &closer, write).await {
            break error;
        }
    };
    closer.kill();
    if !has_read {
        // Ends at once; its own reason is the kill.
        let _ = reading.await;
    }
    error
}

/// Reads until the connection ends; says why it did.
async fn read_answers<R: Runtime>(
    shared: Arc<Shared>,
    mut reader: FrameReader<<R::Stream as Stream>::ReadHalf>,
    closer: CloserOf<R>,
    heard: Arc<LastHeard>,
) -> LinkError {
    let error = loop {
        let Frame { kind, request, body } = match reader.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => break LinkError::Ended,
            Err(error) => break error,
        };
        heard.touch::<R>();
        match kind {
            Kind::Response => shared.answer(request, Ok(body)),
            Kind::Refused => {
                let text = String::from_utf8_lossy(&body).into_owned();
                shared.answer(request, Err(CallError::Refused(text)));
            }
            Kind::Pong => {}
            kind => break LinkError::Protocol(format!("a frame of kind {kind:?} as an answer")),
        }
    };
    // A writer that waits for room would not notice.
    closer.kill();
    error
}
