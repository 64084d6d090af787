//! From a seed to a plan. Each seed has its own taste: some actions and faults come often in it, some
//! never, so that many seeds together reach corners that an even mixture would not.

use std::fmt;
use std::str::FromStr;

use mqtt::wire::{QoS, Version};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::{Act, Action, ClientPlan, Fault, Level, Life, Plan, Setup, Step, Way};
use crate::history::{Content, Stop};

/// What plans are to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Nodes, 1 or more.
    pub nodes: usize,
    /// Clients; 0 for 2 to 6 by the seed.
    pub clients: usize,
    /// Which faults may come.
    pub faults: Faults,
}

/// A set of kinds of faults, as [`Fault::kind`] names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<&'static str>);

/// All kinds.
pub const KINDS: [&str; 11] = [
    "stop",
    "kill",
    "power",
    "partition",
    "one-way",
    "reset",
    "slow-network",
    "slow-disk",
    "full-disk",
    "disk-error",
    "clock",
];

impl Faults {
    /// Every kind.
    pub fn all() -> Self {
        Self(KINDS.to_vec())
    }

    /// None at all.
    pub fn none() -> Self {
        Self(Vec::new())
    }
}

impl FromStr for Faults {
    type Err = String;

    /// `all`, `none`, or kinds with commas between them.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::all()),
            "none" => return Ok(Self::none()),
            _ => {}
        }
        let kind = |name: &str| {
            KINDS.iter().copied().find(|kind| *kind == name).ok_or_else(|| {
                format!("'{name}' is no kind of fault: all, none, {}", KINDS.join(", "))
            })
        };
        text.split(',').map(kind).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&self.0.join(",")),
        }
    }
}

type Rng = Xoshiro256PlusPlus;

/// The plan of a seed: the same for the same seed and options.
pub fn generate(seed: u64, options: &Options) -> Plan {
    let mut rng = Rng::seed_from_u64(seed);
    let rng = &mut rng;
    let setup = setup(rng);
    let count = match options.clients {
        0 => rng.random_range(2..=6),
        count => count,
    };
    let clients: Vec<_> = (0..count).map(|number| client(rng, number)).collect();
    let length_ms = rng.random_range(10_000..60_000);
    let taste = Taste::new(rng);
    let mut acts = beginnings(rng, &taste, &clients);
    let steps = rng.random_range(20..200);
    for _ in 0..steps {
        let at_ms = rng.random_range(500..length_ms);
        let who = rng.random_range(0..count);
        acts.push((at_ms, Act::Client(who, taste.action(rng, &clients, who))));
    }
    // Talkers speak in bursts, without waiting for answers.
    for _ in 0..rng.random_range(0..4) {
        let (at_ms, who) = (rng.random_range(500..length_ms), rng.random_range(0..count));
        let content = taste.content(rng);
        for at in 0..rng.random_range(5..40) {
            let action = Action::Publish(content.clone(), taste.size(rng));
            acts.push((at_ms + at / 4, Act::Client(who, action)));
        }
    }
    if !options.faults.0.is_empty() {
        for _ in 0..rng.random_range(0..8) {
            let at_ms = rng.random_range(1_000..length_ms);
            let kind = options.faults.0[rng.random_range(0..options.faults.0.len())];
            acts.push((at_ms, Act::Fault(fault(rng, kind, options.nodes))));
        }
    }
    acts.sort_by_key(|(at_ms, _)| *at_ms);
    let steps = acts.into_iter().zip(1..).map(|((at_ms, act), number)| Step { number, at_ms, act });
    let steps = steps.collect();
    Plan { seed, nodes: options.nodes, setup, clients, steps, length_ms }
}

fn setup(rng: &mut Rng) -> Setup {
    let small_queues = rng.random_bool(0.15);
    Setup {
        shards: rng.random_range(1..=3),
        level: match rng.random_range(0..10) {
            0 => Level::None,
            1 => Level::Os,
            _ => Level::Disk,
        },
        max_queued_messages: if small_queues { rng.random_range(1..20) } else { 100_000 },
        small_queues,
        max_inflight: *pick(rng, &[1, 2, 5, 20, 1_024]),
        read_ahead_messages: *pick(rng, &[1, 3, 20, 2_048]),
        receive_maximum: *pick(rng, &[2, 10, 1_024]),
        max_mailbox_messages: *pick(rng, &[16, 64, 8_192]),
    }
}

