//! What all shards of one process share.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use meta::Handle;
use meta::steps::Steps;
use mqtt::routing::{SharedRoutes, slot_of};
use rt_abstract::{Address, Receiver, Runtime, Shutdown, Socket, mailbox, remove_socket_file};

use crate::access::Access;
use crate::config::{Config, Level};
use crate::elsewhere::Told;
use crate::messages::{Messages, Replay};
use crate::retained::Retained;
use crate::shard::{CONNECT_STEPS, Elsewhere, Fabric, LANES, Mail};
use crate::stats::{ShardStats, Snapshot};

/// The most shards a node can have.
pub const MAX_SHARDS: usize = 64;
/// Sockets on their way to a shard; when full, accepting shards wait.
const CONTROL_MAIL: usize = 1024;

/// One broker process: its configuration, its listening sockets, its counters, and the switch
/// that ends it. Made before the runtime starts, so that a busy port is a plain error.
#[derive(Debug)]
pub struct Node {
    config: Config,
    listeners: Vec<(Address, Socket)>,
    stats: Arc<[Arc<ShardStats>]>,
    shutdown: Shutdown,
    fabric: Arc<Fabric>,
    access: Arc<Access>,
    meta: Option<Handle>,
    connect_steps: Arc<Steps>,
    /// Shards that have not got back yet what the metadata has for them.
    unrestored: AtomicUsize,
    restored: Shutdown,
    /// The journal of messages, once it is open, and what was found in it.
    messages: OnceLock<Arc<Messages>>,
    replay: Mutex<Option<Replay>>,
    opened: Shutdown,
    /// Per shard, what the metadata tells of its sessions; taken at every tick.
    elsewhere: Vec<Mutex<Told>>,
    mailboxes: Mutex<Vec<Option<Receiver<Mail, LANES>>>>,
    seed: u64,
}

impl Node {
    /// Binds all listeners of `config` for `shards` shards, 1 to [`MAX_SHARDS`].
    ///
    /// `meta` keeps durable sessions and retained messages; without it nothing survives the process.
    ///
    /// # Errors
    /// What binding said, with the address in its text; `ErrorKind::InvalidInput` for a number of
    /// shards out of range.
    pub fn bind<R: Runtime>(
        config: Config,
        shards: usize,
        meta: Option<Handle>,
    ) -> io::Result<Arc<Self>> {
        if !(1..=MAX_SHARDS).contains(&shards) {
            let text = format!("{shards} shards: 1 to {MAX_SHARDS} are possible");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut listeners = Vec::new();
        for listener in &config.listeners {
            let bound = R::bind(&listener.address, listener.backlog)
                .and_then(|socket| Ok((socket.local_address()?, socket)))
                .map_err(|error| {
                    let text = format!("cannot listen on {}: {error}", listener.address);
                    io::Error::new(error.kind(), text)
                })?;
            listeners.push(bound);
        }
        let capacity = [CONTROL_MAIL, config.limits.max_mailbox_messages.max(1)];
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..shards).map(|_| mailbox(capacity)).unzip();
        let mut random = [0; 24];
        R::fill_random(&mut random);
        let (seed, secret) = random.split_at(8);
        let (first, second) = secret.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        let seed = number(seed);
        let secret = [number(first), number(second)];
        let retained =
            Retained::new(config.limits.max_retained_messages, config.limits.max_retained_bytes);
        let fabric = Fabric::new(senders, retained, SharedRoutes::new(seed), secret);
        let mut nonce_key = [0; 32];
        R::fill_random(&mut nonce_key);
        let access = Arc::new(Access::new(&config.auth, nonce_key));
        let connect_steps = Arc::new(Steps::new(&CONNECT_STEPS, shards, config.steps));
        Ok(Arc::new(Self {
            config,
            listeners,
            stats: (0..shards).map(|_| Arc::default()).collect(),
            shutdown: Shutdown::new(),
            fabric: Arc::new(fabric),
            access,
            meta,
            connect_steps,
            unrestored: AtomicUsize::new(shards),
            restored: Shutdown::new(),
            messages: OnceLock::new(),
            replay: Mutex::new(None),
            opened: Shutdown::new(),
            elsewhere: (0..shards).map(|_| Mutex::default()).collect(),
            mailboxes: Mutex::new(receivers.into_iter().map(Some).collect()),
            seed,
        }))
    }

