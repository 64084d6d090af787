//! `mosquitto_pub` and `mosquitto_sub` of Debian's package mosquitto-clients.

use crate::Case;
use crate::broker::Broker;
use crate::column::Column;
use crate::process::Process;
use crate::wait::PATIENCE;
use std::process::{Command, Stdio};

pub const CASES: &[Case] = &[
    Case::smoke("mosquitto_v31::qos", |column| qos(column, "mqttv31")),
    Case::smoke("mosquitto_v311::qos", |column| qos(column, "mqttv311")),
    Case::smoke("mosquitto_v5::qos", |column| qos(column, "mqttv5")),
    Case::new("mosquitto_v311::retained", |column| retained(column, "mqttv311")),
    Case::new("mosquitto_v5::retained", |column| retained(column, "mqttv5")),
    Case::new("mosquitto_v311::wildcards", |column| wildcards(column, "mqttv311")),
    Case::new("mosquitto_v5::wildcards", |column| wildcards(column, "mqttv5")),
    Case::new("mosquitto_v311::will", |column| will(column, "mqttv311")),
    Case::new("mosquitto_v5::will", |column| will(column, "mqttv5")),
    Case::new("mosquitto_v5::versions_mix", versions_mix),
];

/// The granted QoS is the smaller of both sides' wishes, for all nine pairs.
fn qos(column: &Column, version: &str) {
    let broker = Broker::start(column);
    for granted in 0..=2 {
        let filter = format!("m/{granted}/+");
        let mut subscriber = subscribe(&broker, version, &[&filter], granted, &[]);
        for sent in 0..=2 {
            let topic = format!("m/{granted}/{sent}");
            publish(&broker, version, &topic, "hello", sent, &[]);
            let wanted = format!("{topic}|{}|0|hello", sent.min(granted));
            assert_eq!(message(&mut subscriber), wanted);
        }
    }
}

fn retained(column: &Column, version: &str) {
    let broker = Broker::start(column);
    publish(&broker, version, "kept/a", "first", 1, &["-r"]);
    publish(&broker, version, "kept/a", "second", 1, &["-r"]);
    let mut subscriber = subscribe(&broker, version, &["kept/+"], 1, &[]);
    assert_eq!(message(&mut subscriber), "kept/a|1|1|second");
    publish(&broker, version, "kept/a", "third", 0, &["-r"]);
    assert_eq!(message(&mut subscriber), "kept/a|0|0|third");

    publish(&broker, version, "kept/a", "", 1, &["-r"]);
    let mut late = subscribe(&broker, version, &["kept/+"], 1, &[]);
    publish(&broker, version, "kept/fence", "fence", 1, &[]);
    // Nothing before the fence: the retained message is gone.
    assert_eq!(message(&mut late), "kept/fence|1|0|fence");
}

fn wildcards(column: &Column, version: &str) {
    let broker = Broker::start(column);
    let mut one = subscribe(&broker, version, &["w/+/c"], 0, &[]);
    let mut rest = subscribe(&broker, version, &["w/b/#"], 0, &[]);
    let mut two = subscribe(&broker, version, &["w/exact", "+/fence"], 0, &[]);
    for topic in ["w/b/c", "w/b", "w/x/c", "w//c", "w/x/c/d", "w", "x/b/c", "w/exact"] {
        publish(&broker, version, topic, "t", 0, &[]);
    }
    for topic in ["w/fence/c", "w/b/fence", "w/fence"] {
        publish(&broker, version, topic, "t", 0, &[]);
    }
    let topics = |subscriber: &mut Process, last: &str| {
        let mut topics = Vec::new();
        while topics.last().is_none_or(|topic| topic != last) {
            topics.push(message(subscriber).split('|').next().unwrap_or_default().to_owned());
        }
        topics
    };
    // Publishers are clients of their own here, so only the set is fixed, not the order; each has
    // its acknowledgement of TCP only. The fences come last, after everything else was routed.
    let sorted = |mut topics: Vec<String>| {
        topics.sort();
        topics
    };
    assert_eq!(sorted(topics(&mut one, "w/fence/c")), ["w//c", "w/b/c", "w/fence/c", "w/x/c"]);
    assert_eq!(sorted(topics(&mut rest, "w/b/fence")), ["w/b", "w/b/c", "w/b/fence"]);
    assert_eq!(sorted(topics(&mut two, "w/fence")), ["w/exact", "w/fence"]);
}

