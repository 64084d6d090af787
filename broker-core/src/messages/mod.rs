//! Messages that outlive the process: what the journal's records mean, which of them are still owed
//! to somebody, and what shards tell each other about them.
//!
//! Shards gather records while they decide and append them at the end of each turn
//! (`shard/recorded`); what waits for them is in `shard/owed`, and what comes back from them in
//! `shard/fetch`. A start reads them (`replay`), but for those that a `checkpoint` speaks for. Sessions are named by their
//! *generation* in the metadata, so that records of a session that is gone mean nothing.

mod checkpoint;
mod fetch;
mod index;
mod live;
mod node;
mod record;
mod replay;
mod sparse;
mod unsettled;

pub(crate) use checkpoint::{
    Checkpoint, Pace, Unmade, load as load_checkpoint, make as make_checkpoint,
};
pub(crate) use fetch::{Lately, message_of};
pub use node::Messages;
pub(crate) use node::{MailKind, ReadAtStart};
pub(crate) use record::{
    Done, Origin, PublishHead, Record, encode_done, encode_moved, encode_publish, encode_sent,
    encode_target,
};
pub use replay::Replay;
pub(crate) use unsettled::Changes;
