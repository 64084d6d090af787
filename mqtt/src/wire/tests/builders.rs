//! What the broker's hot paths and the builders write, against the decoder.

use super::*;

fn publish_head<'a>(ids: &'a [u32], forwarded: &'a [u8]) -> PublishHead<'a> {
    PublishHead {
        dup: true,
        qos: QoS::AtLeastOnce,
        retain: true,
        topic: "a/b",
        packet_id: PacketId::new(7),
        message_expiry_s: Some(9),
        topic_alias: Some(2),
        subscription_ids: ids,
        forwarded,
        payload_len: 3,
    }
}

#[test]
fn a_publish_head_is_what_the_decoder_reads_and_as_long_as_promised() {
    let mut forwarded = PropertyBuf::new();
    forwarded.content_type("json").user_property("k", "v");
    let forwarded = forwarded.as_properties();
    let head = publish_head(&[1, 300], forwarded.as_bytes());
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        let mut bytes = Vec::new();
        encode_publish_head(&mut bytes, version, &head);
        bytes.extend_from_slice(b"123");
        assert_eq!(publish_size_bytes(version, &head), bytes.len());
        let Ok(Packet::Publish(got)) = decode_from_server(&bytes, version) else {
            panic!("{version:?}: {bytes:02x?}");
        };
        assert_eq!((got.topic, got.packet_id, got.payload), ("a/b", head.packet_id, &b"123"[..]));
        assert_eq!((got.dup, got.qos, got.retain), (true, QoS::AtLeastOnce, true));
        if version == Version::V5 {
            assert_eq!(got.properties.topic_alias(), Some(2));
            assert_eq!(got.properties.message_expiry_interval_s(), Some(9));
            assert_eq!(got.properties.subscription_ids().collect::<Vec<_>>(), [1, 300]);
            assert_eq!(got.properties.content_type(), Some("json"));
            let mut copied = Vec::new();
            got.properties.copy_forwardable(&mut copied);
            assert_eq!(copied, forwarded.as_bytes());
        } else {
            assert!(got.properties.is_empty());
        }
    }
}

#[test]
fn sizes_hold_at_every_step_of_the_length() {
    for payload_len in [0, 120, 121, 122, 123, 16_376, 16_377, 16_378, 2_097_140, 2_097_150] {
        let head = PublishHead { payload_len, ..publish_head(&[], &[]) };
        for version in [Version::V3_1_1, Version::V5] {
            let mut bytes = Vec::new();
            encode_publish_head(&mut bytes, version, &head);
            assert_eq!(publish_size_bytes(version, &head), bytes.len() + payload_len);
            let total_bytes = bytes.len() + payload_len;
            bytes.resize(total_bytes, b'x');
            assert!(matches!(peek(&bytes, u32::MAX),
                Ok(Frame::Complete { total_bytes: total, .. }) if total == total_bytes));
        }
    }
    let too_large = PublishHead { payload_len: MAX_PACKET_BYTES, ..publish_head(&[], &[]) };
    assert!(publish_size_bytes(Version::V5, &too_large) > MAX_PACKET_BYTES);
}

#[test]
fn acknowledgements_are_as_short_as_the_version_allows() {
    let id = PacketId::new(0x0102).unwrap();
    let ack = |version, kind, reason| {
        let mut out = Vec::new();
        encode_ack(&mut out, version, kind, id, reason);
        out
    };
    let failed = ReasonCode::QuotaExceeded;
    assert_eq!(ack(Version::V5, AckKind::PubRel, ReasonCode::Success), [0x62, 2, 1, 2]);
    assert_eq!(ack(Version::V5, AckKind::PubRec, failed), [0x50, 3, 1, 2, 0x97]);
    assert_eq!(ack(Version::V3_1_1, AckKind::PubRec, failed), [0x50, 2, 1, 2]);
}

#[test]
fn what_3_x_has_no_place_for_is_left_out() {
    let old = |packet: Packet<'_>| encoded(&packet, Version::V3_1_1);
    let mut properties = PropertyBuf::new();
    properties.reason_string("why");
    let properties = properties.as_properties();
    let packet_id = PacketId::new(1).unwrap();
    let codes = &[0x02, 0x8f, 0x80];
    let suback = SubAck { packet_id, properties, codes };
    assert_eq!(old(Packet::SubAck(suback)), [0x90, 5, 0, 1, 2, 0x80, 0x80]);
    assert_eq!(old(Packet::UnsubAck(suback)), [0xb0, 2, 0, 1]);
    let reason = ReasonCode::Banned;
    let connack = ConnAck { session_present: true, reason, properties };
    assert_eq!(old(Packet::ConnAck(connack)), [0x20, 2, 0, 5]);
    assert_eq!(old(Packet::Disconnect(Disconnect { reason, properties })), [0xe0, 0]);
    assert_eq!(old(Packet::Auth(Disconnect { reason, properties })), []);
    let mut filters = FilterBuf::for_subscribe();
    let options = SubscribeOptions {
        qos: QoS::AtLeastOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::Never,
    };
    filters.push("a", options);
    let filters = filters.as_filters();
    assert_eq!(filters.iter().collect::<Vec<_>>(), [("a", options)]);
    assert_eq!((filters.len(), filters.is_empty()), (1, false));
    let subscribe = Subscribe { packet_id, properties: Properties::EMPTY, filters };
    assert_eq!(old(Packet::Subscribe(subscribe)), [0x82, 6, 0, 1, 0, 1, b'a', 1]);
}

