//! A client made of bare bytes, able to send what no library would, and a watching neighbour.

use crate::broker::Broker;
use crate::wait::{PATIENCE, left};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Packet types as the fixed header's upper half.
pub const CONNACK: u8 = 0x20;
pub const PUBLISH: u8 = 0x30;
pub const PUBACK: u8 = 0x40;
pub const PUBREC: u8 = 0x50;
pub const PUBREL: u8 = 0x62;
pub const PUBCOMP: u8 = 0x70;
/// The flag of a PUBLISH that was sent before.
pub const DUP: u8 = 0x08;
/// The flag of a retained PUBLISH.
pub const RETAIN: u8 = 0x01;
pub const SUBACK: u8 = 0x90;
pub const PINGRESP: u8 = 0xD0;
pub const DISCONNECT: u8 = 0xE0;

/// One packet as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// First byte of the fixed header: type and flags.
    pub head: u8,
    /// Everything after the remaining length.
    pub body: Vec<u8>,
}

/// What a connection did within a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// A whole packet came.
    Packet(Packet),
    /// The broker closed the connection (with FIN or RST).
    Closed,
    /// Nothing happened.
    Silence,
}

/// A TCP connection that speaks MQTT by hand.
pub struct Raw {
    stream: TcpStream,
    received: Vec<u8>,
    /// Protocol level of the CONNECT: 3, 4 or 5.
    pub version: u8,
}

impl Raw {
    /// Opens the TCP connection and sends nothing. `version` says how answers are read.
    pub fn open(broker: SocketAddr, version: u8) -> Self {
        let stream = TcpStream::connect(broker).expect("the broker accepts connections");
        stream.set_nodelay(true).expect("a socket option can be set");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout can be set");
        Self { stream, received: Vec::new(), version }
    }

    /// Opens a connection with a clean session and waits for the CONNACK.
    pub fn connect(broker: SocketAddr, version: u8, id: &str, keep_alive_s: u16) -> Self {
        let mut client = Self::open(broker, version);
        client.send(&connect(version, id, keep_alive_s));
        let answer = client.expect(CONNACK);
        assert_eq!(answer.body.get(1), Some(&0), "CONNECT of {id} was refused: {answer:?}");
        client
    }

    /// Sends bytes; an error is no news (the broker may have closed), the next read tells.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Ends the sending direction, as a client does that died in the middle of a packet.
    pub fn half_close(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Waits for the next packet, the close, or the end of `within`.
    pub fn next(&mut self, within: Duration) -> Got {
        let deadline = Instant::now() + within;
        loop {
            if let Some((packet, used)) = split(&self.received) {
                self.received.drain(..used);
                return Got::Packet(packet);
            }
            self.stream.set_read_timeout(Some(left(deadline))).expect("a timeout can be set");
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Got::Closed,
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        if Instant::now() >= deadline {
                            return Got::Silence;
                        }
                    }
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Got::Closed,
                    _ => panic!("reading from the broker: {error}"),
                },
            }
        }
    }

    /// Waits for a packet of type `head` (its upper half); anything else fails the test.
    pub fn expect(&mut self, head: u8) -> Packet {
        match self.next(PATIENCE) {
            Got::Packet(packet) if packet.head & 0xF0 == head => packet,
            other => panic!("wanted packet {head:#04x}, got {other:?}"),
        }
    }

    /// Waits for the close and gives the packets that came before it, or what is wrong.
    pub fn until_closed(&mut self, within: Duration) -> Result<Vec<Packet>, String> {
        let deadline = Instant::now() + within;
        let mut before = Vec::new();
        loop {
            match self.next(left(deadline)) {
                Got::Packet(packet) => before.push(packet),
                Got::Closed => return Ok(before),
                Got::Silence => {
                    return Err(format!("still open after {within:?}, sent {before:?}"));
                }
            }
        }
    }

    /// Subscribes and waits for the SUBACK.
    pub fn subscribe(&mut self, filter: &str, qos: u8) {
        self.send(&subscribe(self.version, 1, filter, qos));
        let answer = self.expect(SUBACK);
        assert_eq!(answer.body.last(), Some(&qos), "SUBSCRIBE of {filter}: {answer:?}");
    }

    /// Sends PINGREQ and waits for the PINGRESP, which also fences everything sent before.
    pub fn ping(&mut self) {
        self.send(&[0xC0, 0]);
        self.expect(PINGRESP);
    }
}

