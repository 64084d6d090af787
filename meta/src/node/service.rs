//! What other nodes ask of this one, put to raft.

use std::sync::Arc;

use futures_util::StreamExt;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use rt_abstract::Runtime;

use super::MetaRaft;
use super::leader::{Leader, proposal};
use super::members;
use crate::command::Command;
use crate::handle::Handle;
use crate::link::message::{Offer, Proposed, Redirect, Resume};
use crate::link::network::Links;
use crate::link::service::{AppendAnswers, Appends, Service};
use crate::link::snapshot::Inbox;
use crate::raft::types::TypeConfig;
use crate::record::NodeId;
use crate::status::Status;
use crate::store::Store;

/// See the module's head. Clones are the same.
#[derive(Debug)]
pub(super) struct NodeService<R: Runtime> {
    leader: Leader<R>,
    handle: Handle,
    inbox: Inbox<R>,
}

impl<R: Runtime> NodeService<R> {
    pub(super) fn new(
        raft: MetaRaft<R>,
        links: Links<R>,
        handle: Handle,
        store: Arc<dyn Store>,
    ) -> Self {
        Self { leader: Leader::new(raft, links), handle, inbox: Inbox::new(store) }
    }
}

impl<R: Runtime> Clone for NodeService<R> {
    fn clone(&self) -> Self {
        Self { leader: self.leader.clone(), handle: self.handle.clone(), inbox: self.inbox.clone() }
    }
}

impl<R: Runtime> Service<R> for NodeService<R> {
    fn append_all(&self, requests: Appends<R>) -> AppendAnswers<R> {
        let answers = self.leader.raft.stream_append(requests);
        Box::pin(answers.map(|answer| match answer {
            Ok(result) => Ok(result.into()),
            Err(fatal) => Err(fatal.to_string()),
        }))
    }

    async fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig<R>>,
    ) -> Result<AppendEntriesResponse<TypeConfig<R>>, String> {
        self.leader.raft.append_entries(request).await.map_err(|error| error.to_string())
    }

    async fn vote(
        &self,
        request: VoteRequest<TypeConfig<R>>,
    ) -> Result<VoteResponse<TypeConfig<R>>, String> {
        self.leader.raft.vote(request).await.map_err(|error| error.to_string())
    }

    async fn pre_vote(
        &self,
        request: VoteRequest<TypeConfig<R>>,
    ) -> Result<VoteResponse<TypeConfig<R>>, String> {
        self.leader.raft.pre_vote(request).await.map_err(|error| error.to_string())
    }

    async fn transfer_leader(
        &self,
        request: TransferLeaderRequest<TypeConfig<R>>,
    ) -> Result<TransferLeaderResponse<TypeConfig<R>>, String> {
        self.leader.raft.handle_transfer_leader(request).await.map_err(|error| error.to_string())
    }

    async fn propose(&self, commands: Vec<Command>) -> Result<Proposed, Redirect> {
        let answer = self.leader.propose_here(proposal(commands)).await?;
        Ok(Proposed { index: answer.index, replies: answer.replies })
    }

    async fn read_index(&self) -> Result<u64, Redirect> {
        Ok(self.leader.read_index_here().await?)
    }

    async fn join(&self, node: NodeId, address: String) -> Result<(), Redirect> {
        Ok(members::add_here(&self.leader, node, address).await?)
    }

    async fn leave(&self, node: NodeId) -> Result<(), Redirect> {
        Ok(members::remove_here(&self.leader, node).await?)
    }

    async fn status(&self) -> Status {
        self.handle.status()
    }

    async fn begin_snapshot(&self, from: NodeId, offer: Offer<R>) -> Result<Resume, String> {
        self.inbox.begin(from, &offer).await
    }

    async fn snapshot_chunk(&self, from: NodeId, chunk: Vec<u8>) -> Result<(), String> {
        self.inbox.chunk(from, chunk).await
    }

    async fn finish_snapshot(
        &self,
        from: NodeId,
        offer: Offer<R>,
    ) -> Result<SnapshotResponse<TypeConfig<R>>, String> {
        let (snapshot, _installing) = self.inbox.finish(from, &offer).await?;
        let installed = self.leader.raft.install_full_snapshot(offer.vote, snapshot).await;
        installed.map_err(|error| error.to_string())
    }
}
