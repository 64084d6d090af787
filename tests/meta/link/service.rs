//! What the cases have nodes answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use meta::command::Command;
use meta::link::message::{Offer, Proposed, Redirect, Resume};
use meta::link::network::MAX_APPENDS;
use meta::link::service::{AppendAnswers, Appends, Service};
use meta::raft::types::TypeConfig;
use meta::record::NodeId;
use meta::state::export::Importer;
use meta::status::Status;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use rt_abstract::Runtime;
use tokio::sync::oneshot;

/// Answers by what it was told beforehand. Clones are the same one.
#[derive(Clone, Default)]
pub struct Answers(Arc<Mutex<State>>);

#[derive(Default)]
pub struct State {
    /// So many requests are held back, and then answered the last one first.
    pub together: usize,
    waiting: Vec<oneshot::Sender<()>>,
    /// Indexes of the first entries of requests to append, as they came.
    pub appended: Vec<u64>,
    /// The same of those that came alone.
    pub alone: Vec<u64>,
    /// Requests to append from this index on conflict.
    pub conflict_from: Option<u64>,
    /// The snapshot that is being taken.
    pub importer: Importer,
    pub records: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Where each offer went on.
    pub resumed_at: Vec<u64>,
    pub finished: bool,
}

impl Answers {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge<R: Runtime>(&self, first: u64) -> AppendEntriesResponse<TypeConfig<R>> {
        match self.lock().conflict_from {
            Some(from) if first >= from => AppendEntriesResponse::Conflict,
            _ => AppendEntriesResponse::Success,
        }
    }

    async fn wait_for_others(&self) {
        let (bell, rung) = oneshot::channel();
        {
            let mut state = self.lock();
            if state.together == 0 {
                return;
            }
            state.waiting.push(bell);
            if state.waiting.len() >= state.together {
                state.together = 0;
                while let Some(bell) = state.waiting.pop() {
                    bell.send(()).expect("waits");
                }
            }
        }
        rung.await.expect("is rung");
    }
}

/// A proposal that is answered with `number` as its index.
pub fn proposal(number: u64) -> Vec<Command> {
    vec![Command::Unretain { topic: number.to_string() }]
}

/// A proposal that is never answered.
pub fn endless() -> Vec<Command> {
    vec![Command::Unretain { topic: "never".into() }]
}

impl<R: Runtime> Service<R> for Answers {
    /// Taken one after the other, now and then after a rest, and answered together.
    fn append_all(&self, requests: Appends<R>) -> AppendAnswers<R> {
        let (taking, answering) = (self.clone(), self.clone());
        let taken = requests.then(move |request| {
            let taking = taking.clone();
            async move {
                let first = request.entries.first().map_or(0, |entry| entry.log_id.index);
                if first % 3 == 0 {
                    R::yield_now().await;
                }
                taking.lock().appended.push(first);
                first
            }
        });
        let answers = taken.map(move |first| {
            let answering = answering.clone();
            async move {
                answering.wait_for_others().await;
                Ok(answering.judge::<R>(first))
            }
        });
        // As raft does, it ends behind the first that cannot be appended.
        let until_conflict = |ended: &mut bool, answer: Result<_, String>| {
            let go_on = !*ended;
            *ended = matches!(answer, Ok(AppendEntriesResponse::Conflict));
            std::future::ready(go_on.then_some(answer))
        };
        Box::pin(answers.buffered(MAX_APPENDS).scan(false, until_conflict))
    }

    async fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig<R>>,
    ) -> Result<AppendEntriesResponse<TypeConfig<R>>, String> {
        let first = request.entries.first().map_or(0, |entry| entry.log_id.index);
        self.lock().alone.push(first);
        Ok(self.judge::<R>(first))
    }

    async fn vote(
        &self,
        request: VoteRequest<TypeConfig<R>>,
    ) -> Result<VoteResponse<TypeConfig<R>>, String> {
        Ok(VoteResponse::new(request.vote, request.last_log_id, true))
    }

    async fn pre_vote(
        &self,
        _: VoteRequest<TypeConfig<R>>,
    ) -> Result<VoteResponse<TypeConfig<R>>, String> {
        Err("not in the mood".into())
    }

    async fn transfer_leader(
        &self,
        _: TransferLeaderRequest<TypeConfig<R>>,
    ) -> Result<TransferLeaderResponse<TypeConfig<R>>, String> {
        Ok(Ok(()))
    }

    async fn propose(&self, commands: Vec<Command>) -> Result<Proposed, Redirect> {
        let Some(Command::Unretain { topic }) = commands.first() else {
            return Err(Redirect::Failed("not a case's proposal".into()));
        };
        if topic == "never" {
            std::future::pending::<()>().await;
        }
        let index = topic.parse().map_err(|_| Redirect::NoLeader)?;
        self.wait_for_others().await;
        Ok(Proposed { index, replies: Vec::new() })
    }

    async fn read_index(&self) -> Result<u64, Redirect> {
        Err(Redirect::Leader { node: 3, address: "10.0.0.3:7".into() })
    }

    async fn join(&self, node: NodeId, address: String) -> Result<(), Redirect> {
        Err(Redirect::Failed(format!("{node} at {address}")))
    }

    async fn leave(&self, _: NodeId) -> Result<(), Redirect> {
        Ok(())
    }

    async fn status(&self) -> Status {
        Status { role: "leader".into(), ..Status::default() }
    }

    async fn begin_snapshot(&self, _: NodeId, _: Offer<R>) -> Result<Resume, String> {
        let mut state = self.lock();
        let resume = Resume {
            sequence: state.importer.next_sequence(),
            after_key: state.importer.last_key().map(<[u8]>::to_vec),
            complete: state.importer.is_finished(),
        };
        state.resumed_at.push(resume.sequence);
        Ok(resume)
    }

    async fn snapshot_chunk(&self, _: NodeId, chunk: Vec<u8>) -> Result<(), String> {
        let mut state = self.lock();
        let records = state.importer.accept(&chunk).map_err(|error| error.to_string())?;
        for (key, value) in records {
            assert!(state.records.insert(key, value).is_none(), "a record came twice");
        }
        Ok(())
    }

    async fn finish_snapshot(
        &self,
        _: NodeId,
        offer: Offer<R>,
    ) -> Result<SnapshotResponse<TypeConfig<R>>, String> {
        let mut state = self.lock();
        if !state.importer.is_finished() {
            return Err("pieces are missing".into());
        }
        state.finished = true;
        Ok(SnapshotResponse::new(offer.vote))
    }
}
