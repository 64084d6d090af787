//! One shard from start to end.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use meta::store::StoreError;
use rt_abstract::{Core as RuntimeCore, Listener, MaybeSend, Notify, Runtime, Shared, Shutdown};

use super::accept::{accept_loop, end_accepting, mail_loop};
use super::core::{Core, enter};
use super::fetch::fetch_loop;
use super::flush::{flush_loop, post_loop};
use super::{durable, messages};
use crate::node::Node;
use crate::shard::{Lane, Mail, Shard, Sys, TICK_MS};

/// How often a stopping shard looks whether its connections are gone.
const DRAIN_POLL: Duration = Duration::from_millis(5);
/// How much longer than its close timeout a connection may take before it is abandoned.
const DRAIN_GRACE_MS: u64 = 1_000;

/// Runs one shard of `node` until the node shuts down, then tells its clients, lets what is owed
/// to them go out within the close timeout, and returns with no task left.
///
/// `ready` is called when clients are accepted: after everything durable is back.
///
/// # Errors
/// A listening socket that this runtime cannot take, or a store that cannot be read.
///
/// # Panics
/// When the same core is served twice.
pub async fn serve<R: Runtime>(
    node: Arc<Node>,
    core: RuntimeCore,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let id = core.index;
    let mailbox = node.take_mailbox(id);
    let (flush, post) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let limits = node.config().limits.clone();
    let close_timeout_ms = u64::from(limits.close_timeout_ms);
    let now_ms = R::now().as_millis();
    let mut shard = Shard::new(
        id as u8,
        limits,
        node.fabric().clone(),
        node.shard_stats()[id].clone(),
        node.seed(),
        now_ms,
    );
    shard.set_access(node.access().clone());
    shard.measure_steps(R::now, node.connect_steps().clone());
    if id == 0
        && let Some(sys) =
            Sys::new(node.config().sys_interval_s, node.shard_stats().clone(), now_ms)
    {
        shard.speak_for_node(sys);
    }
    let (record, stored) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    if let Some(meta) = node.meta() {
        shard.set_durability(meta.clone(), now_ms, R::wall_clock_ms());
    }
    let fetch = Arc::new(Notify::new());
    let core = Core::<R>::new(shard, flush.clone(), post.clone(), record.clone(), fetch.clone());
    let core = Shared::new(core);
    let stopping = node.shutdown().clone();
    // All but what the mail needs ends with the first, the rest with the second.
    let (stopped, received) = (Shutdown::new(), Shutdown::new());

    let mut tasks = Vec::new();
    tasks
        .push(spawn_vital::<R, _>(&node, flush_loop(core.clone(), flush.clone(), stopped.clone())));
    let receiving =
        spawn_vital::<R, _>(&node, mail_loop(node.clone(), core.clone(), mailbox, stored.clone()));
    let posting = post_loop(node.clone(), core.clone(), post.clone(), stopped.clone());
    tasks.push(spawn_vital::<R, _>(&node, posting));
    let mut recording = Vec::new();
    let mut restored = true;
    if let Some(meta) = node.meta().cloned() {
        let restoring = async {
            meta.ready().await;
            if meta.has_failed() {
                return Err(StoreError::failed("starting", "the metadata has failed"));
            }
            durable::restore(&node, &core, &meta, id as u8).await
        };
        // There may be no majority, or another shard that cannot be restored.
        match unless_stopped(&stopping, restoring).await {
            Some(result) => {
                result.map_err(io::Error::from)?;
                let recorder = durable::Recorder::new(core.clone(), meta, id as u8);
                let loop_ = recorder.run(record.clone(), stopped.clone());
                recording.push(spawn_vital::<R, _>(&node, loop_));
                if node.messages().is_some() {
                    let storing = messages::stored_loop(
                        node.clone(),
                        core.clone(),
                        id,
                        stored.clone(),
                        received.clone(),
                    );
                    recording.push(spawn_vital::<R, _>(&node, storing));
                    let fetching =
                        fetch_loop(node.clone(), core.clone(), fetch.clone(), stopped.clone());
                    tasks.push(spawn_vital::<R, _>(&node, fetching));
                }
            }
            None => restored = false,
        }
    }
    if restored {
        // Not earlier: a will that is due finds the sessions of all shards.
        let ticking = tick_loop(node.clone(), core.clone(), id, stopped.clone());
        tasks.push(spawn_vital::<R, _>(&node, ticking));
        for (at, socket) in node.listening_sockets()?.into_iter().enumerate() {
            let level = node.level(at);
            let listener = R::listener(socket)?;
            tasks.push(R::spawn(end_accepting(listener.closer(), stopping.clone())));
            let accepting =
                accept_loop(node.clone(), core.clone(), listener, level, stopping.clone());
            tasks.push(R::spawn(accepting));
        }
        ready();
    }
    stopping.wait().await;
    if let Some(meta) = node.meta() {
        meta.end_soon(); // there may be no majority to wait for
    }
    enter(&core, |core, now_ms| core.shard.shut_down(now_ms));
    let give_up_ms = R::now().as_millis() + close_timeout_ms + DRAIN_GRACE_MS;
    while core.with(|core| core.shard.connections()) > 0 {
        if R::now().as_millis() > give_up_ms {
            tracing::warn!("connections did not end in time");
            break;
        }
        R::sleep(DRAIN_POLL).await;
    }
    all_appended(&core).await;
    stopped.trigger();
    flush.notify();
    post.notify();
    fetch.notify();
    // The mailbox may be full of what nobody will read any more; its loop drains it.
    while node.fabric().mailbox(id as u8).try_send(Lane::Control as usize, Mail::Stop).is_err() {
        node.fabric().mailbox(id as u8).room(Lane::Control as usize).await;
    }
    record.notify();
    join(receiving).await;
    // Its last mail was to be recorded too, and the journal may have been behind.
    all_appended(&core).await;
    received.trigger();
    if let Some(messages) = node.messages() {
        messages.wake(id).notify();
    }
    for task in tasks.into_iter().chain(recording) {
        join(task).await;
    }
    Ok(())
}