    /// The bound MQTT addresses, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|(address, _)| address.clone()).collect()
    }

    /// The counters of all shards, in shard order.
    pub fn stats(&self) -> Vec<Snapshot> {
        self.stats.iter().map(|stats| stats.snapshot()).collect()
    }

    /// The switch that ends the broker: stop accepting, tell clients, drain, return.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Who may connect.
    pub fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where durable facts are kept, if they are.
    pub fn meta(&self) -> Option<&Handle> {
        self.meta.as_ref()
    }

    /// The messages that are kept, once their journal is open.
    pub fn messages(&self) -> Option<&Arc<Messages>> {
        self.messages.get()
    }

    /// The journal is open; `replay` is what was found in it.
    pub(crate) fn set_messages(&self, messages: Arc<Messages>, replay: Replay) {
        if self.messages.set(messages).is_ok() {
            *self.replay.lock().unwrap_or_else(PoisonError::into_inner) = Some(replay);
            self.opened.trigger();
        }
    }

    /// On once the journal is open.
    pub(crate) fn journal_opened(&self) -> &Shutdown {
        &self.opened
    }

    /// What was found in the journal and not taken yet.
    pub(crate) fn with_replay(&self, f: impl FnOnce(&mut Replay)) {
        if let Some(replay) = &mut *self.replay.lock().unwrap_or_else(PoisonError::into_inner) {
            f(replay);
        }
    }

    /// All shards have what is theirs: the rest belongs to sessions that are gone.
    pub(crate) fn forget_replay(&self) -> Option<Replay> {
        self.replay.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What the clients of a listener are promised.
    pub(crate) fn level(&self, listener: usize) -> Level {
        let listener = self.config.listeners.get(listener);
        listener.and_then(|it| it.level).unwrap_or(self.config.durability.level)
    }

    /// Tells the shard of a client what the metadata says.
    pub(crate) fn tell_owner(&self, client_id: &str, event: Elsewhere) {
        let shard = usize::from(slot_of(client_id)) % self.elsewhere.len();
        self.elsewhere[shard].lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Tells every shard.
    pub(crate) fn tell_all(&self, event: impl Fn() -> Elsewhere) {
        for shard in &self.elsewhere {
            shard.lock().unwrap_or_else(PoisonError::into_inner).push(event());
        }
    }

    /// Whether clients are served: everything durable is back, where there is any.
    pub fn is_serving(&self) -> bool {
        (self.meta.is_none() || self.restored.is_triggered()) && !self.shutdown.is_triggered()
    }

    /// What [`Node::tell_owner`] was told for a shard, in order. For the shard alone.
    pub(crate) fn take_elsewhere(&self, shard: usize) -> Vec<Elsewhere> {
        let (events, dropped_wills) =
            self.elsewhere[shard].lock().unwrap_or_else(PoisonError::into_inner).take();
        if dropped_wills > 0 {
            self.stats[shard].dropped_wills.add(dropped_wills);
        }
        events
    }

    /// Where the time of CONNECTs goes, by [`CONNECT_STEPS`].
    pub fn connect_steps(&self) -> &Arc<Steps> {
        &self.connect_steps
    }

    /// One more shard has got back what the metadata has for it: whether all have now. The last one
    /// triggers [`Node::all_restored`].
    pub(crate) fn is_last_to_restore(&self) -> bool {
        self.unrestored.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// On when all shards have: a publish accepted by one must find the sessions of the others.
    pub(crate) fn all_restored(&self) -> &Shutdown {
        &self.restored
    }

    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// The live counters of all shards, in shard order.
    pub(crate) fn shard_stats(&self) -> &Arc<[Arc<ShardStats>]> {
        &self.stats
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The listening sockets for one more shard: all shards accept from the same queues.
    pub(crate) fn listening_sockets(&self) -> io::Result<Vec<Socket>> {
        self.listeners.iter().map(|(_, socket)| socket.try_clone()).collect()
    }

    pub(crate) fn take_mailbox(&self, shard: usize) -> Receiver<Mail, LANES> {
        let mut mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        mailboxes[shard].take().expect("each shard is served once")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for (address, _) in &self.listeners {
            remove_socket_file(address);
        }
    }
}
