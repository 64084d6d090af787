//! The node's retained messages.
//!
//! One store for all shards, behind a lock that is held for one insert or one bounded page of a
//! scan and never across an await. Storing and finding the live receivers of a retained publish
//! happen under the same lock, as does reading for a new subscription: so a subscriber whose
//! route was added first gets the live message, and one whose scan came first gets it as
//! retained, but nobody gets an older value after a newer one, or neither.
//!
//! The broker's own topics below `$SYS/` lie here too, so that they reach late subscribers like any
//! retained message; they are few, and the limits and counts of users' messages leave them out.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mqtt::routing::{RetainedTree, ScanCursor};
use mqtt::session::{Lifetime, Message};
use rt_abstract::planted::{Bug, is_planted};

/// See the module's head.
#[derive(Debug)]
pub struct Retained {
    max_messages: usize,
    max_bytes: usize,
    store: Mutex<Store>,
}

/// The store, locked.
#[derive(Debug)]
pub struct Locked<'a> {
    limits: (usize, usize),
    store: MutexGuard<'a, Store>,
}

#[derive(Debug, Default)]
struct Store {
    tree: RetainedTree<Arc<Message>>,
    /// Users' messages in `tree`.
    messages: usize,
    /// Their bytes.
    bytes: usize,
    /// (deadline, topic) of those that expire.
    expiries: BTreeSet<(u64, Box<str>)>,
    /// While messages are loaded: the topics cleared meanwhile. At most as many as change during a
    /// start.
    cleared: Option<HashSet<Box<str>>>,
}

impl Retained {
    /// An empty store with its bounds.
    pub fn new(max_messages: usize, max_bytes: usize) -> Self {
        Self { max_messages, max_bytes, store: Mutex::default() }
    }

    /// Locks the store. Not to be held longer than one publish or one page takes.
    pub fn lock(&self) -> Locked<'_> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { limits: (self.max_messages, self.max_bytes), store }
    }

    /// Messages will be read and given to [`Retained::finish_load`]: what changes from now on is newer.
    pub fn begin_load(&self) {
        self.lock().store.cleared = Some(HashSet::new());
    }

    /// Takes what was read since [`Retained::begin_load`], all in one step, unless everything was
    /// replaced meanwhile. Takes its time; the lock is held for what changed only.
    pub fn finish_load(&self, messages: Vec<Arc<Message>>) {
        let mut loaded = Store::of(messages);
        let mut store = self.lock().store;
        let Some(cleared) = store.cleared.take() else { return };
        cleared.iter().for_each(|topic| loaded.remove(topic));
        let newer = std::mem::take(&mut store.tree);
        newer.into_messages().for_each(|message| loaded.put(message));
        *store = loaded;
    }
}

