//! Records and commands for tests: fixed ones, and strategies for any.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::testing::{MapView, client};
use crate::command::{CloseSession, Command, OpenSession};
use crate::record::{
    ClientKey, ConfigRecord, NodeId, NodeRecord, RuleRecord, SLOTS, SessionRecord, SlotRun, Slots,
    StoredMessage, StoredSubscription, StoredWill, TenantRecord, TenantTotals, Totals, UserRecord,
};

pub fn message(topic: &str) -> StoredMessage {
    StoredMessage {
        topic: topic.into(),
        properties: vec![1, 1],
        payload: b"p".to_vec(),
        qos: 1,
        expires_at_ms: None,
    }
}

pub fn will(delay_s: u32) -> StoredWill {
    StoredWill { message: message("will"), retain: true, delay_s, expiry_interval_s: Some(9) }
}

pub fn subscription(filter: &str) -> StoredSubscription {
    StoredSubscription { filter: filter.into(), options: 0x2d, id: 300 }
}

pub fn user() -> UserRecord {
    UserRecord { name: "u".into(), tenant: "t".into(), credentials: "c".into() }
}

pub fn rule(id: u32) -> RuleRecord {
    RuleRecord {
        id,
        allow: true,
        user: Some("u".into()),
        publish: true,
        subscribe: false,
        filter: "a/#".into(),
    }
}

pub fn node(id: NodeId) -> NodeRecord {
    NodeRecord { id, cluster_address: "h:1".into(), shards: 2 }
}

pub fn open(client: &ClientKey) -> OpenSession {
    OpenSession {
        client: client.clone(),
        clean_start: false,
        node: 1,
        expiry_interval_s: 60,
        will: None,
        now_ms: 1_000,
    }
}

pub fn close(client: &ClientKey, epoch: u64) -> CloseSession {
    CloseSession {
        client: client.clone(),
        epoch,
        expiry_interval_s: 60,
        expires_at_ms: Some(61_000),
        will_at_ms: None,
    }
}

/// A state that has at least one record in each table.
pub fn state() -> MapView {
    let mut state = MapView::default();
    let of = |tenant: &str, id: &str| ClientKey { tenant: tenant.into(), client_id: id.into() };
    state.run(1, Command::PutTenant(TenantRecord { name: "t".into(), max_sessions: 9 }));
    let clients = [client("a"), client("b"), of("t", "a"), of("t", "c")];
    for (index, client) in (2..).zip(&clients) {
        let will = Some(will(5));
        state.run(index, Command::OpenSession(OpenSession { will, ..open(client) }));
        let subscriptions = ["x", "y/#"].map(subscription).to_vec();
        let subscribe = Command::Subscribe { client: client.clone(), epoch: index, subscriptions };
        state.run(index, subscribe);
    }
    let will_at_ms = Some(2_000);
    let close = CloseSession { will_at_ms, ..close(&clients[1], 3) };
    state.run(6, Command::CloseSession(close));
    for topic in ["a", "a/b"] {
        state.run(7, Command::Retain(message(topic)));
    }
    state.run(8, Command::PutUser(user()));
    state.run(9, Command::PutRule(rule(1)));
    state.run(10, Command::PutNode(node(1)));
    let slots = Slots { first: 0, last: SLOTS - 1 };
    state.run(11, Command::AssignSlots { slots, node: 1 });
    let (key, expected, value) = ("k".into(), None, Some(vec![1]));
    state.run(12, Command::SetConfig { key, expected, value });
    state
}

/// Any text: what is stored is text, be it sensible or not.
fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..6).prop_map(String::from_iter)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

pub fn any_message() -> impl Strategy<Value = StoredMessage> {
    (text(), bytes(), bytes(), any::<u8>(), any::<Option<u64>>()).prop_map(
        |(topic, properties, payload, qos, expires_at_ms)| StoredMessage {
            topic,
            properties,
            payload,
            qos,
            expires_at_ms,
        },
    )
}

pub fn any_will() -> impl Strategy<Value = StoredWill> {
    (any_message(), any::<bool>(), any::<u32>(), any::<Option<u32>>()).prop_map(
        |(message, retain, delay_s, expiry_interval_s)| StoredWill {
            message,
            retain,
            delay_s,
            expiry_interval_s,
        },
    )
}

pub fn any_session() -> impl Strategy<Value = SessionRecord> {
    let numbers = (any::<[u64; 3]>(), any::<[u32; 2]>(), any::<[Option<u64>; 2]>());
    (numbers, any::<bool>(), of(any_will())).prop_map(
        |(([generation, epoch, node], [expiry, subscriptions], [at, will_at]), connected, will)| {
            SessionRecord {
                generation,
                epoch,
                node,
                connected,
                expiry_interval_s: expiry,
                expires_at_ms: at,
                will,
                will_at_ms: will_at,
                subscriptions,
            }
        },
    )
}

pub fn any_subscription() -> impl Strategy<Value = StoredSubscription> {
    (text(), any::<u8>(), any::<u32>()).prop_map(|(filter, options, id)| StoredSubscription {
        filter,
        options,
        id,
    })
}

pub fn any_user() -> impl Strategy<Value = UserRecord> {
    (text(), text(), text()).prop_map(|(name, tenant, credentials)| UserRecord {
        name,
        tenant,
        credentials,
    })
}

pub fn any_rule() -> impl Strategy<Value = RuleRecord> {
    (any::<u32>(), any::<[bool; 3]>(), of(text()), text()).prop_map(
        |(id, [allow, publish, subscribe], user, filter)| RuleRecord {
            id,
            allow,
            user,
            publish,
            subscribe,
            filter,
        },
    )
}

pub fn any_tenant() -> impl Strategy<Value = TenantRecord> {
    (text(), any::<u64>()).prop_map(|(name, max_sessions)| TenantRecord { name, max_sessions })
}

pub fn any_node() -> impl Strategy<Value = NodeRecord> {
    (any::<u64>(), text(), any::<u16>()).prop_map(|(id, cluster_address, shards)| NodeRecord {
        id,
        cluster_address,
        shards,
    })
}

pub fn any_slot_run() -> impl Strategy<Value = SlotRun> {
    (any::<[u16; 2]>(), any::<u64>())
        .prop_map(|([first, last], node)| SlotRun { slots: Slots { first, last }, node })
}

pub fn any_config() -> impl Strategy<Value = ConfigRecord> {
    (any::<u64>(), bytes()).prop_map(|(version, value)| ConfigRecord { version, value })
}

pub fn any_totals() -> impl Strategy<Value = Totals> {
    any::<[u64; 4]>().prop_map(|[sessions, subscriptions, retained, retained_bytes]| Totals {
        sessions,
        subscriptions,
        retained,
        retained_bytes,
    })
}

pub fn any_tenant_totals() -> impl Strategy<Value = TenantTotals> {
    any::<u64>().prop_map(|sessions| TenantTotals { sessions })
}
