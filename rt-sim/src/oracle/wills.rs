//! Wills: once, when due, and not otherwise.

use std::collections::BTreeMap;

use mqtt::wire::QoS;

use super::facts::{Client, Conn, Facts, Published};
use super::{Promises, Rule, Violation, delivery, forbid};
use crate::history::{ClientNumber, ConnNumber, Delivery, End, Message};

/// How exact delays are.
const SLACK_US: u64 = 1_000_000;
/// How much later than its end at its client a connection is known to be lost, without faults, beside
/// its keep-alive; and how long a will then takes.
const NOTICE_US: u64 = 10_000_000;

/// A CONNECT was accepted: its will may come from now on.
pub fn armed(facts: &mut Facts, client: ClientNumber, number: ConnNumber) {
    let Some(conn) = facts.conn(client, number) else { return };
    let Some((content, _)) = conn.terms.will.clone() else { return };
    let sent_us = conn.sent_us;
    facts.publish(client, Message::Will(client, number), &content);
    if let Some(published) = facts.messages.get_mut(&Message::Will(client, number)) {
        (published.sent_us, published.session) = (sent_us, None);
    }
}

pub fn delivered(
    facts: &mut Facts,
    promises: &Promises,
    receiver: ClientNumber,
    delivery: &Delivery,
) -> Result<(), Violation> {
    let Some(message @ Message::Will(who, number)) = delivery.message else { return Ok(()) };
    if !facts.messages.contains_key(&message) {
        // Its CONNACK was lost.
        let will = facts.conn(who, number).and_then(|conn| conn.terms.will.clone());
        let Some((content, _)) = will else {
            let text = format!("client {receiver} got {message:?}, which there never was");
            return Err(Violation::new(Rule::Will, text));
        };
        let (sent_us, owed) = (0, BTreeMap::new());
        let session = None;
        let published = Published {
            content,
            sent_us,
            last_sent_us: sent_us,
            sends: 1,
            settled: None,
            completed: false,
            session,
            owed,
        };
        facts.messages.insert(message, published);
    }
    let now_us = facts.now_us;
    let Some(client) = facts.clients.get(&who) else { return Ok(()) };
    let Some(conn) = client.conns.get(&number) else { return Ok(()) };
    forbid(is_taken_back(facts, client, number, conn), Rule::Will, || {
        format!("{message:?} was published although the client had left in order")
    })?;
    let delay_us =
        conn.terms.will.as_ref().map_or(0, |(_, delay_s)| u64::from(*delay_s)) * 1_000_000;
    if delay_us > 0 && !promises.clock_jumps && conn.connected_us.is_some() {
        let due_us = conn.served_us + delay_us;
        let newer = client.conns.range(number + 1..).next();
        let outlives = u64::from(conn.terms.expiry_s) * 1_000_000 >= delay_us;
        let early = newer.is_none() && outlives && now_us + SLACK_US < due_us;
        forbid(early, Rule::Will, || format!("{message:?} came before its delay was over"))?;
        let back = newer.is_some_and(|(_, newer)| {
            newer.resumed && newer.connected_us.is_some_and(|at_us| at_us + SLACK_US < due_us)
        });
        forbid(back && outlives, Rule::Will, || {
            format!("{message:?} was published although the client was back in time")
        })?;
    }
    if let Some(conn) = facts.conn_mut(who, number) {
        conn.will_got_us.get_or_insert(now_us);
    }
    Ok(())
}

/// The broker knew of the DISCONNECT before anything else ended the connection.
fn is_taken_back(facts: &Facts, client: &Client, number: ConnNumber, conn: &Conn) -> bool {
    let (Some((leaving_us, false)), Some((ended_us, End::ByBroker))) = (conn.leaving, conn.ended)
    else {
        return false;
    };
    let newer = client.conns.range(number + 1..).next();
    let alone = newer.is_none_or(|(_, newer)| newer.sent_us > ended_us);
    alone && facts.is_calm(leaving_us) && facts.stopped_us.is_none_or(|at_us| at_us < leaving_us)
}

/// What was due has come.
pub fn settled(facts: &Facts, promises: &Promises) -> Result<(), Violation> {
    if promises.small_queues || facts.faults.contains("full-disk") {
        return Ok(());
    }
    for (message, published) in &facts.messages {
        let Message::Will(who, number) = message else { continue };
        let Some(client) = facts.clients.get(who) else { continue };
        let Some(conn) = client.conns.get(number) else { continue };
        let is_kept = published.content.qos > QoS::AtMostOnce;
        if is_kept && is_due(facts, client, *number, conn) {
            delivery::all_got(facts, *message, published)?;
        }
    }
    Ok(())
}

fn is_due(facts: &Facts, client: &Client, number: ConnNumber, conn: &Conn) -> bool {
    let Some((ended_us, end)) = conn.ended else { return false };
    let lost = match conn.leaving {
        Some((_, with_will)) => with_will,
        None => end != End::ByBroker,
    };
    // A kill between the commit and the publication loses it.
    let undisturbed = facts.stopped_us.is_none_or(|at_us| at_us < conn.sent_us);
    let delay_us =
        conn.terms.will.as_ref().map_or(0, |(_, delay_s)| u64::from(*delay_s)) * 1_000_000;
    let noticed_us = ended_us + u64::from(conn.terms.keep_alive_s) * 1_500_000 + NOTICE_US;
    let newer_us = client.conns.range(number + 1..).next().map(|(_, newer)| newer.sent_us);
    let stays_due = match delay_us {
        0 => noticed_us < facts.now_us,
        _ => {
            let over_us = noticed_us + delay_us;
            let felt = facts.fault_us.is_some_and(|at_us| at_us > conn.sent_us);
            !felt && over_us < newer_us.unwrap_or(facts.now_us).min(facts.now_us)
        }
    };
    conn.connected_us.is_some() && lost && undisturbed && stays_due
}
