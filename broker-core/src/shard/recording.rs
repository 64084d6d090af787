//! What a shard records, as plain data: units that gather, wait for room in the journal, and become
//! durable; what waits for them; and how much mail of other shards is done with.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;

use journal::{Appended, Position, Relative, State};
use mqtt::session::{Delivery, Message, Place, ReadAhead};
use slab::Slab;
use smallvec::SmallVec;

use super::fetch::Fetching;
use super::hops::MailCounts;
use super::moving::Moving;
use super::owed::{Hop, Owed, Wait};
use super::unit::{Mark, Open, Tell, Unit, UnitPlace, What};
use super::{Entry, SessionKey};
use crate::config::Level;
use crate::messages::{
    Done, MailKind, Messages, Origin, PublishHead, Record, encode_done, encode_moved,
    encode_publish, encode_target,
};

/// Two varints.
const MAX_DONE_BYTES: usize = 20;

/// What the shard records, and what waits for it.
///
/// Bounds: units that the journal refused wait here, and nobody may publish meanwhile, so that they
/// are what one turn makes, and a few bytes per message in flight that is acknowledged; places to be told, and sessions that wait, are as many as records in
/// them and in the journal's memory.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) node: Arc<Messages>,
    pub(super) shard: u8,
    /// Wall clock minus the shard's monotonic clock, in milliseconds.
    pub(super) wall_offset_ms: u64,
    /// The unit that gathers; numbers begin at 1.
    pub(super) unit: u64,
    pub(super) gathering: Unit,
    /// The message whose targets gather: one record, however many sessions it goes to.
    pub(super) open: Option<Open>,
    pub(super) done: Vec<Done>,
    /// Buffers to be used again.
    pub(super) spare_targets: Vec<u8>,
    pub(super) spare_unit: Option<Unit>,
    /// Complete units that the journal had no room for, in order.
    pub(super) full: VecDeque<Unit>,
    /// Appended ones that are not durable, in order.
    pub(super) appended: VecDeque<UnitPlace>,
    pub(super) durable_unit: u64,
    pub(super) written_unit: u64,
    /// Whatever lies before it is durable.
    pub(super) stored: Place,
    /// Where the last record lies.
    pub(super) last: Position,
    /// What changed about the number of live records per segment.
    pub(super) changes: Vec<(u64, i64)>,
    /// Sessions with messages that wait for a unit to be durable.
    pub(super) held: VecDeque<(u64, SessionKey, u64)>,
    /// Sessions of which is to be recorded what they were sent.
    pub(super) sent: Vec<SessionKey>,
    pub(super) mail: Vec<MailCounts>,
    /// A shard's mail was handled and is not confirmed.
    pub(super) unconfirmed: bool,
    pub(super) owed: Owed,
    pub(super) fetching: Fetching,
    pub(super) moving: Moving,
    /// QoS 2 exchanges of this shard's publishers whose taking is not appended, each with a position
    /// that none of its messages lies before.
    pub(super) untaken: BTreeMap<Origin, u64>,
    /// What was told of them last.
    pub(super) settled: u64,
    pub(super) publish: CurrentPublish,
    /// Nothing new is taken.
    pub(super) nearly_full: bool,
    /// A unit is lost: nothing is recorded any more, and nobody acknowledged.
    pub(super) failed: bool,
    /// Records so far that take space: whether a turn made any. Those that free some (the client's
    /// acknowledgements, as many as messages in flight) stop nobody, or a full disk stayed full.
    pub(super) activity: u64,
}

/// What is known about the publish at hand.
#[derive(Debug, Default)]
pub(super) struct CurrentPublish {
    pub(super) level: Level,
    /// The exchange that it came by, and whether it was said to be a repetition.
    pub(super) origin: Option<(Origin, bool)>,
    /// Somebody waits for it: what its mail waits for.
    pub(super) tracked: Option<MailKind>,
    pub(super) wait: Wait,
    /// Sessions that have it already.
    pub(super) known: SmallVec<[SessionKey; 2]>,
}

