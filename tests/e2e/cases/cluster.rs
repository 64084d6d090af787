//! Three nodes as three processes: joining, leaving, a dead leader, a stopped follower, a link that
//! carries nothing into a node. What clients saw must be explained by one order of all changes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::backup::{back_up, restore};
use crate::Case;
use crate::broker::{Broker, Options, temporary_folder};
use crate::column::Column;
use crate::gate::Gate;
use crate::raw::{PUBLISH, Raw, publish_raw, resume, retain, retained};
use crate::wait::{PATIENCE, until};

pub const CASES: &[Case] = &[
    Case::new("cluster::history_is_linearizable", history_is_linearizable),
    Case::new("cluster::a_snapshot_brings_a_node_up", a_snapshot_brings_a_node_up),
    Case::new("cluster::nodes_come_and_go", nodes_come_and_go),
    Case::new("cluster::a_session_moves", a_session_moves),
    Case::new("cluster::a_restored_node_takes_empty_ones_in", a_restored_node),
];

/// Few entries between snapshots, so that a test sees them.
const SMALL_LOG: [(&str, &str); 3] = [
    ("GEARBOX_META__SNAPSHOT_ENTRIES", "100"),
    ("GEARBOX_META__KEPT_ENTRIES", "10"),
    ("GEARBOX_META__MAX_LAG_ENTRIES", "200"),
];

pub(super) struct Cluster<'a> {
    column: &'a Column,
    folders: Vec<TempDir>,
    gates: Vec<Gate>,
    pub(super) nodes: Vec<Option<Broker>>,
    environment: &'a [(&'a str, &'a str)],
}

impl<'a> Cluster<'a> {
    pub(super) fn start(column: &'a Column, environment: &'a [(&'a str, &'a str)]) -> Self {
        let mut cluster = Self::empty(column, environment);
        for node in 0..3 {
            cluster.start_node(node);
        }
        cluster.voters(3);
        cluster
    }

    fn empty(column: &'a Column, environment: &'a [(&'a str, &'a str)]) -> Self {
        // An address of its own for each node, which stays free while the node is down.
        static CLUSTERS: AtomicU32 = AtomicU32::new(0);
        let cluster = CLUSTERS.fetch_add(1, Ordering::SeqCst);
        let pid = std::process::id();
        let address = |node: u32| -> SocketAddr {
            let bytes = (pid << 8 | cluster << 2 | node).to_be_bytes();
            ([127, 64 + (bytes[1] & 63), bytes[2], bytes[3]], 7100).into()
        };
        Self {
            column,
            folders: (0..3).map(|_| temporary_folder()).collect(),
            gates: (0..3).map(|node| Gate::new(address(node))).collect(),
            nodes: (0..3).map(|_| None).collect(),
            environment,
        }
    }

    fn start_node(&mut self, node: usize) {
        let (gates, folder) = (&self.gates, self.folders[node].path());
        self.nodes[node] = Some(launch(self.column, self.environment, gates, node, folder));
    }

    /// All at once: none is ready before a majority is.
    fn start_all(&mut self) {
        let Self { column, folders, gates, nodes, environment } = self;
        let (column, environment, gates) = (*column, *environment, &*gates);
        std::thread::scope(|scope| {
            for (node, (place, folder)) in nodes.iter_mut().zip(folders).enumerate() {
                let folder = folder.path();
                scope.spawn(move || {
                    *place = Some(launch(column, environment, gates, node, folder));
                });
            }
        });
    }

    pub(super) fn kill(&mut self, node: usize) {
        if let Some(mut broker) = self.nodes[node].take() {
            broker.kill();
        }
    }

    pub(super) fn broker(&self, node: usize) -> &Broker {
        self.nodes[node].as_ref().expect("the node runs")
    }

    fn admins(&self) -> Vec<SocketAddr> {
        self.nodes.iter().flatten().map(|broker| broker.admin).collect()
    }

    /// The leader's place, once all running nodes know it.
    pub(super) fn leader(&self) -> usize {
        until("a leader", || {
            let mut leaders = self.nodes.iter().flatten().map(|broker| leader_of(broker.admin));
            let first = leaders.next()??;
            let running = self.nodes.get(first as usize - 1)?.is_some();
            (running && leaders.all(|other| other == Some(first))).then_some(first as usize - 1)
        })
    }

    fn voters(&self, wanted: usize) {
        until("voters", || {
            let agree = |broker: &Broker| voters_of(broker.admin) == Some(wanted);
            self.nodes.iter().flatten().all(agree).then_some(())
        });
    }
}

