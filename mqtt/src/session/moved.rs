//! Records of what is owed that are written again further on in the log, so that what lies before them
//! can go.

use super::incoming::Incoming;
use super::outgoing::{Delivery, Outgoing, Queued, id_of};
use super::place::{Place, Progress};
use crate::wire::PacketId;

/// The record of something that is owed to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The message's number.
    pub seq: u64,
    /// Where the record lies.
    pub place: Place,
    /// Size of the message, by [`Message::size_bytes`](super::Message::size_bytes), or a little more;
    /// `None` where it is the record of a PUBREC.
    pub message_bytes: Option<usize>,
}

impl Recorded {
    pub(super) fn message(seq: u64, place: Place, size_bytes: usize) -> Self {
        let message_bytes = Some(size_bytes.saturating_sub(size_of::<Queued>()));
        Self { seq, place, message_bytes }
    }
}

impl Outgoing {
    /// Tells `found` the records that lie before `end`. A long queue takes several calls: each looks at
    /// about `most` messages, which it lowers, and gives the number to go on `from`, at first 0; `None`
    /// at the end.
    pub fn recorded_before(
        &self,
        end: Place,
        from: u64,
        most: &mut usize,
        mut found: impl FnMut(Recorded),
    ) -> Option<u64> {
        let is_before = |place: Place| place.is_recorded() && place < end;
        if from == 0 {
            for (_, entry) in self.inflight.iter().filter(|(_, entry)| is_before(entry.place)) {
                found(match &entry.publish {
                    Some(owed) => Recorded::message(entry.order, entry.place, owed.size_bytes()),
                    None => Recorded { seq: entry.order, place: entry.place, message_bytes: None },
                });
            }
            self.queue.recorded_here().filter(|it| is_before(it.place)).for_each(&mut found);
            *most = most.saturating_sub(self.inflight() + self.queue.here());
        }
        for reference in self.queue.references_from(from) {
            if *most == 0 {
                return Some(reference.seq);
            }
            *most -= 1;
            if is_before(reference.place) {
                let size_bytes = reference.size_bytes();
                found(Recorded::message(reference.seq, reference.place, size_bytes));
            }
        }
        None
    }

    /// How a message is to be delivered, if it is owed still and its record lies at `place`.
    pub fn delivery_at(&self, seq: u64, place: Place) -> Option<Delivery> {
        if let Some(entry) = self.inflight.get(id_of(seq))
            && entry.order == seq
        {
            let owed = entry.publish.as_ref().filter(|_| entry.place == place)?;
            return Some(owed.delivery());
        }
        self.queue.delivery_at(seq, place)
    }

    /// The record of a message, or of its PUBREC when that was `received`, lies at `to` now. False
    /// when it did not lie at `from` any more.
    pub fn move_place(&mut self, seq: u64, received: bool, from: Place, to: Place) -> bool {
        let is_there = match self.inflight.get(id_of(seq)).filter(|entry| entry.order == seq) {
            Some(entry) => entry.place == from,
            None => self.queue.place_of(seq) == Some(from),
        };
        is_there && self.set_place(seq, received, to).is_some()
    }

    /// Drops a message that expired in the queue, and whose record lies at `place`. False when it is
    /// not there alone.
    pub fn expire(&mut self, seq: u64, place: Place, progress: &mut Vec<Progress>) -> bool {
        let Some(late) = self.queue.remove_stored_at(seq, place) else { return false };
        Progress::done(late.seq, late.place, progress);
        true
    }
}

impl Incoming {
    /// The identifiers whose records lie before `end`, with these.
    pub fn recorded_before(&self, end: Place) -> impl Iterator<Item = (PacketId, Place)> {
        let open = self.open.iter().flat_map(|open| open.iter());
        let open = open.map(|(id, place)| (*id, *place));
        open.filter(move |(_, place)| place.is_recorded() && *place < end)
    }

    /// The record of `id` lies at `to` now. False when it did not lie at `from` any more.
    pub fn move_place(&mut self, id: PacketId, from: Place, to: Place) -> bool {
        self.place(id) == Some(from) && self.set_place(id, to).is_some()
    }
}

#[cfg(test)]
mod tests;
