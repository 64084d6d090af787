//! The link as openraft wants it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::FuturesOrdered;
use futures_util::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use rt_abstract::Runtime;
use serde::de::DeserializeOwned;

use super::Settings;
use super::client::{CallError, Client, read_answer};
use super::message::{Offer, Request};
use super::snapshot::{Cancel, SendError, send, until};
use crate::raft::snapshot::SnapshotData;
use crate::raft::types::{Peer, TypeConfig};
use crate::record::NodeId;

/// Requests to append that are on their way to one node at a time.
pub const MAX_APPENDS: usize = 64;

/// The connections of this node to all others. Clones are the same ones.
#[derive(Debug)]
pub struct Links<R> {
    settings: Arc<Settings>,
    clients: Arc<Mutex<BTreeMap<NodeId, Client<R>>>>,
}

/// One peer, as openraft talks to it.
#[derive(Debug)]
pub struct Network<R> {
    settings: Arc<Settings>,
    target: NodeId,
    client: Client<R>,
}

impl<R: Runtime> Links<R> {
    /// No connections yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings), clients: Arc::default() }
    }

    /// The connection to `node` at `address`, made on the calling executor when there is none. A
    /// connection to another address of the same node ends.
    pub fn client(&self, node: NodeId, address: &str) -> Client<R> {
        let mut clients = self.lock();
        if let Some(client) = clients.get(&node)
            && client.address() == address
        {
            return client.clone();
        }
        let client = Client::new((*self.settings).clone(), node, address);
        if let Some(old) = clients.insert(node, client.clone()) {
            old.stop();
        }
        client
    }

    /// Ends the connection to a node that is no member any more.
    pub fn forget(&self, node: NodeId) {
        let client = self.lock().remove(&node);
        if let Some(client) = client {
            client.stop();
        }
    }

    /// Ends all connections and waits for their tasks.
    pub async fn close(&self) {
        let clients = std::mem::take(&mut *self.lock());
        for client in clients.values() {
            client.stop();
        }
        for client in clients.into_values() {
            client.close().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Client<R>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> Clone for Links<R> {
    fn clone(&self) -> Self {
        Self { settings: self.settings.clone(), clients: self.clients.clone() }
    }
}

impl<R: Runtime> RaftNetworkFactory<TypeConfig<R>> for Links<R> {
    type Network = Network<R>;

    async fn new_client(&mut self, target: NodeId, node: &Peer) -> Network<R> {
        let client = self.client(target, &node.address);
        Network { settings: self.settings.clone(), target, client }
    }
}

impl<R: Runtime> Network<R> {
    async fn call<T: DeserializeOwned>(
        &self,
        request: Request<R>,
        action: RPCTypes,
        limit: Duration,
    ) -> Result<T, RPCError<TypeConfig<R>>> {
        let answer = self.client.call(&request, limit).await;
        answer.map_err(|error| self.rpc_error(error, action, limit))
    }

    fn rpc_error(
        &self,
        error: CallError,
        action: RPCTypes,
        timeout: Duration,
    ) -> RPCError<TypeConfig<R>> {
        match error {
            CallError::Timeout(_) => {
                let (id, target) = (self.settings.node, self.target);
                RPCError::Timeout(Timeout { action, id, target, timeout })
            }
            CallError::Lost { .. } | CallError::Protocol(_) => {
                RPCError::Network(NetworkError::new(&error))
            }
            CallError::Unreachable { .. } | CallError::Refused(_) => {
                RPCError::Unreachable(Unreachable::new(&error))
            }
        }
    }

    /// Asks, and makes of the answer what openraft's streams say.
    fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig<R>>,
        alone: bool,
        limit: Duration,
    ) -> Call<R> {
        let before = request.prev_log_id;
        let last = request.entries.last().map_or(before, |entry| Some(entry.log_id));
        let request = if alone { Request::AppendAlone(request) } else { Request::Append(request) };
        let asked = self.client.start(&request, limit);
        let network = self.clone();
        Box::pin(async move {
            let error = |error| network.rpc_error(error, RPCTypes::AppendEntries, limit);
            let answer = asked.await.and_then(|body| read_answer(&body)).map_err(error)?;
            let more = match &answer {
                AppendEntriesResponse::Success => true,
                AppendEntriesResponse::PartialSuccess(upto) => *upto == last,
                AppendEntriesResponse::HigherVote(_) => false,
                AppendEntriesResponse::Conflict if before.is_some() => false,
                AppendEntriesResponse::Conflict => {
                    let text = "a conflict before the first entry".to_owned();
                    return Err(error(CallError::Protocol(text)));
                }
            };
            Ok((answer.into_stream_result(before, last), more))
        })
    }
}

impl<R> Clone for Network<R> {
    fn clone(&self) -> Self {
        let Self { settings, target, client } = self;
        Self { settings: settings.clone(), target: *target, client: client.clone() }
    }
}

impl<R: Runtime> RaftNetworkV2<TypeConfig<R>> for Network<R> {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig<R>>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig<R>>, RPCError<TypeConfig<R>>> {
        self.call(Request::AppendAlone(request), RPCTypes::AppendEntries, option.hard_ttl()).await
    }

    /// Up to [`MAX_APPENDS`] requests are on their way; the answers come out in the order of the
    /// requests. A request may take as long as the connection may be silent: a slow disk of the
    /// follower is no reason to send everything again. A stream of one request, which a heartbeat is,
    /// waits for none of the others.
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<TypeConfig<R>>, RPCError<TypeConfig<R>>>>,
            RPCError<TypeConfig<R>>,
        >,
    >
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig<R>>> + OptionalSend + Unpin + 'static,
    {
        let limit = option.hard_ttl().max(self.settings.silence);
        let pipeline = Pipeline {
            network: self.clone(),
            input: Some(input),
            first: None,
            begun: false,
            calls: FuturesOrdered::new(),
            limit,
        };
        Box::pin(async move {
            let answers: BoxStream<'s, _> = Box::pin(pipeline);
            Ok(answers)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig<R>>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig<R>>, RPCError<TypeConfig<R>>> {
        self.call(Request::Vote(request), RPCTypes::Vote, option.hard_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig<R>>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig<R>>, RPCError<TypeConfig<R>>> {
        self.call(Request::PreVote(request), RPCTypes::Vote, option.hard_ttl()).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig<R>>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig<R>>, RPCError<TypeConfig<R>>> {
        let request = Request::TransferLeader(request);
        self.call(request, RPCTypes::TransferLeader, option.hard_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig<R>>,
        snapshot: SnapshotOf<TypeConfig<R>, SnapshotData>,
        cancelled: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig<R>>, StreamingError<TypeConfig<R>>> {
        let unreachable =
            |text: String| StreamingError::Unreachable(Unreachable::from_string(text));
        let SnapshotData::Local(source) = snapshot.snapshot else {
            return Err(unreachable("this snapshot has no data of its own to send".into()));
        };
        let cancel = Cancel::<R>::new();
        let task = R::spawn(send(
            (*self.settings).clone(),
            self.target,
            self.client.address().to_owned(),
            Offer { vote, meta: snapshot.meta },
            Arc::new(source),
            cancel.clone(),
        ));
        match until::<R, _, _>(task, cancel, cancelled).await {
            Ok(Ok(Ok(response))) => Ok(response),
            Ok(Ok(Err(SendError::Cancelled))) => {
                Err(StreamingError::Closed(ReplicationClosed::new("cancelled")))
            }
            Ok(Ok(Err(error))) => Err(unreachable(error.to_string())),
            Ok(Err(panic)) => Err(unreachable(panic.to_string())),
            Err(closed) => Err(StreamingError::Closed(closed)),
        }
    }
}

/// What openraft makes of one answer, and whether the stream goes on behind it.
type Called<R> = Result<(StreamAppendResult<TypeConfig<R>>, bool), RPCError<TypeConfig<R>>>;
type Call<R> = BoxFuture<'static, Called<R>>;

/// Requests that are on their way, answered in their order.
struct Pipeline<R: Runtime, S> {
    network: Network<R>,
    /// `None` once it has ended, or an answer stopped it.
    input: Option<S>,
    /// The first request, until it is known whether it is the only one.
    first: Option<AppendEntriesRequest<TypeConfig<R>>>,
    begun: bool,
    calls: FuturesOrdered<Call<R>>,
    limit: Duration,
}

impl<R: Runtime, S> Unpin for Pipeline<R, S> {}

impl<R: Runtime, S> Pipeline<R, S> {
    fn send(&mut self, request: AppendEntriesRequest<TypeConfig<R>>, alone: bool) {
        self.calls.push_back(self.network.append(request, alone, self.limit));
    }
}

impl<R, S> Stream for Pipeline<R, S>
where
    R: Runtime,
    S: Stream<Item = AppendEntriesRequest<TypeConfig<R>>> + Unpin,
{
    type Item = Result<StreamAppendResult<TypeConfig<R>>, RPCError<TypeConfig<R>>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while this.calls.len() < MAX_APPENDS
            && let Some(input) = &mut this.input
        {
            match input.poll_next_unpin(cx) {
                Poll::Ready(Some(request)) if !this.begun => {
                    this.begun = true;
                    this.first = Some(request);
                }
                Poll::Ready(Some(request)) => {
                    if let Some(first) = this.first.take() {
                        this.send(first, false);
                    }
                    this.send(request, false);
                }
                Poll::Ready(None) => {
                    this.input = None;
                    if let Some(first) = this.first.take() {
                        this.send(first, true);
                    }
                }
                Poll::Pending => {
                    if let Some(first) = this.first.take() {
                        this.send(first, false);
                    }
                    break;
                }
            }
        }
        let result = match this.calls.poll_next_unpin(cx) {
            Poll::Ready(Some(result)) => result,
            Poll::Ready(None) if this.input.is_none() => return Poll::Ready(None),
            Poll::Ready(None) | Poll::Pending => return Poll::Pending,
        };
        let (item, more) = match result {
            Ok((result, more)) => (Ok(result), more),
            Err(error) => (Err(error), false),
        };
        if !more {
            // The rest was sent on the ground of this one.
            this.input = None;
            this.calls = FuturesOrdered::new();
        }
        Poll::Ready(Some(item))
    }
}
