//! Replicated metadata: what must survive a restart and be agreed on by all nodes.
//!
//! `command` and `record` are the language; `state` decides, synchronously, what a command does;
//! `store` keeps the results (RocksDB, or memory with the same crash semantics); `raft` joins both
//! to openraft on any runtime; `link` carries raft between nodes; `node` runs it all. The broker
//! sees [`Handle`]: typed proposals in, replies and effects out, reads of the local state.

pub mod codec;
pub mod command;
mod handle;
pub mod link;
mod node;
pub mod raft;
pub mod record;
pub mod state;
pub mod status;
pub mod steps;
pub mod store;

pub use handle::{Answer, Handle, ProposeError};
pub use node::{ClusterOptions, LogLimits, NodeError, Options, Server, open, open_on};
pub use raft::machine::ApplyMode;
pub use store::inspect;