fn client(rng: &mut Rng, number: usize) -> ClientPlan {
    let version = *pick(rng, &[Version::V3_1_1, Version::V5, Version::V5]);
    let life = match rng.random_range(0..10) {
        0..2 => Life::Connection,
        2 if version == Version::V5 => Life::Seconds(rng.random_range(2..12)),
        _ => Life::Ever,
    };
    let qos = any_qos(rng);
    let delay_s = match version {
        Version::V5 if rng.random_bool(0.4) => rng.random_range(1..8),
        _ => 0,
    };
    let will =
        (rng.random_bool(0.5)).then(|| (format!("w/{number}"), qos, rng.random_bool(0.2), delay_s));
    ClientPlan {
        name: format!("client-{number}-{}", rng.random_range(0..1_000)),
        version,
        life,
        keep_alive_s: *pick(rng, &[0, 2, 5, 30]),
        receive_maximum: *pick(rng, &[1, 2, 10, 65_535]),
        will,
    }
}

/// Most clients come and subscribe at the start.
fn beginnings(rng: &mut Rng, taste: &Taste, clients: &[ClientPlan]) -> Vec<(u64, Act)> {
    let mut acts = Vec::new();
    for who in 0..clients.len() {
        acts.push((rng.random_range(0..200), Act::Client(who, Action::Connect)));
        for _ in 0..rng.random_range(0..3) {
            let action = Action::Subscribe(taste.filter(rng, clients.len()), any_qos(rng));
            acts.push((rng.random_range(200..800), Act::Client(who, action)));
        }
    }
    acts
}

/// How often each thing comes.
struct Taste {
    actions: [u32; 11],
    qos: [u32; 3],
    retain: f64,
    empty: f64,
    expiry: f64,
    large: f64,
}

impl Taste {
    fn new(rng: &mut Rng) -> Self {
        // Publishing is what all the rest is for.
        let usual = [3, 2, 1, 2, 2, 3, 5, 2, 30, 2, 2];
        let actions = usual.map(|weight| match rng.random_range(0..4) {
            0 => 0,
            1 => weight,
            2 => weight * 2,
            _ => weight * 4,
        });
        let mut qos = [0, 0, 0];
        qos.fill_with(|| rng.random_range(0..4));
        qos[rng.random_range(1..3)] += 2;
        Self {
            actions,
            qos,
            retain: *pick(rng, &[0.0, 0.1, 0.5]),
            empty: *pick(rng, &[0.1, 0.3]),
            expiry: *pick(rng, &[0.0, 0.0, 0.3]),
            large: *pick(rng, &[0.0, 0.0, 0.1]),
        }
    }

    fn action(&self, rng: &mut Rng, clients: &[ClientPlan], who: usize) -> Action {
        match weighted(rng, &self.actions) {
            0 => Action::Connect,
            1 => Action::Takeover,
            2 => Action::Fresh,
            3 => Action::Leave(clients[who].version == Version::V5 && rng.random_bool(0.3)),
            4 => Action::Vanish,
            5 => Action::Reconnect,
            6 => Action::Subscribe(self.filter(rng, clients.len()), any_qos(rng)),
            7 => Action::Unsubscribe(self.filter(rng, clients.len())),
            9 => Action::HoldAnswers(rng.random_range(100..5_000)),
            10 => Action::ReadNothing(rng.random_range(100..5_000)),
            _ => Action::Publish(self.content(rng), self.size(rng)),
        }
    }

    fn content(&self, rng: &mut Rng) -> Content {
        let retain = rng.random_bool(self.retain);
        let qos = match weighted(rng, &self.qos) {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        };
        Content {
            topic: format!("{}/{}", if retain { "r" } else { "t" }, rng.random_range(0..3)),
            qos,
            retain,
            empty: retain && rng.random_bool(self.empty),
            expiry_s: rng.random_bool(self.expiry).then(|| rng.random_range(1..10)),
        }
    }

