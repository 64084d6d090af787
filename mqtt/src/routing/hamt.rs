//! A persistent map from strings: copies share what they have in common.
//!
//! A hash trie, 16 slots wide. Cloning the map copies one pointer; a change copies the nodes
//! between the root and the changed slot, and only those that another copy still uses. Entries
//! lie in the slots themselves, so a lookup reads one block per node and then the key. 16 and
//! not 32 wide: a change touches the reference count of every neighbour in the copied nodes,
//! and those are what a change costs.

use std::sync::Arc;

const BITS: u32 = 4;
const MASK: u64 = (1 << BITS) - 1;

/// A map from strings to `V`. The caller hashes, always in the same way.
#[derive(Clone, Debug)]
pub(super) struct Hamt<V> {
    root: Option<Node<V>>,
}

#[derive(Clone, Debug)]
struct Node<V> {
    /// Which of the 16 slots exist. Unused once the hash is used up: then the slots are a list
    /// of entries whose whole hashes are equal.
    bitmap: u16,
    slots: Arc<[Slot<V>]>,
}

#[derive(Clone, Debug)]
enum Slot<V> {
    Entry {
        hash: u64,
        key: Key,
        value: V,
    },
    /// Holds at least two entries.
    Branch(Node<V>),
}

impl<V> Default for Hamt<V> {
    fn default() -> Self {
        Self { root: None }
    }
}

impl<V: Clone + Default> Hamt<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Whether there is exactly one entry.
    pub(super) fn is_single(&self) -> bool {
        let slots = self.root.as_ref().map(|node| &*node.slots);
        matches!(slots, Some([Slot::Entry { .. }]))
    }

    pub(super) fn get(&self, hash: u64, key: &str) -> Option<&V> {
        let mut node = self.root.as_ref()?;
        let mut shift = 0;
        loop {
            let at = node.place(shift, hash, key).ok()?;
            match &node.slots[at] {
                Slot::Branch(below) => node = below,
                Slot::Entry { hash: h, key: k, value } => {
                    return (*h == hash && k.is(key)).then_some(value);
                }
            }
            shift += BITS;
        }
    }

    /// The value under `key`, put there first if it is missing.
    pub(super) fn entry(&mut self, hash: u64, key: &str) -> &mut V {
        let empty = || Node { bitmap: 0, slots: Arc::from([]) };
        self.root.get_or_insert_with(empty).entry(0, hash, key)
    }

    /// Takes an entry out; copies nothing when there is none.
    pub(super) fn remove(&mut self, hash: u64, key: &str) -> Option<V> {
        self.get(hash, key)?;
        let root = self.root.as_mut()?;
        let value = root.remove(0, hash, key)?;
        if root.slots.is_empty() {
            self.root = None;
        }
        Some(value)
    }

    /// Visits the values in those nodes that no other copy of the map uses.
    pub(super) fn for_each_unshared(&mut self, mut visit: impl FnMut(&V)) {
        if let Some(root) = &mut self.root {
            root.for_each_unshared(&mut visit);
        }
    }
}

// Recursion here goes along the hash, at most 17 nodes deep.
impl<V: Clone + Default> Node<V> {
    /// A node of one slot, `shift` bits of the hash below the root.
    fn single(shift: u32, hash: u64, slot: Slot<V>) -> Self {
        Self { bitmap: bit(shift, hash).unwrap_or(0), slots: Arc::from([slot]) }
    }

    /// The index of the slot that `key` belongs to, or `Err` with where it would be inserted.
    fn place(&self, shift: u32, hash: u64, key: &str) -> Result<usize, usize> {
        match bit(shift, hash) {
            Some(bit) => {
                let at = (self.bitmap & (bit - 1)).count_ones() as usize;
                if self.bitmap & bit == 0 { Err(at) } else { Ok(at) }
            }
            None => {
                let same = |slot: &Slot<V>| matches!(slot, Slot::Entry { key: k, .. } if k.is(key));
                self.slots.iter().position(same).ok_or(self.slots.len())
            }
        }
    }