/// Starts a node; all but the first have the first one's address as their seed.
fn launch(
    column: &Column,
    environment: &[(&str, &str)],
    gates: &[Gate],
    node: usize,
    folder: &Path,
) -> Broker {
    let id = (node + 1).to_string();
    let seed = gates[0].front.to_string();
    let listen = gates[node].back.to_string();
    let advertise = gates[node].front.to_string();
    let mut environment = environment.to_vec();
    environment.extend([
        ("GEARBOX_CLUSTER__NODE_ID", id.as_str()),
        ("GEARBOX_CLUSTER__LISTEN", listen.as_str()),
        ("GEARBOX_CLUSTER__ADVERTISE", advertise.as_str()),
    ]);
    let seeds = format!("[\"{seed}\"]");
    if node > 0 {
        environment.push(("GEARBOX_CLUSTER__SEEDS", seeds.as_str()));
    }
    let options = Options { shards: 1, environment: &environment, data_dir: Some(folder) };
    Broker::start_with(column, &options)
}

/// An HTTP request: status, version of the key, body; `None` when there was no whole answer.
fn http(
    admin: SocketAddr,
    method: &str,
    path: &str,
    if_match: Option<u64>,
    body: &str,
) -> Option<(u16, Option<u64>, String)> {
    let mut stream = TcpStream::connect_timeout(&admin, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(15))).ok()?;
    let condition =
        if_match.map_or(String::new(), |version| format!("If-Match: \"{version}\"\r\n"));
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{condition}Content-Length: {length}\r\n\r\n{body}"
    )
    .ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let version = head
        .lines()
        .find_map(|line| line.strip_prefix("etag: \"")?.strip_suffix('"')?.parse().ok());
    Some((status, version, body.to_owned()))
}

fn status(admin: SocketAddr) -> Option<serde_json::Value> {
    let (200, _, body) = http(admin, "GET", "/cluster", None, "")? else { return None };
    serde_json::from_str(&body).ok()
}

fn leader_of(admin: SocketAddr) -> Option<u64> {
    status(admin)?["leader"].as_u64()
}

fn voters_of(admin: SocketAddr) -> Option<usize> {
    let status = status(admin)?;
    Some(status["members"].as_array()?.iter().filter(|member| member["voter"] == true).count())
}

/// What a client did and saw.
#[derive(Clone, Debug)]
struct Event {
    begin: Instant,
    end: Instant,
    write: bool,
    version: u64,
    value: String,
}

