//! Where each record lies within [`Family::State`](crate::store::Family::State).
//!
//! A key is a table byte and then the parts of the record's name, separated by NUL. Names hold no
//! NUL, so that keys are ordered as their names are, part by part, and all that belongs to one
//! client lies together. Numbers are big-endian. The layout is stored: a change needs a new version
//! of the store's format.

use crate::record::ClientKey;

/// Records of the raft side: what was applied last, and the membership. No command touches them.
pub const RAFT: u8 = 0x00;
/// Sessions: tenant, client identifier.
pub const SESSIONS: u8 = 0x01;
/// Subscriptions: tenant, client identifier, filter.
pub const SUBSCRIPTIONS: u8 = 0x02;
/// Retained messages: topic.
pub const RETAINED: u8 = 0x03;
/// Users: name.
pub const USERS: u8 = 0x04;
/// Access rules: number, 4 bytes.
pub const RULES: u8 = 0x05;
/// Tenants: name.
pub const TENANTS: u8 = 0x06;
/// Nodes: number, 8 bytes.
pub const NODES: u8 = 0x07;
/// Runs of slots that one node has: the first slot, 2 bytes.
pub const SLOT_RUNS: u8 = 0x08;
/// Cluster configuration: key.
pub const CONFIG: u8 = 0x09;
/// What is counted for each tenant: name.
pub const TENANT_TOTALS: u8 = 0x0a;
/// What is counted in all: one record without a name.
pub const TOTALS: u8 = 0x0b;
/// The last stamp given out: one record without a name.
pub const STAMP: u8 = 0x0c;

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first, included.
    pub from: Vec<u8>,
    /// The end, excluded.
    pub to: Vec<u8>,
}

impl Span {
    /// The part of it that lies behind `key`.
    #[must_use]
    pub fn after(mut self, key: &[u8]) -> Self {
        // No key lies between a key and the same one with a NUL behind it.
        self.from = key.to_vec();
        self.from.push(0);
        self
    }
}

/// A record of the raft side.
pub fn raft(name: &str) -> Vec<u8> {
    join(RAFT, &[name])
}

/// A session.
pub fn session(client: &ClientKey) -> Vec<u8> {
    join(SESSIONS, &[&client.tenant, &client.client_id])
}

/// A subscription.
pub fn subscription(client: &ClientKey, filter: &str) -> Vec<u8> {
    join(SUBSCRIPTIONS, &[&client.tenant, &client.client_id, filter])
}

/// All subscriptions of a client.
pub fn subscriptions(client: &ClientKey) -> Span {
    let from = subscription(client, "");
    let mut to = from.clone();
    if let Some(separator) = to.last_mut() {
        *separator = 1;
    }
    Span { from, to }
}

/// A retained message.
pub fn retained(topic: &str) -> Vec<u8> {
    join(RETAINED, &[topic])
}

/// A user.
pub fn user(name: &str) -> Vec<u8> {
    join(USERS, &[name])
}

/// An access rule.
pub fn rule(id: u32) -> Vec<u8> {
    number(RULES, &id.to_be_bytes())
}

/// A tenant.
pub fn tenant(name: &str) -> Vec<u8> {
    join(TENANTS, &[name])
}

/// What is counted for a tenant.
pub fn tenant_totals(name: &str) -> Vec<u8> {
    join(TENANT_TOTALS, &[name])
}

/// A node.
pub fn node(id: u64) -> Vec<u8> {
    number(NODES, &id.to_be_bytes())
}

/// The run of slots that begins with `first`.
pub fn slot_run(first: u16) -> Vec<u8> {
    number(SLOT_RUNS, &first.to_be_bytes())
}

/// A configuration key.
pub fn config(key: &str) -> Vec<u8> {
    join(CONFIG, &[key])
}

/// What is counted in all.
pub fn totals() -> Vec<u8> {
    vec![TOTALS]
}

/// The last stamp.
pub fn stamp() -> Vec<u8> {
    vec![STAMP]
}

/// All keys of a table.
pub fn table(table: u8) -> Span {
    Span { from: vec![table], to: vec![table.saturating_add(1)] }
}

/// Whose session, or subscription, a key names; `None` when it names neither.
pub fn client_of(key: &[u8]) -> Option<ClientKey> {
    let (&table, name) = key.split_first()?;
    if table != SESSIONS && table != SUBSCRIPTIONS {
        return None;
    }
    let mut parts = std::str::from_utf8(name).ok()?.split('\0');
    Some(ClientKey { tenant: parts.next()?.to_owned(), client_id: parts.next()?.to_owned() })
}

