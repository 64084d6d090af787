//! A hash table of filters that any thread reads, without a lock, while one thread changes it.
//!
//! All of it lies in [`Lines`]: memory made of atomic numbers, so that reading what is being
//! rewritten gives a wrong answer at worst, and a reader finds out. Two things are kept there.
//!
//! *Records*, one line each: a filter's text, and where it leads. The first word has a version
//! that changes when the record is given to another filter; a reader that finds the same version
//! before and after has read one filter and no mixture. Long texts go on in further lines, whose
//! own versions stay.
//!
//! *Segments*: which records there are, by hash. A line has eight slots, each with 32 bits of the
//! hash and the number of a record; a filter is in the first line from its home on that had room.
//! Slots do not move. A segment that gets full is copied into a larger one, and its *descriptor*
//! then leads there; a reader that found nothing looks whether the descriptor is still the same.
//! There are many segments, so that copying one takes microseconds.
//!
//! So a filter that is there all along is found whatever else happens; a lookup starts again only
//! when a writer has finished something meanwhile, and never waits for one to go on.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use smallvec::SmallVec;

use super::chunks::{Line, Lines};
use super::dest::ShardSet;

mod change;

pub(super) use change::Spare;

/// Segments of each half, as a power of two. Few in tests, so that they grow.
const SEGMENT_BITS: u32 = if cfg!(test) { 1 } else { 10 };

const SLOTS: usize = 8;

/// A slot that may be filled and where no lookup ends; leads to record 0, which no filter has.
const GONE: u64 = 1 << 32;

/// Bits of a record's first word; above them 16 for the length in bytes, then 32 of version.
const LIVE: u64 = 1;
const GROUPS: u64 = 2;
const LEN_AT: u32 = 16;
const VERSION: u64 = 1 << 32;

/// Bytes of text in a record that has no further lines; of one that has; in each further line.
const WHOLE_BYTES: usize = 48;
const FIRST_BYTES: usize = 40;
const MORE_BYTES: usize = 48;

/// Where a filter is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    hash: u64,
    /// Which half: filters with wildcards have segments of their own, few enough for a cache.
    is_shaped: bool,
}

/// What a filter leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Shards with a plain subscription.
    pub(super) shards: ShardSet,
    /// Whether it has share groups, which are kept elsewhere.
    pub(super) has_groups: bool,
}

/// The table, as readers see it. Changes need its [`Spare`] too.
#[derive(Debug)]
pub(super) struct Table {
    lines: Lines,
    /// First of exact filters, then of those with wildcards: descriptors.
    segments: Box<[AtomicU64]>,
    filters: Apart<AtomicUsize>,
}

/// Something that writers write often: not in a line with what readers read always.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Apart<T>(pub(super) T);

/// Where a filter was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    line: u32,
    slot: usize,
    record: u32,
    pub(super) found: Found,
}

/// A segment's place, packed: its first line, its size (a place in [`SIZES`]), and how often it
/// has moved, so that one that has come back to the same lines is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor(u64);

/// Numbers of lines that a segment can have: each a quarter more than the one before.
const SIZES: [u32; 56] = {
    let mut sizes = [0; 56];
    let mut at = 1;
    while at < sizes.len() {
        sizes[at] = sizes[at - 1] + sizes[at - 1] / 4 + 1;
        at += 1;
    }
    sizes
};

impl Descriptor {
    const SIZE_AT: u32 = 32;
    const MOVES_AT: u32 = 38;

    fn new(first: u32, size: usize, before: Self) -> Self {
        let moves = (before.0 >> Self::MOVES_AT) + 1;
        Self(u64::from(first) | (size as u64) << Self::SIZE_AT | moves << Self::MOVES_AT)
    }

    fn first(self) -> u32 {
        self.0 as u32
    }

    fn size(self) -> usize {
        (self.0 >> Self::SIZE_AT) as usize & 0x3f
    }

