//! What no client waits for: connections that ended, sessions that are over, wills to be taken. It is
//! posted, and proposed in order by a task of the shard, which tells what became of it.
//!
//! A will of a durable session is the metadata's to give away: it is published when its taking is
//! answered, so that a process that is killed in between does not publish it a second time. Only when
//! the metadata does not answer it is published all the same: it tells that a client is gone, and that
//! is not held back for as long as a majority is.

use std::collections::VecDeque;

use meta::Answer;
use meta::ProposeError;
use meta::command::{CloseSession, Command, Refusal, Reply};
use meta::raft::entry::command_weight;
use meta::record::{ClientKey, SessionRecord};
use mqtt::session::{Draft, Will};

use super::stored::{client_key, retain_command};
use super::{SessionKey, Shard};

/// Posted commands that may wait.
const MAX_POSTED: usize = 500_000;
/// Their bytes. Messages to be retained may take half of it.
const MAX_POSTED_BYTES: usize = 128 << 20;
/// Bytes proposed at once, but for the last command.
const MAX_TAKEN_BYTES: usize = 4 << 20;
/// How often it is said that commands were dropped.
const REPORT_EVERY_MS: u64 = 1_000;
/// A stored deadline may differ by so much: the wall clock moves against the shard's.
const DEADLINE_SLACK_MS: u64 = 1_000;

/// Commands that wait to be proposed, up to bounds in number and in bytes. What finds no room is
/// dropped and counted, which is safe:
///
/// - a message to be retained is delivered already, and not retained, as without a majority;
/// - a sweep of expired messages comes again at the next start, and nobody gets them before;
/// - a session whose end, or whose connection's end, was dropped is found when the list is empty: then
///   all sessions of the shard are compared with the stored ones ([`Shard::record_again`]);
/// - a will to be taken is published at once, as without a majority.
#[derive(Debug, Default)]
pub(super) struct Posted {
    waiting: VecDeque<Item>,
    bytes: usize,
    /// What follows from those that were taken and not answered yet.
    taken: Vec<Then>,
    /// Commands were taken, and no more asked for yet: they may not be applied.
    recording: bool,
    /// How often the list has overflowed, and how many of these have been made up for.
    overflows: u64,
    compared: u64,
    /// Dropped since it was said last.
    dropped: u64,
    reported_ms: u64,
}

#[derive(Debug)]
struct Item {
    command: Command,
    bytes: usize,
    then: Then,
}

/// What follows once a posted command is answered.
#[derive(Debug)]
enum Then {
    Nothing,
    /// The will that waits in this session is published.
    Will(Whose),
    /// The will of a session that is over is published.
    LastWill(Box<Will>, ClientKey),
    /// The session's subscriptions are made what the metadata has.
    Reread(Whose),
}

/// A session, unless it was opened again.
#[derive(Clone, Copy, Debug)]
struct Whose {
    key: SessionKey,
    number: u64,
    epoch: u64,
}

impl Posted {
    /// Whether everything that was posted is recorded.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && !self.recording && self.overflows == self.compared
    }

    /// Gives back what follows when there is no room.
    fn push(&mut self, command: Command, then: Then) -> Result<(), Then> {
        let bytes = command_weight(&command);
        let is_message = matches!(
            command,
            Command::Retain(_) | Command::Unretain { .. } | Command::SweepRetained { .. }
        );
        let max_bytes = if is_message { MAX_POSTED_BYTES / 2 } else { MAX_POSTED_BYTES };
        if self.waiting.len() >= MAX_POSTED || self.bytes + bytes > max_bytes {
            self.dropped += 1;
            self.overflows += u64::from(!is_message);
            return Err(then);
        }
        self.bytes += bytes;
        self.waiting.push_back(Item { command, bytes, then });
        Ok(())
    }

    fn take(&mut self, max: usize) -> Vec<Command> {
        let mut commands = Vec::new();
        let mut bytes = 0;
        self.taken.clear();
        while commands.len() < max && bytes < MAX_TAKEN_BYTES {
            let Some(item) = self.waiting.pop_front() else { break };
            bytes += item.bytes;
            commands.push(item.command);
            self.taken.push(item.then);
        }
        self.bytes -= bytes;
        self.recording = !commands.is_empty();
        commands
    }
}

impl Shard {
    /// Up to `max` posted commands, in order. Those that were taken before have been answered.
    pub fn take_posted(&mut self, max: usize) -> Vec<Command> {
        self.durability.as_mut().map_or_else(Vec::new, |durability| durability.posted.take(max))
    }

    /// Whether [`Shard::take_posted`] has something.
    pub fn has_posted(&self) -> bool {
        self.durability.as_ref().is_some_and(|durability| !durability.posted.waiting.is_empty())
    }

