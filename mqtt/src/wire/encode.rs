//! Packets to bytes. What a version has no place for is left out: 3.x has no properties, and
//! reason codes in CONNACK and SUBACK alone.

use super::frame::{MAX_PACKET_BYTES, put_variable_integer, variable_integer_bytes};
use super::properties::id;
use super::{
    Ack, AckKind, ConnAck, Connect, Disconnect, Filters, Packet, PacketId, PacketType, Properties,
    Publish, QoS, ReasonCode, SubAck, Version,
};

/// A PUBLISH without its payload, in the parts that a broker has at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishHead<'a> {
    /// Sent before.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// Retain flag.
    pub retain: bool,
    /// Topic name; empty when `topic_alias` stands for it.
    pub topic: &'a str,
    /// Must be there exactly when `qos` is above 0.
    pub packet_id: Option<PacketId>,
    /// What is left of the message's life, in seconds.
    pub message_expiry_s: Option<u32>,
    /// Alias, at least 1.
    pub topic_alias: Option<u16>,
    /// Identifiers of the subscriptions that it is for, each 1 to 268 435 455.
    pub subscription_ids: &'a [u32],
    /// Raw properties that are sent as they are; see [`Properties::copy_forwardable`].
    pub forwarded: &'a [u8],
    /// Size of the payload that follows.
    pub payload_len: usize,
}

impl PublishHead<'_> {
    fn properties_bytes(&self) -> usize {
        let ids = self.subscription_ids.iter().map(|id| 1 + variable_integer_bytes(*id));
        self.forwarded.len()
            + self.message_expiry_s.map_or(0, |_| 5)
            + self.topic_alias.map_or(0, |_| 3)
            + ids.sum::<usize>()
    }

    /// The remaining length of the packet, and its property length within.
    #[inline]
    fn lengths(&self, version: Version) -> (usize, usize) {
        let plain = 2 + self.topic.len() + self.packet_id.map_or(0, |_| 2) + self.payload_len;
        if version != Version::V5 {
            return (plain, 0);
        }
        let properties = self.properties_bytes();
        (plain + variable_integer_bytes(properties as u32) + properties, properties)
    }
}

/// Size of the whole packet in bytes, payload included.
#[inline]
pub fn publish_size_bytes(version: Version, head: &PublishHead<'_>) -> usize {
    let (remaining, _) = head.lengths(version);
    1 + variable_integer_bytes(remaining.min(MAX_PACKET_BYTES) as u32) + remaining
}

/// Appends everything of a PUBLISH that stands before its payload; `payload_len` bytes of payload
/// must follow.
///
/// The packet must fit: check [`publish_size_bytes`] against the receiver's maximum packet size
/// and [`MAX_PACKET_BYTES`](super::MAX_PACKET_BYTES) first; no header can tell of a larger one.
#[inline]
pub fn encode_publish_head(out: &mut Vec<u8>, version: Version, head: &PublishHead<'_>) {
    debug_assert_eq!(head.packet_id.is_some(), head.qos != QoS::AtMostOnce);
    let (remaining, properties) = head.lengths(version);
    let payload = head.payload_len;
    out.reserve(5 + remaining - payload);
    let flags = u8::from(head.dup) << 3 | (head.qos as u8) << 1 | u8::from(head.retain);
    out.push((PacketType::Publish as u8) << 4 | flags);
    put_variable_integer(out, remaining as u32);
    put_binary(out, head.topic.as_bytes());
    if let Some(id) = head.packet_id {
        put_u16(out, id.get());
    }
    if version != Version::V5 {
        return;
    }
    put_variable_integer(out, properties as u32);
    if let Some(alias) = head.topic_alias {
        out.push(id::TOPIC_ALIAS);
        put_u16(out, alias);
    }
    if let Some(seconds) = head.message_expiry_s {
        out.push(id::MESSAGE_EXPIRY);
        out.extend_from_slice(&seconds.to_be_bytes());
    }
    for subscription in head.subscription_ids {
        out.push(id::SUBSCRIPTION_ID);
        put_variable_integer(out, *subscription);
    }
    out.extend_from_slice(head.forwarded);
}

/// Appends a PUBACK, PUBREC, PUBREL or PUBCOMP without properties; a success, and any in 3.x, in
/// the short form.
#[inline]
pub fn encode_ack(
    out: &mut Vec<u8>,
    version: Version,
    kind: AckKind,
    packet_id: PacketId,
    reason: ReasonCode,
) {
    let first = ack_first_byte(kind);
    let [high, low] = packet_id.get().to_be_bytes();
    if version == Version::V5 && reason != ReasonCode::Success {
        out.extend_from_slice(&[first, 3, high, low, reason.as_u8()]);
    } else {
        out.extend_from_slice(&[first, 2, high, low]);
    }
}

