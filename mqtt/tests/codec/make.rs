//! Packets made by chance: every type, with any of the properties that fit it.

use mqtt::wire::{
    Ack, AckKind, ConnAck, Connect, Disconnect, FilterBuf, Packet, PacketId, PacketType,
    PropertyBuf, Publish, QoS, ReasonCode, Sender, SubAck, Subscribe, SubscribeOptions,
    Unsubscribe, Version, Will,
};
use proptest::prelude::*;

/// What a packet is made of; which of it is used depends on its type.
#[derive(Clone, Debug)]
pub struct Made {
    pub version: Version,
    pub sender: Sender,
    kind: PacketType,
    flags: [bool; 5],
    qos: QoS,
    number: u16,
    texts: [String; 3],
    bytes: Vec<u8>,
    reason: prop::sample::Index,
    filters: Vec<(String, u8)>,
    values: Values,
    of_will: Values,
}

/// Values of properties, and which are there.
#[derive(Clone, Debug)]
struct Values {
    chosen: u32,
    small: u16,
    large: u32,
    text: String,
    bytes: Vec<u8>,
    flag: bool,
    users: Vec<(String, String)>,
}

pub fn made() -> impl Strategy<Value = Made> {
    let kinds = vec![
        PacketType::Connect,
        PacketType::ConnAck,
        PacketType::Publish,
        PacketType::PubAck,
        PacketType::PubRec,
        PacketType::PubRel,
        PacketType::PubComp,
        PacketType::Subscribe,
        PacketType::SubAck,
        PacketType::Unsubscribe,
        PacketType::UnsubAck,
        PacketType::Disconnect,
    ];
    let text = || "[a-z/é ]{0,6}";
    let head = (
        prop::sample::select(vec![Version::V3_1_1, Version::V5]),
        any::<bool>(),
        prop::sample::select(kinds),
        any::<[bool; 5]>(),
        0..3u8,
        1..=u16::MAX,
    );
    let body = (
        [text(), text(), text()],
        prop::collection::vec(any::<u8>(), 0..200),
        any::<prop::sample::Index>(),
        prop::collection::vec(("[a-z/+#]{1,6}", any::<u8>()), 1..4),
        values(),
        values(),
    );
    (head, body).prop_map(|((version, server, kind, flags, qos, number), body)| {
        let (texts, bytes, reason, filters, values, of_will) = body;
        let sender = match kind {
            PacketType::Connect | PacketType::Subscribe | PacketType::Unsubscribe => Sender::Client,
            PacketType::ConnAck | PacketType::SubAck | PacketType::UnsubAck => Sender::Server,
            PacketType::Disconnect if version != Version::V5 => Sender::Client,
            _ if server => Sender::Server,
            _ => Sender::Client,
        };
        let qos = QoS::from_u8(qos).unwrap_or_default();
        Made {
            version,
            sender,
            kind,
            flags,
            qos,
            number,
            texts,
            bytes,
            reason,
            filters,
            values,
            of_will,
        }
    })
}

fn values() -> impl Strategy<Value = Values> {
    let users = prop::collection::vec(("[a-z]{0,3}", "[a-z]{0,3}"), 0..3);
    (
        any::<u32>(),
        1..=u16::MAX,
        1..=268_435_455u32,
        "[a-z]{1,9}",
        any::<[u8; 3]>(),
        any::<bool>(),
        users,
    )
        .prop_map(|(chosen, small, large, text, bytes, flag, users)| Values {
            chosen,
            small,
            large,
            text,
            bytes: bytes.to_vec(),
            flag,
            users,
        })
}

