//! From the mailbox to the log: what waits there becomes one entry, several entries are under way at
//! once, and everybody gets the replies to his own commands.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use rt_abstract::{Receiver, Runtime, Shutdown};
use tokio::sync::Semaphore;

use super::leader::{Leader, TIMEOUT, proposal};
use super::members;
use crate::handle::{Answer, AnswerTo, ProposeError, Request};
use crate::raft::entry::command_weight;

/// Entries that this node has proposed and that are not applied yet; further requests gather.
const MAX_UNDER_WAY: usize = 64;
/// Requests taken out of the mailbox at once.
const MAX_REQUESTS: usize = 1024;
/// Commands of one entry, but for the last request's: applying one must not hold raft up.
const MAX_COMMANDS: usize = 64;
/// Bytes of one entry, about, but for the last request's: an entry has to fit into one frame of the
/// link with one request more.
const MAX_ENTRY_BYTES: usize = 4 << 20;

/// Carries out what comes through the mailbox until `stop`; returns when all is answered.
pub(super) async fn propose_loop<R: Runtime>(
    leader: Leader<R>,
    mut requests: Receiver<Request>,
    stop: Shutdown,
) {
    let under_way = Arc::new(Semaphore::new(MAX_UNDER_WAY));
    let mut batch = Vec::with_capacity(MAX_REQUESTS);
    while !stop.is_triggered() {
        {
            let stopped = pin!(stop.wait());
            let received = pin!(requests.receive(&mut batch, MAX_REQUESTS));
            match select(received, stopped).await {
                Either::Left((1.., _)) => {}
                Either::Left((0, _)) | Either::Right(_) => break,
            }
        }
        let (mut commands, mut callers, mut bytes) = (Vec::new(), Vec::new(), 0);
        for request in batch.drain(..) {
            match request {
                Request::Propose(mut some, answer) => {
                    bytes += some.iter().map(command_weight).sum::<usize>();
                    callers.push((some.len(), answer));
                    commands.append(&mut some);
                    if commands.len() >= MAX_COMMANDS || bytes >= MAX_ENTRY_BYTES {
                        bytes = 0;
                        let entry = (std::mem::take(&mut commands), std::mem::take(&mut callers));
                        propose(&leader, &under_way, entry).await;
                    }
                }
                Request::Linearize(answer) => {
                    let Ok(permit) = under_way.clone().acquire_owned().await else { return };
                    let leader = leader.clone();
                    drop(R::spawn(async move {
                        let _ = answer.send(leader.linearize(TIMEOUT).await);
                        drop(permit);
                    }));
                }
                Request::RemoveNode(node, answer) => {
                    let Ok(permit) = under_way.clone().acquire_owned().await else { return };
                    let leader = leader.clone();
                    drop(R::spawn(async move {
                        let _ = answer.send(Ok(members::remove(&leader, node).await));
                        drop(permit);
                    }));
                }
            }
        }
        if !callers.is_empty() {
            propose(&leader, &under_way, (commands, callers)).await;
        }
    }
    drop(requests); // what waits there is refused
    // Raft has ended, or will: what is under way ends with it, or by its time-out.
    let _ = under_way.acquire_many(MAX_UNDER_WAY as u32).await;
}

/// How many replies, and for whom.
type Callers = Vec<(usize, AnswerTo<Answer>)>;

/// Gives one entry to raft, so that entries keep their order; the rest is a task.
async fn propose<R: Runtime>(
    leader: &Leader<R>,
    under_way: &Arc<Semaphore>,
    (commands, callers): (Vec<crate::command::Command>, Callers),
) {
    let Ok(permit) = under_way.clone().acquire_owned().await else { return };
    let entry = proposal(commands);
    let first = leader.begin(entry.clone()).await;
    let leader = leader.clone();
    // Detached; the semaphore counts it, and a time-out ends it.
    drop(R::spawn(async move {
        let first = async move {
            match first {
                Ok(outcome) => outcome.await,
                Err(failure) => Err(failure),
            }
        };
        split(callers, leader.finish(entry, first).await);
        drop(permit);
    }));
}

/// Gives each caller the replies to his commands.
fn split(callers: Callers, answer: Result<Answer, ProposeError>) {
    match answer {
        Ok(Answer { index, replies }) => {
            let mut replies = replies.into_iter();
            for (count, caller) in callers {
                let replies = replies.by_ref().take(count).collect();
                let _ = caller.send(Ok(Answer { index, replies })); // who is gone does not care
            }
        }
        Err(error) => {
            for (_, caller) in callers {
                let _ = caller.send(Err(error));
            }
        }
    }
}
