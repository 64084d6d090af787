//! Packets that break the protocol, as tables: each closes its connection, with a fitting reason
//! code where version 5 has one, and a well-behaved neighbour notices nothing.

use crate::Case;
use crate::broker::Broker;
use crate::column::Column;
use crate::raw::{self, Neighbour, Raw, connect_body, packet, publish, publish_raw, string};
use crate::wait::PATIENCE;

pub const CASES: &[Case] = &[
    Case::smoke("bad_input::before_connect", before_connect),
    Case::smoke("bad_input::after_connect_v5", |column| after_connect(column, 5)),
    Case::new("bad_input::after_connect_v4", |column| after_connect(column, 4)),
    Case::new("bad_input::after_connect_v3", |column| after_connect(column, 3)),
];

const MALFORMED: u8 = 0x81;
const PROTOCOL: u8 = 0x82;
/// Many errors are both; the specification does not always say which code wins.
const EITHER: &[u8] = &[MALFORMED, PROTOCOL];

/// A bad first packet with the codes that an answering CONNACK may carry; `None` is a first packet
/// after which there must be no answer at all.
type First = (&'static str, Vec<u8>, Option<&'static [u8]>);

fn first_packets() -> Vec<First> {
    // Codes of 3.x CONNACKs stand beside those of version 5: 1 is the level, 2 the identifier.
    const LEVEL: Option<&[u8]> = Some(&[0x01, 0x84]);
    const BROKEN: Option<&[u8]> = Some(&[0x81, 0x82, 0x84]);
    const ID: Option<&[u8]> = Some(&[0x02, 0x81, 0x82, 0x85]);
    let v4 = |flags, payload: &[u8]| packet(0x10, &connect_body(4, flags, 60, &[], payload));
    let v5 = |properties: &[u8]| packet(0x10, &connect_body(5, 2, 60, properties, &string("p")));
    let named = |name: &str, level: u8| {
        let mut body = string(name);
        body.extend([level, 0x02, 0, 60, 0]);
        body.extend(string("n"));
        packet(0x10, &body)
    };
    vec![
        // [MQTT-3.1.0-1]: the first packet must be a CONNECT
        ("PUBLISH first", publish(4, "first", b"x", 0, 0), None),
        ("SUBSCRIBE first", raw::subscribe(4, 1, "#", 0), None),
        ("PINGREQ first", vec![0xC0, 0], None),
        ("DISCONNECT first", vec![0xE0, 0], None),
        ("AUTH first", vec![0xF0, 0], None),
        ("type 0 first", vec![0, 0], None),
        ("CONNACK first", vec![0x20, 2, 0, 0], None),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: gearbox\r\n\r\n".to_vec(), None),
        ("TLS", b"\x16\x03\x01\x00\xA5\x01\x00\x00\xA1\x03\x03abcdefghijklmnop".to_vec(), None),
        ("five length bytes", b"\x10\xFF\xFF\xFF\xFF\x7F".to_vec(), BROKEN),
        ("claims 256 MiB", b"\x10\xFF\xFF\xFF\x7F\x00\x04MQTT".to_vec(), Some(&[0x81, 0x95])),
        ("empty CONNECT", vec![0x10, 0], BROKEN),
        (
            "CONNECT with flags",
            {
                let mut bytes = raw::connect(4, "flags", 60);
                bytes[0] = 0x11;
                bytes
            },
            BROKEN,
        ),
        ("protocol name MQTX", named("MQTX", 4), LEVEL),
        ("protocol name mqtt", named("mqtt", 5), LEVEL),
        ("level 99", named("MQTT", 99), LEVEL),
        ("level 0", named("MQTT", 0), LEVEL),
        // [MQTT-3.1.2-3]
        ("reserved connect flag", v4(0x03, &string("r")), BROKEN),
        // [MQTT-3.1.2-14]
        ("will of QoS 3", v4(0x1E, &[string("w"), string("t"), string("m")].concat()), BROKEN),
        // [MQTT-3.1.2-11]
        ("will QoS without will", v4(0x0A, &string("w")), BROKEN),
        ("will retain without will", v4(0x22, &string("w")), BROKEN),
        // [MQTT-3.1.2-22] of 3.1.1
        ("password without user", v4(0x42, &[string("p"), string("secret")].concat()), BROKEN),
        // [MQTT-1.5.3-1], [MQTT-1.5.3-2]
        ("id not in UTF-8", v4(2, &string(b"a\xC3\x28")), ID),
        ("id with a surrogate", v4(2, &string(b"\xED\xA0\x80")), ID),
        ("id with U+0000", v4(2, &string(b"a\0b")), ID),
        // [MQTT-3.1.3-8]
        ("empty id, session kept", v4(0, &string("")), ID),
        ("id beyond the packet", v4(2, &[0xFF, 0xFF, b'a']), BROKEN),
        ("bytes after the id", v4(2, &[string("t"), vec![1, 2, 3]].concat()), BROKEN),
        ("v5 property twice", v5(b"\x11\0\0\0\x01\x11\0\0\0\x01"), Some(EITHER)),
        ("v5 unknown property", v5(b"\x7E\x01"), Some(EITHER)),
        ("v5 receive maximum 0", v5(b"\x21\0\0"), Some(EITHER)),
        ("v5 maximum packet size 0", v5(b"\x27\0\0\0\0"), Some(EITHER)),
        ("v5 property cut short", v5(b"\x11\0\0"), Some(EITHER)),
        ("v5 authentication data alone", v5(b"\x16\0\x01a"), Some(EITHER)),
    ]
}

