//! The numbers of a session's messages over the end of a process: what the next one takes up.

use std::collections::VecDeque;

use super::outgoing::{Outgoing, Queued, id_of};
use super::place::Place;
use super::window::Inflight;

/// One message that is owed to the client, as the records say.
#[derive(Clone, Debug)]
pub enum Restored {
    /// The message, with its number and its record.
    Message(Queued),
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
            Self::Message(queued) => queued.seq,
            Self::Release { seq, .. } => *seq,
        }
    }
}

impl Outgoing {
    /// Numbers messages from now on, the next one `next_seq`, which must not be 0 and must be above
    /// all numbers that were used before. What is queued already is numbered first.
    pub fn start_numbers(&mut self, next_seq: u64) {
        self.next_seq = next_seq.max(self.inflight.last_order() + 1).max(1);
        for queued in self.queue.iter_mut().filter(|queued| queued.seq == 0) {
            queued.seq = self.next_seq;
            self.next_seq += 1;
        }
    }

    /// Numbers no more: the session does not outlive the process from now on.
    pub fn stop_numbers(&mut self) {
        self.inflight.raise_order(self.next_seq);
        self.next_seq = 0;
        self.queue.iter_mut().for_each(|queued| (queued.seq, queued.place) = (0, Place::NONE));
        for entry in self.inflight.iter_mut() {
            entry.place = Place::NONE;
            if let Some(queued) = entry.publish.as_mut() {
                (queued.seq, queued.place) = (0, Place::NONE);
            }
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
            if let Some(queued) = entry.publish.as_mut() {
                queued.place = place;
            }
            return Some(std::mem::replace(&mut entry.place, place));
        }
        // The queue is in the order of numbers.
        let at = self.queue.partition_point(|queued| queued.seq < seq);
        let queued = self.queue.get_mut(at)?;
        let told = queued.seq == seq && queued.place.is_recorded() && !received;
        told.then(|| std::mem::replace(&mut queued.place, place))
    }

    /// The records of everything that is owed to the client.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let inflight = self.inflight.iter().map(|(_, entry)| entry.place);
        inflight.chain(self.queue.iter().map(|queued| queued.place))
    }

    /// An outgoing half from its records: `entries` in the order of their numbers, of which those up
    /// to `sent_seq`, and all that were received, were sent before. `next_seq` as in
    /// [`start_numbers`](Self::start_numbers).
    ///
    /// What was sent is sent again at the next [`resume`](Self::resume), under its identifier and
    /// marked as a duplicate. Should two of the entries have one identifier, the later one waits.
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
                Restored::Message(queued) if seq <= sent_seq && free => {
                    restored.inflight_bytes += queued.size_bytes();
                    let place = queued.place;
                    let entry = Inflight { order: seq, place, publish: Some(queued) };
                    restored.inflight.begin_as(id, entry);
                }
                Restored::Message(queued) => {
                    restored.queued_bytes += queued.size_bytes();
                    restored.queue.push_back(queued);
                }
            }
        }
        restored.inflight.raise_order(sent_seq);
        restored.next_seq = next_seq.max(1);
        restored.resend = VecDeque::new();
        restored
    }
}

#[cfg(test)]
mod tests;
