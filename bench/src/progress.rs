//! Where a long run is, on standard error: one line that is written over on a terminal, a line now
//! and then elsewhere.

use std::io::{IsTerminal, Write};

const TERMINAL_EVERY_NS: u64 = 500_000_000;
const ELSEWHERE_EVERY_NS: u64 = 10_000_000_000;

/// Says something from time to time; nothing about runs that are over before.
pub struct Progress {
    terminal: bool,
    next_ns: u64,
    written: bool,
}

impl Progress {
    /// Says something for the first time after one interval.
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { terminal, next_ns: every_ns(terminal), written: false }
    }

    /// Says `line` when it is time.
    #[inline]
    pub fn tick(&mut self, now_ns: u64, line: impl FnOnce() -> String) {
        if now_ns >= self.next_ns {
            self.say(now_ns, &line());
        }
    }

    /// Clears the line on a terminal.
    pub fn done(&mut self) {
        if self.terminal && self.written {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }

    #[cold]
    fn say(&mut self, now_ns: u64, line: &str) {
        self.next_ns = now_ns + every_ns(self.terminal);
        self.written = true;
        let mut stderr = std::io::stderr();
        // Whoever closed standard error does not want to know.
        let _ = match self.terminal {
            true => write!(stderr, "\r\x1b[2K{line}"),
            false => writeln!(stderr, "{line}"),
        };
    }
}

fn every_ns(terminal: bool) -> u64 {
    if terminal { TERMINAL_EVERY_NS } else { ELSEWHERE_EVERY_NS }
}
