//! What waits for the window of a session: messages in memory, and references to those that lie in
//! the journal alone.

use std::collections::VecDeque;
use std::sync::Arc;

use super::message::Message;
use super::moved::Recorded;
use super::outgoing::{Delivery, Queued};
use super::place::Place;
use super::reference::{Owed, Reference};
use super::window::KEPT;

/// Both in one order. Bound: the bounds of the session's queue, which count references like messages.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By number; those without one (0) come behind all others, in the order in which they came.
    here: VecDeque<Queued>,
    /// By number. Empty in most sessions.
    stored: VecDeque<Reference>,
    bytes: usize,
    here_bytes: usize,
}

impl Queue {
    #[inline]
    pub fn len(&self) -> usize {
        self.here.len() + self.stored.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.here.is_empty() && self.stored.is_empty()
    }

    /// Of all, by [`Queued::size_bytes`].
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Of those in memory.
    #[inline]
    pub fn here_bytes(&self) -> usize {
        self.here_bytes
    }

    /// How many are in memory.
    #[inline]
    pub fn here(&self) -> usize {
        self.here.len()
    }

    /// How many are references.
    #[inline]
    pub fn stored(&self) -> usize {
        self.stored.len()
    }

    /// Puts a message at the end.
    #[inline]
    pub fn push(&mut self, queued: Queued) {
        let size = queued.size_bytes();
        self.bytes += size;
        self.here_bytes += size;
        self.here.push_back(queued);
    }

    /// Puts a reference at the end, which has a greater number than all others.
    pub fn push_stored(&mut self, reference: Reference) {
        self.bytes += reference.size_bytes();
        self.stored.push_back(reference);
    }

    /// The first one, if it is in memory.
    #[inline]
    pub fn first_here(&self) -> Option<&Queued> {
        let first = self.here.front()?;
        match self.stored.front() {
            Some(stored) if !is_before(first, stored.seq) => None,
            _ => Some(first),
        }
    }

    /// Takes the first one, if it is in memory.
    #[inline]
    pub fn pop_here(&mut self) -> Option<Queued> {
        self.first_here()?;
        let queued = self.here.pop_front()?;
        let size = queued.size_bytes();
        self.bytes -= size;
        self.here_bytes -= size;
        self.trim_here();
        Some(queued)
    }

    /// Takes the first one.
    pub fn pop(&mut self) -> Option<Owed> {
        if let Some(queued) = self.pop_here() {
            return Some(Owed::Here(queued));
        }
        let reference = self.stored.pop_front()?;
        self.bytes -= reference.size_bytes();
        self.trim_stored();
        Some(Owed::Stored(reference))
    }

    /// Tells where a record lies; gives the place that was known.
    pub fn set_place(&mut self, seq: u64, place: Place) -> Option<Place> {
        if let Some(at) = self.find_here(seq) {
            let known = &mut self.here[at].place;
            return known.is_recorded().then(|| std::mem::replace(known, place));
        }
        let at = self.find_stored(seq)?;
        Some(std::mem::replace(&mut self.stored[at].place, place))
    }

