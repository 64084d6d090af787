//! The maps that all cores share.

use dashmap::{DashMap, DashSet};
use foldhash::fast::RandomState;
use std::sync::Arc;

/// A tenant, as a number.
pub type Tenant = u64;
/// A client's name.
pub type ClientId = [u8; 16];

/// What is known of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which core has its connection.
    pub core: u64,
    /// Its number there.
    pub number: u64,
}

/// Who is connected, by tenant.
pub trait Registry: Default + Send + Sync + 'static {
    /// Adds a client, or replaces it.
    fn insert(&self, tenant: Tenant, client: ClientId, entry: Entry);

    /// Removes a client; whether it was there.
    fn remove(&self, tenant: Tenant, client: &ClientId) -> bool;

    /// Shows all clients of a tenant to `visit`, in no order. Those that come or go meanwhile may be
    /// among them or not.
    fn each(&self, tenant: Tenant, visit: impl FnMut(&ClientId));
}

/// A map of maps: readers of the outer one hold its lock while they change the inner one.
#[derive(Debug, Default)]
pub struct Nested {
    tenants: DashMap<Tenant, DashMap<ClientId, Entry, RandomState>, RandomState>,
}

/// One map for all clients, and an index of them by tenant, both behind the same kind of locks.
#[derive(Debug, Default)]
pub struct FlatLocked {
    clients: DashMap<(Tenant, ClientId), Entry, RandomState>,
    index: DashMap<Tenant, Arc<DashSet<ClientId, RandomState>>, RandomState>,
}

/// The same without locks.
#[derive(Debug, Default)]
pub struct FlatLockFree {
    clients: papaya::HashMap<(Tenant, ClientId), Entry, RandomState>,
    index: papaya::HashMap<Tenant, papaya::HashSet<ClientId, RandomState>, RandomState>,
}

impl Nested {
    /// Whether changing a client would wait for a lock, which is for ever when the caller holds it.
    #[cfg(test)]
    pub fn would_wait(&self, tenant: Tenant, client: ClientId) -> bool {
        let Some(clients) = self.tenants.try_get(&tenant).try_unwrap() else { return true };
        clients.try_entry(client).is_none()
    }
}

impl Registry for Nested {
    fn insert(&self, tenant: Tenant, client: ClientId, entry: Entry) {
        if let Some(clients) = self.tenants.get(&tenant) {
            clients.insert(client, entry);
            return;
        }
        self.tenants.entry(tenant).or_default().insert(client, entry);
    }

    fn remove(&self, tenant: Tenant, client: &ClientId) -> bool {
        self.tenants.get(&tenant).is_some_and(|clients| clients.remove(client).is_some())
    }

    fn each(&self, tenant: Tenant, mut visit: impl FnMut(&ClientId)) {
        if let Some(clients) = self.tenants.get(&tenant) {
            clients.iter().for_each(|client| visit(client.key()));
        }
    }
}

impl FlatLocked {
    /// A tenant's clients; the index's lock is not held on.
    fn of(&self, tenant: Tenant) -> Arc<DashSet<ClientId, RandomState>> {
        if let Some(clients) = self.index.get(&tenant) {
            return clients.clone();
        }
        self.index.entry(tenant).or_default().clone()
    }
}

impl Registry for FlatLocked {
    fn insert(&self, tenant: Tenant, client: ClientId, entry: Entry) {
        self.clients.insert((tenant, client), entry);
        self.of(tenant).insert(client);
    }

    fn remove(&self, tenant: Tenant, client: &ClientId) -> bool {
        self.of(tenant).remove(client);
        self.clients.remove(&(tenant, *client)).is_some()
    }

    fn each(&self, tenant: Tenant, mut visit: impl FnMut(&ClientId)) {
        self.of(tenant).iter().for_each(|client| visit(client.key()));
    }
}

impl Registry for FlatLockFree {
    fn insert(&self, tenant: Tenant, client: ClientId, entry: Entry) {
        self.clients.pin().insert((tenant, client), entry);
        let index = self.index.pin();
        index.get_or_insert_with(tenant, papaya::HashSet::default).pin().insert(client);
    }

    fn remove(&self, tenant: Tenant, client: &ClientId) -> bool {
        if let Some(clients) = self.index.pin().get(&tenant) {
            clients.pin().remove(client);
        }
        self.clients.pin().remove(&(tenant, *client)).is_some()
    }

    fn each(&self, tenant: Tenant, mut visit: impl FnMut(&ClientId)) {
        if let Some(clients) = self.index.pin().get(&tenant) {
            clients.pin().iter().for_each(&mut visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn keeps_its_clients<T: Registry>() {
        let registry = T::default();
        let entry = Entry { core: 0, number: 0 };
        for number in 0..1_000u64 {
            let mut client = [0; 16];
            client[..8].copy_from_slice(&number.to_le_bytes());
            registry.insert(number % 3, client, entry);
            if number >= 500 {
                client[..8].copy_from_slice(&(number - 500).to_le_bytes());
                assert!(registry.remove((number - 500) % 3, &client));
                assert!(!registry.remove((number - 500) % 3, &client));
            }
        }
        let mut seen = HashSet::new();
        for tenant in 0..3 {
            registry.each(tenant, |client| {
                let number = u64::from_le_bytes(*client.first_chunk().unwrap());
                assert_eq!(number % 3, tenant);
                assert!(seen.insert(number) && number >= 500);
            });
        }
        assert_eq!(seen.len(), 500);
        registry.each(9, |_| panic!("nobody is there"));
    }

    #[test]
    fn all_keep_their_clients() {
        keeps_its_clients::<Nested>();
        keeps_its_clients::<FlatLocked>();
        keeps_its_clients::<FlatLockFree>();
    }
}
