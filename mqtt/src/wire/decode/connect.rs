//! CONNECT and CONNACK.

use super::Header;
use crate::wire::property_check::Place;
use crate::wire::reader::Reader;
use crate::wire::{
    ConnAck, Connect, DecodeError, PacketType, Properties, QoS, ReasonCode, Sender, Version, Will,
};

/// In which version to answer a CONNECT that did not decode: the version that it names, or the
/// nearest one; `None` when the frame is no CONNECT, and then no answer is understood.
pub fn connect_version(frame: &[u8]) -> Option<Version> {
    let Header { first, body, .. } = Header::split(frame).ok()?;
    if PacketType::from_first_byte(first) != Ok(PacketType::Connect) {
        return None;
    }
    let mut reader = Reader::new(body);
    match (reader.binary().ok()?, reader.u8().ok()?) {
        (b"MQIsdp", _) => Some(Version::V3_1),
        (b"MQTT", 0..=4) => Some(Version::V3_1_1),
        // The highest bit is how some bridges mark themselves in 3.x.
        (b"MQTT", 0x80..) => Some(Version::V3_1_1),
        (b"MQTT", _) => Some(Version::V5),
        _ => None,
    }
}

pub(super) fn connect<'a>(reader: &mut Reader<'a>) -> Result<Connect<'a>, DecodeError> {
    let name = reader.binary()?;
    if !matches!(name, b"MQTT" | b"MQIsdp") {
        return Err(DecodeError::BadProtocolName);
    }
    let version = match (name, reader.u8()?) {
        (b"MQIsdp", 3) => Version::V3_1,
        (b"MQTT", 4) => Version::V3_1_1,
        (b"MQTT", 5) => Version::V5,
        _ => return Err(DecodeError::UnsupportedVersion),
    };
    let flags = ConnectFlags::check(reader.u8()?, version)?;
    let keep_alive_s = reader.u16()?;
    let properties = properties(reader, version, Place::Connect)?;
    let client_id = reader.string()?;
    let will = match flags.will {
        Some((qos, retain)) => Some(will(reader, version, qos, retain)?),
        None => None,
    };
    Ok(Connect {
        version,
        clean_start: flags.clean_start,
        keep_alive_s,
        client_id,
        will,
        username: if flags.username { Some(reader.string()?) } else { None },
        password: if flags.password { Some(reader.binary()?) } else { None },
        properties,
    })
}

pub(super) fn connack<'a>(
    reader: &mut Reader<'a>,
    version: Version,
) -> Result<ConnAck<'a>, DecodeError> {
    let flags = match (reader.u8()?, version) {
        // 3.1 reserves this byte and does not say what it holds.
        (_, Version::V3_1) => 0,
        (flags, _) => flags,
    };
    if flags & !1 != 0 {
        return Err(DecodeError::ReservedConnAckFlag);
    }
    let session_present = flags == 1;
    let code = reader.u8()?;
    let reason = if version == Version::V5 {
        ReasonCode::from_u8(code).ok_or(DecodeError::UnknownReasonCode)?
    } else {
        ReasonCode::from_v3_connack(code).ok_or(DecodeError::UnknownReasonCode)?
    };
    if version == Version::V5 && !reason.is_legal_in(PacketType::ConnAck, Sender::Server) {
        return Err(DecodeError::ReasonCodeNotAllowed);
    }
    if session_present && reason.is_error() {
        return Err(DecodeError::SessionPresentWithError);
    }
    let properties = properties(reader, version, Place::ConnAck)?;
    Ok(ConnAck { session_present, reason, properties })
}

/// The connect flags, consistent.
struct ConnectFlags {
    username: bool,
    password: bool,
    will: Option<(QoS, bool)>,
    clean_start: bool,
}

impl ConnectFlags {
    fn check(flags: u8, version: Version) -> Result<Self, DecodeError> {
        if flags & 1 != 0 {
            return Err(DecodeError::ReservedConnectFlag);
        }
        let will_qos = flags >> 3 & 0b11;
        let will_retain = flags & 0x20 != 0;
        let will = if flags & 0b100 != 0 {
            Some((QoS::from_u8(will_qos).ok_or(DecodeError::BadWillQos)?, will_retain))
        } else if will_qos != 0 {
            return Err(DecodeError::WillQosWithoutWill);
        } else if will_retain {
            return Err(DecodeError::WillRetainWithoutWill);
        } else {
            None
        };
        let (username, password) = (flags & 0x80 != 0, flags & 0x40 != 0);
        // Version 5 lifted this: a password alone carries other credentials.
        if password && !username && version != Version::V5 {
            return Err(DecodeError::PasswordWithoutUserName);
        }
        Ok(Self { username, password, will, clean_start: flags & 0b10 != 0 })
    }
}

fn will<'a>(
    reader: &mut Reader<'a>,
    version: Version,
    qos: QoS,
    retain: bool,
) -> Result<Will<'a>, DecodeError> {
    let properties = properties(reader, version, Place::Will)?;
    let topic = reader.topic(DecodeError::WildcardInWillTopic)?;
    if topic.is_empty() {
        return Err(DecodeError::EmptyTopic);
    }
    let payload = reader.binary()?;
    Ok(Will { topic, payload, qos, retain, properties })
}

fn properties<'a>(
    reader: &mut Reader<'a>,
    version: Version,
    place: Place,
) -> Result<Properties<'a>, DecodeError> {
    if version == Version::V5 { reader.properties(place) } else { Ok(Properties::EMPTY) }
}