    /// Of all.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let here = self.here.iter().map(|queued| queued.place);
        here.chain(self.stored_places())
    }

    /// Of the references.
    pub fn stored_places(&self) -> impl Iterator<Item = Place> {
        self.stored.iter().map(|reference| reference.place)
    }

    /// Those in memory.
    pub fn here_mut(&mut self) -> impl Iterator<Item = &mut Queued> {
        self.here.iter_mut()
    }

    /// Lets go of a message that can be read back.
    pub fn spill(&mut self, seq: u64) {
        let Some(at) = self.find_here(seq) else { return };
        if self.here[at].place.position().is_none() {
            return;
        }
        if let Some(queued) = self.here.remove(at) {
            self.here_bytes -= queued.size_bytes();
            self.insert_stored(Reference::to(queued));
        }
        self.trim_here();
    }

    /// Lets go of all that can be read back.
    pub fn spill_all(&mut self) {
        let mut kept = VecDeque::new();
        // From the back: each goes before those that are references already.
        while let Some(queued) = self.here.pop_back() {
            if queued.seq > 0 && queued.place.position().is_some() {
                self.here_bytes -= queued.size_bytes();
                self.insert_stored(Reference::to(queued));
            } else {
                kept.push_front(queued);
            }
        }
        self.here = kept;
    }

    /// A message is back in memory; nothing, when nobody waits for it any more.
    pub fn load(&mut self, seq: u64, message: Arc<Message>) {
        let Some(reference) = self.remove_stored(seq) else { return };
        let queued = reference.load(message);
        let size = queued.size_bytes();
        self.bytes += size;
        self.here_bytes += size;
        let at = self.here.partition_point(|other| is_before(other, seq));
        self.here.insert(at, queued);
    }

    /// Takes out a reference.
    pub fn remove_stored(&mut self, seq: u64) -> Option<Reference> {
        let at = self.find_stored(seq)?;
        let reference = self.stored.remove(at)?;
        self.bytes -= reference.size_bytes();
        self.trim_stored();
        Some(reference)
    }

    /// How many are in memory before the first reference.
    pub fn ahead(&self) -> usize {
        match self.stored.front() {
            Some(first) => self.here.partition_point(|queued| is_before(queued, first.seq)),
            None => self.here.len(),
        }
    }

    /// The references in order.
    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.stored.iter()
    }

    /// Those of them from a number on.
    pub fn references_from(&self, seq: u64) -> impl Iterator<Item = &Reference> {
        self.stored.range(self.stored.partition_point(|reference| reference.seq < seq)..)
    }

    /// The records of those in memory.
    pub fn recorded_here(&self) -> impl Iterator<Item = Recorded> {
        self.here.iter().map(|it| Recorded::message(it.seq, it.place, it.size_bytes()))
    }

    /// The record of a message.
    pub fn place_of(&self, seq: u64) -> Option<Place> {
        match self.find_here(seq) {
            Some(at) => Some(self.here[at].place),
            None => self.find_stored(seq).map(|at| self.stored[at].place),
        }
    }

    /// How a message is to be delivered whose record lies at `place`.
    pub fn delivery_at(&self, seq: u64, place: Place) -> Option<Delivery> {
        if self.place_of(seq) != Some(place) {
            return None;
        }
        Some(match self.find_here(seq) {
            Some(at) => self.here[at].delivery.clone(),
            None => self.stored[self.find_stored(seq)?].delivery(),
        })
    }

    /// Takes out a reference whose record lies at `place`.
    pub fn remove_stored_at(&mut self, seq: u64, place: Place) -> Option<Reference> {
        let at = self.find_stored(seq)?;
        if self.stored[at].place == place { self.remove_stored(seq) } else { None }
    }

    /// Takes out those with a wanted share, in order.
    pub fn take(&mut self, wanted: impl Fn(Option<&str>) -> bool) -> Vec<Owed> {
        let mut taken = Vec::new();
        let mut kept = Self::default();
        while let Some(owed) = self.pop() {
            if wanted(owed.share()) {
                taken.push(owed);
                continue;
            }
            match owed {
                Owed::Here(queued) => kept.push(queued),
                Owed::Stored(reference) => kept.push_stored(reference),
            }
        }
        *self = kept;
        taken
    }

    fn find_here(&self, seq: u64) -> Option<usize> {
        let at = self.here.partition_point(|queued| is_before(queued, seq));
        self.here.get(at).filter(|queued| queued.seq == seq && seq > 0).map(|_| at)
    }

    fn find_stored(&self, seq: u64) -> Option<usize> {
        self.stored.binary_search_by_key(&seq, |reference| reference.seq).ok()
    }

    fn insert_stored(&mut self, reference: Reference) {
        let at = self.stored.partition_point(|other| other.seq < reference.seq);
        self.stored.insert(at, reference);
    }

    #[inline]
    fn trim_here(&mut self) {
        if self.here.is_empty() && self.here.capacity() > KEPT {
            self.here = VecDeque::new();
        }
    }

    fn trim_stored(&mut self) {
        if self.stored.is_empty() && self.stored.capacity() > 0 {
            self.stored = VecDeque::new();
        }
    }
}

/// Whether a message comes before that of a number.
#[inline]
fn is_before(queued: &Queued, seq: u64) -> bool {
    queued.seq != 0 && queued.seq < seq
}

#[cfg(test)]
mod tests;
