//! Version 5 properties: a validated slice, read in place.

use super::{DecodeError, QoS, frame};

/// Property identifiers.
pub(super) mod id {
    pub const PAYLOAD_FORMAT: u8 = 1;
    pub const MESSAGE_EXPIRY: u8 = 2;
    pub const CONTENT_TYPE: u8 = 3;
    pub const RESPONSE_TOPIC: u8 = 8;
    pub const CORRELATION_DATA: u8 = 9;
    pub const SUBSCRIPTION_ID: u8 = 11;
    pub const SESSION_EXPIRY: u8 = 17;
    pub const ASSIGNED_CLIENT_ID: u8 = 18;
    pub const SERVER_KEEP_ALIVE: u8 = 19;
    pub const AUTH_METHOD: u8 = 21;
    pub const AUTH_DATA: u8 = 22;
    pub const REQUEST_PROBLEM_INFORMATION: u8 = 23;
    pub const WILL_DELAY: u8 = 24;
    pub const REQUEST_RESPONSE_INFORMATION: u8 = 25;
    pub const RESPONSE_INFORMATION: u8 = 26;
    pub const SERVER_REFERENCE: u8 = 28;
    pub const REASON_STRING: u8 = 31;
    pub const RECEIVE_MAXIMUM: u8 = 33;
    pub const TOPIC_ALIAS_MAXIMUM: u8 = 34;
    pub const TOPIC_ALIAS: u8 = 35;
    pub const MAXIMUM_QOS: u8 = 36;
    pub const RETAIN_AVAILABLE: u8 = 37;
    pub const USER_PROPERTY: u8 = 38;
    pub const MAXIMUM_PACKET_SIZE: u8 = 39;
    pub const WILDCARD_AVAILABLE: u8 = 40;
    pub const SUBSCRIPTION_IDS_AVAILABLE: u8 = 41;
    pub const SHARED_AVAILABLE: u8 = 42;
}

/// The properties of one packet, validated: allowed there, in range, each as often as it may be.
///
/// Holds the bytes behind the property length. Each getter walks them; packets have few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    raw: &'a [u8],
}

