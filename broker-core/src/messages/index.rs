//! What a [`Replay`] holds, as the content of a checkpoint: a few exchanges whose publishers were not
//! told, then sessions in the order of their generations, so that the next checkpoint is merged, session
//! by session, out of the one before and what was recorded since.
//!
//! Blocks of entries. An entry is a byte for its kind, then varints as in records; a session with many
//! messages is several entries that follow each other.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;

use mqtt::session::{Delivery, Place, Reference, Restored};
use mqtt::wire::QoS;
use smallvec::SmallVec;

use super::record::{Origin, Reader, RecordError, put_bytes, put_origin, varint};
use super::replay::{Recorded, Replay};

/// The version of the content. Another one is not read: the journal has it all.
pub(crate) const VERSION: u32 = 1;

/// A block is complete with this many bytes.
const BLOCK_BYTES: usize = 256 << 10;
/// And so is an entry.
const ENTRY_BYTES: usize = 64 << 10;

const UNSETTLED: u8 = 1;
const SESSION: u8 = 2;

/// Two bits for QoS, 0 for a PUBREL.
const QOS: u8 = 0x03;
const RETAIN: u8 = 0x04;
const SHARE: u8 = 0x08;
const IDS: u8 = 0x10;

/// The content of a checkpoint in the making.
///
/// Bound: what was recorded since the one before, one session, and a block.
pub(crate) struct Merge {
    changes: std::iter::Peekable<std::vec::IntoIter<(u64, Recorded)>>,
    /// A session of the one before: further entries of it may come.
    earlier: Option<(u64, Recorded)>,
    /// Names of shared subscriptions, each once.
    names: Replay,
    oldest: Place,
    blocks: Blocks,
    messages: usize,
}

/// Complete blocks, and the one that grows.
#[derive(Default)]
struct Blocks {
    full: VecDeque<Vec<u8>>,
    open: Vec<u8>,
}

enum Entry {
    Unsettled(Origin, u64, Place),
    Session(u64, Recorded),
}

impl Replay {
    /// A block of a checkpoint, before any record that lies behind it.
    ///
    /// # Errors
    /// What is wrong with it: it passed the journal's checks, so another program wrote it.
    pub(crate) fn load(&mut self, block: &[u8]) -> Result<(), RecordError> {
        for_each(block, self, |replay, entry| match entry {
            Entry::Unsettled(origin, to, place) => {
                replay.unsettled.entry(origin).or_default().push((to, place));
            }
            Entry::Session(generation, part) => {
                replay.sessions.entry(generation).or_default().join(part);
            }
        })
    }

    /// As [`Replay::load`] of a block that holds no session; false when it holds any, and nothing was
    /// done.
    ///
    /// # Errors
    /// As for [`Replay::load`].
    pub(crate) fn load_unsettled(&mut self, block: &[u8]) -> Result<bool, RecordError> {
        if block.first() == Some(&SESSION) {
            return Ok(false);
        }
        self.load(block)?;
        Ok(true)
    }
}

impl Merge {
    /// Out of what was recorded since the checkpoint before, and of that one's exchanges, which are in
    /// `since` as well. What lies before `oldest` was released, and is left out.
    pub fn new(mut since: Replay, oldest: u64) -> Self {
        since.forget_before(oldest);
        let mut blocks = Blocks::default();
        let mut unsettled: Vec<_> = mem::take(&mut since.unsettled).into_iter().collect();
        unsettled.sort_unstable_by_key(|(origin, _)| *origin);
        for (origin, owed_to) in unsettled {
            for (to, place) in owed_to {
                blocks.open.push(UNSETTLED);
                put_origin(origin, &mut blocks.open);
                varint(to, &mut blocks.open);
                put_place(place, &mut blocks.open);
                blocks.end_entry();
            }
        }
        blocks.end_block();
        let mut changes: Vec<_> = mem::take(&mut since.sessions).into_iter().collect();
        changes.sort_unstable_by_key(|(generation, _)| *generation);
        Self {
            changes: changes.into_iter().peekable(),
            earlier: None,
            names: since,
            oldest: Place::at(oldest),
            blocks,
            messages: 0,
        }
    }

