//! Publishers and subscribers in pairs, fan-out, fan-in and shared groups.

use serde::Serialize;

use super::{Sessions, new_run, run_traffic};
use crate::cli::{Common, LoadArgs};
use crate::client::Target;
use crate::plan::Plan;
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
}

impl Shape {
    /// The plan of a run, with clients and topics of its own.
    pub fn plan(&self, run: u32) -> Result<Plan, String> {
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
        match (self.publishers, self.subscribers) {
            (None, None) => format!("{} pairs", self.pairs),
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
    measure(&mut run, &target, args.common.pid, &args.shape, &args.load)?;
    Ok(run)
}

/// Puts the load on a broker and writes down what came out.
pub fn measure(
    run: &mut Run,
    target: &Target,
    broker: Option<u32>,
    shape: &Shape,
    load: &LoadArgs,
) -> Result<(), String> {
    let number = new_run();
    let plan = shape.plan(number)?;
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
        let shape =
            |publishers, subscribers, shared| Shape { pairs: 4, publishers, subscribers, shared };
        let counts = |shape: Shape| shape.plan(1).map(|it| (it.publishers, it.members.len()));
        assert_eq!(counts(shape(None, None, false)), Ok((4, 4)));
        assert_eq!(counts(shape(None, Some(9), false)), Ok((1, 9)));
        assert_eq!(counts(shape(Some(9), None, false)), Ok((9, 1)));
        assert_eq!(counts(shape(Some(9), Some(0), false)), Ok((9, 0)));
        assert_eq!(counts(shape(Some(2), Some(3), true)), Ok((2, 3)));
        assert!(counts(shape(None, None, true)).is_err());
        assert!(counts(shape(Some(2), Some(0), true)).is_err());
        assert_eq!(
            shape(Some(2), Some(3), true).text(),
            "2 publisher(s) to 3 subscriber(s) that share"
        );
    }
}
