//! A shard's durable half from start to end: what the metadata has is brought back before the first
//! client is accepted, and what nobody waits for is proposed in order.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use meta::command::Command;
use meta::record::{ClientKey, NodeId, SessionRecord, StoredSubscription};
use meta::state::Effect;
use meta::store::{StoreError, View};
use meta::{Handle, ProposeError};
use rt_abstract::{Notify, Runtime, Shared, Shutdown};

use super::core::{Core, enter, wall_offset_ms};
use super::messages;
use crate::node::Node;
use crate::shard::{Elsewhere, TICK_MS, message_of};

/// Sessions read from the metadata before the other tasks get a turn.
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
    node: &Arc<Node>,
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
    if node.is_last_to_restore() {
        messages::end_rest(node, id).await;
        node.all_restored().trigger();
    }
    node.all_restored().wait().await;
    Ok(())
}

/// Has the node follow what is applied: retained messages, sessions that move away, and sessions that
/// are opened here, also when nobody waits for the answer any more.
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
            let wall_offset_ms = wall_offset_ms::<R>();
            let message = Arc::new(message_of(message, true, 0, wall_offset_ms));
            node.fabric().retained.lock().set_stored(message);
        }
        Effect::Unretained { topic, .. } => node.fabric().retained.lock().clear(topic),
        // Nearly always what its shard knows already: see `shard/opening.rs`.
        Effect::SessionOpened { client, node: to, epoch, .. } if *to == here => {
            let event = Elsewhere::Opened { client: client.client_id.clone(), epoch: *epoch };
            node.tell_owner(&client.client_id, event);
        }
        Effect::SessionOpened { client, epoch, previous: Some(from), .. } if *from == here => {
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
    let wall_offset_ms = wall_offset_ms::<R>();
    let mut retained = node.fabric().retained.lock();
    retained.clear_users();
    meta.read(|view| {
        meta::state::retained(view, None, |stored| {
            retained.set_stored(Arc::new(message_of(&stored, true, 0, wall_offset_ms)));
            ControlFlow::Continue(())
        })
    })
}

/// Proposes what a shard posts.
pub(super) struct Recorder<R: Runtime> {
    core: Shared<Core<R>>,
    meta: Handle,
    id: u8,
    /// Comparing stored sessions with the shard's: how far it is, and for how many overflows.
    comparing: Option<(Option<ClientKey>, u64)>,
}

impl<R: Runtime> Recorder<R> {
    pub(super) fn new(core: Shared<Core<R>>, meta: Handle, id: u8) -> Self {
        Self { core, meta, id, comparing: None }
    }

    /// Until the shard has stopped and nothing is left.
    pub(super) async fn run(mut self, record: Arc<Notify>, stop: Shutdown) {
        loop {
            let commands = self.core.with(|core| core.shard.take_posted(COMMANDS_PER_PROPOSAL));
            if !commands.is_empty() {
                if !self.propose(commands, &stop).await {
                    return; // what is missing is found at the next start
                }
            } else if stop.is_triggered() {
                return;
            } else if !self.compare().await {
                record.notified().await;
            }
        }
    }

    /// Proposes until there is an answer. False: there will be none.
    async fn propose(&self, mut commands: Vec<Command>, stop: &Shutdown) -> bool {
        while !commands.is_empty() {
            let error = match self.meta.propose(commands.clone()).await {
                // A refusal says that it does not matter any more.
                Ok(answer) => {
                    enter(&self.core, |core, now_ms| core.shard.on_recorded(&answer, now_ms));
                    return true;
                }
                Err(ProposeError::Stopped) => return false,
                Err(ProposeError::NoLeader | ProposeError::Timeout) if stop.is_triggered() => {
                    return false;
                }
                Err(error) => error,
            };
            enter(&self.core, |core, now_ms| {
                core.shard.on_unrecorded(&mut commands, error, now_ms);
            });
            if error == ProposeError::TooLarge {
                tracing::error!(%error, "not recorded");
                return true;
            }
            R::sleep(REST_WITHOUT_LEADER).await;
        }
        true
    }

    /// Compares the next page of stored sessions with the shard's, if that is to be done.
    async fn compare(&mut self) -> bool {
        let wanted = || self.core.with(|core| core.shard.to_compare()).map(|upto| (None, upto));
        let Some((after, overflows)) = self.comparing.take().or_else(wanted) else { return false };
        let page = match read_records(&self.meta, after.as_ref()) {
            Ok(page) => page,
            Err(error) => {
                tracing::error!(%error, "cannot compare sessions with the stored ones");
                Vec::new()
            }
        };
        let Some((last, _)) = page.last() else {
            self.core.with(|core| core.shard.on_compared(overflows));
            return true;
        };
        self.comparing = Some((Some(last.clone()), overflows));
        // What was applied before the page was read has been told by then.
        R::sleep(Duration::from_millis(2 * TICK_MS)).await;
        let (here, id) = (self.meta.node(), self.id);
        enter(&self.core, |core, now_ms| {
            for (client, record) in &page {
                if record.node == here && core.shard.owner_of(&client.client_id) == id {
                    core.shard.record_again(&client.client_id, record, now_ms);
                }
            }
        });
        true
    }
}

/// Reads all retained messages, on a thread that may block.
async fn restore_retained<R: Runtime>(node: &Arc<Node>, meta: &Handle) -> Result<(), StoreError> {
    let wall_offset_ms = wall_offset_ms::<R>();
    node.fabric().retained.begin_load();
    let (node, meta) = (node.clone(), meta.clone());
    let loaded = R::spawn_blocking(move || {
        let mut messages = Vec::new();
        meta.read(|view| {
            meta::state::retained(view, None, |stored| {
                messages.push(Arc::new(message_of(&stored, true, 0, wall_offset_ms)));
                ControlFlow::Continue(())
            })
        })?;
        node.fabric().retained.finish_load(messages);
        Ok(())
    });
    loaded.await.unwrap_or_else(|panicked| {
        Err(StoreError::failed("reading the retained messages", panicked))
    })
}

type Found = (ClientKey, SessionRecord, Vec<StoredSubscription>);

fn read_sessions(meta: &Handle, after: Option<&ClientKey>) -> Result<Vec<Found>, StoreError> {
    meta.read(|view| {
        let mut page: Vec<Found> = Vec::new();
        let records = records(view, after)?;
        page.extend(records.into_iter().map(|(client, record)| (client, record, Vec::new())));
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

fn read_records(
    meta: &Handle,
    after: Option<&ClientKey>,
) -> Result<Vec<(ClientKey, SessionRecord)>, StoreError> {
    meta.read(|view| records(view, after))
}

fn records(
    view: &dyn View,
    after: Option<&ClientKey>,
) -> Result<Vec<(ClientKey, SessionRecord)>, StoreError> {
    let mut page = Vec::new();
    meta::state::sessions(view, after, |client, record| {
        page.push((client, record));
        full(page.len())
    })?;
    Ok(page)
}

/// Whether a page is full.
fn full(len: usize) -> ControlFlow<()> {
    if len < PAGE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}
