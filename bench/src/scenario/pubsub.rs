//! Publishers and subscribers in pairs, fan-out, fan-in and shared groups.

use clap::ValueEnum;
use serde::Serialize;

use super::{Sessions, new_run, run_traffic};
use crate::cli::{Common, LoadArgs};
use crate::client::Target;
use crate::plan::{Placement, Plan};
use crate::process::Watched;
use crate::result::Run;

/// Arguments of `pubsub`.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    #[command(flatten)]
    #[serde(flatten)]
    pub shape: Shape,
    /// Shards of the broker, for --placement.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub shards: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,
}

/// Who publishes to whom.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Shape {
    /// Pairs of a publisher and a subscriber, each with a topic of its own.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pairs: u32,
    /// Instead of pairs: publishers to one topic (fan-in when many, with one subscriber).
    #[arg(long, conflicts_with = "pairs", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub publishers: Option<u32>,
    /// Instead of pairs: subscribers to that topic (fan-out when many, with one publisher).
    #[arg(long, conflicts_with = "pairs", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub subscribers: Option<u32>,
    /// The subscribers share the messages: each goes to one of them.
    #[arg(long)]
    pub shared: bool,
    /// Where Gearbox is to keep the two clients of each pair: their names are chosen so that they
    /// belong to the same shard, or to different ones. Needs its number of shards.
    #[arg(long, value_enum, default_value_t)]
    pub placement: PlacementName,
}

/// Where the clients of a pair belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementName {
    /// Wherever their names put them.
    #[default]
    Any,
    /// To the same shard: no message crosses.
    Same,
    /// To different shards: each message crosses once.
    Apart,
}

impl Shape {
    /// The plan of a run, with clients and topics of its own, against a broker of so many shards.
    pub fn plan(&self, run: u32, shards: u32) -> Result<Plan, String> {
        let plan = self.unplaced(run)?;
        let apart = match self.placement {
            PlacementName::Any => return Ok(plan),
            _ if self.publishers.is_some() || self.subscribers.is_some() => {
                return Err("--placement is about pairs".to_owned());
            }
            PlacementName::Same => false,
            PlacementName::Apart if shards < 2 => {
                return Err("apart is only where there are two shards: --shards".to_owned());
            }
            PlacementName::Apart => true,
        };
        Ok(Plan { placement: Some(Placement { shards, apart }), ..plan })
    }

    fn unplaced(&self, run: u32) -> Result<Plan, String> {
        let (publishers, subscribers) = match (self.publishers, self.subscribers) {
            (None, None) if self.shared => {
                return Err("--shared needs --publishers and --subscribers".to_owned());
            }
            (None, None) => return Ok(Plan::pairs(run, self.pairs as usize)),
            (publishers, subscribers) => (publishers.unwrap_or(1), subscribers.unwrap_or(1)),
        };
        let (publishers, subscribers) = (publishers as usize, subscribers as usize);
        match (self.shared, subscribers) {
            (true, 0) => Err("--shared needs subscribers".to_owned()),
            (true, _) => Ok(Plan::shared(run, publishers, subscribers)),
            (false, _) => Ok(Plan::all_to_all(run, publishers, subscribers)),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let shared = if self.shared { " that share" } else { "" };
        let placed = match self.placement {
            PlacementName::Any => "",
            PlacementName::Same => ", publisher and subscriber on the same shard",
            PlacementName::Apart => ", publisher and subscriber on different shards",
        };
        match (self.publishers, self.subscribers) {
            (None, None) => format!("{} pairs{placed}", self.pairs),
            (publishers, subscribers) => format!(
                "{} publisher(s) to {} subscriber(s){shared}",
                publishers.unwrap_or(1),
                subscribers.unwrap_or(1)
            ),
        }
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<Run, String> {
    let target = args.common.prepare()?;
    let mut run = Run::new("pubsub", &args.common.label, args);
    measure(&mut run, &target, args.common.watched()?, (&args.shape, args.shards), &args.load)?;
    Ok(run)
}

/// Puts the load on a broker and writes down what came out.
pub fn measure(
    run: &mut Run,
    target: &Target,
    broker: Option<Watched>,
    (shape, shards): (&Shape, u32),
    load: &LoadArgs,
) -> Result<(), String> {
    let number = new_run();
    let plan = shape.plan(number, shards)?;
    let load = load.load(number, 0);
    if plan.copies(0) == 0 && !load.open_loop() && load.qos == mqtt::wire::QoS::AtMostOnce {
        return Err("without subscribers and acknowledgements only --rate makes a load".to_owned());
    }
    let outcome = run_traffic(target, &plan, &load, broker, Sessions::Transient)?;
    run.outcome(&outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let placement = PlacementName::Any;
        let shape = |publishers, subscribers, shared| Shape {
            pairs: 4,
            publishers,
            subscribers,
            shared,
            placement,
        };
        let counts = |shape: Shape| shape.plan(1, 1).map(|it| (it.publishers, it.members.len()));
        assert_eq!(counts(shape(None, None, false)), Ok((4, 4)));
        assert_eq!(counts(shape(None, Some(9), false)), Ok((1, 9)));
        assert_eq!(counts(shape(Some(9), None, false)), Ok((9, 1)));
        assert_eq!(counts(shape(Some(9), Some(0), false)), Ok((9, 0)));
        assert_eq!(counts(shape(Some(2), Some(3), true)), Ok((2, 3)));
        assert!(counts(shape(None, None, true)).is_err());
        assert!(counts(shape(Some(2), Some(0), true)).is_err());
        let apart = |publishers, shards| {
            let placement = PlacementName::Apart;
            let plan = Shape { placement, ..shape(publishers, None, false) }.plan(1, shards)?;
            Ok::<_, String>(plan.placement.is_some())
        };
        assert_eq!(apart(None, 2), Ok(true));
        assert!(apart(None, 1).is_err() && apart(Some(2), 2).is_err());
        assert_eq!(
            shape(Some(2), Some(3), true).text(),
            "2 publisher(s) to 3 subscriber(s) that share"
        );
    }
}
