//! Durable sessions with their subscriptions and wills.
//!
//! A will leaves the state exactly once: by a [`Command::TakeWill`](crate::command::Command::TakeWill)
//! that is answered Done, by an [`Effect::WillDue`], or unpublished, because its connection was
//! closed in order or the client was back in time.

use std::ops::ControlFlow;

use super::{Outcome, valid};
use crate::command::{CloseSession, OpenSession, Refusal, Reply};
use crate::record::{
    ClientKey, NodeId, SessionRecord, StoredSubscription, TenantRecord, TenantTotals, Totals,
};
use crate::state::{Effect, Tx, keys, read};
use crate::store::StoreError;

pub(super) fn open(
    tx: &mut Tx<'_>,
    index: u64,
    open: &OpenSession,
    effects: &mut Vec<Effect>,
) -> Outcome {
    let client = &open.client;
    valid::client(client)?;
    if let Some(will) = &open.will {
        valid::will(will)?;
    }
    if open.expiry_interval_s == 0 {
        valid::invalid("a session that ends with its connection is not durable".into())?;
    }
    let found: Option<SessionRecord> = tx.load(&keys::session(client))?;
    if found.is_none() {
        // Who replaces a session of his own takes no room from anybody.
        admit(tx, &client.tenant)?;
    }
    let previous = found.as_ref().map(|record| record.node);
    let epoch = tx.stamp(index)?;
    let resumed = match found {
        // [MQTT-3.1.2-4]; a session whose time is over is gone, whether it was swept or not.
        Some(record) if open.clean_start || is_over(&record, open.now_ms) => {
            discard(tx, client, record, open.node, effects)?;
            None
        }
        Some(mut record) => {
            let due = will_is_due(&record, open.now_ms);
            if let Some(will) = record.will.take().filter(|_| due) {
                effects.push(Effect::WillDue { client: client.clone(), node: open.node, will });
            }
            Some(record)
        }
        None => None,
    };
    if resumed.is_none() {
        count(tx, |totals| totals.sessions += 1)?;
        count_tenant(tx, &client.tenant, |totals| totals.sessions += 1)?;
    }
    let record = SessionRecord {
        generation: resumed.as_ref().map_or(epoch, |record| record.generation),
        epoch,
        node: open.node,
        connected: true,
        expiry_interval_s: open.expiry_interval_s,
        expires_at_ms: None,
        will: open.will.clone(),
        will_at_ms: None,
        subscriptions: resumed.as_ref().map_or(0, |record| record.subscriptions),
    };
    let generation = record.generation;
    tx.save(keys::session(client), &record);
    effects.push(Effect::SessionOpened {
        client: client.clone(),
        node: open.node,
        epoch,
        previous,
    });
    Ok(Reply::Session { epoch, generation, present: resumed.is_some() })
}

pub(super) fn close(tx: &mut Tx<'_>, close: &CloseSession) -> Outcome {
    let mut record = current(tx, &close.client, close.epoch)?;
    record.connected = false;
    record.expiry_interval_s = close.expiry_interval_s;
    record.expires_at_ms = close.expires_at_ms;
    if close.will_at_ms.is_none() {
        record.will = None;
    }
    record.will_at_ms = close.will_at_ms.filter(|_| record.will.is_some());
    tx.save(keys::session(&close.client), &record);
    Ok(Reply::Done)
}

pub(super) fn end(
    tx: &mut Tx<'_>,
    client: &ClientKey,
    epoch: u64,
    node: NodeId,
    effects: &mut Vec<Effect>,
) -> Outcome {
    let record = current(tx, client, epoch)?;
    discard(tx, client, record, node, effects)?;
    Ok(Reply::Done)
}

pub(super) fn take_will(tx: &mut Tx<'_>, client: &ClientKey, epoch: u64) -> Outcome {
    let mut record = current(tx, client, epoch)?;
    if record.will_at_ms.take().is_none() {
        return Err(Refusal::NotFound.into());
    }
    record.will = None;
    tx.save(keys::session(client), &record);
    Ok(Reply::Done)
}

pub(super) fn subscribe(
    tx: &mut Tx<'_>,
    client: &ClientKey,
    epoch: u64,
    subscriptions: &[StoredSubscription],
) -> Outcome {
    subscriptions.iter().try_for_each(valid::subscription)?;
    let mut record = current(tx, client, epoch)?;
    let mut added = 0;
    for subscription in subscriptions {
        let key = keys::subscription(client, &subscription.filter);
        if tx.get(&key)?.is_none() {
            added += 1;
        }
        tx.save(key, subscription);
    }
    if added > 0 {
        record.subscriptions = record.subscriptions.saturating_add(added);
        tx.save(keys::session(client), &record);
        count(tx, |totals| totals.subscriptions += u64::from(added))?;
    }
    Ok(Reply::Done)
}

