//! What clients see, held against the model.

use mqtt::wire::{AckKind, Packet, PacketId, Publish};

use super::super::broker::{Flight, Seen};
use super::super::{CLIENTS, TOPICS};
use super::{Answer, History};

impl History {
    /// Reads what came, and holds it against what the model says should have.
    pub(super) fn compare(&mut self) {
        let mut got = Vec::new();
        for client in 0..CLIENTS {
            let Some(conn) = self.peers[client].conn else { continue };
            while let Some(packet) = self.bench.try_next(conn) {
                match packet {
                    Packet::Publish(publish) => got.push(self.on_publish(client, &publish)),
                    Packet::Ack(ack) if ack.kind == AckKind::PubRel => {
                        let peer = &mut self.peers[client];
                        peer.open.retain(|id| *id != ack.packet_id.get());
                        peer.answers.push_back(Answer::Comp(ack.packet_id.get()));
                    }
                    Packet::Ack(ack) => {
                        self.peers[client].acks.push((ack.kind as u8, ack.packet_id.get()));
                    }
                    Packet::UnsubAck(ack) => {
                        self.peers[client].acks.push((11, ack.packet_id.get()));
                    }
                    other => panic!("client {client} got {other:?}"),
                }
            }
        }
        let mut expected = std::mem::take(&mut self.model.output);
        for seen in expected.iter().filter(|seen| seen.qos == 2 && !seen.dup) {
            let key = (self.peers[seen.client].number, seen.text.clone(), seen.topic);
            *self.exactly_once.entry(key).or_default() += 1;
        }
        got.sort();
        expected.sort();
        assert_eq!(got, expected, "received (left) and expected (right)");
    }

    fn on_publish(&mut self, client: usize, publish: &Publish<'_>) -> Seen {
        let mut ids: Vec<u32> = publish.properties.subscription_ids().collect();
        ids.sort_unstable();
        let seen = Seen {
            client,
            topic: TOPICS.into_iter().find(|topic| *topic == publish.topic).expect("known"),
            text: String::from_utf8(publish.payload.to_vec()).expect("text"),
            qos: publish.qos as u8,
            retain: publish.retain,
            dup: publish.dup,
            ids,
        };
        let number = self.peers[client].number;
        let id = publish.packet_id.map_or(0, PacketId::get);
        let mut new = true;
        if id > 0 {
            self.note_flight(client, &seen, id);
            let peer = &mut self.peers[client];
            if seen.qos == 1 {
                peer.answers.push_back(Answer::Ack(id));
            } else {
                new = !peer.open.contains(&id);
                assert!(new || seen.dup, "identifier {id} is in use");
                if new {
                    peer.open.push(id);
                }
                peer.answers.push_back(Answer::Rec(id));
            }
        }
        if new {
            self.model.received(number, &seen);
            if seen.qos == 2 {
                let key = (number, seen.text.clone(), seen.topic);
                *self.exactly_once.entry(key).or_default() -= 1;
            }
        }
        if !self.scanning
            && let Some((from, at)) = seen.text.split_once('.')
        {
            let at: u32 = at.parse().expect("a number");
            // What a new connection repeats has its own order, from the oldest on.
            let connection = if seen.dup { self.peers[client].connections } else { 0 };
            let key = (number, from.to_owned(), seen.topic, seen.qos, connection);
            let before = self.order.insert(key, at);
            assert!(before.is_none_or(|before| before < at), "out of order: {seen:?}");
        }
        seen
    }

    /// The identifier of a message in flight: new ones must be free, repeated ones the same.
    fn note_flight(&mut self, client: usize, seen: &Seen, id: u16) {
        let Some(session) = self.model.session(client) else { return };
        let same = |flight: &&mut Flight| {
            let known = if seen.dup { Some(id) } else { None };
            flight.id == known && flight.seen.text == seen.text && flight.seen.topic == seen.topic
        };
        let in_use = session.flights.iter().filter(|flight| flight.id == Some(id)).count();
        assert_eq!(in_use, usize::from(seen.dup), "identifier {id} of {seen:?}");
        match session.flights.iter_mut().find(same) {
            Some(flight) => flight.id = Some(id),
            None => panic!("nothing like {seen:?} is in flight: {:?}", session.flights),
        }
    }

    /// The broker's own numbers are the model's.
    pub(super) fn count(&self) {
        let sum = |read: fn(&crate::stats::Snapshot) -> u64| -> usize {
            self.bench.stats.iter().map(|stats| read(&stats.snapshot()) as usize).sum()
        };
        let sessions = &self.model.sessions;
        assert_eq!(sum(|stats| stats.sessions), sessions.len(), "sessions");
        let subscriptions = sessions.iter().map(|session| session.subs.len()).sum();
        assert_eq!(sum(|stats| stats.subscriptions), subscriptions, "subscriptions");
        let connected = sessions.iter().filter(|session| session.connected).count();
        assert_eq!(sum(|stats| stats.connections), connected, "connections");
        let queued: usize = sessions.iter().map(|session| session.queue.len()).sum();
        assert_eq!(sum(|stats| stats.queued_messages), queued, "queued messages");
    }
}
