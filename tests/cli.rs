//! The program from outside: flags, configuration, start-up line, admin address, signals, exit
//! codes. No MQTT here; the end-to-end tests speak it.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is the report

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything here takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn usage_errors_exit_2() {
    for args in [
        &["serve", "--nope"][..],
        &["serve", "--shards", "0"],
        &["serve", "--listen", "localhost"],
        &["serve", "--runtime", "async-std"],
        &["serve", "--ephemeral", "--data-dir", "x"],
        &["frobnicate"],
        &[],
    ] {
        let output = gearbox(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{args:?}");
    }
    let output = gearbox(&["serve", "--shards", "65"]).output().unwrap();
    assert!(stderr(&output).contains("must be a number from 1 to 64"), "{}", stderr(&output));
}

#[test]
fn a_busy_port_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let line = refused(&["--ephemeral", "--listen", &address, "--admin", "off"]);
    assert!(line.contains(&format!("cannot listen on {address}: ")), "{line}");
    let line = refused(&["--ephemeral", "--listen", "127.0.0.1:0", "--admin", &address]);
    assert!(line.contains(&format!("cannot listen on {address} (admin): ")), "{line}");
}

#[test]
fn an_unusable_directory_is_said() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let dir = file.path().join("data");
    let dir = dir.to_str().unwrap();
    let line = refused(&["--data-dir", dir, "--listen", "127.0.0.1:0", "--admin", "off"]);
    assert!(line.contains(&format!("cannot create the data directory {dir}: ")), "{line}");
}

#[test]
fn two_processes_do_not_share_a_directory() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("data");
    let args = ["--data-dir", dir.to_str().unwrap(), "--admin", "off"];
    let first = Broker::start(&args);
    let line = refused(&[&args[..], &["--listen", "127.0.0.1:0"]].concat());
    let by = format!("is in use by another gearbox (process {})", first.child.id());
    assert!(line.contains(&by), "{line}");
    first.end();
    Broker::start(&args).end();
}

#[test]
fn ephemeral_touches_no_directory() {
    let temp = tempfile::tempdir().unwrap();
    let mut command = gearbox(&["serve", "--ephemeral", "--listen", "127.0.0.1:0", "--admin=off"]);
    command.current_dir(temp.path());
    Broker::start_command(command).end();
    assert_eq!(temp.path().read_dir().unwrap().count(), 0);
}

#[test]
fn configuration_errors_name_file_line_and_key() {
    let temp = tempfile::tempdir().unwrap();
    let file = write(temp.path(), "[limits]\n\nmax_inflihgt = 4\n");
    let wanted = format!(
        "gearbox: error: {file}:3: limits.max_inflihgt: \
         unknown key 'max_inflihgt': did you mean 'max_inflight'?\n"
    );
    assert_eq!(refused(&["--config", &file]), wanted);
    for command in ["check", "show"] {
        let output = gearbox(&["config", command, "--config", &file]).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(1), wanted.clone()));
    }
    let file = write(temp.path(), "[runtime]\nring_entries = 63\n");
    assert!(refused(&["--config", &file]).contains(":2: runtime.ring_entries: must be a power"));
    let line = refused(&["--config", "/nowhere/gearbox.toml"]);
    assert!(line.starts_with("gearbox: error: /nowhere/gearbox.toml: cannot read: "), "{line}");
}

#[test]
fn the_configuration_is_shown_with_the_environment() {
    let temp = tempfile::tempdir().unwrap();
    let file = write(temp.path(), "[limits]\nmax_inflight = 4\nmax_subscriptions = 5\n");
    let output = gearbox(&["config", "show", "--config", &file])
        .env("GEARBOX_LIMITS__MAX_INFLIGHT", "6")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("max_inflight = 6\n") && text.contains("max_subscriptions = 5\n"));
    let output = gearbox(&["config", "check", "--config", &file]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{file}: ok\n"));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_this_build_or_machine_lacks_is_said() {
    let base = ["--ephemeral", "--listen", "127.0.0.1:0", "--admin", "off"];
    let refuse = |args: &[&str]| refused(&[&base[..], args].concat());
    if !cfg!(feature = "rt-monoio") {
        let line = refuse(&["--runtime", "monoio"]);
        assert!(
            line.contains("no backend 'monoio', it has: tokio; build with --features"),
            "{line}"
        );
    }
    if cfg!(any(feature = "rt-monoio", feature = "rt-compio")) {
        let line = refuse(&["--runtime=tokio", "--scheduler=work-stealing"]);
        assert!(line.contains("no work-stealing scheduler in this build"), "{line}");
    }
    if cfg!(feature = "rt-tokio") {
        let mut command = gearbox(&[&["serve", "--runtime", "tokio"][..], &base].concat());
        let output = command.env("GEARBOX_RUNTIME__REQUIRE_IO_URING", "true").output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("io_uring is required, but backend 'tokio' cannot"));
    }
    let output = gearbox(&[&["serve"][..], &base].concat())
        .env("GEARBOX_RUNTIME__PIN", "[9999]")
        .output()
        .unwrap();
    assert!(stderr(&output).contains("may not use CPU 9999"), "{}", stderr(&output));
}