#[test]
fn filters_of_an_unsubscribe_have_default_options() {
    let Ok(Packet::Unsubscribe(got)) =
        decode_from_client(b"\xa2\x08\0\x0a\0\x01#\0\x01a", Version::V3_1_1)
    else {
        panic!("not decoded");
    };
    let default = SubscribeOptions::default();
    assert_eq!(got.filters.iter().collect::<Vec<_>>(), [("#", default), ("a", default)]);
}

#[test]
fn every_property_is_read_as_it_was_built() {
    let mut built = PropertyBuf::new();
    built.payload_is_utf8(true).message_expiry_interval_s(1).content_type("ct");
    built.response_topic("rt").correlation_data(b"\xff").subscription_id(300);
    built.session_expiry_interval_s(2).assigned_client_id("id").server_keep_alive_s(3);
    built.auth_method("m").auth_data(b"d").request_problem_information(false);
    built.will_delay_interval_s(4).request_response_information(true);
    built.response_information("ri").server_reference("sr").reason_string("rs");
    built.receive_maximum(5).topic_alias_maximum(6).topic_alias(7);
    built.maximum_qos(QoS::AtLeastOnce).retain_available(false).user_property("k", "v");
    built.maximum_packet_size_bytes(8).wildcard_available(true);
    built.subscription_ids_available(false).shared_available(true);
    let got = built.as_properties();
    let all = [
        Property::PayloadIsUtf8(true),
        Property::MessageExpiryIntervalS(1),
        Property::ContentType("ct"),
        Property::ResponseTopic("rt"),
        Property::CorrelationData(b"\xff"),
        Property::SubscriptionId(300),
        Property::SessionExpiryIntervalS(2),
        Property::AssignedClientId("id"),
        Property::ServerKeepAliveS(3),
        Property::AuthMethod("m"),
        Property::AuthData(b"d"),
        Property::RequestProblemInformation(false),
        Property::WillDelayIntervalS(4),
        Property::RequestResponseInformation(true),
        Property::ResponseInformation("ri"),
        Property::ServerReference("sr"),
        Property::ReasonString("rs"),
        Property::ReceiveMaximum(5),
        Property::TopicAliasMaximum(6),
        Property::TopicAlias(7),
        Property::MaximumQos(QoS::AtLeastOnce),
        Property::RetainAvailable(false),
        Property::UserProperty("k", "v"),
        Property::MaximumPacketSizeBytes(8),
        Property::WildcardAvailable(true),
        Property::SubscriptionIdsAvailable(false),
        Property::SharedAvailable(true),
    ];
    assert_eq!(got.iter().collect::<Vec<_>>(), all);
    assert_eq!(got.payload_is_utf8(), Some(true));
    assert_eq!(got.correlation_data(), Some(&b"\xff"[..]));
    assert_eq!(got.server_keep_alive_s(), Some(3));
    assert_eq!(got.maximum_qos(), Some(QoS::AtLeastOnce));
    assert_eq!(got.maximum_packet_size_bytes(), Some(8));
    assert_eq!(got.shared_available(), Some(true));
    assert_eq!(got.subscription_ids().collect::<Vec<_>>(), [300]);
    assert_eq!(got.user_properties().collect::<Vec<_>>(), [("k", "v")]);
    assert_eq!(Properties::EMPTY.topic_alias(), None);
}

#[test]
fn forwardable_properties_keep_their_order_and_leave_the_rest() {
    let mut mixed = PropertyBuf::new();
    mixed.topic_alias(1).user_property("a", "1").content_type("t");
    mixed.message_expiry_interval_s(9).user_property("b", "2").will_delay_interval_s(3);
    let mixed = mixed.as_properties();
    let mut expected = PropertyBuf::new();
    expected.user_property("a", "1").content_type("t").user_property("b", "2");
    let mut copied = b"before".to_vec();
    mixed.copy_forwardable(&mut copied);
    assert_eq!(copied.strip_prefix(b"before"), Some(expected.as_properties().as_bytes()));
    assert_eq!(mixed.forwardable(), None, "they do not lie together");

    let mut together = PropertyBuf::new();
    together.topic_alias(1).user_property("a", "1").content_type("t").message_expiry_interval_s(9);
    let together = together.as_properties();
    let mut copied = Vec::new();
    together.copy_forwardable(&mut copied);
    assert_eq!(together.forwardable(), Some(&copied[..]));
    let mut none = PropertyBuf::new();
    none.topic_alias(1);
    assert_eq!(none.as_properties().forwardable(), Some(&[][..]));
}

#[test]
fn a_refused_connect_is_answered_in_a_version_its_sender_reads() {
    let of = |name: &[u8], level: u8| {
        let mut frame = vec![0x10, (3 + name.len()) as u8, 0, name.len() as u8];
        frame.extend_from_slice(name);
        frame.push(level);
        connect_version(&frame)
    };
    assert_eq!(of(b"MQIsdp", 9), Some(Version::V3_1));
    assert_eq!(of(b"MQTT", 3), Some(Version::V3_1_1));
    assert_eq!(of(b"MQTT", 0x84), Some(Version::V3_1_1));
    assert_eq!(of(b"MQTT", 5), Some(Version::V5));
    assert_eq!(of(b"MQTT", 6), Some(Version::V5));
    assert_eq!(of(b"HTTP", 4), None);
    assert_eq!(connect_version(b"\xc0\0"), None);
    assert_eq!(connect_version(b""), None);
}
