//! A thousand clients connect at once. Is it the scheduler, preemption, the store's writes, or the
//! number of awaits that makes single CONNECTs slow?

use super::Args;
use crate::broker::Start;
use crate::compare::Comparison;
use crate::compare::columns::asymmetries;
use crate::compare::series::{Doing, Planned, Said, Work, measure};
use crate::scenario::conn::{
    CPU_PER_CONNECT, FROM_DUE, PUSHES_PER_CONNECT, Storm, WAITS_PER_CONNECT, WHOLE_FLEET,
};

/// Storms in each run.
const STORMS: u32 = 10;
/// Seconds that the clients stay, and that they are away.
const HOLD: f64 = 0.05;
const PAUSE: f64 = 0.05;

/// The four columns, with sessions that end and with ones that stay.
pub fn columns(args: &Args, columns: &[Planned], rounds: u32) -> Result<Comparison, String> {
    let said = Said {
        title: "Connection storms on the four columns".to_owned(),
        load: load(args),
        notes: asymmetries(),
        aa: false,
    };
    let cases = [doing(args, "transient", false), doing(args, "durable", true)];
    measure(said, columns, &cases, rounds)
}

/// Variants of one column, durable sessions: their CONNECTs go through raft.
pub fn variants(args: &Args, one: &Planned, rounds: u32) -> Result<Comparison, String> {
    let said = Said {
        title: format!("Variants of {} in storms of durable sessions", one.label),
        load: load(args),
        notes: vec![
            "In the variants on all CPUs the broker and the generator share one of them."
                .to_owned(),
        ],
        aa: false,
    };
    let cases = [doing(args, "durable", true)];
    measure(said, &planned(&one.start), &cases, rounds)
}

fn planned(start: &Start) -> Vec<Planned> {
    let all_cpus = format!("0-{}", crate::machine::Machine::here().cpus.max(1) - 1);
    let set = |key, value| Start { settings: vec![(key, value)], ..start.clone() };
    let on_all = Start { shards: 2, cpus: all_cpus, ..start.clone() };
    let pinned = Start { settings: vec![("runtime.pin", "auto")], ..on_all.clone() };
    let variants = [
        ("as shipped", start.clone()),
        ("apply: an await per entry", set("meta.apply", "each")),
        ("last_applied by itself", set("meta.apply", "position-apart")),
        ("apply on a thread", set("meta.apply", "thread")),
        ("raft with the shard", set("meta.raft", "shared")),
        ("4 shards on one CPU", Start { shards: 4, ..start.clone() }),
        ("busy neighbour on the CPU", Start { neighbour: true, ..start.clone() }),
        ("2 shards on all CPUs", on_all),
        ("2 shards on all CPUs, pinned", pinned),
    ];
    let planned = |(label, start): (&str, Start)| Planned { label: label.to_owned(), start };
    variants.into_iter().map(planned).collect()
}

fn doing(args: &Args, label: &str, durable: bool) -> Doing {
    Doing {
        label: label.to_owned(),
        settings: Vec::new(),
        load: Work::Conn(Storm {
            clients: args.clients,
            rate: None,
            rounds: STORMS,
            durable,
            expiry_s: 3_600,
            hold: HOLD,
            pause: PAUSE,
        }),
        figures: vec![WHOLE_FLEET, CPU_PER_CONNECT, WAITS_PER_CONNECT, PUSHES_PER_CONNECT],
        histogram: Some(FROM_DUE),
        steps: true,
    }
}

fn load(args: &Args) -> String {
    format!(
        "{} clients connect at once, {STORMS} storms in each run, on an empty data directory; in \
         later storms durable sessions are resumed. 1 shard unless the column says \
         otherwise, {}.",
        args.clients,
        args.brokers.text()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_is_another_start() {
        let start = Start { shards: 1, cpus: "0".to_owned(), ..Start::default() };
        let all = planned(&start);
        assert_eq!(all[0].start, start, "the first is what the others are compared to");
        for (at, one) in all.iter().enumerate() {
            let same = all.iter().filter(|other| other.start == one.start);
            assert_eq!(same.count(), 1, "{}", one.label);
            assert!(all[..at].iter().all(|other| other.label != one.label));
        }
    }
}
