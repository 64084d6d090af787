use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn id(n: u16) -> PacketId {
    PacketId::new(n).expect("not 0")
}

fn done(generation: u64, seq: u64) -> Done {
    Done { generation, seq }
}

fn put_target(target: &Target<'_>, out: &mut Vec<u8>) {
    let delivery = Delivery {
        qos: target.qos,
        retain: target.retain,
        subscription_ids: target.subscription_ids.clone(),
        share: target.share.map(Arc::from),
    };
    encode_target(target.to, &delivery, out);
}

fn bytes_of(record: &Record<'_>) -> Vec<u8> {
    let (mut encoded, mut out) = (Vec::new(), Vec::new());
    match record {
        Record::Publish(head, targets) => {
            targets.iter().for_each(|target| put_target(target, &mut encoded));
            encode_publish(head, targets.len(), &encoded, &mut out);
        }
        Record::Moved(head, targets) => {
            for (target, sent_seq) in targets {
                put_target(target, &mut encoded);
                encode_sent(*sent_seq, &mut encoded);
            }
            encode_moved(head, targets.len(), &encoded, &mut out);
        }
        other => other.encode(&mut out),
    }
    out
}

fn reads_as(bytes: &[u8], record: &Record<'_>) -> bool {
    Record::decode(bytes).is_ok_and(|read| read == *record)
}

fn publish<'a>(topic: &'a str, payload: &'a [u8]) -> PublishHead<'a> {
    PublishHead {
        qos: QoS::AtLeastOnce,
        retain: false,
        expires_at_ms: None,
        origin: None,
        topic,
        properties: &[],
        payload,
    }
}

/// What is on disks must stay readable.
#[test]
fn golden_bytes() {
    fn golden(record: Record<'_>, bytes: &[u8]) {
        assert_eq!(bytes_of(&record), bytes, "{record:?}");
        assert!(reads_as(bytes, &record), "{record:?}");
    }
    let plain = Target {
        to: done(300, 7),
        qos: QoS::AtLeastOnce,
        retain: false,
        subscription_ids: SmallVec::new(),
        share: None,
    };
    let full = Target {
        to: done(1, 2),
        qos: QoS::ExactlyOnce,
        retain: true,
        subscription_ids: SmallVec::from_slice(&[5, 200]),
        share: Some("$share/g/t"),
    };
    golden(
        Record::Publish(publish("t", b"hi"), vec![plain.clone()]),
        b"\x11\x01\x01t\x00\x02hi\x01\x01\xac\x02\x07",
    );
    golden(
        Record::Moved(publish("t", b"hi"), vec![(plain, 6)]),
        b"\x18\x01\x01t\x00\x02hi\x01\x01\xac\x02\x07\x06",
    );
    golden(Record::Moved(publish("t", b""), vec![]), b"\x18\x01\x01t\x00\x00\x00");
    golden(Record::Untaken(Origin { generation: 1, id: id(2) }, 300), b"\x19\x01\x02\xac\x02");
    let head = PublishHead {
        qos: QoS::ExactlyOnce,
        retain: true,
        expires_at_ms: Some(1),
        origin: Some(Origin { generation: 9, id: id(258) }),
        properties: &[1, 1],
        ..publish("t", b"")
    };
    golden(
        Record::Publish(head, vec![full]),
        b"\x11\x1e\x01\x09\x82\x02\x01t\x02\x01\x01\x00\x01\x1e\x01\x02\x02\x05\xc8\x01\x0a$share/g/t",
    );
    golden(Record::Done(vec![done(1, 2), done(3, 128)]), b"\x12\x02\x01\x02\x03\x80\x01");
    golden(Record::Received(done(1, 2)), b"\x13\x01\x02");
    golden(Record::Sent(done(1, 2)), b"\x14\x01\x02");
    golden(Record::Taken(Origin { generation: 1, id: id(2) }), b"\x15\x01\x02");
    golden(Record::Released(Origin { generation: 1, id: id(2) }), b"\x16\x01\x02");
    golden(Record::Ended(300), b"\x17\xac\x02");
}

