//! Identifiers and quotas on single connections, and what clients found wrong themselves.

use mqtt::wire::QoS;

use super::facts::Facts;
use super::{Promises, Rule, Violation, forbid};
use crate::history::{ClientNumber, ConnNumber, Counts, Delivery, What};

pub fn observe(facts: &mut Facts, promises: &Promises, what: &What) -> Result<(), Violation> {
    match what {
        What::Delivered(client, conn, delivery) if delivery.qos > QoS::AtMostOnce => {
            opened(facts, promises, *client, *conn, delivery)
        }
        What::Answered(client, conn, id) => {
            if let Some(conn) = facts.conn_mut(*client, *conn) {
                conn.open.remove(id);
            }
            if let Some(session) = facts.session_mut(*client) {
                session.open.remove(id);
            }
            Ok(())
        }
        What::Wrong(client, conn, text) => {
            let text = format!("client {client}, connection {conn}: {text}");
            Err(Violation::new(Rule::Protocol, text))
        }
        What::Emptied => {
            facts.emptied = true;
            Ok(())
        }
        What::Counted(node, counts) if facts.emptied => {
            forbid(*counts != Counts::default(), Rule::Leak, || {
                format!("node {node} has {counts:?} when all is gone")
            })
        }
        _ => Ok(()),
    }
}

fn opened(
    facts: &mut Facts,
    promises: &Promises,
    who: ClientNumber,
    number: ConnNumber,
    delivery: &Delivery,
) -> Result<(), Violation> {
    let forgetful = facts.forgiven_us.is_some();
    let Some(client) = facts.clients.get_mut(&who) else { return Ok(()) };
    let newest = client.newest() == Some(number);
    let Some(conn) = client.conns.get_mut(&number) else { return Ok(()) };
    let id = delivery.id;
    forbid(id == 0, Rule::Identifier, || format!("client {who} got an identifier of 0"))?;
    if let Some(before) = conn.open.insert(id, delivery.message) {
        let text = format!(
            "client {who} got identifier {id} for {:?} while {before:?} had it",
            delivery.message
        );
        return Err(Violation::new(Rule::Identifier, text));
    }
    let most = usize::from(conn.terms.receive_maximum.min(promises.max_inflight));
    forbid(conn.open.len() > most, Rule::Quota, || {
        format!("client {who} got {} messages at once, of {most}", conn.open.len())
    })?;
    if newest
        && !forgetful
        && let (Some(session), Some(message)) = (&mut client.session, delivery.message)
        && let Some(before) = session.open.insert(id, message)
    {
        forbid(before != message, Rule::Identifier, || {
            format!("client {who} got identifier {id} for {message:?}, {before:?} has it")
        })?;
    }
    Ok(())
}
