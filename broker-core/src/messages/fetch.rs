//! Messages read back from their records.

use std::num::NonZeroU64;
use std::sync::Arc;

use hashbrown::HashMap;
use mqtt::session::{Draft, Message};

use super::record::{PublishHead, Record, RecordError};

/// Messages that were read lately are kept up to this: those who come back together often have the
/// same ones.
const KEPT_BYTES: usize = 1 << 20;

/// Messages that were read lately, by position, which is never used again for another record.
///
/// Bound: [`KEPT_BYTES`] and a message; then it begins anew.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    messages: HashMap<u64, Arc<Message>>,
    bytes: usize,
}

impl Lately {
    pub fn get(&self, position: u64) -> Option<Arc<Message>> {
        self.messages.get(&position).cloned()
    }

    pub fn put(&mut self, position: u64, message: &Arc<Message>) {
        if self.bytes >= KEPT_BYTES {
            *self = Self::default();
        }
        if self.messages.insert(position, message.clone()).is_none() {
            self.bytes += size_of::<Message>() + message.size_bytes();
        }
    }
}

/// The message of a record. `wall_offset_ms` is the wall clock minus the broker's monotonic clock.
///
/// # Errors
/// Bytes that are no record of a message.
pub(crate) fn message_of(bytes: &[u8], wall_offset_ms: u64) -> Result<Message, RecordError> {
    let head = Record::decode_message(bytes)?;
    Ok(Message::keep(&Draft {
        topic: head.topic,
        payload: head.payload,
        owner: None,
        properties: head.properties,
        qos: head.qos,
        retain: head.retain,
        expires_at_ms: expires_at_ms(&head, wall_offset_ms),
        origin: 0,
    }))
}

/// One that is over expires in the first millisecond.
fn expires_at_ms(head: &PublishHead<'_>, wall_offset_ms: u64) -> Option<NonZeroU64> {
    head.expires_at_ms.map(|wall_ms| {
        NonZeroU64::new(wall_ms.saturating_sub(wall_offset_ms)).unwrap_or(NonZeroU64::MIN)
    })
}

#[cfg(test)]
mod tests {
    use mqtt::wire::QoS;

    use super::super::record::encode_publish;
    use super::*;

    fn record(payload: &[u8], expires_at_ms: Option<u64>) -> Vec<u8> {
        let head = PublishHead {
            qos: QoS::ExactlyOnce,
            retain: true,
            expires_at_ms,
            origin: None,
            topic: "a/b",
            properties: &[1, 1],
            payload,
        };
        let mut out = Vec::new();
        encode_publish(&head, 0, &[], &mut out);
        out
    }

    #[test]
    fn a_message_is_what_was_recorded() {
        let message = message_of(&record(b"hi", Some(6_000)), 1_000).expect("a message");
        let draft = message.draft();
        assert_eq!(
            (draft.topic, draft.payload, draft.properties),
            ("a/b", &b"hi"[..], &[1, 1][..])
        );
        assert_eq!((draft.qos, draft.retain), (QoS::ExactlyOnce, true));
        assert_eq!(draft.expires_at_ms.map(NonZeroU64::get), Some(5_000));
        let late = message_of(&record(b"hi", Some(6_000)), 7_000).expect("a message");
        assert_eq!(late.expires_at_ms(), Some(NonZeroU64::MIN));
        assert!(message_of(&[0x12, 0], 0).is_err(), "another record");
        assert!(message_of(&[], 0).is_err());
    }

    #[test]
    fn what_was_read_lately_is_bounded() {
        let mut lately = Lately::default();
        let message = Arc::new(message_of(&record(&[7; 1_000], None), 0).expect("a message"));
        for position in 0..5_000 {
            lately.put(position, &message);
            assert!(lately.get(position).is_some());
            assert!(lately.messages.len() * 1_000 <= KEPT_BYTES + 2_000);
        }
        assert!(lately.get(0).is_none());
    }
}
