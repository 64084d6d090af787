//! What a packet costs on the wire side: decoding what a client sends, encoding what it gets:
//! `cargo bench -p mqtt --bench codec`. With `-- --test` everything runs once.

#![allow(missing_docs, reason = "the macros of criterion")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqtt::wire::{
    Connect, Packet, PacketId, Properties, PropertyBuf, Publish, PublishHead, QoS, Version, Will,
    decode_from_client, encode, encode_publish_head, peek,
};

criterion_group!(benches, publish, connect);
criterion_main!(benches);

const TOPIC: &str = "plant/hall-7/line-3/sensor-42/temperature";

fn publish(criterion: &mut Criterion) {
    let mut properties = PropertyBuf::new();
    properties.content_type("application/json").user_property("unit", "celsius");
    let cases = [
        ("3.1.1 QoS 0, 128 bytes", Version::V3_1_1, QoS::AtMostOnce, 128, Properties::EMPTY),
        ("5.0 QoS 1, 128 bytes", Version::V5, QoS::AtLeastOnce, 128, Properties::EMPTY),
        (
            "5.0 QoS 1 with properties",
            Version::V5,
            QoS::AtLeastOnce,
            128,
            properties.as_properties(),
        ),
        ("5.0 QoS 1, 16 KiB", Version::V5, QoS::AtLeastOnce, 16 << 10, Properties::EMPTY),
    ];
    let mut decoding = criterion.benchmark_group("decode PUBLISH");
    for (name, version, qos, bytes, properties) in cases {
        let (payload, packet_id) = (vec![b'x'; bytes], id_for(qos));
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic: TOPIC,
            packet_id,
            properties,
            payload: &payload,
        };
        let mut frame = Vec::new();
        encode(&Packet::Publish(publish), version, &mut frame);
        decode(&mut decoding, name, version, &frame);
    }
    decoding.finish();
    // As a shard does it for each receiver: the head alone, into a block that is used again.
    let mut encoding = criterion.benchmark_group("encode PUBLISH's head");
    for (name, version, qos, bytes, properties) in cases {
        let mut forwarded = Vec::new();
        properties.copy_forwardable(&mut forwarded);
        let head = PublishHead {
            dup: false,
            qos,
            retain: false,
            topic: TOPIC,
            packet_id: id_for(qos),
            message_expiry_s: None,
            topic_alias: None,
            subscription_ids: &[],
            forwarded: &forwarded,
            payload_len: bytes,
        };
        let mut block = Vec::with_capacity(512);
        encoding.bench_function(name, |bencher| {
            bencher.iter(|| {
                block.clear();
                encode_publish_head(&mut block, version, black_box(&head));
                black_box(block.len())
            });
        });
    }
    encoding.finish();
}

fn connect(criterion: &mut Criterion) {
    let mut properties = PropertyBuf::new();
    properties.session_expiry_interval_s(3600);
    let will = Will {
        topic: "plant/hall-7/gone",
        payload: b"sensor-42",
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: Properties::EMPTY,
    };
    let plain = Connect {
        version: Version::V3_1_1,
        clean_start: true,
        keep_alive_s: 60,
        client_id: "sensor-42",
        will: None,
        username: None,
        password: None,
        properties: Properties::EMPTY,
    };
    let full = Connect {
        version: Version::V5,
        will: Some(will),
        username: Some("hall-7"),
        password: Some(b"secret"),
        properties: properties.as_properties(),
        ..plain
    };
    let cases = [("3.1.1", plain), ("5.0 with will, user and expiry", full)];
    let mut decoding = criterion.benchmark_group("decode CONNECT");
    let mut frame = Vec::new();
    for (name, connect) in cases {
        frame.clear();
        encode(&Packet::Connect(connect), connect.version, &mut frame);
        decode(&mut decoding, name, connect.version, &frame);
    }
    decoding.finish();
    let mut encoding = criterion.benchmark_group("encode CONNECT");
    for (name, connect) in cases {
        encoding.bench_function(name, |bencher| {
            bencher.iter(|| {
                frame.clear();
                encode(black_box(&Packet::Connect(connect)), connect.version, &mut frame);
                black_box(frame.len())
            });
        });
    }
    encoding.finish();
}

/// Finding the packet's end, and decoding it.
fn decode(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    name: &str,
    version: Version,
    frame: &[u8],
) {
    group.throughput(Throughput::Bytes(frame.len() as u64));
    group.bench_with_input(BenchmarkId::from_parameter(name), frame, |bencher, frame| {
        bencher.iter(|| {
            peek(black_box(frame), u32::MAX).expect("a whole frame");
            black_box(decode_from_client(black_box(frame), version).expect("a sound packet"));
        });
    });
}

fn id_for(qos: QoS) -> Option<PacketId> {
    (qos != QoS::AtMostOnce).then_some(PacketId::MIN)
}
