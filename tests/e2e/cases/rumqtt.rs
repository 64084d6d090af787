//! rumqttc, protocol versions 3.1.1 and 5.

use crate::Case;
use crate::broker::{Broker, Options};
use crate::column::Column;
use crate::rumqtt::{Message, Peer, Wish, block_on};
use std::collections::HashMap;

pub const CASES: &[Case] = &[
    Case::new("rumqttc_v4::two_hundred_clients", |column| two_hundred_clients(column, 4)),
    Case::new("rumqttc_v5::two_hundred_clients", |column| two_hundred_clients(column, 5)),
    Case::new("rumqttc_v4::order_across_shards", |column| order_across_shards(column, 4)),
    Case::new("rumqttc_v5::order_across_shards", |column| order_across_shards(column, 5)),
    Case::new("rumqttc_v4::one_mebibyte", |column| one_mebibyte(column, 4)),
    Case::new("rumqttc_v5::one_mebibyte", |column| one_mebibyte(column, 5)),
    Case::smoke("rumqttc_v4::basics", |column| basics(column, 4, 2)),
    Case::smoke("rumqttc_v5::basics", |column| basics(column, 5, 2)),
    Case::new("rumqttc_v4::basics_one_shard", |column| basics(column, 4, 1)),
    Case::new("rumqttc_v5::basics_one_shard", |column| basics(column, 5, 1)),
    Case::new("rumqttc_v4::will", |column| will(column, 4)),
    Case::new("rumqttc_v5::will", |column| will(column, 5)),
    Case::new("rumqttc_v4::takeover", |column| takeover(column, 4)),
    Case::new("rumqttc_v5::takeover", |column| takeover(column, 5)),
    Case::new("rumqttc_v4::session_resume", |column| session_resume(column, 4)),
    Case::new("rumqttc_v5::session_resume", |column| session_resume(column, 5)),
];

/// Every QoS both ways, delivered once, and retained messages set, replaced and cleared.
fn basics(column: &Column, version: u8, shards: usize) {
    let broker = Broker::start_with(column, &Options { shards, ..Options::default() });
    block_on(async {
        let mut publisher = Peer::connect(&broker, &Wish::new(version, "basics-publisher")).await;
        for granted in 0..=2 {
            let id = format!("basics-subscriber-{granted}");
            let mut subscriber = Peer::connect(&broker, &Wish::new(version, id)).await;
            subscriber.subscribe("basics/+/live", granted).await;
            for qos in 0..=2 {
                let topic = format!("basics/{qos}/live");
                publisher.publish(&topic, format!("at {qos}"), qos, false).await;
                let wanted = message(&topic, &format!("at {qos}"), qos.min(granted), false);
                assert_eq!(subscriber.message().await, wanted);
            }
            subscriber.disconnect().await;
        }

        publisher.publish("basics/kept", "old", 1, true).await;
        publisher.publish("basics/kept", "new", 2, true).await;
        publisher.publish("basics/gone", "gone", 1, true).await;
        publisher.publish("basics/gone", "", 1, true).await;
        let mut late = Peer::connect(&broker, &Wish::new(version, "basics-late")).await;
        late.subscribe("basics/#", 1).await;
        assert_eq!(late.message().await, message("basics/kept", "new", 1, true));
        // A message to one who is subscribed already does not count as retained [MQTT-3.3.1-9].
        publisher.publish("basics/kept", "live", 1, true).await;
        assert_eq!(late.message().await, message("basics/kept", "live", 1, false));
        publisher.publish("basics/kept", "", 1, true).await;
        assert_eq!(late.message().await, message("basics/kept", "", 1, false));
    });
}

fn one_mebibyte(column: &Column, version: u8) {
    let broker = Broker::start(column);
    // No period of a power of two, so that a piece in the wrong place shows.
    let payload: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    block_on(async {
        let mut subscriber = Peer::connect(&broker, &Wish::new(version, "large-subscriber")).await;
        let mut publisher = Peer::connect(&broker, &Wish::new(version, "large-publisher")).await;
        subscriber.subscribe("large", 2).await;
        for qos in 0..=2 {
            publisher.publish("large", payload.clone(), qos, false).await;
            let got = subscriber.message().await;
            assert_eq!((got.qos, got.payload.len()), (qos, payload.len()));
            assert!(got.payload == payload, "the payload changed on its way");
        }
    });
}

/// A will goes out when the socket just closes, and does not after a DISCONNECT.
fn will(column: &Column, version: u8) {
    let broker = Broker::start(column);
    block_on(async {
        let mut watcher = Peer::connect(&broker, &Wish::new(version, "will-watcher")).await;
        watcher.subscribe("will/#", 1).await;
        let wish = |name: &str| Wish {
            will: Some((format!("will/{name}"), format!("{name} is dead"))),
            ..Wish::new(version, format!("will-{name}"))
        };
        let polite = Peer::connect(&broker, &wish("polite")).await;
        polite.disconnect().await;
        let abrupt = Peer::connect(&broker, &wish("abrupt")).await;
        drop(abrupt);
        // Had the polite one's will been sent, it would have come first.
        let wanted = message("will/abrupt", "abrupt is dead", 1, false);
        assert_eq!(watcher.message().await, wanted);
        watcher.publish("will/fence", "", 1, false).await;
        assert_eq!(watcher.message().await.topic, "will/fence");
    });
}