/// The name of a record that has one part only; `None` when it is no text.
pub fn name_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(1..)?).ok()
}

/// A key for people: which table, and what in it.
pub fn describe(key: &[u8]) -> String {
    let Some((&table, name)) = key.split_first() else {
        return "an empty key".to_owned();
    };
    let text = || String::from_utf8_lossy(name).replace('\0', " / ");
    let number = || name.iter().fold(0_u64, |number, &byte| (number << 8) | u64::from(byte));
    match table {
        RAFT => format!("raft record {}", text()),
        SESSIONS => format!("session of {}", text()),
        SUBSCRIPTIONS => format!("subscription {}", text()),
        RETAINED => format!("retained message of {}", text()),
        USERS => format!("user {}", text()),
        RULES => format!("rule {}", number()),
        TENANTS => format!("tenant {}", text()),
        NODES => format!("node {}", number()),
        SLOT_RUNS => format!("slots from {}", number()),
        CONFIG => format!("configuration key {}", text()),
        TENANT_TOTALS => format!("totals of tenant {}", text()),
        TOTALS => "totals".to_owned(),
        STAMP => "last stamp".to_owned(),
        _ => format!("a key of the unknown table {table}"),
    }
}

fn join(table: u8, parts: &[&str]) -> Vec<u8> {
    let length = parts.iter().map(|part| part.len() + 1).sum::<usize>();
    let mut key = Vec::with_capacity(length);
    key.push(table);
    for (place, part) in parts.iter().enumerate() {
        if place > 0 {
            key.push(0);
        }
        key.extend_from_slice(part.as_bytes());
    }
    key
}

fn number(table: u8, bytes: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + bytes.len());
    key.push(table);
    key.extend_from_slice(bytes);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(tenant: &str, client_id: &str) -> ClientKey {
        ClientKey { tenant: tenant.into(), client_id: client_id.into() }
    }

    #[test]
    fn the_layout_stays() {
        assert_eq!(session(&client("", "c")), b"\x01\0c");
        assert_eq!(session(&client("t", "c")), b"\x01t\0c");
        assert_eq!(subscription(&client("t", "c"), "a/#"), b"\x02t\0c\0a/#");
        assert_eq!(retained("a/b"), b"\x03a/b");
        assert_eq!(user("u"), b"\x04u");
        assert_eq!(rule(258), b"\x05\0\0\x01\x02");
        assert_eq!(tenant("t"), b"\x06t");
        assert_eq!(node(3), b"\x07\0\0\0\0\0\0\0\x03");
        assert_eq!(slot_run(258), b"\x08\x01\x02");
        assert_eq!(config("k"), b"\x09k");
        assert_eq!(tenant_totals("t"), b"\x0at");
        assert_eq!(totals(), b"\x0b");
        assert_eq!(stamp(), b"\x0c");
        assert_eq!(raft("applied"), b"\0applied");
    }

    #[test]
    fn keys_are_ordered_as_clients_are() {
        let mut clients = Vec::new();
        for tenant in ["", "a", "ab", "b", "\u{1}"] {
            for id in ["a", "aa", "b", "\u{1}", "\u{10ffff}"] {
                clients.push(client(tenant, id));
            }
        }
        clients.sort();
        let keys: Vec<_> = clients.iter().map(session).collect();
        assert!(keys.is_sorted());
        for client in &clients {
            assert_eq!(client_of(&session(client)).as_ref(), Some(client));
            assert_eq!(client_of(&subscription(client, "f")).as_ref(), Some(client));
        }
    }

    #[test]
    fn a_clients_span_holds_its_own_only() {
        let span = subscriptions(&client("t", "c"));
        let inside = |key: Vec<u8>| span.from <= key && key < span.to;
        assert!(inside(subscription(&client("t", "c"), "a")));
        assert!(inside(subscription(&client("t", "c"), "\u{10ffff}")));
        assert!(!inside(subscription(&client("t", "c1"), "a")));
        assert!(!inside(subscription(&client("t", "b"), "a")));
        assert!(!inside(subscription(&client("t", "c\u{1}"), "a")));
    }

    #[test]
    fn keys_are_told_in_words() {
        assert_eq!(describe(&session(&client("t", "c"))), "session of t / c");
        assert_eq!(describe(&rule(7)), "rule 7");
        assert_eq!(describe(&[]), "an empty key");
        assert!(describe(&[200, 1]).contains("unknown table 200"));
    }
}
