//! The journal of messages from start to end: read before the first client is accepted, written by a
//! task of its own, and what has become durable is told to the shards.

use std::sync::Arc;

use journal::{Class, Refused};
use rt_abstract::{Notify, Runtime, Shared, Shutdown};

use super::core::{Core, enter};
use crate::messages::{Messages, Replay};
use crate::node::Node;

/// Opens the journal of the node's configuration, gives its shards what is in it, and writes it
/// until `stop`. There must be one.
///
/// # Errors
/// Damage, and what the disk said, which is final: nothing is acknowledged after it.
pub async fn run_journal<R: Runtime>(node: Arc<Node>, stop: Shutdown) -> Result<(), String> {
    let Some(options) = node.config().journal.clone() else {
        return Err("there is no journal to be run".into());
    };
    let mut replay = Replay::new();
    let visit = |position: journal::Position, record: &[u8]| replay.visit(position.get(), record);
    let (journal, writer) =
        journal::open::<R>(options, None, visit).await.map_err(|error| error.to_string())?;
    replay.finish();
    let usage = journal.usage();
    tracing::info!(
        messages = replay.messages(),
        segments = usage.segments,
        "messages read from the journal"
    );
    let (shards, config) = (node.fabric().shards(), node.config());
    let levels = config.durability.clone();
    let messages = Messages::new(journal, shards, levels, config.moved_percent);
    node.set_messages(messages, replay);
    drop(node);
    writer.run(stop).await.map_err(|error| error.to_string())
}

/// Gives a shard what the journal has for its sessions, which it has already.
pub(super) async fn restore<R: Runtime>(node: &Node, core: &Shared<Core<R>>) {
    if node.config().journal.is_none() {
        return;
    }
    node.journal_opened().wait().await;
    let Some(messages) = node.messages() else { return };
    enter(core, |core, _| {
        core.shard.set_messages(messages.clone());
        node.with_replay(|replay| core.shard.restore_messages(replay));
    });
}

/// All shards have their messages: what is left is nobody's, and recorded to be so before a client is
/// accepted. A session that went to another node while this one was down may come back under its old
/// generation, whose records would then be taken for its own at the next start.
///
/// Waits for the disk, also while the journal is behind; a full one is told of, and not waited for,
/// since only clients can empty it.
pub(super) async fn end_rest(node: &Node, id: u8) {
    let (Some(messages), Some(mut replay)) = (node.messages(), node.forget_replay()) else {
        return;
    };
    let left = replay.messages();
    if left > 0 {
        tracing::info!(left, "messages of sessions that are gone were dropped");
    }
    let (journal, wake) = (messages.journal(), messages.wake(usize::from(id)));
    for mut batch in messages.end_sessions(&replay.take_rest()) {
        loop {
            match journal.append(&mut batch, Class::Always) {
                Ok(_) => break,
                Err(Refused::Busy) => wake.notified().await,
                Err(refused) => {
                    tracing::warn!(%refused, "the end of sessions that are gone is not recorded");
                    return;
                }
            }
        }
    }
    let last = journal.last();
    while journal.durable() < last && journal.state().is_running() {
        wake.notified().await;
    }
    wake.notify(); // whoever waits there next looks once
}

/// Lets the shard look, whenever there is news of the journal or of other shards; `told` is called
/// after each look.
pub(super) async fn stored_loop<R: Runtime>(
    node: Arc<Node>,
    core: Shared<Core<R>>,
    id: usize,
    told: Arc<Notify>,
    stop: Shutdown,
) {
    let Some(messages) = node.messages() else { return };
    let wake = messages.wake(id);
    while !stop.is_triggered() {
        wake.notified().await;
        enter(&core, |core, now_ms| core.shard.on_stored(now_ms));
        told.notify();
    }
}
