//! What a client does with each packet that comes.

use mqtt::wire::{
    Ack, AckKind, ConnAck, Frame, Packet, Publish, QoS, ReasonCode, SubAck, Version,
    decode_from_server, peek,
};

use super::machine::{Machine, Request};
use crate::history::{ConnNumber, Delivery, Message, What};

const MAX_PACKET_BYTES: u32 = 16 << 20;

impl Machine {
    /// Takes all whole packets off the front of `input`, which came on connection `conn`.
    pub fn on_bytes(&mut self, conn: ConnNumber, input: &mut Vec<u8>) {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            match peek(rest, MAX_PACKET_BYTES) {
                Ok(Frame::Complete { total_bytes, .. }) => {
                    let version = self.plan.version;
                    match decode_from_server(&rest[..total_bytes], version) {
                        Ok(packet) => self.on_packet(conn, &packet),
                        Err(error) => self.wrong(conn, error.to_string()),
                    }
                    used += total_bytes;
                }
                Ok(_) => break,
                Err(error) => {
                    self.wrong(conn, error.to_string());
                    used = input.len();
                    break;
                }
            }
        }
        input.drain(..used);
    }

    fn on_packet(&mut self, conn: ConnNumber, packet: &Packet<'_>) {
        let current = self.current() == Some(conn);
        match packet {
            Packet::Publish(publish) => self.on_publish(conn, publish, current),
            Packet::Disconnect(it) => {
                let reason = it.reason.as_u8();
                self.events.push(What::ToldToLeave(self.me, conn, reason));
            }
            // What a replaced connection is still answered does not count.
            _ if !current => {}
            Packet::ConnAck(connack) => self.on_connack(conn, connack),
            Packet::Ack(ack) => self.on_ack(conn, ack),
            Packet::SubAck(suback) => self.on_suback(conn, suback),
            Packet::UnsubAck(unsuback) => match self.requests.remove(&unsuback.packet_id.get()) {
                Some(Request::Unsubscribe(filter)) => {
                    self.events.push(What::Unsubscribed(self.me, conn, filter));
                }
                other => self.wrong(conn, format!("UNSUBACK for {other:?}")),
            },
            Packet::PingResp => match self.link.as_mut().and_then(|link| link.pings.pop_front()) {
                Some(sent_us) => self.events.push(What::Pong(self.me, conn, sent_us)),
                None => self.wrong(conn, "PINGRESP for nothing".into()),
            },
            other => self.wrong(conn, format!("{other:?}")),
        }
    }

    fn on_connack(&mut self, conn: ConnNumber, connack: &ConnAck<'_>) {
        if connack.reason != ReasonCode::Success {
            let reason = connack.reason.as_u8();
            self.events.push(What::Refused(self.me, conn, reason));
            return;
        }
        let Some(link) = &mut self.link else { return };
        if link.connected {
            return self.wrong(conn, "a second CONNACK".into());
        }
        link.connected = true;
        if self.plan.version == Version::V5 {
            link.quota = connack.properties.receive_maximum().unwrap_or(u16::MAX);
        }
        self.events.push(What::Connected(self.me, conn, connack.session_present));
        match connack.session_present {
            true => self.send_again(),
            false => self.forget(),
        }
        self.send_waiting();
    }

    fn on_publish(&mut self, conn: ConnNumber, publish: &Publish<'_>, current: bool) {
        let message = Message::from_payload(publish.payload);
        let id = publish.packet_id.map_or(0, |id| id.get());
        let exactly = publish.qos == QoS::ExactlyOnce;
        let before = self.held.get(&id).copied().filter(|_| exactly && current);
        if before.is_some_and(|before| before != message) {
            self.wrong(conn, format!("identifier {id} is {message:?}, and {before:?}"));
        }
        let delivery = Delivery {
            message,
            topic: publish.topic.into(),
            qos: publish.qos,
            id,
            dup: publish.dup,
            retain: publish.retain,
            held: before.is_some(),
            empty: publish.payload.is_empty(),
        };
        self.events.push(What::Delivered(self.me, conn, delivery));
        if !current {
            return;
        }
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.answer(AckKind::PubAck, id),
            QoS::ExactlyOnce => {
                self.held.insert(id, message);
                self.answer(AckKind::PubRec, id);
            }
        }
    }

    fn on_ack(&mut self, conn: ConnNumber, ack: &Ack<'_>) {
        let id = ack.packet_id.get();
        if ack.kind == AckKind::PubRel {
            self.held.remove(&id);
            return self.answer(AckKind::PubComp, id);
        }
        let Some(at) = self.outgoing.iter().position(|it| it.id == id) else {
            return self.wrong(conn, format!("{:?} {id} for nothing", ack.kind));
        };
        let (me, refused) = (self.me, ack.reason.is_error());
        let it = &mut self.outgoing[at];
        let (message, exactly) = (it.message, it.content.qos == QoS::ExactlyOnce);
        match (ack.kind, exactly) {
            (AckKind::PubRec, true) => {
                if !it.released {
                    self.events.push(What::Acknowledged(me, conn, message, !refused));
                }
                if refused {
                    self.outgoing.remove(at);
                } else {
                    it.released = true;
                    self.send_ack(AckKind::PubRel, id);
                }
            }
            (AckKind::PubComp, true) if it.released => {
                self.events.push(What::Completed(me, conn, message));
                self.outgoing.remove(at);
            }
            (AckKind::PubAck, false) => {
                self.events.push(What::Acknowledged(me, conn, message, !refused));
                self.outgoing.remove(at);
            }
            (kind, _) => self.wrong(conn, format!("{kind:?} {id} for {message:?}")),
        }
        self.send_waiting();
    }

    fn on_suback(&mut self, conn: ConnNumber, suback: &SubAck<'_>) {
        let request = self.requests.remove(&suback.packet_id.get());
        match (request, suback.codes) {
            (Some(Request::Subscribe(filter)), [code]) => {
                let granted = QoS::from_u8(*code);
                self.events.push(What::Subscribed(self.me, conn, filter, granted));
            }
            (other, codes) => self.wrong(conn, format!("SUBACK {codes:?} for {other:?}")),
        }
    }

    fn wrong(&mut self, conn: ConnNumber, text: String) {
        self.events.push(What::Wrong(self.me, conn, text));
    }
}
