//! The segmented, group-committed log on `rt_abstract` files. It does not know what records mean.
//!
//! [`open`] reads what is there and gives a [`Journal`], which all shards append to, and a
//! [`Writer`], whose task writes. Records gather in memory while a write and its sync are under
//! way, and go to the disk together when it is over: there is no timer, one sync serves everybody
//! who appended meanwhile, and an idle disk takes a record at once.
//!
//! * `format`: how segments, frames and records look on disk. A *frame* is one write and one sync;
//!   after a crash all of it is there or nothing.
//! * `gather`: who appends what where, as plain data under one short lock.
//! * `writer`, `house`: the one task: frames to the disk; segments made ahead, recycled, removed.
//! * `scan`, `recovery`, `repair`: reading, and what is done about what is read.
//! * `reader`: one record back by its position.
//! * `hold`: what is durable stays where it is while it is copied.
//! * `sweep`, `checkpoint`: what is durable, read on while the journal is written; and a file for what
//!   it comes to, so that a start reads the rest alone.
//!
//! The directory belongs to one process at a time; the program locks its data directory.

mod batch;
mod checkpoint;
mod error;
mod format;
mod gather;
mod handle;
mod hold;
mod house;
mod options;
mod reader;
mod recovery;
mod repair;
mod scan;
mod segment;
mod sweep;
#[cfg(feature = "testing")]
pub mod testing;
mod writer;

pub use batch::{Appended, Batch, Relative};
pub use checkpoint::{CheckpointReader, CheckpointWriter, remove_checkpoint};
pub use error::{CheckpointError, JournalError, OpenError, ReadError, Refused, VisitError};
pub use format::{Mark, Position, Ticket};
pub use handle::Journal;
pub use hold::{HeldFile, Hold};
pub use options::{Class, Options, State, Usage};
pub use reader::Reader;
pub use recovery::open;
pub use repair::{Lost, Repaired, Report, SegmentReport, Verdict, inspect, repair};
pub use sweep::{Sweep, Swept};
pub use writer::Writer;
