//! One row for each thing that a packet can say, and for each way in which it can be wrong.

use super::*;

/// Bytes on the wire and what they mean.
pub(super) struct Row {
    pub name: &'static str,
    pub version: Version,
    pub sender: Sender,
    pub bytes: &'static [u8],
    pub expected: Result<Packet<'static>, DecodeError>,
    /// Whether the packet is encoded to the same bytes.
    pub canonical: bool,
}

use DecodeError as E;
use Sender::{Client, Server};
use Version::{V3_1, V3_1_1, V5};

const NO: Properties<'static> = Properties::EMPTY;

pub(super) fn rows() -> Vec<Row> {
    let mut rows = good();
    rows.extend(bad());
    rows
}

fn id(number: u16) -> PacketId {
    PacketId::new(number).unwrap()
}

const fn properties(raw: &'static [u8]) -> Properties<'static> {
    Properties::trusted(raw)
}

fn connect(version: Version, clean_start: bool, client_id: &'static str) -> Connect<'static> {
    Connect {
        version,
        clean_start,
        keep_alive_s: 60,
        client_id,
        will: None,
        username: None,
        password: None,
        properties: NO,
    }
}

fn publish(topic: &'static str, payload: &'static [u8]) -> Publish<'static> {
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic,
        packet_id: None,
        properties: NO,
        payload,
    }
}

fn ack(kind: AckKind, reason: ReasonCode, properties: Properties<'static>) -> Packet<'static> {
    Packet::Ack(Ack { kind, packet_id: id(0x0102), reason, properties })
}

fn connack(session_present: bool, reason: ReasonCode, raw: &'static [u8]) -> Packet<'static> {
    Packet::ConnAck(ConnAck { session_present, reason, properties: properties(raw) })
}

fn suback(raw: &'static [u8], codes: &'static [u8]) -> SubAck<'static> {
    SubAck { packet_id: id(5), properties: properties(raw), codes }
}

fn subscribe(properties: Properties<'static>, raw: &'static [u8]) -> Packet<'static> {
    let filters = Filters { raw, with_options: true };
    Packet::Subscribe(Subscribe { packet_id: id(10), properties, filters })
}

fn unsubscribe(properties: Properties<'static>, raw: &'static [u8]) -> Packet<'static> {
    let filters = Filters { raw, with_options: false };
    Packet::Unsubscribe(Unsubscribe { packet_id: id(10), properties, filters })
}

