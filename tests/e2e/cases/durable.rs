//! What must survive the process: durable sessions, their subscriptions and wills, and retained
//! messages, whatever the moment at which it is killed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use meta::store::{RocksStore, Store};

use crate::Case;
use crate::broker::{Broker, Options, temporary_folder};
use crate::column::Column;
use crate::process::Process;
use crate::raw::{
    CONNACK, Got, PUBACK, PUBLISH, RETAIN, Raw, SUBACK, durable_connect, packet, publish,
    publish_raw, resume, retain, retained, string, subscribe,
};
use crate::wait::{PATIENCE, until};

pub const CASES: &[Case] = &[
    Case::new("durable::killed_under_load", killed_under_load),
    Case::new("durable::survives_a_kill", survives_a_kill),
    Case::new("durable::survives_a_stop", survives_a_stop),
    Case::new("durable::expires_while_down", expires_while_down),
    Case::new("durable::a_will_survives", a_will_survives),
    Case::new("durable::ended_sessions_stay_ended", ended_sessions_stay_ended),
    Case::new("durable::raft_beside_the_shards", raft_beside_the_shards),
    Case::new("durable::a_full_disk_ends_the_process", full_disk),
    Case::new("durable::another_nodes_directory_is_refused", another_nodes_directory),
];

fn start(column: &Column, dir: &Path) -> Broker {
    Broker::start_with(column, &Options { data_dir: Some(dir), ..Options::default() })
}

fn survives_a_kill(column: &Column) {
    survives(column, Broker::kill);
}

fn survives_a_stop(column: &Column) {
    survives(column, |broker| {
        broker.terminate();
        assert!(broker.exit_status(PATIENCE).success());
    });
}

fn survives(column: &Column, end: impl Fn(&mut Broker)) {
    let folder = temporary_folder();
    let mut broker = start(column, folder.path());
    let (mut sleeper, present) = resume(broker.mqtt, "sleeper", false, 3600, None);
    assert!(!present);
    sleeper.subscribe("news/#", 1);
    sleeper.subscribe("$share/g/work/+", 1);
    sleeper.send(&subscribe(5, 9, "dropped", 1));
    sleeper.expect(SUBACK);
    sleeper.send(&packet(0xA2, &[&[0, 10, 0], string("dropped").as_slice()].concat()));
    sleeper.expect(0xB0);
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    retain(&mut talker, "kept/a", b"one", 1);
    retain(&mut talker, "kept/a", b"two", 2);
    retain(&mut talker, "kept/b", b"three", 3);
    retain(&mut talker, "kept/b", b"", 4);
    drop(sleeper);
    end(&mut broker);

    let broker = start(column, folder.path());
    // What is acknowledged from the first moment on finds the sessions that were there.
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    for (id, topic) in [(1, "news/1"), (2, "dropped"), (3, "work/1"), (4, "news/2")] {
        talker.send(&publish(5, topic, topic.as_bytes(), 1, id));
        talker.expect(PUBACK);
    }
    assert_eq!(retained(broker.mqtt, "kept/a").as_deref(), Some(&b"two"[..]));
    assert_eq!(retained(broker.mqtt, "kept/b"), None);
    let (mut sleeper, present) = resume(broker.mqtt, "sleeper", false, 3600, None);
    assert!(present, "the session is gone");
    for wanted in ["news/1", "work/1", "news/2"] {
        let (topic, ..) = sleeper.expect(PUBLISH).publish(5);
        assert_eq!(topic, wanted);
    }
    sleeper.ping();
}

fn expires_while_down(column: &Column) {
    let folder = temporary_folder();
    let mut broker = start(column, folder.path());
    let (short, _) = resume(broker.mqtt, "short", false, 1, None);
    let (long, _) = resume(broker.mqtt, "long", false, 3600, None);
    drop((short, long));
    broker.metric_until("clients_connected", |connected| connected == 0);
    // Ended in order, so that the deadline on the disk is that of the disconnect.
    broker.terminate();
    assert!(broker.exit_status(PATIENCE).success());
    let stopped = SystemTime::now();
    until("the session's deadline", || {
        stopped.elapsed().is_ok_and(|since| since > Duration::from_millis(1100)).then_some(())
    });
    let broker = start(column, folder.path());
    let (_short, present) = resume(broker.mqtt, "short", false, 1, None);
    assert!(!present, "it has expired while nobody looked");
    let (_long, present) = resume(broker.mqtt, "long", false, 3600, None);
    assert!(present);
}

fn a_will_survives(column: &Column) {
    let folder = temporary_folder();
    let mut broker = start(column, folder.path());
    let (mut heir, _) = resume(broker.mqtt, "heir", false, 3600, None);
    heir.subscribe("wills/#", 1);
    drop(heir);
    let (_testator, _) = resume(broker.mqtt, "testator", true, 3600, Some("wills/testator"));
    broker.kill();
    let broker = start(column, folder.path());
    let (mut heir, present) = resume(broker.mqtt, "heir", false, 3600, None);
    assert!(present);
    let (topic, payload, _) = heir.expect(PUBLISH).publish(5);
    assert_eq!((topic.as_str(), payload.as_slice()), ("wills/testator", &b"gone"[..]));
}

