//! A shard's durable half from start to end: what the metadata has is brought back before the first
//! client is accepted, and what nobody waits for is proposed in order.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use meta::command::Command;
use meta::record::{ClientKey, NodeId, SessionRecord, StoredSubscription};
use meta::state::Effect;
use meta::store::StoreError;
use meta::{Handle, ProposeError};
use rt_abstract::{Notify, Runtime, Shared, Shutdown};

use super::core::{Core, enter};
use super::messages;
use crate::node::Node;
use crate::shard::{Elsewhere, message_of};

/// Sessions and messages read from the metadata before the other tasks get a turn.
const PAGE: usize = 1_000;
/// Posted commands per proposal.
const COMMANDS_PER_PROPOSAL: usize = 512;
/// How long a proposal rests that found no leader.
const REST_WITHOUT_LEADER: Duration = Duration::from_millis(200);

/// Brings back what belongs to this shard; the first shard does it for the retained messages, and
/// all wait for them. Routes first, then clients: what is acknowledged after a start must find the
/// sessions that were there before.
///
/// # Errors
/// What the store said.
pub(super) async fn restore<R: Runtime>(
    node: &Node,
    core: &Shared<Core<R>>,
    meta: &Handle,
    id: u8,
) -> Result<(), StoreError> {
    if id == 0 {
        restore_retained::<R>(node, meta).await?;
    }
    let mut after: Option<ClientKey> = None;
    loop {
        let page = read_sessions(meta, after.as_ref())?;
        let Some((last, ..)) = page.last() else { break };
        after = Some(last.clone());
        enter(core, |core, now_ms| {
            for (client, record, subscriptions) in &page {
                let here = record.node == meta.node();
                if here && core.shard.owner_of(&client.client_id) == id {
                    core.shard.restore(&client.client_id, record, subscriptions, now_ms);
                }
            }
        });
        R::yield_now().await;
    }
    messages::restore(node, core).await;
    node.restored_shard();
    node.all_restored().wait().await;
    Ok(())
}

/// Has the node follow what other nodes change: retained messages, and sessions that move away.
/// To be called before any shard is served, so that nothing is missed between what a shard restores
/// and what comes later.
pub fn follow_metadata<R: Runtime>(node: &Arc<Node>) {
    let Some(meta) = node.meta() else { return };
    let (here, node) = (meta.node(), Arc::downgrade(node));
    meta.watch(move |effects| {
        let Some(node) = node.upgrade() else { return };
        for (at, effect) in effects.iter().enumerate() {
            follow::<R>(&node, here, effect, &effects[at + 1..]);
        }
    });
}

fn follow<R: Runtime>(node: &Node, here: NodeId, effect: &Effect, later: &[Effect]) {
    match effect {
        Effect::Retained { message, .. } => {
            let wall_offset_ms = R::wall_clock_ms().saturating_sub(R::now().as_millis());
            let message = Arc::new(message_of(message, true, 0, wall_offset_ms));
            node.fabric().retained.lock().set_stored(message);
        }
        Effect::Unretained { topic, .. } => node.fabric().retained.lock().clear(topic),
        Effect::SessionOpened { client, node: to, epoch, previous: Some(from) }
            if *from == here && *to != here =>
        {
            let event = Elsewhere::Moved { client: client.client_id.clone(), epoch: *epoch };
            node.tell_owner(&client.client_id, event);
        }
        // The session lay on another node, which may be gone: its will is published here.
        Effect::WillDue { client, node: by, will } if *by == here => {
            let from_elsewhere = later.iter().any(|effect| {
                matches!(effect, Effect::SessionOpened { client: opened, previous: Some(from), .. }
                    if opened == client && *from != here)
            });
            if from_elsewhere {
                node.tell_owner(&client.client_id, Elsewhere::Will(Box::new(will.clone())));
            }
        }
        // A snapshot took the place of everything: as at start, but for the sessions that are here.
        Effect::Replaced => {
            if let Some(meta) = node.meta()
                && let Err(error) = reload_retained::<R>(node, meta)
            {
                tracing::error!(%error, "cannot read what a snapshot brought: stopping");
                node.shutdown().trigger();
            }
            node.tell_all(|| Elsewhere::Replaced);
        }
        _ => {}
    }
}