    #[inline]
    fn lines(self) -> u32 {
        SIZES.get(self.size()).copied().unwrap_or(0)
    }

    /// The line where a filter of this hash is, or where the search begins.
    #[inline]
    fn home(self, hash: u64) -> u32 {
        let place = (u64::from(hash as u32) * u64::from(self.lines())) >> 32;
        self.first() + place as u32
    }

    #[inline]
    fn after(self, line: u32) -> u32 {
        match line + 1 {
            end if end == self.first() + self.lines() => self.first(),
            next => next,
        }
    }

    /// The lines to search, home first.
    fn search_lines(self, hash: u64) -> impl Iterator<Item = u32> {
        let mut next = self.home(hash);
        (0..self.lines()).map(move |_| {
            let line = next;
            next = self.after(line);
            line
        })
    }
}

impl Key {
    /// A filter without wildcards.
    pub(super) fn exact(hash: u64) -> Self {
        Self { hash, is_shaped: false }
    }

    /// A filter with wildcards.
    pub(super) fn shaped(hash: u64) -> Self {
        Self { hash, is_shaped: true }
    }

    pub(super) fn hash(self) -> u64 {
        self.hash
    }

    #[inline]
    fn segment(self) -> usize {
        let half = usize::from(self.is_shaped) << SEGMENT_BITS;
        half | (self.hash >> (64 - SEGMENT_BITS)) as usize
    }

    #[inline]
    fn fits(self, slot: u64) -> bool {
        slot >> 32 == self.hash & 0xffff_ffff
    }

    fn slot(self, record: u32) -> u64 {
        self.hash << 32 | u64::from(record)
    }
}

impl Table {
    /// An empty table and what its writer has to keep.
    pub(super) fn new() -> (Self, Spare) {
        let segments = 2 << SEGMENT_BITS;
        let table = Self {
            lines: Lines::default(),
            segments: (0..segments).map(|_| AtomicU64::new(0)).collect(),
            filters: Apart(AtomicUsize::new(0)),
        };
        (table, Spare::new(segments))
    }

    /// Number of filters.
    pub(super) fn len(&self) -> usize {
        self.filters.0.load(Ordering::Relaxed)
    }

    /// Looks for many filters at once and calls `found` for each that is there, with its place
    /// in `keys`. `is` says whether a text is the one that is looked for.
    ///
    /// The lookups go side by side, a step of all before the next of any, and no step decides
    /// anything before the memory of all has been asked for: so they wait together.
    pub(super) fn find_all(
        &self,
        keys: &[Key],
        is: impl Fn(usize, &[u8]) -> bool,
        mut found: impl FnMut(usize, Found),
    ) {
        let homes = keys.iter().map(|key| {
            let descriptor = self.descriptor(*key);
            let line = self.lines.get(descriptor.home(key.hash)).filter(|_| descriptor.0 != 0);
            // The line is asked for here, and looked at when all have been.
            let slot = line.map_or(0, |line| line.0[0].load(Ordering::Acquire));
            (descriptor, line, slot)
        });
        let homes: SmallVec<[_; 16]> = homes.collect();

        let mut candidates = SmallVec::<[(usize, &Line, u64); 16]>::new();
        let mut is_open = 0u128; // lookups that have found nothing so far
        let mut goes_on = 0u128; // those whose line is full
        for (at, (key, (_, line, slot))) in keys.iter().zip(&homes).enumerate() {
            is_open |= 1 << at;
            let Some(line) = line else { continue };
            let mut is_full = true;
            for number in 0..SLOTS {
                let slot = match number {
                    0 => *slot,
                    _ => line.0[number].load(Ordering::Acquire),
                };
                is_full &= slot != 0;
                if key.fits(slot)
                    && let Some(record) = self.lines.get(slot as u32)
                {
                    let head = record.0[0].load(Ordering::Acquire);
                    candidates.push((at, record, head));
                }
            }
            goes_on |= u128::from(is_full) << at;
        }
        for (at, record, head) in candidates {
            if is_open & 1 << at != 0
                && let Some(what) = self.read(record, head, |text| is(at, text))
            {
                is_open &= !(1 << at);
                found(at, what);
            }
        }
        fence(Ordering::Acquire);
        let mut rest = is_open;
        while rest != 0 {
            let at = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let has_moved = || self.descriptor(keys[at]) != homes[at].0;
            if (goes_on & 1 << at != 0 || has_moved())
                && let Some(spot) = self.find(keys[at], |text| is(at, text))
            {
                found(at, spot.found);
            }
        }
    }

