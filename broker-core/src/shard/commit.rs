//! What one connection waits for: the commands to be committed, and what follows from each.

use std::sync::Arc;

use bytes::Bytes;
use meta::command::Command;
use mqtt::session::Message;
use mqtt::wire::{AckKind, PacketId, ReasonCode};
use smallvec::SmallVec;

use super::SessionKey;
use super::owed::{Afterwards, Wait};

/// Commands of one connection proposed at once.
const MAX_COMMANDS: usize = 256;
/// Payload bytes of one connection proposed at once, but for the last message.
const MAX_COMMIT_BYTES: usize = 1 << 20;

/// Changes that one connection waits for.
#[derive(Debug, Default)]
pub struct Commit {
    commands: Vec<Command>,
    /// One per command, in order, with acknowledgements that have none between them.
    pub(super) owed: Vec<Owed>,
    bytes: usize,
}

/// What follows once a command is committed.
#[derive(Debug)]
pub(super) enum Owed {
    /// The client is let in.
    Connect(Opening),
    /// SUBACK.
    SubAck(Filters),
    /// UNSUBACK.
    UnsubAck(Filters),
    /// A retained message of this session is delivered and, at QoS 1 and 2, acknowledged.
    Publish {
        message: Arc<Message>,
        session: SessionKey,
        ack: Option<(AckKind, PacketId)>,
        /// The trial of its QoS 2 exchange; 0 without one.
        trial: u64,
        /// It was said to be sent again.
        dup: bool,
    },
    /// Waits for its turn: acknowledgements keep the order of their packets [MQTT-4.6.0-2].
    Ack { kind: AckKind, id: PacketId, reason: ReasonCode, wait: Wait, then: Afterwards },
}

/// A SUBSCRIBE or UNSUBSCRIBE that waits.
#[derive(Debug)]
pub(super) struct Filters {
    pub(super) packet_id: PacketId,
    /// What is answered when all is committed.
    pub(super) codes: SmallVec<[u8; 8]>,
    /// Those that it changes.
    pub(super) filters: Vec<Box<str>>,
    /// Whose, with the session's number.
    pub(super) session: SessionKey,
    pub(super) number: u64,
}

/// A CONNECT that waits for its session.
#[derive(Debug)]
pub(super) struct Opening {
    /// The whole packet.
    pub(super) connect: Bytes,
    pub(super) client_id: Box<str>,
    /// The identifier was assigned to it.
    pub(super) assigned: bool,
    /// When the metadata was asked.
    pub(super) asked_ms: u64,
    /// Ends an exchange of AUTH packets.
    pub(super) auth_data: Option<Vec<u8>>,
}

// Enough to tell what a reader does next.
impl PartialEq for Commit {
    fn eq(&self, other: &Self) -> bool {
        self.commands == other.commands
    }
}

impl Eq for Commit {}

impl Commit {
    /// What to propose; leaves it empty.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Whether the packet that begins with `rest` may join: only retained publishes do, since what
    /// is done for other packets would overtake what is owed.
    pub(super) fn takes(&self, rest: &[u8]) -> bool {
        let is_retained = rest.first().is_some_and(|first| first & 0xF1 == 0x31);
        is_retained
            && self.owed.len() < MAX_COMMANDS
            && self.bytes < MAX_COMMIT_BYTES
            && matches!(self.owed.first(), Some(Owed::Publish { .. }))
    }

    /// One more command, and what follows from it.
    pub(super) fn owe(&mut self, command: Command, owed: Owed, bytes: usize) {
        self.commands.push(command);
        self.owed.push(owed);
        self.bytes += bytes;
    }

    /// An acknowledgement that has no command and waits for its turn.
    pub(super) fn owe_ack(
        &mut self,
        kind: AckKind,
        id: PacketId,
        reason: ReasonCode,
        wait: Wait,
        then: Afterwards,
    ) {
        self.owed.push(Owed::Ack { kind, id, reason, wait, then });
    }

    /// Whether it decides about this QoS 2 exchange: a repetition shares its outcome.
    pub(super) fn takes_exchange(&self, id: PacketId) -> bool {
        let exchange = Some((AckKind::PubRec, id));
        self.owed.iter().any(|owed| matches!(owed, Owed::Publish { ack, .. } if *ack == exchange))
    }

    /// How many replies there are to be.
    pub(super) fn asked(&self) -> usize {
        self.owed.iter().filter(|owed| !matches!(owed, Owed::Ack { .. })).count()
    }
}
