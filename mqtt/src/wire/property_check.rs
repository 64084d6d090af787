//! Which properties may stand where, and with which values.

use super::properties::{Item, binary_of, id, raw_pair_of, variable_of};
use super::reader::{text, topic_text};
use super::{DecodeError, Properties, frame};

/// Where properties stand. PUBLISH and DISCONNECT differ by sender; a will has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Place {
    Connect,
    Will,
    ConnAck,
    ClientPublish,
    ServerPublish,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
    Ack,
    Subscribe,
    Unsubscribe,
    ClientDisconnect,
    ServerDisconnect,
    Auth,
}

impl<'a> Properties<'a> {
    /// Validates `raw`, the bytes behind the property length, for a place.
    ///
    /// # Errors
    /// The first violation.
    #[inline]
    pub(super) fn check(raw: &'a [u8], place: Place) -> Result<Self, DecodeError> {
        if !raw.is_empty() {
            check_each(raw, place)?;
        }
        Ok(Self::trusted(raw))
    }
}

fn check_each(raw: &[u8], place: Place) -> Result<(), DecodeError> {
    let mut seen = 0u64;
    let mut rest = raw;
    while !rest.is_empty() {
        let (item, behind) = Item::split(rest)?;
        if places(item.id) & (1 << place as u16) == 0 {
            return Err(match (item.id, place) {
                (id::SUBSCRIPTION_ID, Place::ClientPublish) => {
                    DecodeError::SubscriptionIdFromClient
                }
                (id::SESSION_EXPIRY, Place::ServerDisconnect) => {
                    DecodeError::SessionExpiryFromServer
                }
                _ => DecodeError::PropertyNotAllowed,
            });
        }
        let repeats = item.id == id::USER_PROPERTY
            || (item.id == id::SUBSCRIPTION_ID && place == Place::ServerPublish);
        if seen & (1 << item.id) != 0 && !repeats {
            return Err(DecodeError::DuplicateProperty);
        }
        seen |= 1 << item.id;
        check_value(&item)?;
        rest = behind;
    }
    if seen & (1 << id::AUTH_DATA) != 0 && seen & (1 << id::AUTH_METHOD) == 0 {
        return Err(DecodeError::AuthDataWithoutMethod);
    }
    Ok(())
}

/// The places of a known property, one bit each.
const fn places(id: u8) -> u16 {
    const CONNECT: u16 = 1 << Place::Connect as u16;
    const WILL: u16 = 1 << Place::Will as u16;
    const CONNACK: u16 = 1 << Place::ConnAck as u16;
    const SERVER_PUBLISH: u16 = 1 << Place::ServerPublish as u16;
    const PUBLISH: u16 = 1 << Place::ClientPublish as u16 | SERVER_PUBLISH;
    const ACK: u16 = 1 << Place::Ack as u16;
    const SUBSCRIBE: u16 = 1 << Place::Subscribe as u16;
    const CLIENT_DISCONNECT: u16 = 1 << Place::ClientDisconnect as u16;
    const SERVER_DISCONNECT: u16 = 1 << Place::ServerDisconnect as u16;
    const AUTH: u16 = 1 << Place::Auth as u16;
    match id {
        id::PAYLOAD_FORMAT
        | id::MESSAGE_EXPIRY
        | id::CONTENT_TYPE
        | id::RESPONSE_TOPIC
        | id::CORRELATION_DATA => PUBLISH | WILL,
        id::SUBSCRIPTION_ID => SERVER_PUBLISH | SUBSCRIBE,
        id::SESSION_EXPIRY => CONNECT | CONNACK | CLIENT_DISCONNECT,
        id::AUTH_METHOD | id::AUTH_DATA => CONNECT | CONNACK | AUTH,
        id::REQUEST_PROBLEM_INFORMATION | id::REQUEST_RESPONSE_INFORMATION => CONNECT,
        id::WILL_DELAY => WILL,
        id::SERVER_REFERENCE => CONNACK | SERVER_DISCONNECT,
        id::REASON_STRING => CONNACK | ACK | CLIENT_DISCONNECT | SERVER_DISCONNECT | AUTH,
        id::RECEIVE_MAXIMUM | id::TOPIC_ALIAS_MAXIMUM | id::MAXIMUM_PACKET_SIZE => {
            CONNECT | CONNACK
        }
        id::TOPIC_ALIAS => PUBLISH,
        id::USER_PROPERTY => u16::MAX,
        id::ASSIGNED_CLIENT_ID
        | id::SERVER_KEEP_ALIVE
        | id::RESPONSE_INFORMATION
        | id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_AVAILABLE
        | id::SUBSCRIPTION_IDS_AVAILABLE
        | id::SHARED_AVAILABLE => CONNACK,
        _ => 0,
    }
}

fn check_value(item: &Item<'_>) -> Result<(), DecodeError> {
    let zero = || item.value.iter().all(|byte| *byte == 0);
    let refuse = |refused: bool, why| if refused { Err(why) } else { Ok(()) };
    match item.id {
        id::PAYLOAD_FORMAT
        | id::REQUEST_PROBLEM_INFORMATION
        | id::REQUEST_RESPONSE_INFORMATION
        | id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_AVAILABLE
        | id::SUBSCRIPTION_IDS_AVAILABLE
        | id::SHARED_AVAILABLE => {
            refuse(!matches!(item.value, [0 | 1]), DecodeError::BadFlagProperty)
        }
        id::RECEIVE_MAXIMUM => refuse(zero(), DecodeError::ZeroReceiveMaximum),
        id::MAXIMUM_PACKET_SIZE => refuse(zero(), DecodeError::ZeroMaximumPacketSize),
        id::TOPIC_ALIAS => refuse(zero(), DecodeError::ZeroTopicAlias),
        id::SUBSCRIPTION_ID => {
            let value = variable_of(item.value).ok_or(DecodeError::Truncated)?;
            refuse(!frame::is_minimal(value, item.value.len()), DecodeError::BadVariableInteger)?;
            refuse(value == 0, DecodeError::ZeroSubscriptionId)
        }
        id::RESPONSE_TOPIC => {
            let topic = binary_of(item.value).ok_or(DecodeError::Truncated)?;
            topic_text(topic, DecodeError::WildcardInResponseTopic)?;
            refuse(topic.is_empty(), DecodeError::EmptyResponseTopic)
        }
        id::CONTENT_TYPE
        | id::ASSIGNED_CLIENT_ID
        | id::AUTH_METHOD
        | id::RESPONSE_INFORMATION
        | id::SERVER_REFERENCE
        | id::REASON_STRING => text(binary_of(item.value).ok_or(DecodeError::Truncated)?).map(drop),
        id::USER_PROPERTY => {
            let (name, value) = raw_pair_of(item.value).ok_or(DecodeError::Truncated)?;
            text(name)?;
            text(value).map(drop)
        }
        _ => Ok(()),
    }
}