pub(super) fn unsubscribe(
    tx: &mut Tx<'_>,
    client: &ClientKey,
    epoch: u64,
    filters: &[String],
) -> Outcome {
    filters.iter().try_for_each(|filter| valid::filter(filter))?;
    let mut record = current(tx, client, epoch)?;
    let mut removed = 0;
    for filter in filters {
        let key = keys::subscription(client, filter);
        if tx.get(&key)?.is_some() {
            tx.delete(key);
            removed += 1;
        }
    }
    if removed > 0 {
        record.subscriptions = record.subscriptions.saturating_sub(removed);
        tx.save(keys::session(client), &record);
        count(tx, |totals| less(&mut totals.subscriptions, removed.into()))?;
    }
    Ok(Reply::Done)
}

/// The session, if `epoch` is its last opening.
fn current(tx: &Tx<'_>, client: &ClientKey, epoch: u64) -> Outcome<SessionRecord> {
    valid::client(client)?;
    match tx.load::<SessionRecord>(&keys::session(client))? {
        Some(record) if record.epoch == epoch => Ok(record),
        _ => Err(Refusal::Stale.into()),
    }
}

/// Refuses one more session when the tenant has all that it may have.
fn admit(tx: &Tx<'_>, tenant: &str) -> Outcome<()> {
    let limit =
        tx.load::<TenantRecord>(&keys::tenant(tenant))?.map_or(0, |tenant| tenant.max_sessions);
    if limit == 0 || read::tenant_totals(tx, tenant)?.sessions < limit {
        return Ok(());
    }
    let whose = if tenant.is_empty() { "the default tenant" } else { tenant };
    Err(Refusal::Limit(format!("{limit} durable sessions of {whose}")).into())
}

fn is_over(record: &SessionRecord, now_ms: u64) -> bool {
    record.expires_at_ms.is_some_and(|at| at <= now_ms)
}

/// Whether the will is to be published although the session goes on. A waiting one is dropped by a
/// client that is back in time [MQTT-3.1.3-9]. The will of a connection that this one takes over
/// never began to wait, and is published unless it has a delay (3.1.4).
fn will_is_due(record: &SessionRecord, now_ms: u64) -> bool {
    match record.will_at_ms {
        Some(at) => at <= now_ms,
        None => record.will.as_ref().is_some_and(|will| will.delay_s == 0),
    }
}

/// Removes a session with its subscriptions. Its end makes the will due whatever its delay
/// [MQTT-3.1.2-8]; `node` is to publish it.
fn discard(
    tx: &mut Tx<'_>,
    client: &ClientKey,
    record: SessionRecord,
    node: NodeId,
    effects: &mut Vec<Effect>,
) -> Result<(), StoreError> {
    let span = keys::subscriptions(client);
    let mut subscriptions = Vec::new();
    tx.scan_prefix(&span.from, &mut |key, _| {
        subscriptions.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    let removed = subscriptions.len() as u64;
    subscriptions.into_iter().for_each(|key| tx.delete(key));
    tx.delete(keys::session(client));
    count(tx, |totals| {
        less(&mut totals.sessions, 1);
        less(&mut totals.subscriptions, removed);
    })?;
    count_tenant(tx, &client.tenant, |totals| less(&mut totals.sessions, 1))?;
    if let Some(will) = record.will {
        effects.push(Effect::WillDue { client: client.clone(), node, will });
    }
    effects.push(Effect::SessionEnded { client: client.clone(), epoch: record.epoch });
    Ok(())
}

fn count(tx: &mut Tx<'_>, change: impl FnOnce(&mut Totals)) -> Result<(), StoreError> {
    let mut totals = read::totals(tx)?;
    change(&mut totals);
    tx.save(keys::totals(), &totals);
    Ok(())
}

fn count_tenant(
    tx: &mut Tx<'_>,
    tenant: &str,
    change: impl FnOnce(&mut TenantTotals),
) -> Result<(), StoreError> {
    let mut totals = read::tenant_totals(tx, tenant)?;
    change(&mut totals);
    if totals == TenantTotals::default() {
        tx.delete(keys::tenant_totals(tenant));
    } else {
        tx.save(keys::tenant_totals(tenant), &totals);
    }
    Ok(())
}

/// A count that is off is found by `check`; it must not stop all nodes at the same command.
fn less(count: &mut u64, by: u64) {
    *count = count.saturating_sub(by);
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
