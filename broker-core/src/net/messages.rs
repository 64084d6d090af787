//! The journal of messages from start to end: read before the first client is accepted, written by a
//! task of its own, and what has become durable is told to the shards.

use std::error::Error;
use std::sync::Arc;

use futures_util::future::join;
use journal::{Class, Journal, OpenError, Options, Position, Refused, Writer, remove_checkpoint};
use rt_abstract::{Notify, Runtime, Shared, Shutdown};

use super::checkpoint::Keeper;
use super::core::{Core, enter};
use crate::messages::{Checkpoint, Messages, ReadAtStart, Replay, load_checkpoint};
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
    let dir = options.dir.clone();
    let Opened { journal, writer, mut replay, checkpoint, read } = open::<R>(options).await?;
    let usage = journal.usage();
    replay.forget_before(usage.oldest.get());
    replay.finish();
    let first = checkpoint.map_or(usage.oldest, |checkpoint| checkpoint.mark.position());
    tracing::info!(
        messages = replay.messages(),
        segments = usage.segments,
        read_from_segment = journal.segment_of(first),
        read_records = read.records,
        read_bytes = read.bytes,
        checkpoint = checkpoint.is_some(),
        "messages found in the journal"
    );
    let (shards, config) = (node.fabric().shards(), node.config());
    let levels = config.durability.clone();
    let mut messages = Messages::new(journal, shards, levels, config.moved_percent);
    messages.set_read_at_start(read);
    let messages = Arc::new(messages);
    let keeper = Keeper::new(messages.clone(), dir, checkpoint);
    node.set_messages(messages, replay);
    drop(node);
    let over = Shutdown::new();
    let write = async {
        let result = writer.run(stop).await;
        over.trigger();
        result
    };
    let (result, ()) = join(write, keeper.keep::<R>(&over)).await;
    result.map_err(|error| error.to_string())
}

struct Opened<R: Runtime> {
    journal: Journal,
    writer: Writer<R>,
    replay: Replay,
    /// What the start began with.
    checkpoint: Option<Checkpoint>,
    read: ReadAtStart,
}

/// Opens the journal behind its checkpoint or, when that is of no use, from the oldest record on. It is
/// removed then: it would be right until sessions, of which nothing is left but in it, are numbered anew.
async fn open<R: Runtime>(options: Options) -> Result<Opened<R>, String> {
    let mut replay = Replay::new();
    let loaded = load_checkpoint::<R>(&options.dir, &mut replay).await;
    let mut checkpoint = match loaded {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            replay = give_up::<R>(&options, &error).await?;
            None
        }
    };
    loop {
        let mut read = ReadAtStart::default();
        let visit = |position: Position, record: &[u8]| {
            read.records += 1;
            read.bytes += record.len() as u64;
            replay.visit(position.get(), record)
        };
        let after = checkpoint.map(|checkpoint| checkpoint.mark);
        match journal::open::<R>(options.clone(), after, visit).await {
            Ok((journal, writer)) => {
                return Ok(Opened { journal, writer, replay, checkpoint, read });
            }
            Err(error @ OpenError::NoMark { .. }) if checkpoint.is_some() => {
                replay = give_up::<R>(&options, &error).await?;
                checkpoint = None;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// All of the journal is to be read.
async fn give_up<R: Runtime>(
    options: &Options,
    why: &(dyn Error + Sync),
) -> Result<Replay, String> {
    tracing::warn!("the whole journal is read: {why}");
    remove_checkpoint::<R>(&options.dir).await.map_err(|error| error.to_string())?;
    Ok(Replay::new())
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
