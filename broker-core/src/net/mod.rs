//! The async shell around a shard: tasks that carry bytes and mail in and out, and decide nothing.
//!
//! Per shard one task each for accepting, flushing, mail in and out, what the journal stores, what is
//! read back from it, and the clock; per connection one task that reads. Writing has no task of its own:
//! the flusher starts a write for each connection with something to send, and only a write that cannot
//! finish at once becomes a task.

mod accept;
mod checkpoint;
mod connection;
mod core;
mod durable;
mod fetch;
mod flush;
mod messages;
mod serve;

pub use durable::follow_metadata;
pub use messages::run_journal;
pub use serve::serve;