fn before_connect(column: &Column) {
    let mut broker = Broker::start(column);
    let mut neighbour = Neighbour::new(&broker);
    let mut wrong = Vec::new();
    for (name, bytes, codes) in first_packets() {
        let mut client = Raw::open(broker.mqtt, 4);
        client.send(&bytes);
        match (client.until_closed(PATIENCE / 6), codes) {
            (Err(what), _) => wrong.push(format!("{name}: {what}")),
            (Ok(answers), None) if !answers.is_empty() => {
                wrong.push(format!("{name}: was answered {answers:x?}"));
            }
            (Ok(answers), Some(codes)) => {
                let fits = |answer: &raw::Packet| {
                    answer.head == raw::CONNACK
                        && answer.reason().is_some_and(|code| codes.contains(&code))
                };
                if answers.len() > 1 || !answers.iter().all(fits) {
                    wrong.push(format!("{name}: was answered {answers:x?}, fitting: {codes:x?}"));
                }
                // [MQTT-3.1.2-2], [MQTT-3.1.3-8] of 3.1.1: these are told why
                let told = name.starts_with("level") || name.starts_with("empty id");
                if told && answers.is_empty() {
                    wrong.push(format!("{name}: needs an answer"));
                }
            }
            _ => {}
        }
        neighbour.check();
    }
    broker.assert_running();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A bad packet of a connected client with the DISCONNECT codes that fit in version 5.
type Later = (&'static str, Vec<u8>, &'static [u8]);

/// MQTT 3.1 calls these bits and bodies unused and says nothing of these topics.
const ALLOWED_IN_3_1: &[&str] = &[
    "DUP at QoS 0",
    "topic with U+0000",
    "empty topic",
    "PINGREQ with a body",
    "PINGREQ with flags",
    "PUBREL with wrong flags",
    "SUBSCRIBE with wrong flags",
    "SUBSCRIBE reserved bits",
    "UNSUBSCRIBE with wrong flags",
];

fn later_packets(v: u8) -> Vec<Later> {
    let subscribe = |filter: &[u8], options: u8| {
        let properties: &[u8] = if v == 5 { &[0] } else { &[] };
        [&[0, 7], properties, &string(filter), &[options]].concat()
    };
    let mut bad: Vec<Later> = vec![
        ("second CONNECT", raw::connect(v, "second", 60), &[PROTOCOL]), // [MQTT-3.1.0-2]
        ("five length bytes", b"\x30\xFF\xFF\xFF\xFF\x01".to_vec(), &[MALFORMED]),
        ("claims 256 MiB", b"\x30\xFF\xFF\xFF\x7F\x00\x01a".to_vec(), &[0x95]),
        ("PUBLISH of QoS 3", publish(v, "q", b"x", 3, 1), EITHER), // [MQTT-3.3.1-4]
        // [MQTT-3.3.1-2]
        ("DUP at QoS 0", publish_raw(v, 0x38, b"dup", &[], b"x", 0), EITHER),
        // [MQTT-2.2.1-3], [MQTT-2.3.1-1] of 3.1.1
        ("PUBLISH with id 0", publish(v, "q", b"x", 1, 0), EITHER),
        ("PUBLISH of one byte", packet(0x30, &[0]), EITHER),
        ("PUBLISH without id", packet(0x32, &string("a")), EITHER),
        ("topic beyond the packet", packet(0x30, b"\x01\xF4abc"), EITHER),
        ("topic not in UTF-8", publish_raw(v, 0x30, b"a/\xFF\xFE", &[], b"", 0), EITHER),
        ("topic with an overlong form", publish_raw(v, 0x30, b"\xC0\xAF", &[], b"", 0), EITHER),
        // [MQTT-1.5.4-2]
        ("topic with U+0000", publish_raw(v, 0x30, b"a\0b", &[], b"", 0), &[0x81, 0x82, 0x90]),
        // [MQTT-3.3.2-2]
        ("topic with a wildcard", publish(v, "a/+", b"", 0, 0), &[0x81, 0x82, 0x90]),
        ("empty topic", publish(v, "", b"", 0, 0), &[0x81, 0x82, 0x90]), // [MQTT-4.7.3-1]
        ("type 0", vec![0, 0], EITHER),
        ("CONNACK from a client", vec![0x20, 2, 0, 0], EITHER),
        ("SUBACK from a client", packet(0x90, &[0, 1, 0, 0]), EITHER),
        ("PINGRESP from a client", vec![0xD0, 0], EITHER),
        ("PINGREQ with a body", vec![0xC0, 1, 0], EITHER),
        ("PINGREQ with flags", vec![0xC1, 0], EITHER), // [MQTT-2.1.3-1]
        ("PUBREL with wrong flags", vec![0x60, 2, 0, 1], EITHER), // [MQTT-3.6.1-1]
        ("PUBACK of one byte", vec![0x40, 1, 0], EITHER),
        ("SUBSCRIBE with wrong flags", packet(0x80, &subscribe(b"a", 0)), EITHER),
        ("SUBSCRIBE with id 0", raw::subscribe(v, 0, "a", 0), EITHER),
        // [MQTT-3.8.3-2]
        (
            "SUBSCRIBE without filters",
            packet(0x82, &subscribe(b"", 0)[..v as usize / 5 + 2]),
            EITHER,
        ),
        ("SUBSCRIBE of QoS 3", raw::subscribe(v, 9, "a", 3), EITHER), // [MQTT-3.8.3-5]
        ("SUBSCRIBE reserved bits", raw::subscribe(v, 9, "a", 0xC0), EITHER),
        ("filter not in UTF-8", packet(0x82, &subscribe(b"\xFF", 0)), &[0x81, 0x82, 0x8F]),
        (
            "filter beyond the packet",
            packet(0x82, &subscribe(b"a", 0)[..v as usize / 5 + 4]),
            EITHER,
        ),
        // [MQTT-3.10.3-2]
        (
            "UNSUBSCRIBE without filters",
            packet(0xA2, &subscribe(b"", 0)[..v as usize / 5 + 2]),
            EITHER,
        ),
        ("UNSUBSCRIBE with wrong flags", packet(0xA0, &subscribe(b"a", 0)), EITHER),
    ];
    if v == 5 {
        let properties = |bytes: &[u8]| publish_raw(5, 0x30, b"p", bytes, b"x", 0);
        bad.extend([
            ("topic alias 0", properties(b"\x23\0\0"), &[0x94][..]), // [MQTT-3.3.2-8]
            ("topic alias too large", properties(b"\x23\xFF\xFF"), &[0x94]), // [MQTT-3.3.2-9]
            // §3.3.2.3.4
            (
                "unknown topic alias",
                publish_raw(5, 0x30, b"", b"\x23\0\x01", b"", 0),
                &[0x82, 0x94],
            ),
            ("property twice", properties(b"\x01\0\x01\0"), EITHER),
            ("payload format 2", properties(b"\x01\x02"), EITHER),
            ("property of another packet", properties(b"\x11\0\0\0\x01"), EITHER),
            ("subscription id from a client", properties(b"\x0B\x01"), EITHER), // [MQTT-3.3.4-6]
            ("property length too large", packet(0x30, b"\0\x01p\x50\x01\x01"), EITHER),
            // [MQTT-3.3.2-14]
            ("response topic wildcard", properties(b"\x08\0\x01#"), &[0x81, 0x82, 0x90]),
            ("AUTH without a method", vec![0xF0, 2, 0x19, 0], EITHER),
            // §3.14.2.2.2
            ("expiry set at DISCONNECT", packet(0xE0, b"\0\x05\x11\0\0\0\x09"), &[PROTOCOL]),
        ]);
    } else {
        if v == 3 {
            bad.retain(|(name, ..)| !ALLOWED_IN_3_1.contains(name));
        }
        bad.push(("AUTH", vec![0xF0, 0], &[]));
    }
    bad
}

fn after_connect(column: &Column, version: u8) {
    let mut broker = Broker::start(column);
    let mut neighbour = Neighbour::new(&broker);
    let mut wrong = Vec::new();
    for (n, (name, bytes, codes)) in later_packets(version).into_iter().enumerate() {
        let mut client = Raw::connect(broker.mqtt, version, &format!("bad-{n}"), 60);
        client.send(&bytes);
        match client.until_closed(PATIENCE / 6) {
            Err(what) => wrong.push(format!("{name}: {what}")),
            Ok(answers) if version < 5 => {
                if !answers.is_empty() {
                    wrong.push(format!("{name}: was answered {answers:x?}"));
                }
            }
            // §4.13.1: the reason is told by a DISCONNECT, and nothing else is answered
            Ok(answers) => match answers.as_slice() {
                [answer]
                    if answer.head == raw::DISCONNECT
                        && answer.reason().is_some_and(|code| codes.contains(&code)) => {}
                _ => wrong.push(format!("{name}: was answered {answers:x?}, wanted {codes:x?}")),
            },
        }
        neighbour.check();
    }
    broker.assert_running();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
