//! Any sequence of publishes, acknowledgements, syncs, moves to the end of the log and crashes over two
//! shards: clients that follow
//! the protocol get what was acknowledged, QoS 2 exactly once, each publisher's messages in order.

use std::collections::BTreeMap;

use mqtt::wire::AckKind;
use proptest::prelude::*;

use super::super::*;
use super::kept::{Kept, publish_packet};
use crate::config::DurabilityConfig;

#[derive(Clone, Debug)]
enum Event {
    /// A publisher sends its next message, at QoS 1 or 2.
    Publish(usize, bool),
    /// Everything so far becomes durable; whether anybody is told.
    Sync(bool),
    /// A subscriber answers what it got.
    Answer(usize),
    Leave(usize),
    Come(usize),
    /// What the shards want is read.
    Read,
    /// Some time passes.
    Tick,
    /// Others fill some segments.
    Fill,
    /// A shard moves what it may out of old segments; whether others fill some before, and whether what
    /// is to be moved is read at once.
    Move(usize, bool, bool),
    Crash,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => (0..2_usize, any::<bool>()).prop_map(|(who, twice)| Event::Publish(who, twice)),
        6 => any::<bool>().prop_map(Event::Sync),
        5 => (0..2_usize).prop_map(Event::Answer),
        1 => (0..2_usize).prop_map(Event::Leave),
        1 => (0..2_usize).prop_map(Event::Come),
        2 => Just(Event::Read),
        1 => Just(Event::Tick),
        1 => Just(Event::Fill),
        6 => (0..2_usize, any::<bool>(), any::<bool>())
            .prop_map(|(shard, fills, reads)| Event::Move(shard, fills, reads)),
        2 => Just(Event::Crash),
    ];
    prop::collection::vec(event, 1..60)
}

/// A client with a durable session that publishes, and sends again what was not acknowledged.
struct Publisher {
    name: String,
    client: Option<Client>,
    next_id: u16,
    sent: u32,
    /// Not acknowledged, in order: identifier, payload, QoS 2, PUBREC came.
    open: Vec<(u16, String, bool, bool)>,
    acknowledged: Vec<(String, bool)>,
}

/// A client with a durable session that reads.
struct Reader {
    name: String,
    client: Option<Client>,
    /// QoS 2 identifiers that it holds.
    held: BTreeMap<u16, String>,
    /// To be answered: kind and identifier.
    owes: Vec<(AckKind, u16)>,
    /// What reached the application: payload, whether at QoS 2.
    delivered: Vec<(String, bool)>,
}

struct World {
    kept: Kept,
    publishers: Vec<Publisher>,
    readers: Vec<Reader>,
}

impl World {
    fn new() -> Self {
        let limits = Limits { read_ahead_messages: 3, ..Limits::default() };
        let mut kept = Kept::limited(2, DurabilityConfig::default(), limits);
        let mut readers = Vec::new();
        let mut publishers = Vec::new();
        for shard in 0..2 {
            let name = kept.bench.name_on(shard, "r");
            kept.sleeper(&name, "t", QoS::ExactlyOnce);
            let (held, owes, delivered) = (BTreeMap::new(), Vec::new(), Vec::new());
            readers.push(Reader { name, client: None, held, owes, delivered });
            let name = kept.bench.name_on(shard, "p");
            publishers.push(Publisher {
                name,
                client: None,
                next_id: 1,
                sent: 0,
                open: Vec::new(),
                acknowledged: Vec::new(),
            });
        }
        Self { kept, publishers, readers }
    }

