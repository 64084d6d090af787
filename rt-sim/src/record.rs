//! Where everything that is seen goes: judged at once, digested, and kept as far as asked for.

use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

use crate::history::{Event, What};
use crate::oracle::{Oracle, Violation};

/// See the module's head.
#[derive(Debug)]
pub struct Record {
    oracle: Oracle,
    violation: Option<Violation>,
    digest: SipHasher13,
    seen: u64,
    keep: bool,
    events: Vec<Event>,
}

impl Record {
    /// Nothing has been seen. `keep`: whether events are kept to be shown.
    pub fn new(oracle: Oracle, keep: bool) -> Self {
        let digest = SipHasher13::new();
        Self { oracle, violation: None, digest, seen: 0, keep, events: Vec::new() }
    }

    /// Takes the next event.
    pub fn see(&mut self, at_us: u64, what: What) {
        let event = Event { at_us, what };
        event.hash(&mut self.digest);
        self.seen += 1;
        if self.violation.is_none() {
            self.violation = self.oracle.observe(&event).err();
            if self.keep {
                self.events.push(event);
            }
        }
    }

    /// The first promise that was broken.
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Over all that was seen.
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// How many events were seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// What was kept: all up to the first violation.
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}
