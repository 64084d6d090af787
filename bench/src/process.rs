//! What processes have used, read from /proc.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::syscalls::Syscalls;

/// Less CPU time than this says nothing: ten of the steps in which the kernel tells it.
const KNOWN_CPU_US: u64 = 100_000;

/// What a process has used so far, or used between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// User and system time of all threads, io_uring's workers among them: they belong to the
    /// process. In steps of a clock tick, mostly 10 ms.
    pub cpu_us: u64,
    /// Waits of the threads that exist, those of a thread that has ended left out.
    pub voluntary_switches: u64,
    /// Times that one of these threads was pushed aside.
    pub involuntary_switches: u64,
    /// Calls of read(2) and write(2) and their kind; sockets' send and recv, epoll and io_uring are
    /// not among them. `None` where /proc/PID/io may not be read.
    pub read_write_calls: Option<u64>,
    /// All system calls of its threads, where they were counted.
    #[serde(default)]
    pub syscalls: Option<u64>,
}

/// The broker's process, and what is counted about it beyond what /proc says.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Its number.
    pub pid: u32,
    syscalls: Option<Rc<RefCell<Syscalls>>>,
}

/// All looks of one moment.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    at_ns: u64,
    broker: Option<Usage>,
    generator: Option<Usage>,
    machine_busy_us: Option<u64>,
}

/// What was used between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Length of the time.
    pub seconds: f64,
    /// The broker, when its process is known.
    pub broker: Option<Usage>,
    /// This program.
    pub generator: Option<Usage>,
    /// CPU time that the machine was busy with something else, interrupts included.
    pub others_cpu_us: Option<u64>,
}

impl Usage {
    /// Of a process; `None` when it is gone.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let cpu_us = stat_cpu_us(&stat, rustix::param::clock_ticks_per_second())?;
        let mut usage = Self { cpu_us, ..Self::default() };
        for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            // A thread may end while the list is read.
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            usage.voluntary_switches += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
            usage.involuntary_switches +=
                field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
        }
        usage.read_write_calls = fs::read_to_string(format!("/proc/{pid}/io"))
            .ok()
            .and_then(|io| Some(field(&io, "syscr:")? + field(&io, "syscw:")?));
        Some(usage)
    }

    /// CPU time, if there was enough of it.
    pub fn known_cpu_us(&self) -> Option<f64> {
        (self.cpu_us >= KNOWN_CPU_US).then_some(self.cpu_us as f64)
    }

    fn since(self, earlier: Self) -> Self {
        let grown = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            cpu_us: self.cpu_us.saturating_sub(earlier.cpu_us),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
            read_write_calls: grown(self.read_write_calls, earlier.read_write_calls),
            syscalls: grown(self.syscalls, earlier.syscalls),
        }
    }
}

impl Watched {
    /// A process whose system calls are not counted.
    pub fn new(pid: u32) -> Self {
        Self { pid, syscalls: None }
    }

    /// A process whose system calls are counted from now on, which slows it down.
    ///
    /// # Errors
    /// When the kernel does not let us, with the reason as a clause.
    pub fn counting_syscalls(pid: u32) -> Result<Self, String> {
        Ok(Self { pid, syscalls: Some(Rc::new(RefCell::new(Syscalls::of(pid)?))) })
    }

    fn usage(&self) -> Option<Usage> {
        let syscalls = self.syscalls.as_ref().and_then(|it| it.borrow_mut().total());
        Some(Usage { syscalls, ..Usage::of(self.pid)? })
    }
}

impl Look {
    /// Looks now.
    pub fn now(at_ns: u64, broker: Option<&Watched>) -> Self {
        Self {
            at_ns,
            broker: broker.and_then(Watched::usage),
            generator: Usage::of(std::process::id()),
            machine_busy_us: fs::read_to_string("/proc/stat")
                .ok()
                .and_then(|stat| busy_us(&stat, rustix::param::clock_ticks_per_second())),
        }
    }

    /// What was used since `earlier`.
    pub fn since(&self, earlier: &Self) -> Spent {
        let used = |now: Option<Usage>, then: Option<Usage>| Some(now?.since(then?));
        let broker = used(self.broker, earlier.broker);
        let generator = used(self.generator, earlier.generator);
        let busy = self.machine_busy_us.zip(earlier.machine_busy_us);
        let known = broker.map_or(0, |it| it.cpu_us) + generator.map_or(0, |it| it.cpu_us);
        Spent {
            seconds: (self.at_ns - earlier.at_ns) as f64 / 1e9,
            broker,
            generator,
            // Without the broker's share the rest would say nothing.
            others_cpu_us: broker
                .and(busy)
                .map(|(now, then)| now.saturating_sub(then).saturating_sub(known)),
        }
    }
}

impl Spent {
    /// The generator's share of one core.
    pub fn generator_share(&self) -> Option<f64> {
        Some(self.generator?.cpu_us as f64 / 1e6 / self.seconds)
    }

    /// Others' share of one core.
    pub fn others_share(&self) -> Option<f64> {
        Some(self.others_cpu_us? as f64 / 1e6 / self.seconds)
    }
}

/// Resident memory of a process in KiB.
pub fn resident_kib(pid: u32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// Takes as many descriptors as the system gives, and says how many those are.
pub fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// Confines this thread to one CPU.
pub fn pin(cpu: usize) -> Result<(), String> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cpu >= CpuSet::MAX_CPU {
        return Err(format!("no CPU number {cpu}"));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| format!("cannot run on CPU {cpu}: {error}"))
}

/// Whether this thread is confined to one CPU.
pub fn is_pinned() -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|set| set.count() == 1)
}

/// The first number behind `name` at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn stat_cpu_us(stat: &str, ticks_per_second: u64) -> Option<u64> {
    // The second field is the name in parentheses, which may hold spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks * 1_000_000 / ticks_per_second)
}

/// All of the first line of /proc/stat but idling; guests are counted as users already.
fn busy_us(stat: &str, ticks_per_second: u64) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|it| it.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: u64 = ticks.iter().take(8).sum();
    Some((all - idle) * 1_000_000 / ticks_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_fields_of_proc() {
        let stat = "12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20";
        assert_eq!(stat_cpu_us(stat, 100), Some(2_000_000));
        assert_eq!(stat_cpu_us("12 (a", 100), None);
        assert_eq!(busy_us("cpu  10 1 2 500 7 3 4 5 9 9\ncpu0 1", 100), Some(250_000));
        let status = "Name:\tx\nVmRSS:\t  123 kB\nvoluntary_ctxt_switches:\t7\n\
                      nonvoluntary_ctxt_switches:\t9\n";
        assert_eq!(field(status, "VmRSS:"), Some(123));
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(7));
        assert_eq!(field(status, "VmSwap:"), None);
    }

    #[test]
    fn sees_its_own_process_work() {
        let own = std::process::id();
        let watched = Watched::new(own);
        let before = Look::now(0, Some(&watched));
        let mut sum = 0u64;
        // Some ticks' worth, judged by the figure itself.
        while Usage::of(own).unwrap().cpu_us < before.broker.unwrap().cpu_us + 30_000 {
            sum = sum.wrapping_add((0..10_000u64).map(std::hint::black_box).sum());
        }
        std::hint::black_box(sum);
        let spent = Look::now(1_000_000_000, Some(&watched)).since(&before);
        assert!(spent.broker.unwrap().cpu_us >= 30_000);
        assert_eq!(spent.seconds, 1.0);
        assert!(spent.generator_share().unwrap() > 0.0);
        assert!(resident_kib(own).unwrap() > 100);
    }
}
