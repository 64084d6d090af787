//! What outlives a connection: messages, the window of unacknowledged ones, the queue behind it,
//! the identifiers of incoming QoS 2 exchanges, and the will.
//!
//! A [`Session`] is plain data that belongs to one shard. Times are milliseconds on the caller's
//! monotonic clock.

mod incoming;
mod message;
mod moved;
mod outgoing;
mod place;
mod queue;
mod reference;
mod restore;
mod stored;
mod subscriptions;
mod will;
mod window;

pub use incoming::Incoming;
pub use message::{Draft, Lifetime, Message, SHARE_PAYLOAD_BYTES};
pub use moved::Recorded;
pub use outgoing::{
    Delivery, Outgoing, PubRecOutcome, QueueBounds, QueueFull, Queued, Rejected, Step,
};
pub use place::{Place, Progress};
pub use reference::{Owed, Reference};
pub use restore::Restored;
pub use stored::ReadAhead;
pub use subscriptions::{Subscription, Subscriptions};
pub use will::Will;

/// The state that MQTT calls a session. Empty parts take no memory.
#[derive(Debug, Default)]
pub struct Session {
    /// Who it belongs to.
    pub client_id: Box<str>,
    /// How long it lives after its connection, in seconds; `u32::MAX` is for ever.
    pub expiry_interval_s: u32,
    /// Its subscriptions: filter as the client wrote it, `$share/...` included.
    pub subscriptions: Subscriptions,
    /// QoS 1 and 2 towards the client.
    pub outgoing: Option<Box<Outgoing>>,
    /// QoS 2 from the client.
    pub incoming: Incoming,
}

impl Session {
    /// An empty session.
    pub fn new(client_id: &str, expiry_interval_s: u32) -> Self {
        Self { client_id: client_id.into(), expiry_interval_s, ..Self::default() }
    }

    /// The outgoing half, made on first use.
    pub fn outgoing_mut(&mut self) -> &mut Outgoing {
        self.outgoing.get_or_insert_default()
    }

    /// Adds or replaces a subscription; returns the one it replaces [MQTT-3.8.4-3].
    pub fn subscribe(&mut self, subscription: Subscription) -> Option<Subscription> {
        self.subscriptions.replace(subscription)
    }

    /// Removes a subscription by its filter, compared character by character [MQTT-3.10.4-1].
    pub fn unsubscribe(&mut self, filter: &str) -> Option<Subscription> {
        self.subscriptions.take(filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_subscribe_replaces_the_first() {
        let mut session = Session::new("c", 0);
        let first = Subscription { filter: "a/+".into(), options: Default::default(), id: 1 };
        assert_eq!(session.subscribe(first.clone()), None);
        let second = Subscription { id: 2, ..first.clone() };
        assert_eq!(session.subscribe(second.clone()), Some(first));
        assert_eq!(session.unsubscribe("a/b"), None);
        assert_eq!(session.unsubscribe("a/+"), Some(second));
        assert!(session.subscriptions.is_empty());
    }
}