impl Locked<'_> {
    /// Whether a message of `size_bytes` on `topic` may be kept.
    pub fn has_room(&self, topic: &str, size_bytes: usize) -> bool {
        let (max_messages, max_bytes) = self.limits;
        let old_bytes = self.store.tree.get(topic).map(|old| old.size_bytes());
        let bytes = self.store.bytes - old_bytes.unwrap_or(0) + size_bytes;
        bytes <= max_bytes && (old_bytes.is_some() || self.store.messages < max_messages)
    }

    /// Whether the topic has a retained message.
    pub fn has(&self, topic: &str) -> bool {
        self.store.tree.get(topic).is_some()
    }

    /// Keeps a message that the metadata has: whether there was room was asked before, and what is
    /// stored and what is read must not differ.
    pub fn set_stored(&mut self, message: Arc<Message>) {
        if is_planted(Bug::StaleRetained) && self.has(message.draft().topic) {
            return;
        }
        self.store.put(message);
    }

    /// Forgets all but the broker's own messages.
    pub fn clear_users(&mut self) {
        let mut own = Vec::new();
        let mut cursor = ScanCursor::default();
        self.store.tree.scan("$SYS/#", &mut cursor, usize::MAX, |_, message| {
            own.push(message.clone());
        });
        *self.store = Store::default();
        for message in own {
            self.set(message);
        }
    }

    /// Keeps `message` as the retained one of its topic; false when the store is full.
    pub fn set(&mut self, message: Arc<Message>) -> bool {
        let topic = message.draft().topic;
        if is_users(topic) && !self.has_room(topic, message.size_bytes()) {
            // Refused, but the old value is not the last one any more.
            self.clear(topic);
            return false;
        }
        self.store.put(message);
        true
    }

    /// Removes the retained message of a topic.
    pub fn clear(&mut self, topic: &str) {
        if let Some(cleared) = self.store.cleared.as_mut() {
            cleared.insert(topic.into());
        }
        self.store.remove(topic);
    }

    /// One page of the messages that match `filter`, expired ones left out; false when the scan
    /// is complete.
    pub fn scan(
        &self,
        filter: &str,
        cursor: &mut ScanCursor,
        page: usize,
        now_ms: u64,
        mut found: impl FnMut(&Arc<Message>),
    ) -> bool {
        self.store.tree.scan(filter, cursor, page, |_, message| {
            if message.lifetime(now_ms) != Lifetime::Expired {
                found(message);
            }
        });
        !cursor.is_done()
    }

    /// Frees up to `max` messages that have expired, whether anybody asks for them or not; their
    /// topics.
    pub fn sweep(&mut self, now_ms: u64, max: usize) -> Vec<Box<str>> {
        let mut swept = Vec::new();
        while swept.len() < max {
            match self.store.expiries.first() {
                Some((at, topic)) if *at <= now_ms => {
                    let topic = topic.clone();
                    self.clear(&topic);
                    swept.push(topic);
                }
                _ => break,
            }
        }
        swept
    }

    /// Users' messages held, and their bytes.
    pub fn size(&self) -> (usize, usize) {
        (self.store.messages, self.store.bytes)
    }
}

impl Store {
    fn of(messages: Vec<Arc<Message>>) -> Self {
        let users = messages.iter().filter(|message| is_users(message.draft().topic));
        let (count, bytes) =
            users.fold((0, 0), |(count, bytes), message| (count + 1, bytes + message.size_bytes()));
        let expiring = messages.iter().filter_map(|message| {
            message.expires_at_ms().map(|at| (at.get(), message.draft().topic.into()))
        });
        Self {
            messages: count,
            bytes,
            expiries: expiring.collect(),
            cleared: None,
            tree: messages.into_iter().map(|it| (it.draft().topic.into(), it)).collect(),
        }
    }

    fn remove(&mut self, topic: &str) {
        self.forget_expiry(topic);
        if let Some(old) = self.tree.remove(topic)
            && is_users(topic)
        {
            self.messages -= 1;
            self.bytes -= old.size_bytes();
        }
    }

    fn put(&mut self, message: Arc<Message>) {
        let draft = message.draft();
        let topic = draft.topic;
        if let Some(at) = message.expires_at_ms() {
            self.expiries.insert((at.get(), topic.into()));
        }
        let old = self.tree.insert(topic, message.clone());
        if let Some(at) = old.as_ref().and_then(|old| old.expires_at_ms())
            && message.expires_at_ms() != Some(at)
        {
            self.expiries.remove(&(at.get(), topic.into()));
        }
        if is_users(topic) {
            self.messages += usize::from(old.is_none());
            self.bytes -= old.map_or(0, |old| old.size_bytes());
            self.bytes += message.size_bytes();
        }
    }

    fn forget_expiry(&mut self, topic: &str) {
        if let Some(at) = self.tree.get(topic).and_then(|old| old.expires_at_ms()) {
            self.expiries.remove(&(at.get(), topic.into()));
        }
    }
}

