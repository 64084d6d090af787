//! What the metadata tells a shard, until its next tick.

use crate::shard::Elsewhere;

/// Events that wait for one shard. A tick is far shorter than it takes to apply so many.
const MAX_EVENTS: usize = 100_000;
/// Their bytes.
const MAX_BYTES: usize = 64 << 20;

/// Events for one shard, in order, up to bounds in number and in bytes. The thread that applies adds
/// them and must not wait. When they are full, those about sessions give way to one
/// [`Elsewhere::Replaced`], which has the shard compare all its sessions with the stored ones: nothing
/// is missed. Wills that find no room are dropped and counted: nothing else has them any more.
#[derive(Debug, Default)]
pub(crate) struct Told {
    events: Vec<Elsewhere>,
    bytes: usize,
    /// A [`Elsewhere::Replaced`] is among them, in place of more.
    overflowed: bool,
    dropped_wills: u64,
}

impl Told {
    pub(crate) fn push(&mut self, event: Elsewhere) {
        let bytes = event.size_bytes();
        let has_room = self.events.len() < MAX_EVENTS && self.bytes + bytes <= MAX_BYTES;
        let is_will = matches!(event, Elsewhere::Will(_));
        match (has_room, is_will) {
            (_, false) if self.overflowed => {} // compared already
            (true, _) => {
                self.bytes += bytes;
                self.events.push(event);
            }
            (false, true) => self.dropped_wills += 1,
            (false, false) => {
                self.events.retain(|event| matches!(event, Elsewhere::Will(_)));
                self.bytes = self.events.iter().map(Elsewhere::size_bytes).sum();
                self.events.push(Elsewhere::Replaced);
                self.overflowed = true;
                tracing::warn!("too much is told about sessions: all are compared");
            }
        }
    }

    /// All of them, and how many wills were dropped.
    pub(crate) fn take(&mut self) -> (Vec<Elsewhere>, u64) {
        let Self { events, dropped_wills, .. } = std::mem::take(self);
        if dropped_wills > 0 {
            tracing::warn!(dropped_wills, "too many wills of other nodes' sessions are due");
        }
        (events, dropped_wills)
    }
}

#[cfg(test)]
mod tests {
    use meta::record::{StoredMessage, StoredWill};

    use super::*;

    fn opened(epoch: u64) -> Elsewhere {
        Elsewhere::Opened { client: "c".into(), epoch }
    }

    fn will(bytes: usize) -> Elsewhere {
        let message = StoredMessage {
            topic: "t".into(),
            properties: Vec::new(),
            payload: vec![0; bytes],
            qos: 0,
            expires_at_ms: None,
        };
        let will = StoredWill { message, retain: false, delay_s: 0, expiry_interval_s: None };
        Elsewhere::Will(Box::new(will))
    }

    #[test]
    fn too_many_sessions_are_compared_instead() {
        let mut told = Told::default();
        told.push(will(10));
        for epoch in 0..2 * MAX_EVENTS as u64 {
            told.push(opened(epoch));
            assert!(told.events.len() <= MAX_EVENTS && told.bytes <= MAX_BYTES);
        }
        let (events, dropped_wills) = told.take();
        assert!(matches!(&events[..], [Elsewhere::Will(_), Elsewhere::Replaced]), "{events:?}");
        assert_eq!(dropped_wills, 0);
        told.push(opened(1));
        assert!(matches!(&told.take().0[..], [Elsewhere::Opened { epoch: 1, .. }]));
    }

    #[test]
    fn wills_without_room_are_counted() {
        let mut told = Told::default();
        told.push(opened(1));
        for _ in 0..5 {
            told.push(will(MAX_BYTES / 3));
        }
        told.push(opened(2));
        assert!(told.bytes <= MAX_BYTES);
        let (events, dropped_wills) = told.take();
        assert_eq!((events.len(), dropped_wills), (4, 3), "what is small finds room");
    }
}