/// A will goes out after SIGKILL and stays home after a proper end [MQTT-3.1.2-8], [MQTT-3.1.2-10].
fn will(column: &Column, version: &str) {
    let broker = Broker::start(column);
    let mut watcher = subscribe(&broker, version, &["will/#"], 1, &[]);
    publish(&broker, version, "other", "x", 1, &with_will("will/polite"));

    let mut abrupt = subscribe(&broker, version, &["other"], 1, &with_will("will/subscriber"));
    abrupt.kill();
    assert_eq!(message(&mut watcher), "will/subscriber|1|0|gone");

    let mut command = client(&broker, "mosquitto_pub", version);
    command.args(["-d", "-l", "-t", "other"]).args(with_will("will/publisher"));
    let mut holder = Process::start("mosquitto_pub", command.stdin(Stdio::piped()));
    holder.line("CONNACK", |line| line.contains("received CONNACK (0)").then_some(()));
    holder.kill();
    assert_eq!(message(&mut watcher), "will/publisher|1|0|gone");

    // At SIGTERM mosquitto_sub says DISCONNECT, in version 5 with reason 0x04: "with will message".
    let mut leaving = subscribe(&broker, version, &["other"], 1, &with_will("will/leaving"));
    leaving.terminate();
    leaving.finish(PATIENCE);
    if version == "mqttv5" {
        assert_eq!(message(&mut watcher), "will/leaving|1|0|gone");
    }
    publish(&broker, version, "will/fence", "fence", 1, &[]);
    assert_eq!(message(&mut watcher), "will/fence|1|0|fence");
}

fn with_will(topic: &str) -> [&str; 6] {
    ["--will-topic", topic, "--will-payload", "gone", "--will-qos", "1"]
}

/// One subscriber per version, messages from each version to all.
fn versions_mix(column: &Column) {
    let broker = Broker::start(column);
    let versions = ["mqttv31", "mqttv311", "mqttv5"];
    let mut subscribers = versions.map(|version| subscribe(&broker, version, &["mix"], 2, &[]));
    for version in versions {
        publish(&broker, version, "mix", version, 2, &[]);
        for subscriber in &mut subscribers {
            assert_eq!(message(subscriber), format!("mix|2|0|{version}"));
        }
    }
}

fn client(broker: &Broker, program: &str, version: &str) -> Command {
    // These programs keep their output back when it goes into a pipe; stdbuf (coreutils) turns
    // that off and becomes the program, so signals still reach it.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", program]);
    command.args(["-h", "127.0.0.1", "-p", &broker.mqtt.port().to_string(), "-V", version]);
    command
}

/// Starts `mosquitto_sub` and waits until it is subscribed.
fn subscribe(broker: &Broker, version: &str, filters: &[&str], qos: u8, more: &[&str]) -> Process {
    let mut command = client(broker, "mosquitto_sub", version);
    command.args(["-d", "-q", &qos.to_string(), "-F", "MSG %t|%q|%r|%p"]);
    for filter in filters {
        command.args(["-t", filter]);
    }
    command.args(more);
    let name = format!("mosquitto_sub {version} {filters:?} (package mosquitto-clients)");
    let mut process = Process::start(&name, &mut command);
    process.line("Subscribed", |line| line.starts_with("Subscribed").then_some(()));
    process
}

/// Runs `mosquitto_pub` to its end, which above QoS 0 is after the acknowledgement.
fn publish(broker: &Broker, version: &str, topic: &str, payload: &str, qos: u8, more: &[&str]) {
    let mut command = client(broker, "mosquitto_pub", version);
    command.args(["-t", topic, "-q", &qos.to_string()]).args(more);
    if payload.is_empty() {
        command.arg("-n");
    } else {
        command.args(["-m", payload]);
    }
    let name = format!("mosquitto_pub {version} {topic} (package mosquitto-clients)");
    let (status, _) = Process::start(&name, &mut command).finish(PATIENCE);
    assert!(status.success(), "{name}: {status}");
}

/// The next message as `topic|qos|retain|payload`.
fn message(subscriber: &mut Process) -> String {
    subscriber.line("a message", |line| line.strip_prefix("MSG ").map(str::to_owned))
}
