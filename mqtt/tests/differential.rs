//! The codec against one that others wrote: rumqttc's. What we encode means the same there, and
//! what it encodes of that means the same here.
//!
//! Where the two disagree, [`disagreement`] names the clause that says who is right.

mod codec;

use bytes::BytesMut;
use codec::facts::{Facts, ours, theirs_v4, theirs_v5};
use codec::make::{Made, made};
use mqtt::wire::{
    Connect, DecodeError, Disconnect, Packet, Properties, PropertyBuf, ReasonCode, Sender, Version,
    decode_from_client, decode_from_server, encode,
};
use proptest::prelude::*;
use rumqttc::mqttbytes::v4;
use rumqttc::v5::mqttbytes::v5;

const MAX_BYTES: usize = 1 << 20;

/// The clause by which the other codec is wrong about a packet, or cannot express it.
fn disagreement(packet: &Packet<'_>, version: Version) -> Option<&'static str> {
    let v5 = version == Version::V5;
    match packet {
        // It demands a reason code.
        Packet::Disconnect(it)
            if v5 && it.reason == ReasonCode::Success && it.properties.is_empty() =>
        {
            Some("3.14.2.1: with a remaining length of 0 the reason code is 0x00")
        }
        // It writes a property length that it did not count.
        Packet::Disconnect(it) if v5 && it.properties.is_empty() => {
            Some("2.1.4: the remaining length counts all that follows it")
        }
        // It follows the table of 3.14.2.1, which leaves this one out.
        Packet::Disconnect(it) if it.reason == ReasonCode::BadAuthenticationMethod => {
            Some("2.4: 0x8C stands in CONNACK and DISCONNECT")
        }
        // It has AUTH, but does not read it.
        Packet::Auth(_) => Some("3.15"),
        // It takes an absent name or password for an empty one, and both for none.
        Packet::Connect(it)
            if it.username == Some("") || it.password.is_some_and(<[u8]>::is_empty) =>
        {
            Some("MQTT-3.1.2-17, MQTT-3.1.2-19: present is present, empty or not")
        }
        // Its passwords are text.
        Packet::Connect(it) if it.password.is_some_and(|it| std::str::from_utf8(it).is_err()) => {
            Some("3.1.3.6: a password is binary data")
        }
        _ => None,
    }
}

/// What the other codec makes of bytes.
fn read(bytes: &[u8], version: Version) -> Result<Other, String> {
    let mut stream = BytesMut::from(bytes);
    let read = match version {
        Version::V5 => v5::Packet::read(&mut stream, Some(MAX_BYTES as u32))
            .map(|packet| Other::V5(Box::new(packet)))
            .map_err(|error| format!("{error:?}")),
        _ => v4::Packet::read(&mut stream, MAX_BYTES)
            .map(Other::V4)
            .map_err(|error| format!("{error:?}")),
    };
    if read.is_ok() && !stream.is_empty() {
        return Err(format!("{} bytes left over", stream.len()));
    }
    read
}

enum Other {
    V4(v4::Packet),
    V5(Box<v5::Packet>),
}

impl Other {
    fn facts(&self) -> Facts {
        match self {
            Self::V4(packet) => theirs_v4(packet),
            Self::V5(packet) => theirs_v5(packet),
        }
    }

    fn write(&self) -> Result<Vec<u8>, String> {
        let mut out = BytesMut::new();
        match self {
            Self::V4(packet) => packet.write(&mut out, MAX_BYTES).map_err(|e| format!("{e:?}"))?,
            Self::V5(packet) => packet.write(&mut out, None).map_err(|e| format!("{e:?}"))?,
        };
        Ok(out.to_vec())
    }
}

fn decode(bytes: &[u8], version: Version, sender: Sender) -> Result<Packet<'_>, DecodeError> {
    match sender {
        Sender::Client => decode_from_client(bytes, version),
        Sender::Server => decode_from_server(bytes, version),
    }
}

