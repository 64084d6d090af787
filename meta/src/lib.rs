//! Replicated metadata: nodes, durable sessions, retained messages, users, configuration.
//!
//! This room is empty. It will hold openraft over RocksDB behind `meta::Handle`; until then
//! the broker keeps this state in memory.