impl Recording {
    pub(super) fn new(node: Arc<Messages>, shard: u8, shards: usize, wall_offset_ms: u64) -> Self {
        let level = node.default_level();
        // All that the process before this one left is durable.
        let stored = Place::at(node.journal().usage().end.get());
        Self {
            shard,
            wall_offset_ms,
            unit: 1,
            gathering: Unit::default(),
            open: None,
            done: Vec::new(),
            spare_targets: Vec::new(),
            spare_unit: None,
            full: VecDeque::new(),
            appended: VecDeque::new(),
            durable_unit: 0,
            written_unit: 0,
            stored,
            last: Position::new(0),
            changes: Vec::new(),
            held: VecDeque::new(),
            sent: Vec::new(),
            mail: (0..shards).map(|_| MailCounts::default()).collect(),
            unconfirmed: false,
            owed: Owed::default(),
            fetching: Fetching::default(),
            moving: Moving::default(),
            untaken: BTreeMap::new(),
            settled: 0,
            publish: CurrentPublish { level, ..CurrentPublish::default() },
            nearly_full: false,
            failed: false,
            activity: 0,
            node,
        }
    }

    pub(super) fn has_work(&self) -> bool {
        self.has_gathered() || self.unconfirmed || !self.changes.is_empty()
    }

    pub(super) fn has_gathered(&self) -> bool {
        !self.gathering.batch.is_empty() || self.open.is_some() || !self.done.is_empty()
    }

    pub(super) fn is_backed_up(&self) -> bool {
        !self.full.is_empty() || self.owed.is_full() || self.failed
    }

    /// The last unit that anything was recorded in.
    pub(super) fn so_far(&self) -> u64 {
        if self.has_gathered() { self.unit } else { self.unit - 1 }
    }

    pub(super) fn is_stored(&self, unit: u64, ticket: u64, written: bool) -> bool {
        let journal = self.node.journal();
        let (last_unit, last_ticket) = match written {
            true => (self.written_unit, journal.written()),
            false => (self.durable_unit, journal.durable()),
        };
        !self.failed && unit <= last_unit && ticket <= last_ticket.get()
    }

    /// Looks at what has become durable, and what others have confirmed.
    pub(super) fn refresh(&mut self) {
        let journal = self.node.journal();
        let (durable, written) = (journal.durable().get(), journal.written().get());
        self.nearly_full = journal.state() == State::NearlyFull;
        while let Some(first) = self.appended.front().filter(|first| first.ticket <= durable) {
            (self.durable_unit, self.stored) = (first.number, first.end);
            self.appended.pop_front();
        }
        let count = self.appended.partition_point(|unit| unit.ticket <= written);
        let last = count.checked_sub(1).and_then(|at| self.appended.get(at));
        self.written_unit = last.map_or(self.durable_unit, |unit| unit.number);
        for from in &mut self.mail {
            let confirmed = |hop: &Hop| hop.is_confirmed(self.shard, &self.node);
            while from.forwarded.front().is_some_and(|(_, hops)| hops.iter().all(confirmed)) {
                from.forwarded.pop_front();
                self.unconfirmed = true;
            }
        }
    }

    pub(super) fn next_held(&mut self) -> Option<(SessionKey, u64)> {
        let (unit, ..) = *self.held.front()?;
        if unit > self.durable_unit {
            return None;
        }
        self.held.pop_front().map(|(_, key, generation)| (key, generation))
    }

    pub(super) fn hold(&mut self, key: SessionKey, generation: u64) {
        let unit = self.so_far().max(1);
        if self.held.back() != Some(&(unit, key, generation)) {
            self.held.push_back((unit, key, generation));
        }
    }

    /// The message whose targets come next.
    #[inline]
    pub(super) fn open(&mut self, message: &Arc<Message>) {
        if !self.goes_on(message, false) {
            let origin = self.publish.origin.map(|(origin, _)| origin);
            self.begin_open(Open::new(message, origin, false));
        }
    }

    /// Whether the record that is open is of this message, and has room.
    #[inline]
    pub(super) fn goes_on(&self, message: &Arc<Message>, moved: bool) -> bool {
        self.open.as_ref().is_some_and(|open| {
            let has_room = open.targets.len() < self.node.unit_bytes() / 2;
            has_room && open.moved == moved && Arc::ptr_eq(&open.message, message)
        })
    }

    pub(super) fn begin_open(&mut self, open: Open) {
        self.close_open();
        let bytes = self.gathering.batch.bytes();
        if bytes > 0 && bytes + open.message.size_bytes() > self.node.unit_bytes() {
            self.complete();
        }
        let targets = mem::take(&mut self.spare_targets);
        self.open = Some(Open { targets, ..open });
    }

