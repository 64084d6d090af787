//! The structures under comparison, as a node would use each of them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use arc_swap::ArcSwap;
use mqtt::routing::{FilterTree, Matched, Routes, ShardSet, SharedRoutes};

/// A structure that a node could keep its routes in.
pub trait Candidate {
    /// What it is called in the results.
    const NAME: &'static str;
    /// What a reading thread has.
    type Reader: Reader + Send;

    /// Empty.
    fn new() -> Self;
    /// One more thread that matches. It lives until the writer has settled.
    fn reader(&self) -> Self::Reader;
    /// Subscribes. In effect when it returns or, if changes are pipelined, with the next
    /// [`settle`](Self::settle).
    fn add(&mut self, filter: &str, shard: u8);
    /// Unsubscribes.
    fn remove(&mut self, filter: &str, shard: u8);
    /// Waits until all changes are in effect.
    fn settle(&mut self) {}
}

/// A thread's way to match.
pub trait Reader {
    /// All that wants the topic.
    fn matches(&mut self, topic: &str, into: &mut Matched);
}

/// A: one immutable snapshot behind an atomic pointer; each change copies the path to it.
pub struct PathCopied(Arc<ArcSwap<Routes>>);

impl Candidate for PathCopied {
    const NAME: &'static str = "A path copied";
    type Reader = Arc<ArcSwap<Routes>>;

    fn new() -> Self {
        Self(Arc::new(ArcSwap::from_pointee(Routes::new(1))))
    }

    fn reader(&self) -> Self::Reader {
        self.0.clone()
    }

    fn add(&mut self, filter: &str, shard: u8) {
        let mut routes = Routes::clone(&self.0.load());
        routes.add(filter, shard);
        self.0.store(Arc::new(routes));
    }

    fn remove(&mut self, filter: &str, shard: u8) {
        let mut routes = Routes::clone(&self.0.load());
        routes.remove(filter, shard);
        self.0.store(Arc::new(routes));
    }
}

impl Reader for Arc<ArcSwap<Routes>> {
    fn matches(&mut self, topic: &str, into: &mut Matched) {
        self.load().matches(topic, into);
    }
}

/// B: a table per reader, each change sent to all of them. The writer is one of the readers, as
/// a shard would be: it has a table of its own.
pub struct Replicas {
    own: FilterTree<ShardSet>,
    others: std::cell::RefCell<Vec<Link>>,
    /// Changes sent since the last wait.
    sent: usize,
}

struct Link {
    changes: SyncSender<Change>,
    applied: Receiver<()>,
}

enum Change {
    Set(Box<str>, ShardSet),
    /// Say when all before is done.
    Report,
}

/// Another thread's table.
pub struct Replica {
    tree: FilterTree<ShardSet>,
    changes: Receiver<Change>,
    applied: SyncSender<()>,
}

/// Changes that may be under way: what a shard might read from its sockets in one turn.
const PIPELINED: usize = 64;

impl Replicas {
    fn set(&mut self, filter: &str, shards: ShardSet) {
        set(&mut self.own, filter, shards);
        for link in &*self.others.borrow() {
            // A reader that has gone needs no changes any more.
            let _gone = link.changes.send(Change::Set(filter.into(), shards));
        }
        self.sent += 1;
        if self.sent == PIPELINED {
            self.settle();
        }
    }
}

impl Candidate for Replicas {
    const NAME: &'static str = "B replica per reader";
    type Reader = Replica;

    fn new() -> Self {
        Self { own: FilterTree::new(1), others: Vec::new().into(), sent: 0 }
    }

    fn reader(&self) -> Replica {
        let mut tree = FilterTree::new(1);
        for (filter, shards) in self.own.iter() {
            *tree.entry(&filter) = *shards;
        }
        let (changes, to_apply) = sync_channel(2 * PIPELINED);
        let (report, applied) = sync_channel(1);
        self.others.borrow_mut().push(Link { changes, applied });
        Replica { tree, changes: to_apply, applied: report }
    }

    fn add(&mut self, filter: &str, shard: u8) {
        let mut shards = self.own.get(filter).copied().unwrap_or_default();
        shards.insert(shard);
        self.set(filter, shards);
    }

    fn remove(&mut self, filter: &str, shard: u8) {
        let mut shards = self.own.get(filter).copied().unwrap_or_default();
        shards.remove(shard);
        self.set(filter, shards);
    }

    fn settle(&mut self) {
        self.sent = 0;
        self.others.get_mut().retain(|link| {
            link.changes.send(Change::Report).is_ok() && link.applied.recv().is_ok()
        });
    }
}

impl Reader for Replica {
    fn matches(&mut self, topic: &str, into: &mut Matched) {
        for change in self.changes.try_iter() {
            match change {
                Change::Set(filter, shards) => set(&mut self.tree, &filter, shards),
                Change::Report => drop(self.applied.try_send(())),
            }
        }
        into.clear();
        self.tree.matches(topic, |found| into.shards = into.shards.union(*found));
    }
}

fn set(tree: &mut FilterTree<ShardSet>, filter: &str, shards: ShardSet) {
    if shards.is_empty() {
        tree.remove(filter);
    } else {
        *tree.entry(filter) = shards;
    }
}

/// C: a concurrent table that looks once per shape of filter.
pub struct Shared(Arc<SharedRoutes>);

impl Candidate for Shared {
    const NAME: &'static str = "C shared table";
    type Reader = Arc<SharedRoutes>;

    fn new() -> Self {
        Self(Arc::new(SharedRoutes::new(1)))
    }

    fn reader(&self) -> Self::Reader {
        self.0.clone()
    }

    fn add(&mut self, filter: &str, shard: u8) {
        self.0.add(filter, shard);
    }

    fn remove(&mut self, filter: &str, shard: u8) {
        self.0.remove(filter, shard);
    }
}

impl Reader for Arc<SharedRoutes> {
    fn matches(&mut self, topic: &str, into: &mut Matched) {
        SharedRoutes::matches(self, topic, into);
    }
}
