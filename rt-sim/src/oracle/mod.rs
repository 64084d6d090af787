//! Judges a history by what MQTT and the durability levels promise, event by event and at its end. It
//! knows what clients saw and what went wrong, and nothing of how the broker works.
//!
//! What a client cannot know (whether a request took effect whose answer was lost) may have happened
//! or not: only what holds either way is demanded.

mod delivery;
mod facts;
mod retained;
mod sessions;
#[cfg(test)]
mod tests;
mod wills;
mod wire;

use std::fmt;

use crate::history::{Event, What};
use crate::workload::{Level, Plan};

use facts::Facts;

/// What was promised to the clients of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promises {
    /// What an acknowledgement means.
    pub level: Level,
    /// Whether queues are so small that messages are dropped.
    pub small_queues: bool,
    /// Messages queued in one session.
    pub max_queued_messages: u64,
    /// Messages sent to one client and not acknowledged.
    pub max_inflight: u16,
    /// Whether wall clocks jump: then nothing is said about deadlines that outlive a process.
    pub clock_jumps: bool,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub rule: Rule,
    /// What was seen.
    pub text: String,
}

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// What was acknowledged reaches all who subscribed.
    Lost,
    /// QoS 2 comes once, everything else no more often than it was sent.
    Doubled,
    /// Messages of a publisher, topic and QoS come in their order.
    Order,
    /// Nothing comes that nobody published or subscribed to.
    Stray,
    /// A will is published once, when it is due, and not otherwise.
    Will,
    /// What is retained is what was accepted last.
    Retained,
    /// Nothing comes after its time.
    Expired,
    /// A session is there as long as it lives, and no longer.
    Session,
    /// A session has one connection.
    TwoPlaces,
    /// No more is sent at once than the client takes.
    Quota,
    /// An identifier in use stands for one message.
    Identifier,
    /// Queues keep their bounds.
    Bound,
    /// Everybody is served when nothing is wrong any more.
    Stuck,
    /// Nothing is left of sessions and messages that are gone.
    Leak,
    /// Packets are what the specification says.
    Protocol,
    /// A process does not end by itself.
    Down,
}

/// See the module's head.
#[derive(Debug)]
pub struct Oracle {
    promises: Promises,
    facts: Facts,
}

impl Promises {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self {
            level: plan.setup.level,
            small_queues: plan.setup.small_queues,
            max_queued_messages: plan.setup.max_queued_messages as u64,
            max_inflight: plan.setup.max_inflight,
            clock_jumps: plan.has_clock_jumps(),
        }
    }
}

impl Oracle {
    /// Has seen nothing yet.
    pub fn new(promises: Promises) -> Self {
        Self { promises, facts: Facts::default() }
    }

    /// Takes the next event.
    ///
    /// # Errors
    /// The promise that it breaks. Nothing that comes later is to be judged then.
    pub fn observe(&mut self, event: &Event) -> Result<(), Violation> {
        let Self { promises, facts } = self;
        facts.now_us = event.at_us;
        sessions::observe(facts, promises, &event.what)?;
        wire::observe(facts, promises, &event.what)?;
        match &event.what {
            What::Publishing(client, _, message, content) => {
                facts.publish(*client, *message, content);
            }
            What::PublishingAgain(_, _, message) => facts.publish_again(*message),
            What::Acknowledged(_, _, message, accepted) => facts.settle(*message, *accepted),
            What::Completed(_, _, message) => facts.complete(*message),
            // It cannot be told which one it is.
            What::Delivered(_, _, delivery) if delivery.empty => {}
            What::Delivered(client, conn, delivery) => {
                wills::delivered(facts, promises, *client, delivery)?;
                match delivery.retain {
                    true => retained::delivered(facts, *client, delivery)?,
                    false => delivery::delivered(facts, promises, *client, *conn, delivery)?,
                }
            }
            What::Settled => {
                delivery::settled(facts, promises)?;
                wills::settled(facts, promises)?;
            }
            What::Swept(client) => retained::swept(facts, promises, *client)?,
            _ => {}
        }
        Ok(())
    }
}

impl Violation {
    fn new(rule: Rule, text: impl Into<String>) -> Self {
        Self { rule, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

/// Shorter: a violation, when something is so.
fn forbid(is_so: bool, rule: Rule, text: impl FnOnce() -> String) -> Result<(), Violation> {
    match is_so {
        true => Err(Violation::new(rule, text())),
        false => Ok(()),
    }
}