/// A publisher and a subscriber that behave well and must notice nothing of a hostile client.
pub struct Neighbour {
    publisher: Raw,
    subscriber: Raw,
    topic: String,
    sent: u16,
}

impl Neighbour {
    /// Connects both.
    pub fn new(broker: &Broker) -> Self {
        let publisher = Raw::connect(broker.mqtt, 4, "neighbour-publisher", 600);
        let mut subscriber = Raw::connect(broker.mqtt, 5, "neighbour-subscriber", 600);
        let topic = "neighbour/talk".to_owned();
        subscriber.subscribe(&topic, 1);
        Self { publisher, subscriber, topic, sent: 0 }
    }

    /// One QoS 1 message goes from one to the other and nothing else has come.
    pub fn check(&mut self) {
        self.sent += 1;
        let text = format!("talk {}", self.sent);
        self.publisher.send(&publish(4, &self.topic, text.as_bytes(), 1, self.sent));
        let answer = self.publisher.expect(PUBACK);
        assert_eq!(answer.body, self.sent.to_be_bytes(), "the neighbour's PUBACK");
        let message = self.subscriber.expect(PUBLISH);
        let (topic, payload, id) = message.publish(5);
        assert_eq!((topic.as_str(), payload), (self.topic.as_str(), text.into_bytes()));
        let id = id.expect("QoS 1 carries an identifier");
        self.subscriber.send(&[PUBACK, 2, (id >> 8) as u8, id as u8]);
    }
}

impl Packet {
    /// Takes a PUBLISH apart: topic, payload, packet identifier.
    pub fn publish(&self, version: u8) -> (String, Vec<u8>, Option<u16>) {
        let mut rest = self.body.as_slice();
        let mut take = |count: usize| {
            let (head, tail) = rest.split_at_checked(count).expect("a whole PUBLISH");
            rest = tail;
            head
        };
        let two = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
        let length = two(take(2));
        let topic = String::from_utf8(take(length.into()).to_vec()).expect("a topic in UTF-8");
        let id = (self.head & 0x06 != 0).then(|| two(take(2)));
        if version == 5 {
            let length = take(1)[0];
            assert!(length < 0x80, "these tests send few properties");
            take(length.into());
        }
        (topic, rest.to_vec(), id)
    }

    /// Reason code of a version 5 DISCONNECT or of a CONNACK.
    pub fn reason(&self) -> Option<u8> {
        match self.head & 0xF0 {
            CONNACK => self.body.get(1).copied(),
            DISCONNECT => Some(self.body.first().copied().unwrap_or(0)),
            _ => None,
        }
    }
}

