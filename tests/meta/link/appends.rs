//! Raft's stream of entries, and the other calls of openraft.

use std::time::Duration;

use futures_util::future::poll_immediate;
use futures_util::{StreamExt, stream};
use meta::link::network::{Links, MAX_APPENDS};
use meta::raft::entry::{LeaderId, LogId, Vote};
use meta::raft::types::{Peer, TypeConfig};
use openraft::errors::RPCError;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, StreamAppendError, VoteRequest};
use openraft::{Entry, EntryPayload};
use rt_abstract::{RunOptions, Runtime};

use super::peer::{ANSWERING, ASKING, Node, settings};
use super::service::Answers;
use crate::column::{in_each_column, run};

in_each_column!(
    streams_keep_the_order,
    a_conflict_ends_the_stream,
    a_lost_connection_ends_the_stream,
    a_heartbeat_waits_for_nobody,
    addresses_may_change,
);

fn at(index: u64) -> LogId {
    LogId { leader_id: LeaderId { term: 3, node_id: ASKING }, index }
}

/// A request with the entry `index` alone.
fn request<R: Runtime>(index: u64) -> AppendEntriesRequest<TypeConfig<R>> {
    AppendEntriesRequest {
        vote: Vote::new_committed(3, ASKING),
        prev_log_id: Some(at(index - 1)),
        entries: vec![Entry { log_id: at(index), payload: EntryPayload::Blank }],
        leader_commit: None,
    }
}

fn option() -> RPCOption {
    RPCOption::new(Duration::from_secs(30))
}

fn streams_keep_the_order<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let service = Answers::default();
        let node = Node::<R>::start(settings(ANSWERING), service.clone());
        let mut links = Links::<R>::new(settings(ASKING));
        let peer = Peer { address: node.address.to_string() };
        let mut network = links.new_client(ANSWERING, &peer).await;
        // The first ones are answered last: all of them are on their way at the same time.
        service.lock().together = MAX_APPENDS;
        let requests = stream::iter(1..=500).map(request::<R>);
        let mut answers =
            network.stream_append(Box::pin(requests), option()).await.expect("a stream");
        for index in 1..=500 {
            let answer = answers.next().await.expect("an answer");
            let matching = answer.expect("reached").expect("appended");
            assert_eq!(matching, Some(at(index)));
        }
        assert!(answers.next().await.is_none());
        drop(answers);
        assert!(service.lock().appended.iter().copied().eq(1..=500), "begun in order");
        links.close().await;
        node.kill().await;
    });
}

fn a_conflict_ends_the_stream<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let service = Answers::default();
        service.lock().conflict_from = Some(40);
        let node = Node::<R>::start(settings(ANSWERING), service.clone());
        let mut links = Links::<R>::new(settings(ASKING));
        let peer = Peer { address: node.address.to_string() };
        let mut network = links.new_client(ANSWERING, &peer).await;
        let requests = stream::iter(1..=500).map(request::<R>);
        let mut answers =
            network.stream_append(Box::pin(requests), option()).await.expect("a stream");
        for index in 1..40 {
            let answer = answers.next().await.expect("an answer");
            assert_eq!(answer.expect("reached").expect("appended"), Some(at(index)));
        }
        let answer = answers.next().await.expect("an answer").expect("reached");
        assert_eq!(answer.expect_err("conflict"), StreamAppendError::Conflict(at(39)));
        assert!(answers.next().await.is_none());
        drop(answers);
        // The next stream is taken, whatever is left of that one.
        let requests = stream::iter(1..=30).map(request::<R>);
        let mut answers =
            network.stream_append(Box::pin(requests), option()).await.expect("a stream");
        for index in 1..=30 {
            let answer = answers.next().await.expect("an answer");
            assert_eq!(answer.expect("reached").expect("appended"), Some(at(index)));
        }
        drop(answers);
        // A request before the first entry cannot conflict: whoever says so is not believed.
        let first = AppendEntriesRequest { prev_log_id: None, ..request::<R>(50) };
        let first = Box::pin(stream::iter([first]));
        let mut answers = network.stream_append(first, option()).await.expect("a stream");
        let error = answers.next().await.expect("an answer").expect_err("not believed");
        assert!(matches!(error, RPCError::Network(_)), "{error}");
        drop(answers);
        let vote = VoteRequest::<TypeConfig<R>>::new(Vote::new(4, ASKING), Some(at(7)));
        let voted = network.vote(vote.clone(), option()).await.expect("reached");
        assert!(voted.vote_granted && voted.last_log_id == Some(at(7)));
        let error = network.pre_vote(vote, option()).await.expect_err("the service says no");
        assert!(matches!(error, RPCError::Unreachable(_)), "{error}");
        links.close().await;
        node.kill().await;
    });
}

