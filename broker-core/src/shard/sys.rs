//! `$SYS/broker/...`: what the broker tells MQTT clients about itself.
//!
//! The names are those that operators know from other brokers where they fit. The first shard looks
//! at the counters of all shards from its tick and publishes what has changed, retained, at QoS 0,
//! on the way that every message takes: a late subscriber gets the last values at once, and without
//! subscribers it costs a few entries of the retained store. What is said is a function of the
//! counters and the time.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqtt::session::Draft;
use mqtt::wire::QoS;

use super::Shard;
use crate::stats::{ShardStats, Snapshot};

const PREFIX: &str = "$SYS/broker/";

/// Says what changed, every so often.
#[derive(Debug)]
pub struct Sys {
    interval_ms: u64,
    shards: Arc<[Arc<ShardStats>]>,
    started_ms: u64,
    next_ms: u64,
    loads: Loads,
    /// Most clients connected at one time, as far as ticks saw them.
    most_connected: u64,
    /// The value last published, by topic below `$SYS/broker/`.
    published: BTreeMap<String, String>,
}

/// Topics below `$SYS/broker/` with their values.
type Report = Vec<(String, String)>;

/// How fast the counters grow.
#[derive(Debug)]
struct Loads {
    at_ms: u64,
    averages: [Load; LOADS.len()],
}

/// How much one counter grows per minute, averaged.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    last: u64,
    /// By window, see [`WINDOWS`].
    per_minute: [f64; WINDOWS.len()],
}

/// Windows of the averages, in minutes.
const WINDOWS: [(&str, f64); 3] = [("1min", 1.0), ("5min", 5.0), ("15min", 15.0)];

type Count = fn(&Snapshot) -> u64;

/// What averages are kept of: the topic below `load/`, and the counter.
const LOADS: [(&str, Count); 9] = [
    ("messages/received", packets_received),
    ("messages/sent", packets_sent),
    ("publish/received", |all| all.messages_received),
    ("publish/sent", |all| all.messages_sent),
    ("publish/dropped", dropped),
    ("bytes/received", |all| all.bytes_received),
    ("bytes/sent", |all| all.bytes_sent),
    ("sockets", |all| all.connections_accepted),
    ("connections", |all| all.connects_accepted),
];

impl Sys {
    /// Looks at the counters of `shards` every `interval_s` seconds, from `now_ms` on; `None` for
    /// an interval of 0.
    pub fn new(interval_s: u32, shards: Arc<[Arc<ShardStats>]>, now_ms: u64) -> Option<Self> {
        (interval_s > 0).then(|| Self {
            interval_ms: u64::from(interval_s) * 1000,
            shards,
            started_ms: now_ms,
            next_ms: now_ms,
            loads: Loads { at_ms: now_ms, averages: Default::default() },
            most_connected: 0,
            published: BTreeMap::new(),
        })
    }

    /// Whether it is time to look again; to be asked at every tick.
    fn is_due(&mut self, now_ms: u64) -> bool {
        let connected = self.shards.iter().map(|shard| shard.clients_connected.get()).sum();
        self.most_connected = self.most_connected.max(connected);
        now_ms >= self.next_ms
    }

    /// What is different from what the last call returned.
    fn changes(&mut self, now_ms: u64) -> Report {
        self.next_ms = now_ms + self.interval_ms;
        let shards: Vec<Snapshot> = self.shards.iter().map(|shard| shard.snapshot()).collect();
        let all = Snapshot::sum(&shards);
        self.loads.advance(&all, now_ms);
        let uptime_s = now_ms.saturating_sub(self.started_ms) / 1000;
        let mut report = Report::new();
        about_node(&mut report, &all, uptime_s, self.most_connected);
        about_slow_subscribers(&mut report, &all);
        about_shards(&mut report, &shards);
        self.loads.report(&mut report);
        report.retain(|(topic, value)| match self.published.get_mut(topic) {
            Some(known) if known == value => false,
            Some(known) => {
                known.clone_from(value);
                true
            }
            None => {
                self.published.insert(topic.clone(), value.clone());
                true
            }
        });
        report
    }
}

impl Shard {
    /// Lets this shard speak for the node; one shard of a node does.
    pub fn speak_for_node(&mut self, sys: Sys) {
        self.sys = Some(Box::new(sys));
    }

