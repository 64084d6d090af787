//! Messages of durable sessions on their way into the journal.
//!
//! While a shard decides, records gather; at the end of its turn they are appended as one *unit*,
//! after which each is told its place. What became durable since is looked at when the journal says
//! so ([`Shard::on_stored`]): acknowledgements leave (`owed`), QoS 2 messages go to their clients.

use std::mem;
use std::sync::Arc;

use journal::{Class, Position, Refused};
use mqtt::session::{Place, Progress, Queued};
use mqtt::wire::PacketId;

use super::held::Held;
use super::moving::RECORD_BYTES;
use super::owed::Wait;
use super::recording::Recording;
use super::unit::{Mark, Tell, What};
use super::{SessionKey, Shard};
use crate::config::Level;
use crate::messages::{Done, Messages, Origin, Record, Replay};

impl Shard {
    /// Records messages of durable sessions from now on. [`Shard::set_durability`] comes first.
    pub fn set_messages(&mut self, node: Arc<Messages>) {
        let shards = self.fabric.shards();
        let wall_offset_ms = self.durability.as_ref().map_or(0, |it| it.wall_offset_ms);
        for _ in self.sessions.iter().filter(|(_, entry)| entry.generation > 0) {
            node.count_session(self.id, true);
        }
        self.recording = Some(Box::new(Recording::new(node, self.id, shards, wall_offset_ms)));
    }

    /// The wall clock may have been set.
    pub(super) fn set_recorded_wall_clock(&mut self, wall_offset_ms: u64) {
        if let Some(recording) = self.recording.as_mut() {
            recording.wall_offset_ms = wall_offset_ms;
        }
    }

    /// To be called when a turn ends: what was recorded in it is appended, as one unit.
    #[inline]
    pub fn end_turn(&mut self) {
        self.turn_began = None;
        if self.recording.as_ref().is_some_and(|recording| recording.has_work()) {
            self.append_records();
        }
    }

    /// To be called when the journal, or another shard, says that there is news.
    pub fn on_stored(&mut self, now_ms: u64) {
        let Some(recording) = self.recording.as_mut() else { return };
        recording.refresh();
        self.append_records();
        self.release_owed();
        while let Some(session) = self.recording.as_mut().and_then(|it| it.next_held()) {
            let (key, generation) = session;
            if self.sessions.get(key.0 as usize).is_some_and(|it| it.generation == generation) {
                self.pump(key, now_ms);
            }
        }
        self.settle(now_ms);
    }

    /// Whether those who publish are to wait.
    #[inline]
    pub fn is_backed_up(&self) -> bool {
        self.recording.as_ref().is_some_and(|recording| recording.is_backed_up())
    }

    /// Whether anything is not appended that should be. For ever once the journal has failed.
    pub fn has_unappended(&self) -> bool {
        self.recording.as_ref().is_some_and(|recording| {
            !recording.full.is_empty() && recording.node.journal().state().is_running()
        })
    }

    /// How many records that take space, and waiting acknowledgements, there were so far.
    #[inline]
    pub(super) fn recorded_activity(&self) -> (u64, u64) {
        self.recording
            .as_ref()
            .map_or((0, 0), |recording| (recording.activity, recording.owed.total))
    }

    /// Whether those who are owed acknowledgements are to wait.
    pub(super) fn owes_too_much(&self) -> bool {
        self.recording.as_ref().is_some_and(|recording| recording.owed.is_full())
    }

    /// Begins to record that a session is owed a message, before it is known whether it takes it.
    #[inline]
    pub(super) fn begin_record(&mut self, key: SessionKey, queued: &mut Queued) -> Option<Mark> {
        let recording = self.recording.as_mut()?;
        let entry = self.sessions.get_mut(key.0 as usize)?;
        if entry.generation == 0 {
            return None;
        }
        let outgoing = entry.session.outgoing_mut();
        if outgoing.next_seq() == 0 {
            outgoing.start_numbers(1);
        }
        let to = Done { generation: entry.generation, seq: outgoing.next_seq() };
        match recording.publish.level {
            Level::None => {
                self.stats.queued_level_none.add(1);
                return None;
            }
            Level::Os => self.stats.queued_level_os.add(1),
            Level::Disk => self.stats.queued_level_disk.add(1),
        }
        if queued.message.size_bytes() > recording.node.max_message_bytes() {
            tracing::warn!(topic = queued.message.draft().topic, "too large to be recorded");
            return None;
        }
        recording.open(&queued.message);
        queued.place = Place::PENDING;
        Some(recording.add_target(to, &queued.delivery))
    }

    /// Ends what [`Shard::begin_record`] began: the session took the message, or not.
    #[inline]
    pub(super) fn end_record(&mut self, key: SessionKey, mark: Mark, waits: bool) {
        let Self { recording: Some(recording), sessions, .. } = self else { return };
        let Some(outgoing) =
            sessions.get(key.0 as usize).and_then(|entry| entry.session.outgoing.as_ref())
        else {
            return;
        };
        let Mark { seq, generation, targets } = mark;
        if outgoing.next_seq() == seq {
            recording.take_back(targets);
            return;
        }
        let what = What::Message(seq);
        recording.gathering.tell.push(Tell { session: key, generation, what, at: None });
        recording.publish.wait.unit = recording.unit;
        if waits {
            recording.hold(key, generation);
        }
    }

