//! Moves what is owed out of old segments of the journal, so that they can go.
//!
//! With each tick a shard asks which of the oldest segments hold so little that it pays
//! (`messages/sparse`). It looks through its sessions for records that lie there, some with each tick,
//! and has the messages read (`fetch`). What is still owed then is appended once more, one record for
//! all sessions of the shard that are owed it; when that has its place, the sessions know the new one and
//! the old one is dead. The record of a message's end always comes behind both. What needs no reading,
//! that a PUBREC came or a message was taken, is recorded again as it is found.
//!
//! A moved message does not say by which exchange it came in: see [`Shard::begin_exchange`].

mod budget;

use std::sync::Arc;

use journal::{Position, State};
use mqtt::session::{Delivery, Lifetime, Message, Place};

use super::fetch::{Fetch, Lost};
use super::held::Held;
use super::recording::Recording;
use super::unit::{Open, Tell, What};
use super::{Entry, SessionKey, Shard};
use crate::messages::{Done, Origin, Record, encode_sent, encode_target};
use budget::{Budget, Seen};

/// Sessions, and messages in their queues, that are looked at with one tick.
const LOOKED_AT_PER_TICK: usize = 32_768;
/// Messages found that wait to be moved; those that lie behind are found again later.
const MAX_FOUND: usize = 65_536;
/// Read at once.
const MAX_READ_BYTES: usize = 1 << 20;
const MAX_READ_RECORDS: usize = 256;
/// A record's header, and what else a message takes beside itself.
pub(super) const RECORD_BYTES: usize = 32;
/// How long nothing is looked for when nothing of what was found could be moved.
const REST_MS: u64 = 1_000;

/// What is being moved.
///
/// Bound: twice [`MAX_FOUND`], 24 bytes each, which are given back at the end of a round.
#[derive(Debug, Default)]
pub(super) struct Moving {
    budget: Budget,
    looking: Option<Looking>,
    /// Messages to be moved, by position, the lowest one last.
    found: Vec<Found>,
    /// The last ones are being read.
    reading: bool,
    /// Something was moved in this round.
    moved: bool,
    /// Of this shard's records that are of use, none lies before.
    clean_before: Place,
    rests_until_ms: u64,
}

/// How far the sessions have been looked through.
#[derive(Debug)]
struct Looking {
    /// Records before this are looked for.
    before: Place,
    /// Nothing was found that was left for later.
    is_whole: bool,
    /// The next session, and the number from which on its queue is next.
    session: usize,
    from: u64,
}

/// A message that a session is owed. That nothing has changed since is seen by its position: no other
/// record ever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    position: u64,
    seq: u64,
    session: SessionKey,
    message_bytes: u32,
}

impl Shard {
    /// A message of a QoS 2 exchange is about to be routed. Until the record of its being taken is
    /// appended, nothing is moved out of segments that may hold the message: the moved one would not be
    /// known when its publisher sends it again after a crash. And if it told of the exchange, then
    /// behind the record of its being taken it would make another message of the same identifier look
    /// like the same one.
    pub(super) fn begin_exchange(&mut self, origin: Origin) {
        if let Some(recording) = self.recording.as_mut() {
            // No part of it can be appended before what was appended already.
            let since = recording.last.get().max(recording.settled);
            recording.untaken.entry(origin).or_insert(since);
        }
    }

    /// To be called with each tick.
    pub(super) fn move_old(&mut self, now_ms: u64) {
        let Some(recording) = self.recording.as_mut() else { return };
        if recording.failed || recording.node.moved_percent() == 0 {
            return;
        }
        recording.tell_settled();
        recording.refill_budget(now_ms);
        let moving = &recording.moving;
        let has_room = recording.full.is_empty() && moving.budget.left(1) > 0;
        if !has_room || moving.is_busy() || now_ms < moving.rests_until_ms {
            return;
        }
        if moving.looking.is_none() {
            let before = recording.node.sparse_before();
            recording.begin_moving(before);
        }
        self.look_on(now_ms);
    }