fn disconnect(reason: ReasonCode, raw: &'static [u8]) -> Disconnect<'static> {
    Disconnect { reason, properties: properties(raw) }
}

// One row is one line or two, so that the bytes can be read beside what they mean.
#[rustfmt::skip]
fn good() -> Vec<Row> {
    let row = |name, version, sender, bytes: &'static [u8], packet| Row {
        name,
        version,
        sender,
        bytes,
        expected: Ok(packet),
        canonical: true,
    };
    let long_form = |row: Row| Row { canonical: false, ..row };
    let (success, error) = (ReasonCode::Success, ReasonCode::UnspecifiedError);
    let will = Will {
        topic: "w",
        payload: b"\xff\x00",
        qos: QoS::ExactlyOnce,
        retain: true,
        properties: NO,
    };
    let qos1 = Publish { qos: QoS::AtLeastOnce, packet_id: Some(id(10)), ..publish("a/b", b"hi") };
    vec![
        row("connect 3.1.1", V3_1_1, Client,
            b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01c",
            Packet::Connect(connect(V3_1_1, true, "c"))),
        row("connect 3.1", V3_1, Client,
            b"\x10\x0f\0\x06MQIsdp\x03\x00\0\x3c\0\x01c",
            Packet::Connect(connect(V3_1, false, "c"))),
        row("connect 5 while 3.1.1 is assumed", V3_1_1, Client,
            b"\x10\x0d\0\x04MQTT\x05\x02\0\x3c\0\0\0",
            Packet::Connect(connect(V5, true, ""))),
        row("connect 3.1.1 with all fields", V3_1_1, Client,
            b"\x10\x1a\0\x04MQTT\x04\xf4\0\x3c\0\x01c\0\x01w\0\x02\xff\0\0\x01u\0\x01p",
            Packet::Connect(Connect {
                will: Some(will),
                username: Some("u"),
                password: Some(b"p"),
                ..connect(V3_1_1, false, "c")
            })),
        row("connect 5 with all properties", V5, Client,
            b"\x10\x4e\0\x04MQTT\x05\x76\0\x3c\
              \x21\x11\0\0\0\x0a\x21\0\x14\x27\0\0\x01\0\x22\0\x05\x19\x01\x17\0\x26\0\x01k\0\0\x15\0\x01m\x16\0\0\
              \0\x01c\x14\x18\0\0\0\x05\x01\x01\x02\0\0\0\x09\x03\0\x01t\x09\0\x01\x07\0\x01w\0\x02\xff\0\0\x01p",
            Packet::Connect(Connect {
                properties: properties(b"\x11\0\0\0\x0a\x21\0\x14\x27\0\0\x01\0\x22\0\x05\x19\x01\x17\0\x26\0\x01k\0\0\x15\0\x01m\x16\0\0"),
                will: Some(Will {
                    properties: properties(b"\x18\0\0\0\x05\x01\x01\x02\0\0\0\x09\x03\0\x01t\x09\0\x01\x07"),
                    ..will
                }),
                password: Some(b"p"),
                ..connect(V5, true, "c")
            })),
        long_form(row("connect 3.1.1 with a padded length", V5, Client,
            b"\x10\x8d\0\0\x04MQTT\x04\x02\0\x3c\0\x01c",
            Packet::Connect(connect(V3_1_1, true, "c")))),
        row("connack 3.1.1", V3_1_1, Server, b"\x20\x02\x01\0", connack(true, success, b"")),
        row("connack 3.1", V3_1, Server, b"\x20\x02\0\0", connack(false, success, b"")),
        row("connack 3.1.1 refuses", V3_1_1, Server, b"\x20\x02\0\x05",
            connack(false, ReasonCode::NotAuthorized, b"")),
        row("connack 5", V5, Server, b"\x20\x03\x01\0\0", connack(true, success, b"")),
        row("connack 5 refuses", V5, Server, b"\x20\x08\0\x9d\x05\x1c\0\x02sv",
            connack(false, ReasonCode::ServerMoved, b"\x1c\0\x02sv")),
        row("connack 5 with all properties", V5, Server,
            b"\x20\x2c\0\0\x29\x11\0\0\0\x0a\x21\0\x14\x24\x01\x25\0\x27\0\0\x01\0\x12\0\x01i\x22\0\x05\x1f\0\x01r\x28\x01\x29\x01\x2a\0\x13\0\x09\x1a\0\x01q",
            connack(false, success, b"\x11\0\0\0\x0a\x21\0\x14\x24\x01\x25\0\x27\0\0\x01\0\x12\0\x01i\x22\0\x05\x1f\0\x01r\x28\x01\x29\x01\x2a\0\x13\0\x09\x1a\0\x01q")),
        row("publish 3.1.1", V3_1_1, Client, b"\x30\x07\0\x03a/bhi", Packet::Publish(publish("a/b", b"hi"))),
        row("publish 3.1.1 without a payload", V3_1_1, Server, b"\x31\x05\0\x03a/b",
            Packet::Publish(Publish { retain: true, ..publish("a/b", b"") })),
        row("publish 3.1 repeated", V3_1, Client, b"\x3a\x09\0\x03a/b\0\x0ahi",
            Packet::Publish(Publish { dup: true, ..qos1 })),
        row("publish 5", V5, Client, b"\x32\x0a\0\x03a/b\0\x0a\0hi", Packet::Publish(qos1)),
        row("publish 5 QoS 2", V5, Server, b"\x3d\x0a\0\x03a/b\0\x0a\0hi",
            Packet::Publish(Publish { dup: true, retain: true, qos: QoS::ExactlyOnce, ..qos1 })),
        row("publish 5 by alias", V5, Client, b"\x30\x07\0\0\x03\x23\0\x01x",
            Packet::Publish(Publish { properties: properties(b"\x23\0\x01"), ..publish("", b"x") })),
        row("publish 5 with all properties", V5, Server,
            b"\x30\x25\0\x01t\x21\x01\x01\x02\0\0\0\x09\x08\0\x01r\x09\0\x01\x07\x26\0\x01k\0\x01v\x0b\x01\x26\0\x01k\0\0\x0b\x80\x01",
            Packet::Publish(Publish {
                properties: properties(b"\x01\x01\x02\0\0\0\x09\x08\0\x01r\x09\0\x01\x07\x26\0\x01k\0\x01v\x0b\x01\x26\0\x01k\0\0\x0b\x80\x01"),
                ..publish("t", b"")
            })),
        row("puback 3.1.1", V3_1_1, Client, b"\x40\x02\x01\x02", ack(AckKind::PubAck, success, NO)),
        row("puback 5", V5, Client, b"\x40\x02\x01\x02", ack(AckKind::PubAck, success, NO)),
        row("puback 5 from a server", V5, Server, b"\x40\x03\x01\x02\x10",
            ack(AckKind::PubAck, ReasonCode::NoMatchingSubscribers, NO)),
        long_form(row("puback 5 in the long form", V5, Client, b"\x40\x04\x01\x02\0\0",
            ack(AckKind::PubAck, success, NO))),
        row("pubrec 5 refuses", V5, Client, b"\x50\x03\x01\x02\x80", ack(AckKind::PubRec, error, NO)),
        row("pubrel 3.1.1", V3_1_1, Client, b"\x62\x02\x01\x02", ack(AckKind::PubRel, success, NO)),
        long_form(row("pubrel 3.1 repeated", V3_1, Client, b"\x6a\x02\x01\x02",
            ack(AckKind::PubRel, success, NO))),
        row("pubrel 5", V5, Server, b"\x62\x03\x01\x02\x92",
            ack(AckKind::PubRel, ReasonCode::PacketIdentifierNotFound, NO)),
        row("pubcomp 5 with a reason", V5, Client, b"\x70\x08\x01\x02\0\x04\x1f\0\x01r",
            ack(AckKind::PubComp, success, properties(b"\x1f\0\x01r"))),
        row("subscribe 3.1.1", V3_1_1, Client, b"\x82\x0c\0\x0a\0\x01#\x02\0\x03a/+\0",
            subscribe(NO, b"\0\x01#\x02\0\x03a/+\0")),
        long_form(row("subscribe 3.1 repeated", V3_1, Client, b"\x8a\x06\0\x0a\0\x01#\x01",
            subscribe(NO, b"\0\x01#\x01"))),
        row("subscribe 5", V5, Client, b"\x82\x09\0\x0a\x02\x0b\x07\0\x01#\x2e",
            subscribe(properties(b"\x0b\x07"), b"\0\x01#\x2e")),
        row("subscribe 5 shared, filter not judged", V5, Client, b"\x82\x0e\0\x0a\0\0\x08$share/+\x01",
            subscribe(NO, b"\0\x08$share/+\x01")),
        row("suback 3.1.1", V3_1_1, Server, b"\x90\x06\0\x05\0\x01\x02\x80",
            Packet::SubAck(suback(b"", b"\0\x01\x02\x80"))),
        row("suback 5", V5, Server, b"\x90\x09\0\x05\x04\x1f\0\x01r\x01\x8f",
            Packet::SubAck(suback(b"\x1f\0\x01r", b"\x01\x8f"))),
        row("unsubscribe 3.1.1", V3_1_1, Client, b"\xa2\x08\0\x0a\0\x01#\0\x01a",
            unsubscribe(NO, b"\0\x01#\0\x01a")),
        row("unsubscribe 5", V5, Client, b"\xa2\x0b\0\x0a\x05\x26\0\0\0\0\0\x01#",
            unsubscribe(properties(b"\x26\0\0\0\0"), b"\0\x01#")),
        row("unsuback 3.1.1", V3_1_1, Server, b"\xb0\x02\0\x05", Packet::UnsubAck(suback(b"", b""))),
        row("unsuback 5", V5, Server, b"\xb0\x05\0\x05\0\0\x11",
            Packet::UnsubAck(suback(b"", b"\0\x11"))),
        row("pingreq", V5, Client, b"\xc0\0", Packet::PingReq),
        row("pingresp", V3_1, Server, b"\xd0\0", Packet::PingResp),
        row("disconnect 3.1.1", V3_1_1, Client, b"\xe0\0", Packet::Disconnect(disconnect(success, b""))),
        row("disconnect 5", V5, Client, b"\xe0\0", Packet::Disconnect(disconnect(success, b""))),
        row("disconnect 5 with will", V5, Client, b"\xe0\x07\x04\x05\x11\0\0\0\x01",
            Packet::Disconnect(disconnect(ReasonCode::DisconnectWithWill, b"\x11\0\0\0\x01"))),
        row("disconnect 5 from a server", V5, Server, b"\xe0\x02\x8e\0",
            Packet::Disconnect(disconnect(ReasonCode::SessionTakenOver, b""))),
        row("auth step", V5, Client, b"\xf0\x0a\x18\x08\x15\0\x01m\x16\0\x01d",
            Packet::Auth(disconnect(ReasonCode::ContinueAuthentication, b"\x15\0\x01m\x16\0\x01d"))),
        row("auth success", V5, Server, b"\xf0\0", Packet::Auth(disconnect(success, b""))),
    ]
}

