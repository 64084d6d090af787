//! Storage that grows without moving what it holds, and by a sixteenth at a time.
//!
//! A vector that doubles copies everything in one go and is half empty afterwards. Here a number
//! leads to a chunk and a place in it; each doubling is divided into sixteen chunks of one length.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// How many items the chunks of the first "doubling" hold together, as a power of two.
const FIRST_BITS: u32 = 8;

/// Chunks per doubling, as a power of two.
const STEP_BITS: u32 = 4;

/// Chunks for all numbers that `u32` has.
const CHUNKS: usize = ((33 - FIRST_BITS) << STEP_BITS) as usize;

/// The chunk of item number `at`, and its place there.
#[inline]
fn place(at: u32) -> (usize, usize) {
    let number = u64::from(at) + (1 << FIRST_BITS);
    let doubling = number.ilog2();
    let len_bits = doubling - STEP_BITS;
    let step = (number >> len_bits) as usize & ((1 << STEP_BITS) - 1);
    let chunk = (((doubling - FIRST_BITS) as usize) << STEP_BITS) | step;
    (chunk, (number & ((1 << len_bits) - 1)) as usize)
}

/// How many items a chunk holds.
fn chunk_len(chunk: usize) -> usize {
    1 << ((chunk as u32 >> STEP_BITS) + FIRST_BITS - STEP_BITS)
}

/// As much as a cache loads at once.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [AtomicU64; 8]);

/// Lines by number, read by all threads while one adds more. No line ever goes away before
/// all of them do: so whatever number a reader comes with, what it reads is a line.
#[derive(Debug)]
pub(super) struct Lines(Box<[OnceLock<Box<[Line]>>]>);

impl Default for Lines {
    fn default() -> Self {
        Self((0..CHUNKS).map(|_| OnceLock::new()).collect())
    }
}

impl Lines {
    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&Line> {
        let (chunk, place) = place(at);
        self.0.get(chunk)?.get()?.get(place)
    }

    /// Makes sure that there is such a line.
    pub(super) fn grow_to(&self, at: u32) {
        let chunk = place(at).0;
        let lines = || (0..chunk_len(chunk)).map(|_| Line::default()).collect();
        self.0[chunk].get_or_init(lines);
    }
}

/// Values that keep their number and their place in memory while they are there.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    /// Numbers that may be used again.
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&T> {
        let (chunk, place) = place(at);
        self.chunks.get(chunk)?.get(place)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        let (chunk, place) = place(at);
        self.chunks.get_mut(chunk)?.get_mut(place)?.as_mut()
    }

    /// Puts a value into a free place; its number, and the value there.
    pub(super) fn insert(&mut self, value: T) -> (u32, &mut T) {
        let at = self.free.pop().unwrap_or_else(|| self.end());
        let (chunk, place) = place(at);
        if chunk == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(chunk_len(chunk)));
        }
        let chunk = &mut self.chunks[chunk];
        if place == chunk.len() {
            chunk.push(None);
        }
        (at, chunk[place].insert(value))
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<T> {
        let (chunk, place) = place(at);
        let value = self.chunks.get_mut(chunk)?.get_mut(place)?.take()?;
        self.free.push(at);
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().flatten()
    }

    /// The number after the highest so far.
    fn end(&self) -> u32 {
        let full = self.chunks.len().saturating_sub(1);
        let before: usize = (0..full).map(chunk_len).sum();
        let end = before + self.chunks.last().map_or(0, Vec::len);
        // So many values do not fit into any memory of today.
        u32::try_from(end).expect("fewer values than u32 counts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_place_of_its_own() {
        let (mut chunk, mut next) = (0, 0);
        for at in 0..100_000 {
            if next == chunk_len(chunk) {
                (chunk, next) = (chunk + 1, 0);
            }
            assert_eq!(place(at), (chunk, next));
            next += 1;
        }
        let (last, at) = place(u32::MAX);
        assert!(last < CHUNKS && at < chunk_len(last));
    }

    #[test]
    fn lines_come_when_asked_for() {
        let lines = Lines::default();
        assert!(lines.get(0).is_none());
        lines.grow_to(70);
        assert!(lines.get(70).is_some() && lines.get(0).is_none());
        lines.grow_to(0);
        assert!(lines.get(0).is_some() && lines.get(u32::MAX).is_none());
    }

    #[test]
    fn a_slab_uses_places_again() {
        let mut slab = Slab::default();
        for n in 0..1000 {
            let (at, value) = slab.insert(n);
            assert_eq!((at, *value), (n, n));
        }
        assert_eq!((slab.remove(7), slab.remove(7), slab.remove(5000)), (Some(7), None, None));
        assert_eq!(slab.get(7), None);
        assert_eq!(slab.iter().count(), 999);
        assert_eq!(slab.insert(3).0, 7);
        assert_eq!(slab.get_mut(7), Some(&mut 3));
        assert_eq!(slab.insert(4).0, 1000);
    }
}