    #[inline]
    pub(super) fn add_target(&mut self, to: Done, delivery: &Delivery) -> Mark {
        let mut mark = Mark { seq: to.seq, generation: to.generation, targets: 0 };
        if let Some(open) = &mut self.open {
            mark.targets = open.targets.len();
            encode_target(to, delivery, &mut open.targets);
            open.count += 1;
            self.activity += 1;
        }
        mark
    }

    pub(super) fn take_back(&mut self, targets: usize) {
        let Some(open) = &mut self.open else { return };
        open.targets.truncate(targets);
        open.count -= 1;
        if open.count == 0 {
            self.close_open(); // it is not the begin of a unit
        }
    }

    /// Writes the record whose targets have gathered.
    pub(super) fn close_open(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Open { message, origin, moved, mut targets, count } = open;
        if count > 0 || moved {
            let draft = message.draft();
            let head = PublishHead {
                qos: draft.qos,
                retain: draft.retain,
                expires_at_ms: draft.expires_at_ms.map(|at_ms| at_ms.get() + self.wall_offset_ms),
                origin,
                topic: draft.topic,
                properties: draft.properties,
                payload: draft.payload,
            };
            let unit = &mut self.gathering;
            let before = unit.batch.bytes();
            let encode = if moved { encode_moved } else { encode_publish };
            let at = unit.batch.push(|out| encode(&head, count, &targets, out));
            if moved {
                self.node.count_moved(1, unit.batch.bytes() - before);
            }
            (unit.last, unit.publishes) = (Some(at), true);
            for tell in unit.tell.iter_mut().rev().take_while(|tell| tell.at.is_none()) {
                tell.at = Some(at);
            }
        }
        targets.clear();
        self.spare_targets = targets;
    }

    /// Writes a record behind all that gathered so far.
    pub(super) fn push(&mut self, record: &Record<'_>) -> Relative {
        self.close_open();
        if self.gathering.batch.bytes() >= self.node.unit_bytes() {
            self.complete();
        }
        let at = self.gathering.batch.push(|out| record.encode(out));
        self.gathering.last = Some(at);
        at
    }

    pub(super) fn push_taken(&mut self, session: SessionKey, origin: Origin) {
        let at = Some(self.push(&Record::Taken(origin)));
        self.activity += 1;
        let (generation, what) = (origin.generation, What::Taken(origin.id));
        self.gathering.tell.push(Tell { session, generation, what, at });
    }

    /// Nothing is owed for a message any more: recorded at the end of the unit.
    #[inline]
    pub(super) fn done(&mut self, done: Done) {
        // What a session recorded that has ended needs no end of its own.
        if done.generation == 0 {
            return;
        }
        if self.done.len() >= self.node.unit_bytes() / 8 / MAX_DONE_BYTES {
            self.complete();
        }
        self.done.push(done);
    }

    /// A record is of no use any more.
    #[inline]
    pub(super) fn dead(&mut self, place: Place) {
        let Some(position) = place.position() else { return };
        let segment = self.node.journal().segment_of(Position::new(position));
        match self.changes.last_mut().filter(|(last, _)| *last == segment) {
            Some((_, change)) => *change -= 1,
            None => self.changes.push((segment, -1)),
        }
    }

    /// A record is of no use any more once what gathers is appended.
    pub(super) fn replaced(&mut self, place: Place) {
        if place.position().is_some() {
            self.gathering.replaced.push(place);
        }
    }

    /// Ends the unit that gathers.
    pub(super) fn complete(&mut self) {
        self.close_open();
        if !self.done.is_empty() {
            let at = self.gathering.batch.push(|out| encode_done(&self.done, out));
            self.gathering.last = Some(at);
            self.done.clear();
        }
        if !self.gathering.batch.is_empty() {
            let next = self.spare_unit.take().unwrap_or_default();
            let mut unit = mem::replace(&mut self.gathering, next);
            unit.number = self.unit;
            self.unit += 1;
            self.full.push_back(unit);
        }
    }