#[test]
fn what_is_no_record_is_told_apart() {
    let invalid = |bytes: &[u8], what: &str| {
        let error = Record::decode(bytes).expect_err("no record");
        assert!(error.to_string().contains(what), "{error}");
    };
    invalid(b"", "length");
    invalid(b"\x21\x01", "newer");
    invalid(b"\x1a\x01", "newer");
    invalid(b"\x18\x11\x01\x01\x01t\x00\x00\x00", "flags");
    invalid(b"\x13\x01\x02\x00", "length");
    invalid(b"\x13\x00\x02", "session");
    invalid(b"\x13\x01\x00", "number");
    invalid(b"\x15\x01\x80\x80\x04", "packet identifier");
    invalid(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "count");
    invalid(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "count");
    invalid(b"\x11\x03\x01t\x00\x00\x00", "flags");
    invalid(b"\x11\x01\x01\xff\x00\x00\x00", "topic");
    invalid(b"\x11\x01\x01t\x00\x05hi", "payload");
    invalid(b"\x11\x01\x01t\x00\x00\x01\x00\x01\x01", "delivery");
}

/// Session, number, QoS 2, retain, identifiers, share.
type Parts = (u64, u64, bool, bool, Vec<u32>, Option<String>);

fn targets() -> impl Strategy<Value = Vec<Parts>> {
    let share = prop::option::of("\\$share/[a-z]{1,3}/[a-z#]{1,5}");
    let ids = prop::collection::vec(any::<u32>(), 0..4);
    let one = (1..u64::MAX, 1..u64::MAX >> 1, any::<bool>(), any::<bool>(), ids, share);
    prop::collection::vec(one, 0..5)
}

proptest! {
    #[test]
    fn a_publish_comes_back(
        topic in ".{0,20}",
        properties in prop::collection::vec(any::<u8>(), 0..20),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        retain: bool,
        qos in 0..3_u8,
        expires_at_ms: Option<u64>,
        origin in prop::option::of((1..u64::MAX, 1..=u16::MAX)),
        targets in targets(),
    ) {
        let head = PublishHead {
            qos: QoS::from_u8(qos).expect("0 to 2"),
            retain,
            expires_at_ms,
            origin: origin.map(|(generation, n)| Origin { generation, id: id(n) }),
            topic: &topic,
            properties: &properties,
            payload: &payload,
        };
        let targets = targets.iter().map(|(generation, seq, twice, retain, ids, share)| Target {
            to: done(*generation, *seq),
            qos: if *twice { QoS::ExactlyOnce } else { QoS::AtLeastOnce },
            retain: *retain,
            subscription_ids: SmallVec::from_slice(ids),
            share: share.as_deref(),
        });
        let targets: Vec<_> = targets.collect();
        let sent = targets.iter().map(|target| (target.clone(), target.to.seq / 2)).collect();
        let moved = Record::Moved(PublishHead { origin: None, ..head }, sent);
        for record in [Record::Publish(head, targets), moved] {
            let bytes = bytes_of(&record);
            prop_assert!(reads_as(&bytes, &record));
            let message = Record::decode_message(&bytes).expect("a message");
            prop_assert_eq!(message.payload, &payload[..]);
            for len in 0..bytes.len() {
                prop_assert!(Record::decode(&bytes[..len]).is_err(), "cut at {}", len);
            }
        }
    }

    #[test]
    fn dones_come_back(all in prop::collection::vec((1..u64::MAX, 1..u64::MAX >> 1), 0..50)) {
        let all = all.into_iter().map(|(generation, seq)| done(generation, seq)).collect();
        let record = Record::Done(all);
        let bytes = bytes_of(&record);
        prop_assert!(reads_as(&bytes, &record));
    }

    #[test]
    fn hostile_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0x11..0x1a_u8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(record) = Record::decode(&bytes) {
            // Whatever is read can be written again.
            let again = bytes_of(&record);
            prop_assert!(reads_as(&again, &record));
        }
    }
}
