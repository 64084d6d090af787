//! The message that speaks for a client that vanished.

use std::sync::Arc;

use super::message::{Draft, Message};
use crate::wire;

/// A will, checked and kept. Its delay is not part of the message that is published.
#[derive(Clone, Debug)]
pub struct Will {
    /// The message, without an expiry deadline: that starts when it is published.
    pub message: Arc<Message>,
    /// Seconds between the end of the connection and its publication, unless the session ends first.
    pub delay_s: u32,
    /// Seconds from its publication to its expiry.
    pub expiry_interval_s: Option<u32>,
}

impl Will {
    /// Keeps the will of a CONNECT; `origin` is the session's number, for no-local.
    pub fn keep(will: &wire::Will<'_>, origin: u64) -> Self {
        let mut properties = Vec::new();
        will.properties.copy_forwardable(&mut properties);
        let message = Message::keep(&Draft {
            topic: will.topic,
            payload: will.payload,
            owner: None,
            properties: &properties,
            qos: will.qos,
            retain: will.retain,
            expires_at_ms: None,
            origin,
        });
        Self {
            message: Arc::new(message),
            delay_s: will.properties.will_delay_interval_s().unwrap_or(0),
            expiry_interval_s: will.properties.message_expiry_interval_s(),
        }
    }
}
