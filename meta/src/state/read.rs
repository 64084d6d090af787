//! How a state is read. Whatever can be large is visited record by record, in the order of its keys,
//! and can be gone on with behind any record; nothing is loaded as a whole. A record that cannot be
//! read is [`StoreError::Damaged`], and named.

use std::ops::ControlFlow;

use serde::de::DeserializeOwned;

use super::keys::{self, Span};
use crate::codec;
use crate::record::{
    ClientKey, ConfigRecord, NodeId, NodeRecord, RuleRecord, SessionRecord, SlotRun, StoredMessage,
    StoredSubscription, TenantRecord, TenantTotals, Totals, UserRecord,
};
use crate::store::{Family, StoreError, View};

/// One session.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn session(view: &dyn View, client: &ClientKey) -> Result<Option<SessionRecord>, StoreError> {
    one(view, &keys::session(client))
}

/// The sessions behind `after` (`None`: all), ordered by tenant and client identifier.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn sessions(
    view: &dyn View,
    after: Option<&ClientKey>,
    mut visit: impl FnMut(ClientKey, SessionRecord) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let span = behind(keys::SESSIONS, after.map(keys::session));
    each(view, &span, &mut |key, record| match keys::client_of(key) {
        Some(client) => Ok(visit(client, record)),
        None => Err(StoreError::Damaged(format!("{}: names no client", keys::describe(key)))),
    })
}

/// The subscriptions of one session, ordered by filter.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn subscriptions(
    view: &dyn View,
    client: &ClientKey,
    mut visit: impl FnMut(StoredSubscription) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    each(view, &keys::subscriptions(client), &mut |_, record| Ok(visit(record)))
}

/// The retained message of a topic, expired or not.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn retained_message(view: &dyn View, topic: &str) -> Result<Option<StoredMessage>, StoreError> {
    one(view, &keys::retained(topic))
}

/// The retained messages of the topics behind `after` (`None`: all), ordered by topic, expired ones
/// included.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn retained(
    view: &dyn View,
    after: Option<&str>,
    mut visit: impl FnMut(StoredMessage) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let span = behind(keys::RETAINED, after.map(keys::retained));
    each(view, &span, &mut |_, record| Ok(visit(record)))
}

/// One user.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn user(view: &dyn View, name: &str) -> Result<Option<UserRecord>, StoreError> {
    one(view, &keys::user(name))
}

/// The users behind `after` (`None`: all), ordered by name.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn users(
    view: &dyn View,
    after: Option<&str>,
    mut visit: impl FnMut(UserRecord) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    each(view, &behind(keys::USERS, after.map(keys::user)), &mut |_, record| Ok(visit(record)))
}

/// All access rules, in the order in which they are tried.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn rules(
    view: &dyn View,
    mut visit: impl FnMut(RuleRecord) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    each(view, &keys::table(keys::RULES), &mut |_, record| Ok(visit(record)))
}

/// One tenant.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn tenant(view: &dyn View, name: &str) -> Result<Option<TenantRecord>, StoreError> {
    one(view, &keys::tenant(name))
}

/// All tenants that have a record, ordered by name.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn tenants(
    view: &dyn View,
    mut visit: impl FnMut(TenantRecord) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    each(view, &keys::table(keys::TENANTS), &mut |_, record| Ok(visit(record)))
}

/// What is counted for a tenant, whether it has a record or not.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn tenant_totals(view: &dyn View, name: &str) -> Result<TenantTotals, StoreError> {
    Ok(one(view, &keys::tenant_totals(name))?.unwrap_or_default())
}

/// One node.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn node(view: &dyn View, id: NodeId) -> Result<Option<NodeRecord>, StoreError> {
    one(view, &keys::node(id))
}

/// All nodes, ordered by number.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn nodes(
    view: &dyn View,
    mut visit: impl FnMut(NodeRecord) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    each(view, &keys::table(keys::NODES), &mut |_, record| Ok(visit(record)))
}

