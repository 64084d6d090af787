//! Messages that lie in the journal alone, on their way back into memory.
//!
//! A message of a durable session goes out of memory once it has its record, unless its client is
//! there and it is near the front of the queue ([`Shard::spill`], `Recording::appended`). The shard
//! says what it wants back ([`Shard::take_fetch`]), a task reads it, and the shard goes on
//! ([`Shard::on_fetched`]). Meanwhile everything may have changed: what nobody waits for any more is
//! ignored.
//!
//! A record that fails its checksum is that message's end, not the node's: it is dropped, counted and
//! logged, and all others go on. When the system cannot read, nothing is dropped: it is tried again.

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::session::{Message, Owed, Place, ReadAhead};

use super::held::Held;
use super::owed::Wait;
use super::{SessionKey, Shard};
use crate::messages::Done;

/// Bytes of one session's queue that are in memory while its client is there.
const SESSION_READ_AHEAD_BYTES: usize = 1 << 20;

/// What is to be read at once.
///
/// Bound: the read-ahead of one session, or what is moved at once.
#[derive(Debug)]
pub struct Fetch {
    purpose: Purpose,
    wanted: Vec<(u64, Place)>,
}

#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// To be sent by this session, with its number.
    Send(SessionKey, u64),
    /// To be handed on.
    HandOn,
    /// To be moved to the end of the journal.
    Move,
}

/// A record that can never be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// What waits to be read.
///
/// Bounds: each session is listed once; messages to be handed on waited in the queues of sessions
/// before, which are bounded.
#[derive(Debug, Default)]
pub(super) struct Fetching {
    sessions: VecDeque<(SessionKey, u64)>,
    /// What sessions left to their share groups, each with the generation that it was recorded for;
    /// 0 when that has ended. In order; the first one is a reference.
    handed_on: VecDeque<(u64, Owed)>,
    /// The first ones of `handed_on` are being read.
    reading_handed_on: bool,
}

impl Fetch {
    pub(super) fn to_move(wanted: Vec<(u64, Place)>) -> Self {
        Self { purpose: Purpose::Move, wanted }
    }

    /// The records to be read, as positions in the journal.
    pub fn positions(&self) -> impl Iterator<Item = u64> {
        self.wanted.iter().filter_map(|(_, place)| place.position())
    }
}

impl Shard {
    /// What is to be read next.
    pub fn take_fetch(&mut self) -> Option<Fetch> {
        let ahead = self.read_ahead();
        let Self { recording: Some(recording), sessions, .. } = self else { return None };
        if let Some(fetch) = recording.take_moving() {
            return Some(fetch); // little, at long intervals
        }
        let fetching = &mut recording.fetching;
        if !fetching.handed_on.is_empty() && !fetching.reading_handed_on {
            fetching.reading_handed_on = true;
            let mut wanted = Vec::new();
            let mut bytes = 0;
            for (_, owed) in fetching.handed_on.iter().take(ahead.messages) {
                let Owed::Stored(reference) = owed else { break };
                bytes += reference.size_bytes();
                if !wanted.is_empty() && bytes > ahead.bytes {
                    break;
                }
                wanted.push((reference.seq, reference.place));
            }
            return Some(Fetch { purpose: Purpose::HandOn, wanted });
        }
        while let Some((key, number)) = fetching.sessions.pop_front() {
            let entry = sessions.get_mut(key.0 as usize).filter(|entry| entry.number == number);
            let Some(entry) = entry else { continue };
            let mut wanted = Vec::new();
            if let Some(outgoing) = entry.session.outgoing.as_ref().filter(|_| entry.conn.is_some())
            {
                outgoing.wanted(ahead, &mut wanted);
            }
            if !wanted.is_empty() {
                return Some(Fetch { purpose: Purpose::Send(key, number), wanted });
            }
            entry.fetching = false;
        }
        None
    }

    /// Whether [`Shard::take_fetch`] may have something.
    #[inline]
    pub fn has_fetches(&self) -> bool {
        self.recording.as_ref().is_some_and(|recording| {
            let Fetching { sessions, handed_on, reading_handed_on } = &recording.fetching;
            !sessions.is_empty()
                || (!handed_on.is_empty() && !reading_handed_on)
                || recording.has_moving()
        })
    }

    /// What was read, in order. When it is less than was wanted, the rest is asked for again.
    pub fn on_fetched(&mut self, fetch: Fetch, read: Vec<Result<Arc<Message>, Lost>>, now_ms: u64) {
        if !matches!(fetch.purpose, Purpose::Move) {
            let count = read.iter().filter(|read| read.is_ok()).count();
            self.stats.messages_read_back.add(count as u64);
        }
        match fetch.purpose {
            Purpose::Send(key, number) => self.load(key, number, fetch.wanted, read, now_ms),
            Purpose::HandOn => self.hand_on_read(read, now_ms),
            Purpose::Move => self.on_moving_read(fetch, read, now_ms),
        }
        self.settle(now_ms);
    }