/// Waits for what the shard has recorded to be appended. Ends: the journal makes room, or has failed.
async fn all_appended<R: Runtime>(core: &Shared<Core<R>>) {
    while core.with(|core| core.shard.has_unappended()) {
        R::sleep(DRAIN_POLL).await;
    }
}

async fn join<E: std::fmt::Display>(task: impl Future<Output = Result<(), E>>) {
    if let Err(panicked) = task.await {
        tracing::error!(%panicked, "a task of the shard panicked");
    }
}

/// What `work` comes to; `None` when `stop` came first.
async fn unless_stopped<T>(stop: &Shutdown, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut stopped) = (pin!(work), pin!(stop.wait()));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => stopped.as_mut().poll(cx).map(|()| None),
    })
    .await
}

async fn tick_loop<R: Runtime>(
    node: Arc<Node>,
    core: Shared<Core<R>>,
    id: usize,
    stopped: Shutdown,
) {
    let mut interval = R::interval(Duration::from_millis(TICK_MS));
    while !stopped.is_triggered() {
        interval.tick().await;
        let wall_ms = R::wall_clock_ms();
        let elsewhere = node.take_elsewhere(id);
        enter(&core, |core, now_ms| {
            core.shard.set_wall_clock(now_ms, wall_ms);
            for event in &elsewhere {
                core.shard.on_elsewhere(event, now_ms);
            }
            core.shard.on_tick(now_ms);
        });
    }
}

/// Starts a task that the shard cannot live without: should it panic, the node shuts down instead
/// of serving on half dead.
fn spawn_vital<R: Runtime, F>(node: &Arc<Node>, task: F) -> R::JoinHandle<()>
where
    F: Future<Output = ()> + MaybeSend + 'static,
{
    let node = node.clone();
    R::spawn(async move {
        let mut guard = ShutDownUnlessDone { node, done: false };
        task.await;
        guard.done = true;
    })
}

struct ShutDownUnlessDone {
    node: Arc<Node>,
    done: bool,
}

impl Drop for ShutDownUnlessDone {
    fn drop(&mut self) {
        if !self.done && !self.node.shutdown().is_triggered() {
            tracing::error!("a task of a shard ended before its time: shutting down");
            self.node.shutdown().trigger();
        }
    }
}
