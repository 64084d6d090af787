//! Connected streams, as programs hold them.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::task::Poll;

use rt_abstract::{
    Address, AsyncRead, AsyncWrite, BufResult, IoBuf, IoBufMut, MaybeSend, Simulated, Socket,
};

use super::end::EndId;
use crate::buf::{append, gather};
use crate::world::{try_with, with};

/// The most pieces that one write takes, as the kernel's `IOV_MAX`.
const MAX_PIECES: usize = 1_024;

/// One end of a connection; the last handle that is dropped closes it.
#[derive(Debug)]
pub(crate) struct EndGuard {
    id: EndId,
}

/// A connected stream.
#[derive(Debug)]
pub struct Stream {
    end: Arc<EndGuard>,
}

/// The reading half of a [`Stream`].
#[derive(Debug)]
pub struct ReadHalf {
    end: Arc<EndGuard>,
}

/// The writing half of a [`Stream`].
#[derive(Debug)]
pub struct WriteHalf {
    end: Arc<EndGuard>,
}

/// Ends a [`Stream`] from outside.
#[derive(Clone, Debug)]
pub struct Closer {
    end: Arc<EndGuard>,
}

impl Stream {
    pub(crate) fn new(id: EndId) -> Self {
        Self { end: Arc::new(EndGuard { id }) }
    }

    pub(crate) fn adopt(socket: Socket) -> io::Result<Self> {
        Ok(Self { end: socket.into_simulated()? })
    }
}

impl rt_abstract::Stream for Stream {
    type ReadHalf = ReadHalf;
    type WriteHalf = WriteHalf;
    type Closer = Closer;

    fn into_split(self) -> (ReadHalf, WriteHalf) {
        (ReadHalf { end: self.end.clone() }, WriteHalf { end: self.end })
    }

    fn closer(&self) -> Closer {
        Closer { end: self.end.clone() }
    }

    fn into_socket(self) -> io::Result<Socket> {
        let id = self.end.id;
        let reading = with(|state| state.net.ends.get(&id).is_some_and(|end| end.swallow > 0));
        if reading || Arc::strong_count(&self.end) > 1 {
            let text = "an operation or a closer holds the stream";
            return Err(io::Error::new(ErrorKind::ResourceBusy, text));
        }
        Ok(Socket::simulated(self.end))
    }
}

impl rt_abstract::Closer for Closer {
    fn kill(&self) {
        try_with(|state| state.kill_end(self.end.id));
    }
}

impl Simulated for EndGuard {
    fn local_address(&self) -> io::Result<Address> {
        with(|state| state.net.ends.get(&self.id).map(|end| end.local.clone()))
            .ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        try_with(|state| state.close_end(self.id));
    }
}

macro_rules! readable {
    ($type:ty) => {
        impl AsyncRead for $type {
            async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
                read(self.end.id, buf).await
            }

            async fn read_lazy<B: IoBufMut>(
                &mut self,
                get: impl FnMut() -> B + MaybeSend,
                _put: impl FnMut(B) + MaybeSend,
            ) -> BufResult<usize, Option<B>> {
                read_lazy(self.end.id, get).await
            }
        }
    };
}

macro_rules! writable {
    ($type:ty) => {
        impl AsyncWrite for $type {
            async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
                let bytes = buf.as_slice().to_vec();
                (write(self.end.id, &bytes).await, buf)
            }

            async fn writev<B: IoBuf>(&mut self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
                let bytes = gather(&bufs[..bufs.len().min(MAX_PIECES)]);
                (write(self.end.id, &bytes).await, bufs)
            }

            async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
                let bytes = buf.as_slice().to_vec();
                (write_all(self.end.id, &bytes).await, buf)
            }

            async fn writev_all<B: IoBuf>(&mut self, bufs: Vec<B>) -> BufResult<(), Vec<B>> {
                let bytes = gather(&bufs);
                (write_all(self.end.id, &bytes).await, bufs)
            }

            async fn shutdown(&mut self) -> io::Result<()> {
                with(|state| state.finish_end(self.end.id))
            }
        }
    };
}

readable!(Stream);
readable!(ReadHalf);
writable!(Stream);
writable!(WriteHalf);

/// A read under way. Dropped, it takes the next bytes with it.
struct Submitted {
    id: EndId,
    room: usize,
    pending: bool,
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if self.pending {
            try_with(|state| {
                if state.config.dropped_reads_swallow {
                    state.swallow(self.id, self.room);
                }
            });
        }
    }
}

async fn read<B: IoBufMut>(id: EndId, mut buf: B) -> BufResult<usize, B> {
    let room = buf.capacity() - buf.len();
    if room == 0 {
        return (Err(ErrorKind::InvalidInput.into()), buf);
    }
    let mut submitted = Submitted { id, room, pending: false };
    let result = poll_fn(|cx| {
        with(|state| match state.read_end(id, room) {
            Some(result) => {
                submitted.pending = false;
                Poll::Ready(result)
            }
            None => {
                submitted.pending = true;
                if let Some(end) = state.net.ends.get_mut(&id) {
                    end.reader = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        })
    })
    .await;
    let result = result.map(|bytes| append(&mut buf, &bytes));
    (result, buf)
}

async fn read_lazy<B: IoBufMut>(
    id: EndId,
    mut get: impl FnMut() -> B,
) -> BufResult<usize, Option<B>> {
    poll_fn(|cx| {
        with(|state| {
            if state.is_readable(id) {
                return Poll::Ready(());
            }
            if let Some(end) = state.net.ends.get_mut(&id) {
                end.reader = Some(cx.waker().clone());
            }
            Poll::Pending
        })
    })
    .await;
    let (result, buf) = read(id, get()).await;
    (result, Some(buf))
}

async fn write(id: EndId, bytes: &[u8]) -> io::Result<usize> {
    poll_fn(|cx| {
        with(|state| match state.write_end(id, bytes) {
            Some(result) => Poll::Ready(result),
            None => {
                if let Some(end) = state.net.ends.get_mut(&id) {
                    end.writer = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        })
    })
    .await
}

async fn write_all(id: EndId, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = write(id, bytes).await?;
        bytes = &bytes[written..];
    }
    Ok(())
}