fn takeover(column: &Column, version: u8) {
    let broker = Broker::start(column);
    block_on(async {
        // Several ids, so that both shards see a takeover by a socket of either.
        for n in 0..8 {
            let wish = Wish::new(version, format!("twin-{n}"));
            let mut old = Peer::connect(&broker, &wish).await;
            let mut new = Peer::connect(&broker, &wish).await;
            let reason = old.closed().await;
            // rumqttc cannot read a DISCONNECT that ends with its reason code (legal, §3.14.2.2.1);
            // the paho and conformance cases see the code.
            assert!(matches!(reason.as_deref(), None | Some("SessionTakenOver")), "{reason:?}");
            new.subscribe("twin", 1).await;
            new.publish("twin", "mine", 1, false).await;
            assert_eq!(new.message().await, message("twin", "mine", 1, false));
        }
    });
}

/// QoS 1 and 2 messages wait, in order, for a session whose client is away.
fn session_resume(column: &Column, version: u8) {
    let broker = Broker::start(column);
    block_on(async {
        let wish = Wish { clean: false, ..Wish::new(version, "sleeper") };
        let mut sleeper = Peer::connect(&broker, &wish).await;
        assert!(!sleeper.session_present);
        sleeper.subscribe("sleep/+", 2).await;
        sleeper.disconnect().await;

        let mut publisher = Peer::connect(&broker, &Wish::new(version, "waker")).await;
        for n in 0..20 {
            publisher.publish("sleep/a", format!("{n}"), 1 + n % 2, false).await;
        }
        let mut sleeper = Peer::connect(&broker, &wish).await;
        assert!(sleeper.session_present);
        for n in 0..20 {
            let wanted = message("sleep/a", &format!("{n}"), 1 + n % 2, false);
            assert_eq!(sleeper.message().await, wanted);
        }
        publisher.publish("sleep/b", "awake", 1, false).await;
        assert_eq!(sleeper.message().await, message("sleep/b", "awake", 1, false));
        sleeper.disconnect().await;

        let clean = Wish { clean: true, ..wish };
        assert!(!Peer::connect(&broker, &clean).await.session_present);
    });
}

/// 200 clients publish at once; one wildcard subscriber counts every message exactly once.
fn two_hundred_clients(column: &Column, version: u8) {
    const CLIENTS: usize = 200;
    const EACH: usize = 5;
    let broker = Broker::start(column);
    block_on(async {
        let mut subscriber = Peer::connect(&broker, &Wish::new(version, "crowd-subscriber")).await;
        subscriber.subscribe("crowd/+", 1).await;
        let mut crowd = Vec::new();
        for n in 0..CLIENTS {
            crowd.push(Peer::connect(&broker, &Wish::new(version, format!("crowd-{n}"))).await);
        }
        assert_eq!(broker.metric("connections").iter().sum::<u64>() as usize, CLIENTS + 1);
        let both = broker.metric("connections").iter().all(|count| *count > 0);
        assert!(both, "all clients landed on one shard");
        for number in 0..EACH {
            for (n, peer) in crowd.iter().enumerate() {
                peer.send(&format!("crowd/{n}"), format!("{number}"), 1, false).await;
            }
        }
        let mut next = HashMap::new();
        for _ in 0..CLIENTS * EACH {
            let got = subscriber.message().await;
            let expected: &mut usize = next.entry(got.topic.clone()).or_default();
            assert_eq!(got.payload, expected.to_string().into_bytes(), "{}", got.topic);
            *expected += 1;
        }
        assert_eq!(next.len(), CLIENTS);
        for peer in &mut crowd {
            peer.acknowledged(EACH).await;
        }
        // Nothing came twice: the fence is the next message.
        crowd[0].publish("crowd/fence", "fence", 1, false).await;
        assert_eq!(subscriber.message().await.topic, "crowd/fence");
    });
}

/// Publishers and subscribers on both shards: each subscriber sees each publisher's messages
/// complete and in the order sent [MQTT-4.6.0-6].
fn order_across_shards(column: &Column, version: u8) {
    const PEERS: usize = 8;
    const EACH: usize = 100;
    let broker = Broker::start(column);
    block_on(async {
        let mut subscribers = Vec::new();
        let mut publishers = Vec::new();
        for n in 0..PEERS {
            let wish = Wish::new(version, format!("order-subscriber-{n}"));
            let mut subscriber = Peer::connect(&broker, &wish).await;
            subscriber.subscribe("order/#", [1, 2][n % 2]).await;
            subscribers.push(subscriber);
            let wish = Wish::new(version, format!("order-publisher-{n}"));
            publishers.push(Peer::connect(&broker, &wish).await);
        }
        let shards = broker.metric("connections");
        assert_eq!(shards.len(), 2);
        assert!(shards.iter().all(|count| *count > 0), "all clients landed on one shard");

        let publish = async {
            for number in 0..EACH {
                for (n, peer) in publishers.iter().enumerate() {
                    let qos = [1, 2][n / 2 % 2];
                    peer.send(&format!("order/{n}"), format!("{number}"), qos, false).await;
                }
            }
        };
        let receive = async {
            for (at, subscriber) in subscribers.iter_mut().enumerate() {
                let mut next = HashMap::new();
                for _ in 0..PEERS * EACH {
                    let got = subscriber.message().await;
                    let expected: &mut usize = next.entry(got.topic.clone()).or_default();
                    let number = expected.to_string().into_bytes();
                    assert_eq!(got.payload, number, "subscriber {at}, {}", got.topic);
                    *expected += 1;
                }
                assert_eq!(next.len(), PEERS);
            }
        };
        tokio::join!(publish, receive);
        for peer in &mut publishers {
            peer.acknowledged(EACH).await;
        }
    });
}

fn message(topic: &str, payload: &str, qos: u8, retain: bool) -> Message {
    Message { topic: topic.to_owned(), payload: payload.as_bytes().to_vec(), qos, retain }
}
