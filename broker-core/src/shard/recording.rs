//! What a shard records, as plain data: units that gather, wait for room in the journal, and become
//! durable; what waits for them; and how much mail of other shards is done with.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use journal::{Appended, Batch, Class, Position, Relative, State};
use mqtt::session::{Delivery, Message, Place};
use mqtt::wire::PacketId;
use slab::Slab;
use smallvec::SmallVec;

use super::owed::{Hop, Owed, Wait};
use super::{Entry, SessionKey};
use crate::config::Level;
use crate::messages::{
    Done, MailKind, Messages, Origin, PublishHead, Record, encode_done, encode_publish,
    encode_target,
};

/// What the shard records, and what waits for it.
///
/// Bounds: units that the journal refused wait here, and nobody may publish meanwhile, so that they
/// are what one turn makes; places to be told, and sessions that wait, are as many as records in
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
    pub(super) publish: CurrentPublish,
    /// Nothing new is taken.
    pub(super) nearly_full: bool,
    /// Nothing is recorded any more, and nobody acknowledged.
    pub(super) failed: bool,
    /// Records and acknowledgements so far: whether a turn made any.
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

/// Mail between this shard and another, by [`MailKind`].
#[derive(Debug, Default)]
pub(super) struct MailCounts {
    pub(super) sent: [u64; 2],
    pub(super) received: [u64; 2],
    pub(super) confirmed: [u64; 2],
    /// Mail of the first kind that was sent on, with what its confirmation waits for.
    pub(super) forwarded: VecDeque<(u64, SmallVec<[Hop; 2]>)>,
}

#[derive(Debug, Default)]
pub(super) struct Unit {
    pub(super) number: u64,
    pub(super) batch: Batch,
    pub(super) tell: Vec<Tell>,
    pub(super) last: Option<Relative>,
    /// There are new messages among its records.
    pub(super) publishes: bool,
}

/// Who is told where a record lies.
#[derive(Debug)]
pub(super) struct Tell {
    pub(super) session: SessionKey,
    pub(super) generation: u64,
    pub(super) what: What,
    /// Absent while its record is open.
    pub(super) at: Option<Relative>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Message(u64),
    Received(u64),
    Taken(PacketId),
}

#[derive(Debug)]
pub(super) struct UnitPlace {
    pub(super) number: u64,
    pub(super) ticket: u64,
    pub(super) end: Place,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) message: Arc<Message>,
    pub(super) origin: Option<Origin>,
    pub(super) targets: Vec<u8>,
    pub(super) count: usize,
}

/// A target that may still be taken back.
pub(super) struct Mark {
    pub(super) seq: u64,
    pub(super) generation: u64,
    pub(super) targets: usize,
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

    /// The ticket of the last unit in the journal, whoever appended it.
    pub(super) fn last_ticket(&self) -> u64 {
        let last = self.node.journal().append(&mut Batch::new(), Class::Always);
        last.map_or(u64::MAX, |last| last.ticket.get())
    }

    pub(super) fn is_stored(&self, unit: u64, ticket: u64, written: bool) -> bool {
        let journal = self.node.journal();
        let (last_unit, last_ticket) = match written {
            true => (self.written_unit, journal.written()),
            false => (self.durable_unit, journal.durable()),
        };
        unit <= last_unit && ticket <= last_ticket.get()
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
        if let Some(open) = &self.open {
            let has_room = open.targets.len() < self.node.unit_bytes() / 2;
            if has_room && Arc::ptr_eq(&open.message, message) {
                return;
            }
            self.close_open();
            if self.gathering.batch.bytes() >= self.node.unit_bytes() {
                self.complete();
            }
        }
        let targets = mem::take(&mut self.spare_targets);
        let origin = self.publish.origin.map(|(origin, _)| origin);
        self.open = Some(Open { message: message.clone(), origin, targets, count: 0 });
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
        if let Some(open) = &mut self.open {
            open.targets.truncate(targets);
            open.count -= 1;
        }
    }

