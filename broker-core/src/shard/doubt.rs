//! When the metadata refuses a change of subscriptions, or does not say whether it has made it: what
//! this shard has becomes what is stored.
//!
//! After a time-out a change may still be committed. The client is told nothing and disconnected, so
//! that it asks again, and its session is *in doubt*: its subscriptions are read again when the end of
//! the connection is recorded, and once more when the session is opened again, behind which no change
//! of the older opening can be committed any more: it would be stale.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use meta::record::StoredSubscription;
use mqtt::protocol::Violation;
use mqtt::wire::{ReasonCode, SubscribeOptions};

use super::commit::Filters;
use super::stored::client_key;
use super::{ConnKey, SessionKey, Shard};

impl Shard {
    /// A change of subscriptions is not known to be committed.
    pub(super) fn leave_in_doubt(&mut self, key: ConnKey, change: &Filters, now_ms: u64) {
        let Some(entry) = self.changed_session(change) else { return };
        let (session, connected) = (change.session, entry.conn == Some(key));
        if let Some(entry) = self.sessions.get_mut(session.0 as usize) {
            entry.in_doubt = true;
        }
        if connected {
            let text = "the change is not known to be committed";
            self.expel(key, &Violation::new(ReasonCode::ServerBusy, text), now_ms);
        } else {
            self.post_close(session); // its end was posted without a doubt
        }
    }

    /// A change of subscriptions was refused.
    pub(super) fn take_back(&mut self, change: &Filters, now_ms: u64) {
        if self.changed_session(change).is_none() {
            return;
        }
        let Some((_, stored)) = self.stored_subscriptions(change.session) else { return };
        for filter in &change.filters {
            match stored.get(&**filter) {
                Some(stored) => self.subscribe_again(change.session, stored),
                None => {
                    self.drop_subscription(change.session, filter, now_ms);
                }
            }
        }
    }

    /// Makes the session's subscriptions what the metadata has under `epoch`.
    pub(super) fn reread_subscriptions(&mut self, session: SessionKey, epoch: u64, now_ms: u64) {
        let Some((Some(stored_epoch), stored)) = self.stored_subscriptions(session) else { return };
        if stored_epoch != epoch {
            return; // opened again: that one reads them
        }
        let Some(entry) = self.sessions.get(session.0 as usize) else { return };
        let known = entry.session.subscriptions.iter().map(|known| known.filter.clone());
        let gone: Vec<_> = known.filter(|filter| !stored.contains_key(&**filter)).collect();
        for filter in gone {
            self.drop_subscription(session, &filter, now_ms);
        }
        for subscription in stored.values() {
            self.subscribe_again(session, subscription);
        }
    }

    /// Subscribes as stored, unless it is. Nothing retained is owed for it.
    fn subscribe_again(&mut self, session: SessionKey, stored: &StoredSubscription) {
        let Some(options) = SubscribeOptions::from_u8(stored.options) else { return };
        let Some(entry) = self.sessions.get(session.0 as usize) else { return };
        let known = entry.session.subscriptions.get(&stored.filter);
        if known.is_some_and(|known| known.options == options && known.id == stored.id) {
            return;
        }
        let scanned = entry.scans.contains_key(&*stored.filter);
        // A refusal by a lower limit is final.
        let _ = self.subscribe(session, &stored.filter, options, stored.id);
        if !scanned && let Some(entry) = self.sessions.get_mut(session.0 as usize) {
            entry.scans.remove(&*stored.filter);
        }
    }

    fn changed_session(&self, change: &Filters) -> Option<&super::Entry> {
        let entry = self.sessions.get(change.session.0 as usize);
        entry.filter(|entry| entry.number == change.number)
    }

    /// The epoch of a stored session, and its subscriptions.
    fn stored_subscriptions(
        &self,
        session: SessionKey,
    ) -> Option<(Option<u64>, BTreeMap<String, StoredSubscription>)> {
        let durability = self.durability.as_ref()?;
        let client = client_key(&self.sessions.get(session.0 as usize)?.session.client_id);
        let read = durability.handle.read(|view| {
            let record = meta::state::session(view, &client)?;
            let mut stored = BTreeMap::new();
            meta::state::subscriptions(view, &client, |subscription| {
                stored.insert(subscription.filter.clone(), subscription);
                ControlFlow::Continue(())
            })?;
            Ok::<_, meta::store::StoreError>((record.map(|record| record.epoch), stored))
        });
        read.inspect_err(|error| {
            tracing::error!(%error, client_id = client.client_id, "cannot read a session");
        })
        .ok()
    }
}
