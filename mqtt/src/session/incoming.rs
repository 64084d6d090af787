//! Incoming QoS 2: which identifiers are between PUBLISH and PUBREL.

use hashbrown::HashSet;

use crate::wire::PacketId;

/// The identifiers of QoS 2 messages that were taken and not yet released. A PUBLISH that repeats
/// one of them is answered again but not delivered again [MQTT-4.3.3-10].
#[derive(Debug, Default)]
pub struct Incoming {
    open: Option<Box<HashSet<PacketId>>>,
}

impl Incoming {
    /// Whether `id` was taken and not released.
    pub fn contains(&self, id: PacketId) -> bool {
        self.open.as_ref().is_some_and(|open| open.contains(&id))
    }

    /// Takes `id`; false when it is open already.
    pub fn take(&mut self, id: PacketId) -> bool {
        self.open.get_or_insert_default().insert(id)
    }

    /// Releases `id`; false when it is not open [MQTT-4.3.3-11].
    pub fn release(&mut self, id: PacketId) -> bool {
        self.open.as_mut().is_some_and(|open| open.remove(&id))
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.len())
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_open_until_released() {
        let id = PacketId::MIN;
        let mut incoming = Incoming::default();
        assert!(!incoming.release(id));
        assert!(incoming.take(id));
        assert!(!incoming.take(id));
        assert!(incoming.contains(id));
        assert_eq!(incoming.len(), 1);
        assert!(incoming.release(id));
        assert!(incoming.is_empty());
    }
}
