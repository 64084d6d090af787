//! What a node answers.

use std::future::Future;

use openraft::base::BoxStream;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use rt_abstract::{MaybeSend, MaybeSync, Runtime};

use super::message::{Offer, Proposed, Redirect, Resume};
use crate::command::Command;
use crate::raft::types::TypeConfig;
use crate::record::NodeId;
use crate::status::Status;

/// See [`Service::append_all`].
pub type Appends<R> = BoxStream<'static, AppendEntriesRequest<TypeConfig<R>>>;
/// See [`Service::append_all`].
pub type AppendAnswers<R> =
    BoxStream<'static, Result<AppendEntriesResponse<TypeConfig<R>>, String>>;

/// Answers what other nodes ask. One clone per connection.
///
/// Requests are carried out side by side, but for those of [`Service::append_all`]. A text as an error
/// goes to the peer and its log: the node is stopping, say.
pub trait Service<R: Runtime>: Clone + MaybeSend + MaybeSync + 'static {
    /// Raft's requests to append entries, as one connection brings them: taken, and answered, in
    /// their order. Ends early when what follows was sent in vain.
    fn append_all(&self, requests: Appends<R>) -> AppendAnswers<R>;

    /// One such request whose order does not matter.
    fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig<R>>,
    ) -> impl Future<Output = Result<AppendEntriesResponse<TypeConfig<R>>, String>> + MaybeSend;

    /// Raft's request for a vote.
    fn vote(
        &self,
        request: VoteRequest<TypeConfig<R>>,
    ) -> impl Future<Output = Result<VoteResponse<TypeConfig<R>>, String>> + MaybeSend;

    /// Raft's question whether a request for a vote would be granted.
    fn pre_vote(
        &self,
        request: VoteRequest<TypeConfig<R>>,
    ) -> impl Future<Output = Result<VoteResponse<TypeConfig<R>>, String>> + MaybeSend;

    /// Raft's handing over of leadership.
    fn transfer_leader(
        &self,
        request: TransferLeaderRequest<TypeConfig<R>>,
    ) -> impl Future<Output = Result<TransferLeaderResponse<TypeConfig<R>>, String>> + MaybeSend;

    /// Proposes commands, if this is the leader.
    fn propose(
        &self,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Proposed, Redirect>> + MaybeSend;

    /// The index that covers all that was acknowledged so far, if this is the leader.
    fn read_index(&self) -> impl Future<Output = Result<u64, Redirect>> + MaybeSend;

    /// Makes a node a member, if this is the leader.
    fn join(
        &self,
        node: NodeId,
        address: String,
    ) -> impl Future<Output = Result<(), Redirect>> + MaybeSend;

    /// Removes a member, if this is the leader.
    fn leave(&self, node: NodeId) -> impl Future<Output = Result<(), Redirect>> + MaybeSend;

    /// How the cluster stands.
    fn status(&self) -> impl Future<Output = Status> + MaybeSend;

    /// A snapshot is on offer from `from`: where does it go on?
    fn begin_snapshot(
        &self,
        from: NodeId,
        offer: Offer<R>,
    ) -> impl Future<Output = Result<Resume, String>> + MaybeSend;

    /// Takes a piece of the snapshot that `from` offered.
    fn snapshot_chunk(
        &self,
        from: NodeId,
        chunk: Vec<u8>,
    ) -> impl Future<Output = Result<(), String>> + MaybeSend;

    /// All pieces were sent: puts the snapshot that was offered by `from` in place.
    fn finish_snapshot(
        &self,
        from: NodeId,
        offer: Offer<R>,
    ) -> impl Future<Output = Result<SnapshotResponse<TypeConfig<R>>, String>> + MaybeSend;
}
