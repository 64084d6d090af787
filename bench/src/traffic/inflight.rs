//! Packet identifiers of one publisher and the messages that they stand for.

use mqtt::wire::PacketId;

/// A message that waits for its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unacked {
    /// When it was due.
    pub due_ns: u64,
    /// Its flow.
    pub flow: u32,
}

/// At most as many messages as `limit` says; when they are all out, [`take`](Self::take) gives
/// nothing, and the publisher waits.
#[derive(Clone, Debug, Default)]
pub struct Inflight {
    /// By identifier less one.
    messages: Vec<Option<Unacked>>,
    free: Vec<PacketId>,
}

impl Inflight {
    /// With identifiers from 1 to `limit`.
    pub fn new(limit: u16) -> Self {
        // From the end of the list, so 1 is the first.
        let free = (1..=limit).rev().filter_map(PacketId::new).collect();
        Self { messages: vec![None; usize::from(limit)], free }
    }

    /// An identifier for a message, if one is free.
    #[inline]
    pub fn take(&mut self, message: Unacked) -> Option<PacketId> {
        let id = self.free.pop()?;
        self.messages[usize::from(id.get()) - 1] = Some(message);
        Some(id)
    }

    /// Gives an identifier back; `None` when nothing was under way with it.
    #[inline]
    pub fn release(&mut self, id: PacketId) -> Option<Unacked> {
        let message = self.messages.get_mut(usize::from(id.get()) - 1)?.take()?;
        self.free.push(id);
        Some(message)
    }

    /// Messages under way.
    pub fn len(&self) -> usize {
        self.messages.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_bounded_and_come_back_once() {
        let message = |due_ns| Unacked { due_ns, flow: 3 };
        let mut inflight = Inflight::new(2);
        let first = inflight.take(message(10)).unwrap();
        let second = inflight.take(message(20)).unwrap();
        assert_ne!(first, second);
        assert_eq!((inflight.take(message(30)), inflight.len()), (None, 2));
        assert_eq!(inflight.release(first), Some(message(10)));
        assert_eq!(inflight.release(first), None, "twice");
        assert_eq!(inflight.release(PacketId::MAX), None, "never given out");
        assert_eq!(inflight.take(message(40)), Some(first));
        assert_eq!(inflight.len(), 2);
        assert_eq!(Inflight::new(u16::MAX).free.len(), 65_535);
    }
}
