//! Between the shard's sessions and messages and those that the metadata stores: what comes back at
//! start, or from another node, and how each is written down.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::Arc;

use meta::command::Command;
use meta::record::{
    ClientKey, DEFAULT_TENANT, SessionRecord, StoredMessage, StoredSubscription, StoredWill,
};
use mqtt::session::{Draft, Message, Will};
use mqtt::wire::{QoS, SubscribeOptions};

use super::Shard;
use super::close::Parting;

/// What the metadata tells of this shard's sessions that the shard has not asked for, or may have given
/// up waiting for.
#[derive(Debug)]
pub enum Elsewhere {
    /// A session was opened on this node, for whoever asked.
    Opened {
        /// Whose.
        client: String,
        /// Names the opening.
        epoch: u64,
    },
    /// A session was opened on another node: its connection here is over [MQTT-3.1.4-3].
    Moved {
        /// Whose.
        client: String,
        /// Names the opening.
        epoch: u64,
    },
    /// Sessions may have moved, ended or been opened unseen: a snapshot took the place of the metadata,
    /// or more was told than could be kept. What this shard does not have at all is found when its
    /// client returns, or at the next start.
    Replaced,
    /// The will of a session that lay elsewhere is due.
    Will(Box<StoredWill>),
}

impl Elsewhere {
    /// About how many bytes it takes.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Opened { client, .. } | Self::Moved { client, .. } => client.len(),
                Self::Replaced => 0,
                Self::Will(will) => size_of::<StoredWill>() + will.message.stored_bytes() as usize,
            }
    }
}

impl Shard {
    /// Brings a session back that the metadata has: before clients are accepted, or when its client
    /// moved here from another node. One that was connected when its node ended lost its connection
    /// now.
    pub fn restore(
        &mut self,
        client_id: &str,
        record: &SessionRecord,
        subscriptions: &[StoredSubscription],
        now_ms: u64,
    ) {
        let key = self.insert_session(client_id, record.expiry_interval_s);
        for stored in subscriptions {
            let Some(options) = SubscribeOptions::from_u8(stored.options) else { continue };
            // Nothing retained is owed again, and a refusal by a lower limit is final.
            let _ = self.subscribe(key, &stored.filter, options, stored.id);
        }
        self.set_generation(key, record.generation);
        let Some(durability) = self.durability.as_ref() else { return };
        let local_ms =
            |wall_ms: u64| wall_ms.saturating_sub(durability.wall_offset_ms).max(now_ms + 1);
        let entry = &mut self.sessions[key.0 as usize];
        entry.scans.clear();
        entry.epoch = record.epoch;
        entry.will = record.will.as_ref().map(|will| Box::new(will_of(will, entry.number)));
        if record.connected {
            let delay_ms = record.will.as_ref().map_or(0, |will| u64::from(will.delay_s) * 1000);
            entry.will_at_ms = entry.will.is_some().then_some(now_ms + delay_ms.max(1));
            entry.expires_at_ms = (record.expiry_interval_s != u32::MAX)
                .then(|| now_ms + u64::from(record.expiry_interval_s) * 1000);
            self.post_close(key);
        } else {
            entry.will_at_ms = record.will_at_ms.map(local_ms).filter(|_| entry.will.is_some());
            entry.expires_at_ms = record.expires_at_ms.map(local_ms);
        }
        self.arm_session(key);
    }

    /// Follows what the metadata tells.
    pub fn on_elsewhere(&mut self, event: &Elsewhere, now_ms: u64) {
        match event {
            Elsewhere::Will(will) => {
                let will = will_of(will, 0);
                self.publish_will(&will, now_ms);
            }
            Elsewhere::Opened { client, epoch } => {
                self.on_opened(client, *epoch, now_ms);
                return; // the usual one needs nothing
            }
            Elsewhere::Replaced => {
                if let Some(durability) = self.durability.as_mut() {
                    durability.openings.forget_untold();
                }
                for event in self.sessions_unlike_stored() {
                    self.on_elsewhere(&event, now_ms);
                }
            }
            Elsewhere::Moved { client, epoch } => {
                let Some(key) = self.find_session(client) else { return };
                let entry = &mut self.sessions[key.0 as usize];
                if entry.epoch == 0 || entry.epoch >= *epoch {
                    return;
                }
                entry.epoch = 0; // the other node's from now on: nothing is recorded for it here
                entry.will = None;
                let conn = entry.conn;
                self.record_ended(key);
                self.set_generation(key, 0);
                if let Some(conn) = conn {
                    self.take_over(conn, Parting::TakenOver, now_ms);
                }
                if let Some(key) = self.find_session(client) {
                    self.end_session(key, now_ms);
                }
            }
        }
        self.settle(now_ms);
    }

