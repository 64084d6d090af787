//! SUBSCRIBE, UNSUBSCRIBE and their answers.

use crate::wire::property_check::Place;
use crate::wire::reader::Reader;
use crate::wire::{
    DecodeError, Filters, PacketType, Properties, ReasonCode, Sender, SubAck, Subscribe,
    Unsubscribe, Version,
};

pub(super) fn subscribe<'a>(
    reader: &mut Reader<'a>,
    version: Version,
) -> Result<Subscribe<'a>, DecodeError> {
    let packet_id = reader.packet_id()?;
    let properties = properties(reader, version, Place::Subscribe)?;
    let filters = Filters::for_subscribe(reader.take_rest(), version)?;
    Ok(Subscribe { packet_id, properties, filters })
}

pub(super) fn unsubscribe<'a>(
    reader: &mut Reader<'a>,
    version: Version,
) -> Result<Unsubscribe<'a>, DecodeError> {
    let packet_id = reader.packet_id()?;
    let properties = properties(reader, version, Place::Unsubscribe)?;
    let filters = Filters::for_unsubscribe(reader.take_rest())?;
    Ok(Unsubscribe { packet_id, properties, filters })
}

pub(super) fn suback<'a>(
    reader: &mut Reader<'a>,
    version: Version,
) -> Result<SubAck<'a>, DecodeError> {
    let packet_id = reader.packet_id()?;
    let properties = properties(reader, version, Place::Ack)?;
    let codes = reader.take_rest();
    check_codes(codes, PacketType::SubAck)?;
    // 3.x has three successes and one failure.
    if version != Version::V5 && codes.iter().any(|code| *code > 0x80) {
        return Err(DecodeError::ReasonCodeNotAllowed);
    }
    Ok(SubAck { packet_id, properties, codes })
}

pub(super) fn unsuback<'a>(
    reader: &mut Reader<'a>,
    version: Version,
) -> Result<SubAck<'a>, DecodeError> {
    let packet_id = reader.packet_id()?;
    if version != Version::V5 {
        return Ok(SubAck { packet_id, properties: Properties::EMPTY, codes: &[] });
    }
    let properties = reader.properties(Place::Ack)?;
    let codes = reader.take_rest();
    check_codes(codes, PacketType::UnsubAck)?;
    Ok(SubAck { packet_id, properties, codes })
}

fn check_codes(codes: &[u8], packet: PacketType) -> Result<(), DecodeError> {
    if codes.is_empty() {
        return Err(DecodeError::NoAckCodes);
    }
    for code in codes {
        let code = ReasonCode::from_u8(*code).ok_or(DecodeError::UnknownReasonCode)?;
        if !code.is_legal_in(packet, Sender::Server) {
            return Err(DecodeError::ReasonCodeNotAllowed);
        }
    }
    Ok(())
}

fn properties<'a>(
    reader: &mut Reader<'a>,
    version: Version,
    place: Place,
) -> Result<Properties<'a>, DecodeError> {
    if version == Version::V5 { reader.properties(place) } else { Ok(Properties::EMPTY) }
}
