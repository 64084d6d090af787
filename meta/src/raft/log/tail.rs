//! What is known of the log without asking the store: its ends, the vote, and the latest entries.
//!
//! The latest entries are kept in memory, for nearly all reads are of entries that were just
//! appended. An entry leaves memory only once it is written, so that what is missing here is in
//! the store.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::{COMMITTED, END_OF_LOG, PURGED, VOTE, index_of, key};
use crate::raft::entry::{self, Entry, LogId, Vote};
use crate::store::{Family, Store, StoreError};

/// See the module's head.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    /// The last entry, if there is any.
    pub(super) last: Option<LogId>,
    /// Index of the first entry, or of the next one when there is none.
    first: u64,
    /// Entries up to the last one.
    slots: VecDeque<Slot>,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
    /// Counts truncations, so that a reader notices.
    pub(super) truncations: u64,
}

#[derive(Debug)]
struct Slot {
    entry: Arc<Entry>,
    bytes: usize,
    /// Number of the operation that writes it.
    operation: u64,
}

/// How to read a part of the log: first `stored` from the store, then `entries`.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Indexes, the end excluded; empty when all is in memory.
    pub(super) stored: std::ops::Range<u64>,
    pub(super) entries: Vec<Arc<Entry>>,
}

impl Tail {
    /// What the store has.
    pub(super) fn load(
        store: &dyn Store,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Self, StoreError> {
        let get = |name: &[u8]| store.get(Family::Meta, name);
        let vote = get(VOTE)?.map(|bytes| entry::decode_vote(&bytes)).transpose()?;
        let committed = get(COMMITTED)?.map(|bytes| entry::decode_position(&bytes)).transpose()?;
        let purged = get(PURGED)?.map(|bytes| entry::decode_position(&bytes)).transpose()?;
        let begin = purged.map_or(0, |purged: LogId| purged.index + 1);
        let mut first = None;
        store.scan(Family::Log, &key(begin), Some(&END_OF_LOG), &mut |found, _| {
            first = Some(found.to_vec());
            ControlFlow::Break(())
        })?;
        let first = first.map(|found| index_of(&found)).transpose()?;
        let last = match store.last(Family::Log)? {
            Some((found, bytes)) if first.is_some() => {
                let last = entry::decode_entry(&bytes)?.log_id;
                if last.index != index_of(&found)? {
                    return Err(StoreError::Damaged(format!(
                        "log entry {} lies in the place of another one",
                        last.index
                    )));
                }
                Some(last)
            }
            _ => None,
        };
        if let (Some(first), Some(purged)) = (first, purged)
            && first != begin
        {
            return Err(StoreError::Damaged(format!(
                "the log is purged up to entry {} and begins with entry {first}",
                purged.index
            )));
        }
        Ok(Self {
            vote,
            // openraft applies up to there at once
            committed: committed.filter(|committed| Some(*committed) <= last.or(purged)),
            purged,
            last,
            first: first.unwrap_or(begin),
            slots: VecDeque::new(),
            bytes: 0,
            max_entries,
            max_bytes,
            truncations: 0,
        })
    }

    /// Entries that have just been appended by operation `operation`. Those before `written` may
    /// leave memory.
    ///
    /// # Errors
    /// When they do not go on where the log ends; nothing is appended then.
    pub(super) fn append(
        &mut self,
        entries: &[Arc<Entry>],
        operation: u64,
        written: u64,
    ) -> Result<(), StoreError> {
        let mut next = self.last.map(|last| last.index + 1);
        for entry in entries {
            let index = entry.log_id.index;
            let fits = match next {
                Some(next) => index == next,
                None => self.purged.is_none_or(|purged| index > purged.index),
            };
            if !fits {
                return Err(StoreError::failed(
                    "appending to the raft log",
                    format!("entry {index} does not go on behind {}", self.end()),
                ));
            }
            next = Some(index + 1);
        }
        if let (None, Some(first)) = (self.last, entries.first()) {
            self.first = first.log_id.index;
        }
        for entry in entries {
            let bytes = entry::weight(entry);
            self.bytes += bytes;
            self.last = Some(entry.log_id);
            self.slots.push_back(Slot { entry: entry.clone(), bytes, operation });
        }
        while self.slots.len() > self.max_entries || self.bytes > self.max_bytes {
            if self.slots.front().is_none_or(|slot| slot.operation > written) {
                break;
            }
            self.drop_front();
        }
        Ok(())
    }

    /// Keeps the entries up to `after`. Returns the first index that is gone; `None` when there was
    /// nothing behind.
    pub(super) fn truncate(&mut self, after: Option<LogId>) -> Option<u64> {
        let last = self.last?;
        let from = after.map_or(self.first, |after| after.index + 1).max(self.first);
        if from > last.index {
            return None;
        }
        while self.slots.back().is_some_and(|slot| slot.entry.log_id.index >= from) {
            if let Some(slot) = self.slots.pop_back() {
                self.bytes -= slot.bytes;
            }
        }
        self.last = after.filter(|after| after.index >= self.first);
        self.truncations += 1;
        Some(from)
    }

    /// Forgets the entries up to `upto`. Returns the first index that was there, and how far the
    /// log is purged now.
    pub(super) fn purge(&mut self, upto: LogId) -> (u64, LogId) {
        let before = self.first;
        while self.slots.front().is_some_and(|slot| slot.entry.log_id.index <= upto.index) {
            self.drop_front();
        }
        let purged = self.purged.map_or(upto, |purged| purged.max(upto));
        self.purged = Some(purged);
        self.first = self.first.max(upto.index + 1);
        if self.last.is_some_and(|last| last.index <= upto.index) {
            self.last = None;
        }
        (before, purged)
    }

    /// How to read the entries from `from` to `to` (excluded), at most `max_entries` of them and
    /// `max_bytes`, but one at least.
    pub(super) fn plan(&self, from: u64, to: u64, max_entries: usize, max_bytes: usize) -> Plan {
        let end = self.last.map_or(self.first, |last| last.index + 1);
        let count = u64::try_from(max_entries).unwrap_or(u64::MAX);
        let from = from.max(self.first);
        let to = to.min(end).min(from.saturating_add(count));
        if from >= to {
            return Plan::default();
        }
        let in_memory = end - self.slots.len() as u64;
        let stored = from..to.min(in_memory).max(from);
        let mut entries = Vec::new();
        let mut bytes = 0;
        let begin = stored.end.saturating_sub(in_memory) as usize;
        let count = (to - stored.end) as usize;
        for slot in self.slots.range(begin..begin + count) {
            bytes += slot.bytes;
            if bytes > max_bytes && (!entries.is_empty() || !stored.is_empty()) {
                break;
            }
            entries.push(slot.entry.clone());
        }
        Plan { stored, entries }
    }

    /// Index of the first entry, or of the next one when there is none.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Entries in memory.
    #[cfg(test)]
    pub(super) fn in_memory(&self) -> usize {
        self.slots.len()
    }

    fn drop_front(&mut self) {
        if let Some(slot) = self.slots.pop_front() {
            self.bytes -= slot.bytes;
        }
    }

    fn end(&self) -> String {
        match self.last.or(self.purged) {
            Some(last) => last.to_string(),
            None => "an empty log".to_owned(),
        }
    }
}
