//! Packets that are little more than a reason code: the four acknowledgements, DISCONNECT, AUTH.

use crate::wire::property_check::Place;
use crate::wire::reader::Reader;
use crate::wire::{
    Ack, AckKind, DecodeError, Disconnect, Packet, PacketType, Properties, ReasonCode, Sender,
    Version,
};

pub(super) fn ack<'a>(
    reader: &mut Reader<'a>,
    kind: AckKind,
    version: Version,
    sender: Sender,
) -> Result<Packet<'a>, DecodeError> {
    let packet_id = reader.packet_id()?;
    let (reason, properties) = if version == Version::V5 {
        reason_and_properties(reader, kind.packet_type(), sender, Place::Ack)?
    } else {
        (ReasonCode::Success, Properties::EMPTY)
    };
    Ok(Packet::Ack(Ack { kind, packet_id, reason, properties }))
}

pub(super) fn disconnect<'a>(
    reader: &mut Reader<'a>,
    version: Version,
    sender: Sender,
) -> Result<Disconnect<'a>, DecodeError> {
    if version != Version::V5 {
        return Ok(Disconnect { reason: ReasonCode::Success, properties: Properties::EMPTY });
    }
    let place = match sender {
        Sender::Client => Place::ClientDisconnect,
        Sender::Server => Place::ServerDisconnect,
    };
    let (reason, properties) =
        reason_and_properties(reader, PacketType::Disconnect, sender, place)?;
    Ok(Disconnect { reason, properties })
}

pub(super) fn auth<'a>(
    reader: &mut Reader<'a>,
    sender: Sender,
) -> Result<Disconnect<'a>, DecodeError> {
    let (reason, properties) =
        reason_and_properties(reader, PacketType::Auth, sender, Place::Auth)?;
    // A bare success may leave everything out; every other step names its method.
    let bare = reason == ReasonCode::Success && properties.is_empty();
    if !bare && properties.auth_method().is_none() {
        return Err(DecodeError::AuthWithoutMethod);
    }
    Ok(Disconnect { reason, properties })
}

/// A reason code and properties, either of which may be left out from the end on.
fn reason_and_properties<'a>(
    reader: &mut Reader<'a>,
    packet: PacketType,
    sender: Sender,
    place: Place,
) -> Result<(ReasonCode, Properties<'a>), DecodeError> {
    let reason = if reader.is_empty() {
        ReasonCode::Success
    } else {
        ReasonCode::from_u8(reader.u8()?).ok_or(DecodeError::UnknownReasonCode)?
    };
    if !reason.is_legal_in(packet, sender) {
        return Err(DecodeError::ReasonCodeNotAllowed);
    }
    let properties =
        if reader.is_empty() { Properties::EMPTY } else { reader.properties(place)? };
    Ok((reason, properties))
}
