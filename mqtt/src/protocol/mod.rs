//! What a packet may ask for, and what the server answers: rules that need no more than the
//! packet, the connection's own facts and the server's limits.

mod aliases;
mod connect;

pub use aliases::{IncomingAliases, OutgoingAliases};
pub use connect::{Accepted, Identity, ServerRules, accept, connack_properties};

use crate::wire::ReasonCode;

/// Why the server ends a connection: the reason for the client, and a text for log and client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Violation {
    /// What a version 5 client is told.
    pub reason: ReasonCode,
    /// One short sentence.
    pub text: &'static str,
}

impl Violation {
    /// A violation.
    pub const fn new(reason: ReasonCode, text: &'static str) -> Self {
        Self { reason, text }
    }
}