    /// Looks through some more sessions.
    fn look_on(&mut self, now_ms: u64) {
        let Self { recording: Some(recording), sessions, .. } = self else { return };
        let Some(mut looking) = recording.moving.looking.take() else { return };
        let mut most = LOOKED_AT_PER_TICK;
        while looking.session < sessions.capacity() {
            if most == 0 {
                recording.moving.looking = Some(looking);
                return;
            }
            most -= 1;
            let next = sessions.get(looking.session).and_then(|entry| {
                recording.look_at(SessionKey(looking.session as u32), entry, &looking, &mut most)
            });
            match next {
                Some(from) => looking.from = from,
                None => (looking.session, looking.from) = (looking.session + 1, 0),
            }
            recording.moving.keep_lowest(&mut looking);
        }
        let moving = &mut recording.moving;
        if !moving.found.is_empty() {
            moving.found.sort_unstable_by(|a, b| b.cmp(a));
        } else if moving.moved {
            // It has to be appended yet: then it is looked for once more.
        } else if looking.is_whole {
            moving.clean_before = looking.before;
        } else {
            moving.rests_until_ms = now_ms + REST_MS;
        }
    }

    /// Messages to be moved were read, in the order of [`Recording::take_moving`].
    pub(super) fn on_moving_read(
        &mut self,
        fetch: Fetch,
        read: Vec<Result<Arc<Message>, Lost>>,
        now_ms: u64,
    ) {
        for (position, read) in fetch.positions().zip(read) {
            let Some(recording) = self.recording.as_mut() else { return };
            let group = recording.moving.take_group(position);
            match read {
                Ok(message) if message.lifetime(now_ms) == Lifetime::Expired => {
                    let dropped = self.drop_old(&group, true);
                    self.stats.dropped_expired.add(dropped);
                    self.move_message(&message, &group); // what was sent is sent again
                }
                Ok(message) => self.move_message(&message, &group),
                Err(Lost) => {
                    let dropped = self.drop_old(&group, false);
                    self.stats.dropped_damaged.add(dropped);
                }
            }
        }
        let Some(recording) = self.recording.as_mut() else { return };
        let moving = &mut recording.moving;
        moving.reading = false;
        if moving.found.is_empty() {
            moving.found = Vec::new();
            if !moving.moved {
                moving.rests_until_ms = now_ms + REST_MS;
            }
        }
    }

    fn move_message(&mut self, message: &Arc<Message>, group: &[Found]) {
        let Self { recording: Some(recording), sessions, .. } = self else { return };
        let mut bytes = RECORD_BYTES + message.size_bytes();
        for found in group {
            let from = Place::at(found.position);
            let Some(entry) = sessions.get(found.session.0 as usize) else { continue };
            let Some(outgoing) = entry.session.outgoing.as_ref() else { continue };
            let Some(delivery) = outgoing.delivery_at(found.seq, from) else { continue };
            let sent_seq = outgoing.sent_seq();
            recording.open_moved(message);
            let to = Done { generation: entry.generation, seq: found.seq };
            recording.add_moved(found.session, to, &delivery, sent_seq, from);
            bytes += 16;
        }
        if recording.open.as_ref().is_some_and(|open| open.moved) {
            recording.close_open();
            recording.moving.spend(bytes);
        }
    }

    /// Drops messages that have expired, or that cannot be read; how many of them there were still.
    fn drop_old(&mut self, group: &[Found], expired: bool) -> u64 {
        let mut dropped = 0;
        for found in group {
            let Self { sessions, stats, limits, scratch, .. } = self;
            let Some(entry) = sessions.get_mut(found.session.0 as usize) else { continue };
            let Some(outgoing) = entry.session.outgoing.as_mut() else { continue };
            let (place, before) = (Place::at(found.position), Held::of(outgoing, limits));
            let is_dropped = match expired {
                true => outgoing.expire(found.seq, place, &mut scratch.progress),
                false => outgoing.lose(found.seq, place, &mut scratch.progress),
            };
            before.became(Held::of(outgoing, limits), stats);
            dropped += u64::from(is_dropped);
            self.note_progress(found.session);
        }
        if dropped > 0
            && let Some(recording) = self.recording.as_mut()
        {
            recording.moving.moved = true;
        }
        dropped
    }
}