    fn size(&self, rng: &mut Rng) -> usize {
        match rng.random_bool(self.large) {
            true => rng.random_range(1_000..60_000),
            false => rng.random_range(0..100),
        }
    }

    fn filter(&self, rng: &mut Rng, clients: usize) -> String {
        match rng.random_range(0..8) {
            0 | 1 => "t/#".into(),
            2 => "t/+".into(),
            3 => "r/#".into(),
            4 => format!("r/{}", rng.random_range(0..3)),
            5 => "w/#".into(),
            6 => format!("w/{}", rng.random_range(0..clients)),
            _ => format!("t/{}", rng.random_range(0..3)),
        }
    }
}

fn fault(rng: &mut Rng, kind: &str, nodes: usize) -> Fault {
    let node = rng.random_range(0..nodes);
    let down_ms = rng.random_range(10..4_000);
    let long_ms = rng.random_range(50..10_000);
    match kind {
        "stop" => Fault::Stop(node, Stop::Asked, down_ms),
        "kill" => Fault::Stop(node, Stop::Killed, down_ms),
        "power" => Fault::Stop(node, Stop::PowerLost, down_ms),
        "partition" => Fault::Partition(node, Way::Both, long_ms),
        "one-way" => {
            let way = *pick(rng, &[Way::ToNode, Way::FromNode]);
            Fault::Partition(node, way, long_ms)
        }
        "reset" => Fault::Reset(node),
        "slow-network" => Fault::SlowNetwork(rng.random_range(10..2_000), long_ms),
        "slow-disk" => Fault::SlowDisk(node, rng.random_range(5..500), long_ms),
        "full-disk" => Fault::FullDisk(node, long_ms),
        "disk-error" => Fault::DiskError(node, rng.random_range(0..20), down_ms),
        _ => Fault::ClockJump(node, rng.random_range(-3_600_000..3_600_000)),
    }
}

fn any_qos(rng: &mut Rng) -> QoS {
    *pick(rng, &[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::ExactlyOnce])
}

fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

/// The place of one of `weights`, by weight; the last place when all are zero.
fn weighted(rng: &mut Rng, weights: &[u32]) -> usize {
    let sum: u32 = weights.iter().sum();
    let mut left = rng.random_range(0..sum.max(1));
    for (at, weight) in weights.iter().enumerate() {
        if left < *weight {
            return at;
        }
        left -= weight;
    }
    weights.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Keep;

    fn options() -> Options {
        Options { nodes: 1, clients: 0, faults: Faults::all() }
    }

    #[test]
    fn a_seed_has_one_plan() {
        for seed in 0..50 {
            let plan = generate(seed, &options());
            assert_eq!(plan, generate(seed, &options()));
            assert!(plan.steps.is_sorted_by_key(|step| step.at_ms));
            assert!(plan.steps.is_sorted_by(|a, b| a.number < b.number));
        }
        assert_ne!(generate(1, &options()), generate(2, &options()));
    }

    #[test]
    fn every_fault_comes_and_none_unasked() {
        let kinds = |faults: &str| {
            let faults = faults.parse().expect("kinds");
            let options = Options { faults, ..options() };
            let steps = (0..200).flat_map(|seed| generate(seed, &options).steps);
            let mut kinds: Vec<_> = steps
                .filter_map(|step| match step.act {
                    Act::Fault(fault) => Some(fault.kind()),
                    Act::Client(..) => None,
                })
                .collect();
            kinds.sort_unstable();
            kinds.dedup();
            kinds
        };
        let mut all = KINDS.to_vec();
        all.sort_unstable();
        assert_eq!(kinds("all"), all);
        assert_eq!(kinds("none"), [""; 0]);
        assert_eq!(kinds("kill,reset"), ["kill", "reset"]);
        assert!("kill,flood".parse::<Faults>().is_err());
    }

    #[test]
    fn a_part_of_a_plan_keeps_its_numbers() {
        let plan = generate(7, &options());
        let keep: Keep = "2-4,9".parse().expect("ranges");
        let numbers: Vec<_> = plan.keeping(&keep).steps.iter().map(|step| step.number).collect();
        assert_eq!(numbers, [2, 3, 4, 9]);
    }
}
