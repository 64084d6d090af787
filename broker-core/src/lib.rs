//! The broker, generic over its runtime.
//!
//! `shard` decides, synchronously; `net` carries bytes and mail in and out of it; a [`Node`] is
//! what the shards of one process share.

mod access;
pub mod backup;
pub mod config;
mod elsewhere;
mod messages;
mod net;
mod node;
mod retained;
mod shard;
pub mod stats;

pub use access::Access;
pub use config::Config;
pub use messages::{Messages, Replay};
pub use net::{follow_metadata, run_journal, serve};
pub use node::{MAX_SHARDS, Node};
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use shard::testing;