    /// Writes the record whose targets have gathered.
    pub(super) fn close_open(&mut self) {
        let Some(Open { message, origin, mut targets, count }) = self.open.take() else { return };
        if count > 0 {
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
            let at = unit.batch.push(|out| encode_publish(&head, count, &targets, out));
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
        let at = self.gathering.batch.push(|out| record.encode(out));
        self.gathering.last = Some(at);
        self.activity += 1;
        at
    }

    pub(super) fn push_taken(&mut self, session: SessionKey, origin: Origin) {
        let at = Some(self.push(&Record::Taken(origin)));
        let (generation, what) = (origin.generation, What::Taken(origin.id));
        self.gathering.tell.push(Tell { session, generation, what, at });
    }

    /// Nothing is owed for a message any more: recorded at the end of the unit.
    #[inline]
    pub(super) fn done(&mut self, done: Done) {
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

    /// Tells everybody in a unit where their records lie.
    pub(super) fn appended(
        &mut self,
        mut unit: Unit,
        appended: Appended,
        sessions: &mut Slab<Entry>,
    ) {
        let mut live = 0;
        for Tell { session, generation, what, at } in unit.tell.drain(..) {
            let entry = sessions.get_mut(session.0 as usize);
            let entry = entry.filter(|entry| entry.generation == generation);
            let (Some(entry), Some(at)) = (entry, at) else { continue };
            let place = Place::at(appended.at(at).get());
            let outgoing = entry.session.outgoing.as_mut();
            let replaced = match what {
                What::Message(seq) => outgoing.and_then(|it| it.set_place(seq, false, place)),
                What::Received(seq) => outgoing.and_then(|it| it.set_place(seq, true, place)),
                What::Taken(id) => entry.session.incoming.set_place(id, place),
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
    }

    /// Everything recorded of a session is of no use any more.
    pub(super) fn forget(&mut self, entry: &mut Entry) {
        if let Some(outgoing) = entry.session.outgoing.as_mut() {
            outgoing.places().for_each(|place| self.dead(place));
            outgoing.stop_numbers();
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

    /// Mail with the message at hand goes to another shard: how it is counted, if somebody waits for
    /// what that one has to append.
    pub(super) fn count_sent(&mut self, shard: u8) -> Option<MailKind> {
        let kind = self.publish.tracked?;
        if self.publish.level == Level::None || !self.node.has_sessions(shard) {
            return None;
        }
        let number = &mut self.mail[usize::from(shard)].sent[kind as usize];
        *number += 1;
        self.publish.wait.hops.push(Hop { shard, kind, number: *number });
        Some(kind)
    }

    /// Counted mail of another shard was handled; what was sent on waits for `wait`.
    pub(super) fn count_received(&mut self, from: u8, kind: MailKind, wait: Wait) {
        let counts = &mut self.mail[usize::from(from)];
        let number = &mut counts.received[kind as usize];
        *number += 1;
        if !wait.hops.is_empty() {
            counts.forwarded.push_back((*number, wait.hops));
        }
        self.unconfirmed = true;
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

    pub(super) fn hops_so_far(&self) -> SmallVec<[Hop; 2]> {
        let kinds = [MailKind::First, MailKind::Forwarded];
        let all = self.mail.iter().enumerate().flat_map(|(shard, counts)| {
            kinds.map(|kind| Hop { shard: shard as u8, kind, number: counts.sent[kind as usize] })
        });
        all.filter(|hop| !hop.is_confirmed(self.shard, &self.node)).collect()
    }

    /// Tells other shards how much of their mail needs nothing any more but a sync.
    pub(super) fn confirm_mail(&mut self) {
        for (from, counts) in self.mail.iter_mut().enumerate() {
            let first = counts.forwarded.front().map(|(number, _)| number - 1);
            let upto = [first.unwrap_or(counts.received[0]), counts.received[1]];
            for kind in [MailKind::First, MailKind::Forwarded] {
                let upto = upto[kind as usize];
                if upto > mem::replace(&mut counts.confirmed[kind as usize], upto) {
                    self.node.confirm(from as u8, self.shard, kind, upto);
                }
            }
        }
    }
}
