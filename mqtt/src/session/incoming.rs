//! Incoming QoS 2: which identifiers are between PUBLISH and PUBREL.

use hashbrown::HashMap;

use super::place::Place;
use crate::wire::PacketId;

/// The identifiers of QoS 2 messages that were taken and not yet released, each with its record. A
/// PUBLISH that repeats one of them is answered again but not delivered again [MQTT-4.3.3-10].
#[derive(Debug, Default)]
pub struct Incoming {
    pub(super) open: Option<Box<HashMap<PacketId, Place>>>,
    /// Those of which is not known yet whether the message is taken, each with the number of its
    /// trial. They are open.
    trials: Option<Box<HashMap<PacketId, u64>>>,
    last_trial: u64,
}

impl Incoming {
    /// Whether `id` was taken and not released.
    pub fn contains(&self, id: PacketId) -> bool {
        self.open.as_ref().is_some_and(|open| open.contains_key(&id))
    }

    /// Whether `id` was taken for good: a PUBLISH that repeats it brings nothing new.
    pub fn is_decided(&self, id: PacketId) -> bool {
        self.contains(id) && !self.is_on_trial(id)
    }

    /// Takes `id` on trial: until [`Incoming::decide`], a PUBLISH that repeats it is to be handled
    /// like the first one, whose outcome then means nothing. Gives the number of the trial, never 0.
    pub fn try_take(&mut self, id: PacketId) -> u64 {
        self.take(id);
        self.last_trial += 1;
        self.trials.get_or_insert_default().insert(id, self.last_trial);
        self.last_trial
    }

    /// Ends a trial: `id` is taken, or released. False when it was over already, by a later one or
    /// otherwise.
    pub fn decide(&mut self, id: PacketId, trial: u64, taken: bool) -> bool {
        if self.trials.as_ref().and_then(|trials| trials.get(&id)) != Some(&trial) {
            return false;
        }
        self.end_trial(id);
        if !taken {
            self.release(id);
        }
        true
    }

    fn is_on_trial(&self, id: PacketId) -> bool {
        self.trials.as_ref().is_some_and(|trials| trials.contains_key(&id))
    }

    fn end_trial(&mut self, id: PacketId) {
        if let Some(trials) = &mut self.trials {
            trials.remove(&id);
            if trials.is_empty() {
                self.trials = None;
            }
        }
    }

    /// Takes `id` for good, without a record; false when it is open already.
    pub fn take(&mut self, id: PacketId) -> bool {
        self.end_trial(id);
        let open = self.open.get_or_insert_default();
        let is_new = !open.contains_key(&id);
        if is_new {
            open.insert(id, Place::NONE);
        }
        is_new
    }

    /// Releases `id` and gives its record; `None` when it is not open [MQTT-4.3.3-11].
    pub fn release(&mut self, id: PacketId) -> Option<Place> {
        self.end_trial(id);
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
    fn a_trial_ends_once() {
        let id = PacketId::MIN;
        let mut incoming = Incoming::default();
        let first = incoming.try_take(id);
        assert!(incoming.contains(id) && !incoming.is_decided(id));
        let second = incoming.try_take(id);
        assert!(!incoming.decide(id, first, false), "the second one counts");
        assert!(incoming.contains(id));
        assert!(incoming.decide(id, second, true));
        assert!(incoming.is_decided(id));
        assert!(!incoming.decide(id, second, false));
        let third = incoming.try_take(id);
        assert!(incoming.decide(id, third, false));
        assert!(!incoming.contains(id));
        // Ended by something else.
        let trial = incoming.try_take(id);
        incoming.take(id);
        assert!(!incoming.decide(id, trial, true));
        let trial = incoming.try_take(id);
        incoming.release(id);
        assert!(!incoming.decide(id, trial, true));
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