    /// The sessions that were opened again, or ended, according to the metadata.
    fn sessions_unlike_stored(&self) -> Vec<Elsewhere> {
        let Some(durability) = self.durability.as_ref() else { return Vec::new() };
        durability.handle.read(|view| {
            let durable = self.sessions.iter().filter(|(_, entry)| entry.epoch > 0);
            durable
                .filter_map(|(_, entry)| {
                    let client = entry.session.client_id.to_string();
                    match meta::state::session(view, &client_key(&client)) {
                        Ok(Some(record)) if record.epoch == entry.epoch => None,
                        Ok(Some(record)) if record.node == durability.handle.node() => {
                            Some(Elsewhere::Opened { client, epoch: record.epoch })
                        }
                        Ok(_) => Some(Elsewhere::Moved { client, epoch: u64::MAX }),
                        Err(error) => {
                            tracing::error!(%error, client, "cannot read a session");
                            None
                        }
                    }
                })
                .collect()
        })
    }

    /// Takes a session from the metadata that this shard does not have. `lost`: its connection is
    /// over, otherwise it is about to have one.
    pub(super) fn fetch_session(&mut self, client_id: &str, lost: bool, now_ms: u64) {
        let Some(durability) = self.durability.as_ref() else { return };
        let client = client_key(client_id);
        let found = durability.handle.read(|view| {
            let record = meta::state::session(view, &client)?;
            let mut subscriptions = Vec::new();
            meta::state::subscriptions(view, &client, |stored| {
                subscriptions.push(stored);
                ControlFlow::Continue(())
            })?;
            Ok::<_, meta::store::StoreError>((record, subscriptions))
        });
        match found {
            Ok((Some(record), subscriptions)) => {
                let record = SessionRecord { connected: lost, will: None, ..record };
                self.restore(client_id, &record, &subscriptions, now_ms);
            }
            Ok((None, _)) => {}
            Err(error) => tracing::error!(%error, client_id, "cannot read a session"),
        }
    }
}

pub(super) fn retain_command(draft: &Draft<'_>, wall_offset_ms: u64) -> Command {
    if draft.payload.is_empty() {
        return Command::Unretain { topic: draft.topic.into() }; // [MQTT-3.3.1-6]
    }
    Command::Retain(StoredMessage {
        topic: draft.topic.into(),
        properties: draft.properties.into(),
        payload: draft.payload.into(),
        qos: draft.qos as u8,
        expires_at_ms: draft.expires_at_ms.map(|at_ms| at_ms.get() + wall_offset_ms),
    })
}

/// The message of a stored one; `wall_offset_ms` as in [`Shard::set_wall_clock`].
pub fn message_of(
    stored: &StoredMessage,
    retain: bool,
    origin: u64,
    wall_offset_ms: u64,
) -> Message {
    Message::keep(&Draft {
        topic: &stored.topic,
        payload: &stored.payload,
        owner: None,
        properties: &stored.properties,
        qos: QoS::from_u8(stored.qos).unwrap_or(QoS::AtMostOnce),
        retain,
        // One whose time has come expires in the first millisecond.
        expires_at_ms: stored.expires_at_ms.map(|at_ms| {
            NonZeroU64::new(at_ms.saturating_sub(wall_offset_ms)).unwrap_or(NonZeroU64::MIN)
        }),
        origin,
    })
}

fn will_of(stored: &StoredWill, origin: u64) -> Will {
    Will {
        message: Arc::new(message_of(&stored.message, stored.retain, origin, 0)),
        delay_s: stored.delay_s,
        expiry_interval_s: stored.expiry_interval_s,
    }
}

pub(super) fn stored_will(will: &Will) -> StoredWill {
    let draft = will.message.draft();
    StoredWill {
        message: StoredMessage {
            topic: draft.topic.into(),
            properties: draft.properties.into(),
            payload: draft.payload.into(),
            qos: draft.qos as u8,
            expires_at_ms: None,
        },
        retain: draft.retain,
        delay_s: will.delay_s,
        expiry_interval_s: will.expiry_interval_s,
    }
}

pub(super) fn client_key(client_id: &str) -> ClientKey {
    ClientKey { tenant: DEFAULT_TENANT.into(), client_id: client_id.into() }
}