    /// Looks for one filter.
    pub(super) fn find(&self, key: Key, is: impl Fn(&[u8]) -> bool) -> Option<Spot> {
        loop {
            let descriptor = self.descriptor(key);
            if let Some(spot) = self.find_in(descriptor, key, &is) {
                return Some(spot);
            }
            // If those lines serve another purpose meanwhile, this sees that the segment moved.
            fence(Ordering::Acquire);
            if self.descriptor(key) == descriptor {
                return None;
            }
        }
    }

    fn find_in(
        &self,
        descriptor: Descriptor,
        key: Key,
        is: &impl Fn(&[u8]) -> bool,
    ) -> Option<Spot> {
        for number in descriptor.search_lines(key.hash) {
            let line = self.lines.get(number)?;
            let mut is_full = true;
            for (at, slot) in line.0.iter().enumerate() {
                let slot = slot.load(Ordering::Acquire);
                is_full &= slot != 0;
                if key.fits(slot)
                    && let Some(record) = self.lines.get(slot as u32)
                    && let head = record.0[0].load(Ordering::Acquire)
                    && let Some(found) = self.read(record, head, is)
                {
                    return Some(Spot { line: number, slot: at, record: slot as u32, found });
                }
            }
            if !is_full {
                return None;
            }
        }
        None
    }

    #[inline]
    fn descriptor(&self, key: Key) -> Descriptor {
        Descriptor(self.segments[key.segment()].load(Ordering::Acquire))
    }

    /// What the filter of a record leads to, if it is the one that is looked for. `head` is the
    /// record's first word.
    #[inline]
    fn read(&self, record: &Line, head: u64, is: impl Fn(&[u8]) -> bool) -> Option<Found> {
        if head & LIVE == 0 {
            return None;
        }
        let len = usize::from((head >> LEN_AT) as u16);
        let shards = ShardSet::from_bits(record.0[1].load(Ordering::Relaxed));
        let mut first = [0; WHOLE_BYTES];
        load_bytes(&record.0[2..], &mut first);
        let is_it = match first.get(..len) {
            Some(text) => is(text),
            None => is(&self.read_long(record, first, len)?),
        };
        // A text that was rewritten since `head` was read has another version by now. That the
        // filter has got share groups, or lost them, is no other version.
        fence(Ordering::Acquire);
        let same = record.0[0].load(Ordering::Relaxed) & !GROUPS == head & !GROUPS;
        (is_it && same).then_some(Found { shards, has_groups: head & GROUPS != 0 })
    }

    #[cold]
    fn read_long(&self, record: &Line, first: [u8; WHOLE_BYTES], len: usize) -> Option<Vec<u8>> {
        let mut text = Vec::with_capacity(len + MORE_BYTES);
        text.extend_from_slice(&first[..FIRST_BYTES]);
        let mut next = record.0[7].load(Ordering::Relaxed) as u32;
        while text.len() < len {
            let line = self.lines.get(next)?;
            let mut more = [0; MORE_BYTES];
            load_bytes(&line.0[1..7], &mut more);
            text.extend_from_slice(&more);
            next = line.0[7].load(Ordering::Relaxed) as u32;
        }
        text.truncate(len);
        Some(text)
    }
}

fn load_bytes(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, bytes) in words.iter().zip(bytes.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
