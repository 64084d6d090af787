//! What a result was measured on and with.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine and the versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// Its CPUs, whichever of them this program may use.
    pub cpus: usize,
    /// Memory in KiB.
    pub memory_kib: u64,
    /// Load averages when the run began.
    pub load_average: String,
    /// How CPU 0 changes its clock, where the kernel tells.
    pub cpu_governor: Option<String>,
    /// `git` revision of the working directory, with `+changes` when it is not clean.
    pub git_revision: Option<String>,
    /// Version of this program, and whether it was optimized.
    pub generator: String,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal");
        let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: value(&read("/proc/cpuinfo"), "model name"),
            cpus: read("/proc/cpuinfo").lines().filter(|it| it.starts_with("processor")).count(),
            memory_kib: memory.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0),
            load_average: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            cpu_governor: Some(governor.trim().to_owned()).filter(|it| !it.is_empty()),
            git_revision: git_revision(),
            generator: format!(
                "gearbox-bench {}{}",
                env!("CARGO_PKG_VERSION"),
                if cfg!(debug_assertions) { " (debug build)" } else { "" }
            ),
        }
    }

    /// In a sentence.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} x {}, {} MiB, Linux {}, load average {}, {}",
            self.cpus,
            if self.cpu.is_empty() { "CPU" } else { &self.cpu },
            self.memory_kib / 1024,
            self.kernel,
            self.load_average,
            self.generator,
        );
        if let Some(governor) = &self.cpu_governor {
            text += &format!(", governor {governor}");
        }
        if let Some(revision) = &self.git_revision {
            text += &format!(", git {revision}");
        }
        text
    }
}

fn git_revision() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let revision = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { revision } else { revision + "+changes" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_where_it_runs() {
        let here = Machine::here();
        assert!(here.cpus > 0 && here.memory_kib > 0);
        assert!(here.kernel.starts_with(|first: char| first.is_ascii_digit()), "{}", here.kernel);
        assert!(here.text().contains(&here.kernel));
    }
}
