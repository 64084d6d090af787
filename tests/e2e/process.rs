//! Child processes whose output is read line by line, and that never outlive their test.

use crate::wait::{PATIENCE, left};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lines kept of a child's output, to be shown when its test fails.
const LOG_LINES: usize = 300;
/// Lines that may wait for the test; the reader stops reading (and the child blocks) beyond it.
const WAITING_LINES: usize = 10_000;

/// A running child. Dropping it kills it by its pid and waits for its end.
pub struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    log: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts `command`; `name` stands in failure messages.
    ///
    /// Lines of standard output can be waited for; standard error only lands in the log.
    pub fn start(name: &str, command: &mut Command) -> Self {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: cannot start `{program}`: {error}"));
        let (sender, lines) = sync_channel(WAITING_LINES);
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(read_lines(stdout, Arc::clone(&log), Some(sender)));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(read_lines(stderr, Arc::clone(&log), None));
        }
        Self { name: name.to_owned(), child, lines, log, readers }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of standard output that `pick` accepts; lines before it are skipped.
    pub fn line<T>(&mut self, what: &str, mut pick: impl FnMut(&str) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(left(deadline)) {
                Ok(line) => {
                    if let Some(value) = pick(&line) {
                        return value;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{}: waited {PATIENCE:?} for {what}", self.name)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("{}: ended before {what}", self.name)
                }
            }
        }
    }

    /// Waits for the end of the process by itself; gives its status and the lines not yet taken.
    pub fn finish(&mut self, within: Duration) -> (ExitStatus, Vec<String>) {
        let deadline = Instant::now() + within;
        let mut rest = Vec::new();
        // Standard output closes when the child ends, which spares polling for most of the wait.
        loop {
            match self.lines.recv_timeout(left(deadline)) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{}: still running after {within:?}", self.name)
                }
            }
        }
        loop {
            if let Some(status) = self.exited() {
                return (status, rest);
            }
            assert!(Instant::now() < deadline, "{}: still running after {within:?}", self.name);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The exit status when the process has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child's status can be read")
    }

    /// Whether a line of either output, among the last ones, contains all of `parts`.
    pub fn has_said(&self, parts: &[&str]) -> bool {
        let log = self.log.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        log.iter().any(|line| parts.iter().all(|part| line.contains(part)))
    }

    /// SIGKILL: the process gets no chance to say goodbye.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .expect("the child takes a signal");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // A waiting reader would block on a full channel: close it first.
        let (_, closed) = sync_channel(0);
        drop(std::mem::replace(&mut self.lines, closed));
        // The pipes close with the child, unless it left children of its own: bounded, then.
        let deadline = Instant::now() + Duration::from_secs(2);
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if std::thread::panicking() {
            let log = self.log.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let text: String = log.iter().map(|line| format!("    {line}\n")).collect();
            eprintln!("--- output of {} (last {LOG_LINES} lines):\n{text}---", self.name);
        }
    }
}

/// Reads lines to the end into the log and, when given, the channel.
fn read_lines(
    source: impl Read + Send + 'static,
    log: Arc<Mutex<Vec<String>>>,
    mut sender: Option<SyncSender<String>>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(source).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).into_owned();
            {
                let mut log = log.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if log.len() == LOG_LINES {
                    log.remove(0);
                }
                log.push(line.chars().take(1000).collect());
            }
            // Once nobody listens the pipe is still drained, so that the child never blocks on it.
            if sender.as_ref().is_some_and(|sender| sender.send(line).is_err()) {
                sender = None;
            }
        }
    })
}
