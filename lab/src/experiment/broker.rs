//! The real broker beside the null broker: the same number of bytes on as many pairs of connections.

use std::path::Path;

use bench::{BrokerStart, PER_CPU_SECOND, PER_SECOND, Run};

use super::{RUN_LIMIT, data, process};
use crate::backend::Column;
use crate::echo;
use crate::measure::Name;

/// As `echo` has by default: connections (here pairs of them), and messages under way on each.
const PAIRS: u32 = 50;
const WINDOW: u32 = 20;
const SECONDS: &str = "0.8";
const BROKER_CPU: &str = "0";
const LOAD_CPU: &str = "1";
const VARIANT: &str = "broker, MQTT at QoS 0, publisher to subscriber";

/// The broker of a column.
pub fn start(program: &Path, column: Column) -> BrokerStart {
    let (runtime, scheduler) = column.names();
    let (program, cpus) = (program.to_owned(), BROKER_CPU.to_owned());
    BrokerStart { program, runtime, scheduler, shards: 1, cpus, ..BrokerStart::default() }
}

/// One run of the load generator on a fresh broker, as figures of the echo.
pub fn run(start: &BrokerStart, bench: &Path, result: &Path) -> Result<Run, String> {
    let broker = start.start()?;
    let mut command = vec![bench.display().to_string()];
    command.extend(["pubsub", "--cpu", LOAD_CPU, "--seconds", SECONDS].map(str::to_owned));
    for (flag, value) in [
        ("--address", broker.address.to_string()),
        ("--pid", broker.pid().to_string()),
        ("--pairs", PAIRS.to_string()),
        ("--window", WINDOW.to_string()),
        ("--json", result.display().to_string()),
    ] {
        command.extend([flag.to_owned(), value]);
    }
    process::run(&command, RUN_LIMIT)?;
    let measured = data::take_run(result)?;
    let mut run = Run::new("echo", &measured.label, &());
    let situation = echo::situation(PAIRS, WINDOW);
    if let Some(per_cpu_second) = measured.value(PER_CPU_SECOND) {
        run.figure(&Name::text(&situation, VARIANT, echo::PER_CPU_SECOND), per_cpu_second, "/s");
        run.figure(
            &Name::text(&situation, VARIANT, echo::CPU_PER_MESSAGE),
            1e9 / per_cpu_second,
            "ns",
        );
    }
    if let Some(per_second) = measured.value(PER_SECOND) {
        run.figure(&Name::text(&situation, VARIANT, echo::MESSAGES), per_second, "/s");
    }
    Ok(run)
}
