//! Clients that mean harm without (only) breaking the protocol: they claim memory, dribble, stop in
//! the middle, or send noise. Each is bounded, and a neighbour notices nothing.

use crate::Case;
use crate::broker::{Broker, Options};
use crate::column::Column;
use crate::raw::{self, Got, Neighbour, Raw, packet, string};
use crate::wait::PATIENCE;
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    Case::smoke("hostile::claimed_lengths_allocate_nothing", claimed_lengths),
    Case::new("hostile::dribbling_counts_as_silence", dribbling),
    Case::new("hostile::half_a_connect_is_closed", half_a_connect),
    Case::smoke("hostile::slow_but_whole_packets_are_served", slow_but_whole),
    Case::new("hostile::cut_in_the_middle_sends_the_will", cut_in_the_middle),
    Case::new("hostile::noise", noise),
];

const MIB: u64 = 1 << 20;

/// 50 connections that each claim a large packet: memory follows what was sent, not what was
/// claimed. What the broker does not allow it closes (0x95); what it allows it waits for.
fn claimed_lengths(column: &Column) {
    // (what, header and first bytes, whether a CONNECT goes before it, closed, bound in bytes)
    let claims: [(&str, &[u8], bool, bool, u64); 3] = [
        ("256 MiB before CONNECT", b"\x10\xFF\xFF\xFF\x7F\x00\x04MQTT", false, true, 4 * MIB),
        ("256 MiB after CONNECT", b"\x30\xFF\xFF\xFF\x7F\x00\x05claim", true, true, 4 * MIB),
        // 15 MiB is within the default limit of 16: one read buffer each is all it may cost.
        ("15 MiB, allowed", b"\x30\x80\x80\xC0\x07\x00\x05claim", true, false, 8 * MIB),
    ];
    for (what, bytes, connected, closed, bound) in claims {
        let mut broker = Broker::start(column);
        let mut neighbour = Neighbour::new(&broker);
        let open = |n: usize| {
            if connected {
                Raw::connect(broker.mqtt, 5, &format!("claim-{n}"), 600)
            } else {
                Raw::open(broker.mqtt, 5)
            }
        };
        // The cost of 50 plain connections is not the matter here: the base is taken with them.
        let mut held: Vec<Raw> = (0..50).map(open).collect();
        broker.metric_until("connections_accepted", |now| now >= 52);
        neighbour.check();
        let base = broker.resident_bytes();
        for client in &mut held {
            client.send(bytes);
        }
        let mut answers = Vec::new();
        for client in &mut held {
            if closed {
                answers.push(client.until_closed(PATIENCE).expect(what));
            }
        }
        for _ in 0..20 {
            neighbour.check();
        }
        let grown = broker.resident_bytes().saturating_sub(base);
        assert!(grown < bound, "{what}: grew by {} KiB", grown / 1024);
        for answer in answers.iter().filter(|_| connected) {
            let reasons: Vec<_> = answer.iter().map(raw::Packet::reason).collect();
            assert_eq!(reasons, [Some(0x95)], "{what}: packet too large");
        }
        if !closed {
            let still_open = held.iter_mut().all(|c| c.next(Duration::ZERO) == Got::Silence);
            assert!(still_open, "{what}: an allowed packet was refused");
        }
        broker.assert_running();
    }
}

/// Bytes that never make a packet do not count as a sign of life [MQTT-3.1.2-22].
fn dribbling(column: &Column) {
    let broker = Broker::start(column);
    let mut neighbour = Neighbour::new(&broker);
    let mut clients: Vec<Raw> =
        (0..20).map(|n| Raw::connect(broker.mqtt, 5, &format!("dribble-{n}"), 1)).collect();
    let start = Instant::now();
    for client in &mut clients {
        client.send(b"\x30\xFF\x01\x00\x07"); // a PUBLISH of 255 bytes begins
    }
    let mut open: Vec<&mut Raw> = clients.iter_mut().collect();
    while !open.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(6), "{} still dribble", open.len());
        open.retain_mut(|client| {
            client.send(b"a");
            match client.next(Duration::from_millis(5)) {
                Got::Silence => true,
                Got::Closed => false,
                Got::Packet(packet) => {
                    assert_eq!(packet.reason(), Some(0x8D), "keep alive timeout: {packet:?}");
                    true
                }
            }
        });
        neighbour.check();
    }
    assert!(start.elapsed() >= Duration::from_millis(1400), "closed before its keep-alive ran out");
}