#[test]
fn runtimes_are_listed() {
    let output = gearbox(&["runtimes"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    let built_in =
        |name: &str| text.lines().any(|line| line.split_whitespace().take(2).eq([name, "yes"]));
    assert_eq!(built_in("tokio"), cfg!(feature = "rt-tokio"));
    assert_eq!(built_in("monoio"), cfg!(feature = "rt-monoio"));
    assert_eq!(built_in("compio"), cfg!(feature = "rt-compio"));
}

#[test]
fn the_start_up_line_says_everything() {
    let broker = Broker::start(&["--ephemeral", "--shards", "2", "--admin", "127.0.0.1:0"]);
    let mut words = broker.line.split(' ');
    assert_eq!(words.next(), Some("gearbox"));
    assert_eq!(words.next(), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(words.next(), Some("ready"));
    let keys: Vec<_> = words.map(|word| word.split('=').next().unwrap()).collect();
    assert_eq!(keys, ["runtime", "scheduler", "driver", "shards", "mqtt", "admin"]);
    assert_eq!(broker.value("shards"), "2");
    for address in ["mqtt", "admin"] {
        assert_ne!(broker.value(address).parse::<SocketAddr>().unwrap().port(), 0);
    }
    broker.end();
}

#[test]
fn every_backend_and_scheduler_serves_the_admin_address() {
    let mut columns = Vec::new();
    if cfg!(feature = "rt-tokio") {
        columns.push(["--runtime=tokio", "--scheduler=thread-per-core"]);
        if !cfg!(any(feature = "rt-monoio", feature = "rt-compio")) {
            columns.push(["--runtime=tokio", "--scheduler=work-stealing"]);
        }
    }
    if cfg!(feature = "rt-monoio") {
        columns.push(["--runtime=monoio", "--scheduler=thread-per-core"]);
    }
    if cfg!(feature = "rt-compio") {
        columns.push(["--runtime=compio", "--scheduler=thread-per-core"]);
    }
    for column in columns {
        let args = [&column[..], &["--ephemeral", "--shards=2", "--admin=127.0.0.1:0"]].concat();
        let broker = Broker::start(&args);
        assert!(column[0].ends_with(&broker.value("runtime")), "{}", broker.line);
        assert!(column[1].ends_with(&broker.value("scheduler")), "{}", broker.line);

        let (head, body) = broker.http("GET /health HTTP/1.1\r\nConnection: close");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{column:?}: {head}");
        assert_eq!(body, "ok\n");
        let (head, body) = broker.http("GET /metrics HTTP/1.1\r\nConnection: close");
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        assert!(body.contains("\ngearbox_connections{shard=\"1\"} 0\n"), "{body}");
        assert!(body.contains("\n# TYPE gearbox_messages_received_total counter\n"), "{body}");
        assert!(body.contains(&format!("runtime=\"{}\"", broker.value("runtime"))), "{body}");
        let (head, body) = broker.http("HEAD /health HTTP/1.1\r\nConnection: close");
        assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}{body}");
        let (head, _) = broker.http("GET /nope HTTP/1.1\r\nConnection: close");
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        let (head, _) = broker.http("DELETE /metrics HTTP/1.1\r\nConnection: close");
        assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("allow: GET, HEAD"), "{head}");
        // A client that goes on sending after its answer still reads the answer.
        let huge = format!("GET /health HTTP/1.1\r\nX: {}", "x".repeat(20_000));
        let (head, _) = broker.http(&huge);
        assert!(head.starts_with("HTTP/1.1 431 "), "{column:?}: {head}");
        let (head, _) = broker.http("nonsense");
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");

        // Requests one after another on one connection, which is idle when the drain begins.
        let mut kept = broker.admin();
        for _ in 0..3 {
            kept.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = [0; 512];
            let n = kept.read(&mut answer).unwrap();
            assert!(answer[..n].starts_with(b"HTTP/1.1 200 "), "{column:?}");
        }
        broker.end();
        let mut rest = Vec::new();
        kept.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{column:?}: {rest:?}");
    }
}

#[test]
fn at_most_64_admin_connections() {
    let broker = Broker::start(&["--ephemeral", "--admin", "127.0.0.1:0"]);
    let mut open: Vec<_> = (0..64).map(|_| broker.admin()).collect();
    let mut more = broker.admin();
    assert_eq!(more.read(&mut [0; 1]).unwrap_or(0), 0, "the 65th is closed");
    let mut first = open.swap_remove(0);
    first.write_all(b"GET /health HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    first.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
    broker.end();
}

#[test]
fn sigint_drains_too() {
    let broker = Broker::start(&["--ephemeral", "--admin", "off"]);
    assert_eq!(broker.value("admin"), "off");
    broker.signal(Signal::INT);
    assert_eq!(broker.wait(), (Some(0), None));
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut command = gearbox(&["serve", "--ephemeral", "--listen=127.0.0.1:0"]);
    command.arg("--admin=127.0.0.1:0").stderr(Stdio::piped());
    let mut broker = Broker::start_command(command);
    let mut log = BufReader::new(broker.child.stderr.take().unwrap());
    // Half a request holds the drain up for two seconds.
    let mut half = broker.admin();
    half.write_all(b"GET /health HTTP/1.1\r\n").unwrap();
    broker.signal(Signal::TERM);
    let mut line = String::new();
    while !line.contains("draining") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "the drain is not logged");
    }
    broker.signal(Signal::INT);
    assert_eq!(broker.wait(), (Some(130), None));
}

