//! One application message, stored once and shared by reference.

use std::num::NonZeroU64;

use bytes::Bytes;

use crate::wire::QoS;

/// Payloads of at least this many bytes are shared by reference on their way to sockets; smaller
/// ones are copied, which is cheaper than counting references and gathering pieces.
pub const SHARE_PAYLOAD_BYTES: usize = 8 << 10;

/// A publish as it lies in the read buffer: nothing copied yet.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Topic name, alias resolved.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
    /// The allocation that `payload` lies in, when it may be kept without copying.
    pub owner: Option<&'a Bytes>,
    /// The raw properties that are forwarded unchanged.
    pub properties: &'a [u8],
    /// QoS it was published with.
    pub qos: QoS,
    /// Retain flag it was published with.
    pub retain: bool,
    /// When it expires.
    pub expires_at_ms: Option<NonZeroU64>,
    /// Number of the session that published it, for no-local; 0 for the broker itself.
    pub origin: u64,
}

/// An application message that outlives its read buffer. Kept behind an `Arc`.
#[derive(Debug)]
pub struct Message {
    qos: QoS,
    retain: bool,
    expires_at_ms: Option<NonZeroU64>,
    origin: u64,
    topic_bytes: u32,
    properties_bytes: u32,
    /// Topic and properties, and a payload below [`SHARE_PAYLOAD_BYTES`].
    head: Box<[u8]>,
    /// A larger payload.
    payload: Bytes,
}

/// What is left of a message's expiry interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// It never expires.
    Unlimited,
    /// Seconds left, rounded up: at least 1.
    Seconds(u32),
    /// It has expired.
    Expired,
}

impl Message {
    /// Keeps a draft: copies its topic, properties and a small payload into one allocation; shares
    /// a large payload with its owner where there is one.
    pub fn keep(draft: &Draft<'_>) -> Self {
        let shared = draft.payload.len() >= SHARE_PAYLOAD_BYTES;
        let inline = if shared { &[][..] } else { draft.payload };
        let topic = draft.topic.as_bytes();
        let head = [topic, draft.properties, inline].concat().into_boxed_slice();
        let payload = match draft.owner {
            _ if !shared => Bytes::new(),
            Some(owner) => owner.slice_ref(draft.payload),
            None => Bytes::copy_from_slice(draft.payload),
        };
        Self {
            qos: draft.qos,
            retain: draft.retain,
            expires_at_ms: draft.expires_at_ms,
            origin: draft.origin,
            // Both lie inside one packet, whose length is below 2^28.
            topic_bytes: topic.len() as u32,
            properties_bytes: draft.properties.len() as u32,
            head,
            payload,
        }
    }

    /// The message as a draft again, to deliver it.
    pub fn draft(&self) -> Draft<'_> {
        let (topic, rest) = self.head.split_at(self.topic_bytes as usize);
        let (properties, inline) = rest.split_at(self.properties_bytes as usize);
        let shared = !self.payload.is_empty();
        Draft {
            // Came from a str; the check is cheaper than a second allocation for a Box<str>.
            topic: std::str::from_utf8(topic).unwrap_or_default(),
            payload: if shared { &self.payload } else { inline },
            owner: shared.then_some(&self.payload),
            properties,
            qos: self.qos,
            retain: self.retain,
            expires_at_ms: self.expires_at_ms,
            origin: self.origin,
        }
    }

    /// Topic + properties + payload, the size that quotas count.
    pub fn size_bytes(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// QoS it was published with.
    pub fn qos(&self) -> QoS {
        self.qos
    }

    /// When it expires, if it does.
    pub fn expires_at_ms(&self) -> Option<NonZeroU64> {
        self.expires_at_ms
    }

    /// What is left of its life at `now_ms`.
    #[inline]
    pub fn lifetime(&self, now_ms: u64) -> Lifetime {
        lifetime(self.expires_at_ms, now_ms)
    }
}

impl Draft<'_> {
    /// What is left of its life at `now_ms`; the interval sent on is what is left [MQTT-3.3.2-6].
    #[inline]
    pub fn lifetime(&self, now_ms: u64) -> Lifetime {
        lifetime(self.expires_at_ms, now_ms)
    }
}

#[inline]
fn lifetime(expires_at_ms: Option<NonZeroU64>, now_ms: u64) -> Lifetime {
    let Some(at) = expires_at_ms else { return Lifetime::Unlimited };
    match at.get().saturating_sub(now_ms) {
        0 => Lifetime::Expired,
        left_ms => Lifetime::Seconds(u32::try_from(left_ms.div_ceil(1000)).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft<'a>(payload: &'a [u8], owner: Option<&'a Bytes>) -> Draft<'a> {
        Draft {
            topic: "t/é",
            payload,
            owner,
            properties: &[1, 1],
            qos: QoS::AtLeastOnce,
            retain: true,
            expires_at_ms: NonZeroU64::new(5_000),
            origin: 7,
        }
    }

    #[test]
    fn keeping_and_drafting_again_changes_nothing() {
        let large = Bytes::from(vec![9; SHARE_PAYLOAD_BYTES]);
        for (payload, owner) in [(&b"hi"[..], None), (&large[..], Some(&large)), (&large[..], None)]
        {
            let message = Message::keep(&draft(payload, owner));
            let again = message.draft();
            assert_eq!(again.topic, "t/é");
            assert_eq!(again.payload, payload);
            assert_eq!(again.properties, [1, 1]);
            assert_eq!((again.qos, again.retain, again.origin), (QoS::AtLeastOnce, true, 7));
            assert_eq!(message.size_bytes(), 4 + 2 + payload.len());
            if owner.is_some() {
                assert_eq!(again.payload.as_ptr(), large.as_ptr(), "shared, not copied");
            }
        }
    }

    #[test]
    fn lifetime_is_rounded_up_and_ends() {
        let message = Message::keep(&draft(b"", None));
        assert_eq!(message.lifetime(0), Lifetime::Seconds(5));
        assert_eq!(message.lifetime(4_001), Lifetime::Seconds(1));
        assert_eq!(message.lifetime(5_000), Lifetime::Expired);
    }
}
