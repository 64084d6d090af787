//! A state in a map, for tests.

use std::collections::BTreeMap;

use super::{Effect, Tx, apply, check};
use crate::command::{Command, Reply};
use crate::record::{ClientKey, Totals};
use crate::store::memory::scan_table;
use crate::store::{Batch, Change, Family, StoreError, View, Visitor};

/// Holds [`Family::State`] only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapView(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl MapView {
    pub fn of(records: &[(&[u8], &[u8])]) -> Self {
        Self(records.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
    }

    pub fn write(&mut self, batch: Batch) {
        for change in batch.changes {
            match change {
                Change::Put(Family::State, key, value) => {
                    self.0.insert(key, value);
                }
                Change::Delete(Family::State, key) => {
                    self.0.remove(&key);
                }
                other => panic!("the state machine makes no {other:?}"),
            }
        }
    }

    /// Applies commands as one entry and one batch.
    pub fn entry(&mut self, index: u64, commands: &[Command]) -> (Vec<Reply>, Vec<Effect>) {
        let mut effects = Vec::new();
        let mut tx = Tx::new(self);
        let replies = commands
            .iter()
            .map(|command| apply(&mut tx, index, command, &mut effects).expect("applies"))
            .collect();
        let batch = tx.into_changes();
        self.write(batch);
        (replies, effects)
    }

    /// Applies one command as an entry of its own.
    pub fn run(&mut self, index: u64, command: Command) -> (Reply, Vec<Effect>) {
        let (mut replies, effects) = self.entry(index, &[command]);
        (replies.pop().expect("one reply"), effects)
    }

    /// Applies one command that must change nothing, and gives its reply.
    pub fn refuse(&mut self, index: u64, command: Command) -> Reply {
        let before = self.clone();
        let (reply, effects) = self.run(index, command);
        assert_eq!(*self, before, "a refused command changes nothing");
        assert_eq!(effects, [], "a refused command is told to nobody");
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        reply
    }

    pub fn totals(&self) -> Totals {
        check(self).expect("the invariants hold")
    }
}

impl View for MapView {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        assert_eq!(family, Family::State);
        Ok(self.0.get(key).cloned())
    }

    fn scan(
        &self,
        family: Family,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        assert_eq!(family, Family::State);
        scan_table(&self.0, from, to, visit);
        Ok(())
    }
}

pub fn client(client_id: &str) -> ClientKey {
    ClientKey { tenant: String::new(), client_id: client_id.into() }
}