    /// Tells everybody in a unit where their records lie. What is beyond `ahead` goes out of memory:
    /// the journal has it, until it is on the disk too. Gives the change in bytes that queues hold.
    pub(super) fn appended(
        &mut self,
        mut unit: Unit,
        appended: Appended,
        sessions: &mut Slab<Entry>,
        ahead: ReadAhead,
    ) -> usize {
        let (mut live, mut spilled) = (0, 0);
        unit.replaced.drain(..).for_each(|place| self.dead(place));
        self.changes.extend(unit.settled.drain(..));
        for Tell { session, generation, what, at } in unit.tell.drain(..) {
            if let What::Taken(id) = what {
                self.untaken.remove(&Origin { generation, id });
            }
            let entry = sessions.get_mut(session.0 as usize);
            let entry = entry.filter(|entry| entry.generation == generation);
            let (Some(entry), Some(at)) = (entry, at) else { continue };
            let place = Place::at(appended.at(at).get());
            let outgoing = entry.session.outgoing.as_mut();
            let replaced = match what {
                What::Message(seq) => outgoing.and_then(|it| {
                    let replaced = it.set_place(seq, false, place)?;
                    let ahead = if entry.conn.is_some() { ahead } else { ReadAhead::NONE };
                    let before = it.queued_here_bytes();
                    it.spill(seq, ahead);
                    spilled += before - it.queued_here_bytes();
                    Some(replaced)
                }),
                What::Received(seq) => outgoing.and_then(|it| it.set_place(seq, true, place)),
                What::Taken(id) => entry.session.incoming.set_place(id, place),
                What::Moved { .. } | What::MovedTaken(..) => {
                    live += i64::from(self.on_moved(entry, what, place));
                    continue;
                }
            };
            if let Some(replaced) = replaced {
                live += 1;
                self.dead(replaced);
            }
        }
        if let Some(last) = unit.last.take() {
            self.last = appended.at(last);
        }
        if live > 0 {
            // A unit is within one segment.
            self.changes.push((self.node.journal().segment_of(self.last), live));
        }
        let (number, ticket) = (unit.number, appended.ticket.get());
        self.appended.push_back(UnitPlace { number, ticket, end: Place::at(self.last.get() + 1) });
        unit.publishes = false;
        self.spare_unit = Some(unit);
        spilled
    }

    /// What a unit is about to settle is settled: see [`Unsettled::settle`].
    ///
    /// [`Unsettled::settle`]: crate::messages::Unsettled::settle
    pub(super) fn settle(&self, unit: &mut Unit) {
        let unsettled = self.node.unsettled();
        if unsettled.is_empty() {
            return;
        }
        for Tell { generation, what, .. } in &unit.tell {
            if let What::Taken(id) = *what {
                let origin = Origin { generation: *generation, id };
                unit.settled.extend(unsettled.settle(origin));
            }
        }
    }

    /// Everything recorded of a session is of no use any more.
    pub(super) fn forget(&mut self, entry: &mut Entry) {
        if let Some(outgoing) = entry.session.outgoing.as_mut() {
            outgoing.stop_numbers(|place| self.dead(place));
        }
        entry.session.incoming.places().for_each(|place| self.dead(place));
        entry.session.incoming.clear_places();
        entry.unsettled = None;
    }

    /// A message is about to be published, or delivered.
    pub(super) fn begin_publish(
        &mut self,
        level: Level,
        origin: Option<(Origin, bool)>,
        tracked: Option<MailKind>,
    ) {
        let wait = Wait { written: level == Level::Os, ..Wait::default() };
        self.publish = CurrentPublish { level, origin, tracked, wait, known: SmallVec::new() };
    }

    /// What the acknowledgement of the message waits for.
    pub(super) fn end_publish(&mut self, sessions: &mut Slab<Entry>) -> Wait {
        let level = self.node.default_level();
        let next = CurrentPublish { level, ..CurrentPublish::default() };
        let CurrentPublish { origin, known, wait, .. } = mem::replace(&mut self.publish, next);
        for key in known {
            let entry = sessions.get_mut(key.0 as usize);
            if let (Some(entry), Some((origin, _))) = (entry, origin)
                && let Some(unsettled) = entry.unsettled.as_mut()
            {
                unsettled.remove(&origin);
            }
        }
        wait
    }

    /// Whether the session has the message at hand from before a crash, whose publisher did not hear
    /// of it and sends it again.
    #[inline]
    pub(super) fn is_known(&mut self, key: SessionKey, entry: &mut Entry) -> bool {
        let Some((origin, again)) = self.publish.origin else { return false };
        let Some(unsettled) = entry.unsettled.as_mut() else { return false };
        if !again {
            unsettled.remove(&origin); // its publisher has forgotten the other one
            return false;
        }
        let is_known = unsettled.contains(&origin);
        if is_known && !self.publish.known.contains(&key) {
            self.publish.known.push(key);
        }
        is_known
    }
}
