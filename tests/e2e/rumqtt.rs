//! rumqttc behind one face for both protocol versions.

use crate::broker::Broker;
use crate::wait::PATIENCE;
use rumqttc::v5;
use std::collections::VecDeque;
use std::future::Future;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Largest packet that these clients take; the tests send up to a MiB of payload.
const MAX_PACKET_BYTES: usize = 2 << 20;
/// Longest time that a whole test may take.
const WHOLE_TEST: std::time::Duration = std::time::Duration::from_secs(120);

/// A message as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Protocol level, 4 or 5.
    pub version: u8,
    pub id: String,
    /// Clean session or clean start; without it the session is kept for an hour.
    pub clean: bool,
    /// Topic and payload of a will of QoS 1.
    pub will: Option<(String, String)>,
}

/// A connected client; dropping it closes the socket without a DISCONNECT.
pub struct Peer {
    sender: Sender,
    seen: mpsc::Receiver<Seen>,
    messages: VecDeque<Message>,
    pump: JoinHandle<()>,
    /// What the CONNACK said.
    pub session_present: bool,
}

enum Sender {
    V4(rumqttc::AsyncClient),
    V5(v5::AsyncClient),
}

enum Seen {
    Connected {
        session_present: bool,
    },
    Subscribed {
        refused: bool,
    },
    /// PUBACK or PUBCOMP.
    Acknowledged,
    Message(Message),
    /// DISCONNECT of version 5, in rumqttc's words.
    Disconnect(String),
    Closed(String),
}

/// Runs a test's future on a runtime of its own, with a bound.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(async { timeout(WHOLE_TEST, future).await.expect("the test ends in time") })
}

impl Wish {
    /// A clean session without a will.
    pub fn new(version: u8, id: impl Into<String>) -> Self {
        Self { version, id: id.into(), clean: true, will: None }
    }
}

impl Peer {
    /// Connects and waits for the CONNACK.
    pub async fn connect(broker: &Broker, wish: &Wish) -> Self {
        // Bounded: a test that does not read stops the client from reading, as a slow program would.
        let (events, seen) = mpsc::channel(1024);
        let host = broker.mqtt.ip().to_string();
        let port = broker.mqtt.port();
        let (sender, pump) = if wish.version == 4 {
            let (client, event_loop) = rumqttc::AsyncClient::new(options_v4(wish, host, port), 64);
            (Sender::V4(client), tokio::spawn(pump_v4(event_loop, events)))
        } else {
            let (client, event_loop) = v5::AsyncClient::new(options_v5(wish, host, port), 64);
            (Sender::V5(client), tokio::spawn(pump_v5(event_loop, events)))
        };
        let mut peer =
            Self { sender, seen, messages: VecDeque::new(), pump, session_present: false };
        peer.session_present = peer
            .wait("CONNACK", |seen| match seen {
                Seen::Connected { session_present } => Some(session_present),
                _ => None,
            })
            .await;
        peer
    }

    /// Subscribes and waits for the SUBACK.
    pub async fn subscribe(&mut self, filter: &str, qos: u8) {
        match &self.sender {
            Sender::V4(client) => client.subscribe(filter, qos_v4(qos)).await.map_err(drop),
            Sender::V5(client) => client.subscribe(filter, qos_v5(qos)).await.map_err(drop),
        }
        .expect("the client runs");
        let refused = self
            .wait("SUBACK", |seen| match seen {
                Seen::Subscribed { refused } => Some(refused),
                _ => None,
            })
            .await;
        assert!(!refused, "the subscription to {filter} was refused");
    }

    /// Hands a message to the client without waiting for its acknowledgement.
    pub async fn send(&self, topic: &str, payload: impl Into<Vec<u8>>, qos: u8, retain: bool) {
        let payload: Vec<u8> = payload.into();
        match &self.sender {
            Sender::V4(client) => {
                client.publish(topic, qos_v4(qos), retain, payload).await.map_err(drop)
            }
            Sender::V5(client) => {
                client.publish(topic, qos_v5(qos), retain, payload).await.map_err(drop)
            }
        }
        .expect("the client runs");
    }

    /// Publishes and, above QoS 0, waits for the PUBACK or PUBCOMP.
    pub async fn publish(
        &mut self,
        topic: &str,
        payload: impl Into<Vec<u8>>,
        qos: u8,
        retain: bool,
    ) {
        self.send(topic, payload, qos, retain).await;
        if qos > 0 {
            self.acknowledged(1).await;
        }
    }

    /// Waits for `count` acknowledgements.
    pub async fn acknowledged(&mut self, count: usize) {
        for _ in 0..count {
            self.wait("an acknowledgement", |seen| {
                matches!(seen, Seen::Acknowledged).then_some(())
            })
            .await;
        }
    }

    /// The next message.
    pub async fn message(&mut self) -> Message {
        if let Some(message) = self.messages.pop_front() {
            return message;
        }
        self.wait("a message", |seen| match seen {
            Seen::Message(message) => Some(message),
            _ => None,
        })
        .await
    }

    /// Waits until the broker closed; gives the reason of its DISCONNECT, if one came.
    pub async fn closed(&mut self) -> Option<String> {
        let mut reason = None;
        loop {
            match timeout(PATIENCE, self.seen.recv()).await.expect("the broker closes in time") {
                Some(Seen::Disconnect(why)) => reason = Some(why),
                Some(Seen::Closed(_)) | None => return reason,
                Some(_) => {}
            }
        }
    }

