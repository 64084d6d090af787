//! Reaching the leader, wherever it is: here, on another node, or not there yet.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use openraft::ReadPolicy;
use openraft::errors::{ClientWriteError, LinearizableReadError, RaftError};
use openraft::impls::OneshotResponder;
use rt_abstract::{Runtime, Shutdown};
use serde::de::DeserializeOwned;

use super::MetaRaft;
use crate::command::Command;
use crate::handle::{Answer, ProposeError};
use crate::link::client::CallError;
use crate::link::message::{Proposed, Redirect, Request};
use crate::link::network::Links;
use crate::raft::types::{Proposal, TypeConfig};
use crate::record::NodeId;

/// How long a proposal may take, including the search for a leader.
pub(super) const TIMEOUT: Duration = Duration::from_secs(8);
/// How long a search for a leader rests.
const REST: Duration = Duration::from_millis(20);

/// Whoever leads. Clones are the same.
#[derive(Debug)]
pub(super) struct Leader<R: Runtime> {
    pub(super) raft: MetaRaft<R>,
    pub(super) links: Links<R>,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Another node leads, or nobody known does: nothing was done.
    Elsewhere(Option<(NodeId, String)>),
    /// Whether it was done is unknown.
    Unknown(String),
    /// It cannot be done.
    Refused(String),
    /// Raft has stopped.
    Stopped,
}

impl<R: Runtime> Leader<R> {
    pub(super) fn new(raft: MetaRaft<R>, links: Links<R>) -> Self {
        Self { raft, links }
    }

    /// Gives an entry to raft at once, and returns what becomes of it.
    pub(super) async fn begin(
        &self,
        proposal: Proposal,
    ) -> Result<impl Future<Output = Result<Answer, Failure>> + use<R>, Failure> {
        let (responder, answered) = OneshotResponder::new_pair();
        let given = self.raft.client_write_ff(proposal, Some(responder)).await;
        given.map_err(|_| Failure::Stopped)?;
        Ok(async move {
            match answered.await {
                Ok(Ok(written)) => {
                    let index = written.log_id.index;
                    Ok(Answer { index, replies: written.data.replies })
                }
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err(Failure::Stopped),
            }
        })
    }

    /// Proposes on this node.
    pub(super) async fn propose_here(&self, proposal: Proposal) -> Result<Answer, Failure> {
        self.begin(proposal).await?.await
    }

