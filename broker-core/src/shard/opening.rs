//! Durable sessions that are opened: by an answer that comes in time, or by one that nobody waits for
//! any more.
//!
//! The metadata tells every opening of this node twice: to who proposed it, and, through
//! [`Elsewhere::Opened`](super::Elsewhere), to the session's shard. The second also comes when the
//! first does not, after a time-out: the client was refused and its session is open all the same. The
//! shard then takes note of it, as of a connection that was lost at once. Otherwise what the shard has
//! of an earlier opening would be refused as stale.

use std::collections::{BTreeMap, BTreeSet};

use meta::record::{ClientKey, SessionRecord};
use mqtt::protocol::accept;
use mqtt::session::Will;
use mqtt::wire::{Packet, Version, decode_from_client};

use super::close::Parting;
use super::commit::Opening;
use super::conn::Phase;
use super::stored::client_key;
use super::{ConnKey, ConnectStep, SessionKey, Shard, connect};

/// CONNECTs that wait for their sessions, at most one per connection, and what was told meanwhile.
/// Epochs are told in the order of the log; answers may come in another.
#[derive(Debug, Default)]
pub(super) struct Openings {
    by_client: BTreeMap<Box<str>, Awaited>,
    /// Epochs that were answered and will be told: within a tick or so.
    untold: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Awaited {
    count: u32,
    /// The newest epoch that was told while some waited; 0 for none.
    told: u64,
    /// The newest that was answered.
    answered: u64,
}

/// The session of a CONNECT as the metadata has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Committed {
    /// Names this opening.
    pub(super) epoch: u64,
    /// Names the session.
    pub(super) generation: u64,
    /// When it was asked for, on the shard's clock.
    pub(super) asked_ms: u64,
}

impl Openings {
    pub(super) fn begin(&mut self, client_id: &str) {
        match self.by_client.get_mut(client_id) {
            Some(awaited) => awaited.count += 1,
            None => {
                let awaited = Awaited { count: 1, ..Awaited::default() };
                self.by_client.insert(client_id.into(), awaited);
            }
        }
    }

    /// One of them was answered, with an epoch or not at all. An epoch that was told and answered to
    /// nobody comes out when none waits any more.
    fn end(&mut self, client_id: &str, epoch: Option<u64>) -> Option<u64> {
        let awaited = self.by_client.get_mut(client_id)?;
        if let Some(epoch) = epoch {
            awaited.answered = awaited.answered.max(epoch);
            if awaited.told < epoch {
                self.untold.insert(epoch);
            }
        }
        awaited.count -= 1;
        if awaited.count > 0 {
            return None;
        }
        let Awaited { told, answered, .. } = self.by_client.remove(client_id)?;
        (told > answered).then_some(told)
    }

    /// Whether an epoch that is told is nobody's.
    fn tell(&mut self, client_id: &str, epoch: u64) -> bool {
        if self.untold.remove(&epoch) {
            return false;
        }
        match self.by_client.get_mut(client_id) {
            Some(awaited) => {
                awaited.told = awaited.told.max(epoch);
                false
            }
            None => true,
        }
    }

    /// What was to be told may not be any more.
    pub(super) fn forget_untold(&mut self) {
        self.untold.clear();
    }
}

impl Shard {
    /// A session of this node was opened.
    pub(super) fn on_opened(&mut self, client_id: &str, epoch: u64, now_ms: u64) {
        let Some(durability) = self.durability.as_mut() else { return };
        if durability.openings.tell(client_id, epoch) && self.held_epoch(client_id) < epoch {
            self.abandon(client_id, epoch, now_ms);
            self.settle(now_ms);
        }
    }

    /// A CONNECT that waited for its session has ended. `epoch`: it was opened.
    pub(super) fn end_opening(&mut self, client_id: &str, epoch: Option<u64>, now_ms: u64) {
        let Some(durability) = self.durability.as_mut() else { return };
        if let Some(late) = durability.openings.end(client_id, epoch)
            && self.held_epoch(client_id) < late
        {
            self.abandon(client_id, late, now_ms);
        }
    }

    /// Whether a CONNECT of the client waits for its session.
    pub(super) fn awaits_opening(&self, client_id: &str) -> bool {
        self.durability
            .as_ref()
            .is_some_and(|durability| durability.openings.by_client.contains_key(client_id))
    }