/// A client that never finishes its CONNECT is closed when its time is over.
fn half_a_connect(column: &Column) {
    let environment = [("GEARBOX_LIMITS__CONNECT_TIMEOUT_MS", "1000")];
    let broker =
        Broker::start_with(column, &Options { environment: &environment, ..Options::default() });
    let mut neighbour = Neighbour::new(&broker);
    let whole = raw::connect(5, "half", 60);
    let start = Instant::now();
    let mut clients: Vec<Raw> = (0..whole.len())
        .map(|count| {
            let mut client = Raw::open(broker.mqtt, 5);
            client.send(&whole[..count]);
            client
        })
        .collect();
    for client in &mut clients {
        let before = client.until_closed(Duration::from_secs(5)).expect("its time is over");
        assert!(before.is_empty(), "half a CONNECT was answered: {before:?}");
        neighbour.check();
    }
    assert!(start.elapsed() >= Duration::from_millis(900), "closed too early");
}

/// Slowness alone is no crime: one byte per segment is still a good client.
fn slow_but_whole(column: &Column) {
    let broker = Broker::start(column);
    let mut watcher = Raw::connect(broker.mqtt, 4, "slow-watcher", 60);
    watcher.subscribe("slow", 0);
    for version in [3, 4, 5] {
        let mut client = Raw::open(broker.mqtt, version);
        let dribble = |client: &mut Raw, bytes: Vec<u8>| {
            for byte in bytes {
                assert_eq!(client.next(Duration::from_millis(2)), Got::Silence);
                client.send(&[byte]);
            }
        };
        dribble(&mut client, raw::connect(version, &format!("slow-{version}"), 60));
        client.expect(raw::CONNACK);
        dribble(&mut client, raw::publish(version, "slow", b"slow but whole", 1, 77));
        assert_eq!(client.expect(raw::PUBACK).body[..2], [0, 77]);
        let got = watcher.expect(raw::PUBLISH).publish(4);
        assert_eq!(got, ("slow".to_owned(), b"slow but whole".to_vec(), None));

        // And the other way round: everything at once, CONNECT included.
        let id = format!("burst-{version}");
        let mut client = Raw::open(broker.mqtt, version);
        let mut burst = raw::connect(version, &id, 60);
        for n in 1..=100 {
            burst.extend(raw::publish(version, "slow", &[n], 1, n.into()));
        }
        client.send(&burst);
        client.expect(raw::CONNACK);
        for n in 1..=100 {
            assert_eq!(client.expect(raw::PUBACK).body[..2], [0, n]);
            assert_eq!(watcher.expect(raw::PUBLISH).publish(4).1, [n]);
        }
    }
}

/// A connection that ends inside a packet is an abnormal end: the will goes out, half a message
/// does not [MQTT-3.1.2-8].
fn cut_in_the_middle(column: &Column) {
    let broker = Broker::start(column);
    let mut watcher = Raw::connect(broker.mqtt, 4, "cut-watcher", 60);
    watcher.subscribe("cut/#", 0);
    let mut neighbour = Neighbour::new(&broker);
    for version in [3, 4, 5] {
        let whole = raw::publish(version, "cut/message", b"payload", 0, 0);
        for count in 1..whole.len() {
            let id = format!("cut-{version}-{count}");
            let mut client = Raw::open(broker.mqtt, version);
            client.send(&raw::connect_with_will(version, &id, "cut/will", &id));
            client.expect(raw::CONNACK);
            client.send(&whole[..count]);
            client.half_close();
            client.until_closed(PATIENCE).expect("the broker closes too");
            let (topic, payload, _) = watcher.expect(raw::PUBLISH).publish(4);
            assert_eq!((topic.as_str(), payload), ("cut/will", id.into_bytes()));
        }
        neighbour.check();
    }
}

/// Fixed pseudo-random bytes, before and after CONNECT, and bit flips of good packets.
fn noise(column: &Column) {
    let mut broker = Broker::start(column);
    let mut neighbour = Neighbour::new(&broker);
    let mut state: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut random = move || {
        // xorshift64: the same bytes in every run
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let will = packet(0x10, &raw::connect_body(5, 2, 60, b"\x11\0\0\0\x05", &string("flip")));
    let good = [
        raw::connect(4, "flip", 60),
        will,
        raw::publish(5, "noise/flip", b"payload", 1, 7),
        raw::subscribe(5, 8, "noise/flip", 1),
    ]
    .concat();
    for round in 0..150 {
        let mut client = match round % 3 {
            0 => Raw::open(broker.mqtt, 5),
            _ => Raw::connect(broker.mqtt, 4 + round % 2, &format!("noise-{round}"), 60),
        };
        let bytes: Vec<u8> = if round % 2 == 0 {
            (0..300).map(|_| random() as u8).collect()
        } else {
            let mut bytes = good.clone();
            let bit = random() as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        client.send(&bytes);
        client.half_close();
        client.until_closed(PATIENCE).expect("the end of the input ends the connection");
        if round % 10 == 0 {
            neighbour.check();
        }
    }
    neighbour.check();
    broker.assert_running();
}