    /// The next block of the checkpoint before.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn add(&mut self, block: &[u8]) -> Result<(), RecordError> {
        let mut parts = Vec::new();
        for_each(block, &mut self.names, |_, entry| match entry {
            Entry::Session(generation, part) => parts.push((generation, part)),
            Entry::Unsettled(..) => {} // known
        })?;
        for (generation, part) in parts {
            match &mut self.earlier {
                Some((open, session)) if *open == generation => session.join(part),
                Some((open, _)) if *open > generation => {
                    return Err(RecordError::Invalid("order of sessions"));
                }
                _ => {
                    self.end_earlier();
                    self.earlier = Some((generation, part));
                }
            }
        }
        Ok(())
    }

    /// The checkpoint before has ended: some of what is left. False when nothing is left.
    pub fn rest(&mut self) -> bool {
        self.end_earlier();
        let blocks = self.blocks.full.len();
        while self.blocks.full.len() == blocks {
            let Some((generation, session)) = self.changes.next() else {
                self.blocks.end_block();
                return false;
            };
            self.put(generation, session);
        }
        true
    }

    /// A block of the new one, once there is one.
    pub fn take_block(&mut self) -> Option<Vec<u8>> {
        self.blocks.full.pop_front()
    }

    /// How many messages were put into it so far.
    pub fn messages(&self) -> usize {
        self.messages
    }

    /// All entries of a session of the one before are here.
    fn end_earlier(&mut self) {
        let Some((generation, mut earlier)) = self.earlier.take() else { return };
        while let Some((other, session)) = self.changes.next_if(|(it, _)| *it < generation) {
            self.put(other, session);
        }
        if earlier.mentioned < self.oldest {
            earlier = Recorded::default();
        }
        let session = match self.changes.next_if(|(it, _)| *it == generation) {
            Some((_, change)) => earlier.changed(change),
            None => earlier,
        };
        self.put(generation, session);
    }

    fn put(&mut self, generation: u64, mut session: Recorded) {
        session.forget_before(self.oldest);
        session.forget_ends();
        // A session of which no record is left, or that has ended, begins anew.
        if session.mentioned.is_recorded() && session.mentioned >= self.oldest {
            self.messages += session.messages.len();
            self.blocks.put_session(generation, &session);
        }
    }
}

impl Blocks {
    fn put_session(&mut self, generation: u64, session: &Recorded) {
        let mut messages = session.messages.values().flatten().peekable();
        let mut taken = Some(&session.taken);
        let (mut encoded, mut count) = (Vec::new(), 0_u64);
        loop {
            let (mut seq, mut place) = (0, session.mentioned);
            while encoded.len() < ENTRY_BYTES
                && let Some(message) = messages.next()
            {
                put_message(message, seq, place, &mut encoded);
                (seq, place) = (message.seq(), message.place());
                count += 1;
            }
            let out = &mut self.open;
            out.push(SESSION);
            for field in [generation, session.sent_seq, session.last_seq] {
                varint(field, out);
            }
            put_place(session.mentioned, out);
            let taken = taken.take();
            varint(taken.map_or(0, |taken| taken.len() as u64), out);
            let mut all: Vec<_> = taken.into_iter().flatten().collect();
            all.sort_unstable();
            for (id, place) in all {
                varint(id.get().into(), out);
                put_place(*place, out);
            }
            varint(mem::take(&mut count), out);
            out.append(&mut encoded);
            self.end_entry();
            if messages.peek().is_none() {
                return;
            }
        }
    }

    fn end_entry(&mut self) {
        if self.open.len() >= BLOCK_BYTES {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        if !self.open.is_empty() {
            self.full.push_back(mem::take(&mut self.open));
        }
    }
}

impl Recorded {
    /// Adds what follows of the same session, or all of it to nothing.
    fn join(&mut self, part: Self) {
        match self.messages.is_empty() {
            true => self.messages = part.messages,
            false => self.messages.extend(part.messages),
        }
        self.taken.extend(part.taken);
        (self.sent_seq, self.last_seq) = (part.sent_seq, part.last_seq);
        self.mentioned = part.mentioned;
    }

