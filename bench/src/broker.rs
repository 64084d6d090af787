//! Starting the broker under test, and reading what it used.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A broker process that ends with this value.
pub struct Broker {
    child: Child,
    /// Its MQTT address.
    pub address: SocketAddr,
}

impl Broker {
    /// Starts `program` confined to one CPU and waits until it says that it is ready.
    pub fn start(
        program: &Path,
        runtime: &str,
        scheduler: &str,
        shards: u32,
        cpu: usize,
    ) -> Result<Self, String> {
        let mut child = Command::new("taskset")
            .args(["-c", &cpu.to_string()])
            .arg(program)
            .args(["serve", "--ephemeral", "--listen", "127.0.0.1:0", "--admin", "off"])
            .args(["--runtime", runtime, "--scheduler", scheduler])
            .args(["--shards", &shards.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {} by taskset: {error}", program.display()))?;
        let ready = child.stdout.take().ok_or("no output").and_then(|stdout| {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.find(|line| line.contains(" ready ")).ok_or("ended before it was ready")
        });
        let address = ready.and_then(|line| {
            let field = line.split(' ').find_map(|field| field.strip_prefix("mqtt="));
            field.and_then(|field| field.parse().ok()).ok_or("no address in its ready line")
        });
        match address {
            Ok(address) => Ok(Self { child, address }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("{} --runtime {runtime}: {error}", program.display()))
            }
        }
    }

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

/// User and system time of a process so far, io_uring's worker threads included: they belong to
/// the process.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, which may hold spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Resident memory of a process in KiB.
pub fn resident_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}
