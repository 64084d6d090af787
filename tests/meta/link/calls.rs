//! Requests and their answers.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures_util::future::join_all;
use meta::link::client::{CallError, Client, MAX_OTHERS_IN_FLIGHT};
use meta::link::frame::{self, Kind};
use meta::link::hello;
use meta::link::message::{Proposed, Redirect, Request};
use meta::raft::entry::Vote;
use meta::raft::types::TypeConfig;
use meta::status::Status;
use openraft::raft::VoteRequest;
use openraft::raft::VoteResponse;
use rt_abstract::{RunOptions, Runtime};

use super::peer::{ANSWERING, ASKING, Node, dial, hello, read_body, read_rest, settings};
use super::service::{Answers, endless, proposal};
use crate::column::{in_each_column, run};

in_each_column!(
    answers_out_of_order_find_who_asked,
    every_request_has_its_answer,
    a_call_that_takes_too_long_ends_alone,
    more_calls_than_may_be_on_their_way,
    bytes_may_come_one_by_one,
    frames_that_are_too_large_are_refused,
);

const LONG: Duration = Duration::from_secs(30);

fn answers_out_of_order_find_who_asked<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let service = Answers::default();
        let node = Node::<R>::start(settings(ANSWERING), service.clone());
        let client = Client::<R>::new(settings(ASKING), ANSWERING, node.address.to_string());
        for round in 0..20 {
            service.lock().together = 64;
            let calls = (0..64).map(|number| {
                let client = client.clone();
                async move {
                    let request = Request::Propose(proposal(round * 64 + number));
                    let answer = client.call::<Result<Proposed, Redirect>>(&request, LONG).await;
                    (round * 64 + number, answer)
                }
            });
            for (number, answer) in join_all(calls).await {
                let proposed = answer.expect("an answer").expect("proposed");
                assert_eq!(proposed.index, number);
            }
        }
        client.close().await;
        node.kill().await;
    });
}

fn every_request_has_its_answer<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(settings(ANSWERING), Answers::default());
        let client = Client::<R>::new(settings(ASKING), ANSWERING, node.address.to_string());
        let status: Status = client.call(&Request::Status, LONG).await.expect("answers");
        assert_eq!(status.role, "leader");
        let index: Result<u64, Redirect> =
            client.call(&Request::ReadIndex, LONG).await.expect("answers");
        let leader = Redirect::Leader { node: 3, address: "10.0.0.3:7".into() };
        assert_eq!(index, Err(leader));
        let join = Request::Join { node: 9, address: "h:1".into() };
        let joined: Result<(), Redirect> = client.call(&join, LONG).await.expect("answers");
        assert_eq!(joined, Err(Redirect::Failed("9 at h:1".into())));
        let left: Result<(), Redirect> =
            client.call(&Request::Leave { node: 9 }, LONG).await.expect("answers");
        assert_eq!(left, Ok(()));
        let vote = VoteRequest::<TypeConfig<R>>::new(Vote::new(7, ASKING), None);
        let voted: VoteResponse<TypeConfig<R>> =
            client.call(&Request::Vote(vote.clone()), LONG).await.expect("answers");
        assert!(voted.vote_granted && voted.vote == Vote::new(7, ASKING));
        // An error of the service reaches who asked, and only him.
        let request = Request::PreVote(vote);
        let refused = client.call::<VoteResponse<TypeConfig<R>>>(&request, LONG).await;
        let refused = refused.expect_err("refused");
        assert_eq!(refused, CallError::Refused("not in the mood".into()));
        // An answer of another type than expected is no panic.
        let odd = client.call::<Vec<u64>>(&Request::Status, LONG).await.expect_err("odd");
        assert!(matches!(odd, CallError::Protocol(_)), "{odd:?}");
        client.close().await;
        let closed = client.call::<Status>(&Request::Status, LONG).await.expect_err("closed");
        assert!(matches!(closed, CallError::Unreachable { .. }), "{closed:?}");
        node.kill().await;
    });
}

fn a_call_that_takes_too_long_ends_alone<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(settings(ANSWERING), Answers::default());
        let client = Client::<R>::new(settings(ASKING), ANSWERING, node.address.to_string());
        let limit = Duration::from_millis(50);
        for _ in 0..3 {
            let begun = Instant::now();
            let request = Request::Propose(endless());
            let error = client.call::<Result<Proposed, Redirect>>(&request, limit).await;
            assert_eq!(error, Err(CallError::Timeout(limit)));
            assert!(begun.elapsed() >= limit);
            let status = client.call::<Status>(&Request::Status, LONG).await;
            assert_eq!(status.expect("the connection lives").role, "leader");
        }
        client.close().await;
        node.kill().await;
    });
}

