//! The null broker: what the broker does with bytes, on the same traits, without what they mean.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rt_abstract::{AsyncRead, AsyncWrite, Listener, RunOptions, Runtime, Shared};

use super::READ_BYTES;
use crate::backend::Visit;

/// Buffers that are kept; further ones are freed.
const KEPT_BUFFERS: usize = 64;

/// Serves what comes to a listener, on one core.
pub struct Serve {
    pub listener: OwnedFd,
    pub options: RunOptions,
}

impl Visit for Serve {
    type Output = io::Result<()>;

    fn visit<R: Runtime>(self) -> io::Result<()> {
        let listener = Mutex::new(Some(self.listener));
        let ends = R::run_cores(&self.options, move |_| {
            let listener = listener.lock().unwrap_or_else(PoisonError::into_inner).take();
            accept::<R>(listener)
        })?;
        ends.into_iter().collect()
    }
}

async fn accept<R: Runtime>(listener: Option<OwnedFd>) -> io::Result<()> {
    let Some(listener) = listener else { return Ok(()) }; // another core's
    let mut listener = R::listener(listener.into())?;
    let buffers = Shared::new(Vec::new());
    loop {
        let (stream, _) = listener.accept().await?;
        // Nobody waits for it; it ends with its peer.
        drop(R::spawn(connection(stream, buffers.clone())));
    }
}

/// Waits without a buffer, as the broker's connections do, and sends back what came.
async fn connection<S: AsyncRead + AsyncWrite>(mut stream: S, buffers: Shared<Vec<Vec<u8>>>) {
    loop {
        let get = || take(&buffers);
        let put = |buffer| give(&buffers, buffer);
        let (Ok(1..), Some(buffer)) = stream.read_lazy(get, put).await else { return };
        let (Ok(()), buffer) = stream.write_all(buffer).await else { return };
        give(&buffers, buffer);
    }
}

fn take(buffers: &Shared<Vec<Vec<u8>>>) -> Vec<u8> {
    buffers.with(Vec::pop).unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
}

fn give(buffers: &Shared<Vec<Vec<u8>>>, mut buffer: Vec<u8>) {
    buffer.clear();
    buffers.with(|buffers| {
        if buffers.len() < KEPT_BUFFERS {
            buffers.push(buffer);
        }
    });
}
