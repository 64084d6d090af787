//! One connection's reading side.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use mqtt::access::PasswordCheck;
use rt_abstract::planted::{Bug, is_planted};
use rt_abstract::{AsyncRead, BufResult, IoBufMut, MaybeSend, Runtime, Shared, Stream};

use super::core::{Core, enter};
use crate::node::Node;
use crate::shard::{Arrival, Commit, ConnKey, Lane, Mail, Next, Received, Verified};

/// Serves a socket until its end. `first` holds what another shard has read from it already.
pub(super) async fn serve_connection<R: Runtime>(
    node: Arc<Node>,
    core: Shared<Core<R>>,
    mut stream: R::Stream,
    arrival: Arrival,
    first: BytesMut,
) {
    let closer = stream.closer();
    let (origin, level) = (arrival.origin, arrival.level);
    let opened = enter(&core, |core, now_ms| core.open(closer, arrival, now_ms));
    let Some(key) = opened else { return };
    let mut end = EndGuard { core: Some(core), key };
    let Some(core) = end.core.clone() else { return };
    let received = handshake(&core, key, &mut stream, first).await;
    let (mut next, handoff) = match received {
        Some(received) => (Some(received.next), received.handoff),
        None => (None, BytesMut::new()),
    };
    if let Some(Next::Handoff(owner)) = next {
        // The closer goes first: a descriptor is given up only by its last holder.
        end.core = None;
        let times = enter(&core, |core, _| core.hand_off(key));
        let arrival = Arrival { origin, level, times };
        // Boxed like the other things that happen once.
        Box::pin(hand_off::<R>(&node, stream, owner, arrival, handoff)).await;
        return;
    }
    let (mut read, write) = stream.into_split();
    enter(&core, |core, _| core.give_write_half(key, write));
    while let Some(now) = next {
        next = match now {
            // Boxed: rare, and every idle connection would carry its size.
            Next::Verify(check) => Some(Box::pin(verify(&core, key, check)).await),
            Next::Commit(commit) => Some(Box::pin(propose(&node, &core, key, commit)).await),
            Next::Again => {
                R::yield_now().await;
                Some(enter(&core, |core, now_ms| core.shard.resume(key, now_ms)))
            }
            Next::Wait => {
                poll_fn(|cx| {
                    let now_ms = R::now().as_millis();
                    core.with(|core| core.poll_may_read(key, now_ms, cx))
                })
                .await;
                Some(enter(&core, |core, now_ms| core.shard.resume(key, now_ms)))
            }
            Next::Read | Next::Drain | Next::Handoff(_) => {
                read_once(&core, key, &mut read).await.map(|received| received.next)
            }
        };
    }
}

/// Reads until CONNECT is complete. Returns what follows from it; `None` when the socket has ended.
async fn handshake<R: Runtime>(
    core: &Shared<Core<R>>,
    key: ConnKey,
    stream: &mut R::Stream,
    first: BytesMut,
) -> Option<Received> {
    let mut received = if first.is_empty() {
        read_once(core, key, stream).await?
    } else {
        let read = first.len();
        enter(core, |core, now_ms| core.shard.on_bytes(key, read, first, now_ms))
    };
    loop {
        let goes_away = matches!(received.next, Next::Handoff(_));
        if goes_away || !core.with(|core| core.shard.in_handshake(key)) {
            return Some(received);
        }
        received = read_once(core, key, stream).await?;
    }
}

/// Runs a password check where it may take its time, and tells the shard. The socket is not read
/// meanwhile; the connect timeout goes on and ends it.
async fn verify<R: Runtime>(
    core: &Shared<Core<R>>,
    key: ConnKey,
    check: Box<PasswordCheck>,
) -> Next {
    let checking = R::spawn_blocking(move || {
        let begin = R::now();
        (check.run(), R::now() - begin)
    });
    let (verified, ran) = match checking.await {
        Ok((true, ran)) => (Verified::Right, ran),
        Ok((false, ran)) => (Verified::Wrong, ran),
        Err(panicked) => {
            tracing::error!(%panicked, "verifying a password failed");
            (Verified::Failed, Duration::ZERO)
        }
    };
    enter(core, |core, now_ms| {
        core.shard.ran_elsewhere(key, ran);
        core.shard.on_verified(key, verified, now_ms)
    })
    .next
}

