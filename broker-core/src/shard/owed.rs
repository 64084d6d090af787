//! Acknowledgements that wait: for records to be on the disk, and for other shards to have appended
//! theirs.
//!
//! They leave in the order in which they came to be owed, over all connections of the shard: one sync
//! serves all of them, so that hardly any waits for another's.

use std::collections::VecDeque;
use std::ops::Range;

use mqtt::session::Place;
use mqtt::wire::{AckKind, PacketId, ReasonCode};
use rt_abstract::planted::{Bug, is_planted};
use smallvec::SmallVec;

use super::conn::Phase;
use super::recording::Recording;
use super::{ConnKey, SessionKey, Shard};
use crate::messages::{Done, MailKind, Messages, Origin};

/// Acknowledgements that may wait before the readers of those who cause more are stopped.
const MAX_OWED: usize = 65_536;

/// What has to be before something may be said.
#[derive(Clone, Debug, Default)]
pub(super) struct Wait {
    /// This unit of the shard's records is stored; 0 for none.
    pub(super) unit: u64,
    /// What the journal holds up to this ticket is stored.
    pub(super) ticket: u64,
    /// These shards have appended what they had to for mail up to these numbers.
    pub(super) hops: SmallVec<[Hop; 2]>,
    /// Given to the operating system is enough.
    pub(super) written: bool,
}

/// A piece of mail that was sent to another shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) shard: u8,
    pub(super) kind: MailKind,
    pub(super) number: u64,
}

impl Hop {
    pub(super) fn is_confirmed(&self, of: u8, node: &Messages) -> bool {
        node.confirmed(of, self.shard, self.kind) >= self.number
    }
}

impl Wait {
    /// Whether there is nothing to wait for.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.unit == 0 && self.ticket == 0 && self.hops.is_empty()
    }
}

/// Once all other shards have their part of a message in the log, this is recorded behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    Nothing,
    /// The QoS 2 publish was taken: whoever reads this record finds the message before it.
    Taken(SessionKey, Origin),
    /// Somebody else has the message of this session, whose record is of no use any more.
    Done(Done, Place),
}

#[derive(Debug)]
struct One {
    conn: ConnKey,
    /// The connection's, which no other has.
    number: u64,
    ack: Option<(AckKind, PacketId, ReasonCode)>,
    then: Afterwards,
    wait: Wait,
}

/// See the module's head. Bound: [`MAX_OWED`] and a packet for each connection; beyond the first the
/// readers stop.
#[derive(Debug, Default)]
pub(super) struct Owed {
    queue: VecDeque<One>,
    /// How many of them wait for no other shard any more.
    staged: usize,
    /// How many there were so far.
    pub(super) total: u64,
}

impl Owed {
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= MAX_OWED
    }

    /// Lets the next ones wait for `last_ticket` instead of the other shards, as many as these have
    /// confirmed; their range in the queue.
    ///
    /// The ticket is looked up behind all confirmations: others append before they confirm.
    fn confirm(
        &mut self,
        is_confirmed: impl Fn(&Hop) -> bool,
        last_ticket: impl Fn() -> u64,
    ) -> Range<usize> {
        let waiting = self.queue.range(self.staged..);
        let confirmed = waiting.take_while(|one| one.wait.hops.iter().all(&is_confirmed)).count();
        let range = self.staged..self.staged + confirmed;
        let mut ticket = None;
        for Wait { ticket: last, hops, .. } in self.queue.range_mut(range.clone()).map(One::wait) {
            if !hops.is_empty() {
                *last = *ticket.get_or_insert_with(&last_ticket);
            }
        }
        range
    }
}

impl Shard {
    /// Acknowledges a packet when `wait` is over, and after those of its connection that wait already
    /// [MQTT-4.6.0-2].
    pub(super) fn acknowledge_after(
        &mut self,
        key: ConnKey,
        kind: AckKind,
        id: PacketId,
        reason: ReasonCode,
        mut wait: Wait,
        mut then: Afterwards,
    ) {
        let Self { recording, conns, sessions, .. } = self;
        let (Some(recording), Some(conn)) = (recording, conns.get_mut(key.0 as usize)) else {
            return self.acknowledge(key, kind, id, reason);
        };
        if let Afterwards::Taken(session, origin) = then
            && wait.hops.is_empty()
        {
            wait.unit = wait.unit.max(recording.take(sessions, session, origin));
            then = Afterwards::Nothing;
        }
        // Nobody tells of what is stored already, as what a repeated publish waits for may be.
        let stored = recording.is_stored(wait.unit, wait.ticket, wait.written);
        if (wait.is_over() || stored && wait.hops.is_empty()) && conn.owed == 0 {
            return self.acknowledge(key, kind, id, reason);
        }
        conn.owed += 1;
        let ack = Some((kind, id, reason));
        let one = One { conn: key, number: conn.number, ack, then, wait };
        recording.owe(one);
    }

    /// Acknowledges a publish when `wait` is over, behind those that are owed.
    pub(super) fn acknowledge_in_turn(
        &mut self,
        key: ConnKey,
        kind: AckKind,
        id: PacketId,
        reason: ReasonCode,
        wait: Wait,
        then: Afterwards,
    ) {
        match self.durability.as_mut().and_then(|durability| durability.commit.as_mut()) {
            Some(commit) => commit.owe_ack(kind, id, reason, wait, then),
            None => self.acknowledge_after(key, kind, id, reason, wait, then),
        }
    }

