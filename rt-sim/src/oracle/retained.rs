//! Retained messages: the last that was accepted on each topic, and no other.

use std::collections::BTreeMap;

use mqtt::wire::QoS;

use super::facts::{Facts, Published};
use super::{Promises, Rule, Violation, forbid};
use crate::history::{ClientNumber, Delivery, Message};

const SLACK_US: u64 = 2_000_000;

/// A retained message came to a subscriber.
pub fn delivered(
    facts: &mut Facts,
    client: ClientNumber,
    delivery: &Delivery,
) -> Result<(), Violation> {
    let Some(message) = delivery.message else {
        let text = format!("client {client} got what nobody published: {delivery:?}");
        return Err(Violation::new(Rule::Stray, text));
    };
    let Some(published) = facts.messages.get(&message) else {
        let text = format!("client {client} got {message:?}, which was never published");
        return Err(Violation::new(Rule::Stray, text));
    };
    let content = &published.content;
    let is_its = content.retain && !content.empty && content.topic == delivery.topic;
    forbid(!is_its, Rule::Retained, || format!("{message:?} is no retained message"))?;
    let Some(session) = facts.session(client) else { return Ok(()) };
    let Some(asked_us) = session.asked_us(&content.topic) else {
        let text = format!("client {client} got {message:?} without a subscription");
        return Err(Violation::new(Rule::Stray, text));
    };
    let stale = superseded(facts, message, published)
        .find(|(_, later)| later.settled.is_some_and(|(at_us, _)| at_us < asked_us));
    if let Some((later, _)) = stale {
        let text = format!("client {client} got {message:?} although {later:?} is newer");
        return Err(Violation::new(Rule::Retained, text));
    }
    let topic = content.topic.clone();
    if let Some(session) = facts.session_mut(client) {
        session.retained.entry(topic).or_default().push(message);
    }
    Ok(())
}

/// What was accepted after `message` on its topic, for sure.
fn superseded<'a>(
    facts: &'a Facts,
    message: Message,
    published: &'a Published,
) -> impl Iterator<Item = (Message, &'a Published)> {
    let later = move |(other, it): &(&Message, &Published)| {
        let content = &it.content;
        let accepted = it.settled.is_some_and(|(_, accepted)| accepted);
        let same = content.retain && content.topic == published.content.topic;
        if !same || !accepted || content.qos == QoS::AtMostOnce {
            return false;
        }
        let after = published.settled.is_some_and(|(at_us, _)| at_us < it.sent_us);
        let in_turn = match (message, **other) {
            (Message::Publish(who, number), Message::Publish(other, later)) => {
                who == other && number < later && published.last_sent_us <= it.sent_us
            }
            _ => false,
        };
        after || in_turn
    };
    facts.messages.iter().filter(later).map(|(message, it)| (*message, it))
}

/// A client that subscribed to everything has what is retained.
pub fn swept(facts: &Facts, promises: &Promises, client: ClientNumber) -> Result<(), Violation> {
    let Some(session) = facts.session(client) else { return Ok(()) };
    let mut topics: BTreeMap<&str, Vec<(Message, &Published)>> = BTreeMap::new();
    for (message, published) in &facts.messages {
        if published.content.retain {
            topics.entry(&published.content.topic).or_default().push((*message, published));
        }
    }
    for (topic, published) in topics {
        let Some(asked_us) = session.asked_us(topic) else { continue };
        let last: Vec<_> = published
            .into_iter()
            .filter(|(message, it)| superseded(facts, *message, it).next().is_none())
            .filter(|(_, it)| it.settled.is_none_or(|(_, accepted)| accepted))
            .collect();
        let got = session.retained.get(topic).map_or(&[][..], Vec::as_slice);
        forbid(got.len() > 1, Rule::Retained, || format!("{topic} has {got:?}"))?;
        match got.first() {
            Some(got) => {
                let it = last.iter().find(|(message, _)| message == got);
                let Some((_, it)) = it else {
                    let text = format!("{topic} has {got:?}, which was replaced");
                    return Err(Violation::new(Rule::Retained, text));
                };
                let over = over_us(it).is_some_and(|over_us| over_us + SLACK_US < asked_us);
                forbid(over && !promises.clock_jumps, Rule::Expired, || {
                    format!("{topic} still has {got:?}")
                })?;
            }
            None => {
                let must = |(_, it): &(Message, &Published)| {
                    it.settled.is_some_and(|(_, accepted)| accepted)
                        && it.content.qos > QoS::AtMostOnce
                };
                let may_be_none = |(_, it): &(Message, &Published)| {
                    it.content.empty || it.content.expiry_s.is_some()
                };
                let lost = last.iter().any(must) && !last.iter().any(may_be_none);
                forbid(lost, Rule::Retained, || format!("{topic} has nothing, not {last:?}"))?;
            }
        }
    }
    Ok(())
}

/// When it is over for sure.
fn over_us(published: &Published) -> Option<u64> {
    let (settled_us, _) = published.settled?;
    Some(settled_us + u64::from(published.content.expiry_s?) * 1_000_000)
}
