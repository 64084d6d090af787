//! Connections, sessions and subscriptions: that a session is where it should be, and only there.

use super::facts::{Client, Conn, Facts, State, Subscription};
use super::{Promises, Rule, Violation, forbid};
use crate::history::{ClientNumber, ConnNumber, Counts, End, Stop, Terms, What};
use std::collections::BTreeMap;

/// How exact deadlines are.
const SLACK_US: u64 = 2_000_000;
/// How long after its begin a fault of a disk may end a process.
const DISK_US: u64 = 60_000_000;

pub fn observe(facts: &mut Facts, promises: &Promises, what: &What) -> Result<(), Violation> {
    let now_us = facts.now_us;
    match what {
        What::Connecting(client, conn, terms) => connecting(facts, *client, *conn, terms),
        What::Connected(client, conn, resumed) => {
            connected(facts, promises, *client, *conn, *resumed)?;
        }
        What::Refused(client, conn, _) => {
            if let Some(conn) = facts.conn_mut(*client, *conn) {
                conn.refused = true;
            }
        }
        What::Ended(client, conn, end) => ended(facts, *client, *conn, *end)?,
        What::Leaving(client, conn, with_will) => {
            if let Some(conn) = facts.conn_mut(*client, *conn) {
                conn.leaving = Some((now_us, *with_will));
            }
        }
        What::Subscribing(client, _, filter, qos) => {
            if let Some(session) = facts.session_mut(*client) {
                let it = session.subscriptions.entry(filter.clone()).or_insert(Subscription {
                    state: State::Unsure,
                    qos: *qos,
                    highest: *qos,
                    asked_us: now_us,
                });
                it.highest = it.highest.max(*qos);
                if it.qos != *qos || matches!(it.state, State::Gone(_)) {
                    it.state = State::Unsure;
                }
            }
        }
        What::Subscribed(client, _, filter, granted) => {
            let session = facts.session_mut(*client);
            let it = session.and_then(|session| session.subscriptions.get_mut(filter));
            match (it, granted) {
                (Some(it), Some(granted)) => {
                    it.qos = *granted;
                    if !matches!(it.state, State::Granted(_)) {
                        it.state = State::Granted(now_us);
                    }
                }
                (Some(it), None) => it.doubt(),
                (None, _) => {}
            }
        }
        What::Unsubscribing(client, _, filter) => {
            let session = facts.session_mut(*client);
            if let Some(it) = session.and_then(|session| session.subscriptions.get_mut(filter)) {
                it.doubt();
            }
        }
        What::Unsubscribed(client, _, filter) => {
            let session = facts.session_mut(*client);
            if let Some(it) = session.and_then(|session| session.subscriptions.get_mut(filter)) {
                it.state = State::Gone(now_us);
            }
        }
        What::Pong(client, conn, sent_us) => pong(facts, *client, *conn, *sent_us)?,
        What::Stopped(_, stop) => facts.stop(*stop, promises.level),
        What::Ready(_) => facts.ready_us = now_us,
        What::Exited(node, result) => {
            let broken = facts.disk_fault_us.is_some_and(|at_us| at_us + DISK_US > now_us);
            forbid(!broken, Rule::Down, || format!("node {node} ended: {result}"))?;
            facts.stop(Stop::Killed, promises.level);
        }
        What::Fault(kind) => {
            facts.fault_us = Some(now_us);
            facts.faults.insert(kind);
            if matches!(*kind, "disk-error" | "full-disk") {
                facts.disk_fault_us = Some(now_us);
            }
        }
        What::Stuck(text) => return Err(Violation::new(Rule::Stuck, text)),
        What::Counted(node, counts) => bounds(promises, *node, counts)?,
        What::Settled => all_served(facts)?,
        _ => {}
    }
    Ok(())
}

fn connecting(facts: &mut Facts, client: ClientNumber, number: ConnNumber, terms: &Terms) {
    let now_us = facts.now_us;
    let client = facts.client(client);
    if client.session.as_ref().is_some_and(|session| session.expiry_s == 0) {
        // It goes with the connection that is replaced.
        client.session = None;
    }
    if terms.clean {
        client.doubt();
    }
    let conn = Conn {
        terms: terms.clone(),
        sent_us: now_us,
        connected_us: None,
        resumed: false,
        refused: false,
        ended: None,
        leaving: None,
        served_us: now_us,
        will_got_us: None,
        open: BTreeMap::new(),
    };
    client.conns.insert(number, conn);
}

