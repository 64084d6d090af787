//! SUBSCRIBE, UNSUBSCRIBE, and the retained messages that a new subscription is owed.

use std::collections::VecDeque;
use std::sync::Arc;

use meta::record::StoredSubscription;
use mqtt::protocol::Violation;
use mqtt::routing::{ScanCursor, ShareGroup};
use mqtt::session::{Delivery, Message, Owed, Queued, Subscription};
use mqtt::topic::{FilterError, parse_filter_within};
use mqtt::wire::{
    Packet, Properties, QoS, ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeOptions,
    Unsubscribe,
};
use smallvec::SmallVec;

use super::held::Held;
use super::send::send_qos0;
use super::subscribers::Subscriber;
use super::{ConnKey, SessionKey, Shard, mark_dirty};

/// Topics looked at per page of a retained scan: bounds how long the store is locked.
const SCAN_PAGE: usize = 64;
/// Pages per turn, so that a scan of millions of topics lets others run.
const PAGES_PER_TURN: usize = 16;

/// Share groups of one filter on one shard; further ones are refused (0x97), since each change of
/// one costs as much as all of the filter's.
const MAX_GROUPS_PER_FILTER: usize = 1_000;

/// Retained messages owed to one new subscription.
#[derive(Debug)]
pub(super) struct Scan {
    cursor: ScanCursor,
    subscriber: Subscriber,
    /// Found and not sent yet: at most one page.
    found: VecDeque<Arc<Message>>,
}

impl Shard {
    pub(super) fn on_subscribe(
        &mut self,
        key: ConnKey,
        subscribe: &Subscribe<'_>,
        now_ms: u64,
    ) -> Result<(), Violation> {
        let Some(conn) = self.conn(key) else { return Ok(()) };
        let session = conn.session;
        let id = subscribe.properties.subscription_ids().next().unwrap_or(0);
        let mut codes: SmallVec<[u8; 8]> = SmallVec::new();
        let mut granted = Vec::new();
        for (raw, options) in subscribe.filters.iter() {
            let code = self.subscribe(session, raw, options, id)?;
            codes.push(code as u8);
            if self.is_durable() && !code.is_error() {
                granted.push(StoredSubscription {
                    filter: raw.into(),
                    options: options.to_u8(),
                    id,
                });
            }
        }
        // In effect on this shard and, through the routes, for publishers of all shards: from here
        // on SUBACK may be seen.
        if self.owe_suback(session, subscribe.packet_id, &codes, granted) {
            return Ok(());
        }
        let suback =
            SubAck { packet_id: subscribe.packet_id, properties: Properties::EMPTY, codes: &codes };
        self.answer(key, &Packet::SubAck(suback), now_ms);
        self.pump(session, now_ms);
        Ok(())
    }

    pub(super) fn on_unsubscribe(
        &mut self,
        key: ConnKey,
        unsubscribe: &Unsubscribe<'_>,
        now_ms: u64,
    ) {
        let Some(conn) = self.conn(key) else { return };
        let session = conn.session;
        let mut codes: SmallVec<[u8; 8]> = SmallVec::new();
        let mut removed = Vec::new();
        for (raw, _) in unsubscribe.filters.iter() {
            let reason = if self.drop_subscription(session, raw, now_ms) {
                if self.is_durable() {
                    removed.push(raw.to_owned());
                }
                ReasonCode::Success
            } else if parse_filter_within(raw, &self.topic_limits).is_err() {
                ReasonCode::TopicFilterInvalid
            } else {
                ReasonCode::NoSubscriptionExisted
            };
            codes.push(reason as u8);
        }
        if self.owe_unsuback(session, unsubscribe.packet_id, &codes, removed) {
            return;
        }
        let unsuback = SubAck {
            packet_id: unsubscribe.packet_id,
            properties: Properties::EMPTY,
            codes: &codes,
        };
        self.answer(key, &Packet::UnsubAck(unsuback), now_ms);
    }

