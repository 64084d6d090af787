//! A shard together with the sockets of its connections.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rt_abstract::{Closer, Notify, Runtime, Shared, Stream};

use crate::shard::{Arrival, ConnKey, ConnectTimes, Shard};

pub(super) type WriteHalf<R> = <<R as Runtime>::Stream as Stream>::WriteHalf;
pub(super) type StreamCloser<R> = <<R as Runtime>::Stream as Stream>::Closer;

/// What the tasks of one shard share.
pub(super) struct Core<R: Runtime> {
    pub(super) shard: Shard,
    /// By connection key.
    links: Vec<Option<Link<R>>>,
    flush: Arc<Notify>,
    /// Wakes the task that waits for room in other shards' mailboxes.
    post: Arc<Notify>,
    /// Wakes the task that proposes what nobody waits for.
    record: Arc<Notify>,
    /// Wakes the task that reads messages back.
    fetch: Arc<Notify>,
    /// Readers that wait for room in mailboxes, or for the journal.
    paused: Vec<ConnKey>,
}

struct Link<R: Runtime> {
    closer: StreamCloser<R>,
    /// Absent before the socket is split and while a writer has it.
    write: Option<WriteHalf<R>>,
    /// Its reader, when it is stopped.
    reader: Option<Waker>,
    /// In the list of those that wait for mail to be posted.
    listed: bool,
}

/// Runs `f` with the time in milliseconds, then does what it left to be done: sockets to shut down
/// or let go, writers to wake.
pub(super) fn enter<R: Runtime, T>(
    core: &Shared<Core<R>>,
    f: impl FnOnce(&mut Core<R>, u64) -> T,
) -> T {
    let now = R::now();
    core.with(|core| {
        core.shard.begin_turn(now);
        let result = f(core, now.as_millis());
        core.settle();
        result
    })
}

/// Wall clock minus the shards' clock, in milliseconds.
pub(super) fn wall_offset_ms<R: Runtime>() -> u64 {
    R::wall_clock_ms().saturating_sub(R::now().as_millis())
}

impl<R: Runtime> Core<R> {
    pub(super) fn new(
        shard: Shard,
        flush: Arc<Notify>,
        post: Arc<Notify>,
        record: Arc<Notify>,
        fetch: Arc<Notify>,
    ) -> Self {
        Self { shard, links: Vec::new(), flush, post, record, fetch, paused: Vec::new() }
    }

    /// Ready when a stopped reader may go on.
    pub(super) fn poll_may_read(
        &mut self,
        key: ConnKey,
        now_ms: u64,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if self.shard.may_read(key, now_ms) {
            return Poll::Ready(());
        }
        let shared = self.shard.is_congested() || self.shard.is_backed_up();
        let Some(link) = self.link(key) else { return Poll::Ready(()) };
        link.reader = Some(cx.waker().clone());
        if shared && !std::mem::replace(&mut link.listed, true) {
            self.paused.push(key);
        }
        Poll::Pending
    }

    /// Wakes a stopped reader, to look again.
    pub(super) fn wake_reader(&mut self, key: ConnKey) {
        if let Some(reader) = self.link(key).and_then(|link| link.reader.take()) {
            reader.wake();
        }
    }

    /// Opens a connection for a socket that is not split yet.
    pub(super) fn open(
        &mut self,
        closer: StreamCloser<R>,
        arrival: Arrival,
        now_ms: u64,
    ) -> Option<ConnKey> {
        let Arrival { origin, level, times } = arrival;
        let times = self.shard.begin_building(times);
        let key = self.shard.open(now_ms)?;
        self.shard.set_origin(key, origin, level);
        let at = key.0 as usize;
        if self.links.len() <= at {
            self.links.resize_with(at + 1, || None);
        }
        debug_assert!(self.links[at].is_none(), "a freed connection lets its socket go at once");
        self.links[at] = Some(Link { closer, write: None, reader: None, listed: false });
        self.shard.set_times(key, times);
        Some(key)
    }

    /// The socket was split: writers may start.
    pub(super) fn give_write_half(&mut self, key: ConnKey, half: WriteHalf<R>) {
        if let Some(link) = self.link(key) {
            link.write = Some(half);
            self.shard.wake_writer(key);
        }
    }

    /// Forgets the socket, which goes to another shard with what its CONNECT has taken.
    pub(super) fn hand_off(&mut self, key: ConnKey) -> Option<Box<ConnectTimes>> {
        let times = self.shard.take_times(key);
        self.shard.on_handed_off(key);
        times
    }

    /// The next connection to write to, with its write half.
    pub(super) fn next_writer(&mut self) -> Option<(ConnKey, WriteHalf<R>)> {
        while let Some(key) = self.shard.take_dirty() {
            match self.link(key).and_then(|link| link.write.take()) {
                Some(half) => return Some((key, half)),
                None => self.shard.defer_writer(key),
            }
        }
        None
    }

    /// A writer ends. To be called in the same turn in which the shard said so: between the two
    /// another writer must not start.
    pub(super) fn return_write_half(&mut self, key: ConnKey, half: WriteHalf<R>) {
        if let Some(link) = self.link(key) {
            link.write = Some(half);
        }
    }

    fn link(&mut self, key: ConnKey) -> Option<&mut Link<R>> {
        self.links.get_mut(key.0 as usize)?.as_mut()
    }

    fn settle(&mut self) {
        self.shard.end_turn();
        if self.shard.has_endings() {
            for key in self.shard.take_kills() {
                if let Some(link) = self.link(key) {
                    link.closer.kill();
                }
                self.wake_reader(key);
            }
            for key in self.shard.take_freed() {
                self.links[key.0 as usize] = None;
            }
        }
        if self.shard.has_dirty() {
            self.flush.notify();
        }
        if self.shard.has_posted() {
            self.record.notify();
        }
        if self.shard.has_fetches() {
            self.fetch.notify();
        }
        if self.shard.is_congested() {
            self.post.notify();
        } else if !self.paused.is_empty() && !self.shard.is_backed_up() {
            for key in std::mem::take(&mut self.paused) {
                if let Some(link) = self.link(key) {
                    link.listed = false;
                }
                self.wake_reader(key);
            }
        }
    }
}