    /// Publishes what changed, when it is time.
    pub(super) fn publish_sys(&mut self, now_ms: u64) {
        let Some(mut sys) = self.sys.take() else { return };
        // Where mail of an earlier turn still waits, more of this kind can wait too.
        if sys.is_due(now_ms) && !self.draining && !self.is_congested() {
            let mut name = String::from(PREFIX);
            for (topic, value) in sys.changes(now_ms) {
                name.truncate(PREFIX.len());
                name.push_str(&topic);
                let draft = Draft {
                    topic: &name,
                    payload: value.as_bytes(),
                    owner: None,
                    properties: &[],
                    qos: QoS::AtMostOnce,
                    retain: true,
                    expires_at_ms: None,
                    origin: 0,
                };
                self.publish(&draft, now_ms);
            }
        }
        self.sys = Some(sys);
    }
}

fn about_node(report: &mut Report, all: &Snapshot, uptime_s: u64, most_connected: u64) {
    let mut say = |topic: &str, value: u64| report.push((topic.into(), value.to_string()));
    say("uptime", uptime_s);
    say("clients/connected", all.clients_connected);
    say("clients/disconnected", all.sessions.saturating_sub(all.clients_connected));
    say("clients/total", all.sessions);
    say("clients/maximum", most_connected);
    say("clients/expired", all.sessions_expired);
    say("messages/received", packets_received(all));
    say("messages/sent", packets_sent(all));
    say("messages/inflight", all.inflight_messages);
    say("messages/stored", stored(all));
    say("publish/messages/received", all.messages_received);
    say("publish/messages/sent", all.messages_sent);
    say("publish/messages/dropped", dropped(all));
    say("bytes/received", all.bytes_received);
    say("bytes/sent", all.bytes_sent);
    say("retained messages/count", all.retained_messages);
    say("store/messages/count", stored(all));
    say("store/messages/bytes", all.retained_bytes + all.queued_bytes);
    say("subscriptions/count", all.subscriptions);
    say("shared_subscriptions/count", all.shared_subscriptions);
    report.push(("version".into(), concat!("gearbox ", env!("CARGO_PKG_VERSION")).into()));
}

fn about_slow_subscribers(report: &mut Report, all: &Snapshot) {
    let mut say =
        |topic: &str, value: u64| report.push((format!("slow/{topic}"), value.to_string()));
    say("queues", all.slow_queues);
    say("outboxes", all.slow_outboxes);
    say("dropped_outbox", all.dropped_outbox);
    say("dropped_queue", all.dropped_queue);
    say("dropped_expired", all.dropped_expired);
    say("dropped_too_large", all.dropped_too_large);
    say("disconnected_queue_full", all.disconnected_queue_full);
}

fn about_shards(report: &mut Report, shards: &[Snapshot]) {
    for (id, shard) in shards.iter().enumerate() {
        let mut say = |topic: &str, value: u64| {
            report.push((format!("shards/{id}/{topic}"), value.to_string()));
        };
        say("connections", shard.connections);
        say("messages/received", packets_received(shard));
        say("messages/sent", packets_sent(shard));
        say("publish/messages/received", shard.messages_received);
        say("publish/messages/sent", shard.messages_sent);
    }
}

impl Loads {
    fn advance(&mut self, all: &Snapshot, now_ms: u64) {
        let minutes = now_ms.saturating_sub(self.at_ms) as f64 / 60_000.0;
        if minutes <= 0.0 {
            return;
        }
        self.at_ms = now_ms;
        for (load, (_, count)) in self.averages.iter_mut().zip(LOADS) {
            load.advance(count(all), minutes);
        }
    }

    fn report(&self, report: &mut Report) {
        for (load, (name, _)) in self.averages.iter().zip(LOADS) {
            for (value, (window, _)) in load.per_minute.iter().zip(WINDOWS) {
                report.push((format!("load/{name}/{window}"), format!("{value:.2}")));
            }
        }
    }
}

