//! Carrying out the requests of one connection: side by side, but for those that append entries, which
//! raft takes in the order in which they came.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use rt_abstract::Runtime;
use serde::Serialize;
use tokio::sync::mpsc;

use super::frame::{self, Frame, Kind};
use super::message::Request;
use super::server::MAX_IN_FLIGHT;
use super::service::{AppendAnswers, Service};
use crate::raft::types::TypeConfig;

/// Requests that are begun or answered before the other tasks have a turn: a peer that keeps the queue
/// full would otherwise never let this loop wait.
const TURNS: usize = 24;

/// Carries requests out, at most [`MAX_IN_FLIGHT`] at a time.
pub(super) async fn carry_out<R, S>(
    service: S,
    mut requests: mpsc::Receiver<Frame>,
    answers: mpsc::Sender<Vec<u8>>,
    max_frame_bytes: usize,
) where
    R: Runtime,
    S: Service<R>,
{
    enum Turn {
        Begin(Frame),
        Answer(Vec<u8>),
        End,
    }
    let mut running = FuturesUnordered::new();
    let mut appending = Appending::<R>::new(max_frame_bytes);
    let mut turns = 0;
    loop {
        turns += 1;
        if turns % TURNS == 0 {
            R::yield_now().await;
        }
        let turn = poll_fn(|cx| {
            if let Poll::Ready(answer) = appending.poll_answer(cx) {
                return Poll::Ready(Turn::Answer(answer));
            }
            if let Poll::Ready(Some(answer)) = running.poll_next_unpin(cx) {
                return Poll::Ready(Turn::Answer(answer));
            }
            if running.len() + appending.len() >= MAX_IN_FLIGHT {
                return Poll::Pending;
            }
            requests.poll_recv(cx).map(|request| request.map_or(Turn::End, Turn::Begin))
        });
        let frame = match turn.await {
            Turn::Begin(frame) => {
                let number = frame.request;
                match postcard::from_bytes::<Request<R>>(&frame.body) {
                    Ok(Request::Append(request)) => {
                        match appending.begin(&service, number, request) {
                            Ok(()) => continue,
                            Err(text) => refusal(number, text),
                        }
                    }
                    Ok(request) => {
                        running.push(answer::<R, S>(&service, number, request, max_frame_bytes));
                        continue;
                    }
                    Err(error) => refusal(number, &format!("an unreadable request: {error}")),
                }
            }
            Turn::Answer(frame) => frame,
            // The connection has ended: nobody waits for what is still running.
            Turn::End => return,
        };
        if answers.send(frame).await.is_err() {
            return;
        }
    }
}

/// The frame that says why a request is not carried out.
pub(super) fn refusal(number: u64, text: &str) -> Vec<u8> {
    frame::encode(Kind::Refused, number, text.as_bytes(), usize::MAX).unwrap_or_default()
}

/// The requests to append: one stream into raft, made anew when an answer ended it. Holds no more
/// than the connection may have in flight.
struct Appending<R: Runtime> {
    stream: Option<AppendStream<R>>,
    /// Answers to those whose stream ended before them.
    refused: VecDeque<u64>,
    max_frame_bytes: usize,
}

struct AppendStream<R: Runtime> {
    requests: mpsc::Sender<AppendEntriesRequest<TypeConfig<R>>>,
    answers: AppendAnswers<R>,
    /// Numbers of those that have no answer yet, in order.
    waiting: VecDeque<u64>,
}

impl<R: Runtime> Appending<R> {
    fn new(max_frame_bytes: usize) -> Self {
        Self { stream: None, refused: VecDeque::new(), max_frame_bytes }
    }

    fn len(&self) -> usize {
        self.stream.as_ref().map_or(0, |stream| stream.waiting.len()) + self.refused.len()
    }

    /// One request more.
    fn begin<S: Service<R>>(
        &mut self,
        service: &S,
        number: u64,
        request: AppendEntriesRequest<TypeConfig<R>>,
    ) -> Result<(), &'static str> {
        let stream = self.stream.get_or_insert_with(|| {
            let (requests, mut taken) = mpsc::channel(MAX_IN_FLIGHT);
            let taken = stream::poll_fn(move |cx| taken.poll_recv(cx));
            let answers = service.append_all(Box::pin(taken));
            AppendStream { requests, answers, waiting: VecDeque::new() }
        });
        // There is room, as long as no more are in flight than may be.
        stream.requests.try_send(request).map_err(|_| "appending has ended")?;
        stream.waiting.push_back(number);
        Ok(())
    }

    /// The next answer, as a frame.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        if let Some(stream) = &mut self.stream {
            match stream.answers.poll_next_unpin(cx) {
                Poll::Ready(Some(answer)) => {
                    if let Some(number) = stream.waiting.pop_front() {
                        return Poll::Ready(self.frame(number, answer));
                    }
                }
                Poll::Ready(None) => {
                    let waiting = self.stream.take().map(|stream| stream.waiting);
                    self.refused.extend(waiting.into_iter().flatten());
                }
                Poll::Pending => {}
            }
        }
        match self.refused.pop_front() {
            Some(number) => Poll::Ready(refusal(number, "one before it was not appended")),
            None => Poll::Pending,
        }
    }

    fn frame(
        &self,
        number: u64,
        answer: Result<AppendEntriesResponse<TypeConfig<R>>, String>,
    ) -> Vec<u8> {
        response(number, answer.and_then(|answer| encode(&answer)), self.max_frame_bytes)
    }
}

/// The frame that answers a request.
async fn answer<R, S>(
    service: &S,
    number: u64,
    request: Request<R>,
    max_frame_bytes: usize,
) -> Vec<u8>
where
    R: Runtime,
    S: Service<R>,
{
    response(number, dispatch::<R, S>(service, request).await, max_frame_bytes)
}

fn response(number: u64, body: Result<Bytes, String>, max_frame_bytes: usize) -> Vec<u8> {
    let encoded = body.and_then(|body| {
        frame::encode(Kind::Response, number, &body, max_frame_bytes)
            .map_err(|error| error.to_string())
    });
    encoded.unwrap_or_else(|text| refusal(number, &text))
}

async fn dispatch<R, S>(service: &S, request: Request<R>) -> Result<Bytes, String>
where
    R: Runtime,
    S: Service<R>,
{
    match request {
        Request::Append(request) | Request::AppendAlone(request) => {
            encode(&service.append(request).await?)
        }
        Request::Vote(request) => encode(&service.vote(request).await?),
        Request::PreVote(request) => encode(&service.pre_vote(request).await?),
        Request::TransferLeader(request) => encode(&service.transfer_leader(request).await?),
        Request::Propose(commands) => encode(&service.propose(commands).await),
        Request::ReadIndex => encode(&service.read_index().await),
        Request::Join { node, address } => encode(&service.join(node, address).await),
        Request::Leave { node } => encode(&service.leave(node).await),
        Request::Status => encode(&service.status().await),
    }
}

fn encode<T: Serialize>(answer: &T) -> Result<Bytes, String> {
    postcard::to_allocvec(answer).map(Bytes::from).map_err(|error| error.to_string())
}