impl Recording {
    /// What is to be read next, so that it can be moved.
    pub(super) fn take_moving(&mut self) -> Option<Fetch> {
        if !self.has_moving() {
            return None;
        }
        let moving = &mut self.moving;
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        let most = moving.budget.left(MAX_READ_BYTES);
        for found in moving.found.iter().rev() {
            let place = Place::at(found.position);
            if wanted.last() == Some(&(0, place)) {
                continue;
            }
            bytes += RECORD_BYTES + found.message_bytes as usize;
            let fits = bytes <= most || (wanted.is_empty() && moving.budget.may_overdraw());
            if !fits || wanted.len() == MAX_READ_RECORDS {
                break;
            }
            wanted.push((0, place));
        }
        if wanted.is_empty() {
            moving.budget.give_up();
            return None;
        }
        moving.reading = true;
        Some(Fetch::to_move(wanted))
    }

    /// Whether [`Recording::take_moving`] may have something.
    #[inline]
    pub(super) fn has_moving(&self) -> bool {
        let Moving { found, reading, looking, budget, .. } = &self.moving;
        !found.is_empty() && !reading && looking.is_none() && budget.left(1) > 0
    }

    /// A record was moved to `to`. False when nobody needs it any more, or another one stands for it.
    pub(super) fn on_moved(&mut self, entry: &mut Entry, what: What, to: Place) -> bool {
        let outgoing = entry.session.outgoing.as_mut();
        let (is_moved, from) = match what {
            What::Moved { seq, received, from } => {
                (outgoing.is_some_and(|it| it.move_place(seq, received, from, to)), from)
            }
            What::MovedTaken(id, from) => (entry.session.incoming.move_place(id, from, to), from),
            What::Message(_) | What::Received(_) | What::Taken(_) => return false,
        };
        if is_moved {
            self.dead(from);
        }
        is_moved
    }

    /// Has all that lies before a position looked for.
    fn begin_moving(&mut self, before: Position) {
        if self.shard == 0 {
            self.node.say_again(self.shard, before);
        }
        let before = Place::at(before.get());
        if before > self.moving.clean_before {
            self.moving.moved = false;
            let looking = Looking { before, is_whole: true, session: 0, from: 0 };
            self.moving.looking = Some(looking);
        }
    }

    /// Tells up to where nothing is missing but what was found at start.
    fn tell_settled(&mut self) {
        let end = self.node.usage().end.get();
        self.settled = self.untaken.values().copied().fold(end, u64::min);
        self.node.set_settled(self.shard, self.settled);
    }

    fn refill_budget(&mut self, now_ms: u64) {
        let (journal, usage) = (self.node.journal(), self.node.usage());
        let nearly_full = (journal.state() == State::NearlyFull).then(|| usage.oldest.get());
        let (end, moved) = (usage.end.get(), self.node.moved_bytes());
        let (percent, shards) = (self.node.moved_percent(), self.mail.len() as u64);
        let seen = Seen { now_ms, end, moved, nearly_full };
        self.moving.budget.refill(seen, percent, journal.segment_bytes(), shards);
    }

    /// Notes what of a session lies before a place; the number from which on its queue is next.
    fn look_at(
        &mut self,
        key: SessionKey,
        entry: &Entry,
        looking: &Looking,
        most: &mut usize,
    ) -> Option<u64> {
        let (before, generation) = (looking.before, entry.generation);
        if looking.from == 0 {
            *most = most.saturating_sub(entry.session.incoming.len());
            for (id, from) in entry.session.incoming.recorded_before(before) {
                let record = Record::Taken(Origin { generation, id });
                self.record_again(key, generation, &record, What::MovedTaken(id, from));
            }
        }
        let outgoing = entry.session.outgoing.as_ref()?;
        let mut received = Vec::new();
        let found = &mut self.moving.found;
        let next = outgoing.recorded_before(before, looking.from, most, |it| {
            let Some(position) = it.place.position() else { return };
            match it.message_bytes {
                Some(bytes) => found.push(Found {
                    position,
                    seq: it.seq,
                    session: key,
                    message_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                }),
                None => received.push((it.seq, it.place)),
            }
        });
        for (seq, from) in received {
            let record = Record::Received(Done { generation, seq });
            self.record_again(key, generation, &record, What::Moved { seq, received: true, from });
            self.sent.push(key); // the highest number is known by that
        }
        next
    }

