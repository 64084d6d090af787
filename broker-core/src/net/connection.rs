//! One connection's reading side.

use bytes::BytesMut;
use rt_abstract::{AsyncRead, Runtime, Shared, Stream};

use super::core::{Core, enter};
use crate::node::Node;
use crate::shard::{ConnKey, Lane, Mail, Next, Received};
use std::sync::Arc;

/// Serves a socket until its end. `first` holds what another shard has read from it already.
pub(super) async fn serve_connection<R: Runtime>(
    node: Arc<Node>,
    core: Shared<Core<R>>,
    mut stream: R::Stream,
    first: BytesMut,
) {
    let closer = stream.closer();
    let Some(key) = enter(&core, |core, now_ms| core.open(closer, now_ms)) else { return };
    let mut end = EndGuard { core: Some(core), key };
    let Some(core) = end.core.clone() else { return };
    if let Some((owner, bytes)) = handshake(&core, key, &mut stream, first).await {
        // The closer goes first: a descriptor is given up only by its last holder.
        end.core = None;
        enter(&core, |core, _| core.hand_off(key));
        hand_off::<R>(&node, stream, owner, bytes).await;
        return;
    }
    let (mut read, write) = stream.into_split();
    enter(&core, |core, _| core.give_write_half(key, write));
    loop {
        match read_once(&core, key, &mut read).await.map(|received| received.next) {
            None => break,
            Some(Next::WaitFor(shard)) => wait_for_room(&node, &core, shard).await,
            Some(Next::Read | Next::Drain | Next::Handoff(_)) => {}
        }
    }
}

/// Reads until CONNECT is complete. Returns the shard that the client belongs to and the bytes
/// read, when it is another one.
async fn handshake<R: Runtime>(
    core: &Shared<Core<R>>,
    key: ConnKey,
    stream: &mut R::Stream,
    first: BytesMut,
) -> Option<(u8, BytesMut)> {
    let mut received = if first.is_empty() {
        read_once(core, key, stream).await?
    } else {
        let read = first.len();
        enter(core, |core, now_ms| core.shard.on_bytes(key, read, first, now_ms))
    };
    loop {
        if let Next::Handoff(owner) = received.next {
            return Some((owner, received.handoff));
        }
        if !core.with(|core| core.shard.in_handshake(key)) {
            return None;
        }
        received = read_once(core, key, stream).await?;
    }
}

/// One read and everything that follows from it; `None` when the socket has ended.
async fn read_once<R: Runtime>(
    core: &Shared<Core<R>>,
    key: ConnKey,
    stream: &mut impl AsyncRead,
) -> Option<Received> {
    let get = || core.with(|core| core.shard.read_buffer(key));
    let put = |buffer| core.with(|core| core.shard.unread_buffer(key, buffer));
    match stream.read_lazy(get, put).await {
        (Ok(read @ 1..), Some(buffer)) => {
            Some(enter(core, |core, now_ms| core.shard.on_bytes(key, read, buffer, now_ms)))
        }
        (_, buffer) => {
            if let Some(buffer) = buffer {
                core.with(|core| core.shard.unread_buffer(key, buffer));
            }
            None
        }
    }
}

/// Moves the socket to the shard that owns its client.
async fn hand_off<R: Runtime>(node: &Node, stream: R::Stream, owner: u8, bytes: BytesMut) {
    let mailbox = node.fabric().mailbox(owner);
    let mut mail = match stream.into_fd() {
        Ok(fd) => Mail::Adopt(fd, bytes),
        Err(error) => {
            tracing::warn!(%error, "cannot hand a socket over");
            return;
        }
    };
    loop {
        match mailbox.try_send(Lane::Control as usize, mail) {
            Err(rt_abstract::Full::Full(back)) => {
                mail = back;
                mailbox.room(Lane::Control as usize).await;
            }
            // A shard that is gone closes the socket by dropping it.
            Ok(()) | Err(rt_abstract::Full::Closed(_)) => return,
        }
    }
}

/// Waits until all mail of this shard has found room: its publishers read no further meanwhile.
async fn wait_for_room<R: Runtime>(node: &Node, core: &Shared<Core<R>>, shard: u8) {
    let mut full = Some(shard);
    while let Some(shard) = full {
        node.fabric().mailbox(shard).room(Lane::Data as usize).await;
        full = core.with(|core| core.shard.post_mail());
    }
}

/// Tells the shard that the reader has ended, however it ended.
struct EndGuard<R: Runtime> {
    core: Option<Shared<Core<R>>>,
    key: ConnKey,
}

impl<R: Runtime> Drop for EndGuard<R> {
    fn drop(&mut self) {
        if let Some(core) = &self.core {
            enter(core, |core, now_ms| core.shard.on_end(self.key, now_ms));
        }
    }
}