fn a_lost_connection_ends_the_stream<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let service = Answers::default();
        let node = Node::<R>::start(settings(ANSWERING), service.clone());
        let mut links = Links::<R>::new(settings(ASKING));
        let peer = Peer { address: node.address.to_string() };
        let mut network = links.new_client(ANSWERING, &peer).await;
        service.lock().together = usize::MAX;
        let requests = stream::iter(1..=10).map(request::<R>).chain(stream::pending());
        let mut answers =
            network.stream_append(Box::pin(requests), option()).await.expect("a stream");
        let killing = R::spawn(async move {
            while service.lock().appended.len() < 10 {
                R::sleep(Duration::from_millis(1)).await;
            }
            node.kill().await;
        });
        let error = answers.next().await.expect("an answer").expect_err("lost");
        assert!(matches!(error, RPCError::Network(_)), "{error}");
        assert!(answers.next().await.is_none());
        drop(answers);
        killing.await.expect("killed");
        let vote = VoteRequest::<TypeConfig<R>>::new(Vote::new(4, ASKING), None);
        let error = network.vote(vote, option()).await.expect_err("gone");
        assert!(matches!(error, RPCError::Unreachable(_) | RPCError::Network(_)), "{error}");
        links.close().await;
    });
}

/// A disk that takes its time holds back those that append, and no sign of life.
fn a_heartbeat_waits_for_nobody<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let service = Answers::default();
        let node = Node::<R>::start(settings(ANSWERING), service.clone());
        let mut links = Links::<R>::new(settings(ASKING));
        let peer = Peer { address: node.address.to_string() };
        let mut network = links.new_client(ANSWERING, &peer).await;
        let mut beating = links.new_client(ANSWERING, &peer).await;
        service.lock().together = usize::MAX;
        let requests = stream::iter(1..=10).map(request::<R>).chain(stream::pending());
        let mut appends =
            network.stream_append(Box::pin(requests), option()).await.expect("a stream");
        assert!(poll_immediate(appends.next()).await.is_none());
        let alone = Box::pin(stream::iter([AppendEntriesRequest {
            entries: Vec::new(),
            ..request::<R>(1)
        }]));
        let mut beats = beating.stream_append(alone, option()).await.expect("a stream");
        let answer = beats.next().await.expect("an answer").expect("reached");
        assert_eq!(answer.expect("not in conflict"), Some(at(0)));
        assert!(beats.next().await.is_none());
        assert_eq!(service.lock().alone, [0]);
        assert!(poll_immediate(appends.next()).await.is_none(), "nothing is answered yet");
        drop((beats, appends));
        links.close().await;
        node.kill().await;
    });
}

fn addresses_may_change<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let old = Node::<R>::start(settings(ANSWERING), Answers::default());
        let new = Node::<R>::start(settings(ANSWERING), Answers::default());
        let links = Links::<R>::new(settings(ASKING));
        let client = links.client(ANSWERING, &old.address.to_string());
        let same = links.clone().client(ANSWERING, &old.address.to_string());
        assert_eq!(same.address(), client.address());
        let moved = links.client(ANSWERING, &new.address.to_string());
        // The old one ends by itself.
        client.close().await;
        while !moved.is_connected() {
            R::sleep(Duration::from_millis(1)).await;
        }
        links.forget(ANSWERING);
        moved.close().await;
        assert!(!moved.is_connected());
        links.close().await;
        old.kill().await;
        new.kill().await;
    });
}
