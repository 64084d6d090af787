//! The numbers of a session's messages over the end of a process: what the next one takes up.

use super::outgoing::{Outgoing, id_of};
use super::place::Place;
use super::reference::{Owed, Reference};
use super::window::Inflight;

/// One message that is owed to the client, as the records say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// The message, with its number and its record.
    Message(Reference),
    /// PUBREC came: only PUBREL is owed.
    Release {
        /// The message's number.
        seq: u64,
        /// The record of the PUBREC.
        place: Place,
    },
}

impl Restored {
    /// The message's number.
    pub fn seq(&self) -> u64 {
        match self {
            Self::Message(reference) => reference.seq,
            Self::Release { seq, .. } => *seq,
        }
    }

    /// Its record, or that of the PUBREC.
    pub fn place(&self) -> Place {
        match self {
            Self::Message(reference) => reference.place,
            Self::Release { place, .. } => *place,
        }
    }
}

impl Outgoing {
    /// Numbers messages from now on, the next one `next_seq`, which must not be 0 and must be above
    /// all numbers that were used before. What is queued already is numbered first.
    pub fn start_numbers(&mut self, next_seq: u64) {
        self.next_seq = next_seq.max(self.inflight.last_order() + 1).max(1);
        for queued in self.queue.here_mut().filter(|queued| queued.seq == 0) {
            queued.seq = self.next_seq;
            self.next_seq += 1;
        }
    }

    /// Numbers no more: the session does not outlive the process from now on, and its records mean
    /// nothing. Their places go to `dead`, but for those that have to be read yet
    /// ([`has_stored`](Self::has_stored)): they live until their messages are done.
    pub fn stop_numbers(&mut self, mut dead: impl FnMut(Place)) {
        self.inflight.raise_order(self.next_seq);
        self.next_seq = 0;
        // The numbers stay: they tell the order.
        for queued in self.queue.here_mut() {
            dead(std::mem::replace(&mut queued.place, Place::NONE));
        }
        for entry in self.inflight.iter_mut() {
            match &mut entry.publish {
                Some(Owed::Stored(_)) => continue,
                Some(Owed::Here(queued)) => queued.place = Place::NONE,
                None => {}
            }
            dead(std::mem::replace(&mut entry.place, Place::NONE));
        }
    }

    /// The number of the next message; 0 when they are not numbered.
    #[inline]
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// The number up to which messages have been sent, of those that are numbered.
    #[inline]
    pub fn sent_seq(&self) -> u64 {
        self.inflight.last_order()
    }

    /// Tells where the record of a message lies or, when it was `received`, that of its PUBREC; gives
    /// the place of the record that it replaces. `None` when there is nothing to be told any more.
    pub fn set_place(&mut self, seq: u64, received: bool, place: Place) -> Option<Place> {
        if let Some(entry) = self.inflight.get_mut(id_of(seq))
            && entry.order == seq
        {
            if entry.publish.is_none() != received || !entry.place.is_recorded() {
                return None;
            }
            if let Some(owed) = entry.publish.as_mut() {
                owed.set_place(place);
            }
            return Some(std::mem::replace(&mut entry.place, place));
        }
        if received { None } else { self.queue.set_place(seq, place) }
    }

    /// The records of everything that is owed to the client.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let inflight = self.inflight.iter().map(|(_, entry)| entry.place);
        inflight.chain(self.queue.places())
    }

    /// The records of what lies in the journal alone.
    pub fn stored_places(&self) -> impl Iterator<Item = Place> {
        let stored = |entry: &Inflight| entry.publish.as_ref().is_some_and(Owed::is_stored);
        let inflight = self.inflight.iter().filter(move |(_, entry)| stored(entry));
        inflight.map(|(_, entry)| entry.place).chain(self.queue.stored_places())
    }

    /// An outgoing half from its records: `entries` in the order of their numbers, of which those up
    /// to `sent_seq`, and all that were received, were sent before. `next_seq` as in
    /// [`start_numbers`](Self::start_numbers).
    ///
    /// What was sent is sent again at the next [`resume`](Self::resume), under its identifier and
    /// marked as a duplicate. All messages are references; none is read before it is sent. Should two of the entries have one identifier, the later one waits.
    pub fn restore(
        entries: impl IntoIterator<Item = Restored>,
        sent_seq: u64,
        next_seq: u64,
    ) -> Self {
        let mut restored = Self::default();
        for entry in entries {
            let (seq, id) = (entry.seq(), id_of(entry.seq()));
            let free = restored.inflight.get(id).is_none();
            match entry {
                Restored::Release { place, .. } if free => {
                    let entry = Inflight { order: seq, place, publish: None };
                    restored.inflight.begin_as(id, entry);
                }
                Restored::Release { .. } => {}
                Restored::Message(reference) if seq <= sent_seq && free => {
                    restored.inflight_bytes += reference.size_bytes();
                    restored.inflight_stored += 1;
                    let place = reference.place;
                    let publish = Some(Owed::Stored(reference));
                    restored.inflight.begin_as(id, Inflight { order: seq, place, publish });
                }
                Restored::Message(reference) => restored.queue.push_stored(reference),
            }
        }
        restored.inflight.raise_order(sent_seq);
        restored.next_seq = next_seq.max(1);
        restored
    }
}

#[cfg(test)]
mod tests;
