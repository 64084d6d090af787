//! The step clocks: in the table, among the metrics, and in the log.

use crate::Case;
use crate::broker::{Broker, Options, temporary_folder};
use crate::column::Column;
use crate::raw::{Raw, resume};
use crate::wait::{PATIENCE, until};

pub const CASES: &[Case] = &[
    Case::smoke("steps::all_ten_are_measured", all_ten),
    Case::new("steps::slow_lines_say_how_many_are_missing", slow_lines),
    Case::new("steps::switched_off_nothing_is_measured", switched_off),
];

const STEPS: [&str; 10] = [
    "connect.get_cluster",
    "connect.check_limit",
    "connect.login_check",
    "connect.build_conn",
    "connect.session_process",
    "connect.add_cache",
    "connect.st_report",
    "apply.route",
    "apply.membership",
    "apply.set_last_applied",
];

fn count(table: &str, step: &str) -> u64 {
    let row = table.lines().find(|line| line.starts_with(step));
    let row = row.unwrap_or_else(|| panic!("no {step} in\n{table}"));
    let count = row.split_whitespace().nth(1).and_then(|count| count.parse().ok());
    count.unwrap_or_else(|| panic!("no count in {row}"))
}

fn all_ten(column: &Column) {
    let folder = temporary_folder();
    let environment =
        &[("GEARBOX_STEPS__SLOW_CONNECT_MS", "0"), ("GEARBOX_STEPS__SLOW_APPLY_MS", "0")];
    let options = Options { environment, data_dir: Some(folder.path()), ..Options::default() };
    let broker = Broker::start_with(column, &options);
    // On both shards.
    let clients: Vec<Raw> =
        (0..8).map(|at| resume(broker.mqtt, &format!("step-{at}"), false, 60, None).0).collect();
    let table = broker.ctl(column, &["steps"]);
    for step in &STEPS[..7] {
        assert_eq!(count(&table, step), 8, "{step} in\n{table}");
    }
    for step in &STEPS[7..] {
        assert!(count(&table, step) > 0, "{step} in\n{table}");
    }
    assert_eq!(table.lines().count(), 2 + STEPS.len(), "{table}");
    let (_, metrics) = broker.get("/metrics");
    for line in [
        "gearbox_connect_step_seconds_count{step=\"session_process\",time=\"waiting\"} 8",
        "gearbox_connect_step_seconds_bucket{step=\"st_report\",time=\"running\",le=\"+Inf\"} 8",
        "# TYPE gearbox_apply_step_seconds histogram",
    ] {
        assert!(metrics.lines().any(|other| other == line), "no {line} in\n{metrics}");
    }
    // The commit of a session is what its CONNECT waits for.
    let waits = "gearbox_connect_step_seconds_sum{step=\"session_process\",time=\"waiting\"} ";
    let waited = metrics.lines().find_map(|line| line.strip_prefix(waits)?.parse::<f64>().ok());
    assert!(waited.is_some_and(|waited_s| waited_s > 0.0), "{metrics}");
    until("a line of each slow request", || {
        let connect = ["slow CONNECT", "client=\"step-", "get_cluster=ran", "st_report=ran"];
        let apply = ["slow apply", "route=ran", "set_last_applied=ran"];
        (broker.has_logged(&connect) && broker.has_logged(&apply)).then_some(())
    });
    drop(clients);
}

fn slow_lines(column: &Column) {
    let environment = &[("GEARBOX_STEPS__SLOW_CONNECT_MS", "0")];
    let broker = Broker::start_with(column, &Options { environment, ..Options::default() });
    // One line per second: those in between are counted.
    until("a line that tells of those left out", || {
        for at in 0..5 {
            Raw::connect(broker.mqtt, 4, &format!("slow-{at}"), 60);
        }
        let told = |digit: u8| broker.has_logged(&["slow CONNECT", &format!("left_out={digit}")]);
        (1..=9).any(told).then_some(())
    });
}

fn switched_off(column: &Column) {
    let environment =
        &[("GEARBOX_STEPS__SLOW_CONNECT_MS", "0"), ("GEARBOX_STEPS__ENABLED", "false")];
    let mut broker = Broker::start_with(column, &Options { environment, ..Options::default() });
    let client = Raw::connect(broker.mqtt, 5, "unmeasured", 60);
    assert_eq!(broker.ctl(column, &["steps"]), "steps are not measured: steps.enabled is false\n");
    assert!(!broker.get("/metrics").1.contains("step_seconds"));
    broker.terminate();
    assert!(broker.exit_status(PATIENCE).success());
    until("the last line of the log", || broker.has_logged(&["stopped"]).then_some(()));
    assert!(!broker.has_logged(&["slow CONNECT"]));
    drop(client);
}
