//! How raft's own things are stored and sent: entries, log positions, votes and memberships.
//!
//! A layout of our own, with a version byte in front of every record: openraft's changes between
//! its versions, and what lies on a disk does not.
//!
//! An entry is: version byte 1; term, node and index, each a u64 in little-endian order; kind u8;
//! then for [`KIND_NORMAL`] the commands and for [`KIND_MEMBERSHIP`] the membership, in postcard.

use std::collections::{BTreeMap, BTreeSet};

use openraft::EntryPayload;
use openraft::impls::leader_id_adv;
use serde::{Deserialize, Serialize};

use super::types::{Peer, Proposal};
use crate::codec;
use crate::command::Command;
use crate::record::NodeId;
use crate::record::StoredMessage;
use crate::store::StoreError;

/// Who leads, or led.
pub type LeaderId = leader_id_adv::LeaderId<u64, NodeId>;
/// A position in the log, whatever the runtime is.
pub type LogId = openraft::LogId<LeaderId>;
/// Who was voted for.
pub type Vote = openraft::Vote<LeaderId>;
/// A log entry, whatever the runtime is.
pub type Entry = openraft::Entry<LeaderId, EntryPayload<Proposal, NodeId, Peer>>;
/// Voters and learners.
pub type Membership = openraft::Membership<NodeId, Peer>;
/// Voters and learners, and the entry that made them so.
pub type StoredMembership = openraft::StoredMembership<LeaderId, NodeId, Peer>;

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 26;
const KIND_BLANK: u8 = 0;
const KIND_NORMAL: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;

#[derive(Serialize, Deserialize)]
struct PositionRecord {
    term: u64,
    node: NodeId,
    index: u64,
}

#[derive(Serialize, Deserialize)]
struct VoteRecord {
    term: u64,
    node: NodeId,
    committed: bool,
}

#[derive(Serialize, Deserialize)]
struct MembershipRecord {
    configs: Vec<BTreeSet<NodeId>>,
    /// With their addresses.
    nodes: BTreeMap<NodeId, String>,
}

#[derive(Serialize, Deserialize)]
struct StoredMembershipRecord {
    at: Option<PositionRecord>,
    membership: MembershipRecord,
}

/// The bytes of an entry.
pub fn encode_entry(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES + weight(entry) / 2);
    out.push(VERSION);
    out.extend_from_slice(&entry.log_id.leader_id.term.to_le_bytes());
    out.extend_from_slice(&entry.log_id.leader_id.node_id.to_le_bytes());
    out.extend_from_slice(&entry.log_id.index.to_le_bytes());
    match &entry.payload {
        EntryPayload::Blank => {
            out.push(KIND_BLANK);
            out
        }
        EntryPayload::Normal(proposal) => {
            out.push(KIND_NORMAL);
            extend(out, &proposal.commands)
        }
        EntryPayload::Membership(membership) => {
            out.push(KIND_MEMBERSHIP);
            extend(out, &MembershipRecord::from(membership))
        }
    }
}

/// The entry that `bytes` hold.
///
/// # Errors
/// [`StoreError::Damaged`] when they are no entry, or one of a newer version.
pub fn decode_entry(bytes: &[u8]) -> Result<Entry, StoreError> {
    let damaged = |what: &str| StoreError::Damaged(format!("a log entry {what}"));
    match bytes.first() {
        None => return Err(damaged("is empty")),
        Some(&VERSION) => {}
        Some(version) => {
            return Err(damaged(&format!(
                "has version {version}, but this build reads version {VERSION} only"
            )));
        }
    }
    let Some((head, body)) = bytes.split_at_checked(HEAD_BYTES) else {
        return Err(damaged("is cut short"));
    };
    let number = |at: usize| {
        head[at..at + 8].iter().rev().fold(0_u64, |number, &byte| (number << 8) | u64::from(byte))
    };
    let leader_id = LeaderId { term: number(1), node_id: number(9) };
    let payload = match head[HEAD_BYTES - 1] {
        KIND_BLANK if body.is_empty() => EntryPayload::Blank,
        KIND_NORMAL => EntryPayload::Normal(Proposal { commands: take(body)? }),
        KIND_MEMBERSHIP => {
            EntryPayload::Membership(take::<MembershipRecord>(body)?.into_membership()?)
        }
        kind => return Err(damaged(&format!("has the unknown kind {kind}"))),
    };
    Ok(Entry { log_id: LogId { leader_id, index: number(17) }, payload })
}

/// The bytes of a log position.
pub fn encode_position(position: &LogId) -> Vec<u8> {
    codec::encode(&PositionRecord::from(position))
}

/// The log position that `bytes` hold.
///
/// # Errors
/// [`StoreError::Damaged`] when they are none.
pub fn decode_position(bytes: &[u8]) -> Result<LogId, StoreError> {
    codec::decode::<PositionRecord>(bytes).map(LogId::from)
}

/// The bytes of a vote.
pub fn encode_vote(vote: &Vote) -> Vec<u8> {
    let LeaderId { term, node_id: node } = vote.leader_id;
    codec::encode(&VoteRecord { term, node, committed: vote.committed })
}

/// The vote that `bytes` hold.
///
/// # Errors
/// [`StoreError::Damaged`] when they are none.
pub fn decode_vote(bytes: &[u8]) -> Result<Vote, StoreError> {
    let VoteRecord { term, node, committed } = codec::decode(bytes)?;
    Ok(Vote { leader_id: LeaderId { term, node_id: node }, committed })
}

/// The bytes of a membership with its position.
pub fn encode_membership(stored: &StoredMembership) -> Vec<u8> {
    codec::encode(&StoredMembershipRecord {
        at: stored.log_id().as_ref().map(PositionRecord::from),
        membership: MembershipRecord::from(stored.membership()),
    })
}