    fn entry(&mut self, shift: u32, hash: u64, key: &str) -> &mut V {
        let place = self.place(shift, hash, key);
        if let Err(at) = place {
            let new = Slot::Entry { hash, key: Key::new(key), value: V::default() };
            let (before, after) = self.slots.split_at(at);
            let before = before.iter().cloned().chain(std::iter::once(new));
            self.slots = before.chain(after.iter().cloned()).collect();
            self.bitmap |= bit(shift, hash).unwrap_or(0);
        }
        let (Ok(at) | Err(at)) = place;
        let slot = &mut Arc::make_mut(&mut self.slots)[at];
        if let Slot::Entry { hash: other, key: k, .. } = slot
            && (*other != hash || !k.is(key))
        {
            let other = *other;
            *slot = Slot::Branch(Self::single(shift + BITS, other, slot.clone()));
        }
        match slot {
            Slot::Entry { value, .. } => value,
            Slot::Branch(below) => below.entry(shift + BITS, hash, key),
        }
    }

    fn remove(&mut self, shift: u32, hash: u64, key: &str) -> Option<V> {
        let at = self.place(shift, hash, key).ok()?;
        if let Slot::Entry { value, .. } = &self.slots[at] {
            let value = value.clone();
            let (before, after) = self.slots.split_at(at);
            self.slots = before.iter().chain(&after[1..]).cloned().collect();
            self.bitmap &= !bit(shift, hash).unwrap_or(0);
            return Some(value);
        }
        let slot = &mut Arc::make_mut(&mut self.slots)[at];
        let Slot::Branch(below) = slot else { return None };
        let value = below.remove(shift + BITS, hash, key);
        // A lone entry moves up, or chains of nodes would stay behind.
        if let [last @ Slot::Entry { .. }] = &*below.slots {
            *slot = last.clone();
        }
        value
    }

    fn for_each_unshared(&mut self, visit: &mut impl FnMut(&V)) {
        for slot in Arc::get_mut(&mut self.slots).into_iter().flatten() {
            match slot {
                Slot::Entry { value, .. } => visit(value),
                Slot::Branch(below) => below.for_each_unshared(visit),
            }
        }
    }
}

/// A key. A short one lies in the slot itself: no memory of its own to read or to count
/// references in, and most levels of topics are short.
#[derive(Clone, Debug)]
enum Key {
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    Long(Arc<str>),
}

const SHORT_BYTES: usize = 22;

impl Key {
    fn new(key: &str) -> Self {
        if key.len() > SHORT_BYTES {
            return Self::Long(key.into());
        }
        let mut bytes = [0; SHORT_BYTES];
        bytes[..key.len()].copy_from_slice(key.as_bytes());
        Self::Short { len: key.len() as u8, bytes }
    }

    fn is(&self, key: &str) -> bool {
        match self {
            Self::Short { len, bytes } => bytes[..usize::from(*len)] == *key.as_bytes(),
            Self::Long(long) => **long == *key,
        }
    }
}

/// The slot of `hash` in a node, as a bit; `None` when the whole hash is used up.
fn bit(shift: u32, hash: u64) -> Option<u16> {
    Some(1 << (hash.checked_shr(shift)? & MASK))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_entry_costs_no_more_than_its_fields() {
        assert_eq!(size_of::<Slot<[u64; 2]>>(), 48);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8, u32),
        Remove(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let put = (0..40u8, any::<u32>()).prop_map(|(k, v)| Step::Put(k, v));
        proptest::collection::vec(
            prop_oneof![2 => put, 1 => (0..40u8).prop_map(Step::Remove)],
            0..200,
        )
    }

    proptest! {
        /// Against a plain map, with hashes that differ in every way: not at all, at the far
        /// end only, at the near end only, everywhere. Older copies must never change.
        #[test]
        fn agrees_with_a_plain_map_and_copies_are_frozen(steps in steps(), kind in 0..4) {
            let hash = |k: u8| match kind {
                0 => 7,
                1 => u64::from(k % 8) << 60,
                2 => u64::from(k % 16),
                _ => u64::from(k).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            };
            let mut map = Hamt::default();
            let mut model = BTreeMap::new();
            let mut frozen = Vec::new();
            for step in steps {
                match step {
                    Step::Put(k, v) => {
                        *map.entry(hash(k), &k.to_string()) = v;
                        model.insert(k, v);
                    }
                    Step::Remove(k) => {
                        prop_assert_eq!(map.remove(hash(k), &k.to_string()), model.remove(&k));
                    }
                }
                prop_assert_eq!(map.is_empty(), model.is_empty());
                prop_assert_eq!(map.is_single(), model.len() == 1);
                if frozen.len() < 20 {
                    frozen.push((map.clone(), model.clone()));
                }
            }
            frozen.push((map, model));
            for (map, model) in &frozen {
                for k in 0..40 {
                    prop_assert_eq!(map.get(hash(k), &k.to_string()), model.get(&k));
                }
            }
        }
    }
}