/// Takes all retained messages from the metadata in one step: nobody sees a part of them.
fn reload_retained<R: Runtime>(node: &Node, meta: &Handle) -> Result<(), StoreError> {
    let wall_offset_ms = R::wall_clock_ms().saturating_sub(R::now().as_millis());
    let mut retained = node.fabric().retained.lock();
    retained.clear_users();
    meta.read(|view| {
        meta::state::retained(view, None, |stored| {
            retained.set_stored(Arc::new(message_of(&stored, true, 0, wall_offset_ms)));
            ControlFlow::Continue(())
        })
    })
}

/// Proposes what the shard posts, until it has stopped and nothing is left.
pub(super) async fn record_loop<R: Runtime>(
    core: Shared<Core<R>>,
    meta: Handle,
    record: Arc<Notify>,
    stop: Shutdown,
) {
    loop {
        let mut commands = core.with(|core| core.shard.take_posted(COMMANDS_PER_PROPOSAL));
        if commands.is_empty() {
            if stop.is_triggered() {
                return;
            }
            record.notified().await;
            continue;
        }
        loop {
            match meta.propose(commands.clone()).await {
                Ok(_) => break, // a refusal says that it does not matter any more
                Err(ProposeError::Stopped) => return,
                Err(error @ ProposeError::TooLarge) => {
                    tracing::error!(%error, "not recorded");
                    break;
                }
                Err(ProposeError::NoLeader | ProposeError::Timeout) if stop.is_triggered() => {
                    return; // what is missing is found at the next start
                }
                Err(error @ (ProposeError::NoLeader | ProposeError::Timeout)) => {
                    // It may have been committed: a second time a message could replace a later one.
                    // All else does no harm twice.
                    if error == ProposeError::Timeout {
                        commands.retain(|command| {
                            !matches!(command, Command::Retain(_) | Command::Unretain { .. })
                        });
                        if commands.is_empty() {
                            break;
                        }
                    }
                    R::sleep(REST_WITHOUT_LEADER).await;
                }
            }
        }
    }
}

async fn restore_retained<R: Runtime>(node: &Node, meta: &Handle) -> Result<(), StoreError> {
    let wall_offset_ms = R::wall_clock_ms().saturating_sub(R::now().as_millis());
    let mut after = None;
    loop {
        after = restore_page(node, meta, after, wall_offset_ms)?;
        if after.is_none() {
            return Ok(());
        }
        R::yield_now().await;
    }
}

/// One page of the retained messages behind the topic `after`; the last topic of it, if it has any.
fn restore_page(
    node: &Node,
    meta: &Handle,
    after: Option<String>,
    wall_offset_ms: u64,
) -> Result<Option<String>, StoreError> {
    // Locked before it is read: what is applied meanwhile is set behind it, not before.
    let mut retained = node.fabric().retained.lock();
    let mut page = Vec::new();
    meta.read(|view| {
        meta::state::retained(view, after.as_deref(), |stored| {
            page.push(stored);
            full(page.len())
        })
    })?;
    for stored in &page {
        retained.set_stored(Arc::new(message_of(stored, true, 0, wall_offset_ms)));
    }
    Ok(page.pop().map(|last| last.topic))
}

type Found = (ClientKey, SessionRecord, Vec<StoredSubscription>);

fn read_sessions(meta: &Handle, after: Option<&ClientKey>) -> Result<Vec<Found>, StoreError> {
    meta.read(|view| {
        let mut page: Vec<Found> = Vec::new();
        meta::state::sessions(view, after, |client, record| {
            page.push((client, record, Vec::new()));
            full(page.len())
        })?;
        for (client, record, subscriptions) in &mut page {
            if record.subscriptions > 0 {
                meta::state::subscriptions(view, client, |stored| {
                    subscriptions.push(stored);
                    ControlFlow::Continue(())
                })?;
            }
        }
        Ok(page)
    })
}

/// Whether a page is full.
fn full(len: usize) -> ControlFlow<()> {
    if len < PAGE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}