/// Ours to theirs and back.
fn compare(packet: &Packet<'_>, version: Version, sender: Sender) {
    if disagreement(packet, version).is_some() {
        return;
    }
    let mut bytes = Vec::new();
    encode(packet, version, &mut bytes);
    assert_eq!(decode(&bytes, version, sender).as_ref(), Ok(packet), "here, {bytes:02x?}");
    let there = read(&bytes, version).unwrap_or_else(|error| {
        panic!("refused there: {error}, {packet:?}, {bytes:02x?}");
    });
    assert_eq!(there.facts(), ours(packet), "read there (left) and meant here, {bytes:02x?}");
    let back = there.write().unwrap_or_else(|error| panic!("not written there: {error}"));
    match decode(&back, version, sender) {
        Ok(again) => assert_eq!(ours(&again), ours(packet), "written there, {back:02x?}"),
        Err(error) => panic!("refused here: {error}, {packet:?}, {back:02x?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn both_codecs_mean_the_same(made in made()) {
        let Made { version, sender, .. } = made;
        made.with(|packet| compare(packet, version, sender));
    }
}

#[test]
fn packets_without_fields() {
    for version in [Version::V3_1_1, Version::V5] {
        compare(&Packet::PingReq, version, Sender::Client);
        compare(&Packet::PingResp, version, Sender::Server);
    }
    let (reason, properties) = (ReasonCode::Success, Properties::EMPTY);
    let disconnect = Packet::Disconnect(Disconnect { reason, properties });
    compare(&disconnect, Version::V3_1_1, Sender::Client);
}

/// The disagreements are still there: one that the other side settled leaves the list.
#[test]
fn the_listed_disagreements_exist() {
    let connect = |username, password| {
        Packet::Connect(Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "c",
            will: None,
            username,
            password,
            properties: Properties::EMPTY,
        })
    };
    let (reason, properties) = (ReasonCode::Success, Properties::EMPTY);
    let mut user = PropertyBuf::new();
    user.user_property("k", "v");
    let user = user.as_properties();
    let busy = ReasonCode::ServerBusy;
    let bad_method = ReasonCode::BadAuthenticationMethod;
    for (packet, sender) in [
        (Packet::Disconnect(Disconnect { reason, properties }), Sender::Client),
        (Packet::Disconnect(Disconnect { reason: busy, properties }), Sender::Server),
        (Packet::Disconnect(Disconnect { reason: bad_method, properties: user }), Sender::Server),
        (Packet::Auth(Disconnect { reason, properties }), Sender::Server),
        (connect(Some(""), None), Sender::Client),
        (connect(None, Some(b"\xff")), Sender::Client),
    ] {
        assert!(disagreement(&packet, Version::V5).is_some());
        let mut bytes = Vec::new();
        encode(&packet, Version::V5, &mut bytes);
        assert_eq!(decode(&bytes, Version::V5, sender), Ok(packet), "ours reads its own");
        let there = read(&bytes, Version::V5).and_then(|there| there.write());
        let same = there.is_ok_and(|back| decode(&back, Version::V5, sender) == Ok(packet));
        assert!(!same, "{packet:?}");
    }
}

/// What both must refuse.
#[test]
fn both_refuse_what_is_wrong() {
    let cases: [(&[u8], Version); 6] = [
        (b"\x36\x05\0\x01t\0\x01", Version::V3_1_1), // QoS 3
        (b"\x32\x05\0\x01t\0\0", Version::V3_1_1),   // identifier 0
        (b"\x10\x0d\0\x04MQTX\x04\x02\0\x3c\0\x01c", Version::V3_1_1), // protocol name
        (b"\x30\x05\0\x09t", Version::V5),           // a topic longer than the packet
        (b"\x30\x06\0\x01t\x02\x04\0", Version::V5), // an unknown property
        (b"\x30\xff\xff\xff\xff\x01", Version::V5),  // a length of five bytes
    ];
    for (bytes, version) in cases {
        assert!(decode_from_client(bytes, version).is_err(), "here: {bytes:02x?}");
        assert!(read(bytes, version).is_err(), "there: {bytes:02x?}");
    }
}
