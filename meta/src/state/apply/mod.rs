//! What each command does. One file per group of tables.

mod access;
mod cluster;
mod config;
mod retained;
mod session;
mod valid;

use super::{Effect, Tx};
use crate::command::{Command, Refusal, Reply};
use crate::store::StoreError;

/// Decides `command`, which is part of the log entry at `index`: gathers its changes in `tx` and tells
/// them in `effects`. A refused command adds to neither.
///
/// # Errors
/// As the store says, also when a record cannot be read. `tx` and `effects` may hold a part of the
/// command then, and are of no use any more.
pub fn apply(
    tx: &mut Tx<'_>,
    index: u64,
    command: &Command,
    effects: &mut Vec<Effect>,
) -> Result<Reply, StoreError> {
    let outcome = match command {
        Command::OpenSession(open) => session::open(tx, index, open, effects),
        Command::CloseSession(close) => session::close(tx, close),
        Command::EndSession { client, epoch, node } => {
            session::end(tx, client, *epoch, *node, effects)
        }
        Command::TakeWill { client, epoch } => session::take_will(tx, client, *epoch),
        Command::Subscribe { client, epoch, subscriptions } => {
            session::subscribe(tx, client, *epoch, subscriptions)
        }
        Command::Unsubscribe { client, epoch, filters } => {
            session::unsubscribe(tx, client, *epoch, filters)
        }
        Command::Retain(message) => retained::retain(tx, index, message, effects),
        Command::Unretain { topic } => retained::unretain(tx, index, topic, effects),
        Command::SweepRetained { now_ms, topics } => {
            retained::sweep(tx, index, *now_ms, topics, effects)
        }
        Command::PutUser(user) => access::put_user(tx, user, effects),
        Command::RemoveUser { name } => access::remove_user(tx, name, effects),
        Command::PutRule(rule) => access::put_rule(tx, rule, effects),
        Command::RemoveRule { id } => access::remove_rule(tx, *id, effects),
        Command::PutTenant(tenant) => access::put_tenant(tx, tenant),
        Command::RemoveTenant { name } => access::remove_tenant(tx, name),
        Command::PutNode(node) => cluster::put_node(tx, node, effects),
        Command::RemoveNode { id } => cluster::remove_node(tx, *id, effects),
        Command::AssignSlots { slots, node } => cluster::assign_slots(tx, *slots, *node, effects),
        Command::SetConfig { key, expected, value } => {
            config::set(tx, index, key, *expected, value.as_deref(), effects)
        }
    };
    match outcome {
        Ok(reply) => Ok(reply),
        Err(Stop::Refused(refusal)) => Ok(Reply::Refused(refusal)),
        Err(Stop::Store(error)) => Err(error),
    }
}

/// Why a command is not gone on with. Refusals come before the first change.
enum Stop {
    Refused(Refusal),
    Store(StoreError),
}

type Outcome<T = Reply> = Result<T, Stop>;

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Removes the record of `key`, or refuses when there is none.
fn remove(tx: &mut Tx<'_>, key: Vec<u8>) -> Outcome<()> {
    if tx.get(&key)?.is_none() {
        return Err(Refusal::NotFound.into());
    }
    tx.delete(key);
    Ok(())
}