    /// Removes one subscription of a session; false when there is none.
    pub(super) fn drop_subscription(
        &mut self,
        session: SessionKey,
        raw: &str,
        now_ms: u64,
    ) -> bool {
        let Some(entry) = self.sessions.get_mut(session.0 as usize) else { return false };
        if entry.session.unsubscribe(raw).is_none() {
            return false;
        }
        entry.scans.remove(raw);
        entry.subscription_bytes -= cost_bytes(raw);
        entry.shared -= u32::from(raw.starts_with("$share/"));
        let owed = self.take_queued_of(session, raw);
        self.forget_subscription(session, raw);
        let generation = self.sessions.get(session.0 as usize).map_or(0, |entry| entry.generation);
        self.hand_on(owed, generation, now_ms);
        true
    }

    /// One filter of a SUBSCRIBE: its SUBACK code, or the violation that ends the connection.
    pub(super) fn subscribe(
        &mut self,
        session: SessionKey,
        raw: &str,
        options: SubscribeOptions,
        id: u32,
    ) -> Result<ReasonCode, Violation> {
        let parsed = match parse_filter_within(raw, &self.topic_limits) {
            Ok(parsed) => parsed,
            Err(FilterError::TooLong | FilterError::TooDeep) => {
                return Ok(ReasonCode::QuotaExceeded);
            }
            Err(_) => return Ok(ReasonCode::TopicFilterInvalid),
        };
        let share = parsed.share.map(|name| name.as_str());
        if share.is_some() && options.no_local {
            // [MQTT-3.8.3-4]
            return Err(Violation::new(
                ReasonCode::ProtocolError,
                "no-local on a shared subscription",
            ));
        }
        let Some(entry) = self.sessions.get_mut(session.0 as usize) else {
            return Ok(ReasonCode::UnspecifiedError);
        };
        let known = entry.session.subscriptions.get(raw).is_some();
        let cost_bytes = cost_bytes(raw);
        let groups = self.subscriptions.get(parsed.filter).map_or(0, |entry| entry.groups.len());
        if !known
            && (entry.session.subscriptions.len() >= self.limits.max_subscriptions
                || entry.subscription_bytes + cost_bytes > self.limits.max_subscription_bytes
                || (share.is_some() && groups >= MAX_GROUPS_PER_FILTER))
        {
            return Ok(ReasonCode::QuotaExceeded);
        }
        if !known {
            entry.subscription_bytes += cost_bytes;
            entry.shared += u32::from(share.is_some());
        }
        let replaced = entry.session.subscribe(Subscription { filter: raw.into(), options, id });
        let subscriber = Subscriber::new(session, &options, id);
        if self.subscriptions.entry(parsed.filter).add(share, raw, subscriber) {
            self.stats.subscriptions.add(1);
            self.stats.shared_subscriptions.add(share.is_some().into());
            match share {
                None => self.update_route(parsed.filter, None),
                Some(_) => self.count_connected(raw, true),
            }
        }
        let wants_retained = share.is_none() // (4.8.2)
            && match options.retain_handling {
                RetainHandling::Always => true, // [MQTT-3.3.1-9]
                RetainHandling::IfNew => replaced.is_none(), // [MQTT-3.3.1-10]
                RetainHandling::Never => false, // [MQTT-3.3.1-11]
            };
        if wants_retained {
            let entry = &mut self.sessions[session.0 as usize];
            // The same filter again starts over instead of owing everything twice.
            let (cursor, found) = (ScanCursor::new(), VecDeque::new());
            entry.scans.insert(raw.into(), Scan { cursor, subscriber, found });
        }
        Ok(match options.qos {
            QoS::AtMostOnce => ReasonCode::Success,
            QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
            QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
        })
    }

    /// What waits in a session's queue for a shared subscription that it leaves.
    fn take_queued_of(&mut self, session: SessionKey, raw: &str) -> Vec<Owed> {
        let entry = self.sessions.get_mut(session.0 as usize);
        let Some(outgoing) = entry.and_then(|entry| entry.session.outgoing.as_mut()) else {
            return Vec::new();
        };
        let before = Held::of(outgoing, &self.limits);
        let owed = outgoing.take_queued_of(raw);
        before.became(Held::of(outgoing, &self.limits), &self.stats);
        owed
    }

