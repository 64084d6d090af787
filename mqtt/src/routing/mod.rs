//! Who wants a topic: the structures between a publish and its receivers.
//!
//! [`SharedRoutes`] is the node's: from a filter to the shards that have a subscriber for it,
//! read by all shards without waiting. [`FilterTree`] is one shard's own: from a filter to its
//! subscribers. Both answer in the same way, with one lookup per shape of filter in use.
//! [`Routes`] is an immutable snapshot in which the node keeps the filters of other shapes.
//! [`RetainedTree`] asks the other way round: from a filter to the topics that hold a retained
//! message.
//!
//! All of them take filters that [`crate::topic::parse_filter`] has checked, without
//! `$share/NAME/`, and agree with [`crate::topic::matches()`]. None of them recurses along the
//! levels of a topic: a topic may have 65,536 of them, a stack may not. Hashes are seeded by the
//! caller, and no result depends on the order of a hash map, so a run can be repeated.

mod chunks;
mod dest;
mod hamt;
mod hash;
mod retained;
mod routes;
mod shapes;
mod shared;
mod slot;
mod table;
mod text;
mod tree;
mod trie;

pub use dest::*;
pub use hash::SeededHash;
pub use retained::*;
pub use routes::*;
pub use shared::*;
pub use slot::{SLOTS, slot_of};
pub use tree::FilterTree;

#[cfg(test)]
mod tests;