    /// The commands that were taken last are answered.
    pub fn on_recorded(&mut self, answer: &Answer, now_ms: u64) {
        let Some(durability) = self.durability.as_mut() else { return };
        let taken = std::mem::take(&mut durability.posted.taken);
        for (then, reply) in taken.into_iter().zip(&answer.replies) {
            match then {
                Then::Nothing => {}
                Then::Will(whose) => self.on_will_taken(whose, reply, now_ms),
                Then::LastWill(will, client) => {
                    // Opened again, its new opening gave the will away, to the node that it is on.
                    let mine = match reply {
                        Reply::Refused(_) => self.is_stored_here(&client),
                        _ => true,
                    };
                    if mine {
                        self.publish_will(&will, now_ms);
                    }
                }
                Then::Reread(whose) => {
                    if self.is_still(whose) {
                        self.reread_subscriptions(whose.key, whose.epoch, now_ms);
                    }
                }
            }
        }
        self.settle(now_ms);
    }

    /// The commands that were taken last are not answered, and are to be proposed again: `commands`,
    /// without those that do harm a second time.
    pub fn on_unrecorded(&mut self, commands: &mut Vec<Command>, error: ProposeError, now_ms: u64) {
        let Some(durability) = self.durability.as_mut() else { return };
        let taken = std::mem::take(&mut durability.posted.taken);
        // It may have been committed: a second time a message could replace a later one.
        let (again, thens): (Vec<_>, Vec<_>) = std::mem::take(commands)
            .into_iter()
            .zip(taken)
            .filter(|(command, _)| {
                error != ProposeError::Timeout
                    || !matches!(command, Command::Retain(_) | Command::Unretain { .. })
            })
            .unzip();
        *commands = again;
        let thens = thens.into_iter().map(|then| self.without_will(then, now_ms)).collect();
        if let Some(durability) = self.durability.as_mut() {
            durability.posted.taken = thens;
        }
        self.settle(now_ms);
    }

    /// Whether commands were dropped whose sessions have to be compared with the stored ones: the
    /// argument of [`Shard::on_compared`], when nothing waits.
    pub fn to_compare(&self) -> Option<u64> {
        let posted = &self.durability.as_ref()?.posted;
        (posted.waiting.is_empty() && posted.overflows > posted.compared)
            .then_some(posted.overflows)
    }

    /// All stored sessions went through [`Shard::record_again`] since [`Shard::to_compare`].
    pub fn on_compared(&mut self, overflows: u64) {
        if let Some(durability) = self.durability.as_mut() {
            durability.posted.compared = overflows;
        }
    }

    /// Posts again what a stored session of this shard does not know. The record was read before all
    /// that has been told so far.
    pub fn record_again(&mut self, client_id: &str, record: &SessionRecord, now_ms: u64) {
        let Some(durability) = self.durability.as_ref() else { return };
        let wall_offset_ms = durability.wall_offset_ms;
        let known = self.find_session(client_id);
        let Some(key) = known.filter(|at| self.sessions[at.0 as usize].epoch > 0) else {
            if !self.awaits_opening(client_id) {
                self.post_end(client_key(client_id), record.epoch, None, now_ms);
            }
            return;
        };
        let entry = &self.sessions[key.0 as usize];
        // What was opened again since is told by itself.
        if entry.epoch != record.epoch || entry.conn.is_some() {
            return;
        }
        let same_deadline = match (entry.expires_at_ms, record.expires_at_ms) {
            (None, None) => true,
            (Some(mine), Some(stored)) => {
                (mine + wall_offset_ms).abs_diff(stored) <= DEADLINE_SLACK_MS
            }
            _ => false,
        };
        if record.connected || !same_deadline || entry.will.is_some() != record.will.is_some() {
            self.post_close(key);
        }
    }

    /// Says how many commands were dropped, now and then.
    pub(super) fn report_dropped(&mut self, now_ms: u64) {
        let Some(durability) = self.durability.as_mut() else { return };
        let posted = &mut durability.posted;
        if posted.dropped > 0 && now_ms >= posted.reported_ms + REPORT_EVERY_MS {
            let dropped = std::mem::take(&mut posted.dropped);
            posted.reported_ms = now_ms;
            self.stats.dropped_posted.add(dropped);
            tracing::warn!(dropped, "too many changes wait for the metadata: some were dropped");
        }
    }

    /// Retained messages have expired.
    pub(super) fn post_sweep(&mut self, topics: Vec<Box<str>>, now_ms: u64) {
        let Some(durability) = self.durability.as_ref() else { return };
        if topics.is_empty() {
            return;
        }
        let topics = topics.into_iter().filter(|topic| !topic.starts_with("$SYS/"));
        let command = Command::SweepRetained {
            now_ms: now_ms + durability.wall_offset_ms,
            topics: topics.map(String::from).collect(),
        };
        self.post(command);
    }