/// One property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property<'a> {
    /// Whether the payload is UTF-8.
    PayloadIsUtf8(bool),
    /// Seconds a message lives.
    MessageExpiryIntervalS(u32),
    /// What the payload is, in the application's words.
    ContentType(&'a str),
    /// Where the answer to a request goes.
    ResponseTopic(&'a str),
    /// What tells the requester which request an answer is for.
    CorrelationData(&'a [u8]),
    /// Identifier of a subscription, 1 to 268 435 455.
    SubscriptionId(u32),
    /// Seconds a session outlives its connection; `u32::MAX` is for ever.
    SessionExpiryIntervalS(u32),
    /// The identifier that the server gave the client.
    AssignedClientId(&'a str),
    /// Seconds of keep-alive that the server asks for.
    ServerKeepAliveS(u16),
    /// Name of the extended authentication method.
    AuthMethod(&'a str),
    /// Data of the extended authentication.
    AuthData(&'a [u8]),
    /// Whether the client wants reason strings and user properties with any packet.
    RequestProblemInformation(bool),
    /// Seconds between the end of a connection and its will.
    WillDelayIntervalS(u32),
    /// Whether the client wants response information.
    RequestResponseInformation(bool),
    /// What response topics are built on.
    ResponseInformation(&'a str),
    /// Another server to use.
    ServerReference(&'a str),
    /// The reason, for people.
    ReasonString(&'a str),
    /// Unacknowledged QoS 1 and 2 messages the sender takes.
    ReceiveMaximum(u16),
    /// Highest topic alias the sender takes.
    TopicAliasMaximum(u16),
    /// A number that stands for the topic name.
    TopicAlias(u16),
    /// Highest QoS the server takes.
    MaximumQos(QoS),
    /// Whether the server retains messages.
    RetainAvailable(bool),
    /// A name and a value of the application's own.
    UserProperty(&'a str, &'a str),
    /// Largest packet the sender takes, in bytes with its header.
    MaximumPacketSizeBytes(u32),
    /// Whether the server takes wildcard subscriptions.
    WildcardAvailable(bool),
    /// Whether the server takes subscription identifiers.
    SubscriptionIdsAvailable(bool),
    /// Whether the server takes shared subscriptions.
    SharedAvailable(bool),
}

/// Declares the getters that read one property by its shape.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $read:ident -> $result:ty, $id:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(&self) -> Option<$result> {
            self.find(id::$id).and_then($read)
        })*
    };
}

impl<'a> Properties<'a> {
    /// No properties: what 3.x has.
    pub const EMPTY: Properties<'static> = Properties { raw: &[] };

    /// Takes bytes that are known to be valid properties.
    pub(super) const fn trusted(raw: &'a [u8]) -> Self {
        Self { raw }
    }

    /// The bytes, without the property length.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Property<'a>> + use<'a> {
        self.items().filter_map(|item| item.property())
    }

    getters! {
        /// Seconds a session outlives its connection; `u32::MAX` is for ever.
        session_expiry_interval_s: u32_of -> u32, SESSION_EXPIRY;
        /// Unacknowledged QoS 1 and 2 messages the sender takes, at least 1.
        receive_maximum: u16_of -> u16, RECEIVE_MAXIMUM;
        /// Largest packet the sender takes, in bytes with its header, at least 1.
        maximum_packet_size_bytes: u32_of -> u32, MAXIMUM_PACKET_SIZE;
        /// A number that stands for the topic name, at least 1.
        topic_alias: u16_of -> u16, TOPIC_ALIAS;
        /// Highest topic alias the sender takes.
        topic_alias_maximum: u16_of -> u16, TOPIC_ALIAS_MAXIMUM;
        /// Seconds a message lives.
        message_expiry_interval_s: u32_of -> u32, MESSAGE_EXPIRY;
        /// Whether the payload is announced as UTF-8.
        payload_is_utf8: flag_of -> bool, PAYLOAD_FORMAT;
        /// What the payload is, in the application's words.
        content_type: str_of -> &'a str, CONTENT_TYPE;
        /// Where the answer to a request goes.
        response_topic: str_of -> &'a str, RESPONSE_TOPIC;
        /// What tells the requester which request an answer is for.
        correlation_data: binary_of -> &'a [u8], CORRELATION_DATA;
        /// Seconds between the end of a connection and its will.
        will_delay_interval_s: u32_of -> u32, WILL_DELAY;
        /// Whether the client wants reason strings and user properties with any packet.
        request_problem_information: flag_of -> bool, REQUEST_PROBLEM_INFORMATION;
        /// Whether the client wants response information.
        request_response_information: flag_of -> bool, REQUEST_RESPONSE_INFORMATION;
        /// The reason, for people.
        reason_string: str_of -> &'a str, REASON_STRING;
        /// Name of the extended authentication method.
        auth_method: str_of -> &'a str, AUTH_METHOD;
        /// Data of the extended authentication.
        auth_data: binary_of -> &'a [u8], AUTH_DATA;
        /// The identifier that the server gave the client.
        assigned_client_id: str_of -> &'a str, ASSIGNED_CLIENT_ID;
        /// Seconds of keep-alive that the server asks for.
        server_keep_alive_s: u16_of -> u16, SERVER_KEEP_ALIVE;
        /// Highest QoS the server takes.
        maximum_qos: qos_of -> QoS, MAXIMUM_QOS;
        /// Whether the server retains messages.
        retain_available: flag_of -> bool, RETAIN_AVAILABLE;
        /// Whether the server takes wildcard subscriptions.
        wildcard_available: flag_of -> bool, WILDCARD_AVAILABLE;
        /// Whether the server takes subscription identifiers.
        subscription_ids_available: flag_of -> bool, SUBSCRIPTION_IDS_AVAILABLE;
        /// Whether the server takes shared subscriptions.
        shared_available: flag_of -> bool, SHARED_AVAILABLE;
        /// What response topics are built on.
        response_information: str_of -> &'a str, RESPONSE_INFORMATION;
        /// Another server to use.
        server_reference: str_of -> &'a str, SERVER_REFERENCE;
    }

    /// The subscription identifiers, in order: one at most in SUBSCRIBE, any number in a server's
    /// PUBLISH.
    pub fn subscription_ids(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.items()
            .filter(|item| item.id == id::SUBSCRIPTION_ID)
            .filter_map(|item| variable_of(item.value))
    }

    /// The user properties, name and value, in order.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.items()
            .filter(|item| item.id == id::USER_PROPERTY)
            .filter_map(|item| pair_of(item.value))
    }

    /// Appends the properties of a PUBLISH or a will that a server sends on as they are and in
    /// their order [MQTT-3.3.2-18]: payload format, content type, response topic, correlation data
    /// and user properties.
    pub fn copy_forwardable(&self, out: &mut Vec<u8>) {
        // Neighbours are copied together: mostly everything is forwardable, or nothing.
        let (mut from, mut at) = (0, 0);
        for item in self.items() {
            let next = at + item.whole.len();
            if !is_forwardable(item.id) {
                out.extend_from_slice(&self.raw[from..at]);
                from = next;
            }
            at = next;
        }
        out.extend_from_slice(&self.raw[from..at]);
    }

    /// The properties of a PUBLISH or a will that a server sends on, when they lie together; the
    /// usual case, and then nothing needs to be copied.
    pub fn forwardable(&self) -> Option<&'a [u8]> {
        let (mut from, mut to, mut at) = (0, 0, 0);
        for item in self.items() {
            let next = at + item.whole.len();
            if is_forwardable(item.id) {
                if to == 0 {
                    from = at;
                } else if to != at {
                    return None;
                }
                to = next;
            }
            at = next;
        }
        Some(&self.raw[from..to])
    }

    fn find(&self, id: u8) -> Option<&'a [u8]> {
        self.items().find(|item| item.id == id).map(|item| item.value)
    }

    fn items(&self) -> Items<'a> {
        Items { rest: self.raw }
    }
}