#[test]
fn half_a_request_does_not_hold_the_drain_for_ever() {
    let broker = Broker::start(&["--ephemeral", "--admin=127.0.0.1:0"]);
    let mut half = broker.admin();
    half.write_all(b"GET /health HTTP/1.1\r\n").unwrap();
    broker.end();
}

#[test]
fn logs_are_json_when_asked() {
    let mut command =
        gearbox(&["serve", "--ephemeral", "--listen", "127.0.0.1:0", "--admin", "off"]);
    command.env("GEARBOX_LOG__FORMAT", "json").stderr(Stdio::piped());
    let mut broker = Broker::start_command(command);
    let mut log = broker.child.stderr.take().unwrap();
    broker.end();
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    assert!(!text.is_empty());
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(value["level"].is_string(), "{line}");
    }
}

/// A running `gearbox serve`, killed when dropped.
struct Broker {
    child: Child,
    line: String,
    // Held open: the process may print more.
    _stdout: BufReader<ChildStdout>,
}

impl Broker {
    /// Starts it on a free MQTT port and waits for its start-up line.
    fn start(args: &[&str]) -> Self {
        Self::start_command(gearbox(&[&["serve", "--listen", "127.0.0.1:0"], args].concat()))
    }

    fn start_command(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (line, stdout) = within(move || {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            (line, stdout)
        });
        assert!(line.contains(" ready "), "no start-up line but {line:?}");
        Self { child, line: line.trim_end().into(), _stdout: stdout }
    }

    fn value(&self, key: &str) -> String {
        let prefix = format!("{key}=");
        let word = self.line.split(' ').find_map(|word| word.strip_prefix(&prefix));
        word.unwrap_or_else(|| panic!("no {key} in {}", self.line)).into()
    }

    fn admin(&self) -> TcpStream {
        let stream = TcpStream::connect(self.value("admin")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request (host and end are added) and reads to the end: head and body.
    fn http(&self, request: &str) -> (String, String) {
        let mut stream = self.admin();
        // The answer to a request that is refused half-way may come before all of it is sent.
        let _ = write!(stream, "{request}\r\nHost: x\r\n\r\n");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (head.into(), body.into())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGTERM, then a clean exit.
    fn end(self) {
        self.signal(Signal::TERM);
        assert_eq!(self.wait(), (Some(0), None));
    }

    /// Exit code, or the signal that ended it.
    fn wait(mut self) -> (Option<i32>, Option<i32>) {
        use std::os::unix::process::ExitStatusExt;
        let pid = Pid::from_child(&self.child);
        let (done, timer) = mpsc::channel::<()>();
        let watchdog = thread::spawn(move || {
            if timer.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        let status = self.child.wait().unwrap();
        drop(done);
        watchdog.join().unwrap();
        (status.code(), status.signal())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn gearbox(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gearbox"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs `gearbox serve`, which must refuse with exit code 1 and one line, and returns the line.
fn refused(args: &[&str]) -> String {
    let mut command = gearbox(&[&["serve"], args].concat());
    let output = within(move || command.output().unwrap());
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty());
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("gearbox: error: "), "{text}");
    text
}

fn within<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(f()));
    receiver.recv_timeout(PATIENCE).expect("in time")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn write(dir: &Path, text: &str) -> String {
    let path = dir.join("gearbox.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().into()
}
