//! The packets, borrowed from the bytes they were decoded from.

use std::num::NonZeroU16;

use super::{PacketType, Properties, ReasonCode};

/// A packet identifier; zero is not one [MQTT-2.2.1-3].
pub type PacketId = NonZeroU16;

/// A version of the protocol, by its protocol level byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Version {
    /// MQTT 3.1, protocol name `MQIsdp`.
    V3_1 = 3,
    /// MQTT 3.1.1.
    V3_1_1 = 4,
    /// MQTT 5.0.
    V5 = 5,
}

/// Quality of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    /// Sent once, not acknowledged.
    #[default]
    AtMostOnce = 0,
    /// Acknowledged by PUBACK; may arrive twice.
    AtLeastOnce = 1,
    /// PUBREC, PUBREL, PUBCOMP; arrives once.
    ExactlyOnce = 2,
}

impl QoS {
    /// The QoS of its two bits; `None` for 3 and above.
    #[inline]
    pub const fn from_u8(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

/// Any control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Client asks to connect.
    Connect(Connect<'a>),
    /// Server answers a CONNECT.
    ConnAck(ConnAck<'a>),
    /// A message.
    Publish(Publish<'a>),
    /// PUBACK, PUBREC, PUBREL or PUBCOMP.
    Ack(Ack<'a>),
    /// Client subscribes.
    Subscribe(Subscribe<'a>),
    /// Server answers a SUBSCRIBE.
    SubAck(SubAck<'a>),
    /// Client unsubscribes.
    Unsubscribe(Unsubscribe<'a>),
    /// Server answers an UNSUBSCRIBE.
    UnsubAck(SubAck<'a>),
    /// Keep-alive question.
    PingReq,
    /// Keep-alive answer.
    PingResp,
    /// Either side ends the connection.
    Disconnect(Disconnect<'a>),
    /// Extended authentication, version 5 only.
    Auth(Disconnect<'a>),
}

/// CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The protocol version that the client speaks.
    pub version: Version,
    /// Clean Start (5.0) or Clean Session (3.x).
    pub clean_start: bool,
    /// Seconds; 0 turns keep-alive off.
    pub keep_alive_s: u16,
    /// Client identifier, possibly empty.
    pub client_id: &'a str,
    /// Message to publish when the client vanishes.
    pub will: Option<Will<'a>>,
    /// User name.
    pub username: Option<&'a str>,
    /// Password.
    pub password: Option<&'a [u8]>,
    /// CONNECT properties (empty in 3.x).
    pub properties: Properties<'a>,
}

/// The will inside a CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
    /// QoS to publish it with.
    pub qos: QoS,
    /// Whether to retain it.
    pub retain: bool,
    /// Will properties (empty in 3.x), the delay among them.
    pub properties: Properties<'a>,
}

/// CONNACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnAck<'a> {
    /// Whether the server resumes a session.
    pub session_present: bool,
    /// Result; in 3.x encoded as the nearest return code.
    pub reason: ReasonCode,
    /// CONNACK properties.
    pub properties: Properties<'a>,
}

/// PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Sent before.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Retain flag.
    pub retain: bool,
    /// Topic name; empty when a topic alias stands for it.
    pub topic: &'a str,
    /// Present exactly when `qos` is above 0.
    pub packet_id: Option<PacketId>,
    /// PUBLISH properties.
    pub properties: Properties<'a>,
    /// Payload.
    pub payload: &'a [u8],
}

/// Which of the four acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AckKind {
    /// QoS 1.
    PubAck = 4,
    /// QoS 2, first answer.
    PubRec = 5,
    /// QoS 2, release.
    PubRel = 6,
    /// QoS 2, end.
    PubComp = 7,
}

impl AckKind {
    /// Its packet type.
    pub const fn packet_type(self) -> PacketType {
        match self {
            Self::PubAck => PacketType::PubAck,
            Self::PubRec => PacketType::PubRec,
            Self::PubRel => PacketType::PubRel,
            Self::PubComp => PacketType::PubComp,
        }
    }
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// Which one.
    pub kind: AckKind,
    /// Of the PUBLISH that it answers.
    pub packet_id: PacketId,
    /// Result; always success in 3.x.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties<'a>,
}

/// SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// Packet identifier.
    pub packet_id: PacketId,
    /// Properties.
    pub properties: Properties<'a>,
    /// Filters and options, checked, at least one; iterate with [`Filters::iter`].
    pub filters: Filters<'a>,
}

/// UNSUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// Packet identifier.
    pub packet_id: PacketId,
    /// Properties.
    pub properties: Properties<'a>,
    /// Filters, checked, at least one; their options are the default.
    pub filters: Filters<'a>,
}

/// The raw filter list of a SUBSCRIBE or UNSUBSCRIBE, already validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filters<'a> {
    pub(super) raw: &'a [u8],
    pub(super) with_options: bool,
}

/// Subscription options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubscribeOptions {
    /// Maximum QoS of deliveries.
    pub qos: QoS,
    /// Do not deliver this client's own messages.
    pub no_local: bool,
    /// Keep the retain flag as published.
    pub retain_as_published: bool,
    /// When to send retained messages.
    pub retain_handling: RetainHandling,
}

/// When a subscription is sent the retained messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RetainHandling {
    /// At every SUBSCRIBE.
    #[default]
    Always = 0,
    /// Only when the subscription is new.
    IfNew = 1,
    /// Never.
    Never = 2,
}

/// SUBACK or UNSUBACK (whose codes are empty in 3.x).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubAck<'a> {
    /// Of the SUBSCRIBE or UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// Properties.
    pub properties: Properties<'a>,
    /// One reason code byte per filter, in order.
    pub codes: &'a [u8],
}

/// DISCONNECT, and AUTH, which has the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// Why; Normal (0x00) where 3.x sends nothing.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties<'a>,
}
