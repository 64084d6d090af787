//! The conformance kit under `tests/conformance`, against its list of known failures.

use crate::Case;
use crate::broker::{Broker, temporary_folder};
use crate::cases::paho::python;
use crate::column::Column;
use crate::process::Process;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub const CASES: &[Case] = &[Case::new("conformance::kit", kit)];

/// The kit takes a quarter of a minute by itself; several columns share the machine.
const LIMIT: Duration = Duration::from_secs(300);

fn kit(column: &Column) {
    let broker = Broker::start(column);
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let folder = temporary_folder();
    let report = folder.path().join("report.json");
    let mut command = Command::new(python());
    command
        .arg("-B") // leaves no compiled files in the source tree
        .arg(here.join("run.py"))
        .args(["--host", "127.0.0.1", "--port", &broker.mqtt.port().to_string()])
        // Silence must be judged with the same patience by a machine that runs other tests too.
        .args(["--quiet", "--time-scale", "3", "--jobs", "8", "--json"])
        .arg(&report);
    let mut run = Process::start(&format!("conformance kit [{}]", column.name), &mut command);
    let (status, lines) = run.finish(LIMIT);
    let summary = lines.last().cloned().unwrap_or_default();
    eprintln!("conformance [{}]: {summary}", column.name);
    assert!(matches!(status.code(), Some(0 | 1)), "the kit ended with {status}: {lines:#?}");

    let report: Value = std::fs::read_to_string(&report)
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()))
        .expect("the kit leaves a report");
    assert_eq!(report["broker_down"], Value::Bool(false), "the broker did not live through it");
    let results = report["results"].as_array().expect("a list of results");
    assert!(results.len() > 300, "only {} results", results.len());

    let known = known_failures(&here.join("known_failures.txt"), column.name);
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for result in results {
        let text = |key: &str| result[key].as_str().unwrap_or_default();
        let id = text("id");
        seen.insert(id.to_owned());
        match (text("verdict"), known.contains(id)) {
            ("fail", false) => wrong.push(format!("{id}: {} {}", text("reason"), text("spec"))),
            ("pass", true) => wrong.push(format!("{id} passes: take it off known_failures.txt")),
            _ => {}
        }
    }
    wrong.extend(known.difference(&seen).map(|id| format!("{id} is known to fail, but no case")));
    assert!(wrong.is_empty(), "{summary}\n{}", wrong.join("\n"));
}

/// Ids that may fail on `column`.
fn known_failures(path: &Path, column: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).expect("the list of known failures is there");
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let id = words.next()?;
            let here = words.next().is_none_or(|columns| columns.split(',').any(|c| c == column));
            here.then(|| id.to_owned())
        })
        .collect()
}