/// One property as bytes.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    /// Its identifier, known.
    pub id: u8,
    /// Identifier and value.
    pub whole: &'a [u8],
    /// The value; of strings and binaries including the length.
    pub value: &'a [u8],
}

/// Walks validated properties.
struct Items<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    #[inline]
    fn next(&mut self) -> Option<Item<'a>> {
        // Was validated, so an error means no more than the end.
        let (item, rest) = Item::split(self.rest).ok()?;
        self.rest = rest;
        Some(item)
    }
}

impl<'a> Item<'a> {
    /// The first property of `raw`, which is not empty, and what follows it.
    #[inline]
    pub fn split(raw: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let (&id, rest) = raw.split_first().ok_or(DecodeError::Truncated)?;
        let length = match id {
            id::PAYLOAD_FORMAT
            | id::REQUEST_PROBLEM_INFORMATION
            | id::REQUEST_RESPONSE_INFORMATION
            | id::MAXIMUM_QOS
            | id::RETAIN_AVAILABLE
            | id::WILDCARD_AVAILABLE
            | id::SUBSCRIPTION_IDS_AVAILABLE
            | id::SHARED_AVAILABLE => 1,
            id::SERVER_KEEP_ALIVE
            | id::RECEIVE_MAXIMUM
            | id::TOPIC_ALIAS_MAXIMUM
            | id::TOPIC_ALIAS => 2,
            id::MESSAGE_EXPIRY | id::SESSION_EXPIRY | id::WILL_DELAY | id::MAXIMUM_PACKET_SIZE => 4,
            id::SUBSCRIPTION_ID => frame::variable_integer(rest)?.ok_or(DecodeError::Truncated)?.1,
            id::CONTENT_TYPE
            | id::RESPONSE_TOPIC
            | id::CORRELATION_DATA
            | id::ASSIGNED_CLIENT_ID
            | id::AUTH_METHOD
            | id::AUTH_DATA
            | id::RESPONSE_INFORMATION
            | id::SERVER_REFERENCE
            | id::REASON_STRING => prefixed_bytes(rest)?,
            id::USER_PROPERTY => {
                let name_bytes = prefixed_bytes(rest)?;
                let value = rest.get(name_bytes..).ok_or(DecodeError::Truncated)?;
                name_bytes + prefixed_bytes(value)?
            }
            // All identifiers so far fit one byte, so a longer one is unknown too.
            _ => return Err(DecodeError::UnknownProperty),
        };
        let (value, rest) = rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        Ok((Self { id, whole: &raw[..=length], value }, rest))
    }