/// Raft's own requests do not wait behind proposals that never end.
fn more_calls_than_may_be_on_their_way<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(settings(ANSWERING), Answers::default());
        let client = Client::<R>::new(settings(ASKING), ANSWERING, node.address.to_string());
        let stuck: Vec<_> = (0..MAX_OTHERS_IN_FLIGHT + 20)
            .map(|_| {
                R::spawn({
                    let client = client.clone();
                    async move {
                        let request = Request::Propose(endless());
                        client.call::<Result<Proposed, Redirect>>(&request, LONG).await
                    }
                })
            })
            .collect();
        for _ in 0..10 {
            let vote = VoteRequest::<TypeConfig<R>>::new(Vote::new(7, ASKING), None);
            let request = Request::Vote(vote);
            let voted = client.call::<VoteResponse<TypeConfig<R>>>(&request, LONG).await;
            assert!(voted.expect("answers").vote_granted);
        }
        client.close().await;
        for task in stuck {
            task.await.expect("ends").expect_err("the connection ended");
        }
        node.kill().await;
    });
}

fn bytes_may_come_one_by_one<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let node = Node::<R>::start(settings(ANSWERING), Answers::default());
        let address = node.address;
        let played = R::spawn_blocking(move || {
            let mut stream = dial(address);
            let mut bytes = hello::encode(&hello()).expect("short");
            let body = |number| {
                let request: Request<R> = Request::Propose(proposal(number));
                postcard::to_allocvec(&request).expect("encodes")
            };
            for number in 0..3 {
                let frame = frame::encode(Kind::Request, number, &body(number * 10), 1000);
                bytes.extend(frame.expect("small"));
            }
            for byte in bytes {
                stream.write_all(&[byte]).expect("writes");
            }
            read_body(&mut stream);
            let (mut answers, mut found) = (BytesMut::new(), Vec::new());
            while found.len() < 3 {
                let mut some = [0; 100];
                let count = stream.read(&mut some).expect("answers");
                assert!(count > 0, "the connection ended");
                answers.extend_from_slice(&some[..count]);
                while let Some(frame) = frame::decode(&mut answers, 1000).expect("frames") {
                    let answer: Result<Proposed, Redirect> =
                        postcard::from_bytes(&frame.body).expect("readable");
                    found.push((frame.request, answer.expect("proposed").index));
                }
            }
            found.sort_unstable();
            assert_eq!(found, [(0, 0), (1, 10), (2, 20)]);
        });
        played.await.expect("plays");
        node.kill().await;
    });
}

fn frames_that_are_too_large_are_refused<R: Runtime>(options: &RunOptions) {
    run::<R, _, _>(options, || async {
        let small = |node| meta::link::Settings { max_frame_bytes: 1000, ..settings(node) };
        let node = Node::<R>::start(small(ANSWERING), Answers::default());
        let client = Client::<R>::new(small(ASKING), ANSWERING, node.address.to_string());
        let request = Request::Propose(vec![proposal(1).remove(0); 1000]);
        let error = client.call::<Result<Proposed, Redirect>>(&request, LONG).await;
        assert!(matches!(error, Err(CallError::Protocol(_))), "{error:?}");
        let status = client.call::<Status>(&Request::Status, LONG).await;
        assert_eq!(status.expect("the connection lives").role, "leader");
        client.close().await;
        // A sender without such manners loses the connection.
        let client = Client::<R>::new(settings(ASKING), ANSWERING, node.address.to_string());
        let error = client.call::<Result<Proposed, Redirect>>(&request, LONG).await;
        assert!(matches!(error, Err(CallError::Lost { .. })), "{error:?}");
        client.close().await;
        let address = node.address;
        let played = R::spawn_blocking(move || {
            let mut stream = dial(address);
            stream.write_all(&hello::encode(&hello()).expect("short")).expect("writes");
            read_body(&mut stream);
            stream.write_all(&u32::MAX.to_le_bytes()).expect("writes");
            read_rest(&mut stream);
        });
        played.await.expect("plays");
        node.kill().await;
    });
}