    /// A will is retained: nobody waits for it.
    pub(super) fn post_retain(&mut self, draft: &Draft<'_>) {
        let Some(durability) = self.durability.as_ref() else { return };
        let command = retain_command(draft, durability.wall_offset_ms);
        if self.post_then(command, Then::Nothing).is_err() {
            self.stats.dropped_retained.add(1);
        }
    }

    /// The connection of a session ended, or its deadlines changed.
    pub(super) fn post_close(&mut self, session: SessionKey) {
        let Some((client, epoch)) = self.durable_client(session) else { return };
        let Some(durability) = self.durability.as_ref() else { return };
        let entry = &self.sessions[session.0 as usize];
        let wall_ms = |at_ms: u64| at_ms + durability.wall_offset_ms;
        let command = Command::CloseSession(CloseSession {
            client,
            epoch,
            expiry_interval_s: entry.session.expiry_interval_s,
            expires_at_ms: entry.expires_at_ms.map(wall_ms),
            will_at_ms: entry.will_at_ms.map(wall_ms),
        });
        let then = match entry.in_doubt {
            true => Then::Reread(Whose { key: session, number: entry.number, epoch }),
            false => Then::Nothing,
        };
        let _ = self.post_then(command, then); // in doubt until it is opened again in any case
    }

    /// A session is over: its last will, if there is one, is published when that is recorded.
    pub(super) fn post_end(
        &mut self,
        client: ClientKey,
        epoch: u64,
        will: Option<Box<Will>>,
        now_ms: u64,
    ) {
        let node = self.durability.as_ref().map_or(0, |durability| durability.handle.node());
        let then = match will {
            Some(will) => Then::LastWill(will, client.clone()),
            None => Then::Nothing,
        };
        if let Err(then) = self.post_then(Command::EndSession { client, epoch, node }, then) {
            self.without_will(then, now_ms);
        }
    }

    /// A waiting will is due: it is published when it is taken.
    pub(super) fn post_take_will(&mut self, session: SessionKey, now_ms: u64) {
        let Some((client, epoch)) = self.durable_client(session) else { return };
        let entry = &mut self.sessions[session.0 as usize];
        entry.will_taken = true;
        let then = Then::Will(Whose { key: session, number: entry.number, epoch });
        if let Err(then) = self.post_then(Command::TakeWill { client, epoch }, then) {
            self.without_will(then, now_ms);
        }
    }

    fn post(&mut self, command: Command) {
        let _ = self.post_then(command, Then::Nothing); // counted, and made up for
    }

    fn post_then(&mut self, command: Command, then: Then) -> Result<(), Then> {
        match self.durability.as_mut() {
            Some(durability) => durability.posted.push(command, then),
            None => Ok(()),
        }
    }

    fn on_will_taken(&mut self, whose: Whose, reply: &Reply, now_ms: u64) {
        // Opened again, here or elsewhere: that has decided about the will.
        if *reply == Reply::Refused(Refusal::Stale) {
            return;
        }
        let not_known = *reply == Reply::Refused(Refusal::NotFound);
        if self.publish_waiting_will(whose, now_ms) && not_known {
            // Nobody else knew that it waits: the end of the connection was dropped.
            self.post_close(whose.key);
        }
    }

    /// What is left to do when the answer does not come: a will does not wait for it any longer.
    fn without_will(&mut self, then: Then, now_ms: u64) -> Then {
        match then {
            Then::Will(whose) => {
                self.publish_waiting_will(whose, now_ms);
                Then::Nothing
            }
            Then::LastWill(will, _) => {
                self.publish_will(&will, now_ms);
                Then::Nothing
            }
            other => other,
        }
    }

    fn publish_waiting_will(&mut self, whose: Whose, now_ms: u64) -> bool {
        if !self.is_still(whose) {
            return false;
        }
        let entry = &mut self.sessions[whose.key.0 as usize];
        entry.will_at_ms = None;
        entry.will_taken = false;
        let Some(will) = entry.will.take() else { return false };
        self.publish_will(&will, now_ms);
        true
    }

    fn is_still(&self, whose: Whose) -> bool {
        let entry = self.sessions.get(whose.key.0 as usize);
        entry.is_some_and(|entry| entry.number == whose.number && entry.epoch == whose.epoch)
    }
}

#[cfg(test)]
impl Posted {
    /// One that takes no more.
    pub(super) fn full() -> Self {
        let mut posted = Self::default();
        let filler = Command::RemoveRule { id: 0 };
        while posted.push(filler.clone(), Then::Nothing).is_ok() {}
        assert!(posted.waiting.len() <= MAX_POSTED && posted.bytes <= MAX_POSTED_BYTES);
        (posted.dropped, posted.overflows) = (0, 0);
        posted
    }
}
