//! Messages that go out of memory once they have their records, and come back in time to be sent.

use std::sync::Arc;

use super::message::Message;
use super::outgoing::{Outgoing, id_of};
use super::place::{Place, Progress};
use super::reference::Owed;

/// How much of a queue is in memory, at the front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAhead {
    /// Messages; 0 for a session whose client is away.
    pub messages: usize,
    /// Bytes, by [`Queued::size_bytes`](super::Queued::size_bytes). One message is always allowed
    /// where any are.
    pub bytes: usize,
}

impl ReadAhead {
    /// For a client that is away.
    pub const NONE: Self = Self { messages: 0, bytes: 0 };
}

impl Outgoing {
    /// Whether anything lies in the journal alone.
    #[inline]
    pub fn has_stored(&self) -> bool {
        self.stored() > 0
    }

    /// How many messages lie in the journal alone.
    #[inline]
    pub fn stored(&self) -> usize {
        self.inflight_stored + self.queue.stored()
    }

    /// The record of a message can be read: lets go of the message, if it is not to be sent soon.
    pub fn spill(&mut self, seq: u64, ahead: ReadAhead) {
        let soon = self.queue.stored() == 0
            && self.queue.here() <= ahead.messages
            && self.queue.here_bytes() <= ahead.bytes;
        if !soon {
            self.queue.spill(seq);
        }
    }

    /// The client is away: lets go of everything that can be read back.
    pub fn spill_all(&mut self) {
        self.queue.spill_all();
        for entry in self.inflight.iter_mut() {
            let is_own = |owed: &mut Owed| !owed.is_stored() && owed.seq() == entry.order;
            if let Some(owed) = entry.publish.take_if(is_own) {
                let owed = owed.spill();
                self.inflight_stored += usize::from(owed.is_stored());
                entry.publish = Some(owed);
            }
        }
    }

    /// Whether anything is [wanted](Self::wanted).
    pub fn wants(&self, ahead: ReadAhead) -> bool {
        let here = self.ahead(ahead.messages);
        let has_enough =
            here > ahead.messages / 2 || (here > 0 && self.queue.here_bytes() > ahead.bytes / 2);
        self.has_stored() && !has_enough
    }

    /// What is to be read next, so that `ahead` is in memory again: numbers and records, in the order
    /// in which they are owed. Nothing while half of it still is.
    pub fn wanted(&self, ahead: ReadAhead, wanted: &mut Vec<(u64, Place)>) {
        if !self.wants(ahead) {
            return;
        }
        let (mut here, mut bytes) = (self.ahead(ahead.messages), self.queue.here_bytes());
        // What is sent again comes before what is queued.
        let again = self.resent().filter_map(Owed::stored);
        for reference in again.chain(self.queue.references()) {
            let size = reference.size_bytes();
            if here > 0 && (here >= ahead.messages || bytes + size > ahead.bytes) {
                return;
            }
            wanted.push((reference.seq, reference.place));
            (here, bytes) = (here + 1, bytes + size);
        }
    }

    /// How many messages are in memory before the first one that is not, or `most` of them.
    fn ahead(&self, most: usize) -> usize {
        let again = self.resent().take(most).take_while(|owed| !owed.is_stored()).count();
        again + if self.inflight_stored == 0 { self.queue.ahead() } else { 0 }
    }

    /// The messages that are to be sent again.
    fn resent(&self) -> impl Iterator<Item = &Owed> {
        self.resend.iter().filter_map(|id| self.inflight.get(*id)?.publish.as_ref())
    }

    /// A message was read; nothing, when it is not owed any more.
    pub fn load(&mut self, seq: u64, message: Arc<Message>) {
        if let Some(entry) = self.inflight.get_mut(id_of(seq))
            && let Some(owed) = entry.publish.take_if(|owed| owed.is_stored() && owed.seq() == seq)
        {
            self.inflight_bytes -= owed.size_bytes();
            let owed = owed.load(message);
            self.inflight_bytes += owed.size_bytes();
            self.inflight_stored -= 1;
            entry.publish = Some(owed);
            return;
        }
        self.queue.load(seq, message);
    }

    /// The record of a message, at `place`, cannot be read any more: the message is lost. False when
    /// it was not owed, or is recorded elsewhere by now.
    pub fn lose(&mut self, seq: u64, place: Place, progress: &mut Vec<Progress>) -> bool {
        if let Some(lost) = self.queue.remove_stored_at(seq, place) {
            Progress::done(lost.seq, lost.place, progress);
            return true;
        }
        self.finish(id_of(seq), progress, |entry| {
            let is_lost = |owed: &Owed| owed.is_stored() && owed.seq() == seq;
            entry.place == place && entry.publish.as_ref().is_some_and(is_lost)
        })
    }
}

#[cfg(test)]
mod tests;