/// Reads and conditional writes of one key through changing nodes.
fn client(
    number: usize,
    admins: &Mutex<Vec<SocketAddr>>,
    over: &AtomicBool,
    history: &Mutex<Vec<Event>>,
    tried: &Mutex<Vec<String>>,
) {
    let (mut known, mut turn) = (0, number);
    while !over.load(Ordering::SeqCst) {
        turn += 1;
        let admin = {
            let admins = admins.lock().expect("nobody panicked");
            admins[turn % admins.len()]
        };
        let write = turn % 3 != 0;
        let value = format!("{number}-{turn}");
        let begin = Instant::now();
        let answer = if write {
            tried.lock().expect("nobody panicked").push(value.clone());
            http(admin, "PUT", "/config/register", Some(known), &value)
        } else {
            http(admin, "GET", "/config/register", None, "")
        };
        let end = Instant::now();
        match answer {
            Some((200, Some(version), body)) => {
                let value = if write { value } else { body };
                known = version;
                history.lock().expect("nobody panicked").push(Event {
                    begin,
                    end,
                    write,
                    version,
                    value,
                });
            }
            Some((412, Some(version), _)) => known = version,
            Some((404, ..)) => known = 0,
            // No answer, or none that says what happened.
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Versions are the one order of all writes; every event must fit it and the time that it took.
fn check(mut history: Vec<Event>, tried: &[String]) {
    let mut values = std::collections::BTreeMap::new();
    for event in &history {
        assert!(tried.contains(&event.value), "nobody wrote {event:?}");
        let value = values.entry(event.version).or_insert_with(|| event.value.clone());
        assert_eq!(*value, event.value, "two values of version {}", event.version);
    }
    let mut writers = std::collections::BTreeSet::new();
    for event in history.iter().filter(|event| event.write) {
        assert!(writers.insert(event.version), "two writes made version {}", event.version);
    }
    history.sort_by_key(|event| event.end);
    let mut by_begin = history.clone();
    by_begin.sort_by_key(|event| event.begin);
    let (mut done, mut newest) = (0, 0);
    for event in &by_begin {
        while done < history.len() && history[done].end < event.begin {
            newest = newest.max(history[done].version);
            done += 1;
        }
        let fits = if event.write { event.version > newest } else { event.version >= newest };
        assert!(fits, "{event:?} came after version {newest} was seen");
    }
}

/// The leader is killed, a follower stopped and gone on with, and a node's link shut inwards, while
/// clients write. `GEARBOX_LEADER_KILLS` asks for more than one.
fn history_is_linearizable(column: &Column) {
    let kills: u32 = std::env::var("GEARBOX_LEADER_KILLS")
        .ok()
        .and_then(|kills| kills.parse().ok())
        .unwrap_or(1);
    let mut cluster = Cluster::start(column, &[]);
    let (history, tried) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let (over, admins) = (AtomicBool::new(false), Mutex::new(cluster.admins()));
    let mut outages = Vec::new();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (admins, over, history, tried) = (&admins, &over, &history, &tried);
            scope.spawn(move || client(number, admins, over, history, tried));
        }
        let ends = EndClients(&over);
        let progress = || {
            let before = history.lock().expect("nobody panicked").len();
            until("the clients to get on", || {
                (history.lock().expect("nobody panicked").len() > before + 20).then_some(())
            });
        };
        progress();
        for _ in 0..kills {
            let leader = cluster.leader();
            let killed = Instant::now();
            cluster.kill(leader);
            *admins.lock().expect("nobody panicked") = cluster.admins();
            let back = until("a write after the leader's death", || {
                let history = history.lock().expect("nobody panicked");
                history
                    .iter()
                    .find(|event| event.write && event.begin > killed)
                    .map(|event| event.end)
            });
            outages.push(back - killed);
            cluster.start_node(leader);
            *admins.lock().expect("nobody panicked") = cluster.admins();
        }
        progress();
        let follower = (cluster.leader() + 1) % 3;
        signal(cluster.broker(follower), rustix::process::Signal::STOP);
        let admins_of_others: Vec<_> = (0..3)
            .filter(|node| *node != follower)
            .map(|node| cluster.broker(node).admin)
            .collect();
        *admins.lock().expect("nobody panicked") = admins_of_others;
        progress();
        signal(cluster.broker(follower), rustix::process::Signal::CONT);
        *admins.lock().expect("nobody panicked") = cluster.admins();
        progress();
        // Nothing reaches the leader, whose own requests are answered: it goes on to lead, and only
        // its own clients get on.
        let deaf = cluster.leader();
        cluster.gates[deaf].shut(true);
        *admins.lock().expect("nobody panicked") = vec![cluster.broker(deaf).admin];
        progress();
        cluster.gates[deaf].shut(false);
        *admins.lock().expect("nobody panicked") = cluster.admins();
        progress();
        drop(ends);
    });
    let history = history.into_inner().expect("nobody panicked");
    let (events, writes) = (history.len(), history.iter().filter(|event| event.write).count());
    check(history, &tried.into_inner().expect("nobody panicked"));
    outages.sort();
    if kills > 1 {
        let (middle, longest) = (outages[outages.len() / 2], outages[outages.len() - 1]);
        println!(
            "{}: {events} events, {writes} writes, {kills} leaders killed, no write for p50 {} ms, max {} ms",
            column.name,
            middle.as_millis(),
            longest.as_millis()
        );
    }
}

/// Ends the clients also when an assertion fails.
struct EndClients<'a>(&'a AtomicBool);

impl Drop for EndClients<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn signal(broker: &Broker, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(broker.pid() as i32).expect("a process");
    rustix::process::kill_process(pid, signal).expect("the node takes a signal");
}

fn durable(address: SocketAddr, id: &str) -> (Raw, bool) {
    resume(address, id, false, 3600, None)
}

