//! Recounts what the tables claim about each other. For tests, for `repair`, and for whoever doubts:
//! it reads everything, in the memory of one record at a time, looking up others within a visit.

use std::fmt::Display;
use std::ops::ControlFlow::{self, Continue};

use super::keys::{self, Span};
use super::read;
use crate::record::{
    ClientKey, ConfigRecord, NodeRecord, RuleRecord, SLOTS, SessionRecord, SlotRun, StoredMessage,
    StoredSubscription, TenantRecord, TenantTotals, Totals, UserRecord,
};
use crate::store::{Family, StoreError, View};

/// Checks all invariants over several keys: totals equal recounts, each session's number of
/// subscriptions equals its keys, no subscription is without a session, runs of slots do not
/// overlap, records lie where their names say, and no stamp is ahead of the last one.
///
/// # Errors
/// What was found first, in words; also when the view cannot be read.
pub fn check(view: &dyn View) -> Result<Totals, String> {
    let stamp: u64 = match view.get(Family::State, &keys::stamp()).map_err(told)? {
        Some(bytes) => read::record(&keys::stamp(), &bytes).map_err(told)?,
        None => 0,
    };
    let mut counted = Totals::default();
    sessions(view, stamp, &mut counted)?;
    subscriptions(view, &counted)?;
    retained(view, &mut counted)?;
    slots(view)?;
    named(view, keys::USERS, |user: UserRecord| keys::user(&user.name))?;
    named(view, keys::RULES, |rule: RuleRecord| keys::rule(rule.id))?;
    named(view, keys::TENANTS, |tenant: TenantRecord| keys::tenant(&tenant.name))?;
    named(view, keys::NODES, |node: NodeRecord| keys::node(node.id))?;
    all(view, &keys::table(keys::CONFIG), |key, record: ConfigRecord| {
        ensure(record.version > 0 && record.version <= stamp, key, "a version never given out")
    })?;
    let mut unknown = None;
    view.scan(Family::State, &keys::totals(), None, &mut |key, _| {
        if key == keys::totals() || key == keys::stamp() {
            return Continue(());
        }
        unknown = Some(at(key, "has no place here"));
        ControlFlow::Break(())
    })
    .map_err(told)?;
    unknown.map_or(Ok(()), Err)?;
    let claimed = read::totals(view).map_err(told)?;
    if claimed != counted {
        return Err(format!("the totals are {claimed:?}, but there are {counted:?}"));
    }
    Ok(counted)
}

/// Sessions, the number of subscriptions that each claims, and the counts of tenants.
fn sessions(view: &dyn View, stamp: u64, counted: &mut Totals) -> Result<(), String> {
    let mut tenant: Option<(String, u64)> = None;
    let mut tenants = 0_u64;
    all(view, &keys::table(keys::SESSIONS), |key, record: SessionRecord| {
        let client = keys::client_of(key).ok_or_else(|| at(key, "names no client"))?;
        ensure(keys::session(&client) == key, key, "lies in a wrong place")?;
        let mut held = 0_u64;
        read::subscriptions(view, &client, |_| {
            held += 1;
            Continue(())
        })
        .map_err(told)?;
        if held != u64::from(record.subscriptions) {
            let claimed = record.subscriptions;
            return Err(at(key, format!("claims {claimed} subscriptions, but has {held}")));
        }
        ensure(record.epoch > 0 && record.epoch <= stamp, key, "an epoch never given out")?;
        ensure(record.generation <= record.epoch, key, "is older than its generation")?;
        let waits = record.expires_at_ms.is_some() || record.will_at_ms.is_some();
        ensure(!(record.connected && waits), key, "is connected, and has a deadline")?;
        let has_will = record.will.is_some();
        ensure(record.will_at_ms.is_none() || has_will, key, "waits for a will it has not")?;
        ensure(record.connected || !has_will || record.will_at_ms.is_some(), key, "keeps a will")?;
        counted.sessions += 1;
        counted.subscriptions += held;
        match &mut tenant {
            Some((name, sessions)) if *name == client.tenant => *sessions += 1,
            _ => {
                tenants += 1;
                let before = tenant.replace((client.tenant, 1));
                before.map_or(Ok(()), |before| tenant_counts(view, &before))?;
            }
        }
        Ok(())
    })?;
    tenant.map_or(Ok(()), |last| tenant_counts(view, &last))?;
    all(view, &keys::table(keys::TENANT_TOTALS), |key, _: TenantTotals| {
        tenants = tenants.checked_sub(1).ok_or_else(|| at(key, "or another has no sessions"))?;
        Ok(())
    })
}

fn tenant_counts(view: &dyn View, (name, sessions): &(String, u64)) -> Result<(), String> {
    let claimed = read::tenant_totals(view, name).map_err(told)?.sessions;
    if claimed == *sessions {
        return Ok(());
    }
    let key = keys::tenant_totals(name);
    Err(at(&key, format!("claim {claimed} sessions, but there are {sessions}")))
}

fn subscriptions(view: &dyn View, counted: &Totals) -> Result<(), String> {
    let mut found = 0_u64;
    let mut known: Option<ClientKey> = None;
    all(view, &keys::table(keys::SUBSCRIPTIONS), |key, record: StoredSubscription| {
        let client = keys::client_of(key).ok_or_else(|| at(key, "names no client"))?;
        let place = keys::subscription(&client, &record.filter);
        ensure(place == key, key, "lies in a wrong place")?;
        if known.as_ref() != Some(&client) {
            let session = read::session(view, &client).map_err(told)?;
            ensure(session.is_some(), key, "has no session")?;
            known = Some(client);
        }
        found += 1;
        Ok(())
    })?;
    if found == counted.subscriptions {
        return Ok(());
    }
    Err(format!("{found} subscriptions, but {} of sessions", counted.subscriptions))
}