    /// Says DISCONNECT and waits for the end.
    pub async fn disconnect(mut self) {
        match &self.sender {
            Sender::V4(client) => client.disconnect().await.map_err(drop),
            Sender::V5(client) => client.disconnect().await.map_err(drop),
        }
        .expect("the client runs");
        self.closed().await;
    }

    /// Waits for an event that `pick` takes; messages are set aside, a close fails the test.
    async fn wait<T>(&mut self, what: &str, mut pick: impl FnMut(Seen) -> Option<T>) -> T {
        let search = async {
            loop {
                let seen = match self.seen.recv().await {
                    Some(Seen::Closed(why)) => panic!("closed while waiting for {what}: {why}"),
                    None => panic!("closed while waiting for {what}"),
                    Some(seen) => seen,
                };
                if let (Seen::Message(message), true) = (&seen, what != "a message") {
                    self.messages.push_back(message.clone());
                } else if let Some(value) = pick(seen) {
                    return value;
                }
            }
        };
        match timeout(PATIENCE, search).await {
            Ok(value) => value,
            Err(_) => panic!("waited {PATIENCE:?} for {what}"),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

fn options_v4(wish: &Wish, host: String, port: u16) -> rumqttc::MqttOptions {
    let mut options = rumqttc::MqttOptions::new(&wish.id, host, port);
    options.set_clean_session(wish.clean).set_max_packet_size(MAX_PACKET_BYTES, MAX_PACKET_BYTES);
    if let Some((topic, payload)) = &wish.will {
        options.set_last_will(rumqttc::LastWill::new(topic, payload.as_str(), qos_v4(1), false));
    }
    options
}

fn options_v5(wish: &Wish, host: String, port: u16) -> v5::MqttOptions {
    let mut options = v5::MqttOptions::new(&wish.id, host, port);
    options.set_clean_start(wish.clean).set_max_packet_size(Some(MAX_PACKET_BYTES as u32));
    options.set_session_expiry_interval((!wish.clean).then_some(3600));
    if let Some((topic, payload)) = &wish.will {
        let payload = payload.as_str();
        let will = v5::mqttbytes::v5::LastWill::new(topic, payload, qos_v5(1), false, None);
        options.set_last_will(will);
    }
    options
}

async fn pump_v4(mut event_loop: rumqttc::EventLoop, events: mpsc::Sender<Seen>) {
    use rumqttc::{Event, Packet, SubscribeReasonCode};
    loop {
        let seen = match event_loop.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(ack))) => {
                Seen::Connected { session_present: ack.session_present }
            }
            Ok(Event::Incoming(Packet::SubAck(ack))) => Seen::Subscribed {
                refused: ack.return_codes.contains(&SubscribeReasonCode::Failure),
            },
            Ok(Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_))) => Seen::Acknowledged,
            Ok(Event::Incoming(Packet::Publish(message))) => Seen::Message(Message {
                topic: message.topic,
                payload: message.payload.to_vec(),
                qos: message.qos as u8,
                retain: message.retain,
            }),
            Ok(_) => continue,
            Err(error) => Seen::Closed(error.to_string()),
        };
        let last = matches!(seen, Seen::Closed(_));
        if events.send(seen).await.is_err() || last {
            return;
        }
    }
}

async fn pump_v5(mut event_loop: v5::EventLoop, events: mpsc::Sender<Seen>) {
    use v5::{Event, mqttbytes::v5::Packet, mqttbytes::v5::SubscribeReasonCode};
    loop {
        let seen = match event_loop.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(ack))) => {
                Seen::Connected { session_present: ack.session_present }
            }
            Ok(Event::Incoming(Packet::SubAck(ack))) => Seen::Subscribed {
                refused: !matches!(ack.return_codes[..], [SubscribeReasonCode::Success(_)]),
            },
            Ok(Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_))) => Seen::Acknowledged,
            Ok(Event::Incoming(Packet::Publish(message))) => Seen::Message(Message {
                topic: String::from_utf8_lossy(&message.topic).into_owned(),
                payload: message.payload.to_vec(),
                qos: message.qos as u8,
                retain: message.retain,
            }),
            Ok(Event::Incoming(Packet::Disconnect(packet))) => {
                Seen::Disconnect(format!("{:?}", packet.reason_code))
            }
            Ok(_) => continue,
            Err(v5::ConnectionError::MqttState(v5::StateError::ServerDisconnect {
                reason_code,
                ..
            })) => {
                let _ = events.send(Seen::Disconnect(format!("{reason_code:?}"))).await;
                Seen::Closed("DISCONNECT".to_owned())
            }
            Err(error) => Seen::Closed(error.to_string()),
        };
        let last = matches!(seen, Seen::Closed(_));
        if events.send(seen).await.is_err() || last {
            return;
        }
    }
}

fn qos_v4(qos: u8) -> rumqttc::QoS {
    rumqttc::qos(qos).expect("a QoS level")
}

fn qos_v5(qos: u8) -> v5::mqttbytes::QoS {
    v5::mqttbytes::qos(qos).expect("a QoS level")
}