impl Made {
    /// Builds the packet and shows it.
    pub fn with(&self, show: impl FnOnce(&Packet<'_>)) {
        let built = self.properties();
        let properties = built.as_properties();
        let packet_id = PacketId::new(self.number).unwrap_or(PacketId::MIN);
        let v5 = self.version == Version::V5;
        let ack = |kind: AckKind| {
            let reason = if v5 { self.reason() } else { ReasonCode::Success };
            Packet::Ack(Ack { kind, packet_id, reason, properties })
        };
        match self.kind {
            PacketType::Connect => {
                let of_will = self.will_properties();
                let topic = format!("w{}", self.texts[1]);
                let will = Will {
                    topic: &topic,
                    payload: &self.bytes,
                    qos: self.qos,
                    retain: self.flags[1],
                    properties: of_will.as_properties(),
                };
                let username = self.flags[2].then_some(self.texts[2].as_str());
                // 3.1.1 has no password without a name.
                let password = self.flags[3] && (v5 || username.is_some());
                show(&Packet::Connect(Connect {
                    version: self.version,
                    clean_start: self.flags[0],
                    keep_alive_s: self.number,
                    client_id: &self.texts[0],
                    will: self.flags[4].then_some(will),
                    username,
                    password: password.then_some(self.texts[1].as_bytes()),
                    properties,
                }));
            }
            PacketType::ConnAck => {
                let reason = self.reason();
                let session_present = self.flags[0] && reason == ReasonCode::Success;
                show(&Packet::ConnAck(ConnAck { session_present, reason, properties }));
            }
            PacketType::Publish => {
                let topic = format!("t{}", self.texts[0]);
                let above = self.qos > QoS::AtMostOnce;
                show(&Packet::Publish(Publish {
                    dup: self.flags[0] && above,
                    qos: self.qos,
                    retain: self.flags[1],
                    topic: &topic,
                    packet_id: above.then_some(packet_id),
                    properties,
                    payload: &self.bytes,
                }));
            }
            PacketType::PubAck => show(&ack(AckKind::PubAck)),
            PacketType::PubRec => show(&ack(AckKind::PubRec)),
            PacketType::PubRel => show(&ack(AckKind::PubRel)),
            PacketType::PubComp => show(&ack(AckKind::PubComp)),
            PacketType::Subscribe => {
                let mut filters = FilterBuf::for_subscribe();
                for (filter, byte) in &self.filters {
                    let byte = if v5 { *byte } else { byte & 3 };
                    filters.push(filter, SubscribeOptions::from_u8(byte).unwrap_or_default());
                }
                let filters = filters.as_filters();
                show(&Packet::Subscribe(Subscribe { packet_id, properties, filters }));
            }
            PacketType::Unsubscribe => {
                let mut filters = FilterBuf::for_unsubscribe();
                for (filter, _) in &self.filters {
                    filters.push(filter, SubscribeOptions::default());
                }
                let filters = filters.as_filters();
                show(&Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters }));
            }
            PacketType::SubAck => {
                let code = self.reason();
                let codes =
                    [if v5 { code.as_u8() } else { code.as_u8().min(0x80) }, self.qos as u8];
                show(&Packet::SubAck(SubAck { packet_id, properties, codes: &codes }));
            }
            PacketType::UnsubAck => {
                let codes = [self.reason().as_u8(), 0];
                let codes = if v5 { &codes[..] } else { &[] };
                show(&Packet::UnsubAck(SubAck { packet_id, properties, codes }));
            }
            _ => {
                let reason = if v5 { self.reason() } else { ReasonCode::Success };
                show(&Packet::Disconnect(Disconnect { reason, properties }));
            }
        }
    }

    /// A reason code that fits.
    fn reason(&self) -> ReasonCode {
        let mut legal: Vec<ReasonCode> = ReasonCode::ALL.to_vec();
        legal.retain(|code| code.is_legal_in(self.kind, self.sender));
        let known = |code: &ReasonCode| {
            let back = ReasonCode::from_v3_connack(code.to_v3_connack());
            back == Some(*code)
        };
        if self.version != Version::V5 && self.kind == PacketType::ConnAck {
            legal.retain(known);
        }
        *self.reason.get(&legal)
    }

    // One property is one line.
    #[rustfmt::skip]
    fn properties(&self) -> PropertyBuf {
        let mut all = PropertyBuf::new();
        if self.version != Version::V5 {
            return all;
        }
        let it = &self.values;
        let has = |bit: u32| it.chosen >> bit & 1 == 1;
        match self.kind {
            PacketType::Connect => {
                if has(0) { all.session_expiry_interval_s(it.large); }
                if has(1) { all.receive_maximum(it.small); }
                if has(2) { all.maximum_packet_size_bytes(it.large + 1); }
                if has(3) { all.topic_alias_maximum(it.small); }
                if has(4) { all.request_response_information(it.flag); }
                if has(5) { all.request_problem_information(it.flag); }
                if has(6) { all.auth_method(&it.text); }
                if has(6) && has(7) { all.auth_data(&it.bytes); }
            }
            PacketType::ConnAck => {
                if has(0) { all.session_expiry_interval_s(it.large); }
                if has(1) { all.receive_maximum(it.small); }
                if has(2) { all.maximum_qos(QoS::AtLeastOnce); }
                if has(3) { all.retain_available(it.flag); }
                if has(4) { all.maximum_packet_size_bytes(it.large); }
                if has(5) { all.assigned_client_id(&it.text); }
                if has(6) { all.topic_alias_maximum(it.small); }
                if has(7) { all.reason_string(&it.text); }
                if has(8) { all.wildcard_available(it.flag); }
                if has(9) { all.subscription_ids_available(it.flag); }
                if has(10) { all.shared_available(it.flag); }
                if has(11) { all.server_keep_alive_s(it.small); }
                if has(12) { all.response_information(&it.text); }
                if has(13) { all.server_reference(&it.text); }
                if has(14) { all.auth_method(&it.text); }
                if has(14) && has(15) { all.auth_data(&it.bytes); }
            }
            PacketType::Publish => {
                self.put_message(it, &mut all);
                if has(8) { all.topic_alias(it.small); }
                if has(9) && self.sender == Sender::Server {
                    all.subscription_id(it.large).subscription_id(u32::from(it.small));
                }
            }
            PacketType::Subscribe => {
                if has(0) { all.subscription_id(it.large); }
            }
            PacketType::Unsubscribe => {}
            PacketType::Disconnect => {
                if has(0) && self.sender == Sender::Client { all.session_expiry_interval_s(it.large); }
                if has(1) && self.sender == Sender::Server { all.server_reference(&it.text); }
                if has(2) { all.reason_string(&it.text); }
            }
            _ => {
                if has(0) { all.reason_string(&it.text); }
            }
        }
        for (name, value) in &it.users {
            all.user_property(name, value);
        }
        all
    }

    #[rustfmt::skip]
    fn will_properties(&self) -> PropertyBuf {
        let mut all = PropertyBuf::new();
        if self.version == Version::V5 {
            let it = &self.of_will;
            if it.chosen >> 7 & 1 == 1 { all.will_delay_interval_s(it.large); }
            self.put_message(it, &mut all);
            for (name, value) in &it.users {
                all.user_property(name, value);
            }
        }
        all
    }

    /// The properties that belong to a message.
    #[rustfmt::skip]
    fn put_message(&self, it: &Values, all: &mut PropertyBuf) {
        let has = |bit: u32| it.chosen >> bit & 1 == 1;
        if has(0) { all.payload_is_utf8(it.flag); }
        if has(1) { all.message_expiry_interval_s(it.large); }
        if has(2) { all.content_type(&it.text); }
        if has(3) { all.response_topic(&it.text); }
        if has(4) { all.correlation_data(&it.bytes); }
    }
}
