//! The node's routes behind one atomic pointer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use mqtt::routing::Routes;

/// The current snapshot of the routes. Readers take it without waiting; writers make a new one,
/// which shares all that did not change, one after another.
#[derive(Debug)]
pub struct SharedRoutes {
    current: ArcSwap<Routes>,
    writer: Mutex<()>,
}

impl SharedRoutes {
    /// No routes yet; `seed` seeds their hashes.
    pub fn new(seed: u64) -> Self {
        Self { current: ArcSwap::from_pointee(Routes::new(seed)), writer: Mutex::new(()) }
    }

    /// The snapshot in force. Not to be kept longer than one publish.
    pub fn load(&self) -> Guard<Arc<Routes>> {
        self.current.load()
    }

    /// Shard `shard` has a plain subscriber under `filter`. In effect for every publish that
    /// loads the routes after this returns.
    pub fn add(&self, filter: &str, shard: u8) {
        self.change(|routes| routes.add(filter, shard));
    }

    /// Shard `shard` has no plain subscriber under `filter` any more.
    pub fn remove(&self, filter: &str, shard: u8) {
        self.change(|routes| routes.remove(filter, shard));
    }

    /// Shard `shard` has this many members of a share group under `filter`.
    pub fn set_group(&self, filter: &str, name: &str, shard: u8, members: u32) {
        self.change(|routes| routes.set_group(filter, name, shard, members));
    }

    fn change(&self, change: impl FnOnce(&mut Routes) -> bool) {
        let _writer: MutexGuard<'_, ()> =
            self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut routes = Routes::clone(&self.current.load());
        if change(&mut routes) {
            self.current.store(Arc::new(routes));
        }
    }
}