    /// [`Shard::acknowledge_after`], unless the connection is not open any more.
    pub(super) fn acknowledge_open(
        &mut self,
        key: ConnKey,
        kind: AckKind,
        id: PacketId,
        reason: ReasonCode,
        wait: Wait,
        then: Afterwards,
    ) {
        if self.conn(key).is_some_and(|conn| conn.phase == Phase::Open) {
            self.acknowledge_after(key, kind, id, reason, wait, then);
        }
    }

    /// Records that a message is done when its next holder has it.
    pub(super) fn done_after(&mut self, done: Done, place: Place, wait: Wait) {
        let Some(recording) = self.recording.as_mut() else { return };
        if wait.hops.is_empty() {
            recording.done(done); // behind the other one's record
            return recording.replaced(place);
        }
        let (conn, number, then) = (ConnKey(u32::MAX), 0, Afterwards::Done(done, place));
        recording.owe(One { conn, number, ack: None, then, wait });
    }

    /// Sends what waits for nothing any more.
    pub(super) fn release_owed(&mut self) {
        self.stage_owed();
        loop {
            let Some(recording) = self.recording.as_mut() else { return };
            let Some(One { conn: key, number, ack, .. }) = recording.take_ready() else { return };
            let Some(conn) = self.conns.get_mut(key.0 as usize) else { continue };
            if conn.number != number {
                continue; // that one is gone
            }
            conn.owed -= 1;
            if conn.phase == Phase::Open
                && let Some((kind, id, reason)) = ack
            {
                self.acknowledge(key, kind, id, reason);
            }
        }
    }

    /// Looks which of them other shards have confirmed.
    fn stage_owed(&mut self) {
        let Self { recording, sessions, id: shard, .. } = self;
        let Some(recording) = recording else { return };
        let is_confirmed = |hop: &Hop| hop.is_confirmed(*shard, &recording.node);
        let range = recording.owed.confirm(is_confirmed, || recording.node.last_ticket());
        for at in range {
            let unit = match recording.owed.queue[at].then {
                Afterwards::Nothing => 0,
                Afterwards::Taken(session, origin) => recording.take(sessions, session, origin),
                Afterwards::Done(done, place) => {
                    recording.dead(place);
                    recording.done(done);
                    0
                }
            };
            let wait = &mut recording.owed.queue[at].wait;
            wait.unit = wait.unit.max(unit);
            recording.owed.staged += 1;
        }
    }
}

impl One {
    fn wait(&mut self) -> &mut Wait {
        &mut self.wait
    }
}

impl Recording {
    fn owe(&mut self, one: One) {
        let ready = self.owed.staged == self.owed.queue.len() && one.wait.hops.is_empty();
        self.owed.staged += usize::from(ready);
        self.owed.queue.push_back(one);
        self.owed.total += 1;
    }

    fn take_ready(&mut self) -> Option<One> {
        let first = self.owed.queue.front().filter(|_| self.owed.staged > 0)?;
        let Wait { unit, ticket, written, .. } = first.wait;
        if !self.is_stored(unit, ticket, written) && !is_planted(Bug::AckBeforeSync) {
            return None;
        }
        self.owed.staged -= 1;
        self.owed.queue.pop_front()
    }

    /// Records that a publish was taken, if that is not recorded yet; the unit that it is in.
    pub(super) fn take(
        &mut self,
        sessions: &mut slab::Slab<super::Entry>,
        session: SessionKey,
        origin: Origin,
    ) -> u64 {
        let entry = sessions.get_mut(session.0 as usize);
        let Some(entry) = entry.filter(|entry| entry.generation == origin.generation) else {
            return 0;
        };
        let incoming = &mut entry.session.incoming;
        if incoming.place(origin.id) == Some(Place::NONE) {
            incoming.set_place(origin.id, Place::PENDING);
            self.push_taken(session, origin);
        }
        self.so_far()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever another shard appends and confirms meanwhile: what is taken for confirmed waits
        /// for a ticket that was not given out before it was appended.
        #[test]
        fn who_is_confirmed_waits_for_what_was_appended(
            // Per look: how many messages the other shard appends, each with the next ticket, and
            // confirms.
            steps in prop::collection::vec(0..3_u64, 1..40),
            local in prop::collection::vec(any::<bool>(), 1..20),
        ) {
            let mut owed = Owed::default();
            let mut number = 0;
            for is_local in local {
                number += u64::from(!is_local);
                let hop = Hop { shard: 1, kind: MailKind::First, number };
                let hops = SmallVec::from_iter((!is_local).then_some(hop));
                let wait = Wait { hops, ..Wait::default() };
                let (conn, then) = (ConnKey(0), Afterwards::Nothing);
                owed.queue.push_back(One { conn, number: 0, ack: None, then, wait });
            }
            let (appended, looks) = (Cell::new(0), Cell::new(0));
            let goes_on = || {
                appended.set(appended.get() + steps.get(looks.get()).copied().unwrap_or(0));
                looks.set(looks.get() + 1);
            };
            let is_confirmed = |hop: &Hop| {
                goes_on();
                appended.get() >= hop.number
            };
            let last_ticket = || {
                goes_on();
                appended.get()
            };
            while looks.get() <= steps.len() {
                owed.staged = owed.confirm(is_confirmed, last_ticket).end;
                for one in owed.queue.range(..owed.staged) {
                    let appended_with = one.wait.hops.first().map_or(0, |hop| hop.number);
                    prop_assert!(one.wait.ticket >= appended_with, "{:?}", one.wait);
                }
                goes_on();
            }
        }
    }
}