    /// Notes what messages of a session have come to.
    #[inline]
    pub(super) fn note_progress(&mut self, key: SessionKey) {
        if self.scratch.progress.is_empty() {
            return;
        }
        self.record_progress(key);
    }

    fn record_progress(&mut self, key: SessionKey) {
        let Self { recording, sessions, scratch, .. } = self;
        let generation = sessions.get(key.0 as usize).map_or(0, |entry| entry.generation);
        let Some(recording) = recording.as_mut() else {
            return scratch.progress.clear(); // nothing that it has is recorded
        };
        for progress in scratch.progress.drain(..) {
            match progress {
                Progress::Done { seq, place } => {
                    recording.dead(place);
                    recording.done(Done { generation, seq });
                }
                Progress::Received { seq, place } => {
                    let at = recording.push(&Record::Received(Done { generation, seq }));
                    let what = What::Received(seq);
                    let tell = Tell { session: key, generation, what, at: Some(at) };
                    recording.gathering.tell.push(tell);
                    recording.replaced(place);
                }
            }
        }
    }

    /// A session has sent messages: how far is recorded with the next tick.
    #[inline]
    pub(super) fn note_sent(&mut self, key: SessionKey) {
        let Self { recording: Some(recording), sessions, .. } = self else { return };
        let Some(entry) = sessions.get_mut(key.0 as usize) else { return };
        if entry.generation > 0 && !mem::replace(&mut entry.sent_listed, true) {
            recording.sent.push(key);
        }
    }

    /// Records how far sessions have been sent what they are owed.
    pub(super) fn record_sent(&mut self) {
        let Self { recording: Some(recording), sessions, .. } = self else { return };
        if !recording.full.is_empty() {
            return; // later will do
        }
        for key in mem::take(&mut recording.sent) {
            let Some(entry) = sessions.get_mut(key.0 as usize) else { continue };
            entry.sent_listed = false;
            let generation = entry.generation;
            if let Some(outgoing) = &entry.session.outgoing
                && outgoing.inflight() > 0
                && outgoing.next_seq() > 0
                && generation > 0
            {
                recording.push(&Record::Sent(Done { generation, seq: outgoing.sent_seq() }));
            }
        }
    }

    /// A PUBREL came for `id`, of which `place` was known; what PUBCOMP waits for.
    pub(super) fn record_released(
        &mut self,
        key: SessionKey,
        id: PacketId,
        place: Option<Place>,
    ) -> Wait {
        let Self { recording: Some(recording), sessions, .. } = self else {
            return Wait::default();
        };
        let generation = sessions.get(key.0 as usize).map_or(0, |entry| entry.generation);
        if generation == 0 {
            return Wait::default();
        }
        match place {
            Some(place) if place.is_recorded() => {
                recording.dead(place);
                recording.push(&Record::Released(Origin { generation, id }));
                Wait { unit: recording.unit, ..Wait::default() }
            }
            Some(_) => {
                recording.untaken.remove(&Origin { generation, id });
                Wait::default()
            }
            // Released on an earlier connection, perhaps a moment ago.
            None => Wait { unit: recording.so_far(), ..Wait::default() },
        }
    }

    /// What the PUBREL of a session waits for, whose PUBREC was just noted, or earlier.
    pub(super) fn wait_for_received(&self, key: SessionKey) -> Wait {
        let is_durable = self.sessions.get(key.0 as usize).is_some_and(|it| it.generation > 0);
        match self.recording.as_ref().filter(|_| is_durable) {
            Some(recording) => Wait { unit: recording.so_far(), ..Wait::default() },
            None => Wait::default(),
        }
    }

    /// Everything that this shard has recorded or sent to others so far.
    pub(super) fn wait_so_far(&self) -> Wait {
        let Some(recording) = self.recording.as_ref() else { return Wait::default() };
        Wait { unit: recording.so_far(), hops: recording.hops_so_far(), ..Wait::default() }
    }

    /// Has what a session is owed sent once everything recorded so far is durable.
    pub(super) fn hold_until_stored(&mut self, key: SessionKey) {
        let Self { recording: Some(recording), sessions, .. } = self else { return };
        let Some(entry) = sessions.get(key.0 as usize) else { return };
        if entry.generation > 0 && recording.so_far() > recording.durable_unit {
            let generation = entry.generation;
            recording.hold(key, generation);
        }
    }

