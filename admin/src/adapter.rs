//! hyper's reading and writing on top of owned-buffer streams.
//!
//! hyper polls with borrowed slices and may drop the whole thing at any time; a submitted
//! operation must not be dropped. So each operation is a boxed future that owns its half, and
//! whatever is under way when hyper lets go is put into [`Leftovers`] for the connection task.

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use rt_abstract::{
    AsyncRead, AsyncWrite, BufResult, MaybeSend, Runtime, Shared, Stream, if_single_threaded,
};

use crate::connection::Activity;

if_single_threaded! {
    {
        /// A boxed future, as the build needs it.
        pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;
    } else {
        /// A boxed future, as the build needs it.
        pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
    }
}

/// Boxes a future.
pub(crate) fn boxed<T>(future: impl Future<Output = T> + MaybeSend + 'static) -> Boxed<T> {
    Box::pin(future)
}

/// A stream for hyper.
pub(crate) struct Adapter<R: Runtime> {
    reading: Reading<R>,
    // Bytes that arrived and that hyper has not taken yet, from `taken` on.
    arrived: Vec<u8>,
    taken: usize,
    writing: Writing<R>,
    activity: Shared<Activity>,
    leftovers: Shared<Option<Leftovers<R>>>,
}

/// Both halves, with the operations that are under way on them.
pub(crate) struct Leftovers<R: Runtime> {
    reading: Reading<R>,
    writing: Writing<R>,
}

type ReadHalf<R> = <<R as Runtime>::Stream as Stream>::ReadHalf;
type WriteHalf<R> = <<R as Runtime>::Stream as Stream>::WriteHalf;
type ReadDone<R> = (ReadHalf<R>, BufResult<usize, Option<Vec<u8>>>);
type WriteDone<R> = (WriteHalf<R>, io::Result<()>);

enum Reading<R: Runtime> {
    Idle(ReadHalf<R>),
    Pending(Boxed<ReadDone<R>>),
    Gone,
}

enum Writing<R: Runtime> {
    Idle(WriteHalf<R>),
    Pending(Boxed<WriteDone<R>>),
    Gone,
}

const READ_BYTES: usize = 4096;
// hyper's slice is copied once; a larger one is taken in steps.
const WRITE_BYTES: usize = 64 << 10;
// What a client may still send after the response, before the socket is simply closed.
const DRAIN_BYTES: usize = 64 << 10;

impl<R: Runtime> Adapter<R> {
    /// Wraps `stream`; what is under way when the adapter is dropped goes to `leftovers`.
    pub(crate) fn new(
        stream: R::Stream,
        activity: Shared<Activity>,
        leftovers: Shared<Option<Leftovers<R>>>,
    ) -> Self {
        let (read_half, write_half) = stream.into_split();
        Self {
            reading: Reading::Idle(read_half),
            arrived: Vec::new(),
            taken: 0,
            writing: Writing::Idle(write_half),
            activity,
            leftovers,
        }
    }

    /// Drives the pending write, if any, to its end.
    fn finish_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Writing::Pending(future) = &mut self.writing else { return Poll::Ready(Ok(())) };
        let (half, result) = ready!(future.as_mut().poll(cx));
        self.writing = Writing::Idle(half);
        self.activity.with(|activity| activity.wrote(R::now()));
        Poll::Ready(result)
    }

    /// Starts a write, or says that the stream is gone.
    fn start_write(&mut self, make: impl FnOnce(WriteHalf<R>) -> Boxed<WriteDone<R>>) -> bool {
        match mem::replace(&mut self.writing, Writing::Gone) {
            Writing::Idle(half) => self.writing = Writing::Pending(make(half)),
            other => self.writing = other,
        }
        matches!(self.writing, Writing::Pending(_))
    }
}

impl<R: Runtime> Leftovers<R> {
    /// Ends what is under way and reads what the client still sends, so that closing the socket
    /// does not reset it before the client has read the response. Bounded by bytes here; the
    /// caller bounds the time by killing the stream.
    pub(crate) async fn drain(self) {
        if let Writing::Pending(future) = self.writing
            && let (_, Err(_)) = future.await
        {
            return;
        }
        let mut half = match self.reading {
            Reading::Idle(half) => half,
            Reading::Pending(future) => match future.await {
                (half, (Ok(1..), _)) => half,
                _ => return,
            },
            Reading::Gone => return,
        };
        let mut left = DRAIN_BYTES;
        while let (Ok(read @ 1..), _) = half.read_lazy(read_buffer, drop).await {
            left = left.saturating_sub(read);
            if left == 0 {
                return;
            }
        }
    }
}

// No field is ever pinned in place: what is pinned is boxed.
impl<R: Runtime> Unpin for Adapter<R> {}

impl<R: Runtime> Drop for Adapter<R> {
    fn drop(&mut self) {
        let reading = mem::replace(&mut self.reading, Reading::Gone);
        let writing = mem::replace(&mut self.writing, Writing::Gone);
        self.leftovers.with(|leftovers| *leftovers = Some(Leftovers { reading, writing }));
    }
}

impl<R: Runtime> Read for Adapter<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let waiting = &this.arrived[this.taken..];
            if !waiting.is_empty() {
                let taken = waiting.len().min(into.remaining());
                into.put_slice(&waiting[..taken]);
                this.taken += taken;
                if this.taken == this.arrived.len() {
                    // An idle connection holds no buffer.
                    (this.arrived, this.taken) = (Vec::new(), 0);
                }
                return Poll::Ready(Ok(()));
            }
            match mem::replace(&mut this.reading, Reading::Gone) {
                Reading::Idle(mut half) => {
                    this.reading = Reading::Pending(boxed(async move {
                        let done = half.read_lazy(read_buffer, drop).await;
                        (half, done)
                    }));
                }
                Reading::Pending(mut future) => match future.as_mut().poll(cx) {
                    Poll::Pending => {
                        this.reading = Reading::Pending(future);
                        return Poll::Pending;
                    }
                    Poll::Ready((half, (result, buffer))) => {
                        this.reading = Reading::Idle(half);
                        if result? == 0 {
                            return Poll::Ready(Ok(())); // nothing added: end of stream
                        }
                        this.activity.with(|activity| activity.read(R::now()));
                        (this.arrived, this.taken) = (buffer.unwrap_or_default(), 0);
                    }
                },
                Reading::Gone => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl<R: Runtime> Write for Adapter<R> {
    /// Takes a copy and writes it behind hyper's back; its error comes with the next call.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.finish_write(cx))?;
        let bytes = bytes[..bytes.len().min(WRITE_BYTES)].to_vec();
        let taken = bytes.len();
        let started = self.start_write(|mut half| {
            boxed(async move {
                let (result, _) = half.write_all(bytes).await;
                (half, result)
            })
        });
        if !started {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // Submits it now; hyper flushes before it waits.
        match self.finish_write(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish_write(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let pending = matches!(self.writing, Writing::Pending(_));
            ready!(self.finish_write(cx))?;
            // hyper polls until ready and then no more, so a write that just ended may have been
            // the shutdown or the last flush; the flag tells.
            if pending && self.activity.with(|activity| activity.shut) {
                return Poll::Ready(Ok(()));
            }
            self.activity.with(|activity| activity.shut = true);
            let started = self.start_write(|mut half| {
                boxed(async move {
                    let result = half.shutdown().await;
                    (half, result)
                })
            });
            if !started {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

fn read_buffer() -> Vec<u8> {
    Vec::with_capacity(READ_BYTES)
}