#[rustfmt::skip]
fn bad() -> Vec<Row> {
    let row = |name, version, sender, bytes: &'static [u8], error| Row {
        name,
        version,
        sender,
        bytes,
        expected: Err(error),
        canonical: false,
    };
    let client = |name, bytes, error| row(name, V5, Client, bytes, error);
    let server = |name, bytes, error| row(name, V5, Server, bytes, error);
    let old = |name, bytes, error| row(name, V3_1_1, Client, bytes, error);
    vec![
        client("type 0", b"\0\0", E::ReservedPacketType),
        client("connect flags", b"\x11", E::BadFlags),
        client("subscribe flags", b"\x80", E::BadFlags),
        old("repeated pubrel after 3.1", b"\x6a\x02\x01\x02", E::BadFlags),
        client("length of five bytes", b"\x30\x80\x80\x80\x80", E::BadVariableInteger),
        client("padded length", b"\xc0\x80\0", E::BadVariableInteger),
        client("padded length of a connect 5", b"\x10\x8d\0\0\x04MQTT\x05\x02\0\x3c\0\0\0", E::BadVariableInteger),
        client("padded property length", b"\x30\x05\0\x01t\x80\0", E::BadVariableInteger),
        server("padded subscription identifier", b"\x30\x07\0\x01t\x03\x0b\x81\0", E::BadVariableInteger),
        client("201 bytes", b"\x30\xc6\x01", E::PacketTooLarge),
        client("no body", b"\x40\0", E::Truncated),
        client("packet shorter than its header says", b"\x40\x02\0", E::Truncated),
        client("topic longer than the packet", b"\x30\x03\0\x02t", E::Truncated),
        client("property longer than the properties", b"\x30\x07\0\x01t\x02\x02\0\0", E::Truncated),
        client("properties longer than the packet", b"\x30\x05\0\x01t\x05\x02", E::Truncated),
        client("user property without a value", b"\x30\x08\0\x01t\x04\x26\0\x01k", E::Truncated),
        client("pingreq with a body", b"\xc0\x01\0", E::TrailingBytes),
        old("puback 3.1.1 with a reason", b"\x40\x03\x01\x02\0", E::TrailingBytes),
        old("disconnect 3.1.1 with a reason", b"\xe0\x01\0", E::TrailingBytes),
        client("bytes behind the frame", b"\xc0\0\0", E::TrailingBytes),
        client("bytes behind a connect", b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\0\0\0\0", E::TrailingBytes),
        client("connack from a client", b"\x20\x03\0\0\0", E::WrongDirection),
        client("suback from a client", b"\x90\x04\0\x05\0\0", E::WrongDirection),
        client("pingresp from a client", b"\xd0\0", E::WrongDirection),
        server("subscribe from a server", b"\x82\x07\0\x0a\0\0\x01#\0", E::WrongDirection),
        server("connect from a server", b"\x10\x0d\0\x04MQTT\x05\x02\0\x3c\0\0\0", E::WrongDirection),
        old("auth before 5", b"\xf0\0", E::NotInThisVersion),
        row("disconnect of a server before 5", V3_1_1, Server, b"\xe0\0", E::NotInThisVersion),
        client("topic not UTF-8", b"\x30\x04\0\x01\xff\0", E::NotUtf8),
        old("client identifier not UTF-8", b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01\xff", E::NotUtf8),
        old("filter with a surrogate", b"\x82\x08\0\x0a\0\x03\xed\xa0\x80\0", E::NotUtf8),
        client("user property not UTF-8", b"\x30\x0a\0\x01t\x06\x26\0\x01\xff\0\0", E::NotUtf8),
        client("topic with NUL", b"\x30\x05\0\x02t\0\0", E::NulInString),
        old("filter with NUL", b"\x82\x06\0\x0a\0\x01\0\0", E::NulInString),
        client("content type with NUL", b"\x30\x08\0\x01t\x04\x03\0\x01\0", E::NulInString),
        client("publish with packet identifier 0", b"\x32\x06\0\x01t\0\0\0", E::ZeroPacketId),
        old("puback with packet identifier 0", b"\x40\x02\0\0", E::ZeroPacketId),
        client("puback with an unknown reason", b"\x40\x03\x01\x02\x7f", E::UnknownReasonCode),
        row("connack 3.1.1 with return code 6", V3_1_1, Server, b"\x20\x02\0\x06", E::UnknownReasonCode),
        client("puback with a reason of connack", b"\x40\x03\x01\x02\x86", E::ReasonCodeNotAllowed),
        client("disconnect with a reason of servers", b"\xe0\x01\x8b", E::ReasonCodeNotAllowed),
        client("auth success from a client", b"\xf0\0", E::ReasonCodeNotAllowed),
        row("suback 3.1.1 with a reason of 5", V3_1_1, Server, b"\x90\x03\0\x05\x8f", E::ReasonCodeNotAllowed),
        client("protocol name", b"\x10\x0d\0\x04MQTt\x05\x02\0\x3c\0\0\0", E::BadProtocolName),
        client("level 6", b"\x10\x0d\0\x04MQTT\x06\x02\0\x3c\0\0\0", E::UnsupportedVersion),
        client("level 3 under the new name", b"\x10\x0d\0\x04MQTT\x03\x02\0\x3c\0\0\0", E::UnsupportedVersion),
        client("level 4 under the old name", b"\x10\x0e\0\x06MQIsdp\x04\x02\0\x3c\0\0", E::UnsupportedVersion),
        client("reserved connect flag", b"\x10\x0d\0\x04MQTT\x05\x03\0\x3c\0\0\0", E::ReservedConnectFlag),
        client("will QoS without a will", b"\x10\x0d\0\x04MQTT\x05\x08\0\x3c\0\0\0", E::WillQosWithoutWill),
        client("will retain without a will", b"\x10\x0d\0\x04MQTT\x05\x20\0\x3c\0\0\0", E::WillRetainWithoutWill),
        client("will QoS 3", b"\x10\x13\0\x04MQTT\x05\x1c\0\x3c\0\0\0\0\0\x01w\0\0", E::BadWillQos),
        old("password without a user name", b"\x10\x0f\0\x04MQTT\x04\x42\0\x3c\0\x01c\0\0", E::PasswordWithoutUserName),
        server("acknowledge flag 2", b"\x20\x03\x02\0\0", E::ReservedConnAckFlag),
        server("session present in a refusal", b"\x20\x03\x01\x87\0", E::SessionPresentWithError),
        client("QoS 3", b"\x36", E::BadQos),
        client("repeated QoS 0", b"\x38", E::DupWithQos0),
        client("empty topic", b"\x30\x03\0\0\0", E::EmptyTopic),
        old("empty topic before 5", b"\x30\x02\0\0", E::EmptyTopic),
        old("empty will topic", b"\x10\x11\0\x04MQTT\x04\x06\0\x3c\0\x01c\0\0\0\0", E::EmptyTopic),
        client("plus in a topic", b"\x30\x04\0\x01+\0", E::WildcardInTopic),
        old("hash in a topic", b"\x30\x05\0\x03a/#", E::WildcardInTopic),
        old("plus in a will topic", b"\x10\x12\0\x04MQTT\x04\x06\0\x3c\0\x01c\0\x01+\0\0", E::WildcardInWillTopic),
        client("hash in a response topic", b"\x30\x08\0\x01t\x04\x08\0\x01#", E::WildcardInResponseTopic),
        client("empty response topic", b"\x30\x07\0\x01t\x03\x08\0\0", E::EmptyResponseTopic),
        old("subscribe to nothing", b"\x82\x02\0\x0a", E::NothingToSubscribe),
        client("unsubscribe from nothing", b"\xa2\x03\0\x0a\0", E::NothingToUnsubscribe),
        old("subscribe to an empty filter", b"\x82\x05\0\x0a\0\0\0", E::EmptyFilter),
        client("unsubscribe from an empty filter", b"\xa2\x05\0\x0a\0\0\0", E::EmptyFilter),
        client("reserved option", b"\x82\x07\0\x0a\0\0\x01#\x40", E::ReservedSubscribeOption),
        old("option of 5 before 5", b"\x82\x06\0\x0a\0\x01#\x04", E::ReservedSubscribeOption),
        old("subscription QoS 3", b"\x82\x06\0\x0a\0\x01#\x03", E::BadSubscribeQos),
        client("retain handling 3", b"\x82\x07\0\x0a\0\0\x01#\x30", E::BadRetainHandling),
        client("no local on a shared subscription", b"\x82\x0f\0\x0a\0\0\x09$share/g/\x04", E::NoLocalOnShared),
        server("suback without codes", b"\x90\x03\0\x05\0", E::NoAckCodes),
        client("property 4", b"\x30\x06\0\x01t\x02\x04\0", E::UnknownProperty),
        client("property of two bytes", b"\x30\x07\0\x01t\x03\x81\x01\0", E::UnknownProperty),
        client("will delay in a publish", b"\x30\x09\0\x01t\x05\x18\0\0\0\x01", E::PropertyNotAllowed),
        client("topic alias in a will", b"\x10\x16\0\x04MQTT\x05\x06\0\x3c\0\0\0\x03\x23\0\x01\0\x01w\0\0", E::PropertyNotAllowed),
        client("server reference of a client", b"\xe0\x06\0\x04\x1c\0\x01s", E::PropertyNotAllowed),
        client("expiry twice", b"\x30\x0e\0\x01t\x0a\x02\0\0\0\x01\x02\0\0\0\x01", E::DuplicateProperty),
        client("two subscription identifiers", b"\x82\x0b\0\x0a\x04\x0b\x01\x0b\x02\0\x01#\0", E::DuplicateProperty),
        client("payload format 2", b"\x30\x06\0\x01t\x02\x01\x02", E::BadFlagProperty),
        server("maximum QoS 2", b"\x20\x05\0\0\x02\x24\x02", E::BadFlagProperty),
        client("receive maximum 0", b"\x10\x10\0\x04MQTT\x05\x02\0\x3c\x03\x21\0\0\0\0", E::ZeroReceiveMaximum),
        client("maximum packet size 0", b"\x10\x12\0\x04MQTT\x05\x02\0\x3c\x05\x27\0\0\0\0\0\0", E::ZeroMaximumPacketSize),
        client("topic alias 0", b"\x30\x07\0\x01t\x03\x23\0\0", E::ZeroTopicAlias),
        client("subscription identifier 0", b"\x82\x09\0\x0a\x02\x0b\0\0\x01#\0", E::ZeroSubscriptionId),
        client("subscription identifier of a client", b"\x30\x06\0\x01t\x02\x0b\x01", E::SubscriptionIdFromClient),
        server("session expiry of a server", b"\xe0\x07\0\x05\x11\0\0\0\x01", E::SessionExpiryFromServer),
        client("authentication data alone", b"\x10\x11\0\x04MQTT\x05\x02\0\x3c\x04\x16\0\x01d\0\0", E::AuthDataWithoutMethod),
        client("auth without a method", b"\xf0\x02\x18\0", E::AuthWithoutMethod),
    ]
}
