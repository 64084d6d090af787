//! Starting the broker under test.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// How to start a broker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// `--runtime`.
    pub runtime: &'static str,
    /// `--scheduler`.
    pub scheduler: &'static str,
    /// `--shards`.
    pub shards: u32,
    /// The CPUs that it is confined to, as `taskset -c` takes them.
    pub cpus: String,
    /// Where each start gets an empty data directory of its own; without, nothing is kept.
    pub disk: Option<PathBuf>,
    /// Settings beyond that: `meta.apply` and its value.
    pub settings: Vec<(&'static str, &'static str)>,
    /// Another process keeps the same CPUs busy meanwhile.
    pub neighbour: bool,
}

/// A broker process that ends with this value.
pub struct Broker {
    child: Child,
    neighbour: Option<Child>,
    /// Its MQTT address.
    pub address: SocketAddr,
    /// Its admin address.
    pub admin: SocketAddr,
    /// The line with which it said that it is ready: driver and addresses.
    pub ready: String,
    _disk: Option<TempDir>,
}

impl Start {
    /// The exact command; of the data directory only the folder that it is made in.
    pub fn command(&self) -> Vec<String> {
        let folder = self.disk.as_ref().map(|disk| disk.join("NEW"));
        let mut command = self.command_in(folder.as_deref());
        if self.neighbour {
            command.push(format!("# beside: {}", self.neighbour_command().join(" ")));
        }
        command
    }

    /// Starts it and waits until it says that it is ready.
    pub fn start(&self) -> Result<Broker, String> {
        let disk = match &self.disk {
            None => None,
            Some(folder) => Some(
                tempfile::Builder::new()
                    .prefix("gearbox-bench-")
                    .tempdir_in(folder)
                    .map_err(|error| format!("{}: {error}", folder.display()))?,
            ),
        };
        let command = self.command_in(disk.as_ref().map(TempDir::path));
        let mut child = spawn(&command, Stdio::piped())?;
        let ready = child.stdout.take().ok_or("no output").and_then(|stdout| {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.find(|line| line.contains(" ready ")).ok_or("ended before it was ready")
        });
        let found = ready.and_then(|line| {
            let address = address_in(&line, "mqtt=").ok_or("no address in its ready line")?;
            let admin = address_in(&line, "admin=").ok_or("no admin address in its ready line")?;
            Ok((address, admin, line))
        });
        match found {
            Ok((address, admin, ready)) => {
                let mut broker =
                    Broker { child, neighbour: None, address, admin, ready, _disk: disk };
                if self.neighbour {
                    broker.neighbour = Some(spawn(&self.neighbour_command(), Stdio::null())?);
                }
                Ok(broker)
            }
            Err(error) => {
                end(&mut child);
                Err(format!("{}: {error}", command.join(" ")))
            }
        }
    }

    fn command_in(&self, data: Option<&Path>) -> Vec<String> {
        let mut command = vec!["env".to_owned()];
        command.extend(self.settings.iter().map(|(key, value)| {
            format!("GEARBOX_{}={value}", key.replace('.', "__").to_uppercase())
        }));
        command.extend(["taskset", "-c", &self.cpus].map(str::to_owned));
        command.push(self.program.display().to_string());
        let fixed = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        command.extend(fixed.map(str::to_owned));
        match data {
            None => command.push("--ephemeral".to_owned()),
            Some(folder) => {
                command.extend(["--data-dir".to_owned(), folder.display().to_string()]);
            }
        }
        let chosen = ["--runtime", self.runtime, "--scheduler", self.scheduler, "--shards"];
        command.extend(chosen.map(str::to_owned));
        command.push(self.shards.to_string());
        command
    }

    fn neighbour_command(&self) -> Vec<String> {
        ["taskset", "-c", &self.cpus, "sh", "-c", "while :; do :; done"].map(str::to_owned).to_vec()
    }
}

impl Broker {
    /// Its process id: `env` becomes `taskset` becomes the broker.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.neighbour.iter_mut().for_each(end);
        end(&mut self.child);
    }
}

fn spawn(command: &[String], stdout: Stdio) -> Result<Child, String> {
    Command::new(&command[0])
        .args(&command[1..])
        .stdout(stdout)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", command.join(" ")))
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// What `program --version` says.
pub fn version(program: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn address_in(ready: &str, name: &str) -> Option<SocketAddr> {
    ready.split(' ').find_map(|field| field.strip_prefix(name))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_addresses_in_the_ready_line() {
        let line = "gearbox ready mqtt=127.0.0.1:40123 driver=epoll admin=127.0.0.1:7\n";
        let found = |name| address_in(line, name).map(|it| it.port());
        assert_eq!((found("mqtt="), found("admin=")), (Some(40_123), Some(7)));
        assert_eq!(address_in("gearbox ready driver=epoll admin=off", "admin="), None);
    }

    #[test]
    fn a_program_that_cannot_start_is_named() {
        let start = Start {
            program: "/nowhere/gearbox".into(),
            runtime: "tokio",
            scheduler: "thread-per-core",
            shards: 1,
            cpus: "0".to_owned(),
            settings: vec![("meta.apply", "thread")],
            ..Start::default()
        };
        assert_eq!(
            start.command().join(" "),
            "env GEARBOX_META__APPLY=thread taskset -c 0 /nowhere/gearbox serve --listen \
             127.0.0.1:0 --admin 127.0.0.1:0 --ephemeral --runtime tokio --scheduler \
             thread-per-core --shards 1"
        );
        let error = start.start().err().unwrap();
        assert!(error.contains("/nowhere/gearbox"), "{error}");
        assert!(version(&start.program).is_err());
        let folder = Some("/nowhere/data".into());
        let error = Start { disk: folder, ..start }.start().err().unwrap();
        assert!(error.contains("/nowhere/data"), "{error}");
    }
}