fn ended_sessions_stay_ended(column: &Column) {
    let folder = temporary_folder();
    let mut broker = start(column, folder.path());
    let (mut first, _) = resume(broker.mqtt, "c", false, 3600, None);
    first.subscribe("a", 1);
    // Replaced by a clean one that keeps nothing.
    let (second, present) = resume(broker.mqtt, "c", true, 0, None);
    assert!(!present);
    let mut fence = Raw::connect(broker.mqtt, 5, "fence", 600);
    retain(&mut fence, "fence", b"x", 1);
    drop(second);
    broker.terminate();
    assert!(broker.exit_status(PATIENCE).success());
    let broker = start(column, folder.path());
    let (_third, present) = resume(broker.mqtt, "c", false, 3600, None);
    assert!(!present, "a session that was discarded is back");
}

fn raft_beside_the_shards(column: &Column) {
    let folder = temporary_folder();
    let environment = [("GEARBOX_META__RAFT", "shared"), ("GEARBOX_META__APPLY", "thread")];
    for round in 0..2 {
        let options =
            Options { data_dir: Some(folder.path()), environment: &environment, shards: 2 };
        let mut broker = Broker::start_with(column, &options);
        let (_client, present) = resume(broker.mqtt, "c", false, 3600, None);
        assert_eq!(present, round > 0);
        broker.terminate();
        assert!(broker.exit_status(PATIENCE).success());
    }
}

fn another_nodes_directory(column: &Column) {
    let folder = temporary_folder();
    let mut broker = start(column, folder.path());
    broker.terminate();
    assert!(broker.exit_status(PATIENCE).success());
    let output = Command::new(&column.program)
        .args(["serve", "--runtime", column.runtime, "--scheduler", column.scheduler])
        .args(["--listen", "127.0.0.1:0", "--admin", "off", "--node-id", "2", "--data-dir"])
        .arg(folder.path())
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("node 1"), "{said}");
}

/// On a file system of its own that fills up: the process says so and ends, acknowledges nothing that
/// is not on the disk, and after room was made everything acknowledged is there.
fn full_disk(column: &Column) {
    // A mount namespace of its own; without root, a user namespace around it.
    let namespace = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
    let possible = Command::new("unshare").args([namespace, "true"]).output();
    assert!(possible.is_ok_and(|output| output.status.success()), "unshare {namespace} is needed");
    let folder = temporary_folder();
    let serve = format!(
        "'{}' serve --runtime {} --scheduler {} --listen 127.0.0.1:0 --admin off --data-dir data/x",
        column.program.display(),
        column.runtime,
        column.scheduler
    );
    let script = format!(
        "mkdir data && mount -t tmpfs -o size=48m none data || exit 9
         head -c 16000000 /dev/zero > data/ballast || exit 9
         {serve}; echo first ended with $?
         rm data/ballast && exec {serve}"
    );
    let mut command = Command::new("unshare");
    command.env("GEARBOX_JOURNAL__SEGMENT_BYTES", "65536");
    command.current_dir(folder.path()).args([namespace, "sh", "-c", &script]);
    let mut process = Process::start(&format!("full disk [{}]", column.name), &mut command);
    let ready = |line: &str| -> Option<SocketAddr> {
        let (_, rest) = line.split_once(" mqtt=")?;
        rest.split([' ', ',']).next()?.parse().ok()
    };
    let address = process.line("the first start", ready);
    let mut client = Raw::connect(address, 5, "filler", 600);
    let payload = vec![b'x'; 50_000];
    let mut acknowledged = 0;
    for number in 0..2_000_u32 {
        let topic = format!("fill/{number}");
        client.send(&publish_raw(5, PUBLISH | 1 << 1 | RETAIN, topic.as_bytes(), &[], &payload, 1));
        match client.next(PATIENCE) {
            Got::Packet(packet) if packet.head & 0xF0 == PUBACK => {
                if packet.body.get(2).is_some_and(|reason| *reason >= 0x80) {
                    break;
                }
                acknowledged += 1;
            }
            Got::Packet(_) | Got::Closed => break,
            Got::Silence => panic!("neither an acknowledgement nor an end"),
        }
    }
    assert!((1..2_000).contains(&acknowledged), "{acknowledged} acknowledged on a full disk");
    let code = process.line("the first one's end", |line| {
        line.strip_prefix("first ended with ")?.parse::<i32>().ok()
    });
    assert_eq!(code, 1, "an error, and no crash");
    let address = process.line("the second start", ready);
    for number in (0..acknowledged).rev().step_by(7) {
        let found = retained(address, &format!("fill/{number}"));
        assert!(found.is_some_and(|found| found == payload), "fill/{number} was acknowledged");
    }
}

