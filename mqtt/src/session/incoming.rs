//! Incoming QoS 2: which identifiers are between PUBLISH and PUBREL.

use hashbrown::HashMap;

use super::place::Place;
use crate::wire::PacketId;

/// The identifiers of QoS 2 messages that were taken and not yet released, each with its record. A
/// PUBLISH that repeats one of them is answered again but not delivered again [MQTT-4.3.3-10].
#[derive(Debug, Default)]
pub struct Incoming {
    open: Option<Box<HashMap<PacketId, Place>>>,
}

impl Incoming {
    /// Whether `id` was taken and not released.
    pub fn contains(&self, id: PacketId) -> bool {
        self.open.as_ref().is_some_and(|open| open.contains_key(&id))
    }

    /// Takes `id`, without a record; false when it is open already.
    pub fn take(&mut self, id: PacketId) -> bool {
        let open = self.open.get_or_insert_default();
        let is_new = !open.contains_key(&id);
        if is_new {
            open.insert(id, Place::NONE);
        }
        is_new
    }

    /// Releases `id` and gives its record; `None` when it is not open [MQTT-4.3.3-11].
    pub fn release(&mut self, id: PacketId) -> Option<Place> {
        self.open.as_mut()?.remove(&id)
    }

    /// The record of `id`, if it is open.
    pub fn place(&self, id: PacketId) -> Option<Place> {
        self.open.as_ref()?.get(&id).copied()
    }

    /// Tells where the record of `id` lies; gives the place that it had. `None` when `id` is not open.
    pub fn set_place(&mut self, id: PacketId, place: Place) -> Option<Place> {
        let known = self.open.as_mut()?.get_mut(&id)?;
        Some(std::mem::replace(known, place))
    }

    /// All records.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.open.iter().flat_map(|open| open.values().copied())
    }

    /// Forgets all records: the session does not outlive the process from now on.
    pub fn clear_places(&mut self) {
        self.open.iter_mut().flat_map(|open| open.values_mut()).for_each(|it| *it = Place::NONE);
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
        assert_eq!(incoming.release(id), None);
        assert!(incoming.take(id));
        assert!(!incoming.take(id));
        assert!(incoming.contains(id));
        assert_eq!(incoming.len(), 1);
        assert_eq!(incoming.release(id), Some(Place::NONE));
        assert!(incoming.is_empty());
    }

    #[test]
    fn records_stay_with_their_identifiers() {
        let (id, place) = (PacketId::MIN, Place::at(7));
        let mut incoming = Incoming::default();
        assert_eq!(incoming.set_place(id, place), None);
        assert_eq!(incoming.place(id), None);
        incoming.take(id);
        assert_eq!(incoming.set_place(id, place), Some(Place::NONE));
        assert!(!incoming.take(id), "taken again, the record stays");
        assert!(incoming.places().eq([place]));
        incoming.clear_places();
        assert_eq!(incoming.release(id), Some(Place::NONE));
    }
}
