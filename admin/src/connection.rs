//! One connection: hyper in the middle, deadlines around it, an orderly end after it.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use broker_core::Node;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use rt_abstract::{Closer, Instant, Runtime, Shared, Stream};

use crate::ServerInfo;
use crate::adapter::{Adapter, Boxed, boxed};
use crate::backup::Backups;
use crate::metadata;
use crate::respond::respond;
use crate::server::Slot;

/// From the first byte of a request to the first byte of its response.
const REQUEST_TIME: Duration = Duration::from_secs(20);
/// Between requests, and between two writes of a response.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// After the response that ends the connection, or after the server was told to end.
const CLOSE_TIME: Duration = Duration::from_secs(2);
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 8 << 10;
// hyper's smallest; the header limit below it is what counts.
const MAX_BUFFER_BYTES: usize = 16 << 10;

/// Until when the connection may go on as it is.
#[derive(Debug)]
pub(crate) struct Activity {
    deadline: Instant,
    in_request: bool,
    /// Whether the writing direction was shut.
    pub(crate) shut: bool,
}

impl Activity {
    fn new(now: Instant) -> Self {
        Self { deadline: now + REQUEST_TIME, in_request: true, shut: false }
    }

    /// Bytes arrived. Those of a request that has begun already do not prolong it.
    pub(crate) fn read(&mut self, now: Instant) {
        if !self.in_request {
            self.in_request = true;
            self.deadline = now + REQUEST_TIME;
        }
    }

    /// Bytes were written.
    pub(crate) fn wrote(&mut self, now: Instant) {
        self.in_request = false;
        self.deadline = now + IDLE_TIME;
    }

    fn close(&mut self, now: Instant) {
        self.deadline = self.deadline.min(now + CLOSE_TIME);
    }
}

/// Serves `stream` until either side ends it or its time is up.
pub(crate) async fn run<R: Runtime>(
    stream: R::Stream,
    slot: Slot,
    node: Arc<Node>,
    info: Arc<ServerInfo>,
    backups: Backups<R>,
) {
    let closer = stream.closer();
    let activity = Shared::new(Activity::new(R::now()));
    let leftovers = Shared::new(None);
    let adapter = Adapter::<R>::new(stream, activity.clone(), leftovers.clone());

    let service = service_fn(move |request: Request<Incoming>| {
        let (node, info, backups) = (node.clone(), info.clone(), backups.clone());
        async move {
            let response = match backups.respond(request, &node).await {
                Ok(response) => Ok(response),
                Err(request) => metadata::respond(request, &node).await,
            };
            let response = response.unwrap_or_else(|request| {
                respond(request.method(), request.uri().path(), &node, &info)
            });
            Ok::<Response<_>, Infallible>(response)
        }
    });
    {
        let connection = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEADER_BYTES)
            .max_buf_size(MAX_BUFFER_BYTES)
            .serve_connection(adapter, service);
        let connection = pin!(connection);
        let result = until::<R, _, _>(connection, closer.clone(), &activity, &slot, |connection| {
            connection.graceful_shutdown();
        })
        .await;
        if let Err(error) = result {
            tracing::debug!("admin connection: {error}");
        }
    }
    if let Some(leftovers) = leftovers.with(Option::take) {
        activity.with(|activity| activity.close(R::now()));
        let drain = pin!(leftovers.drain());
        until::<R, _, _>(drain, closer, &activity, &slot, |_| {}).await;
    }
}

/// Drives `future`, which waits for the stream only, to its end. When the deadline passes the
/// stream is killed, which ends the future's reads and writes; it is never dropped half-way.
async fn until<R: Runtime, F: Future, C: Closer>(
    mut future: Pin<&mut F>,
    closer: C,
    activity: &Shared<Activity>,
    slot: &Slot,
    mut close: impl FnMut(Pin<&mut F>),
) -> F::Output {
    let mut closed = false;
    let mut killed = false;
    let mut timer: Option<(Instant, Boxed<()>)> = None;
    // By value: a reference to the closer would have to be Send, which asks it to be Sync.
    poll_fn(move |cx| {
        loop {
            if !closed && slot.is_closing(cx.waker()) {
                closed = true;
                close(future.as_mut());
                activity.with(|activity| activity.close(R::now()));
            }
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            if killed {
                return Poll::Pending;
            }
            let now = R::now();
            let deadline = activity.with(|activity| activity.deadline);
            if deadline <= now {
                killed = true;
                closer.kill();
                return Poll::Pending;
            }
            // A timer that comes too early is harmless: it is looked at again.
            let (_, sleep) = match &mut timer {
                Some(armed) if armed.0 <= deadline => armed,
                _ => timer.insert((deadline, boxed(R::sleep(deadline - now)))),
            };
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            timer = None;
        }
    })
    .await
}
