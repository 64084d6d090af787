//! Running a program for a bounded time.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// From one look to the next.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// Runs a program to its end; its output is not shown, its errors are.
///
/// # Errors
/// It cannot be started, fails, or has not ended within `limit`.
pub fn run(command: &[String], limit: Duration) -> Result<(), String> {
    match end_of(command, limit)? {
        Some(true) => Ok(()),
        Some(false) => Err(format!("{} failed", command.join(" "))),
        None => Err(format!("{} did not end within {} s", command.join(" "), limit.as_secs())),
    }
}

/// Whether a program ends within `limit`; it is stopped if it does not.
///
/// # Errors
/// It cannot be started, or fails.
pub fn ends(command: &[String], limit: Duration) -> Result<bool, String> {
    match end_of(command, limit)? {
        Some(true) => Ok(true),
        Some(false) => Err(format!("{} failed", command.join(" "))),
        None => Ok(false),
    }
}

/// Whether it succeeded; `None` when it did not end in time.
fn end_of(command: &[String], limit: Duration) -> Result<Option<bool>, String> {
    let (program, arguments) = command.split_first().ok_or("no command")?;
    let text = |error: std::io::Error| format!("{}: {error}", command.join(" "));
    let mut child =
        Command::new(program).args(arguments).stdout(Stdio::null()).spawn().map_err(text)?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status.success())),
            Ok(None) if begun.elapsed() < limit => std::thread::sleep(LOOK_PERIOD),
            result => {
                let _ = child.kill();
                let _ = child.wait();
                return result.map(|_| None).map_err(text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn ends_are_told_apart() {
        let long = Duration::from_secs(60);
        assert_eq!(run(&command("true"), long), Ok(()));
        assert!(run(&command("false"), long).unwrap_err().contains("failed"));
        assert!(run(&command("/nowhere/program"), long).is_err());
        assert_eq!(ends(&command("sleep 600"), Duration::from_millis(20)), Ok(false));
        assert!(run(&command("sleep 600"), Duration::ZERO).unwrap_err().contains("did not end"));
    }
}
