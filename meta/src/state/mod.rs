//! The state machine without raft and without a disk: what a command does to the tables.
//!
//! Everything here is a plain function of the state, the command and its log index: no clock, no
//! randomness, no order that depends on a hash, because every node must come to the same bytes.
//! [`apply`](fn@apply) decides one command over a [`Tx`], which gathers the changes of many commands
//! into one [`Batch`](crate::store::Batch); [`Effect`]s tell watchers what became of it. `read` is
//! the way in for readers, [`check`] recounts what the tables claim, and `export` carries a whole
//! state to another node.

mod apply;
mod check;
mod effect;
pub mod export;
pub mod keys;
mod read;
mod tx;

#[cfg(test)]
mod layout;
#[cfg(test)]
mod model;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod testing;

pub use apply::apply;
pub use check::check;
pub use effect::Effect;
pub use read::{
    config, configs, node, nodes, retained, retained_message, rules, session, sessions, slots,
    subscriptions, tenant, tenant_totals, tenants, totals, user, users,
};
pub use tx::Tx;
