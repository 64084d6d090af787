//! Changes to the table.
//!
//! Memory that readers may still look at is used again at once. For each such use there is one
//! word that says so, a record's version or a segment's descriptor, written before the first
//! word of the new content; the reader looks at it after the last word that it used. A release
//! fence lies between the writes, an acquire fence between the reads. Each writer makes its own
//! fence, because the one that gave memory up may have been another thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{
    Descriptor, FIRST_BYTES, Found, GONE, GROUPS, Key, LEN_AT, LIVE, Line, MORE_BYTES, SIZES, Spot,
    Table, VERSION, WHOLE_BYTES,
};

/// What the writer alone knows of a [`Table`].
#[derive(Debug)]
pub(in crate::routing) struct Spare {
    /// The first line that was never used. Line 0 is none, to which no slot leads.
    pub(super) next: u32,
    /// The first line that a record may have; each holds the number of the next.
    free: u32,
    /// Segments that were given up, by their number of lines.
    regions: BTreeMap<u32, Vec<u32>>,
    /// Of each segment: slots in use, and those that are [`GONE`].
    counts: Box<[(u32, u32)]>,
}

/// Changes: by one thread at a time, the one that has the table's [`Spare`].
impl Table {
    /// Puts in a filter that is not there; false when there is no room at all.
    pub(in crate::routing) fn insert(
        &self,
        spare: &mut Spare,
        key: Key,
        filter: &str,
        found: Found,
    ) -> bool {
        let segment = key.segment();
        let descriptor = match self.make_room(spare, segment) {
            Some(descriptor) => descriptor,
            None => return false,
        };
        let Some(record) = self.write(spare, filter, found) else { return false };
        for number in descriptor.search_lines(key.hash) {
            let Some(line) = self.lines.get(number) else { break };
            for slot in &line.0 {
                let before = slot.load(Ordering::Relaxed);
                if before == 0 || before == GONE {
                    slot.store(key.slot(record), Ordering::Release);
                    spare.counts[segment].0 += 1;
                    spare.counts[segment].1 -= u32::from(before == GONE);
                    self.filters.0.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
            }
        }
        self.free_record(spare, record);
        false // not reached: `make_room` leaves a quarter free
    }

    /// Takes a filter out.
    pub(in crate::routing) fn remove(&self, spare: &mut Spare, key: Key, spot: Spot) {
        let Some(line) = self.lines.get(spot.line) else { return };
        // Lookups that end in this line now went on from it if it has ever been full.
        let has_end = line.0.iter().any(|slot| slot.load(Ordering::Relaxed) == 0);
        line.0[spot.slot].store(if has_end { 0 } else { GONE }, Ordering::Release);
        let (used, gone) = &mut spare.counts[key.segment()];
        *used -= 1;
        *gone += u32::from(!has_end);
        self.free_record(spare, spot.record);
        self.filters.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Says what a filter leads to from now on.
    pub(in crate::routing) fn set(&self, spot: Spot, to: Found) {
        let Some(record) = self.lines.get(spot.record) else { return };
        record.0[1].store(to.shards.bits(), Ordering::Release);
        let head = record.0[0].load(Ordering::Relaxed) & !GROUPS;
        let groups = if to.has_groups { GROUPS } else { 0 };
        record.0[0].store(head | groups, Ordering::Release);
    }

    /// A record with this content, to which nothing leads yet.
    fn write(&self, spare: &mut Spare, filter: &str, found: Found) -> Option<u32> {
        let len = u16::try_from(filter.len()).ok()?;
        let text = filter.as_bytes();
        let at = self.free_line(spare)?;
        let record = self.lines.get(at)?;
        match text.split_at_checked(FIRST_BYTES) {
            Some((first, more)) if text.len() > WHOLE_BYTES => {
                store_bytes(first, &record.0[2..7]);
                let mut last = record;
                for part in more.chunks(MORE_BYTES) {
                    // When memory ends here, so does the program.
                    let next = self.free_line(spare)?;
                    last.0[7].store(next.into(), Ordering::Relaxed);
                    last = self.lines.get(next)?;
                    store_bytes(part, &last.0[1..7]);
                }
            }
            _ => store_bytes(text, &record.0[2..]),
        }
        record.0[1].store(found.shards.bits(), Ordering::Relaxed);
        let before = record.0[0].load(Ordering::Relaxed);
        let version = (before & !(VERSION - 1)).wrapping_add(VERSION);
        let groups = if found.has_groups { GROUPS } else { 0 };
        let head = version | u64::from(len) << LEN_AT | groups | LIVE;
        record.0[0].store(head, Ordering::Release);
        Some(at)
    }

    /// Gives back a record to which no slot leads any more. Readers may still be at it.
    fn free_record(&self, spare: &mut Spare, at: u32) {
        let Some(record) = self.lines.get(at) else { return };
        let head = record.0[0].load(Ordering::Relaxed);
        let version = (head & !(VERSION - 1)).wrapping_add(VERSION);
        record.0[0].store(version, Ordering::Relaxed);
        fence(Ordering::Release); // whoever reads what follows reads that version too
        let len = usize::from((head >> LEN_AT) as u16);
        let mut lines = match len {
            0..=WHOLE_BYTES => 0,
            _ => (len - FIRST_BYTES).div_ceil(MORE_BYTES),
        };
        let mut next = record.0[7].load(Ordering::Relaxed) as u32;
        spare.give(record, at);
        while lines > 0
            && let Some(line) = self.lines.get(next)
        {
            let this = std::mem::replace(&mut next, line.0[7].load(Ordering::Relaxed) as u32);
            spare.give(line, this);
            lines -= 1;
        }
    }

    /// A line for a record.
    fn free_line(&self, spare: &mut Spare) -> Option<u32> {
        if spare.free == 0
            && let Some(mut smallest) = spare.regions.first_entry()
        {
            let lines = *smallest.key();
            let first = smallest.get_mut().pop();
            if smallest.get().is_empty() {
                smallest.remove();
            }
            fence(Ordering::Release); // whoever reads what follows sees that the segment moved
            for at in first.into_iter().flat_map(|first| first..first + lines) {
                let Some(line) = self.lines.get(at) else { continue };
                line.0[0].store(0, Ordering::Relaxed); // no live record
                spare.give(line, at);
            }
        }
        if spare.free == 0 {
            return self.new_lines(spare, 1);
        }
        let at = spare.free;
        spare.free = self.lines.get(at)?.0[1].load(Ordering::Relaxed) as u32;
        fence(Ordering::Release); // whoever reads what follows sees that the line was given up
        Some(at)
    }

    /// Lines in a row that were never used.
    fn new_lines(&self, spare: &mut Spare, lines: u32) -> Option<u32> {
        let first = spare.next;
        spare.next = first.checked_add(lines)?;
        (first..spare.next).for_each(|at| self.lines.grow_to(at));
        Some(first)
    }

    /// Makes sure that a segment takes one filter more without getting too full.
    fn make_room(&self, spare: &mut Spare, segment: usize) -> Option<Descriptor> {
        let descriptor = Descriptor(self.segments[segment].load(Ordering::Relaxed));
        let (used, gone) = spare.counts[segment];
        let lines = descriptor.lines();
        // Three quarters of the slots: few lines are full then, and few lookups go on.
        let most = lines * 6;
        if used + gone < most {
            return Some(descriptor);
        }
        // Slots that are gone come back by copying; not worth it for a few.
        let size = descriptor.size() + usize::from(used >= most * 7 / 8);
        let new_lines = *SIZES.get(size)?;
        let reused = spare.regions.get_mut(&new_lines).and_then(Vec::pop);
        let first = match reused {
            Some(first) => first,
            None => self.new_lines(spare, new_lines)?,
        };
        fence(Ordering::Release); // whoever reads what follows sees that those lines were given up
        let new = Descriptor::new(first, size, descriptor);
        let line = |at| self.lines.get(at).map_or(&[][..], |line| &line.0[..]);
        for slot in (first..first + new_lines).flat_map(line) {
            slot.store(0, Ordering::Relaxed);
        }
        for slot in (descriptor.first()..descriptor.first() + lines).flat_map(line) {
            let slot = slot.load(Ordering::Relaxed);
            if slot as u32 == 0 {
                continue;
            }
            // Its place needs no more of the hash than the slot has.
            let mut places = new.search_lines(slot >> 32).flat_map(line);
            if let Some(free) = places.find(|place| place.load(Ordering::Relaxed) == 0) {
                free.store(slot, Ordering::Relaxed);
            }
        }
        self.segments[segment].store(new.0, Ordering::Release);
        spare.counts[segment].1 = 0;
        if lines > 0 {
            spare.regions.entry(lines).or_default().push(descriptor.first());
        }
        Some(new)
    }
}

impl Spare {
    pub(super) fn new(segments: usize) -> Self {
        let counts = vec![(0, 0); segments].into();
        Self { next: 1, free: 0, regions: BTreeMap::new(), counts }
    }

    /// Puts a line in front of the free ones.
    fn give(&mut self, line: &Line, at: u32) {
        line.0[1].store(self.free.into(), Ordering::Relaxed);
        self.free = at;
    }
}

fn store_bytes(bytes: &[u8], words: &[AtomicU64]) {
    for (word, bytes) in words.iter().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
    }
}