/// Clients cannot publish below `$SYS/`: what lies there is the broker's own.
fn is_users(topic: &str) -> bool {
    !topic.starts_with("$SYS/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt::session::Draft;
    use mqtt::wire::QoS;

    fn message(topic: &str, payload: &str, expires_at_ms: u64) -> Arc<Message> {
        Arc::new(Message::keep(&Draft {
            topic,
            payload: payload.as_bytes(),
            owner: None,
            properties: &[],
            qos: QoS::AtMostOnce,
            retain: true,
            expires_at_ms: expires_at_ms.try_into().ok(),
            origin: 0,
        }))
    }

    fn all(store: &Locked<'_>, now_ms: u64) -> Vec<String> {
        let mut found = Vec::new();
        let mut cursor = ScanCursor::default();
        while store.scan("#", &mut cursor, 10, now_ms, |message| {
            found.push(String::from_utf8(message.draft().payload.to_vec()).unwrap());
        }) {}
        found
    }

    #[test]
    fn replaces_clears_and_counts_bytes() {
        let retained = Retained::new(2, 100);
        let mut store = retained.lock();
        assert!(store.set(message("a", "1", 0)));
        assert!(store.set(message("a", "22", 0)));
        assert!(store.set(message("b", "3", 0)));
        assert!(!store.set(message("c", "4", 0)), "two topics at most");
        assert_eq!(store.size(), (2, 5));
        assert_eq!(all(&store, 0), ["22", "3"]);
        store.clear("a");
        store.clear("missing");
        assert!(!store.set(message("b", &"x".repeat(100), 0)), "100 bytes at most");
        assert_eq!(store.size(), (0, 0), "what it was to replace is not the last value any more");
    }

    #[test]
    fn what_changes_while_messages_are_loaded_is_newer() {
        let retained = Retained::new(9, 1000);
        retained.lock().set(message("$SYS/broker/version", "x", 0));
        retained.begin_load();
        let read = ["a", "b", "b/c", "b-c", "d"].map(|topic| message(topic, "old", 50));
        {
            let mut store = retained.lock();
            store.set_stored(message("b", "new", 0));
            store.set_stored(message("d", "new", 0));
            store.clear("d");
            store.clear("e");
            store.set_stored(message("f", "new", 0));
        }
        retained.finish_load(read.to_vec());
        let mut store = retained.lock();
        assert_eq!(all(&store, 0), ["old", "new", "old", "old", "new"]);
        assert_eq!(store.size(), (5, 4 + 4 + 6 + 6 + 4));
        assert_eq!(store.sweep(60, 10), ["a".into(), "b-c".into(), "b/c".into()]);
        assert_eq!(store.size(), (2, 8));
        assert!(store.has("$SYS/broker/version"));
        drop(store);
        retained.begin_load();
        retained.lock().clear_users();
        retained.finish_load(read.to_vec());
        assert_eq!(retained.lock().size(), (0, 0), "what was read is not there any more");
    }

    #[test]
    fn the_brokers_own_topics_are_not_counted() {
        let retained = Retained::new(1, 2);
        let mut store = retained.lock();
        assert!(store.set(message("$SYS/broker/uptime", "1", 0)));
        assert!(store.set(message("$SYS/broker/uptime", "22", 0)));
        assert!(store.set(message("$SYS/broker/version", "x", 0)));
        assert!(store.set(message("a", "1", 0)), "room for one of a user's");
        assert_eq!(store.size(), (1, 2));
        store.clear("$SYS/broker/version");
        assert_eq!(store.size(), (1, 2));
        store.clear("a");
        assert_eq!((store.size(), store.store.tree.len()), ((0, 0), 1));
    }

    #[test]
    fn expired_messages_are_hidden_and_swept() {
        let retained = Retained::new(9, 1000);
        let mut store = retained.lock();
        store.set(message("a", "1", 50));
        store.set(message("b", "2", 60));
        store.set(message("b", "3", 500));
        store.set(message("c", "4", 0));
        assert_eq!(all(&store, 50), ["3", "4"]);
        assert_eq!(store.sweep(70, 10), ["a".into()]);
        assert_eq!(store.size(), (2, 4));
        store.clear("b");
        assert!(store.sweep(1_000, 10).is_empty());
    }
}