    /// Takes the outcome of a first attempt, and tries on where another may succeed.
    pub(super) async fn finish(
        &self,
        proposal: Proposal,
        first: impl Future<Output = Result<Answer, Failure>>,
    ) -> Result<Answer, ProposeError> {
        let deadline = R::now() + TIMEOUT;
        let mut outcome = within::<R, _>(TIMEOUT, first).await;
        loop {
            let failure = match outcome {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(failure)) => failure,
                None => return Err(ProposeError::Timeout),
            };
            let left = deadline - R::now();
            outcome = match failure {
                Failure::Stopped => return Err(ProposeError::Stopped),
                Failure::Unknown(_) | Failure::Refused(_) => return Err(ProposeError::Timeout),
                Failure::Elsewhere(_) if left.is_zero() => return Err(ProposeError::NoLeader),
                Failure::Elsewhere(Some((node, address))) => {
                    let request = Request::Propose(proposal.commands.to_vec());
                    match self.ask::<Proposed>(node, &address, &request, left).await {
                        Ok(Proposed { index, replies }) => {
                            // What was answered here can be read here.
                            return self
                                .applied(index, left)
                                .await
                                .map(|()| Answer { index, replies });
                        }
                        Err(failure) => {
                            R::sleep(REST).await;
                            // Another leader, perhaps this node, may be known by now.
                            match failure {
                                Failure::Elsewhere(None) => {
                                    within::<R, _>(left, self.propose_here(proposal.clone())).await
                                }
                                failure => Some(Err(failure)),
                            }
                        }
                    }
                }
                Failure::Elsewhere(None) => {
                    R::sleep(REST).await;
                    within::<R, _>(left, self.propose_here(proposal.clone())).await
                }
            };
        }
    }

    /// The index up to which everything that was acknowledged before is, once it is applied here.
    pub(super) async fn linearize(&self, limit: Duration) -> Result<u64, ProposeError> {
        let deadline = R::now() + limit;
        loop {
            let left = deadline - R::now();
            if left.is_zero() {
                return Err(ProposeError::NoLeader);
            }
            let index = match within::<R, _>(left, self.read_index_here()).await {
                Some(Err(Failure::Elsewhere(Some((node, address))))) => {
                    self.ask::<u64>(node, &address, &Request::ReadIndex, left).await
                }
                Some(outcome) => outcome,
                None => return Err(ProposeError::Timeout),
            };
            match index {
                Ok(index) => return self.applied(index, left).await.map(|()| index),
                Err(Failure::Stopped) => return Err(ProposeError::Stopped),
                Err(_) => R::sleep(REST).await, // reading again does no harm
            }
        }
    }

    /// [`Leader::linearize`] for a node that is the leader.
    pub(super) async fn read_index_here(&self) -> Result<u64, Failure> {
        match self.raft.get_read_log_id(ReadPolicy::ReadIndex).await {
            Ok((read, _)) => Ok(read.log_id().index),
            Err(RaftError::Fatal(_)) => Err(Failure::Stopped),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to))) => {
                let leader = to.leader_id.zip(to.leader_node.map(|peer| peer.address));
                Err(Failure::Elsewhere(leader))
            }
            Err(RaftError::APIError(error)) => Err(Failure::Unknown(error.to_string())),
        }
    }

    /// Waits, however long it takes, until the state here is as new as the cluster's; false when
    /// `stop` came first.
    pub(super) async fn catch_up(&self, stop: &Shutdown) -> bool {
        while !stop.is_triggered() {
            match self.linearize(TIMEOUT).await {
                Ok(_) => return true,
                Err(ProposeError::Stopped) => return false,
                Err(error) => tracing::warn!(%error, "waiting for a majority of the nodes"),
            }
        }
        false
    }

    /// Asks another node something that only the leader does.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        node: NodeId,
        address: &str,
        request: &Request<R>,
        limit: Duration,
    ) -> Result<T, Failure> {
        let client = self.links.client(node, address);
        match client.call::<Result<T, Redirect>>(request, limit).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(redirect)) => Err(redirect.into()),
            Err(CallError::Unreachable { .. }) => Err(Failure::Elsewhere(None)),
            Err(error) => Err(Failure::Unknown(error.to_string())),
        }
    }

    async fn applied(&self, index: u64, limit: Duration) -> Result<(), ProposeError> {
        let wait = self.raft.wait(Some(limit));
        match wait.applied_index_at_least(Some(index), "to be read here").await {
            Ok(_) => Ok(()),
            Err(_) => Err(ProposeError::Timeout),
        }
    }
}

impl<R: Runtime> Clone for Leader<R> {
    fn clone(&self) -> Self {
        Self { raft: self.raft.clone(), links: self.links.clone() }
    }
}

impl<R: Runtime> From<ClientWriteError<TypeConfig<R>>> for Failure {
    fn from(error: ClientWriteError<TypeConfig<R>>) -> Self {
        match error {
            ClientWriteError::ForwardToLeader(to) => {
                Self::Elsewhere(to.leader_id.zip(to.leader_node.map(|peer| peer.address)))
            }
            ClientWriteError::ChangeMembershipError(error) => Self::Refused(error.to_string()),
            error => Self::Unknown(error.to_string()),
        }
    }
}

impl From<Redirect> for Failure {
    fn from(redirect: Redirect) -> Self {
        match redirect {
            Redirect::Leader { node, address } => Self::Elsewhere(Some((node, address))),
            Redirect::NoLeader => Self::Elsewhere(None),
            Redirect::Unknown(text) => Self::Unknown(text),
            Redirect::Failed(text) => Self::Refused(text),
        }
    }
}

impl From<Failure> for Redirect {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Elsewhere(Some((node, address))) => Self::Leader { node, address },
            Failure::Elsewhere(None) => Self::NoLeader,
            Failure::Unknown(text) => Self::Unknown(text),
            Failure::Refused(text) => Self::Failed(text),
            Failure::Stopped => Self::Failed("the node is stopping".into()),
        }
    }
}

/// One entry out of commands.
pub(super) fn proposal(commands: Vec<Command>) -> Proposal {
    Proposal { commands }
}

/// `None` when it took longer. What is dropped then waits for a channel only.
pub(super) async fn within<R: Runtime, T>(
    limit: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    match select(pin!(future), pin!(R::sleep(limit))).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}
