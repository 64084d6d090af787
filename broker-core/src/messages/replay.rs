//! From the journal's records to what sessions are owed: read once at start, taken by the shards
//! that have the sessions. Messages stay where they are: what is kept of each is where that is.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use mqtt::session::{Delivery, Incoming, Outgoing, Place, Reference, Restored};
use mqtt::wire::PacketId;
use rt_abstract::planted::{Bug, is_planted};

use super::record::{Origin, PublishHead, Record, RecordError, Target};

/// Numbers that are left out after a start: what was sent in the last moments before a crash, and
/// not recorded, used some, and their identifiers are not to mean something else to the client now.
const SKIPPED: u64 = 1_000;

/// What the records come to.
///
/// Bound: the records in the journal, which the queues of sessions bound.
#[derive(Debug, Default)]
pub struct Replay {
    pub(super) sessions: HashMap<u64, Recorded>,
    /// Messages whose publisher was not told that they were taken: to whom they are owed.
    pub(super) unsettled: HashMap<Origin, Vec<(u64, Place)>>,
    /// What sessions were before is not here: what of it has ended is noted. So a record must change a
    /// session without a look at what it is; exchanges are all here.
    pub(super) is_change: bool,
    /// The record that is being read.
    at: Place,
    /// How many changes of sessions were read.
    changes: usize,
    /// The names of shared subscriptions, each once.
    shares: HashSet<Arc<str>>,
    /// The publishers of those.
    origins: HashSet<u64>,
    /// Sessions whose part was taken.
    taken: HashSet<u64>,
}

/// What is recorded of one session.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// By number; `None`, in a change alone, for what is not owed any more.
    pub(super) messages: BTreeMap<u64, Option<Restored>>,
    pub(super) sent_seq: u64,
    pub(super) last_seq: u64,
    /// [`Place::NONE`], in a change alone, for what was released.
    pub(super) taken: HashMap<PacketId, Place>,
    /// Whatever it was before has ended: in a change alone.
    pub(super) ended: bool,
    /// The last record that speaks of it.
    pub(super) mentioned: Place,
    /// Messages that the session has got, and where that is recorded; their publishers may send them
    /// again.
    pub unsettled: Vec<(Origin, Place)>,
}

impl Replay {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next record.
    ///
    /// # Errors
    /// What is wrong with it: it passed the journal's checks, so another program wrote it.
    pub fn visit(
        &mut self,
        position: u64,
        bytes: &[u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.read(Place::at(position), bytes)?)
    }

    fn read(&mut self, place: Place, bytes: &[u8]) -> Result<(), RecordError> {
        self.at = place;
        let is_change = self.is_change;
        match Record::decode(bytes)? {
            Record::Publish(head, targets) => self.publish(place, &head, targets),
            Record::Moved(head, targets) => {
                for (target, sent_seq) in targets {
                    let session = self.session(target.to.generation);
                    session.seen(sent_seq);
                    session.sent_seq = session.sent_seq.max(sent_seq);
                    self.publish(place, &head, [target]);
                }
            }
            Record::Untaken(origin, generation) => {
                let owed_to = self.unsettled.entry(origin).or_default();
                owed_to.retain(|(to, _)| *to != generation); // this one tells as much
                owed_to.push((generation, place));
            }
            Record::Done(all) => {
                for done in all {
                    let session = self.session(done.generation);
                    session.seen(done.seq);
                    match is_change {
                        true => session.messages.insert(done.seq, None).flatten(),
                        false => session.messages.remove(&done.seq).flatten(),
                    };
                }
            }
            Record::Received(done) => {
                let session = self.session(done.generation);
                session.seen(done.seq);
                let release = Restored::Release { seq: done.seq, place };
                session.messages.insert(done.seq, Some(release));
            }
            Record::Sent(done) => {
                let session = self.session(done.generation);
                session.seen(done.seq);
                session.sent_seq = session.sent_seq.max(done.seq);
            }
            Record::Taken(origin) => {
                self.unsettled.remove(&origin);
                self.session(origin.generation).taken.insert(origin.id, place);
            }
            Record::Released(origin) => {
                let taken = &mut self.session(origin.generation).taken;
                match is_change {
                    true => taken.insert(origin.id, Place::NONE),
                    false => taken.remove(&origin.id),
                };
            }
            Record::Ended(generation) => {
                self.changes += 1;
                self.sessions.remove(&generation);
                if is_change {
                    let ended = Recorded { ended: true, ..Recorded::default() };
                    self.sessions.insert(generation, ended);
                }
                self.unsettled.retain(|origin, owed_to| {
                    owed_to.retain(|(to, _)| *to != generation);
                    origin.generation != generation && !owed_to.is_empty()
                });
            }
        }
        Ok(())
    }

    /// How many changes of sessions were read so far: more than there are in memory.
    pub(crate) fn changes(&self) -> usize {
        self.changes
    }