    /// The session of a CONNECT is open in the metadata.
    pub(super) fn opened(
        &mut self,
        key: ConnKey,
        opening: &Opening,
        (epoch, generation): (u64, u64),
        present: bool,
        now_ms: u64,
    ) {
        self.step(key, ConnectStep::SessionProcess);
        // All succeeded before, on the same bytes.
        let Ok(Packet::Connect(request)) = decode_from_client(&opening.connect, Version::V5) else {
            return;
        };
        let Ok((_, accepted)) = accept(&request, &self.rules) else { return };
        let client_id = &*opening.client_id;
        let known = self.find_session(client_id);
        let waits = self.conn(key).is_some_and(|conn| conn.phase == Phase::Authenticating);
        // Another connection of the client came later and was faster.
        let overtaken = self.held_epoch(client_id) > epoch;
        if !waits || overtaken {
            if !overtaken {
                self.abandon(client_id, epoch, now_ms);
            }
            self.close(key, now_ms);
            return;
        }
        self.step(key, ConnectStep::AddCache);
        match known {
            None if present => self.fetch_session(client_id, false, now_ms),
            Some(known) if self.sessions[known.0 as usize].epoch > 0 => {
                let entry = &self.sessions[known.0 as usize];
                if !present && !request.clean_start && entry.conn.is_none() {
                    // Its deadline has come, though the timer has not.
                    self.cut_off(known, true, opening.asked_ms, now_ms);
                } else if present && entry.in_doubt {
                    self.settle_doubt(known, epoch, opening.asked_ms, now_ms);
                }
            }
            _ => {}
        }
        let committed = Some(Committed { epoch, generation, asked_ms: opening.asked_ms });
        let assigned = opening.assigned.then_some(client_id);
        let auth_data = opening.auth_data.as_deref();
        connect::let_in(self, key, &request, assigned, &accepted, auth_data, committed, now_ms);
    }

    /// A session was opened and its client is not there: the session lost its connection at once. The
    /// client's will is none, since it was never let in.
    fn abandon(&mut self, client_id: &str, epoch: u64, now_ms: u64) {
        // Opened again, or ended, since: that is told, too.
        let Some(record) = self.stored_here(client_id).filter(|record| record.epoch == epoch)
        else {
            return;
        };
        let known = self.find_session(client_id);
        let entry = known.map(|at| &self.sessions[at.0 as usize]);
        if entry.is_some_and(|entry| entry.epoch == 0 && entry.conn.is_some()) {
            // The client was refused, and came back for a transient session.
            self.post_end(client_key(client_id), epoch, None, now_ms);
            return;
        }
        let resumes = entry.is_some_and(|entry| entry.epoch >= record.generation);
        let in_doubt = entry.is_some_and(|entry| entry.in_doubt);
        if let Some(known) = known {
            self.cut_off(known, !resumes, now_ms, now_ms);
        }
        let Some(known) = self.find_session(client_id).filter(|_| resumes) else {
            return self.fetch_session(client_id, true, now_ms);
        };
        self.set_generation(known, record.generation);
        let entry = &mut self.sessions[known.0 as usize];
        entry.epoch = epoch;
        entry.session.expiry_interval_s = record.expiry_interval_s;
        entry.expires_at_ms = (record.expiry_interval_s != u32::MAX)
            .then(|| now_ms + u64::from(record.expiry_interval_s) * 1000);
        if in_doubt {
            self.reread_subscriptions(known, epoch, now_ms);
        }
        self.post_close(known);
        self.arm_session(known);
    }

    /// A CONNECT is not known to have opened its session: the next one looks.
    pub(super) fn doubt_opening(&mut self, client_id: &str) {
        if let Some(known) = self.find_session(client_id) {
            self.sessions[known.0 as usize].in_doubt = true;
        }
    }

    /// A session that is in doubt was opened again, and goes on: with what is stored.
    fn settle_doubt(&mut self, known: SessionKey, epoch: u64, asked_ms: u64, now_ms: u64) {
        let entry = &self.sessions[known.0 as usize];
        let (client_id, held) = (entry.session.client_id.clone(), entry.epoch);
        let Some(record) = self.stored_here(&client_id) else { return };
        if held >= record.generation {
            self.reread_subscriptions(known, epoch, now_ms);
            return;
        }
        // In between it was discarded by one that nobody waited for any more.
        self.cut_off(known, true, asked_ms, now_ms);
        self.fetch_session(&client_id, false, now_ms);
    }