    /// The generation of a session in the metadata from now on; 0 when it does not outlive the
    /// process any more. What was recorded under another one means nothing from here on.
    pub(super) fn set_generation(&mut self, key: SessionKey, generation: u64) {
        let Self { recording, sessions, id, .. } = self;
        let Some(entry) = sessions.get_mut(key.0 as usize) else { return };
        let before = mem::replace(&mut entry.generation, generation);
        let Some(recording) = recording.as_mut().filter(|_| before != generation) else { return };
        if before > 0 {
            recording.untaken.retain(|origin, _| origin.generation != before);
            let unsettled = recording.node.unsettled();
            recording.changes.extend(unsettled.end_publisher(before));
            for &origin in entry.unsettled.iter().flat_map(|all| all.iter()) {
                recording.changes.extend(unsettled.end_holder(origin, before));
            }
            recording.forget(entry);
        }
        match (before, generation) {
            (0, 1..) => recording.node.count_session(*id, true),
            (1.., 0) => recording.node.count_session(*id, false),
            _ => {}
        }
    }

    /// A session goes to another node: should it come back, what is recorded here is not its own.
    pub(super) fn record_ended(&mut self, key: SessionKey) {
        let Self { recording: Some(recording), sessions, .. } = self else { return };
        let generation = sessions.get(key.0 as usize).map_or(0, |entry| entry.generation);
        if generation > 0 {
            recording.push(&Record::Ended(generation));
        }
    }

    /// Gives sessions what the journal has for them. Before clients are accepted.
    pub fn restore_messages(&mut self, replay: &mut Replay) {
        let Self { recording: Some(recording), sessions, stats, limits, .. } = self else { return };
        let node = recording.node.clone();
        let journal = node.journal();
        let (mut changes, mut found) = (Vec::new(), Vec::new());
        for (_, entry) in sessions.iter_mut().filter(|(_, entry)| entry.generation > 0) {
            let Some(mut recorded) = replay.take(entry.generation) else { continue };
            if !recorded.unsettled.is_empty() {
                let all = mem::take(&mut recorded.unsettled);
                for &(origin, place) in &all {
                    let Some(position) = place.position() else { continue };
                    let segment = journal.segment_of(Position::new(position));
                    node.unsettled().add(origin, entry.generation, segment);
                    changes.push((segment, 1));
                    node.found(segment, RECORD_BYTES as u64);
                }
                let all = all.into_iter().map(|(origin, _)| origin).collect();
                entry.unsettled = Some(Box::new(all));
            }
            let (outgoing, incoming) = recorded.into_halves();
            let mut most = usize::MAX;
            outgoing.recorded_before(Place::PENDING, 0, &mut most, |it| {
                let bytes = RECORD_BYTES + it.message_bytes.unwrap_or(0);
                found.extend(it.place.position().map(|position| (position, bytes as u64)));
            });
            let taken = incoming.places().filter_map(Place::position);
            found.extend(taken.map(|position| (position, RECORD_BYTES as u64)));
            Held::default().became(Held::of(&outgoing, limits), stats);
            entry.session.outgoing = Some(Box::new(outgoing));
            entry.session.incoming = incoming;
        }
        let segment_of = |position: u64| journal.segment_of(Position::new(position));
        found.sort_unstable();
        for same in found.chunk_by(|a, b| segment_of(a.0) == segment_of(b.0)) {
            changes.push((segment_of(same[0].0), same.len() as i64));
        }
        node.change_live(&changes, Position::new(0), None);
        found.dedup_by_key(|(position, _)| *position); // one record may be for many
        for record in found {
            node.found(segment_of(record.0), record.1);
        }
        node.counted();
    }

    /// Appends what has gathered, if there is room for it.
    fn append_records(&mut self) {
        let ahead = self.read_ahead();
        let Self { recording: Some(recording), sessions, stats, .. } = self else { return };
        recording.complete();
        if recording.failed {
            recording.full.clear();
            recording.changes.clear();
            return;
        }
        let appends = !recording.full.is_empty();
        if appends {
            recording.node.begin_append(recording.shard);
        }
        while let Some(mut unit) = recording.full.pop_front() {
            let journal = recording.node.journal();
            recording.settle(&mut unit);
            let class = if unit.publishes { Class::New } else { Class::Always };
            let mut result = journal.append(&mut unit.batch, class);
            if result == Err(Refused::NearlyFull) {
                // Taken before that was known: others are refused already.
                result = journal.append(&mut unit.batch, Class::Always);
            }
            match result {
                Ok(appended) => {
                    let spilled = recording.appended(unit, appended, sessions, ahead);
                    stats.queued_memory_bytes.sub(spilled as u64);
                }
                Err(Refused::Busy | Refused::NearlyFull | Refused::Full) => {
                    recording.full.push_front(unit);
                    break;
                }
                Err(refused) => {
                    // Nobody is acknowledged any more, and the node ends.
                    tracing::error!(%refused, "messages cannot be recorded");
                    journal.fail(&format!("messages cannot be recorded: {refused}"));
                    recording.failed = true;
                    recording.full.clear();
                    recording.changes.clear();
                    return;
                }
            }
        }
        if appends || !recording.changes.is_empty() {
            let appended = recording.full.is_empty().then_some(recording.shard);
            recording.node.change_live(&recording.changes, recording.last, appended);
            recording.changes.clear();
        }
        if recording.full.is_empty() && mem::take(&mut recording.unconfirmed) {
            recording.confirm_mail();
        }
    }
}