    fn publish(&mut self, who: usize, twice: bool) {
        self.arrive(who);
        let Self { kept, publishers, .. } = self;
        let publisher = &mut publishers[who];
        if publisher.open.len() > 20 {
            return;
        }
        let Some(client) = publisher.client else { return };
        publisher.sent += 1;
        let (id, payload) = (publisher.next_id, format!("{who}-{}", publisher.sent));
        publisher.next_id = publisher.next_id % 30 + 1;
        while publisher.open.iter().any(|(open, ..)| *open == publisher.next_id) {
            publisher.next_id = publisher.next_id % 30 + 1;
        }
        let qos = if twice { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        publisher.open.push((id, payload.clone(), twice, false));
        // Without carrying any mail: a crash may come before it is read.
        let bytes = publish_packet(client.version, "t", &payload, qos, id, false);
        kept.bench.send_bytes(client, &bytes);
        kept.bench.shards[client.shard].end_turn();
    }

    /// Connects a publisher, which sends again what it has open.
    fn arrive(&mut self, who: usize) {
        let Self { kept, publishers, .. } = self;
        let publisher = &mut publishers[who];
        if publisher.client.is_some() {
            return;
        }
        let client = kept.connect(&publisher.name.clone());
        publisher.client = Some(client);
        for (id, payload, twice, received) in publisher.open.clone() {
            if received {
                kept.ack(client, AckKind::PubRel, id);
            } else {
                let qos = if twice { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
                kept.publish_again(client, "t", &payload, qos, id, true);
            }
        }
        self.look();
    }

    /// Everybody reads what came.
    fn look(&mut self) {
        loop {
            let mut moved = false;
            for who in 0..2 {
                moved |= self.look_as_publisher(who);
                self.look_as_reader(who);
            }
            if !moved {
                return;
            }
        }
    }

    fn look_as_publisher(&mut self, who: usize) -> bool {
        let Self { kept, publishers, .. } = self;
        let publisher = &mut publishers[who];
        let Some(client) = publisher.client else { return false };
        let mut moved = false;
        while let Some(packet) = kept.bench.try_next(client) {
            let Packet::Ack(ack) = packet else { panic!("{packet:?}") };
            let id = ack.packet_id.get();
            let at = publisher.open.iter().position(|(open, ..)| *open == id);
            let at = at.unwrap_or_else(|| panic!("{ack:?} for nothing"));
            match ack.kind {
                AckKind::PubRec => {
                    assert!(!ack.reason.is_error(), "{ack:?}");
                    publisher.open[at].3 = true;
                    moved = true;
                    kept.ack(client, AckKind::PubRel, id);
                }
                AckKind::PubAck | AckKind::PubComp => {
                    let (_, payload, twice, received) = publisher.open.remove(at);
                    assert_eq!(twice, ack.kind == AckKind::PubComp);
                    assert_eq!(received, twice);
                    publisher.acknowledged.push((payload, twice));
                }
                AckKind::PubRel => panic!("{ack:?}"),
            }
        }
        moved
    }

    fn look_as_reader(&mut self, who: usize) {
        let Self { kept, readers, .. } = self;
        let reader = &mut readers[who];
        let Some(client) = reader.client else { return };
        while let Some(packet) = kept.bench.try_next(client) {
            match packet {
                Packet::Publish(publish) => {
                    let id = publish.packet_id.expect("QoS 1 or 2").get();
                    let payload = String::from_utf8_lossy(publish.payload).into_owned();
                    if publish.qos == QoS::ExactlyOnce {
                        reader.owes.push((AckKind::PubRec, id));
                        let known = reader.held.insert(id, payload.clone());
                        match known {
                            Some(known) => {
                                assert_eq!(known, payload, "an identifier means another")
                            }
                            None => reader.delivered.push((payload, true)),
                        }
                    } else {
                        reader.owes.push((AckKind::PubAck, id));
                        reader.delivered.push((payload, false));
                    }
                }
                Packet::Ack(ack) if ack.kind == AckKind::PubRel => {
                    let id = ack.packet_id.get();
                    reader.held.remove(&id);
                    reader.owes.push((AckKind::PubComp, id));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn come(&mut self, who: usize) {
        if self.readers[who].client.is_none() {
            let name = self.readers[who].name.clone();
            self.readers[who].client = Some(self.kept.connect(&name));
        }
    }

    fn leave(&mut self, who: usize) {
        if let Some(client) = self.readers[who].client.take() {
            self.kept.bench.end(client);
            self.readers[who].owes.clear();
        }
    }

    fn answer(&mut self, who: usize) {
        let owes = std::mem::take(&mut self.readers[who].owes);
        if let Some(client) = self.readers[who].client {
            for (kind, id) in owes {
                self.kept.ack(client, kind, id);
            }
        }
    }

    fn step(&mut self, event: &Event) {
        match *event {
            Event::Publish(who, twice) => return self.publish(who, twice),
            Event::Sync(true) => self.kept.sync(),
            Event::Sync(false) => return self.kept.sync_quietly(),
            Event::Answer(who) => self.answer(who),
            Event::Leave(who) => self.leave(who),
            Event::Come(who) => self.come(who),
            Event::Read => {
                self.kept.fetch();
            }
            Event::Tick => self.kept.bench.pass_ms(200),
            Event::Fill => self.kept.fill(),
            Event::Move(shard, fills, reads) => {
                if fills {
                    self.kept.fill();
                }
                // Without carrying any mail, as for a publish.
                return self.kept.begin_moving(shard, reads);
            }
            Event::Crash => {
                for who in 0..2 {
                    self.publishers[who].client = None;
                    self.readers[who].client = None;
                    self.readers[who].owes.clear();
                }
                self.kept.crash();
            }
        }
        self.look();
    }

    fn end(mut self) {
        for who in 0..2 {
            self.arrive(who);
            self.come(who);
        }
        for _ in 0..60 {
            self.kept.sync();
            self.kept.fetch();
            self.look();
            for who in 0..2 {
                self.answer(who);
            }
            self.look();
        }
        for (who, publisher) in self.publishers.iter().enumerate() {
            assert!(publisher.open.is_empty(), "not acknowledged: {:?}", publisher.open);
            for reader in &self.readers {
                assert!(reader.held.is_empty(), "not released: {:?}", reader.held);
                let (mut last, mut seen) = (0, BTreeMap::<&str, usize>::new());
                let own = format!("{who}-");
                for (payload, twice) in reader.delivered.iter().filter(|it| it.0.starts_with(&own))
                {
                    *seen.entry(payload).or_default() += 1;
                    let number: u32 = payload[own.len()..].parse().expect("a number");
                    // At QoS 1 earlier ones may come again.
                    assert!(number > last || !twice, "{:?}", reader.delivered);
                    last = last.max(number);
                }
                for (payload, twice) in &publisher.acknowledged {
                    let count = seen.get(payload.as_str()).copied().unwrap_or(0);
                    assert!(count > 0, "{payload} was acknowledged and is lost");
                    assert!(count == 1 || !twice, "{payload} came {count} times");
                }
            }
        }
        assert_eq!(self.kept.live(), 0, "nothing is owed any more");
        let stats = self.kept.bench.stats.iter();
        assert_eq!(stats.map(|stats| stats.dropped_damaged.get()).sum::<u64>(), 0);
    }
}

proptest! {
    #[test]
    fn acknowledged_is_kept_and_qos_2_comes_once(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
        }
        world.end();
    }
}
