//! The language of the inputs: bytes become packets of clients.

use mqtt::access::SCRAM_SHA_256;
use mqtt::wire::{
    Ack, AckKind, Connect, Disconnect, FilterBuf, Packet, PacketId, Properties, PropertyBuf,
    Publish, QoS, ReasonCode, Subscribe, SubscribeOptions, Unsubscribe, Version, Will, encode,
};

use super::scram::{FIRST, last_message};

const CLIENTS: [&str; 5] = ["a", "b", "c", "d", ""];
pub const TOPICS: [&str; 8] = ["t", "t/u", "t/u/v", "$s/t", "/", "$SYS/x", "u", ""];
const FILTERS: [&str; 12] = [
    "t",
    "t/+",
    "#",
    "+",
    "t/#",
    "$s/#",
    "+/+",
    "$share/g/t/#",
    "$share/g/t",
    "$share/h/#",
    "t#",
    "/",
];

/// The rest of the input; behind its end all bytes are 0.
pub struct Input<'a> {
    pub data: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        first
    }

    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.data.split_at(count.min(self.data.len()));
        self.data = rest;
        taken
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }
}

/// A CONNECT; its version. With `users` it may bring credentials.
pub fn connect(input: &mut Input<'_>, users: bool, out: &mut Vec<u8>) -> Version {
    let version = input.one_of(&[Version::V5, Version::V5, Version::V3_1_1, Version::V3_1]);
    let client_id = input.one_of(&CLIENTS);
    let flags = input.byte();
    let (mut wishes, mut of_will) = (PropertyBuf::new(), PropertyBuf::new());
    wishes.session_expiry_interval_s(input.one_of(&[0, 1, 50, u32::MAX]));
    if flags & 1 != 0 {
        wishes.receive_maximum(input.one_of(&[1, 2, 100]));
    }
    if flags & 2 != 0 {
        wishes.maximum_packet_size_bytes(input.one_of(&[1, 12, 30, 1_000]));
    }
    if flags & 4 != 0 {
        wishes.topic_alias_maximum(input.one_of(&[1, 5]));
    }
    let will = (flags & 8 != 0).then(|| {
        let delay = input.byte();
        if delay > 0 {
            of_will.will_delay_interval_s(u32::from(delay));
        }
        let topic = input.one_of(&TOPICS);
        let qos = input.one_of(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        (topic, qos)
    });
    let mut login = ((flags & 64 != 0).then_some("name"), None);
    if users {
        match input.byte() % 8 {
            0 => login = (None, None),
            1 | 2 => login = (Some("ann"), Some(&b"a"[..])),
            3 => login = (Some("bob"), Some(b"?")),
            4 => {
                wishes.auth_method(SCRAM_SHA_256);
            }
            5 | 6 => {
                wishes.auth_method(SCRAM_SHA_256).auth_data(FIRST.as_bytes());
            }
            _ => {
                wishes.auth_method("?").auth_data(b"?");
            }
        }
    }
    let request = Connect {
        version,
        clean_start: flags & 16 != 0,
        keep_alive_s: input.one_of(&[0, 1, 10, 255]),
        client_id,
        will: will.map(|(topic, qos)| Will {
            topic,
            payload: b"will",
            qos,
            retain: flags & 32 != 0,
            properties: of_will.as_properties(),
        }),
        username: login.0,
        password: login.1,
        properties: wishes.as_properties(),
    };
    encode(&Packet::Connect(request), version, out);
    version
}

/// Any other packet of a client. With `users` it may be AUTH, which can prove what `challenge` asks.
pub fn packet(
    input: &mut Input<'_>,
    version: Version,
    users: bool,
    challenge: Option<&str>,
    out: &mut Vec<u8>,
) {
    let packet_id = PacketId::new(u16::from(input.byte() % 6) + 1).unwrap_or(PacketId::MIN);
    let mut properties = PropertyBuf::new();
    match input.byte() % if users { 15 } else { 12 } {
        0 | 1 => {
            if input.byte() & 1 != 0 {
                properties.subscription_id(u32::from(input.byte()) + 1);
            }
            let mut filters = FilterBuf::for_subscribe();
            for _ in 0..=input.byte() % 3 {
                let filter = input.one_of(&FILTERS);
                filters.push(filter, SubscribeOptions::from_u8(input.byte()).unwrap_or_default());
            }
            let (properties, filters) = (properties.as_properties(), filters.as_filters());
            let subscribe = Subscribe { packet_id, properties, filters };
            encode(&Packet::Subscribe(subscribe), version, out);
        }
        2 => {
            let mut filters = FilterBuf::for_unsubscribe();
            filters.push(input.one_of(&FILTERS), SubscribeOptions::default());
            let (properties, filters) = (Properties::EMPTY, filters.as_filters());
            let unsubscribe = Unsubscribe { packet_id, properties, filters };
            encode(&Packet::Unsubscribe(unsubscribe), version, out);
        }
        3..=6 => {
            let flags = input.byte();
            let qos = input.one_of(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
            if flags & 1 != 0 {
                properties.topic_alias(u16::from(input.byte() % 4));
            }
            if flags & 2 != 0 {
                properties.message_expiry_interval_s(u32::from(input.byte()));
            }
            if flags & 4 != 0 {
                properties.user_property("k", "v");
            }
            let size = input.one_of(&[0, 1, 10, 100, 9_000, 20_000, 39_000]);
            let publish = Publish {
                dup: flags & 8 != 0 && qos != QoS::AtMostOnce,
                qos,
                retain: flags & 16 != 0,
                topic: input.one_of(&TOPICS),
                packet_id: (qos != QoS::AtMostOnce).then_some(packet_id),
                properties: properties.as_properties(),
                payload: &vec![b'x'; size],
            };
            encode(&Packet::Publish(publish), version, out);
        }
        7..=9 => {
            let kind = input.one_of(&[
                AckKind::PubAck,
                AckKind::PubRec,
                AckKind::PubRel,
                AckKind::PubComp,
            ]);
            let good = ReasonCode::Success;
            let reason = match kind {
                AckKind::PubAck | AckKind::PubRec => {
                    input.one_of(&[good, good, ReasonCode::QuotaExceeded])
                }
                _ => input.one_of(&[good, good, ReasonCode::PacketIdentifierNotFound]),
            };
            let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
            encode(&Packet::Ack(ack), version, out);
        }
        10 => encode(&Packet::PingReq, version, out),
        12.. => auth(input, challenge, out),
        _ => {
            let reason = input.one_of(&[
                ReasonCode::Success,
                ReasonCode::DisconnectWithWill,
                ReasonCode::UnspecifiedError,
            ]);
            if input.byte() & 1 != 0 {
                properties.session_expiry_interval_s(input.one_of(&[0, 1, u32::MAX]));
            }
            let properties = properties.as_properties();
            encode(&Packet::Disconnect(Disconnect { reason, properties }), version, out);
        }
    }
}

fn auth(input: &mut Input<'_>, challenge: Option<&str>, out: &mut Vec<u8>) {
    let go_on = ReasonCode::ContinueAuthentication;
    let reason = input.one_of(&[go_on, go_on, ReasonCode::ReAuthenticate, ReasonCode::Success]);
    let mut properties = PropertyBuf::new();
    properties.auth_method(input.one_of(&[SCRAM_SHA_256, SCRAM_SHA_256, SCRAM_SHA_256, "?"]));
    match input.byte() % 6 {
        0 => {}
        1 => {
            properties.auth_data(FIRST.as_bytes());
        }
        2 => {
            properties.auth_data(b"n,,n=eve,r=abc");
        }
        3 => {
            let size = usize::from(input.byte() & 0x3f);
            properties.auth_data(input.bytes(size));
        }
        _ => {
            let proof = challenge.and_then(last_message).unwrap_or_default();
            properties.auth_data(proof.as_bytes());
        }
    }
    let auth = Disconnect { reason, properties: properties.as_properties() };
    encode(&Packet::Auth(auth), Version::V5, out);
}
