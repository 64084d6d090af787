//! Bytes that nobody meant as packets, and packets with a few bytes changed.

use proptest::prelude::*;

use super::*;

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V3_1), Just(Version::V3_1_1), Just(Version::V5)]
}

fn sender() -> impl Strategy<Value = Sender> {
    prop_oneof![Just(Sender::Client), Just(Sender::Server)]
}

/// Reads everything that a packet offers, as its users do.
fn use_up(packet: &Packet<'_>) {
    let properties = match packet {
        Packet::Connect(it) => {
            if let Some(will) = it.will {
                read_properties(will.properties);
            }
            it.properties
        }
        Packet::ConnAck(it) => it.properties,
        Packet::Publish(it) => it.properties,
        Packet::Ack(it) => it.properties,
        Packet::Subscribe(it) => {
            assert!(it.filters.iter().next().is_some());
            it.properties
        }
        Packet::Unsubscribe(it) => {
            assert!(it.filters.iter().next().is_some());
            it.properties
        }
        Packet::SubAck(it) | Packet::UnsubAck(it) => it.properties,
        Packet::Disconnect(it) | Packet::Auth(it) => it.properties,
        Packet::PingReq | Packet::PingResp => Properties::EMPTY,
    };
    read_properties(properties);
}

/// Iterating reaches the end: whatever was validated is readable.
fn read_properties(properties: Properties<'_>) {
    let mut rebuilt_bytes = 0;
    for property in properties.iter() {
        rebuilt_bytes += match property {
            Property::PayloadIsUtf8(_)
            | Property::RequestProblemInformation(_)
            | Property::RequestResponseInformation(_)
            | Property::MaximumQos(_)
            | Property::RetainAvailable(_)
            | Property::WildcardAvailable(_)
            | Property::SubscriptionIdsAvailable(_)
            | Property::SharedAvailable(_) => 2,
            Property::ServerKeepAliveS(_)
            | Property::ReceiveMaximum(_)
            | Property::TopicAliasMaximum(_)
            | Property::TopicAlias(_) => 3,
            Property::MessageExpiryIntervalS(_)
            | Property::SessionExpiryIntervalS(_)
            | Property::WillDelayIntervalS(_)
            | Property::MaximumPacketSizeBytes(_) => 5,
            Property::SubscriptionId(id) => 1 + frame::variable_integer_bytes(id),
            Property::CorrelationData(data) | Property::AuthData(data) => 3 + data.len(),
            Property::ContentType(text)
            | Property::ResponseTopic(text)
            | Property::AssignedClientId(text)
            | Property::AuthMethod(text)
            | Property::ResponseInformation(text)
            | Property::ServerReference(text)
            | Property::ReasonString(text) => 3 + text.len(),
            Property::UserProperty(name, value) => 5 + name.len() + value.len(),
        };
    }
    assert_eq!(rebuilt_bytes, properties.as_bytes().len());
    let mut copied = Vec::new();
    properties.copy_forwardable(&mut copied);
    if let Some(forwardable) = properties.forwardable() {
        assert_eq!(forwardable, copied);
    }
}

/// What decodes is encoded to something that decodes to the same, and then to the same bytes.
fn judge(bytes: &[u8], version: Version, sender: Sender) {
    // Twice, because whoever looks at a frame first must not matter.
    let _ = connect_version(bytes);
    let Ok(packet) = receive(bytes, version, sender) else { return };
    use_up(&packet);
    let again = encoded(&packet, version);
    // The shortest, but for the property length that DISCONNECT and AUTH always get.
    assert!(again.len() <= bytes.len() + 1, "the canonical form is longer");
    assert_eq!(receive(&again, version, sender), Ok(packet));
    let inside = matches!(peek(bytes, LIMIT_BYTES),
        Ok(Frame::Complete { total_bytes, .. }) if total_bytes == bytes.len());
    assert!(inside, "only what is framed whole decodes");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_packets_or_errors(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        version in version(),
        sender in sender(),
    ) {
        judge(&bytes, version, sender);
    }

    #[test]
    fn arbitrary_bodies_are_packets_or_errors(
        first in any::<u8>(),
        body in prop::collection::vec(prop_oneof![any::<u8>(), 0u8..4], 0..80),
        version in version(),
        sender in sender(),
    ) {
        let mut bytes = vec![first, body.len() as u8];
        bytes.extend_from_slice(&body);
        judge(&bytes, version, sender);
    }

    #[test]
    fn changed_packets_are_packets_or_errors(
        row in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        version in prop::option::of(version()),
        sender in prop::option::of(sender()),
    ) {
        let rows = rows();
        let row = row.get(&rows);
        let mut bytes = row.bytes.to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        judge(&bytes, version.unwrap_or(row.version), sender.unwrap_or(row.sender));
    }
}