    /// What has ended need not be noted any more.
    fn forget_ends(&mut self) {
        self.messages.retain(|_, message| message.is_some());
        self.taken.retain(|_, place| place.is_recorded());
        self.ended = false;
    }
}

/// A message behind one with number `seq` and place `place`.
fn put_message(message: &Restored, seq: u64, place: Place, out: &mut Vec<u8>) {
    let flags = out.len();
    out.push(0);
    varint(message.seq().wrapping_sub(seq), out);
    let (from, to) = (place.position().unwrap_or(0), message.place().position().unwrap_or(0));
    let distance = to.wrapping_sub(from).cast_signed();
    varint((distance << 1 ^ distance >> 63).cast_unsigned(), out); // small ones of both signs are short
    let Restored::Message(reference) = message else { return };
    let ids = reference.subscription_ids();
    out[flags] = reference.qos() as u8
        | if reference.retain() { RETAIN } else { 0 }
        | if reference.share().is_some() { SHARE } else { 0 }
        | if ids.is_empty() { 0 } else { IDS };
    varint(reference.message_bytes() as u64, out);
    if !ids.is_empty() {
        varint(ids.len() as u64, out);
        ids.iter().for_each(|&id| varint(id.into(), out));
    }
    if let Some(share) = reference.share() {
        put_bytes(share.as_bytes(), out);
    }
}

fn put_place(place: Place, out: &mut Vec<u8>) {
    varint(place.position().unwrap_or(0), out);
}

fn for_each(
    block: &[u8],
    names: &mut Replay,
    mut each: impl FnMut(&mut Replay, Entry),
) -> Result<(), RecordError> {
    let mut reader = Reader::new(block);
    while !reader.is_empty() {
        let entry = match reader.byte("kind")? {
            UNSETTLED => {
                let (origin, to) = (reader.origin()?, reader.generation()?);
                Entry::Unsettled(origin, to, get_place(&mut reader)?)
            }
            SESSION => {
                let generation = reader.generation()?;
                let session = get_session(&mut reader, &mut |share| names.share(share))?;
                Entry::Session(generation, session)
            }
            _ => return Err(RecordError::Invalid("kind")),
        };
        each(names, entry);
    }
    Ok(())
}

fn get_session(
    reader: &mut Reader<'_>,
    share: &mut impl FnMut(&str) -> Arc<str>,
) -> Result<Recorded, RecordError> {
    let (sent_seq, last_seq) = (reader.varint("number")?, reader.varint("number")?);
    if sent_seq > last_seq || last_seq > u64::MAX >> 1 {
        return Err(RecordError::Invalid("number"));
    }
    let mentioned = get_place(reader)?;
    let mut session = Recorded { sent_seq, last_seq, mentioned, ..Recorded::default() };
    for _ in 0..reader.count("identifiers", 2)? {
        let id = reader.packet_id()?;
        session.taken.insert(id, get_place(reader)?);
    }
    let count = reader.count("number of messages", 3)?;
    let (mut seq, mut place) = (0, mentioned);
    let mut messages = Vec::with_capacity(count);
    for _ in 0..count {
        let message = get_message(reader, seq, place, share)?;
        (seq, place) = (message.seq(), message.place());
        if seq > last_seq {
            return Err(RecordError::Invalid("number"));
        }
        messages.push((seq, Some(message)));
    }
    session.messages = BTreeMap::from_iter(messages);
    Ok(session)
}

fn get_message(
    reader: &mut Reader<'_>,
    seq: u64,
    place: Place,
    share: &mut impl FnMut(&str) -> Arc<str>,
) -> Result<Restored, RecordError> {
    let flags = reader.byte("flags")?;
    if flags & !(QOS | RETAIN | SHARE | IDS) != 0 {
        return Err(RecordError::Invalid("flags"));
    }
    let seq = match reader.varint("number")? {
        0 => None,
        more => seq.checked_add(more),
    };
    let seq = seq.ok_or(RecordError::Invalid("number"))?;
    let coded = reader.varint("place")?;
    let distance = (coded >> 1).cast_signed() ^ -((coded & 1).cast_signed());
    let place = place.position().unwrap_or(0).wrapping_add(distance.cast_unsigned());
    let place = valid(Place::at(place))?;
    let qos = match flags & QOS {
        0 => return Ok(Restored::Release { seq, place }),
        qos => QoS::from_u8(qos).ok_or(RecordError::Invalid("flags"))?,
    };
    let message_bytes = u32::try_from(reader.varint("size")?);
    let message_bytes = message_bytes.map_err(|_| RecordError::Invalid("size"))? as usize;
    let mut subscription_ids = SmallVec::new();
    if flags & IDS != 0 {
        for _ in 0..reader.count("identifiers", 1)? {
            let id = u32::try_from(reader.varint("identifier")?);
            subscription_ids.push(id.map_err(|_| RecordError::Invalid("identifier"))?);
        }
    }
    let share = match flags & SHARE {
        0 => None,
        _ => Some(share(reader.text("share")?)),
    };
    let delivery = Delivery { qos, retain: flags & RETAIN != 0, subscription_ids, share };
    Ok(Restored::Message(Reference::new(delivery, message_bytes, seq, place)))
}

fn get_place(reader: &mut Reader<'_>) -> Result<Place, RecordError> {
    valid(Place::at(reader.varint("place")?))
}

fn valid(place: Place) -> Result<Place, RecordError> {
    place.position().map(|_| place).ok_or(RecordError::Invalid("place"))
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
