//! `gearbox ctl`: what a running broker's admin address says and does.

use std::path::Path;
use std::time::Duration;

use admin::{BackupState, BackupStatus, StepReport};
use meta::status::Status;
use meta::steps::Quantiles;
use serde::Deserialize;

use crate::cli::{ClusterCommand, ConfigKeyCommand, CtlArgs, CtlCommand};

/// The broker answers within its own ten seconds, or says why not.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks at a backup; the broker ends one that takes more than an hour.
const BACKUP_PAUSE: Duration = Duration::from_millis(200);

/// Runs one command and returns what is to be printed.
///
/// # Errors
/// One line for the operator.
pub fn ctl(args: &CtlArgs) -> Result<String, String> {
    let client = Client::new(&args.admin);
    match &args.command {
        CtlCommand::Cluster { command: ClusterCommand::Status { json: true } } => {
            client.call("GET", "/cluster", None, None)
        }
        CtlCommand::Cluster { command: ClusterCommand::Status { json: false } } => {
            Ok(cluster_table(&client.get("/cluster")?))
        }
        CtlCommand::Cluster { command: ClusterCommand::Leave { node } } => {
            client.call("DELETE", &format!("/cluster/nodes/{node}"), None, None)
        }
        CtlCommand::Steps { json: true } => client.call("GET", "/steps", None, None),
        CtlCommand::Steps { json: false } => Ok(steps_table(&client.get("/steps")?)),
        CtlCommand::Config { command: ConfigKeyCommand::Get { key } } => {
            client.call("GET", &format!("/config/{key}"), None, None)
        }
        CtlCommand::Config { command: ConfigKeyCommand::Set { key, value, if_version } } => {
            client.call("PUT", &format!("/config/{key}"), Some(value), *if_version)
        }
        CtlCommand::Config { command: ConfigKeyCommand::Unset { key, if_version } } => {
            client.call("DELETE", &format!("/config/{key}"), None, *if_version)
        }
        CtlCommand::Backup { dir } => backup(&client, dir),
    }
}

/// Has a backup written, and waits for its end.
fn backup(client: &Client, dir: &Path) -> Result<String, String> {
    let order = serde_json::json!({ "dir": dir }).to_string();
    let mut status: BackupStatus = parsed("/backup", &client.post("/backup", &order)?)?;
    let number = status.number;
    while status.state == BackupState::Running {
        std::thread::sleep(BACKUP_PAUSE);
        status = client.get("/backup")?;
        if status.number != number {
            return Err("another backup has begun, and how this one ended is not known".into());
        }
    }
    let dir = status.dir.display();
    match status.state {
        BackupState::Done(counts) => Ok(format!(
            "{dir}: complete, {} bytes in {} files, {} records of messages in {} segments\n",
            counts.bytes, counts.files, counts.records, counts.segments
        )),
        BackupState::Failed(why) => {
            Err(format!("no backup: {why}; what was written to {dir} is not complete"))
        }
        BackupState::None | BackupState::Running => Err("the broker was started anew".into()),
    }
}

fn parsed<T: for<'a> Deserialize<'a>>(path: &str, body: &str) -> Result<T, String> {
    serde_json::from_str(body).map_err(|error| format!("{path}: not understood: {error}"))
}

struct Client {
    agent: ureq::Agent,
    base: String,
}

impl Client {
    fn new(address: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .build();
        Self { agent: config.into(), base: format!("http://{address}") }
    }

    fn get<T: for<'a> Deserialize<'a>>(&self, path: &str) -> Result<T, String> {
        parsed(path, &self.call("GET", path, None, None)?)
    }

    fn post(&self, path: &str, json: &str) -> Result<String, String> {
        let request = ureq::http::Request::builder()
            .method("POST")
            .uri(format!("{}{path}", self.base))
            .header("content-type", "application/json");
        self.run(path, request, json)
    }

    fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&str>,
        if_version: Option<u64>,
    ) -> Result<String, String> {
        let url = format!("{}{path}", self.base);
        let mut request = ureq::http::Request::builder().method(method).uri(&url);
        if let Some(version) = if_version {
            request = request.header("if-match", format!("\"{version}\""));
        }
        self.run(path, request, body.unwrap_or_default())
    }

    fn run(
        &self,
        path: &str,
        request: ureq::http::request::Builder,
        body: &str,
    ) -> Result<String, String> {
        let url = format!("{}{path}", self.base);
        let request =
            request.body(body.as_bytes().to_vec()).map_err(|error| format!("{url}: {error}"))?;
        let mut response =
            self.agent.run(request).map_err(|error| format!("cannot ask {url}: {error}"))?;
        let text = response
            .body_mut()
            .read_to_string()
            .map_err(|error| format!("{url}: the answer was cut off: {error}"))?;
        match response.status().is_success() {
            true => Ok(text),
            false => Err(format!("{url}: {}: {}", response.status(), text.trim())),
        }
    }
}

fn cluster_table(status: &Status) -> String {
    let number = |number: Option<u64>| number.map_or("-".into(), |number| number.to_string());
    let mut out = format!(
        "node {} is {}, leader {}, term {}\nlog {}, applied {}, snapshot {}, purged {}\n\n",
        status.node,
        status.role,
        number(status.leader),
        status.term,
        number(status.last_log_index),
        number(status.last_applied_index),
        number(status.snapshot_index),
        number(status.purged_index),
    );
    out.push_str("NODE  VOTES  HAS         ADDRESS\n");
    for member in &status.members {
        let votes = if member.voter { "yes" } else { "no" };
        let has = number(member.matched_index);
        let address = if member.address.is_empty() { "-" } else { &member.address };
        out.push_str(&format!("{:<5} {votes:<6} {has:<11} {address}\n", member.node));
    }
    out
}

fn steps_table(report: &StepReport) -> String {
    if !report.enabled {
        return "steps are not measured: steps.enabled is false\n".into();
    }
    let head = "     P50      P99    P99.9      MAX";
    let mut out = format!(
        "{:<36}RUNNING, us{:<25}WAITING, us\n{:<24}{:>10} |{head} |{head}\n",
        "", "", "STEP", "COUNT"
    );
    let times = |of: &Quantiles| {
        [of.p50_us, of.p99_us, of.p999_us, of.max_us].map(|us| format!("{us:>8.1}")).join(" ")
    };
    let connect = report.connect.iter().map(|step| ("connect", step));
    for (of, step) in connect.chain(report.apply.iter().map(|step| ("apply", step))) {
        let name = format!("{of}.{}", step.step);
        let (running, waiting) = (times(&step.running), times(&step.waiting));
        out.push_str(&format!("{name:<24}{:>10} |{running} |{waiting}\n", step.count));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_say_what_was_answered() {
        let status = r#"{"node":2,"role":"follower","leader":1,"term":3,"last_log_index":9,
            "last_applied_index":9,"snapshot_index":null,"purged_index":null,"members":[
            {"node":1,"address":"127.0.0.1:1","voter":true,"matched_index":null},
            {"node":2,"address":"","voter":false,"matched_index":8}]}"#;
        let table = cluster_table(&serde_json::from_str(status).unwrap());
        assert!(table.starts_with("node 2 is follower, leader 1, term 3\n"), "{table}");
        assert!(table.contains("1     yes    -           127.0.0.1:1\n"), "{table}");
        assert!(table.contains("2     no     8           -\n"), "{table}");
        let steps = r#"{"enabled":true,"connect":[],"apply":[{"step":"route","count":3,
            "running":{"mean_us":1.5,"p50_us":1.0,"p99_us":2.0,"p999_us":2.0,"max_us":2.5},
            "waiting":{"mean_us":0.0,"p50_us":0.0,"p99_us":0.0,"p999_us":0.0,"max_us":7.25}}]}"#;
        let table = steps_table(&serde_json::from_str(steps).unwrap());
        let row = table.lines().nth(2).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[..3], ["apply.route", "3", "|"], "{table}");
        assert_eq!(words[words.len() - 1], "7.2", "{table}");
        let off = StepReport { enabled: false, connect: vec![], apply: vec![] };
        assert!(steps_table(&off).contains("steps.enabled"));
    }

    #[test]
    fn nobody_there_is_an_error() {
        let args =
            CtlArgs { admin: "127.0.0.1:1".into(), command: CtlCommand::Steps { json: false } };
        let error = ctl(&args).unwrap_err();
        assert!(error.starts_with("cannot ask http://127.0.0.1:1/steps: "), "{error}");
    }
}
