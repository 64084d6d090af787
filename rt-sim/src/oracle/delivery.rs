//! Live messages: none lost, none twice, in order, to nobody else, and not after their time.

use mqtt::wire::QoS;

use super::facts::{Conn, Facts, Published, Session};
use super::{Promises, Rule, Violation, forbid};
use crate::history::{ClientNumber, ConnNumber, Delivery, Message};

/// How exact the expiry of messages is.
const SLACK_US: u64 = 2_000_000;

pub fn delivered(
    facts: &mut Facts,
    promises: &Promises,
    client: ClientNumber,
    number: ConnNumber,
    delivery: &Delivery,
) -> Result<(), Violation> {
    let Some(message) = delivery.message else {
        let text = format!("client {client} got what nobody published: {delivery:?}");
        return Err(Violation::new(Rule::Stray, text));
    };
    let Facts { clients, messages, forgiven_us, .. } = &mut *facts;
    let Some(published) = messages.get(&message) else {
        let text = format!("client {client} got {message:?}, which was never published");
        return Err(Violation::new(Rule::Stray, text));
    };
    let Some(receiver) = clients.get_mut(&client) else { return Ok(()) };
    let newest = receiver.newest();
    let forgiven = forgiven_us.is_some_and(|at_us| published.sent_us <= at_us);
    let Some(conn) = receiver.conns.get(&number) else { return Ok(()) };
    // What was sent once is sent again, whatever its time.
    let known = receiver.session.as_ref().is_some_and(|session| session.got.contains_key(&message));
    if !known && !delivery.dup {
        in_time(promises, client, conn, message, published)?;
    }
    if newest != Some(number) {
        let newer = receiver.conns.range(number + 1..).map(|(_, conn)| conn);
        return one_place(client, number, newer, message, published);
    }
    let Some(session) = receiver.session.as_mut() else { return Ok(()) };
    wanted(client, session, published, message, delivery)?;
    let limit = match published.content.qos {
        QoS::AtLeastOnce => published.sends,
        QoS::AtMostOnce | QoS::ExactlyOnce => 1,
    };
    if delivery.qos == QoS::ExactlyOnce && delivery.held {
        return Ok(());
    }
    let first = !session.got.contains_key(&message);
    let got = session.got.entry(message).or_default();
    if delivery.qos == QoS::ExactlyOnce {
        got.exactly += 1;
        forbid(got.exactly > 1 && !forgiven, Rule::Doubled, || {
            format!("client {client} got {message:?} twice at QoS 2")
        })?;
    }
    if got.conn != number {
        (got.conn, got.fresh) = (number, 0);
    }
    got.fresh += u32::from(!delivery.dup);
    forbid(got.fresh > limit, Rule::Doubled, || {
        format!("client {client} got {message:?} {} times, sent {limit} times", got.fresh)
    })?;
    if first && let Message::Publish(publisher, order) = message {
        let qos = (published.content.qos as u8, delivery.qos as u8);
        let key = (publisher, published.content.topic.clone(), qos);
        let height = session.heights.entry(key).or_default();
        let before = *height;
        forbid(before > order, Rule::Order, || {
            format!("client {client} got {message:?} first after number {before}")
        })?;
        *height = order;
    }
    Ok(())
}

fn in_time(
    promises: &Promises,
    client: ClientNumber,
    conn: &Conn,
    message: Message,
    published: &Published,
) -> Result<(), Violation> {
    let (Some(expiry_s), Some((settled_us, _)), Some(connected_us)) =
        (published.content.expiry_s, published.settled, conn.connected_us)
    else {
        return Ok(());
    };
    let over_us = settled_us + u64::from(expiry_s) * 1_000_000 + SLACK_US;
    forbid(connected_us > over_us && !promises.clock_jumps, Rule::Expired, || {
        format!("client {client} came after the end of {message:?}, and got it")
    })
}

/// A connection that was replaced gets nothing that was published later.
fn one_place<'a>(
    client: ClientNumber,
    number: ConnNumber,
    newer: impl Iterator<Item = &'a Conn>,
    message: Message,
    published: &Published,
) -> Result<(), Violation> {
    let replaced_us = newer.filter_map(|conn| conn.connected_us).min();
    let is_publish = matches!(message, Message::Publish(..));
    let later = replaced_us.is_some_and(|replaced_us| published.sent_us > replaced_us);
    forbid(is_publish && later, Rule::TwoPlaces, || {
        format!("client {client} got {message:?} on connection {number}, which was replaced")
    })
}

fn wanted(
    client: ClientNumber,
    session: &Session,
    published: &Published,
    message: Message,
    delivery: &Delivery,
) -> Result<(), Violation> {
    let content = &published.content;
    forbid(content.topic != delivery.topic, Rule::Stray, || {
        format!("client {client} got {message:?} under {}", delivery.topic)
    })?;
    // The will of a connection is published at any time after.
    let sent_us = match message {
        Message::Publish(..) => published.sent_us,
        Message::Will(..) => 0,
    };
    let Some(highest) = session.may_get(&content.topic, sent_us) else {
        let text = format!("client {client} got {message:?} without a subscription");
        return Err(Violation::new(Rule::Stray, text));
    };
    let most = highest.min(content.qos);
    forbid(delivery.qos > most, Rule::Stray, || {
        format!("client {client} got {message:?} at {:?}, not {most:?}", delivery.qos)
    })
}

/// Everybody has had the time to get everything.
pub fn settled(facts: &Facts, promises: &Promises) -> Result<(), Violation> {
    for (message, published) in &facts.messages {
        if matches!(message, Message::Publish(..)) {
            answered(facts, *message, published)?;
        }
        let accepted = published.settled.is_some_and(|(_, accepted)| accepted);
        let kept = published.content.qos > QoS::AtMostOnce && published.content.expiry_s.is_none();
        if accepted && kept && !promises.small_queues && !facts.is_forgiven(published) {
            all_got(facts, *message, published)?;
        }
    }
    Ok(())
}

/// The publisher has its answer, unless it lost its session.
fn answered(facts: &Facts, message: Message, published: &Published) -> Result<(), Violation> {
    let session = facts.session(message.client()).filter(|session| session.sure);
    if published.content.qos == QoS::AtMostOnce
        || session.is_none_or(|session| Some(session.number) != published.session)
    {
        return Ok(());
    }
    forbid(published.settled.is_none(), Rule::Stuck, || format!("{message:?} was never answered"))?;
    let accepted = published.settled.is_some_and(|(_, accepted)| accepted);
    let half = published.content.qos == QoS::ExactlyOnce && accepted && !published.completed;
    forbid(half, Rule::Stuck, || format!("{message:?} was never completed"))
}

pub fn all_got(facts: &Facts, message: Message, published: &Published) -> Result<(), Violation> {
    for (client, number) in &published.owed {
        let Some(session) = facts.session(*client) else { continue };
        let same = session.sure && session.number == *number;
        if same && session.has_held(&published.content.topic, published.sent_us) {
            forbid(!session.got.contains_key(&message), Rule::Lost, || {
                format!("{message:?} was accepted and never reached client {client}")
            })?;
        }
    }
    Ok(())
}