    /// Has what a session is owed next read, if its client is there.
    #[cold]
    pub(super) fn want(&mut self, key: SessionKey) {
        let ahead = self.read_ahead();
        let Self { recording: Some(recording), sessions, .. } = self else { return };
        let Some(entry) = sessions.get_mut(key.0 as usize) else { return };
        let wants = entry.session.outgoing.as_ref().is_some_and(|it| it.wants(ahead));
        if wants && entry.conn.is_some() && !std::mem::replace(&mut entry.fetching, true) {
            recording.fetching.sessions.push_back((key, entry.number));
        }
    }

    /// The client of a session has gone: what can be read back goes out of memory.
    pub(super) fn spill(&mut self, key: SessionKey) {
        let Self { recording: Some(_), sessions, stats, limits, .. } = self else { return };
        let Some(entry) = sessions.get_mut(key.0 as usize) else { return };
        if let Some(outgoing) = entry.session.outgoing.as_mut() {
            let before = Held::of(outgoing, limits);
            outgoing.spill_all();
            before.became(Held::of(outgoing, limits), stats);
        }
    }

    /// How much of a queue is in memory while its client is there: one message of each, when all
    /// queues of the shard have more than they may.
    pub(super) fn read_ahead(&self) -> ReadAhead {
        let room = (self.limits.max_read_ahead_bytes as u64)
            .saturating_sub(self.stats.queued_memory_bytes.get());
        match usize::try_from(room).unwrap_or(usize::MAX) {
            0 => ReadAhead { messages: 1, bytes: 0 },
            room => ReadAhead {
                messages: self.limits.read_ahead_messages,
                bytes: room.min(SESSION_READ_AHEAD_BYTES),
            },
        }
    }

    /// Hands on what a session leaves to its share groups, in order: what has to be read first, and
    /// all behind it, later. Should the process end before, then what was recorded for a session that
    /// goes on is its own again, and that of one that has ended is lost.
    pub(super) fn hand_on(&mut self, owed: Vec<Owed>, generation: u64, now_ms: u64) {
        for one in owed {
            let waiting = self.recording.as_mut().map(|it| &mut it.fetching.handed_on);
            match (one, waiting) {
                (one, Some(waiting)) if !waiting.is_empty() => waiting.push_back((generation, one)),
                (Owed::Here(queued), _) => self.hand_on_queued(queued, generation, now_ms),
                (one, Some(waiting)) => waiting.push_back((generation, one)),
                (Owed::Stored(_), None) => {} // there are none without a journal
            }
        }
    }

    fn load(
        &mut self,
        key: SessionKey,
        number: u64,
        wanted: Vec<(u64, Place)>,
        read: Vec<Result<Arc<Message>, Lost>>,
        now_ms: u64,
    ) {
        let Self { sessions, stats, limits, scratch, .. } = self;
        let entry = sessions.get_mut(key.0 as usize).filter(|entry| entry.number == number);
        let Some(entry) = entry else { return };
        entry.fetching = false;
        let Some(outgoing) = entry.session.outgoing.as_mut().filter(|_| entry.conn.is_some())
        else {
            return;
        };
        let before = Held::of(outgoing, limits);
        for ((seq, place), read) in wanted.into_iter().zip(read) {
            match read {
                Ok(message) => outgoing.load(seq, message),
                // Should it have been moved meanwhile, it is read where it lies now.
                Err(Lost) => {
                    let is_lost = outgoing.lose(seq, place, &mut scratch.progress);
                    stats.dropped_damaged.add(is_lost.into());
                }
            }
        }
        before.became(Held::of(outgoing, limits), stats);
        self.note_progress(key);
        self.pump(key, now_ms);
        self.want(key); // should some of it not have been read
    }

    fn hand_on_read(&mut self, read: Vec<Result<Arc<Message>, Lost>>, now_ms: u64) {
        let Some(recording) = self.recording.as_mut() else { return };
        recording.fetching.reading_handed_on = false;
        for read in read {
            let Some((generation, owed)) = self.next_handed_on(true) else { return };
            match (owed, read) {
                (Owed::Stored(reference), Ok(message)) => {
                    self.hand_on_queued(reference.load(message), generation, now_ms);
                }
                (Owed::Stored(reference), Err(Lost)) => {
                    self.stats.dropped_damaged.add(1);
                    let done = Done { generation, seq: reference.seq };
                    self.done_after(done, reference.place, Wait::default());
                }
                (Owed::Here(queued), _) => self.hand_on_queued(queued, generation, now_ms),
            }
        }
        while let Some((generation, Owed::Here(queued))) = self.next_handed_on(false) {
            self.hand_on_queued(queued, generation, now_ms);
        }
    }

    fn next_handed_on(&mut self, stored: bool) -> Option<(u64, Owed)> {
        let handed_on = &mut self.recording.as_mut()?.fetching.handed_on;
        handed_on.pop_front_if(|(_, owed)| stored || matches!(owed, Owed::Here(_)))
    }
}