    /// The metadata knows later openings only: a connection of the one that is known here is over, and
    /// its session, if it `ends`.
    fn cut_off(&mut self, known: SessionKey, ends: bool, asked_ms: u64, now_ms: u64) {
        let will = self.release(known, ends, asked_ms);
        let entry = &self.sessions[known.0 as usize];
        let number = entry.number;
        if let Some(old) = entry.conn {
            self.take_over(old, Parting::TakenOver, now_ms);
        }
        let is_left = self.sessions.get(known.0 as usize).is_some_and(|it| it.number == number);
        if ends && is_left {
            self.end_session(known, now_ms);
        }
        self.publish_due(will, now_ms);
    }

    /// Takes a durable session out of the metadata's hands, which has decided about it, or is about
    /// to: nothing more is recorded for the opening that this shard knew. Its will comes out if it is
    /// due, by the same rule as there: the session `ends`, or it is taken over and the will has no
    /// delay, or the delay was over when the client asked.
    pub(super) fn release(
        &mut self,
        key: SessionKey,
        ends: bool,
        asked_ms: u64,
    ) -> Option<Box<Will>> {
        let entry = self.sessions.get_mut(key.0 as usize).filter(|entry| entry.epoch > 0)?;
        entry.epoch = 0;
        entry.in_doubt = false;
        entry.will_taken = false;
        let at_ms = entry.will_at_ms.take();
        let will = entry.will.take()?;
        let due = match at_ms {
            _ if ends => true,
            None => will.delay_s == 0,
            Some(at_ms) => at_ms <= asked_ms,
        };
        due.then_some(will)
    }

    /// Publishes what [`Shard::release`] gave, if anything.
    pub(super) fn publish_due(&mut self, will: Option<Box<Will>>, now_ms: u64) {
        if let Some(will) = will {
            self.publish_will(&will, now_ms);
        }
    }

    /// Whether the client's session is over, and the metadata may not know it yet.
    pub(super) fn has_ended(&self, client: &ClientKey) -> bool {
        let Some(durability) = self.durability.as_ref() else { return false };
        // A shard has all sessions of this node that are its own.
        !durability.posted.is_done()
            && self.held_epoch(&client.client_id) == 0
            && self.is_stored_here(client)
    }

    /// Whether the metadata has a session of the client on this node.
    pub(super) fn is_stored_here(&self, client: &ClientKey) -> bool {
        self.stored_here(&client.client_id).is_some()
    }

    fn stored_here(&self, client_id: &str) -> Option<SessionRecord> {
        let durability = self.durability.as_ref()?;
        match durability.handle.read(|view| meta::state::session(view, &client_key(client_id))) {
            Ok(record) => record.filter(|record| record.node == durability.handle.node()),
            Err(error) => {
                tracing::error!(%error, client_id, "cannot read a session");
                None
            }
        }
    }

    /// The epoch of the client's session; 0 when it has no durable one here.
    fn held_epoch(&self, client_id: &str) -> u64 {
        self.find_session(client_id).map_or(0, |at| self.sessions[at.0 as usize].epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::Openings;

    #[test]
    fn an_epoch_is_told_and_answered_in_any_order() {
        let mut openings = Openings::default();
        openings.begin("c");
        assert!(!openings.tell("c", 5), "somebody waits");
        assert_eq!(openings.end("c", Some(5)), None);
        openings.begin("c");
        assert_eq!(openings.end("c", Some(6)), None);
        assert!(!openings.tell("c", 6), "it was answered");
        assert!(openings.by_client.is_empty() && openings.untold.is_empty());
    }

    #[test]
    fn an_epoch_that_was_answered_to_nobody_comes_out() {
        let mut openings = Openings::default();
        assert!(openings.tell("c", 5));
        openings.begin("c");
        openings.begin("c");
        assert!(!openings.tell("c", 7));
        assert_eq!(openings.end("c", None), None, "it may be the other one's");
        assert_eq!(openings.end("c", Some(6)), Some(7));
        // The client came again, and that answer was faster.
        openings.begin("c");
        openings.begin("c");
        assert_eq!(openings.end("c", Some(9)), None);
        assert!(!openings.tell("c", 8));
        assert!(!openings.tell("c", 9));
        assert_eq!(openings.end("c", None), None);
        assert!(openings.by_client.is_empty() && openings.untold.is_empty());
    }
}