impl Load {
    /// The counter stands at `count` now, `minutes` after the last time.
    fn advance(&mut self, count: u64, minutes: f64) {
        let rate = count.wrapping_sub(self.last) as f64 / minutes;
        self.last = count;
        for (average, (_, window)) in self.per_minute.iter_mut().zip(WINDOWS) {
            // Exponential: what lies a window back counts 1/e of what is now, whatever the steps.
            *average = rate + (*average - rate) * (-minutes / window).exp();
        }
    }
}

fn packets_received(all: &Snapshot) -> u64 {
    all.messages_received + all.other_packets_received
}

fn packets_sent(all: &Snapshot) -> u64 {
    all.messages_sent + all.other_packets_sent
}

fn dropped(all: &Snapshot) -> u64 {
    all.dropped_outbox + all.dropped_queue + all.dropped_expired + all.dropped_too_large
}

/// Retained messages and those in queues; one that waits in two queues counts twice.
fn stored(all: &Snapshot) -> u64 {
    all.retained_messages + all.queued_messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sys(shards: usize) -> Sys {
        let shards: Arc<[_]> = (0..shards).map(|_| Arc::default()).collect();
        Sys::new(10, shards, 1_000).expect("an interval")
    }

    fn value<'a>(report: &'a Report, topic: &str) -> Option<&'a str> {
        report.iter().find(|(name, _)| name == topic).map(|(_, value)| value.as_str())
    }

    #[test]
    fn an_interval_of_zero_is_silence() {
        assert!(Sys::new(0, [].into(), 0).is_none());
    }

    #[test]
    fn everything_once_then_only_what_changed() {
        let mut sys = sys(2);
        assert!(sys.is_due(1_000));
        let first = sys.changes(1_000);
        let mut names: Vec<_> = first.iter().map(|(topic, _)| topic).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), first.len(), "every topic once");
        assert!(value(&first, "version").unwrap().starts_with("gearbox "));
        assert_eq!(value(&first, "load/connections/15min"), Some("0.00"));
        assert_eq!(value(&first, "shards/1/connections"), Some("0"));
        assert!(!sys.is_due(10_999));
        assert!(sys.is_due(11_000));
        assert_eq!(sys.changes(11_000), [("uptime".to_owned(), "10".to_owned())]);
    }

    #[test]
    fn shards_are_added_up_and_the_most_clients_are_remembered() {
        let mut sys = sys(2);
        let shards = sys.shards.clone();
        sys.changes(1_000);
        for (shard, clients) in shards.iter().zip([3, 4]) {
            shard.clients_connected.set(clients);
            shard.sessions.set(clients + 1);
            shard.messages_received.set(10);
            shard.other_packets_received.set(5);
            shard.dropped_queue.set(1);
        }
        assert!(!sys.is_due(2_000));
        shards[1].clients_connected.set(1);
        let report = sys.changes(11_000);
        for (topic, expected) in [
            ("clients/connected", "4"),
            ("clients/total", "9"),
            ("clients/disconnected", "5"),
            ("clients/maximum", "7"),
            ("messages/received", "30"),
            ("publish/messages/received", "20"),
            ("publish/messages/dropped", "2"),
            ("slow/dropped_queue", "2"),
            ("shards/1/messages/received", "15"),
        ] {
            assert_eq!(value(&report, topic), Some(expected), "{topic}");
        }
        assert_eq!(value(&report, "clients/expired"), None, "has not changed");
    }

    #[test]
    fn averages_follow_the_rate_whatever_the_steps() {
        // 60 per minute for one minute, in one step and in sixty.
        let (mut one, mut many) = (Load::default(), Load::default());
        one.advance(60, 1.0);
        for second in 1..=60 {
            many.advance(second, 1.0 / 60.0);
        }
        let expected = 60.0 * (1.0 - (-1.0f64).exp());
        for load in [one, many] {
            assert!((load.per_minute[0] - expected).abs() < 1e-6, "{load:?}");
            assert!(load.per_minute[1] < load.per_minute[0]);
            assert!(load.per_minute[2] < load.per_minute[1]);
        }
        // A counter that wraps around is no burst, and silence fades.
        let mut load = Load { last: u64::MAX, ..one };
        load.advance(59, 1.0);
        assert!(load.per_minute[0] < 60.0 && load.per_minute[0] > expected);
        load.advance(59, 60.0);
        assert!(load.per_minute[0] < 1e-6);
    }
}