/// A length-prefixed string, of any bytes.
pub fn string(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut out = u16::try_from(bytes.len()).expect("a short string").to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

/// A packet with a correct remaining length.
pub fn packet(head: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![head];
    let mut length = body.len();
    loop {
        let low = (length % 128) as u8;
        length /= 128;
        out.push(if length > 0 { low | 0x80 } else { low });
        if length == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
    out
}

/// CONNECT with a clean session.
pub fn connect(version: u8, id: &str, keep_alive_s: u16) -> Vec<u8> {
    packet(0x10, &connect_body(version, 0x02, keep_alive_s, &[], &string(id)))
}

/// Body of a CONNECT with any flags, properties (version 5, without their length) and payload.
pub fn connect_body(
    version: u8,
    flags: u8,
    keep_alive_s: u16,
    properties: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut body = string(if version == 3 { "MQIsdp" } else { "MQTT" });
    body.extend([version, flags]);
    body.extend(keep_alive_s.to_be_bytes());
    if version == 5 {
        body.push(properties.len() as u8);
        body.extend_from_slice(properties);
    }
    body.extend_from_slice(payload);
    body
}

/// CONNECT with a clean session and a will of QoS 0.
pub fn connect_with_will(version: u8, id: &str, topic: &str, message: &str) -> Vec<u8> {
    let mut payload = string(id);
    if version == 5 {
        payload.push(0);
    }
    payload.extend(string(topic));
    payload.extend(string(message));
    packet(0x10, &connect_body(version, 0x06, 60, &[], &payload))
}

/// PUBLISH without properties; `id` is left out at QoS 0.
pub fn publish(version: u8, topic: &str, payload: &[u8], qos: u8, id: u16) -> Vec<u8> {
    publish_raw(version, PUBLISH | qos << 1, topic.as_bytes(), &[], payload, id)
}

/// PUBLISH with any first byte, topic bytes and properties (version 5, without their length).
pub fn publish_raw(
    version: u8,
    head: u8,
    topic: &[u8],
    properties: &[u8],
    payload: &[u8],
    id: u16,
) -> Vec<u8> {
    let mut body = string(topic);
    if head & 0x06 != 0 {
        body.extend(id.to_be_bytes());
    }
    if version == 5 {
        body.push(properties.len() as u8);
        body.extend_from_slice(properties);
    }
    body.extend_from_slice(payload);
    packet(head, &body)
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP by its first byte.
pub fn ack(head: u8, id: u16) -> Vec<u8> {
    packet(head, &id.to_be_bytes())
}

/// SUBSCRIBE of one filter with its options byte.
pub fn subscribe(version: u8, id: u16, filter: &str, options: u8) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if version == 5 {
        body.push(0);
    }
    body.extend(string(filter));
    body.push(options);
    packet(0x82, &body)
}

/// CONNECT of version 5 that keeps its session for `expiry_s`; whether it was there.
pub fn resume(
    broker: SocketAddr,
    id: &str,
    clean: bool,
    expiry_s: u32,
    will: Option<&str>,
) -> (Raw, bool) {
    let mut client = Raw::open(broker, 5);
    client.send(&durable_connect(id, clean, expiry_s, will));
    let answer = client.expect(CONNACK);
    assert_eq!(answer.body.get(1), Some(&0), "CONNECT of {id} was refused: {answer:?}");
    let present = answer.body[0] == 1;
    (client, present)
}

/// A CONNECT of version 5 with a session expiry interval and, perhaps, a will "gone" of QoS 1.
pub fn durable_connect(id: &str, clean: bool, expiry_s: u32, will: Option<&str>) -> Vec<u8> {
    let mut properties = vec![0x11];
    properties.extend(expiry_s.to_be_bytes());
    let mut payload = string(id);
    let mut flags = if clean { 0x02 } else { 0x00 };
    if let Some(topic) = will {
        flags |= 0x04 | 0x08; // QoS 1
        payload.push(0);
        payload.extend(string(topic));
        payload.extend(string("gone"));
    }
    packet(0x10, &connect_body(5, flags, 600, &properties, &payload))
}

/// A durable session that is subscribed and away.
pub fn sleeper(broker: SocketAddr, id: &str, filter: &str, qos: u8) {
    let (mut client, _) = resume(broker, id, false, 3600, None);
    client.subscribe(filter, qos);
}

/// Publishes at QoS 1 or 2 and waits until it is taken.
pub fn deliver(client: &mut Raw, topic: &str, payload: &str, qos: u8, id: u16) {
    client.send(&publish(5, topic, payload.as_bytes(), qos, id));
    if qos == 1 {
        client.expect(PUBACK);
    } else {
        client.expect(PUBREC);
        client.send(&ack(PUBREL, id));
        client.expect(PUBCOMP);
    }
}

/// Publishes a retained message at QoS 1 and waits until it is taken.
pub fn retain(client: &mut Raw, topic: &str, payload: &[u8], id: u16) {
    client.send(&publish_raw(5, PUBLISH | 1 << 1 | RETAIN, topic.as_bytes(), &[], payload, id));
    let answer = client.expect(PUBACK);
    assert!(answer.body.get(2).is_none_or(|reason| *reason < 0x80), "{answer:?}");
}

/// The retained message of a topic, as a new subscriber gets it; a ping fences "none".
pub fn retained(broker: SocketAddr, topic: &str) -> Option<Vec<u8>> {
    let mut reader = Raw::connect(broker, 5, "", 600);
    reader.subscribe(topic, 0);
    reader.send(&[0xC0, 0]);
    match reader.next(PATIENCE) {
        Got::Packet(packet) if packet.head & 0xF0 == PUBLISH => Some(packet.publish(5).1),
        Got::Packet(packet) if packet.head == 0xD0 => None,
        other => panic!("instead of {topic}: {other:?}"),
    }
}

/// The first whole packet of `bytes` and its length.
fn split(bytes: &[u8]) -> Option<(Packet, usize)> {
    let mut length = 0;
    for (index, byte) in bytes.iter().skip(1).take(4).enumerate() {
        length |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            let start = index + 2;
            let body = bytes.get(start..start + length)?.to_vec();
            return Some((Packet { head: bytes[0], body }, start + length));
        }
    }
    assert!(bytes.len() < 5, "the broker sent a remaining length of five bytes");
    None
}