/// Has the metadata commit what a connection asked for, and tells the shard. The socket is not read
/// meanwhile; the raft task bounds how long that takes.
async fn propose<R: Runtime>(
    node: &Node,
    core: &Shared<Core<R>>,
    key: ConnKey,
    mut commit: Box<Commit>,
) -> Next {
    let result = match node.meta() {
        Some(meta) => meta.propose(commit.take_commands()).await,
        None => Err(meta::ProposeError::Stopped),
    };
    enter(core, |core, now_ms| core.shard.on_committed(key, *commit, result, now_ms)).next
}

/// One read and everything that follows from it; `None` when the socket has ended.
async fn read_once<R: Runtime>(
    core: &Shared<Core<R>>,
    key: ConnKey,
    stream: &mut impl AsyncRead,
) -> Option<Received> {
    let get = || core.with(|core| core.shard.read_buffer(key));
    let put = |buffer| core.with(|core| core.shard.unread_buffer(key, buffer));
    let read = match is_planted(Bug::DroppedRead) {
        true => dropping_read::<R, _>(stream, get).await,
        false => stream.read_lazy(get, put).await,
    };
    match read {
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

/// The mistake [`Bug::DroppedRead`].
async fn dropping_read<R: Runtime, B: IoBufMut>(
    stream: &mut impl AsyncRead,
    get: impl Fn() -> B + MaybeSend,
) -> BufResult<usize, Option<B>> {
    loop {
        let (mut done, buffer) = (None, get());
        let reading = async { done = Some(stream.read(buffer).await) };
        let mut timeout = pin!(R::sleep(Duration::from_millis(300)));
        is_first(reading, &mut timeout).await;
        if let Some((result, buffer)) = done {
            return (result, Some(buffer));
        }
    }
}

/// Moves the socket to the shard that owns its client. Within the connect timeout, or it is let go.
async fn hand_off<R: Runtime>(
    node: &Node,
    stream: R::Stream,
    owner: u8,
    arrival: Arrival,
    bytes: BytesMut,
) {
    let _counted = node.fabric().count_moving();
    let mailbox = node.fabric().mailbox(owner);
    let mut mail = match stream.into_socket() {
        Ok(socket) => Mail::Adopt(socket, arrival, bytes),
        Err(error) => {
            tracing::warn!(%error, "cannot hand a socket over");
            return;
        }
    };
    let timeout_ms = node.config().limits.connect_timeout_ms;
    let mut timeout = pin!(R::sleep(Duration::from_millis(timeout_ms.into())));
    loop {
        match mailbox.try_send(Lane::Control as usize, mail) {
            Err(rt_abstract::Full::Full(back)) => {
                mail = back;
                if !is_first(mailbox.room(Lane::Control as usize), &mut timeout).await {
                    tracing::warn!(owner, "a shard takes no sockets: one is closed");
                    return;
                }
            }
            // A shard that is gone closes the socket by dropping it.
            Ok(()) | Err(rt_abstract::Full::Closed(_)) => return,
        }
    }
}

/// Whether `wanted` is ready before `other`. Both must be such that dropping them loses nothing.
async fn is_first(
    wanted: impl Future<Output = ()>,
    other: &mut (impl Future<Output = ()> + Unpin),
) -> bool {
    let mut wanted = pin!(wanted);
    poll_fn(|cx| match wanted.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => pin!(&mut *other).poll(cx).map(|()| false),
    })
    .await
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

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::is_first;

    #[test]
    fn whichever_is_ready_first() {
        assert_eq!(is_first(ready(()), &mut pending()).now_or_never(), Some(true));
        assert_eq!(is_first(pending(), &mut ready(())).now_or_never(), Some(false));
        assert_eq!(is_first(pending(), &mut pending()).now_or_never(), None);
    }
}
