//! Messages of durable sessions: what was acknowledged survives whatever ends the process, in order, and
//! at QoS 2 exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Case;
use crate::broker::{Broker, Options, temporary_folder};
use crate::column::{Column, discover};
use crate::raw::{
    CONNACK, DUP, Got, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Packet, Raw, ack, deliver,
    durable_connect, publish, publish_raw, resume, sleeper,
};
use crate::wait::{PATIENCE, until};

pub const CASES: &[Case] = &[
    Case::new("messages::exactly_once_under_kills", exactly_once_under_kills),
    Case::smoke("messages::survive_a_kill", survive_a_kill),
    Case::new("messages::survive_a_stop", survive_a_stop),
    Case::new("messages::sent_again_under_their_identifiers", sent_again),
    Case::new("messages::an_exchange_goes_on_where_it_was", exchange_goes_on),
    Case::new("messages::written_beside_the_shards_or_with_the_first", writer_with_the_first),
    Case::new("messages::one_directory_for_all_runtimes", one_directory),
    Case::new("messages::damage_is_named", damage_is_named),
];

fn start(column: &Column, dir: &Path, shards: usize) -> Broker {
    Broker::start_with(column, &Options { data_dir: Some(dir), shards, ..Options::default() })
}

/// The next message: payload, identifier, whether it is marked as sent before.
fn message(client: &mut Raw) -> (String, u16, bool) {
    let packet = client.expect(PUBLISH);
    let (_, payload, id) = packet.publish(5);
    let payload = String::from_utf8(payload).expect("text");
    (payload, id.expect("QoS 1 or 2"), packet.head & DUP != 0)
}

fn survive_a_kill(column: &Column) {
    survive(column, Broker::kill);
}

fn survive_a_stop(column: &Column) {
    survive(column, |broker| {
        broker.terminate();
        assert!(broker.exit_status(PATIENCE).success());
    });
}

/// Two sleepers on a node that has another number of shards each time.
fn survive(column: &Column, end: impl Fn(&mut Broker)) {
    let folder = temporary_folder();
    let mut expected = Vec::new();
    for (round, shards) in [2, 1, 3].into_iter().enumerate() {
        let mut broker = start(column, folder.path(), shards);
        if round == 0 {
            sleeper(broker.mqtt, "one", "news/#", 1);
            sleeper(broker.mqtt, "two", "news/#", 2);
        }
        let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
        for number in 0..20_u16 {
            let payload = format!("{round}-{number}");
            deliver(&mut talker, "news/x", &payload, 1 + (number % 2) as u8, number + 1);
            expected.push(payload);
        }
        end(&mut broker);
    }
    let broker = start(column, folder.path(), 2);
    for id in ["one", "two"] {
        let (mut client, present) = resume(broker.mqtt, id, false, 3600, None);
        assert!(present);
        let got: Vec<String> = expected.iter().map(|_| message(&mut client).0).collect();
        assert_eq!(got, expected, "{id}");
        client.ping();
    }
}

fn sent_again(column: &Column) {
    let folder = temporary_folder();
    let mut broker = start(column, folder.path(), 2);
    let (mut reader, _) = resume(broker.mqtt, "reader", false, 3600, None);
    reader.subscribe("t", 2);
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    let mut sent = Vec::new();
    for number in 0..10_u16 {
        deliver(&mut talker, "t", &number.to_string(), 1 + (number % 2) as u8, number + 1);
        let (payload, id, dup) = message(&mut reader);
        assert!(payload == number.to_string() && !dup);
        sent.push((payload, id));
    }
    for at in [0, 2] {
        reader.send(&ack(PUBACK, sent[at].1));
    }
    reader.ping();
    // In order, so that it is recorded what was sent: a kill may lose the mark, not the identifier.
    broker.terminate();
    assert!(broker.exit_status(PATIENCE).success());
    let broker = start(column, folder.path(), 2);
    let (mut reader, present) = resume(broker.mqtt, "reader", false, 3600, None);
    assert!(present);
    for (at, (payload, id)) in sent.iter().enumerate() {
        if at != 0 && at != 2 {
            assert_eq!(message(&mut reader), (payload.clone(), *id, true));
        }
    }
    reader.ping();
}

