//! Records that are appended together, and who is told where they lie.

use std::sync::Arc;

use journal::{Batch, Relative};
use mqtt::session::{Message, Place};
use mqtt::wire::PacketId;

use super::SessionKey;
use crate::messages::{Changes, Origin};

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Unit {
    pub(super) number: u64,
    pub(super) batch: Batch,
    pub(super) tell: Vec<Tell>,
    /// Records that are of use until these are appended: what comes instead is among them.
    pub(super) replaced: Vec<Place>,
    /// What changes once these are appended, by the exchanges that they settle.
    pub(super) settled: Changes,
    pub(super) last: Option<Relative>,
    /// There are new messages among its records.
    pub(super) publishes: bool,
}

/// Who is told where a record lies.
#[derive(Debug)]
pub(super) struct Tell {
    pub(super) session: SessionKey,
    pub(super) generation: u64,
    pub(super) what: What,
    /// Absent while its record is open.
    pub(super) at: Option<Relative>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Message(u64),
    Received(u64),
    Taken(PacketId),
    /// The record of a message, or of its PUBREC when that was `received`, lay at `from`.
    Moved {
        seq: u64,
        received: bool,
        from: Place,
    },
    /// The record of its being taken lay there.
    MovedTaken(PacketId, Place),
}

#[derive(Debug)]
pub(super) struct UnitPlace {
    pub(super) number: u64,
    pub(super) ticket: u64,
    pub(super) end: Place,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) message: Arc<Message>,
    pub(super) origin: Option<Origin>,
    /// It lay elsewhere before.
    pub(super) moved: bool,
    pub(super) targets: Vec<u8>,
    pub(super) count: usize,
}

/// A target that may still be taken back.
pub(super) struct Mark {
    pub(super) seq: u64,
    pub(super) generation: u64,
    pub(super) targets: usize,
}

impl Open {
    pub(super) fn new(message: &Arc<Message>, origin: Option<Origin>, moved: bool) -> Self {
        Self { message: message.clone(), origin, moved, targets: Vec::new(), count: 0 }
    }
}