fn retained(view: &dyn View, counted: &mut Totals) -> Result<(), String> {
    all(view, &keys::table(keys::RETAINED), |key, message: StoredMessage| {
        ensure(keys::retained(&message.topic) == key, key, "lies in a wrong place")?;
        ensure(!message.payload.is_empty(), key, "is empty")?;
        counted.retained += 1;
        counted.retained_bytes += message.stored_bytes();
        Ok(())
    })
}

fn slots(view: &dyn View) -> Result<(), String> {
    let mut before: Option<SlotRun> = None;
    all(view, &keys::table(keys::SLOT_RUNS), |key, run: SlotRun| {
        let slots = run.slots;
        ensure(keys::slot_run(slots.first) == key, key, "lies in a wrong place")?;
        ensure(slots.first <= slots.last && slots.last < SLOTS, key, "do not exist")?;
        if let Some(before) = before.replace(run) {
            ensure(before.slots.last < slots.first, key, "are given twice")?;
            let joined = before.node == run.node && before.slots.last + 1 == slots.first;
            ensure(!joined, key, "should be one with the run before")?;
        }
        Ok(())
    })
}

/// Each record of the table lies under the key that its own name makes.
fn named<T: serde::de::DeserializeOwned>(
    view: &dyn View,
    table: u8,
    place: impl Fn(T) -> Vec<u8>,
) -> Result<(), String> {
    all(view, &keys::table(table), |key, record| {
        ensure(place(record) == key, key, "lies in a wrong place")
    })
}

fn all<T: serde::de::DeserializeOwned>(
    view: &dyn View,
    span: &Span,
    mut judge: impl FnMut(&[u8], T) -> Result<(), String>,
) -> Result<(), String> {
    let mut found = Ok(());
    read::each(view, span, &mut |key, record| {
        found = judge(key, record);
        Ok(if found.is_ok() { Continue(()) } else { ControlFlow::Break(()) })
    })
    .map_err(told)?;
    found
}

fn ensure(holds: bool, key: &[u8], otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(at(key, otherwise)) }
}

fn at(key: &[u8], what: impl Display) -> String {
    format!("{}: {what}", keys::describe(key))
}

fn told(error: StoreError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use crate::state::samples;
    use crate::state::testing::MapView;

    fn found(spoil: impl FnOnce(&mut MapView)) -> String {
        let mut state = samples::state();
        state.totals();
        spoil(&mut state);
        check(&state).expect_err("found")
    }

    #[test]
    fn a_state_that_was_made_by_commands_is_sound() {
        let totals = samples::state().totals();
        assert!(totals.sessions > 1 && totals.subscriptions > 1 && totals.retained > 1);
        assert_eq!(check(&MapView::default()), Ok(Totals::default()));
    }

    #[test]
    fn each_missing_record_that_something_counts_on_is_found() {
        let state = samples::state();
        let counted = [
            keys::SESSIONS,
            keys::SUBSCRIPTIONS,
            keys::RETAINED,
            keys::TENANT_TOTALS,
            keys::TOTALS,
            keys::STAMP,
        ];
        for key in state.0.keys().filter(|key| counted.contains(&key[0])) {
            let mut spoiled = state.clone();
            spoiled.0.remove(key);
            assert!(check(&spoiled).is_err(), "{} was not missed", keys::describe(key));
        }
    }

    #[test]
    fn each_record_in_a_wrong_place_is_found() {
        let state = samples::state();
        for (key, value) in &state.0 {
            let mut spoiled = state.clone();
            let mut wrong = key.clone();
            wrong.push(b'x');
            spoiled.0.insert(wrong, value.clone());
            // A configuration key is not a part of its record.
            assert_eq!(check(&spoiled).is_ok(), key[0] == keys::CONFIG, "{}", keys::describe(key));
        }
    }

    #[test]
    fn unreadable_and_unknown_records_are_found() {
        for key in samples::state().0.keys() {
            let error = found(|state| drop(state.0.insert(key.clone(), vec![2])));
            assert!(error.contains("version 2"), "{}: {error}", keys::describe(key));
        }
        let error = found(|state| drop(state.0.insert(vec![99], vec![1])));
        assert!(error.contains("unknown table 99"), "{error}");
    }

    #[test]
    fn slots_given_twice_are_found() {
        let run = |first, last, node| SlotRun { slots: crate::record::Slots { first, last }, node };
        for (runs, words) in [
            ([run(0, 9, 1), run(9, 10, 2)], "given twice"),
            ([run(0, 9, 1), run(10, 10, 1)], "should be one"),
            ([run(0, 9, 1), run(20, SLOTS, 1)], "do not exist"),
        ] {
            let mut state = MapView::default();
            for run in runs {
                state.0.insert(keys::slot_run(run.slots.first), codec::encode(&run));
            }
            let error = check(&state).expect_err("found");
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn records_of_the_raft_side_are_left_alone() {
        let mut state = samples::state();
        state.0.insert(keys::raft("applied"), vec![0xff]);
        state.totals();
    }
}