/// Killed between the steps of QoS 2, in both directions.
fn exchange_goes_on(column: &Column) {
    let folder = temporary_folder();
    let mut broker = start(column, folder.path(), 2);
    sleeper(broker.mqtt, "reader", "t", 2);
    let (mut talker, _) = resume(broker.mqtt, "talker", false, 3600, None);
    talker.send(&publish(5, "t", b"a", 2, 7));
    talker.expect(PUBREC);
    broker.kill();

    let mut broker = start(column, folder.path(), 2);
    let (mut talker, present) = resume(broker.mqtt, "talker", false, 3600, None);
    assert!(present);
    talker.send(&publish_raw(5, PUBLISH | DUP | 2 << 1, b"t", &[], b"a", 7));
    let answer = talker.expect(PUBREC);
    assert!(answer.body.get(2).is_none_or(|reason| *reason == 0), "{answer:?}");
    talker.send(&ack(PUBREL, 7));
    talker.expect(PUBCOMP);
    let (mut reader, _) = resume(broker.mqtt, "reader", false, 3600, None);
    let (payload, id, _) = message(&mut reader);
    assert_eq!(payload, "a");
    reader.send(&ack(PUBREC, id));
    reader.expect(PUBREL & 0xF0);
    broker.kill();

    let broker = start(column, folder.path(), 2);
    let (mut reader, _) = resume(broker.mqtt, "reader", false, 3600, None);
    let released = reader.expect(PUBREL & 0xF0);
    assert_eq!(released.body[..2], id.to_be_bytes(), "PUBREL again, not PUBLISH");
    reader.send(&ack(PUBCOMP, id));
    reader.ping();
}

fn writer_with_the_first(column: &Column) {
    let folder = temporary_folder();
    let environment = [("GEARBOX_JOURNAL__WRITER", "shared"), ("GEARBOX_META__RAFT", "shared")];
    for round in 0..3_u16 {
        let environment = if round == 1 { &environment[..0] } else { &environment[..] };
        let options = Options { data_dir: Some(folder.path()), environment, shards: 2 };
        let mut broker = Broker::start_with(column, &options);
        if round == 0 {
            sleeper(broker.mqtt, "reader", "t", 1);
        }
        let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
        deliver(&mut talker, "t", &round.to_string(), 1, 1);
        if round == 2 {
            let (mut reader, _) = resume(broker.mqtt, "reader", false, 3600, None);
            for expected in 0..3 {
                assert_eq!(message(&mut reader).0, expected.to_string());
            }
        }
        broker.terminate();
        assert!(broker.exit_status(PATIENCE).success());
    }
}

/// Each runtime goes on with what the one before it left.
fn one_directory(column: &Column) {
    let folder = temporary_folder();
    let columns = discover().ready;
    let mut expected = Vec::new();
    for (round, other) in columns.iter().chain([column]).enumerate() {
        let mut broker = start(other, folder.path(), 2);
        if round == 0 {
            sleeper(broker.mqtt, "reader", "t", 2);
        }
        let (mut reader, present) = resume(broker.mqtt, "reader", false, 3600, None);
        assert!(present, "{}", other.name);
        for payload in &expected {
            assert_eq!(message(&mut reader).0, *payload, "{}", other.name);
        }
        drop(reader);
        let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
        deliver(&mut talker, "t", other.name, 1 + (round % 2) as u8, 1);
        expected.push(other.name.to_owned());
        broker.kill();
    }
}

fn damage_is_named(column: &Column) {
    let folder = temporary_folder();
    let mut broker = start(column, folder.path(), 1);
    sleeper(broker.mqtt, "reader", "t", 1);
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    for id in 1..20 {
        deliver(&mut talker, "t", "x", 1, id);
    }
    broker.kill();
    let journal = folder.path().join("journal");
    let mut logs: Vec<_> = std::fs::read_dir(&journal)
        .expect("there is a journal")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|it| it == "log"))
        .collect();
    logs.sort();
    let first = logs.first().expect("a segment");
    let mut bytes = std::fs::read(first).expect("it can be read");
    bytes[4096 + 60] ^= 1; // in the first frame, with good ones behind it
    std::fs::write(first, bytes).expect("it can be written");
    let output = std::process::Command::new(&column.program)
        .args(["serve", "--runtime", column.runtime, "--scheduler", column.scheduler])
        .args(["--listen", "127.0.0.1:0", "--admin", "off", "--data-dir"])
        .arg(folder.path())
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let name = first.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(said.contains(&name) && said.contains("gearbox repair"), "{said}");
}

