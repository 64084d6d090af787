//! What is looked after while the node runs: raft's metrics as the [`Status`] that operators see,
//! raft's own end as the node's, and callers that wait in vain while the broker stops.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::select;
use openraft::async_runtime::WatchReceiver;
use openraft::{RaftMetrics, ServerState};
use rt_abstract::{Runtime, Shutdown};

use super::leader::within;
use super::{FirstFailure, MetaRaft};
use crate::handle::Handle;
use crate::raft::types::TypeConfig;
use crate::status::{Member, Status};

/// How long a change may take to be seen at most, so that a stop is seen.
const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

/// How long callers may wait without any of them being answered, once the broker is stopping.
const STUCK: std::time::Duration = std::time::Duration::from_millis(500);

/// Once the broker is stopping, sends callers away that are not answered: there is no majority, say.
/// What they asked for is found at the next start. Returns after `stop`.
pub(super) async fn cut_when_stuck<R: Runtime>(handle: Handle, stop: Shutdown) {
    select(pin!(handle.ending().wait()), pin!(stop.wait())).await;
    let mut before = handle.progress();
    while !stop.is_triggered() {
        select(pin!(R::sleep(STUCK)), pin!(stop.wait())).await;
        let now = handle.progress();
        if before.0 > 0 && now.0 > 0 && now.1 == before.1 {
            break;
        }
        before = now;
    }
    handle.cut();
}

/// Follows raft until `stop`.
pub(super) async fn watch<R: Runtime>(
    raft: MetaRaft<R>,
    handle: Handle,
    failure: Arc<FirstFailure>,
    stop: Shutdown,
) {
    let mut metrics = raft.metrics();
    while !stop.is_triggered() {
        let (status, running) = {
            let metrics = metrics.borrow_watched();
            (status_of::<R>(&metrics), metrics.running_state.clone())
        };
        handle.set_status(status);
        if let Err(error) = running
            && !stop.is_triggered()
        {
            failure.set(error.to_string());
            return;
        }
        // Rest first: under load the metrics change with every batch, and nobody looks that often.
        R::sleep(std::time::Duration::from_millis(20)).await;
        if let Some(Err(_)) = within::<R, _>(LOOK, metrics.changed()).await {
            return;
        }
    }
}

fn status_of<R: Runtime>(metrics: &RaftMetrics<TypeConfig<R>>) -> Status {
    let role = match metrics.state {
        ServerState::Leader => "leader",
        ServerState::Follower => "follower",
        ServerState::Candidate => "candidate",
        ServerState::Learner => "learner",
        ServerState::Shutdown => "stopped",
    };
    let index = |id: &Option<crate::raft::entry::LogId>| id.as_ref().map(|id| id.index);
    let membership = metrics.membership_config.membership();
    let voters: Vec<_> = membership.voter_ids().collect();
    let members = membership.nodes().map(|(node, peer)| Member {
        node: *node,
        address: peer.address.clone(),
        voter: voters.contains(node),
        matched_index: metrics
            .replication
            .as_ref()
            .and_then(|replication| index(replication.get(node)?)),
    });
    Status {
        node: metrics.id,
        role: role.into(),
        leader: metrics.current_leader,
        term: metrics.current_term,
        last_log_index: metrics.last_log_index,
        last_applied_index: index(&metrics.last_applied),
        snapshot_index: index(&metrics.snapshot),
        purged_index: index(&metrics.purged),
        members: members.collect(),
    }
}
