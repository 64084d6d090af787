//! Coming into a cluster, and going out of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::errors::{ClientWriteError, RaftError};
use rt_abstract::{Runtime, Shutdown};

use super::leader::{Failure, Leader};
use crate::link::hello::ANY_NODE;
use crate::link::message::Request;
use crate::raft::types::{Peer, TypeConfig};
use crate::record::NodeId;

/// How long a new node may take to catch up before it votes.
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an attempt to join rests.
const JOIN_REST: Duration = Duration::from_millis(300);
/// How long removing a node may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes a node that is a member of nothing yet a member: of a new cluster of its own, or, with
/// seeds, of theirs. Returns when it is, or when `stop` came first.
pub(super) async fn enter<R: Runtime>(
    leader: Leader<R>,
    node: NodeId,
    address: String,
    seeds: Vec<String>,
    stop: Shutdown,
) -> Result<(), String> {
    if leader.raft.is_initialized().await.map_err(|error| error.to_string())? {
        return Ok(());
    }
    if seeds.is_empty() {
        let members = BTreeMap::from([(node, Peer { address })]);
        return leader.raft.initialize(members).await.map_err(|error| error.to_string());
    }
    let mut asked = 0_usize;
    let mut known: Option<(NodeId, String)> = None;
    while !stop.is_triggered() {
        let (to, at) = known.take().unwrap_or_else(|| {
            asked += 1;
            (ANY_NODE, seeds[asked % seeds.len()].clone())
        });
        let request = Request::Join { node, address: address.clone() };
        match leader.ask::<()>(to, &at, &request, JOIN_TIMEOUT).await {
            Ok(()) => {
                leader.links.forget(ANY_NODE); // the seed has a number from now on
                return Ok(());
            }
            Err(Failure::Elsewhere(Some(elsewhere))) => known = Some(elsewhere),
            Err(Failure::Refused(text)) => return Err(format!("cannot join through {at}: {text}")),
            Err(failure) => tracing::info!(seed = at, ?failure, "not joined yet"),
        }
        R::sleep(JOIN_REST).await;
    }
    Ok(())
}

/// Makes a node a member, on the leader: first it learns, then it votes.
pub(super) async fn add_here<R: Runtime>(
    leader: &Leader<R>,
    node: NodeId,
    address: String,
) -> Result<(), Failure> {
    let voters: BTreeSet<_> = leader.raft.voter_ids().collect();
    if !voters.contains(&node) {
        leader.raft.add_learner(node, Peer { address }, true).await.map_err(failure)?;
        let change = ChangeMembers::AddVoterIds(BTreeSet::from([node]));
        leader.raft.change_membership(change, true).await.map_err(failure)?;
        tracing::info!(node, "a node joined");
    }
    Ok(())
}

/// Removes a member, on the leader.
pub(super) async fn remove_here<R: Runtime>(
    leader: &Leader<R>,
    node: NodeId,
) -> Result<(), Failure> {
    let voters: BTreeSet<_> = leader.raft.voter_ids().collect();
    if voters.len() == 1 && voters.contains(&node) {
        return Err(Failure::Refused("the last node cannot leave".into()));
    }
    let known = leader.raft.voter_ids().chain(leader.raft.learner_ids()).any(|id| id == node);
    if !known {
        return Err(Failure::Refused(format!("there is no node {node}")));
    }
    let change = ChangeMembers::RemoveVoters(BTreeSet::from([node]));
    leader.raft.change_membership(change, false).await.map_err(failure)?;
    leader.links.forget(node);
    tracing::info!(node, "a node left");
    Ok(())
}

/// Removes a member, wherever the leader is.
pub(super) async fn remove<R: Runtime>(leader: &Leader<R>, node: NodeId) -> Result<(), String> {
    let deadline = R::now() + LEAVE_TIMEOUT;
    let mut outcome = remove_here(leader, node).await;
    loop {
        let left = deadline - R::now();
        outcome = match outcome {
            Ok(()) => return Ok(()),
            Err(Failure::Elsewhere(Some((to, at)))) if !left.is_zero() => {
                leader.ask::<()>(to, &at, &Request::Leave { node }, left).await
            }
            Err(Failure::Elsewhere(None)) if !left.is_zero() => {
                R::sleep(JOIN_REST).await;
                remove_here(leader, node).await
            }
            Err(Failure::Refused(text) | Failure::Unknown(text)) => return Err(text),
            Err(Failure::Elsewhere(_)) => return Err("the metadata has no leader".into()),
            Err(Failure::Stopped) => return Err("the node is stopping".into()),
        };
    }
}

fn failure<R: Runtime>(
    error: RaftError<TypeConfig<R>, ClientWriteError<TypeConfig<R>>>,
) -> Failure {
    match error {
        RaftError::APIError(error) => error.into(),
        RaftError::Fatal(_) => Failure::Stopped,
    }
}