/// Killed at random moments while clients open sessions, subscribe and retain: what was acknowledged
/// is there, and nothing is half there. `GEARBOX_CRASH_ROUNDS` asks for more rounds.
fn killed_under_load(column: &Column) {
    let rounds: u32 = std::env::var("GEARBOX_CRASH_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(3);
    let folder = temporary_folder();
    let promised = Mutex::new(Promised::default());
    let mut random =
        (column.name.bytes()).fold(17_u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
    for round in 0..rounds {
        let mut broker = start(column, folder.path());
        promised.lock().expect("nobody panicked").check(broker.mqtt);
        let over = AtomicBool::new(false);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let life = Duration::from_millis(30 + (random >> 33) % 400);
        let address = broker.mqtt;
        std::thread::scope(|scope| {
            for client in 0..4 {
                let (over, promised) = (&over, &promised);
                scope.spawn(move || load(address, round, client, over, promised));
            }
            let end = Instant::now() + life;
            until("the moment of the kill", || (Instant::now() >= end).then_some(()));
            broker.kill();
            over.store(true, Ordering::SeqCst);
        });
        drop(broker);
        check_store(&folder.path().join("meta"));
    }
    let broker = start(column, folder.path());
    promised.lock().expect("nobody panicked").check(broker.mqtt);
}

/// What the broker has acknowledged.
#[derive(Default)]
struct Promised {
    /// Client identifier to the number of subscriptions acknowledged.
    sessions: BTreeMap<String, u32>,
    /// Topic to the last number acknowledged.
    retained: BTreeMap<String, u64>,
}

/// Does one thing after the other until the broker is gone.
fn load(
    address: SocketAddr,
    round: u32,
    client: u32,
    over: &AtomicBool,
    promised: &Mutex<Promised>,
) {
    let mut publisher = None;
    let topic = format!("counter/{client}");
    let mut number =
        promised.lock().expect("nobody panicked").retained.get(&topic).copied().unwrap_or(0)
            + 1_000;
    for step in 0.. {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let id = format!("s-{round}-{client}-{step}");
        let Some(mut session) = try_open(address) else { return };
        session.send(&durable_connect(&id, false, 3600, None));
        if !came(&mut session, CONNACK) {
            return;
        }
        promised.lock().expect("nobody panicked").sessions.insert(id.clone(), 0);
        for filter in 0..3_u32 {
            session.send(&subscribe(5, 1 + filter as u16, &format!("{id}/{filter}"), 1));
            if !came(&mut session, SUBACK) {
                return;
            }
            promised.lock().expect("nobody panicked").sessions.insert(id.clone(), filter + 1);
        }
        let publisher = publisher.get_or_insert_with(|| {
            try_open(address).map(|mut raw| {
                raw.send(&crate::raw::connect(5, &format!("p-{round}-{client}"), 600));
                came(&mut raw, CONNACK);
                raw
            })
        });
        let Some(publisher) = publisher else { return };
        for _ in 0..5 {
            number += 1;
            let payload = number.to_string();
            let head = PUBLISH | 1 << 1 | RETAIN;
            publisher.send(&publish_raw(5, head, topic.as_bytes(), &[], payload.as_bytes(), 7));
            if !came(publisher, PUBACK) {
                return;
            }
            promised.lock().expect("nobody panicked").retained.insert(topic.clone(), number);
        }
    }
}

fn try_open(address: SocketAddr) -> Option<Raw> {
    std::net::TcpStream::connect(address).ok()?;
    Some(Raw::open(address, 5))
}

fn came(client: &mut Raw, head: u8) -> bool {
    match client.next(PATIENCE) {
        Got::Packet(packet) => {
            assert_eq!(packet.head & 0xF0, head, "{packet:?}");
            true
        }
        Got::Closed => false,
        Got::Silence => panic!("no answer {head:#x}, and the connection is open"),
    }
}

impl Promised {
    fn check(&self, address: SocketAddr) {
        for (topic, number) in &self.retained {
            let found = retained(address, topic).expect("a retained message that was acknowledged");
            let found: u64 = String::from_utf8_lossy(&found).parse().expect("a number");
            // One more may have been committed without its acknowledgement getting out.
            assert!(found >= *number && found <= number + 1_001, "{topic}: {found} after {number}");
        }
        let mut publisher = Raw::connect(address, 5, "checker", 600);
        for (id, subscriptions) in self.sessions.iter().rev().take(200) {
            for filter in 0..*subscriptions {
                publisher.send(&publish(5, &format!("{id}/{filter}"), b"x", 1, 1));
                let answer = publisher.expect(PUBACK);
                let reason = answer.body.get(2).copied().unwrap_or(0);
                assert_eq!(reason, 0, "nobody subscribes to {id}/{filter} any more");
            }
        }
        for id in self.sessions.keys().step_by(17) {
            let (_client, present) = resume(address, id, false, 3600, None);
            assert!(present, "session {id} was acknowledged");
        }
    }
}

/// What several keys say must agree: a change is there as a whole or not at all.
fn check_store(dir: &Path) {
    let store = RocksStore::open(dir, 1).expect("the store opens");
    let mut outcome = Err("not read".to_owned());
    store.with_snapshot(&mut |view| outcome = meta::state::check(view).map(drop));
    store.close();
    outcome.expect("what the tables say agrees");
}
