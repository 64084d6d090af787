//! Accepting connections, and taking over those that other shards accepted.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::{Either, select};
use rt_abstract::{Closer, Listener, Notify, Receiver, Runtime, Shared, Shutdown};

use super::connection::serve_connection;
use super::core::{Core, enter};
use crate::config::Level;
use crate::node::Node;
use crate::shard::{Arrival, LANES, Lane, Mail};

/// How long accepting rests after an error such as "too many open files".
const REST_AFTER_ERROR: Duration = Duration::from_millis(50);
/// Mail handled per turn.
const MAIL_PER_TURN: usize = 256;

/// Accepts until the node shuts down.
pub(super) async fn accept_loop<R: Runtime>(
    node: Arc<Node>,
    core: Shared<Core<R>>,
    mut listener: R::Listener,
    level: Level,
    stop: Shutdown,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let times = core.with(|core| core.shard.accepted());
                drop(R::spawn(serve_connection::<R>(
                    node.clone(),
                    core.clone(),
                    stream,
                    Arrival { origin: peer.into(), level, times },
                    BytesMut::new(),
                )));
            }
            Err(_) if stop.is_triggered() => return,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                R::sleep(REST_AFTER_ERROR).await;
            }
        }
        if stop.is_triggered() {
            return;
        }
    }
}

/// Ends a listener's accept when the node shuts down.
pub(super) async fn end_accepting<C: Closer>(closer: C, stop: Shutdown) {
    stop.wait().await;
    closer.kill();
}

/// Receives what other shards send, until told to stop.
pub(super) async fn mail_loop<R: Runtime>(
    node: Arc<Node>,
    core: Shared<Core<R>>,
    mut mailbox: Receiver<Mail, LANES>,
    stored: Arc<Notify>,
) {
    let mut batch = Vec::with_capacity(MAIL_PER_TURN);
    let mut sockets = Vec::new();
    loop {
        // Publishes are to be recorded, and the journal may be behind; what else comes is not.
        let behind = core.with(|core| core.shard.has_unappended());
        let lanes = if behind { Lane::Data as usize } else { LANES };
        let received = {
            let receiving = pin!(mailbox.receive_from(lanes, &mut batch, MAIL_PER_TURN));
            match behind {
                false => receiving.await,
                true => match select(receiving, pin!(stored.notified())).await {
                    Either::Left((received, _)) => received,
                    Either::Right(_) => continue,
                },
            }
        };
        if received == 0 {
            return;
        }
        let mut stop = false;
        enter(&core, |core, now_ms| {
            for mail in batch.drain(..) {
                match mail {
                    Mail::Publish(remote) => core.shard.on_mail(&remote, now_ms),
                    Mail::Adopt(socket, arrival, bytes) => sockets.push((socket, arrival, bytes)),
                    Mail::Stop => stop = true,
                }
            }
        });
        if stop {
            return;
        }
        // Mail may come faster than it is written out: the writers get their turn.
        R::yield_now().await;
        for (socket, arrival, bytes) in sockets.drain(..) {
            match R::adopt(socket) {
                Ok(stream) => {
                    drop(R::spawn(serve_connection::<R>(
                        node.clone(),
                        core.clone(),
                        stream,
                        arrival,
                        bytes,
                    )));
                }
                Err(error) => tracing::warn!(%error, "cannot adopt a socket"),
            }
        }
    }
}
