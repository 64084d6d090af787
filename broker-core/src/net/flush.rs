//! Writing: whatever the shard has put into outboxes during a turn goes out after it, one write
//! per connection.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use rt_abstract::{AsyncWrite, Notify, Runtime, Shared, Shutdown};

use super::core::{Core, WriteHalf, enter};
use crate::node::Node;
use crate::shard::{ConnKey, Lane, Output, Write};

/// Writes started before the other tasks get a turn.
const WRITES_PER_TURN: usize = 128;

/// Starts writers until `stop`.
pub(super) async fn flush_loop<R: Runtime>(
    core: Shared<Core<R>>,
    flush: Arc<Notify>,
    stop: Shutdown,
) {
    while !stop.is_triggered() {
        flush.notified().await;
        let mut started = 0;
        while let Some((key, half)) = enter(&core, |core, _| core.next_writer()) {
            let mut writer = Box::pin(write_out(core.clone(), key, half));
            // A readiness backend mostly finishes here; a completion backend has submitted.
            let done = poll_fn(|cx| Poll::Ready(writer.as_mut().poll(cx).is_ready())).await;
            if !done {
                drop(R::spawn(writer)); // detached; the shard waits for it before it lets go
            }
            started += 1;
            let scanned = core.with(|core| core.shard.take_scanned());
            if scanned || started % WRITES_PER_TURN == 0 {
                R::yield_now().await;
            }
        }
    }
}

/// Waits for room in other shards' mailboxes, in place of every reader that needs it: one waiter
/// per shard, so that a full mailbox wakes few.
pub(super) async fn post_loop<R: Runtime>(
    node: Arc<Node>,
    core: Shared<Core<R>>,
    post: Arc<Notify>,
    stop: Shutdown,
) {
    while !stop.is_triggered() {
        post.notified().await;
        while let Some(full) = enter(&core, |core, _| core.shard.post_mail()) {
            node.fabric().mailbox(full).room(Lane::Data as usize).await;
            if stop.is_triggered() {
                return;
            }
        }
    }
}

async fn write_out<R: Runtime>(core: Shared<Core<R>>, key: ConnKey, half: WriteHalf<R>) {
    let mut half = Some(half);
    loop {
        let step = enter(&core, |core, now_ms| {
            let step = core.shard.next_write(key, now_ms);
            // Given back in the turn in which the shard lets this writer go: it may start
            // another one right after.
            if matches!(step, Write::Idle)
                && let Some(half) = half.take()
            {
                core.return_write_half(key, half);
            }
            step
        });
        let Some(half) = half.as_mut() else { return };
        let (ok, output) = match step {
            Write::Idle => return,
            Write::Finish => {
                // The peer may be gone already: then there is nothing left to end.
                let _ = half.shutdown().await;
                enter(&core, |core, _| core.wake_reader(key));
                continue;
            }
            Write::Output(Output::Block(block)) => {
                let (result, block) = half.write_all(block).await;
                (result.is_ok(), Output::Block(block))
            }
            Write::Output(Output::Pieces(pieces)) => {
                let (result, pieces) = half.writev_all(pieces).await;
                (result.is_ok(), Output::Pieces(pieces))
            }
        };
        enter(&core, |core, now_ms| {
            core.shard.on_written(key, output, ok, now_ms);
            core.wake_reader(key);
        });
    }
}