/// The membership that `bytes` hold.
///
/// # Errors
/// [`StoreError::Damaged`] when they are none.
pub fn decode_membership(bytes: &[u8]) -> Result<StoredMembership, StoreError> {
    let record: StoredMembershipRecord = codec::decode(bytes)?;
    let membership = record.membership.into_membership()?;
    Ok(StoredMembership::new(record.at.map(LogId::from), membership))
}

/// About how many bytes an entry takes in memory: for bounds, which need no exact figure.
pub fn weight(entry: &Entry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(proposal) => {
            COMMAND_BYTES + proposal.commands.iter().map(command_weight).sum::<usize>()
        }
        _ => COMMAND_BYTES,
    }
}

/// About how many bytes a command takes, in memory and on its way to other nodes.
pub fn command_weight(command: &Command) -> usize {
    let message = |message: &StoredMessage| {
        message.topic.len() + message.properties.len() + message.payload.len()
    };
    COMMAND_BYTES
        + match command {
            Command::Retain(retained) => message(retained),
            Command::OpenSession(open) => {
                open.will.as_ref().map_or(0, |will| message(&will.message))
            }
            Command::Subscribe { subscriptions, .. } => {
                subscriptions.iter().map(|one| one.filter.len() + 48).sum()
            }
            Command::Unsubscribe { filters: names, .. }
            | Command::SweepRetained { topics: names, .. } => {
                names.iter().map(|name| name.len() + 24).sum()
            }
            Command::SetConfig { value, .. } => value.as_ref().map_or(0, Vec::len),
            _ => 0,
        }
}

/// What any command takes.
const COMMAND_BYTES: usize = 256;

impl MembershipRecord {
    fn into_membership(self) -> Result<Membership, StoreError> {
        let nodes: BTreeMap<_, _> =
            self.nodes.into_iter().map(|(id, address)| (id, Peer { address })).collect();
        Membership::new(self.configs, nodes)
            .map_err(|error| StoreError::Damaged(format!("a membership that cannot be: {error}")))
    }
}

impl From<&Membership> for MembershipRecord {
    fn from(membership: &Membership) -> Self {
        let nodes = membership.nodes().map(|(&id, peer)| (id, peer.address.clone()));
        Self { configs: membership.get_joint_config().clone(), nodes: nodes.collect() }
    }
}

impl From<&LogId> for PositionRecord {
    fn from(position: &LogId) -> Self {
        let LeaderId { term, node_id: node } = position.leader_id;
        Self { term, node, index: position.index }
    }
}

impl From<PositionRecord> for LogId {
    fn from(record: PositionRecord) -> Self {
        let leader_id = LeaderId { term: record.term, node_id: record.node };
        Self { leader_id, index: record.index }
    }
}

fn extend<T: Serialize>(out: Vec<u8>, body: &T) -> Vec<u8> {
    // derived over owned data, as in `codec`
    postcard::to_extend(body, out).expect("derived records always encode")
}

fn take<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, StoreError> {
    match postcard::take_from_bytes(bytes) {
        Ok((body, [])) => Ok(body),
        Ok((_, rest)) => {
            Err(StoreError::Damaged(format!("{} bytes too many in a log entry", rest.len())))
        }
        Err(error) => Err(StoreError::Damaged(format!("a log entry that cannot be read: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(index: u64) -> LogId {
        LogId { leader_id: LeaderId { term: 3, node_id: 7 }, index }
    }

    fn membership() -> Membership {
        let nodes = BTreeMap::from([
            (1, Peer { address: "a:1".into() }),
            (2, Peer::default()),
            (9, Peer { address: "learner:1".into() }),
        ]);
        Membership::new(vec![BTreeSet::from([1, 2]), BTreeSet::from([2])], nodes).expect("valid")
    }

    fn entries() -> Vec<Entry> {
        let commands = vec![
            Command::Unretain { topic: "a/b".into() },
            Command::SetConfig { key: "k".into(), expected: Some(4), value: Some(vec![0; 300]) },
        ];
        [
            EntryPayload::Blank,
            EntryPayload::Normal(Proposal { commands }),
            EntryPayload::Membership(membership()),
        ]
        .into_iter()
        .zip(258..)
        .map(|(payload, index)| Entry { log_id: position(index), payload })
        .collect()
    }

    #[test]
    fn the_layout_of_an_entry_stays() {
        let bytes = encode_entry(&entries()[0]);
        let mut expected = vec![1, 3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([2, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn what_is_written_is_read() {
        for entry in entries() {
            assert_eq!(decode_entry(&encode_entry(&entry)).expect("reads"), entry);
        }
        let vote = Vote { leader_id: LeaderId { term: 5, node_id: 2 }, committed: true };
        assert_eq!(decode_vote(&encode_vote(&vote)).expect("reads"), vote);
        assert_eq!(decode_position(&encode_position(&position(9))).expect("reads"), position(9));
        for stored in
            [StoredMembership::default(), StoredMembership::new(Some(position(4)), membership())]
        {
            assert_eq!(decode_membership(&encode_membership(&stored)).expect("reads"), stored);
        }
    }

    #[test]
    fn no_damage_is_taken_for_an_entry_and_none_panics() {
        for entry in entries() {
            let bytes = encode_entry(&entry);
            for end in 0..bytes.len() {
                assert!(decode_entry(&bytes[..end]).is_err(), "{end} of {}", bytes.len());
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(decode_entry(&longer).is_err());
            let mut newer = bytes;
            newer[0] = 2;
            let error = decode_entry(&newer).expect_err("newer");
            assert!(error.to_string().contains("version 2"), "{error}");
        }
    }
}
