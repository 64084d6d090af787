//! Who may connect: the node's policy and users, which every shard reads and nobody waits for.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use mqtt::access::{NonceKey, Policy, Users};

use crate::config::AuthConfig;

/// Policy, users and the source of nonces, shared by the shards of a node. The users are an
/// immutable snapshot that can be replaced while the broker runs: clients that connect, or
/// authenticate again, afterwards are judged by the new one; those connected stay.
#[derive(Debug)]
pub struct Access {
    policy: Policy,
    max_pending_verifications: usize,
    users: ArcSwap<Users>,
    nonces: NonceKey,
}

impl Access {
    /// What `config` says. `nonce_key` are unpredictable bytes, new for every run.
    pub fn new(config: &AuthConfig, nonce_key: [u8; 32]) -> Self {
        Self {
            policy: Policy {
                allow_anonymous: config.allow_anonymous,
                has_users: config.users.is_some(),
            },
            max_pending_verifications: config.max_pending_verifications,
            users: ArcSwap::from_pointee(config.users.clone().unwrap_or_default()),
            nonces: NonceKey::new(nonce_key),
        }
    }

    /// Replaces the users. Does nothing for a node that was started without any: there clients
    /// were told that names do not matter.
    pub fn replace_users(&self, users: Users) {
        if self.policy.has_users {
            self.users.store(Arc::new(users));
        }
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Passwords that one shard may have under verification.
    pub(crate) fn max_pending_verifications(&self) -> usize {
        self.max_pending_verifications
    }

    /// The snapshot in force.
    pub(crate) fn users(&self) -> Guard<Arc<Users>> {
        self.users.load()
    }

    /// The nonce of `number`, which is unique in the node.
    pub(crate) fn nonce(&self, number: u64) -> String {
        self.nonces.nonce(number)
    }
}

/// Everybody may connect: for shards that were given nothing else.
impl Default for Access {
    fn default() -> Self {
        Self::new(&AuthConfig::default(), [0; 32]) // without users no exchange needs a nonce
    }
}
