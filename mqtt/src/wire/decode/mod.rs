//! Complete frames to packets.

mod acks;
mod connect;
mod publish;
mod subscribe;

pub use connect::connect_version;

use super::frame::{check_first_byte, is_minimal, variable_integer};
use super::reader::Reader;
use super::{AckKind, DecodeError, Packet, PacketType, Sender, Version};

/// Decodes one complete frame that a client sent, fixed header included. `version` is the one of
/// the connection; a CONNECT names its own.
///
/// What depends on more than the packet itself is not judged: whether it is the first, whether an
/// alias is known, whether an identifier is in use, whether a filter is well formed.
///
/// # Errors
/// The first violation; anything that only a server sends is one.
#[inline]
pub fn decode_from_client(frame: &[u8], version: Version) -> Result<Packet<'_>, DecodeError> {
    decode(frame, version, Sender::Client)
}

/// Decodes one complete frame that a server sent, fixed header included.
///
/// # Errors
/// The first violation; anything that only a client sends is one.
#[inline]
pub fn decode_from_server(frame: &[u8], version: Version) -> Result<Packet<'_>, DecodeError> {
    decode(frame, version, Sender::Server)
}

#[inline]
fn decode(frame: &[u8], version: Version, sender: Sender) -> Result<Packet<'_>, DecodeError> {
    let Header { first, body, minimal } = Header::split(frame)?;
    let packet = check_first_byte(first)?;
    let decoded = if packet == PacketType::Publish {
        publish::publish(first, body, version, sender)?
    } else {
        decode_rare(packet, first, body, version, sender)?
    };
    // Before version 5 the length may be padded. A CONNECT is judged by its own version.
    if !minimal {
        let version = if let Packet::Connect(it) = &decoded { it.version } else { version };
        if version == Version::V5 {
            return Err(DecodeError::BadVariableInteger);
        }
    }
    Ok(decoded)
}

/// Kept apart so that a PUBLISH finds its way in few instructions.
fn decode_rare(
    packet: PacketType,
    first: u8,
    body: &[u8],
    version: Version,
    sender: Sender,
) -> Result<Packet<'_>, DecodeError> {
    // Of the flags that a first byte may have, only 3.1 has DUP anywhere but in PUBLISH.
    if first & 0b1000 != 0 && version != Version::V3_1 {
        return Err(DecodeError::BadFlags);
    }
    check_direction(packet, version, sender)?;
    let mut reader = Reader::new(body);
    let reader = &mut reader;
    let decoded = match packet {
        PacketType::Connect => connect::connect(reader).map(Packet::Connect)?,
        PacketType::ConnAck => connect::connack(reader, version).map(Packet::ConnAck)?,
        PacketType::Publish => return publish::publish(first, body, version, sender),
        PacketType::PubAck => acks::ack(reader, AckKind::PubAck, version, sender)?,
        PacketType::PubRec => acks::ack(reader, AckKind::PubRec, version, sender)?,
        PacketType::PubRel => acks::ack(reader, AckKind::PubRel, version, sender)?,
        PacketType::PubComp => acks::ack(reader, AckKind::PubComp, version, sender)?,
        PacketType::Subscribe => subscribe::subscribe(reader, version).map(Packet::Subscribe)?,
        PacketType::SubAck => subscribe::suback(reader, version).map(Packet::SubAck)?,
        PacketType::Unsubscribe => {
            subscribe::unsubscribe(reader, version).map(Packet::Unsubscribe)?
        }
        PacketType::UnsubAck => subscribe::unsuback(reader, version).map(Packet::UnsubAck)?,
        PacketType::PingReq => Packet::PingReq,
        PacketType::PingResp => Packet::PingResp,
        PacketType::Disconnect => {
            acks::disconnect(reader, version, sender).map(Packet::Disconnect)?
        }
        PacketType::Auth => acks::auth(reader, sender).map(Packet::Auth)?,
    };
    reader.finish()?;
    Ok(decoded)
}

/// A frame in its parts.
struct Header<'a> {
    first: u8,
    body: &'a [u8],
    /// Whether the remaining length takes no more bytes than it needs.
    minimal: bool,
}

impl<'a> Header<'a> {
    /// The frame must be exactly as long as its header says.
    #[inline]
    fn split(frame: &'a [u8]) -> Result<Self, DecodeError> {
        let (&first, rest) = frame.split_first().ok_or(DecodeError::Truncated)?;
        let (remaining, length_bytes) = variable_integer(rest)?.ok_or(DecodeError::Truncated)?;
        let body = &rest[length_bytes..];
        match body.len().cmp(&(remaining as usize)) {
            std::cmp::Ordering::Less => Err(DecodeError::Truncated),
            std::cmp::Ordering::Greater => Err(DecodeError::TrailingBytes),
            std::cmp::Ordering::Equal => {
                Ok(Self { first, body, minimal: is_minimal(remaining, length_bytes) })
            }
        }
    }
}

fn check_direction(
    packet: PacketType,
    version: Version,
    sender: Sender,
) -> Result<(), DecodeError> {
    let v5 = version == Version::V5;
    match (packet, sender) {
        (PacketType::Auth, _) | (PacketType::Disconnect, Sender::Server) if !v5 => {
            Err(DecodeError::NotInThisVersion)
        }
        (
            PacketType::ConnAck | PacketType::SubAck | PacketType::UnsubAck | PacketType::PingResp,
            Sender::Client,
        )
        | (
            PacketType::Connect
            | PacketType::Subscribe
            | PacketType::Unsubscribe
            | PacketType::PingReq,
            Sender::Server,
        ) => Err(DecodeError::WrongDirection),
        _ => Ok(()),
    }
}