fn connected(
    facts: &mut Facts,
    promises: &Promises,
    who: ClientNumber,
    number: ConnNumber,
    resumed: bool,
) -> Result<(), Violation> {
    let (now_us, ready_us) = (facts.now_us, facts.ready_us);
    let network = facts.faults.iter().any(|kind| *kind != "clock");
    let client = facts.client(who);
    let Some(conn) = client.conns.get(&number) else { return Ok(()) };
    let (terms, sent_us) = (conn.terms.clone(), conn.sent_us);
    forbid(resumed && terms.clean, Rule::Session, || {
        format!("client {who} began a new session and got an old one")
    })?;
    let any_zombie = client.has_zombie(number, now_us, |_| true);
    let clean_zombie = client.has_zombie(number, now_us, |conn| conn.terms.clean);
    match &client.session {
        Some(session) if !resumed && session.sure && !terms.clean && !any_zombie => {
            let served_us = served_us(client);
            let forever = session.expiry_s == u32::MAX;
            let lives =
                forever || !promises.clock_jumps && now_us < served_us + life_us(session.expiry_s);
            forbid(lives, Rule::Session, || format!("the session of client {who} is gone"))?;
        }
        Some(session) if resumed && session.sure && session.expiry_s != u32::MAX => {
            let expiry_us = life_us(session.expiry_s) + 2 * SLACK_US;
            let over = last_end_us(client, number, network)
                .is_some_and(|end_us| end_us.max(ready_us).saturating_add(expiry_us) < sent_us);
            let tells = over && !promises.clock_jumps && !any_zombie;
            forbid(tells, Rule::Session, || format!("client {who} got a session back too late"))?;
        }
        None if resumed && !any_zombie => {
            let text = format!("client {who} got a session that it never had");
            return Err(Violation::new(Rule::Session, text));
        }
        _ => {}
    }
    if !resumed || client.session.is_none() {
        client.begin_session(terms.expiry_s, !clean_zombie);
    } else if let Some(session) = &mut client.session {
        session.expiry_s = terms.expiry_s;
        session.sure |= !clean_zombie;
    }
    if let Some(conn) = client.conns.get_mut(&number) {
        conn.connected_us = Some(now_us);
        conn.resumed = resumed;
    }
    super::wills::armed(facts, who, number);
    Ok(())
}

/// Until when the broker served the client for sure.
fn served_us(client: &Client) -> u64 {
    let served = client.conns.values().filter(|conn| conn.connected_us.is_some());
    served.map(|conn| conn.served_us).max().unwrap_or(0)
}

/// When the broker knew for sure that the client was gone, before connection `number`.
fn last_end_us(client: &Client, number: ConnNumber, network_faults: bool) -> Option<u64> {
    let mut last_us = 0;
    for (_, conn) in client.conns.range(..number) {
        let (ended_us, _) = conn.ended?;
        let keep_alive_us = u64::from(conn.terms.keep_alive_s) * 1_500_000;
        if network_faults && keep_alive_us == 0 {
            return None;
        }
        last_us = last_us.max(ended_us + keep_alive_us);
    }
    Some(last_us)
}

fn life_us(expiry_s: u32) -> u64 {
    (u64::from(expiry_s) * 1_000_000).saturating_sub(SLACK_US)
}

fn ended(
    facts: &mut Facts,
    who: ClientNumber,
    number: ConnNumber,
    end: End,
) -> Result<(), Violation> {
    let (now_us, calm) = (facts.now_us, facts.is_calm(facts.now_us));
    let client = facts.client(who);
    let newest = client.newest() == Some(number);
    forbid(!newest && end == End::Unanswered && calm, Rule::TwoPlaces, || {
        format!("connection {number} of client {who} was replaced and never ended")
    })?;
    let Some(conn) = client.conns.get_mut(&number) else { return Ok(()) };
    conn.ended = Some((now_us, end));
    let ends_session = conn.connected_us.is_some() && conn.terms.expiry_s == 0 && newest;
    if let Some(session) = &mut client.session {
        // What was asked and not answered may be so or not.
        let unsure = session.subscriptions.values_mut().filter(|it| it.state == State::Unsure);
        unsure.for_each(Subscription::doubt);
    }
    if ends_session {
        client.session = None;
    }
    Ok(())
}

fn pong(
    facts: &mut Facts,
    who: ClientNumber,
    number: ConnNumber,
    sent_us: u64,
) -> Result<(), Violation> {
    let Some(client) = facts.clients.get_mut(&who) else { return Ok(()) };
    let newer = client.conns.range(number + 1..).filter_map(|(_, conn)| conn.connected_us).min();
    forbid(newer.is_some_and(|newer_us| newer_us < sent_us), Rule::TwoPlaces, || {
        format!("client {who} is served on connection {number}, and on a newer one")
    })?;
    let Some(conn) = client.conns.get_mut(&number) else { return Ok(()) };
    conn.served_us = conn.served_us.max(sent_us);
    forbid(conn.will_got_us.is_some_and(|got_us| got_us < sent_us), Rule::Will, || {
        format!("the will of client {who} was published and connection {number} is served")
    })
}

fn bounds(promises: &Promises, node: usize, counts: &Counts) -> Result<(), Violation> {
    let most = counts.sessions * promises.max_queued_messages;
    forbid(counts.queued_messages > most, Rule::Bound, || {
        format!("node {node} queues {} messages, of {most}", counts.queued_messages)
    })?;
    let most = counts.sessions * u64::from(promises.max_inflight);
    forbid(counts.inflight_messages > most, Rule::Bound, || {
        format!("node {node} has {} messages in flight, of {most}", counts.inflight_messages)
    })
}

/// Nothing is wrong, and everybody wants to be connected.
fn all_served(facts: &Facts) -> Result<(), Violation> {
    for (who, client) in &facts.clients {
        let Some(newest) = client.newest() else { continue };
        for (number, conn) in &client.conns {
            let open = conn.ended.is_none();
            forbid(open && *number != newest, Rule::TwoPlaces, || {
                format!("connection {number} of client {who} was never ended")
            })?;
            forbid(
                *number == newest && (!open || conn.connected_us.is_none()),
                Rule::Stuck,
                || format!("client {who} cannot connect"),
            )?;
        }
    }
    Ok(())
}