    fn property(&self) -> Option<Property<'a>> {
        let value = self.value;
        Some(match self.id {
            id::PAYLOAD_FORMAT => Property::PayloadIsUtf8(flag_of(value)?),
            id::MESSAGE_EXPIRY => Property::MessageExpiryIntervalS(u32_of(value)?),
            id::CONTENT_TYPE => Property::ContentType(str_of(value)?),
            id::RESPONSE_TOPIC => Property::ResponseTopic(str_of(value)?),
            id::CORRELATION_DATA => Property::CorrelationData(binary_of(value)?),
            id::SUBSCRIPTION_ID => Property::SubscriptionId(variable_of(value)?),
            id::SESSION_EXPIRY => Property::SessionExpiryIntervalS(u32_of(value)?),
            id::ASSIGNED_CLIENT_ID => Property::AssignedClientId(str_of(value)?),
            id::SERVER_KEEP_ALIVE => Property::ServerKeepAliveS(u16_of(value)?),
            id::AUTH_METHOD => Property::AuthMethod(str_of(value)?),
            id::AUTH_DATA => Property::AuthData(binary_of(value)?),
            id::REQUEST_PROBLEM_INFORMATION => Property::RequestProblemInformation(flag_of(value)?),
            id::WILL_DELAY => Property::WillDelayIntervalS(u32_of(value)?),
            id::REQUEST_RESPONSE_INFORMATION => {
                Property::RequestResponseInformation(flag_of(value)?)
            }
            id::RESPONSE_INFORMATION => Property::ResponseInformation(str_of(value)?),
            id::SERVER_REFERENCE => Property::ServerReference(str_of(value)?),
            id::REASON_STRING => Property::ReasonString(str_of(value)?),
            id::RECEIVE_MAXIMUM => Property::ReceiveMaximum(u16_of(value)?),
            id::TOPIC_ALIAS_MAXIMUM => Property::TopicAliasMaximum(u16_of(value)?),
            id::TOPIC_ALIAS => Property::TopicAlias(u16_of(value)?),
            id::MAXIMUM_QOS => Property::MaximumQos(qos_of(value)?),
            id::RETAIN_AVAILABLE => Property::RetainAvailable(flag_of(value)?),
            id::USER_PROPERTY => {
                let (name, value) = pair_of(value)?;
                Property::UserProperty(name, value)
            }
            id::MAXIMUM_PACKET_SIZE => Property::MaximumPacketSizeBytes(u32_of(value)?),
            id::WILDCARD_AVAILABLE => Property::WildcardAvailable(flag_of(value)?),
            id::SUBSCRIPTION_IDS_AVAILABLE => Property::SubscriptionIdsAvailable(flag_of(value)?),
            id::SHARED_AVAILABLE => Property::SharedAvailable(flag_of(value)?),
            _ => return None,
        })
    }
}

const fn is_forwardable(id: u8) -> bool {
    matches!(
        id,
        id::PAYLOAD_FORMAT
            | id::CONTENT_TYPE
            | id::RESPONSE_TOPIC
            | id::CORRELATION_DATA
            | id::USER_PROPERTY
    )
}

/// Size of a string or binary with its length in front.
fn prefixed_bytes(raw: &[u8]) -> Result<usize, DecodeError> {
    let (length, _) = raw.split_first_chunk().ok_or(DecodeError::Truncated)?;
    Ok(2 + usize::from(u16::from_be_bytes(*length)))
}

fn flag_of(value: &[u8]) -> Option<bool> {
    value.first().map(|byte| *byte != 0)
}

fn qos_of(value: &[u8]) -> Option<QoS> {
    value.first().and_then(|byte| QoS::from_u8(*byte))
}

fn u16_of(value: &[u8]) -> Option<u16> {
    value.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn u32_of(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

pub(super) fn variable_of(value: &[u8]) -> Option<u32> {
    frame::variable_integer(value).ok().flatten().map(|(value, _)| value)
}

pub(super) fn binary_of(value: &[u8]) -> Option<&[u8]> {
    value.get(2..)
}

fn str_of(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.get(2..)?).ok()
}

fn pair_of(value: &[u8]) -> Option<(&str, &str)> {
    let (name, value) = value.split_at_checked(prefixed_bytes(value).ok()?)?;
    Some((str_of(name)?, str_of(value)?))
}

/// Name and value of a user property as bytes.
pub(super) fn raw_pair_of(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, value) = value.split_at_checked(prefixed_bytes(value).ok()?)?;
    Some((binary_of(name)?, binary_of(value)?))
}
