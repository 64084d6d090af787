//! Producers that write to every topic, a persistent consumer for each topic: how tails and
//! throughput depend on the runtime, without and with a sync of the disk before acknowledgements.

use super::Args;
use crate::cli::LoadArgs;
use crate::compare::Comparison;
use crate::compare::columns::asymmetries;
use crate::compare::series::{Doing, Planned, Said, Work, measure};
use crate::payload::Sizes;
use crate::result::{
    BROKER_CPU, CPU_PER_MESSAGE, DELIVERY, LATENESS_P99, PER_CPU_SECOND, PER_SECOND, PER_SYNC,
};
use crate::scenario::stream::{Grid, PAYLOAD_PER_SECOND};

/// (producers and topics, what an acknowledgement promises, for people).
const CASES: [(u32, &str, &str); 4] =
    [(8, "os", "8x8"), (16, "os", "16x16"), (32, "os", "32x32"), (16, "disk", "16x16 with fsync")];
const PAYLOAD_BYTES: usize = 1_000;
/// At full speed, messages under way for each producer and topic.
const WINDOW: u32 = 4;
/// Seconds of silence after which what has not come is lost.
const QUIET_SECONDS: f64 = 10.0;

/// The four columns.
pub fn columns(args: &Args, columns: &[Planned], rounds: u32) -> Result<Comparison, String> {
    let rate = args.rate;
    let mut cases = Vec::new();
    for (side, level, label) in CASES {
        cases.push(Doing {
            label: format!("{label}, full speed"),
            figures: vec![PAYLOAD_PER_SECOND, PER_SECOND, PER_CPU_SECOND, PER_SYNC],
            ..doing(side, level, None, args.seconds / 2.0)
        });
        cases.push(Doing {
            label: format!("{label}, {rate:.0}/s"),
            figures: vec![CPU_PER_MESSAGE, BROKER_CPU, PER_SYNC, LATENESS_P99],
            histogram: Some(DELIVERY),
            ..doing(side, level, Some(rate), args.seconds)
        });
    }
    let said = Said {
        title: "Streams on the four columns".to_owned(),
        load: format!(
            "Every producer writes to every topic in turn; each topic has a consumer with a durable \
             session. QoS 1, {PAYLOAD_BYTES} bytes; at full speed {WINDOW} under way for each \
             producer and topic for {:.1} s, at the fixed rate {:.1} s. 1 shard, {}.",
            args.seconds / 2.0,
            args.seconds,
            args.brokers.text()
        ),
        notes: [
            "Without fsync (durability.level = os) messages are written to the journal and not \
             synced before they are acknowledged; with it (disk) they are."
                .to_owned(),
        ]
        .into_iter()
        .chain(asymmetries())
        .collect(),
        aa: false,
    };
    measure(said, columns, &cases, rounds)
}

fn doing(side: u32, level: &'static str, rate: Option<f64>, seconds: f64) -> Doing {
    let load = LoadArgs {
        qos: Some(1),
        size: Sizes::of_one(PAYLOAD_BYTES),
        rate,
        window: WINDOW,
        unacked: u16::MAX,
        seconds,
        warm_up: None,
        quiet: QUIET_SECONDS,
        stop_ms: None,
    };
    let grid = Grid { producers: side, topics: side, expiry_s: 3_600 };
    Doing {
        label: String::new(),
        settings: vec![("durability.level", level)],
        load: Work::Stream { grid, load },
        figures: Vec::new(),
        histogram: None,
        steps: false,
    }
}
