//! What both ends of a connection need: reading and writing frames, hellos, deadlines.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rt_abstract::{AsyncRead, AsyncWrite, Closer, Runtime, Stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{self, Frame, FrameError};
use super::hello::{self, HelloError};

/// Room for one read.
const READ_BYTES: usize = 64 << 10;
/// Frames are joined to one write up to about this size.
pub(super) const WRITE_BYTES: usize = 256 << 10;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Hello(#[from] HelloError),
    #[error("the peer ended the connection")]
    Ended,
    #[error("nothing came for {0:?}")]
    Silent(Duration),
    #[error("it did not make sense: {0}")]
    Protocol(String),
    #[error("this node ends it")]
    Stopped,
}

/// A connection in parts.
pub(super) struct Parts<R: Runtime> {
    pub(super) reader: FrameReader<<R::Stream as Stream>::ReadHalf>,
    pub(super) writer: <R::Stream as Stream>::WriteHalf,
    pub(super) closer: CloserOf<R>,
}

pub(super) type CloserOf<R> = <<R as Runtime>::Stream as Stream>::Closer;

/// Reads frames. No read is ever given up: drive each call to its end.
pub(super) struct FrameReader<H> {
    half: H,
    buffer: BytesMut,
    max_frame_bytes: usize,
}

/// When something last came.
#[derive(Debug, Default)]
pub(super) struct LastHeard(AtomicU64);

impl<R: Runtime> Parts<R> {
    pub(super) fn new(stream: R::Stream, max_frame_bytes: usize) -> Self {
        let closer = stream.closer();
        let (half, writer) = stream.into_split();
        let reader = FrameReader { half, buffer: BytesMut::new(), max_frame_bytes };
        Self { reader, writer, closer }
    }
}

impl<H: AsyncRead> FrameReader<H> {
    /// The next frame; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<Frame>, LinkError> {
        loop {
            if let Some(frame) = frame::decode(&mut self.buffer, self.max_frame_bytes)? {
                return Ok(Some(frame));
            }
            if !self.fill().await? {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                };
            }
        }
    }

    /// Reads a hello, or the answer to one.
    pub(super) async fn hello<T: DeserializeOwned>(&mut self) -> Result<T, LinkError> {
        let head = self.exactly(hello::HEAD_BYTES).await?;
        let head = head.first_chunk().ok_or(HelloError::Damaged)?;
        let body = self.exactly(hello::body_bytes(head)?).await?;
        Ok(hello::decode(&body)?)
    }

    async fn exactly(&mut self, length: usize) -> Result<Bytes, LinkError> {
        while self.buffer.len() < length {
            if !self.fill().await? {
                return Err(LinkError::Ended);
            }
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    /// Reads once; says whether anything came.
    async fn fill(&mut self) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.reserve(READ_BYTES);
        let (result, buffer) = self.half.read(buffer).await;
        self.buffer = buffer;
        Ok(result? > 0)
    }
}

impl LastHeard {
    pub(super) fn now<R: Runtime>() -> Self {
        let heard = Self::default();
        heard.touch::<R>();
        heard
    }

    pub(super) fn touch<R: Runtime>(&self) {
        self.0.store(R::now().as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn ago<R: Runtime>(&self) -> Duration {
        R::now() - rt_abstract::Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Writes a hello, or the answer to one.
pub(super) async fn write_hello<T: Serialize>(
    writer: &mut impl AsyncWrite,
    message: &T,
) -> Result<(), LinkError> {
    let (result, _) = writer.write_all(hello::encode(message)?).await;
    Ok(result?)
}

/// Drives `operation` to its end, but kills the connection when it takes longer than `limit`, which
/// ends it: reads and writes must not be given up. An operation that was ended so is
/// [`LinkError::Silent`].
pub(super) async fn within<R: Runtime, T>(
    limit: Duration,
    closer: &impl Closer,
    operation: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    let mut operation = pin!(operation);
    let mut sleep = pin!(R::sleep(limit));
    let mut killed = false;
    poll_fn(|cx| {
        if let Poll::Ready(result) = operation.as_mut().poll(cx) {
            return Poll::Ready(match result {
                Err(_) if killed => Err(LinkError::Silent(limit)),
                result => result,
            });
        }
        if !killed && sleep.as_mut().poll(cx).is_ready() {
            killed = true;
            closer.kill();
        }
        Poll::Pending
    })
    .await
}

/// Runs `work` for at most `limit`; `None` when it took longer. Gives it up, so it must neither read
/// nor write.
pub(super) async fn at_most<R: Runtime, T>(
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let mut sleep = pin!(R::sleep(limit));
    poll_fn(|cx| {
        if let Poll::Ready(result) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}