    /// Tells the node's routes what this shard has under a filter now.
    pub(super) fn update_route(&self, filter: &str, share: Option<&str>) {
        if self.fabric.shards() == 1 {
            return; // nobody asks them
        }
        let entry = self.subscriptions.get(filter);
        match share {
            None if entry.is_some_and(|entry| !entry.plain.is_empty()) => {
                self.fabric.routes.add(filter, self.id);
            }
            None => {
                self.fabric.routes.remove(filter, self.id);
            }
            Some(name) => {
                let group = entry.and_then(|entry| entry.group(name));
                let members = match group {
                    None => 0,
                    Some(group) if group.connected == 0 => ShareGroup::ABSENT,
                    Some(group) => group.connected,
                };
                self.fabric.routes.set_group(filter, name, self.id, members);
            }
        }
    }

    /// Sends the next retained messages that the session is owed, as long as its socket keeps up.
    pub(super) fn continue_scans(&mut self, key: SessionKey, now_ms: u64) {
        let mut pages = 0;
        for _ in 0..PAGES_PER_TURN * SCAN_PAGE {
            let Some(entry) = self.sessions.get_mut(key.0 as usize) else { return };
            let Some(conn_key) = entry.conn else { return };
            let Some(conn) = self.conns.get(conn_key.0 as usize) else { return };
            let queued = entry.session.outgoing.as_ref().map_or(0, |outgoing| outgoing.queued());
            if conn.outbox.len_bytes() > self.limits.max_outbox_bytes / 2 || queued > 0 {
                return; // goes on when something was written or acknowledged
            }
            let Some(mut first) = entry.scans.first_entry() else { return };
            let filter = first.key().clone();
            let scan = first.get_mut();
            let subscriber = scan.subscriber;
            if let Some(message) = scan.found.pop_front() {
                self.deliver_retained(key, conn_key, subscriber, message, now_ms);
            } else if scan.cursor.is_done() {
                first.remove();
            } else {
                pages += 1;
                if pages > PAGES_PER_TURN {
                    break;
                }
                let found = &mut scan.found;
                let store = self.fabric.retained.lock();
                store.scan(&filter, &mut scan.cursor, SCAN_PAGE, now_ms, |message| {
                    found.push_back(message.clone());
                });
            }
        }
        // More to look at: come back after the writers had their turn.
        self.scanned = true;
        self.mark_dirty_for_scan(key);
    }

    fn mark_dirty_for_scan(&mut self, key: SessionKey) {
        let conn = self.sessions.get(key.0 as usize).and_then(|entry| entry.conn);
        if let Some(conn) = conn {
            self.mark_dirty(conn);
        }
    }

    fn deliver_retained(
        &mut self,
        key: SessionKey,
        conn_key: ConnKey,
        to: Subscriber,
        message: Arc<Message>,
        now_ms: u64,
    ) {
        let ids: SmallVec<[u32; 2]> = (to.id > 0).then_some(to.id).into_iter().collect();
        let qos = message.qos().min(to.qos());
        if qos > QoS::AtMostOnce {
            // Sent because of a subscription: the retain flag is set (3.3.1.3).
            let delivery = Delivery { qos, retain: true, subscription_ids: ids, share: None };
            self.deliver_queued(key, Queued::new(message, delivery), now_ms);
            return;
        }
        let Some(conn) = self.conns.get_mut(conn_key.0 as usize) else { return };
        let max_outbox = self.limits.max_outbox_bytes;
        let draft = message.draft();
        let sent = send_qos0(
            conn,
            &draft,
            true,
            &ids,
            None,
            now_ms,
            max_outbox,
            &mut self.blocks,
            &self.stats,
        );
        if sent {
            mark_dirty(&mut self.dirty, conn_key, conn);
        }
    }
}

/// About what a subscription takes in this shard's and the node's structures: the filter in each
/// of them, and a branch per level where there are wildcards.
fn cost_bytes(raw: &str) -> usize {
    let levels = 1 + raw.bytes().filter(|byte| *byte == b'/').count();
    128 + 4 * raw.len() + 128 * levels
}