    /// Forgets what lies before `oldest`: it was released, so that nobody is owed it.
    pub(crate) fn forget_before(&mut self, oldest: u64) {
        let oldest = Place::at(oldest);
        for session in self.sessions.values_mut() {
            session.forget_before(oldest);
        }
        self.unsettled.retain(|_, owed_to| {
            owed_to.retain(|(_, place)| *place >= oldest);
            !owed_to.is_empty()
        });
    }

    /// All records were read.
    pub fn finish(&mut self) {
        for (origin, owed_to) in std::mem::take(&mut self.unsettled) {
            self.origins.insert(origin.generation);
            for (generation, place) in owed_to {
                self.session(generation).unsettled.push((origin, place));
            }
        }
    }

    /// What is recorded of a session.
    pub(crate) fn take(&mut self, generation: u64) -> Option<Recorded> {
        self.taken.insert(generation);
        self.sessions.remove(&generation)
    }

    /// Sessions that nobody has taken: they are not here any more, and may come back under the same
    /// generation, so that they are to be ended. The messages that they were owed are dropped.
    pub(crate) fn take_rest(&mut self) -> Vec<u64> {
        let mut rest: Vec<_> = self.sessions.drain().map(|(generation, _)| generation).collect();
        rest.extend(self.origins.drain().filter(|generation| !self.taken.contains(generation)));
        rest.sort_unstable();
        rest.dedup();
        rest
    }

    /// How many messages are owed to sessions that nobody has taken.
    pub fn messages(&self) -> usize {
        self.sessions.values().map(|session| session.messages.len()).sum()
    }

    /// The sessions that something is owed to, by generation, with how many messages.
    pub fn owed(&self) -> impl Iterator<Item = (u64, usize)> {
        let owed = self.sessions.iter().map(|(&session, it)| (session, it.messages.len()));
        owed.filter(|(_, messages)| *messages > 0)
    }

    fn publish<'a>(
        &mut self,
        place: Place,
        head: &PublishHead<'_>,
        targets: impl IntoIterator<Item = Target<'a>>,
    ) {
        let message_bytes = head.topic.len() + head.properties.len() + head.payload.len();
        for Target { to, qos, retain, subscription_ids, share } in targets {
            let share = share.map(|share| self.share(share));
            let delivery = Delivery { qos, retain, subscription_ids, share };
            let reference = Reference::new(delivery, message_bytes, to.seq, place);
            let session = self.session(to.generation);
            session.seen(to.seq);
            session.messages.insert(to.seq, Some(Restored::Message(reference)));
            if let Some(origin) = head.origin {
                self.unsettled.entry(origin).or_default().push((to.generation, place));
            }
        }
    }

    fn session(&mut self, generation: u64) -> &mut Recorded {
        self.changes += 1;
        let session = self.sessions.entry(generation).or_default();
        session.mentioned = self.at;
        session
    }

    /// The name of a shared subscription, kept once.
    pub(super) fn share(&mut self, share: &str) -> Arc<str> {
        self.shares.get_or_insert_with(share, |share| Arc::from(share)).clone()
    }
}

impl Recorded {
    /// The outgoing half, and the identifiers of the incoming one.
    pub fn into_halves(self) -> (Outgoing, Incoming) {
        let skipped = if is_planted(Bug::ReusedIdentifier) { 0 } else { SKIPPED };
        let next_seq = self.last_seq + 1 + skipped;
        let messages = self.messages.into_values().flatten();
        let outgoing = Outgoing::restore(messages, self.sent_seq, next_seq);
        let mut incoming = Incoming::default();
        let taken = if is_planted(Bug::ForgottenQos2) { HashMap::new() } else { self.taken };
        for (id, place) in taken {
            incoming.take(id);
            incoming.set_place(id, place);
        }
        (outgoing, incoming)
    }

    /// What it is after a change of it.
    pub(super) fn changed(mut self, change: Self) -> Self {
        if change.ended {
            self = Self::default();
        }
        for (seq, message) in change.messages {
            match message {
                Some(message) => self.messages.insert(seq, Some(message)).flatten(),
                None => self.messages.remove(&seq).flatten(),
            };
        }
        for (id, place) in change.taken {
            match place.is_recorded() {
                true => self.taken.insert(id, place),
                false => self.taken.remove(&id),
            };
        }
        self.sent_seq = self.sent_seq.max(change.sent_seq);
        self.last_seq = self.last_seq.max(change.last_seq);
        self.mentioned = self.mentioned.max(change.mentioned);
        self
    }

    /// Forgets what lies before `oldest`.
    pub(super) fn forget_before(&mut self, oldest: Place) {
        self.messages
            .retain(|_, message| message.as_ref().is_none_or(|message| message.place() >= oldest));
        self.taken.retain(|_, place| !place.is_recorded() || *place >= oldest);
    }

    fn seen(&mut self, seq: u64) {
        self.last_seq = self.last_seq.max(seq);
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