/// Killed at random moments while durable sessions publish and read at QoS 2 and 1, with clients that
/// follow the protocol over all restarts. `GEARBOX_CRASH_ROUNDS` asks for more rounds.
fn exactly_once_under_kills(column: &Column) {
    let rounds: u32 = std::env::var("GEARBOX_CRASH_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(3);
    let folder = temporary_folder();
    let mut random =
        column.name.bytes().fold(23_u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
    let mut publishers: Vec<_> = (0..3).map(Publisher::new).collect();
    let mut readers: Vec<_> = (0..2).map(Reader::new).collect();
    for round in 0..=rounds {
        let mut broker = start(column, folder.path(), 2);
        if round == 0 {
            for reader in &readers {
                sleeper(broker.mqtt, &reader.name, "ledger/#", 2);
            }
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let life = Duration::from_millis(50 + (random >> 33) % 600);
        let (address, over) = (broker.mqtt, AtomicBool::new(false));
        let last = round == rounds;
        std::thread::scope(|scope| {
            let over = &over;
            let mut busy = Vec::new();
            for publisher in &mut publishers {
                busy.push(scope.spawn(move || publisher.work(address, over)));
            }
            for reader in &mut readers {
                busy.push(scope.spawn(move || reader.work(address, over, last)));
            }
            let end = Instant::now() + life;
            until("the moment of the kill", || (Instant::now() >= end).then_some(()));
            if !last {
                broker.kill();
            }
            over.store(true, Ordering::SeqCst);
        });
    }
    for publisher in &publishers {
        assert!(publisher.open.is_empty(), "left open: {:?}", publisher.open);
        for reader in &readers {
            reader.check(publisher);
        }
    }
    assert!(publishers.iter().all(|publisher| publisher.acknowledged.len() > 5), "it was idle");
}

/// Publishes messages at QoS 2 and 1 by turns, a few at once; sends again what is not acknowledged.
struct Publisher {
    name: String,
    sent: u32,
    /// In order: identifier, number, PUBREC came.
    open: Vec<(u16, u32, bool)>,
    acknowledged: BTreeSet<u32>,
}

impl Publisher {
    fn new(at: u32) -> Self {
        let (open, acknowledged) = (Vec::new(), BTreeSet::new());
        Self { name: format!("publisher-{at}"), sent: 0, open, acknowledged }
    }

    fn qos(number: u32) -> u8 {
        1 + (number % 2) as u8
    }

    fn packet(&self, id: u16, number: u32, dup: u8) -> Vec<u8> {
        let topic = format!("ledger/{}", self.name);
        let head = PUBLISH | dup | Self::qos(number) << 1;
        publish_raw(5, head, topic.as_bytes(), &[], number.to_string().as_bytes(), id)
    }

    /// Until the broker is gone, or all is acknowledged when it is over.
    fn work(&mut self, address: SocketAddr, over: &AtomicBool) {
        let Some(mut client) = connect(address, &self.name) else { return };
        for (id, number, received) in self.open.clone() {
            match received {
                true => client.send(&ack(PUBREL, id)),
                false => client.send(&self.packet(id, number, DUP)),
            }
        }
        loop {
            while self.open.len() < 8 && !over.load(Ordering::SeqCst) {
                self.sent += 1;
                let id = (self.sent % 1_000) as u16 + 1;
                self.open.push((id, self.sent, false));
                client.send(&self.packet(id, self.sent, 0));
            }
            if self.open.is_empty() {
                return;
            }
            let Some(packet) = next(&mut client) else { return };
            let id = u16::from_be_bytes([packet.body[0], packet.body[1]]);
            // PUBCOMP says 0x92 when the one before it was lost on its way.
            let reason = packet.body.get(2).copied().unwrap_or(0);
            let is_over = packet.head & 0xF0 == PUBCOMP && reason == 0x92;
            assert!(reason < 0x80 || is_over, "{packet:?}");
            let at = self.open.iter().position(|(open, ..)| *open == id);
            let at = at.unwrap_or_else(|| panic!("{packet:?} for nothing"));
            match packet.head & 0xF0 {
                PUBREC => {
                    self.open[at].2 = true;
                    client.send(&ack(PUBREL, id));
                }
                PUBACK | PUBCOMP => {
                    let (_, number, _) = self.open.remove(at);
                    self.acknowledged.insert(number);
                }
                _ => panic!("{packet:?}"),
            }
        }
    }
}

/// Reads and answers, as a client that keeps its identifiers.
struct Reader {
    name: String,
    /// QoS 2 identifiers that it holds, with what they stand for.
    held: BTreeMap<u16, (String, u32)>,
    /// Per publisher, in order of arrival: numbers.
    got: BTreeMap<String, Vec<u32>>,
}

impl Reader {
    fn new(at: u32) -> Self {
        Self { name: format!("reader-{at}"), held: BTreeMap::new(), got: BTreeMap::new() }
    }

    /// Until the broker is gone, or nothing comes any more in the last round.
    fn work(&mut self, address: SocketAddr, over: &AtomicBool, last: bool) {
        let Some(mut client) = connect(address, &self.name) else { return };
        loop {
            let patience = if last { Duration::from_secs(3) } else { PATIENCE };
            let packet = match client.next(patience) {
                Got::Packet(packet) => packet,
                Got::Silence if last && over.load(Ordering::SeqCst) => return,
                Got::Silence if last => continue,
                Got::Closed => return,
                Got::Silence => panic!("nothing comes, and the connection is open"),
            };
            match packet.head & 0xF0 {
                PUBLISH => self.take(&mut client, &packet),
                head if head == PUBREL & 0xF0 => {
                    let id = u16::from_be_bytes([packet.body[0], packet.body[1]]);
                    self.held.remove(&id);
                    client.send(&ack(PUBCOMP, id));
                }
                _ => panic!("{packet:?}"),
            }
        }
    }

    fn take(&mut self, client: &mut Raw, packet: &Packet) {
        let (topic, payload, id) = packet.publish(5);
        let id = id.expect("QoS 1 or 2");
        let number: u32 = String::from_utf8_lossy(&payload).parse().expect("a number");
        if packet.head & 0x06 == 2 {
            self.got.entry(topic).or_default().push(number);
            client.send(&ack(PUBACK, id));
            return;
        }
        let new = (topic.clone(), number);
        match self.held.insert(id, new.clone()) {
            Some(held) => assert_eq!(held, new, "identifier {id} means two messages"),
            None => self.got.entry(topic).or_default().push(number),
        }
        client.send(&ack(PUBREC, id));
    }

    fn check(&self, publisher: &Publisher) {
        let topic = format!("ledger/{}", publisher.name);
        let got = self.got.get(&topic).map_or(&[][..], Vec::as_slice);
        let mut counts = BTreeMap::<u32, u32>::new();
        let mut last = 0;
        for &number in got {
            *counts.entry(number).or_default() += 1;
            let exactly_once = Publisher::qos(number) == 2;
            assert!(number > last || !exactly_once, "{number} came after {last}: {got:?}");
            last = last.max(number);
        }
        for number in &publisher.acknowledged {
            let count = counts.get(number).copied().unwrap_or(0);
            let name = &publisher.name;
            assert!(count > 0, "{}: {number} of {name} was acknowledged and is lost", self.name);
            let exactly_once = Publisher::qos(*number) == 2;
            assert!(count == 1 || !exactly_once, "{}: {number} of {name} came twice", self.name);
        }
    }
}

fn connect(address: SocketAddr, name: &str) -> Option<Raw> {
    TcpStream::connect(address).ok()?;
    let mut client = Raw::open(address, 5);
    client.send(&durable_connect(name, false, 3600, None));
    let packet = next(&mut client)?;
    assert_eq!(packet.head & 0xF0, CONNACK, "{packet:?}");
    Some(client)
}

fn next(client: &mut Raw) -> Option<Packet> {
    match client.next(PATIENCE) {
        Got::Packet(packet) => Some(packet),
        Got::Closed => None,
        Got::Silence => panic!("no answer, and the connection is open"),
    }
}
