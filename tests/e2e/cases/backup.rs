//! Backups of a running broker, what is restored from them, and the repair of a damaged directory.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Case;
use crate::broker::{Broker, Options, temporary_folder};
use crate::column::{Column, discover};
use crate::raw::{
    Got, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Raw, ack, deliver, resume, retain, retained,
    sleeper,
};
use crate::wait::PATIENCE;

pub const CASES: &[Case] = &[
    Case::new("backup::under_load_and_restored", under_load_and_restored),
    Case::new("backup::what_is_no_backup_is_refused", what_is_no_backup),
    Case::new("backup::where_none_can_go_is_said", where_none_can_go),
    Case::new("backup::damage_is_repaired", damage_is_repaired),
];

fn start(column: &Column, dir: &Path) -> Broker {
    Broker::start_with(column, &Options { data_dir: Some(dir), ..Options::default() })
}

/// Runs the program: its exit code, and what it said on either way.
fn gearbox(column: &Column, args: &[&str], paths: &[(&str, &Path)]) -> (Option<i32>, String) {
    let mut command = Command::new(&column.program);
    command.args(args);
    for (flag, path) in paths {
        if !flag.is_empty() {
            command.arg(flag);
        }
        command.arg(path);
    }
    let output = command.output().expect("the program runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Has a running broker write a backup: exit code, and what was said.
pub fn back_up(column: &Column, broker: &Broker, to: &Path) -> (Option<i32>, String) {
    let admin = broker.admin.to_string();
    gearbox(column, &["ctl", "--admin", &admin, "backup"], &[("", to)])
}

/// Makes a data directory from a backup, in the same way.
pub fn restore(column: &Column, from: &Path, to: &Path) -> (Option<i32>, String) {
    gearbox(column, &["restore"], &[("--from", from), ("--data-dir", to)])
}

/// Takes the messages of a session until all that are wanted have come.
fn collect(broker: SocketAddr, id: &str, wanted: &BTreeSet<String>) {
    let (mut client, present) = resume(broker, id, false, 3600, None);
    assert!(present, "the session {id} is gone");
    let mut missing = wanted.clone();
    while !missing.is_empty() {
        let packet = match client.next(PATIENCE) {
            Got::Packet(packet) => packet,
            other => panic!("{other:?} instead of {} messages of {id}: {missing:?}", missing.len()),
        };
        let head = packet.head & 0xF0;
        if head == PUBREL & 0xF0 {
            client.send(&ack(PUBCOMP, u16::from_be_bytes([packet.body[0], packet.body[1]])));
            continue;
        }
        assert_eq!(head, PUBLISH, "{packet:?}");
        let (_, payload, packet_id) = packet.publish(5);
        let number = payload.split(|&byte| byte == b' ').next().unwrap_or_default();
        missing.remove(&*String::from_utf8_lossy(number));
        let answer = if packet.head & 0x06 == 2 { PUBACK } else { PUBREC };
        client.send(&ack(answer, packet_id.expect("QoS 1 or 2")));
    }
}

/// A payload that begins with its name and is long enough to fill segments.
fn payload(name: &str) -> String {
    format!("{name} {}", "x".repeat(3_000))
}

fn under_load_and_restored(column: &Column) {
    let folder = temporary_folder();
    let (data, copy, new) =
        (folder.path().join("data"), folder.path().join("copy"), folder.path().join("new"));
    let mut broker = start(column, &data);
    for (id, qos) in [("one", 1), ("two", 2)] {
        sleeper(broker.mqtt, id, "load/#", qos);
    }
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    retain(&mut talker, "kept", b"before", 1);
    let (over, taken) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
    let address = broker.mqtt;
    let mut before = BTreeSet::new();
    std::thread::scope(|scope| {
        for client in 0..3_u8 {
            let (over, taken) = (&over, &taken);
            scope.spawn(move || {
                let mut talker = Raw::connect(address, 5, &format!("load-{client}"), 600);
                let topic = format!("load/{client}");
                for number in 1..2_000_u16 {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let name = format!("{client}-{number}");
                    deliver(&mut talker, &topic, &payload(&name), 1 + client % 2, number);
                    taken.lock().expect("nobody panicked").insert(name);
                }
            });
        }
        // Ends the load also when this thread panics.
        let _end = End(&over);
        let taken_count = || taken.lock().expect("nobody panicked").len();
        crate::wait::until("load", || (taken_count() > 150).then_some(()));
        before.clone_from(&taken.lock().expect("nobody panicked"));
        let (code, said) = back_up(column, &broker, &copy);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(": complete, "), "{said}");
        let during = taken_count();
        crate::wait::until("the load to go on", || (taken_count() > during + 20).then_some(()));
    });
    retain(&mut talker, "kept", b"after", 2);
    broker.kill();
    assert!(before.len() > 150 && copy.join("MANIFEST").exists());

    let (code, said) = restore(column, &copy, &new);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("sound: a broker can start") && said.contains(" 2 sessions"), "{said}");
    let (code, said) = restore(column, &copy, &new);
    assert!(code == Some(1) && said.contains("is not empty"), "{said}");
    // On another runtime, where there is one.
    let columns = discover().ready;
    let at = columns.iter().position(|other| other.name == column.name).expect("it is one");
    let broker = start(&columns[(at + 1) % columns.len()], &new);
    assert_eq!(retained(broker.mqtt, "kept").as_deref(), Some(&b"before"[..]));
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    deliver(&mut talker, "load/x", "restored", 1, 1);
    before.insert("restored".into());
    for id in ["one", "two"] {
        collect(broker.mqtt, id, &before);
    }
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn what_is_no_backup(column: &Column) {
    let folder = temporary_folder();
    let place = |name: &str| folder.path().join(name);
    let (data, copy) = (place("data"), place("copy"));
    let broker = start(column, &data);
    let (mut client, _) = resume(broker.mqtt, "one", false, 3600, None);
    client.subscribe("t", 1);
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    deliver(&mut talker, "t", "x", 1, 1);
    let (code, said) = back_up(column, &broker, &copy);
    assert_eq!(code, Some(0), "{said}");
    drop(broker);

    // One flipped bit in each kind of file.
    let files = |dir: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(copy.join(dir)).expect("it is there");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    let mut victims = files("journal");
    victims.extend(files("meta/db"));
    victims.push(copy.join("meta/FORMAT"));
    victims.push(copy.join("MANIFEST"));
    for (at, victim) in victims.iter().enumerate() {
        let bytes = fs::read(victim).expect("it can be read");
        if bytes.is_empty() {
            continue;
        }
        let mut spoiled = bytes.clone();
        spoiled[bytes.len() / 2] ^= 1;
        fs::write(victim, &spoiled).expect("it can be written");
        let to = place(&format!("spoiled-{at}"));
        let (code, said) = restore(column, &copy, &to);
        let name = victim.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(code == Some(1) && said.contains(&name) && said.contains("damaged"), "{said}");
        let (code, said) = gearbox(column, &["serve"], &[("--data-dir", &to)]);
        assert!(code == Some(1) && said.contains("is not whole"), "{said}");
        fs::write(victim, &bytes).expect("it can be written");
    }
    let manifest = copy.join("MANIFEST");
    let text = fs::read_to_string(&manifest).expect("it can be read");
    fs::write(&manifest, text.replace("gearbox-backup 1", "gearbox-backup 9")).expect("written");
    let (code, said) = restore(column, &copy, &place("newer"));
    assert!(code == Some(1) && said.contains("a backup of format 9"), "{said}");
    fs::remove_file(&manifest).expect("it can be removed");
    let (code, said) = restore(column, &copy, &place("incomplete"));
    assert!(code == Some(1) && said.contains("no complete backup"), "{said}");
}

fn where_none_can_go(column: &Column) {
    let folder = temporary_folder();
    let broker = start(column, &folder.path().join("data"));
    for (to, why) in [
        (Path::new("here"), "is not an absolute path"),
        (folder.path(), "is not empty"),
        (&folder.path().join("not/there"), "cannot create"),
    ] {
        let (code, said) = back_up(column, &broker, to);
        assert!(code == Some(1) && said.contains(why), "{said}");
    }
    // None of them is in the way of the next one.
    let copy = folder.path().join("copy");
    let (code, said) = back_up(column, &broker, &copy);
    assert_eq!(code, Some(0), "{said}");
    let (_, status) = broker.get("/backup");
    assert!(status.contains("\"done\"") && status.contains("copy"), "{status}");
    drop(broker);
    let broker = Broker::start(column);
    let (code, said) = back_up(column, &broker, &folder.path().join("other"));
    assert!(code == Some(1) && said.contains("keeps nothing"), "{said}");
}

fn damage_is_repaired(column: &Column) {
    let folder = temporary_folder();
    let data = folder.path();
    let repair =
        |args: &[&str]| gearbox(column, &[&["repair"], args].concat(), &[("--data-dir", data)]);
    let mut broker = start(column, data);
    let (code, said) = repair(&[]);
    assert!(code == Some(1) && said.contains("is in use by another gearbox"), "{said}");
    sleeper(broker.mqtt, "reader", "t", 1);
    let mut talker = Raw::connect(broker.mqtt, 5, "talker", 600);
    for id in 1..=40 {
        deliver(&mut talker, "t", &payload(&id.to_string()), 1, id);
    }
    broker.kill();
    let (code, said) = repair(&[]);
    assert!(code == Some(0) && said.contains("40 owed to 1 sessions"), "{said}");

    let segment = data.join("journal/0000000000000001.log");
    let mut bytes = fs::read(&segment).expect("a first segment");
    // The frame of one message in the middle.
    let place = bytes.windows(4).position(|bytes| bytes == b"20 x").expect("it is there");
    bytes[place + 10] ^= 1;
    fs::write(&segment, &bytes).expect("it can be written");
    let mut serve = Command::new(&column.program);
    serve.args(["serve", "--runtime", column.runtime, "--scheduler", column.scheduler]);
    serve.args(["--listen", "127.0.0.1:0", "--admin", "off", "--data-dir"]).arg(data);
    let output = serve.output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["0000000000000001.log is damaged at byte ", "`gearbox repair`"] {
        assert!(said.contains(part), "{said}");
    }
    let before = files(data);
    let (code, said) = repair(&[]);
    assert_eq!(code, Some(1), "{said}");
    for part in
        ["0000000000000001.log at byte ", "20 records behind it", "--write cuts", "NOT SOUND"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(files(data), before, "nothing is changed");
    let (code, said) = repair(&["--write"]);
    assert!(code == Some(0) && said.contains(".damaged") && said.contains("19 owed to"), "{said}");
    assert_eq!(repair(&["--write"]).0, Some(0));
    let broker = start(column, data);
    let wanted = (1..20).map(|id: u16| id.to_string()).collect();
    collect(broker.mqtt, "reader", &wanted);
}

/// All files but the lock, with their content.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("it is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.ends_with("gearbox.lock") {
            let content = fs::read(&path).expect("it can be read");
            found.push((path, content));
        }
    }
    found.sort();
    found
}
