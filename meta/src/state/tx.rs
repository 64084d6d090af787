//! Changes that are being gathered: later commands of a batch see what earlier ones did.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{keys, read};
use crate::codec;
use crate::store::{Batch, Change, Family, StoreError, View, Visitor};

/// What is called with each key and its value.
type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// An overlay over a [`View`]; touches [`Family::State`] only. It grows with what is changed: whoever
/// feeds it bounds the number of commands.
///
/// It is a `View` itself, so that everything that reads a state reads this one as well.
pub struct Tx<'a> {
    view: &'a dyn View,
    /// `None`: removed.
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl<'a> Tx<'a> {
    /// No changes yet.
    pub fn new(view: &'a dyn View) -> Self {
        Self { view, changes: BTreeMap::new() }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As the store says.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.changes.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.view.get(Family::State, key),
        }
    }

    /// Sets a key.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.insert(key, Some(value));
    }

    /// Removes a key, if it is there.
    pub fn delete(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
    }

    /// Calls `visit` in order for each key that begins with `prefix`, until it breaks.
    ///
    /// # Errors
    /// As the store says.
    pub fn scan_prefix(&self, prefix: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.scan(Family::State, prefix, end_of(prefix).as_deref(), visit)
    }

    /// The record of a key.
    ///
    /// # Errors
    /// As the store says; also when it cannot be read.
    pub fn load<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, StoreError> {
        self.get(key)?.map(|bytes| read::record(key, &bytes)).transpose()
    }

    /// Sets a key to a record.
    pub fn save<T: Serialize>(&mut self, key: Vec<u8>, record: &T) {
        self.put(key, codec::encode(record));
    }

    /// A number that is greater than all given before, for whatever must not be mistaken for its
    /// predecessor. It is the log index, unless that was given already: one entry may open the same
    /// session, or set the same key, twice.
    ///
    /// # Errors
    /// As the store says.
    pub fn stamp(&mut self, index: u64) -> Result<u64, StoreError> {
        let last: u64 = self.load(&keys::stamp())?.unwrap_or(0);
        let stamp = index.max(last.saturating_add(1));
        self.save(keys::stamp(), &stamp);
        Ok(stamp)
    }

    /// What was gathered, in the order of the keys.
    pub fn into_changes(self) -> Batch {
        let changes = self.changes.into_iter().map(|(key, value)| match value {
            Some(value) => Change::Put(Family::State, key, value),
            None => Change::Delete(Family::State, key),
        });
        Batch { changes: changes.collect() }
    }
}

impl View for Tx<'_> {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match family {
            Family::State => self.get(key),
            _ => self.view.get(family, key),
        }
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        if family != Family::State {
            return self.view.scan(family, from, to, visit);
        }
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let upper = to.map_or(Bound::Unbounded, Bound::Excluded);
        let mut changed = self.changes.range::<[u8], _>((Bound::Included(from), upper)).peekable();
        let mut flow = ControlFlow::Continue(());
        self.view.scan(family, from, to, &mut |key, value| {
            while let Some((own, change)) = changed.next_if(|(own, _)| own.as_slice() < key) {
                if let Some(value) = change {
                    flow = visit(own, value);
                    if flow.is_break() {
                        return flow;
                    }
                }
            }
            flow = match changed.next_if(|(own, _)| own.as_slice() == key) {
                Some((own, Some(value))) => visit(own, value),
                Some((_, None)) => ControlFlow::Continue(()),
                None => visit(key, value),
            };
            flow
        })?;
        while let (true, Some((own, change))) = (flow.is_continue(), changed.next()) {
            if let Some(value) = change {
                flow = visit(own, value);
            }
        }
        Ok(())
    }
}

/// The first key behind all that begin with `prefix`; `None` when there is none.
fn end_of(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=kept].to_vec();
    end[kept] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::state::testing::MapView;

    fn contents(view: &dyn View, from: &[u8], to: Option<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        view.scan(Family::State, from, to, &mut |key, value| {
            all.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .expect("scans");
        all
    }

    #[test]
    fn a_prefix_has_an_end() {
        assert_eq!(end_of(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(end_of(&[1, 255, 255]), Some(vec![2]));
        assert_eq!(end_of(&[255]), None);
        assert_eq!(end_of(&[]), None);
    }

    #[test]
    fn a_prefix_scan_sees_the_overlay_and_stops_when_told() {
        let view = MapView::of(&[(b"a", b"0"), (b"ab", b"1"), (b"ad", b"2"), (b"b", b"3")]);
        let mut tx = Tx::new(&view);
        tx.put(b"ac".to_vec(), b"new".to_vec());
        tx.delete(b"ab".to_vec());
        let mut seen = Vec::new();
        tx.scan_prefix(b"a", &mut |key, _| {
            seen.push(key.to_vec());
            ControlFlow::Continue(())
        })
        .expect("scans");
        assert_eq!(seen, [b"a".to_vec(), b"ac".to_vec(), b"ad".to_vec()]);
        let mut seen = 0;
        tx.scan_prefix(b"a", &mut |_, _| {
            seen += 1;
            ControlFlow::Break(())
        })
        .expect("scans");
        assert_eq!(seen, 1);
    }

    #[test]
    fn stamps_grow_within_one_entry_and_keep_ahead_of_the_log() {
        let view = MapView::default();
        let mut tx = Tx::new(&view);
        let stamps: Vec<_> =
            [5, 5, 6, 9].into_iter().map(|index| tx.stamp(index).expect("reads")).collect();
        assert_eq!(stamps, [5, 6, 7, 9]);
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0_u8..3, 0..3)
    }

    proptest! {
        #[test]
        fn an_overlay_reads_like_the_state_it_will_make(
            base in proptest::collection::btree_map(key(), key(), 0..12),
            changes in proptest::collection::vec((key(), proptest::option::of(key())), 0..12),
            from in key(),
            to in proptest::option::of(key()),
            stop in 0_usize..6,
        ) {
            let view = MapView(base.clone());
            let mut tx = Tx::new(&view);
            for (key, value) in changes {
                match value {
                    Some(value) => tx.put(key, value),
                    None => tx.delete(key),
                }
            }
            let seen = contents(&tx, &from, to.as_deref());
            let all = contents(&tx, &[], None);
            let mut left = stop;
            let mut first = Vec::new();
            tx.scan(Family::State, &from, to.as_deref(), &mut |key, value| {
                first.push((key.to_vec(), value.to_vec()));
                if left == 0 {
                    return ControlFlow::Break(());
                }
                left -= 1;
                ControlFlow::Continue(())
            }).expect("scans");
            prop_assert_eq!(&first[..], &seen[..seen.len().min(stop + 1)]);
            let mut after = MapView(base);
            let gets: Vec<_> = after.0.keys().map(|key| tx.get(key).expect("reads")).collect();
            let known: Vec<_> = after.0.keys().cloned().collect();
            after.write(tx.into_changes());
            prop_assert_eq!(contents(&after, &from, to.as_deref()), seen);
            prop_assert_eq!(contents(&after, &[], None), all);
            for (key, got) in known.iter().zip(gets) {
                prop_assert_eq!(after.0.get(key).cloned(), got);
            }
        }
    }
}