/// Appends a PINGRESP.
pub fn encode_pingresp(out: &mut Vec<u8>) {
    out.extend_from_slice(&[(PacketType::PingResp as u8) << 4, 0]);
}

/// Appends any packet.
///
/// A CONNECT is encoded for the version that it names. What does not exist in 3.x is left out:
/// nothing at all is appended for an AUTH. The packet must not exceed
/// [`MAX_PACKET_BYTES`](super::MAX_PACKET_BYTES).
pub fn encode(packet: &Packet<'_>, version: Version, out: &mut Vec<u8>) {
    let v5 = version == Version::V5;
    match packet {
        Packet::Connect(connect) => put_connect(out, connect),
        Packet::ConnAck(connack) => put_connack(out, version, connack),
        Packet::Publish(publish) => put_publish(out, version, publish),
        Packet::Ack(ack) => put_ack(out, version, ack),
        Packet::Subscribe(it) => {
            put_filters(out, version, 0x82, it.packet_id, it.properties, it.filters);
        }
        Packet::Unsubscribe(it) => {
            put_filters(out, version, 0xa2, it.packet_id, it.properties, it.filters);
        }
        Packet::SubAck(suback) => put_suback(out, version, suback),
        Packet::UnsubAck(unsuback) => put_unsuback(out, version, unsuback),
        Packet::PingReq => out.extend_from_slice(&[(PacketType::PingReq as u8) << 4, 0]),
        Packet::PingResp => encode_pingresp(out),
        Packet::Disconnect(disconnect) if v5 => {
            put_reason_only(out, PacketType::Disconnect, disconnect);
        }
        Packet::Disconnect(_) => out.extend_from_slice(&[(PacketType::Disconnect as u8) << 4, 0]),
        Packet::Auth(auth) if v5 => put_reason_only(out, PacketType::Auth, auth),
        Packet::Auth(_) => {}
    }
}

fn put_connect(out: &mut Vec<u8>, connect: &Connect<'_>) {
    let v5 = connect.version == Version::V5;
    let name: &[u8] = if connect.version == Version::V3_1 { b"MQIsdp" } else { b"MQTT" };
    let will_bytes = connect.will.map_or(0, |will| {
        properties_bytes(v5, will.properties) + 2 + will.topic.len() + 2 + will.payload.len()
    });
    let remaining = 2
        + name.len()
        + 4
        + properties_bytes(v5, connect.properties)
        + 2
        + connect.client_id.len()
        + will_bytes
        + connect.username.map_or(0, |name| 2 + name.len())
        + connect.password.map_or(0, |password| 2 + password.len());
    put_header(out, (PacketType::Connect as u8) << 4, remaining);
    put_binary(out, name);
    out.push(connect.version as u8);
    out.push(
        u8::from(connect.username.is_some()) << 7
            | u8::from(connect.password.is_some()) << 6
            | connect
                .will
                .map_or(0, |will| u8::from(will.retain) << 5 | (will.qos as u8) << 3 | 0b100)
            | u8::from(connect.clean_start) << 1,
    );
    put_u16(out, connect.keep_alive_s);
    put_properties(out, v5, connect.properties);
    put_binary(out, connect.client_id.as_bytes());
    if let Some(will) = connect.will {
        put_properties(out, v5, will.properties);
        put_binary(out, will.topic.as_bytes());
        put_binary(out, will.payload);
    }
    if let Some(name) = connect.username {
        put_binary(out, name.as_bytes());
    }
    if let Some(password) = connect.password {
        put_binary(out, password);
    }
}

fn put_connack(out: &mut Vec<u8>, version: Version, connack: &ConnAck<'_>) {
    let v5 = version == Version::V5;
    put_header(out, (PacketType::ConnAck as u8) << 4, 2 + properties_bytes(v5, connack.properties));
    // A refusal resumes nothing [MQTT-3.2.2-6]; 3.1 does not know the flag.
    let present = connack.session_present
        && connack.reason == ReasonCode::Success
        && version != Version::V3_1;
    out.push(u8::from(present));
    out.push(if v5 { connack.reason.as_u8() } else { connack.reason.to_v3_connack() });
    put_properties(out, v5, connack.properties);
}

