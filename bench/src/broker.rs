//! Starting the broker under test.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How to start a broker.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// `--runtime`.
    pub runtime: &'static str,
    /// `--scheduler`.
    pub scheduler: &'static str,
    /// `--shards`.
    pub shards: u32,
    /// The CPU that it is confined to.
    pub cpu: usize,
}

/// A broker process that ends with this value.
pub struct Broker {
    child: Child,
    /// Its MQTT address.
    pub address: SocketAddr,
    /// The line with which it said that it is ready: driver and addresses.
    pub ready: String,
}

impl Start {
    /// The exact command.
    pub fn command(&self) -> Vec<String> {
        let mut command: Vec<String> = ["taskset", "-c"].map(str::to_owned).to_vec();
        command.extend([self.cpu.to_string(), self.program.display().to_string()]);
        let fixed = ["serve", "--ephemeral", "--listen", "127.0.0.1:0", "--admin", "off"];
        command.extend(fixed.map(str::to_owned));
        let chosen = ["--runtime", self.runtime, "--scheduler", self.scheduler, "--shards"];
        command.extend(chosen.map(str::to_owned));
        command.push(self.shards.to_string());
        command
    }

    /// Starts it and waits until it says that it is ready.
    pub fn start(&self) -> Result<Broker, String> {
        let command = self.command();
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", command.join(" ")))?;
        let ready = child.stdout.take().ok_or("no output").and_then(|stdout| {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.find(|line| line.contains(" ready ")).ok_or("ended before it was ready")
        });
        let found = ready.and_then(|line| match address_in(&line) {
            Some(address) => Ok((address, line)),
            None => Err("no address in its ready line"),
        });
        match found {
            Ok((address, ready)) => Ok(Broker { child, address, ready }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("{}: {error}", command.join(" ")))
            }
        }
    }
}

impl Broker {
    /// Its process id: `taskset` becomes the broker.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `program --version` says.
pub fn version(program: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn address_in(ready: &str) -> Option<SocketAddr> {
    ready.split(' ').find_map(|field| field.strip_prefix("mqtt="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_address_in_the_ready_line() {
        let line = "gearbox ready mqtt=127.0.0.1:40123 driver=epoll";
        assert_eq!(address_in(line), Some(SocketAddr::from(([127, 0, 0, 1], 40_123))));
        assert_eq!(address_in("gearbox ready driver=epoll"), None);
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let start = Start {
            program: "/nowhere/gearbox".into(),
            runtime: "tokio",
            scheduler: "thread-per-core",
            shards: 1,
            cpu: 0,
        };
        let error = start.start().err().unwrap();
        assert!(error.contains("/nowhere/gearbox"), "{error}");
        assert!(version(&start.program).is_err());
    }
}