    fn record_again(
        &mut self,
        session: SessionKey,
        generation: u64,
        record: &Record<'_>,
        what: What,
    ) {
        if generation == 0 {
            return; // its places are those of messages alone
        }
        let at = Some(self.push(record));
        self.gathering.tell.push(Tell { session, generation, what, at });
        self.hold(session, generation);
        self.node.count_moved(1, RECORD_BYTES);
        self.moving.moved = true;
        self.moving.spend(RECORD_BYTES);
    }

    /// The message that is moved, whose targets come next.
    fn open_moved(&mut self, message: &Arc<Message>) {
        if self.goes_on(message, true) {
            return;
        }
        self.begin_open(Open::new(message, None, true));
        self.moving.moved = true;
    }

    fn add_moved(
        &mut self,
        session: SessionKey,
        to: Done,
        delivery: &Delivery,
        sent_seq: u64,
        from: Place,
    ) {
        let Some(open) = &mut self.open else { return };
        let Done { generation, seq } = to;
        // Without a generation it is read once more, and means nothing after a start.
        if generation > 0 {
            encode_target(to, delivery, &mut open.targets);
            encode_sent(sent_seq, &mut open.targets);
            open.count += 1;
        }
        let what = What::Moved { seq, received: false, from };
        self.gathering.tell.push(Tell { session, generation, what, at: None });
        self.hold(session, generation); // it waits for its new record
    }
}

impl Moving {
    fn is_busy(&self) -> bool {
        self.reading || (!self.found.is_empty() && self.looking.is_none())
    }

    fn spend(&mut self, bytes: usize) {
        self.budget.spend(bytes);
    }

    /// Leaves what lies behind for later when too much was found: what is moved is to be moved with all
    /// that it is owed to.
    fn keep_lowest(&mut self, looking: &mut Looking) {
        if self.found.len() < 2 * MAX_FOUND {
            return;
        }
        self.found.sort_unstable();
        let last = self.found[MAX_FOUND].position;
        let whole = self.found.partition_point(|found| found.position < last);
        // At least one, if it is one alone that is owed to so many: the others get another copy.
        let kept = if whole == 0 { MAX_FOUND } else { whole };
        self.found.truncate(kept);
        looking.is_whole = false;
        looking.before = Place::at(if whole == 0 { last + 1 } else { last });
    }

    /// All that is found of one record.
    fn take_group(&mut self, position: u64) -> Vec<Found> {
        let begin = self.found.partition_point(|found| found.position > position);
        self.found.split_off(begin)
    }
}

#[cfg(test)]
impl Shard {
    /// Moves what lies before the segment up to which all is settled, whether it pays or not. What is
    /// to be read is asked for by [`Shard::take_fetch`].
    pub(super) fn move_all(&mut self, now_ms: u64) {
        let Some(recording) = self.recording.as_mut() else { return };
        if !recording.full.is_empty() || recording.moving.is_busy() {
            return;
        }
        recording.tell_settled();
        recording.moving.budget = Budget::unlimited();
        let before = recording.node.settled_before();
        recording.begin_moving(before);
        self.look_on(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(position: u64, session: u32) -> Found {
        Found { position, seq: 1, session: SessionKey(session), message_bytes: 10 }
    }

    fn looking() -> Looking {
        Looking { before: Place::at(1_000_000), is_whole: true, session: 0, from: 0 }
    }

    #[test]
    fn too_much_is_cut_between_two_records() {
        let mut moving = Moving::default();
        let mut looking = looking();
        // Three sessions are owed each.
        for at in (0..2 * MAX_FOUND as u64).rev() {
            moving.found.push(found(at / 3 + 1, at as u32));
        }
        moving.keep_lowest(&mut looking);
        assert!(!looking.is_whole);
        let last = (MAX_FOUND / 3) as u64;
        assert_eq!((looking.before, moving.found.len()), (Place::at(last + 1), last as usize * 3));
        assert!(moving.found.iter().all(|found| found.position <= last));
    }

    #[test]
    fn one_record_of_very_many_is_cut() {
        let mut moving = Moving::default();
        let mut looking = looking();
        moving.found.extend((0..2 * MAX_FOUND as u32).map(|session| found(7, session)));
        moving.keep_lowest(&mut looking);
        assert_eq!((looking.before, moving.found.len()), (Place::at(8), MAX_FOUND));
        assert_eq!(moving.take_group(7).len(), MAX_FOUND);
    }
}
