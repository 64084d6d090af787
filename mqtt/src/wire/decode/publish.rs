//! PUBLISH: the hot path.

use crate::wire::property_check::Place;
use crate::wire::reader::Reader;
use crate::wire::{DecodeError, Packet, Properties, Publish, QoS, Sender, Version};

#[inline]
pub(super) fn publish(
    first: u8,
    body: &[u8],
    version: Version,
    sender: Sender,
) -> Result<Packet<'_>, DecodeError> {
    let qos = QoS::from_u8(first >> 1 & 0b11).ok_or(DecodeError::BadQos)?;
    let mut reader = Reader::new(body);
    let topic = reader.topic(DecodeError::WildcardInTopic)?;
    let packet_id = match qos {
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce | QoS::ExactlyOnce => Some(reader.packet_id()?),
    };
    let properties = match (version, sender) {
        (Version::V5, Sender::Client) => reader.properties(Place::ClientPublish)?,
        (Version::V5, Sender::Server) => reader.properties(Place::ServerPublish)?,
        _ => Properties::EMPTY,
    };
    if topic.is_empty() && properties.topic_alias().is_none() {
        return Err(DecodeError::EmptyTopic);
    }
    Ok(Packet::Publish(Publish {
        dup: first & 0b1000 != 0,
        qos,
        retain: first & 1 != 0,
        topic,
        packet_id,
        properties,
        payload: reader.take_rest(),
    }))
}
