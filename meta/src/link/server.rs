//! Answering peers: accepts connections and asks a [`Service`] what to say.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rt_abstract::{AsyncWrite, Closer, Listener, Notify, Runtime, Shared, Shutdown, Stream};
use tokio::sync::mpsc;

use super::Settings;
use super::connection::{CloserOf, LastHeard, LinkError, Parts, WRITE_BYTES, within, write_hello};
use super::frame::{self, Kind};
use super::hello::{Answer, Hello, HelloError, Purpose};
use super::service::Service;
use super::snapshot;
use super::work::carry_out;

/// Requests of one connection that are being carried out at a time; then it is not read on.
pub const MAX_IN_FLIGHT: usize = super::client::MAX_IN_FLIGHT;
/// Connections at a time; further ones are closed.
pub const MAX_CONNECTIONS: usize = 128;
/// Answers that wait to be written.
const MAX_ANSWERS: usize = MAX_IN_FLIGHT;
/// How long accepting rests after an error such as "too many open files".
const REST_AFTER_ERROR: Duration = Duration::from_millis(50);

/// Accepts and answers on the calling executor until `stop` is triggered, then ends all connections
/// and returns when their tasks have ended.
pub async fn serve<R, S>(settings: Settings, mut listener: R::Listener, service: S, stop: Shutdown)
where
    R: Runtime,
    S: Service<R>,
{
    let settings = Arc::new(settings);
    let open = Open::<R>::new();
    let ending = R::spawn({
        let (closer, stop) = (listener.closer(), stop.clone());
        async move {
            stop.wait().await;
            closer.kill();
        }
    });
    while !stop.is_triggered() {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(place) = open.enter(stream.closer()) else {
                    tracing::warn!(%peer, "too many connections between nodes");
                    continue;
                };
                let (settings, service) = (settings.clone(), service.clone());
                drop(R::spawn(async move {
                    let _place = place;
                    let error = connection::<R, S>(&settings, stream, service).await;
                    tracing::debug!(%peer, %error, "a connection of a peer ended");
                }));
            }
            Err(_) if stop.is_triggered() => break,
            Err(error) => {
                tracing::warn!(%error, "accepting from peers failed");
                R::sleep(REST_AFTER_ERROR).await;
            }
        }
    }
    let _ = ending.await;
    open.end().await;
}

/// The connections that are open.
struct Open<R: Runtime> {
    list: Shared<BTreeMap<u64, CloserOf<R>>>,
    next: Shared<u64>,
    left: Arc<Notify>,
}

/// One of them.
struct Place<R: Runtime> {
    list: Shared<BTreeMap<u64, CloserOf<R>>>,
    number: u64,
    left: Arc<Notify>,
}

impl<R: Runtime> Open<R> {
    fn new() -> Self {
        Self { list: Shared::new(BTreeMap::new()), next: Shared::new(0), left: Arc::default() }
    }

    /// `None`: there are too many.
    fn enter(&self, closer: CloserOf<R>) -> Option<Place<R>> {
        let number = self.next.with(|next| {
            *next += 1;
            *next
        });
        let entered = self.list.with(|list| {
            let room = list.len() < MAX_CONNECTIONS;
            if room {
                list.insert(number, closer);
            }
            room
        });
        entered.then(|| Place { list: self.list.clone(), number, left: self.left.clone() })
    }

    async fn end(&self) {
        loop {
            let none = self.list.with(|list| {
                list.values().for_each(Closer::kill);
                list.is_empty()
            });
            if none {
                return;
            }
            self.left.notified().await;
        }
    }
}

impl<R: Runtime> Drop for Place<R> {
    fn drop(&mut self) {
        let closer = self.list.with(|list| list.remove(&self.number));
        drop(closer);
        self.left.notify();
    }
}

/// Serves one connection; says why it ended.
async fn connection<R, S>(settings: &Arc<Settings>, stream: R::Stream, service: S) -> LinkError
where
    R: Runtime,
    S: Service<R>,
{
    let mut parts = Parts::<R>::new(stream, settings.max_frame_bytes);
    let closer = parts.closer.clone();
    let greeting = greet::<R>(settings, &mut parts);
    let hello = match within::<R, _>(settings.connect_timeout, &closer, greeting).await {
        Ok(hello) => hello,
        Err(error) => {
            if let LinkError::Hello(error) = &error {
                tracing::warn!(%error, "a connection between nodes is refused");
            }
            return error;
        }
    };
    let error = match hello.purpose {
        Purpose::Requests => requests::<R, S>(settings, parts, service).await,
        Purpose::Snapshot => snapshot::receive(settings, parts, &service, hello.from).await,
    };
    closer.kill();
    error
}