fn put_publish(out: &mut Vec<u8>, version: Version, publish: &Publish<'_>) {
    encode_publish_head(
        out,
        version,
        &PublishHead {
            dup: publish.dup,
            qos: publish.qos,
            retain: publish.retain,
            topic: publish.topic,
            packet_id: publish.packet_id,
            message_expiry_s: None,
            topic_alias: None,
            subscription_ids: &[],
            forwarded: publish.properties.as_bytes(),
            payload_len: publish.payload.len(),
        },
    );
    out.extend_from_slice(publish.payload);
}

fn put_ack(out: &mut Vec<u8>, version: Version, ack: &Ack<'_>) {
    if version != Version::V5 || ack.properties.is_empty() {
        return encode_ack(out, version, ack.kind, ack.packet_id, ack.reason);
    }
    put_header(out, ack_first_byte(ack.kind), 3 + properties_bytes(true, ack.properties));
    put_u16(out, ack.packet_id.get());
    out.push(ack.reason.as_u8());
    put_properties(out, true, ack.properties);
}

fn put_filters(
    out: &mut Vec<u8>,
    version: Version,
    first: u8,
    packet_id: PacketId,
    properties: Properties<'_>,
    filters: Filters<'_>,
) {
    let v5 = version == Version::V5;
    let remaining = 2 + properties_bytes(v5, properties) + filters.raw.len();
    put_header(out, first, remaining);
    put_u16(out, packet_id.get());
    put_properties(out, v5, properties);
    if v5 || !filters.with_options {
        return out.extend_from_slice(filters.raw);
    }
    for (filter, options) in filters.iter() {
        put_binary(out, filter.as_bytes());
        out.push(options.qos as u8);
    }
}

fn put_suback(out: &mut Vec<u8>, version: Version, suback: &SubAck<'_>) {
    let v5 = version == Version::V5;
    let remaining = 2 + properties_bytes(v5, suback.properties) + suback.codes.len();
    put_header(out, (PacketType::SubAck as u8) << 4, remaining);
    put_u16(out, suback.packet_id.get());
    put_properties(out, v5, suback.properties);
    if v5 {
        out.extend_from_slice(suback.codes);
    } else {
        // 3.1.1 has one word for all failures.
        out.extend(suback.codes.iter().map(|code| (*code).min(0x80)));
    }
}

fn put_unsuback(out: &mut Vec<u8>, version: Version, unsuback: &SubAck<'_>) {
    let v5 = version == Version::V5;
    let codes = if v5 { unsuback.codes } else { &[] };
    let remaining = 2 + properties_bytes(v5, unsuback.properties) + codes.len();
    put_header(out, (PacketType::UnsubAck as u8) << 4, remaining);
    put_u16(out, unsuback.packet_id.get());
    put_properties(out, v5, unsuback.properties);
    out.extend_from_slice(codes);
}

/// DISCONNECT or AUTH of version 5. The property length could be left out when it is 0, but a
/// client in wide use cannot read a DISCONNECT without it.
fn put_reason_only(out: &mut Vec<u8>, packet: PacketType, it: &Disconnect<'_>) {
    let first = (packet as u8) << 4;
    match (it.reason, it.properties.is_empty()) {
        (ReasonCode::Success, true) => out.extend_from_slice(&[first, 0]),
        (reason, true) => out.extend_from_slice(&[first, 2, reason.as_u8(), 0]),
        (reason, false) => {
            put_header(out, first, 1 + properties_bytes(true, it.properties));
            out.push(reason.as_u8());
            put_properties(out, true, it.properties);
        }
    }
}

/// PUBREL has the fixed flags 0b0010, the others none.
const fn ack_first_byte(kind: AckKind) -> u8 {
    (kind as u8) << 4 | if matches!(kind, AckKind::PubRel) { 0x2 } else { 0 }
}

fn put_header(out: &mut Vec<u8>, first: u8, remaining: usize) {
    out.reserve(5 + remaining);
    out.push(first);
    put_variable_integer(out, remaining as u32);
}

fn properties_bytes(v5: bool, properties: Properties<'_>) -> usize {
    let length = properties.as_bytes().len();
    if v5 { variable_integer_bytes(length as u32) + length } else { 0 }
}

fn put_properties(out: &mut Vec<u8>, v5: bool, properties: Properties<'_>) {
    if v5 {
        put_variable_integer(out, properties.as_bytes().len() as u32);
        out.extend_from_slice(properties.as_bytes());
    }
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends a string or binary that fits its two-byte length, as everything decoded does.
fn put_binary(out: &mut Vec<u8>, bytes: &[u8]) {
    debug_assert!(bytes.len() <= usize::from(u16::MAX));
    put_u16(out, bytes.len() as u16);
    out.extend_from_slice(bytes);
}