/// The slot table as runs that do not overlap, in order; slots in none of them have no node.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn slots(
    view: &dyn View,
    mut visit: impl FnMut(SlotRun) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    each(view, &keys::table(keys::SLOT_RUNS), &mut |_, record| Ok(visit(record)))
}

/// One key of the cluster configuration.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn config(view: &dyn View, key: &str) -> Result<Option<ConfigRecord>, StoreError> {
    one(view, &keys::config(key))
}

/// The cluster configuration behind the key `after` (`None`: all), ordered by key.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn configs(
    view: &dyn View,
    after: Option<&str>,
    mut visit: impl FnMut(&str, ConfigRecord) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let span = behind(keys::CONFIG, after.map(keys::config));
    each(view, &span, &mut |key, record| match keys::name_of(key) {
        Some(name) => Ok(visit(name, record)),
        None => Err(StoreError::Damaged(format!("{}: is no text", keys::describe(key)))),
    })
}

/// What the state holds in all.
///
/// # Errors
/// As the store says; also when a record cannot be read.
pub fn totals(view: &dyn View) -> Result<Totals, StoreError> {
    Ok(one(view, &keys::totals())?.unwrap_or_default())
}

/// Reads the record of a key, or says which one cannot be read.
pub(super) fn record<T: DeserializeOwned>(key: &[u8], bytes: &[u8]) -> Result<T, StoreError> {
    codec::decode(bytes).map_err(|error| match error {
        StoreError::Damaged(reason) => {
            StoreError::Damaged(format!("{}: {reason}", keys::describe(key)))
        }
        other => other,
    })
}

/// Whether to go on.
type Visited = Result<ControlFlow<()>, StoreError>;

/// Visits the records of a range of keys.
pub(super) fn each<T: DeserializeOwned>(
    view: &dyn View,
    span: &Span,
    visit: &mut dyn FnMut(&[u8], T) -> Visited,
) -> Result<(), StoreError> {
    let mut failed = None;
    view.scan(
        Family::State,
        &span.from,
        Some(&span.to),
        &mut |key, bytes| match record(key, bytes).and_then(|record| visit(key, record)) {
            Ok(flow) => flow,
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        },
    )?;
    failed.map_or(Ok(()), Err)
}

fn one<T: DeserializeOwned>(view: &dyn View, key: &[u8]) -> Result<Option<T>, StoreError> {
    view.get(Family::State, key)?.map(|bytes| record(key, &bytes)).transpose()
}

fn behind(table: u8, after: Option<Vec<u8>>) -> Span {
    let span = keys::table(table);
    match after {
        Some(key) => span.after(&key),
        None => span,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::state::samples;
    use crate::state::testing::MapView;

    #[test]
    fn visits_go_on_behind_any_record_and_stop_when_told() {
        let mut state = MapView::default();
        for (index, topic) in (1..).zip(["a", "a/b", "a\u{1}", "b"]) {
            state.run(index, Command::Retain(samples::message(topic)));
        }
        let topics = |after: Option<&str>, most: usize| {
            let mut topics = Vec::new();
            retained(&state, after, |message| {
                topics.push(message.topic);
                if topics.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .expect("reads");
            topics
        };
        assert_eq!(topics(None, 9), ["a", "a\u{1}", "a/b", "b"]);
        assert_eq!(topics(Some("a"), 9), ["a\u{1}", "a/b", "b"]);
        assert_eq!(topics(Some("a"), 2), ["a\u{1}", "a/b"]);
        assert_eq!(topics(Some("a/a"), 9), ["a/b", "b"]);
        assert!(topics(Some("b"), 9).is_empty());
    }

    #[test]
    fn a_damaged_record_is_named() {
        let key = keys::retained("a/b");
        let state = MapView::of(&[(key.as_slice(), &[9, 9])]);
        let error = retained_message(&state, "a/b").expect_err("damaged").to_string();
        assert!(
            error.contains("retained message of a/b") && error.contains("version 9"),
            "{error}"
        );
        let error = retained(&state, None, |_| ControlFlow::Continue(())).expect_err("damaged");
        assert!(matches!(error, StoreError::Damaged(_)));
    }
}
