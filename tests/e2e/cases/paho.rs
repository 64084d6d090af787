//! paho-mqtt, the Python client: the cases are in `tests/clients/paho_cases.py`.

use crate::Case;
use crate::broker::Broker;
use crate::column::Column;
use crate::process::Process;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub const CASES: &[Case] = &[
    Case::new("paho_v4::qos", |column| paho(column, "qos", 4)),
    Case::new("paho_v5::qos", |column| paho(column, "qos", 5)),
    Case::new("paho_v4::retained", |column| paho(column, "retained", 4)),
    Case::new("paho_v5::retained", |column| paho(column, "retained", 5)),
    Case::new("paho_v4::will", |column| paho(column, "will", 4)),
    Case::new("paho_v5::will", |column| paho(column, "will", 5)),
    Case::new("paho_v4::takeover", |column| paho(column, "takeover", 4)),
    Case::new("paho_v5::takeover", |column| paho(column, "takeover", 5)),
    Case::new("paho_v4::session_resume", |column| paho(column, "session_resume", 4)),
    Case::new("paho_v5::session_resume", |column| paho(column, "session_resume", 5)),
    Case::new("paho_v4::one_mebibyte", |column| paho(column, "one_mebibyte", 4)),
    Case::new("paho_v5::one_mebibyte", |column| paho(column, "one_mebibyte", 5)),
    Case::smoke("paho_v5::properties", |column| paho(column, "properties", 5)),
];

/// The interpreter that has `paho.mqtt`.
pub fn python() -> OsString {
    std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into())
}

fn paho(column: &Column, case: &str, version: u8) {
    let broker = Broker::start(column);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/paho_cases.py");
    let mut command = Command::new(python());
    command.arg("-B").arg(script).args([
        "--port",
        &broker.mqtt.port().to_string(),
        "--mqtt",
        &version.to_string(),
        case,
    ]);
    let name = format!("paho {case} v{version} (PYTHON must import paho.mqtt 2)");
    let mut process = Process::start(&name, &mut command);
    let (status, lines) = process.finish(Duration::from_secs(90));
    let passed = lines.last().is_some_and(|line| line == "passed");
    assert!(status.success() && passed, "{name}: {status}");
}