/// A node that needs more than the log still has serves all of it.
fn a_snapshot_brings_a_node_up(column: &Column) {
    let mut cluster = Cluster::empty(column, &SMALL_LOG);
    cluster.start_node(0);
    cluster.start_node(1);
    cluster.voters(2);
    let (leader, late) = (cluster.leader(), 2);
    let (mut sleeper, _) = durable(cluster.broker(leader).mqtt, "sleeper");
    sleeper.subscribe("news/#", 1);
    let mut talker = Raw::connect(cluster.broker(leader).mqtt, 5, "talker", 600);
    for number in 0..600 {
        retain(&mut talker, &format!("many/{number}"), number.to_string().as_bytes(), 1);
    }
    until("the log to be purged", || {
        status(cluster.broker(leader).admin)?["purged_index"].as_u64().filter(|upto| *upto > 300)
    });
    cluster.start_node(late);
    let mut reader = Raw::connect(cluster.broker(late).mqtt, 5, "reader", 600);
    reader.subscribe("many/#", 0);
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 600 {
        let (topic, payload, _) = reader.expect(PUBLISH).publish(5);
        assert_eq!(topic, format!("many/{}", String::from_utf8_lossy(&payload)));
        assert!(seen.insert(topic), "twice");
    }
    let (mut sleeper, present) = durable(cluster.broker(late).mqtt, "sleeper");
    assert!(present, "the session came with the snapshot");
    let mut talker = Raw::connect(cluster.broker(late).mqtt, 5, "talker", 600);
    talker.send(&publish_raw(5, PUBLISH, b"news/1", &[], b"x", 0));
    assert_eq!(sleeper.expect(PUBLISH).publish(5).0, "news/1", "and its subscription with it");
}

fn nodes_come_and_go(column: &Column) {
    let mut cluster = Cluster::start(column, &[]);
    let mut talker = Raw::connect(cluster.broker(2).mqtt, 5, "talker", 600);
    retain(&mut talker, "kept", b"one", 1);
    for node in 0..3 {
        // Applied there a moment later than it was acknowledged elsewhere.
        until("the message on every node", || {
            retained(cluster.broker(node).mqtt, "kept").map(drop)
        });
    }
    let output = Command::new(&column.program)
        .args(["ctl", "--admin", &cluster.broker(0).admin.to_string(), "cluster", "leave", "3"])
        .stdin(Stdio::null())
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    cluster.kill(2);
    cluster.voters(2);
    let stranger = http(cluster.broker(0).admin, "DELETE", "/cluster/nodes/9", None, "");
    assert_eq!(stranger.map(|(status, ..)| status), Some(409), "there is no such node");
}

/// A client goes to another node: its session follows, the old connection is told.
fn a_session_moves(column: &Column) {
    let cluster = Cluster::start(column, &[]);
    let (mut here, _) = durable(cluster.broker(0).mqtt, "mover");
    here.subscribe("a/#", 1);
    let (mut there, present) = durable(cluster.broker(1).mqtt, "mover");
    assert!(present, "the session followed");
    let before = here.until_closed(PATIENCE).expect("the old connection ends");
    assert_eq!(before.last().and_then(|packet| packet.reason()), Some(0x8E), "{before:?}");
    let mut talker = Raw::connect(cluster.broker(1).mqtt, 5, "talker", 600);
    talker.send(&publish_raw(5, PUBLISH, b"a/1", &[], b"x", 0));
    assert_eq!(there.expect(PUBLISH).publish(5).0, "a/1", "its subscription came along");
}

/// A cluster goes back in time as a whole: one node is restored, the others begin with nothing.
fn a_restored_node(column: &Column) {
    let mut cluster = Cluster::start(column, &SMALL_LOG);
    let mut talker = Raw::connect(cluster.broker(1).mqtt, 5, "talker", 600);
    for id in 1..=150 {
        retain(&mut talker, "kept", b"before", id);
    }
    drop(durable(cluster.broker(1).mqtt, "one"));
    let folder = temporary_folder();
    let copy = folder.path().join("copy");
    let (code, said) = back_up(column, cluster.broker(0), &copy);
    assert_eq!(code, Some(0), "{said}");
    retain(&mut talker, "kept", b"after", 200);
    (0..3).for_each(|node| cluster.kill(node));
    cluster.folders = (0..3).map(|_| temporary_folder()).collect();
    let (code, said) = restore(column, &copy, cluster.folders[0].path());
    assert_eq!(code, Some(0), "{said}");
    cluster.start_all();
    cluster.voters(3);
    for node in 0..3 {
        let found = retained(cluster.broker(node).mqtt, "kept");
        assert_eq!(found.as_deref(), Some(&b"before"[..]), "node {}", node + 1);
    }
    assert!(durable(cluster.broker(2).mqtt, "one").1, "its session is there");
    retain(&mut Raw::connect(cluster.broker(2).mqtt, 5, "talker", 600), "kept", b"new", 1);
}
