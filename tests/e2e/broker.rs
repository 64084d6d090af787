//! A `gearbox serve` process of a test's own, on free ports, and what can be seen of it outside.

use crate::column::Column;
use crate::process::Process;
use crate::wait::{PATIENCE, until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tempfile::TempDir;

/// A running broker; dropping it kills it, then removes its folder.
pub struct Broker {
    /// Where MQTT is served.
    pub mqtt: SocketAddr,
    /// Where HTTP is served.
    pub admin: SocketAddr,
    // Before the folder: fields are dropped in this order, and the process still writes there.
    process: Process,
    _folder: TempDir,
}

/// What a test may want different.
pub struct Options<'a> {
    /// Value of `--shards`.
    pub shards: usize,
    /// Environment of the broker, such as `GEARBOX_LIMITS__CONNECT_TIMEOUT_MS`.
    pub environment: &'a [(&'a str, &'a str)],
    /// Where state is kept; without it nothing is.
    pub data_dir: Option<&'a Path>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { shards: 2, environment: &[], data_dir: None }
    }
}

impl Broker {
    /// Starts a broker of two shards and waits until it is ready.
    pub fn start(column: &Column) -> Self {
        Self::start_with(column, &Options::default())
    }

    /// Starts a broker and waits until it says it is ready.
    pub fn start_with(column: &Column, options: &Options<'_>) -> Self {
        let folder = temporary_folder();
        let mut command = Command::new(&column.program);
        command
            .current_dir(&folder)
            .args(["serve", "--runtime", column.runtime, "--scheduler", column.scheduler])
            .args(["--shards", &options.shards.to_string()])
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            // Segments are written in full when they are made.
            .env("GEARBOX_JOURNAL__SEGMENT_BYTES", "1048576")
            .envs(options.environment.iter().copied());
        match options.data_dir {
            Some(dir) => command.arg("--data-dir").arg(dir),
            None => command.arg("--ephemeral"),
        };
        if column.fallback {
            command.env("GEARBOX_RUNTIME__FORCE_FALLBACK", "true");
        }
        let mut process = Process::start(&format!("gearbox [{}]", column.name), &mut command);
        let (mqtt, admin) = process.line("the start-up line", |line| {
            let line = line.strip_prefix("gearbox ")?;
            if !line.contains(" ready ") {
                return None;
            }
            let value = |key: &str| {
                let (_, rest) = line.split_once(&format!(" {key}="))?;
                rest.split([' ', ',']).next()
            };
            assert_eq!(value("runtime"), Some(column.runtime), "{line}");
            assert_eq!(value("scheduler"), Some(column.scheduler), "{line}");
            assert!(!column.fallback || value("driver") == Some("epoll"), "{line}");
            Some((value("mqtt")?.parse().ok()?, value("admin")?.parse().ok()?))
        });
        Self { mqtt, admin, process, _folder: folder }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Asserts that the process has not ended.
    pub fn assert_running(&mut self) {
        let ended = self.process.exited();
        assert!(ended.is_none(), "the broker ended: {ended:?}");
    }

    /// Whether a line of its log, among the last ones, contains all of `parts`.
    pub fn has_logged(&self, parts: &[&str]) -> bool {
        self.process.has_said(parts)
    }

    /// What `gearbox ctl` says about it.
    pub fn ctl(&self, column: &Column, arguments: &[&str]) -> String {
        let output = Command::new(&column.program)
            .args(["ctl", "--admin", &self.admin.to_string()])
            .args(arguments)
            .output()
            .expect("the program runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ctl {arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sends SIGTERM; the broker drains while the caller looks on.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// Ends the process at once, as `kill -9` does.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits for the broker's own end.
    pub fn exit_status(&mut self, within: Duration) -> ExitStatus {
        self.process.finish(within).0
    }

    /// Resident memory that the process wrote itself, in bytes. Pages of the program's file are
    /// left out: touching code for the first time is not growth.
    pub fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(&path).expect("the broker runs");
        let kib = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key));
            let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            number.unwrap_or_else(|| panic!("{path} has no {key}"))
        };
        (kib("RssAnon:") + kib("RssShmem:")) * 1024
    }

    /// Open descriptors of the process.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the broker runs").count()
    }

    /// GET on the admin address: status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).expect("the admin address accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: gearbox\r\nConnection: close\r\n\r\n")
            .expect("the request is taken");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer comes and ends");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("an HTTP status"), body.to_owned())
    }

    /// A metric's values, one for each line of that name in `/metrics` (one per shard). The name
    /// is given without the prefix `gearbox_` and the suffix `_total`.
    pub fn metric(&self, name: &str) -> Vec<u64> {
        let (status, body) = self.get("/metrics");
        assert_eq!(status, 200, "{body}");
        let values: Vec<u64> = body
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (key, value) = line.rsplit_once(' ')?;
                let key = key.split('{').next()?.strip_prefix("gearbox_")?;
                (key.strip_suffix("_total").unwrap_or(key) == name)
                    .then(|| value.parse::<f64>().ok().map(|value| value as u64))?
            })
            .collect();
        assert!(!values.is_empty(), "no metric {name} in:\n{body}");
        values
    }

    /// Waits until the sum of a metric over all shards satisfies `reached`.
    pub fn metric_until(&self, name: &str, reached: impl Fn(u64) -> bool) -> u64 {
        until(&format!("metric {name}"), || {
            let sum = self.metric(name).iter().sum();
            reached(sum).then_some(sum)
        })
    }
}

/// A new folder in cargo's folder for tests, removed when dropped.
pub fn temporary_folder() -> TempDir {
    TempDir::with_prefix_in("e2e-", env!("CARGO_TARGET_TMPDIR")).expect("a folder can be made")
}