/// Hears who it is and answers.
async fn greet<R: Runtime>(settings: &Settings, parts: &mut Parts<R>) -> Result<Hello, LinkError> {
    let heard = parts.reader.hello::<Hello>().await;
    let checked = match heard {
        Ok(hello) => hello.check(&settings.cluster, settings.node).map(|()| hello),
        // Whoever it is would not understand.
        Err(LinkError::Hello(HelloError::Foreign)) => return Err(HelloError::Foreign.into()),
        Err(LinkError::Hello(error)) => Err(error),
        Err(error) => return Err(error),
    };
    match checked {
        Ok(hello) => {
            write_hello(&mut parts.writer, &Answer::Welcome { node: settings.node }).await?;
            Ok(hello)
        }
        Err(error) => {
            let reason = error.to_string();
            write_hello(&mut parts.writer, &Answer::Refused { reason }).await?;
            parts.writer.shutdown().await?;
            Err(error.into())
        }
    }
}

/// Reads requests; two more tasks carry them out and write the answers.
async fn requests<R, S>(settings: &Arc<Settings>, parts: Parts<R>, service: S) -> LinkError
where
    R: Runtime,
    S: Service<R>,
{
    let Parts { mut reader, writer, closer } = parts;
    let (answers, written) = mpsc::channel(MAX_ANSWERS);
    let (work, received) = mpsc::channel(1);
    let heard = Arc::new(LastHeard::now::<R>());
    let working =
        R::spawn(carry_out::<R, S>(service, received, answers.clone(), settings.max_frame_bytes));
    let writing = R::spawn(write_answers::<R>(
        settings.clone(),
        writer,
        closer.clone(),
        written,
        heard.clone(),
    ));
    let error = loop {
        let frame = match reader.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => break LinkError::Ended,
            Err(error) => break error,
        };
        heard.touch::<R>();
        let taken = match frame.kind {
            Kind::Request => work.send(frame).await.is_ok(),
            Kind::Ping => match frame::encode(Kind::Pong, 0, &[], usize::MAX) {
                Ok(pong) => answers.send(pong).await.is_ok(),
                Err(error) => break error.into(),
            },
            kind => break LinkError::Protocol(format!("a frame of kind {kind:?} as a request")),
        };
        if !taken {
            break LinkError::Stopped; // a task of this connection ended before
        }
    };
    // Answers can reach nobody any more.
    closer.kill();
    drop((work, answers));
    let _ = working.await;
    let _ = writing.await;
    error
}

/// Writes answers until there are none to come, and ends the connection of a peer that is silent or
/// takes nothing.
async fn write_answers<R: Runtime>(
    settings: Arc<Settings>,
    mut writer: <R::Stream as Stream>::WriteHalf,
    closer: CloserOf<R>,
    mut answers: mpsc::Receiver<Vec<u8>>,
    heard: Arc<LastHeard>,
) {
    let mut tick = Box::pin(R::sleep(settings.ping_interval));
    loop {
        let next = poll_fn(|cx| match answers.poll_recv(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => tick.as_mut().poll(cx).map(|()| None),
        });
        let mut bytes = match next.await {
            Some(Some(answer)) => answer,
            Some(None) => return,
            None => {
                tick.set(R::sleep(settings.ping_interval));
                // A reader that waits for requests to be carried out hears nothing either.
                if heard.ago::<R>() >= settings.silence {
                    closer.kill();
                }
                continue;
            }
        };
        while bytes.len() < WRITE_BYTES {
            let Ok(answer) = answers.try_recv() else { break };
            bytes.extend_from_slice(&answer);
        }
        let write = async { Ok(writer.write_all(bytes).await.0?) };
        if within::<R, _>(settings.silence, &closer, write).await.is_err() {
            closer.kill();
            return;
        }
    }
}
