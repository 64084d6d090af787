//! What happens at which time.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::disk::OpId;
use crate::net::EndId;
use crate::world::tasks::TaskId;

/// When, and after how many others that were planned: two at one time happen in the order of planning.
pub(crate) type Key = (u64, u64);

#[derive(Debug)]
pub(crate) enum Event {
    /// A timer.
    Wake(Waker),
    /// Segments of this end may have arrived at its peer.
    Arrive(EndId),
    /// A connection's first segment arrives; how often it was sent.
    Knock(EndId, u32),
    /// The answer to it arrives.
    Answer(EndId, Result<(), std::io::ErrorKind>),
    /// A refusal arrives at an established end.
    Reset(EndId),
    /// A disk's operation is done.
    Disk(OpId),
    /// A task of a paused node is ready.
    Ready(TaskId),
}

#[derive(Debug, Default)]
pub(crate) struct Events {
    planned: BTreeMap<Key, Event>,
    next: u64,
}

impl Events {
    /// Plans an event at `at` nanoseconds.
    pub fn plan(&mut self, at: u64, event: Event) -> Key {
        self.next += 1;
        let key = (at, self.next);
        self.planned.insert(key, event);
        key
    }

    pub fn cancel(&mut self, key: Key) {
        self.planned.remove(&key);
    }

    /// A timer that waits for somebody else from now on; `false` when it has fired.
    pub fn rewake(&mut self, key: Key, waker: &Waker) -> bool {
        match self.planned.get_mut(&key) {
            Some(Event::Wake(old)) => {
                old.clone_from(waker);
                true
            }
            _ => false,
        }
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<u64> {
        self.planned.first_key_value().map(|(&(at, _), _)| at)
    }

    /// The next event, if it is due.
    pub fn pop_due(&mut self, now: u64) -> Option<Event> {
        let entry = self.planned.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
