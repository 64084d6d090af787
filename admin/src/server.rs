//! Accepting, the bound on connections, and the end of it all.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use broker_core::Node;
use rt_abstract::{Closer, Listener, Runtime, Shared, Shutdown};

use crate::backup::Backups;
use crate::{ServerInfo, connection};

/// Serves `listener` until `stop`, then lets open requests end and returns; that takes at most a
/// few seconds. `/health` turns to 503 with `node.shutdown()`, so a balancer sees a drain while
/// this address still answers.
///
/// At most 64 connections are open at once; further ones are closed at accept.
pub async fn serve<R: Runtime>(
    mut listener: R::Listener,
    node: Arc<Node>,
    info: ServerInfo,
    stop: Shutdown,
) {
    let info = Arc::new(info);
    let connections = Shared::new(Connections::default());
    let backups = Backups::<R>::new();
    let closer = listener.closer();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => match enter(&connections) {
                    Some(slot) => {
                        // Detached: `connections` counts it.
                        drop(R::spawn(connection::run::<R>(
                            stream,
                            slot,
                            node.clone(),
                            info.clone(),
                            backups.clone(),
                        )));
                    }
                    None => tracing::debug!("admin connection closed: {MAX_CONNECTIONS} are open"),
                },
                Err(_) if stop.is_triggered() => return,
                Err(error) => {
                    tracing::warn!("admin address cannot accept: {error}");
                    R::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    {
        let mut accepting = pin!(accepting);
        let mut stopping = pin!(stop.wait());
        let mut stopped = false;
        // The pending accept is not dropped: killing the listener ends it.
        poll_fn(move |cx| {
            if !stopped && stopping.as_mut().poll(cx).is_ready() {
                stopped = true;
                closer.kill();
            }
            accepting.as_mut().poll(cx)
        })
        .await;
    }
    let waiting = connections.with(|connections| {
        connections.closing = true;
        connections.slots.iter_mut().flatten().filter_map(Option::take).collect::<Vec<_>>()
    });
    waiting.into_iter().for_each(Waker::wake);
    poll_fn(|cx| {
        connections.with(|connections| {
            if connections.slots.iter().all(Option::is_none) {
                return Poll::Ready(());
            }
            connections.server = Some(cx.waker().clone());
            Poll::Pending
        })
    })
    .await;
    backups.end().await;
}

const MAX_CONNECTIONS: usize = 64;
// When the process is out of descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A connection's place among the open ones; free again when dropped.
pub(crate) struct Slot {
    index: usize,
    connections: Shared<Connections>,
}

#[derive(Default)]
struct Connections {
    // Taken slots hold the waker of their task, once it has waited.
    slots: Vec<Option<Option<Waker>>>,
    closing: bool,
    server: Option<Waker>,
}

fn enter(connections: &Shared<Connections>) -> Option<Slot> {
    let index = connections.with(|connections| {
        let slots = &mut connections.slots;
        let index = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        match slots.get_mut(index) {
            Some(free) => *free = Some(None),
            None if index < MAX_CONNECTIONS => slots.push(Some(None)),
            None => return None,
        }
        Some(index)
    })?;
    Some(Slot { index, connections: connections.clone() })
}

impl Slot {
    /// Whether the server is ending; wakes `waker` when it does.
    pub(crate) fn is_closing(&self, waker: &Waker) -> bool {
        self.connections.with(|connections| {
            if let Some(Some(slot)) = connections.slots.get_mut(self.index) {
                match slot {
                    Some(old) => old.clone_from(waker),
                    None => *slot = Some(waker.clone()),
                }
            }
            connections.closing
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let server = self.connections.with(|connections| {
            connections.slots[self.index] = None;
            connections.server.take()
        });
        if let Some(server) = server {
            server.wake();
        }
    }
}
