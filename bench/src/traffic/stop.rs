//! A stop of the broker on purpose, in the middle of the measured time: what latencies must then be
//! is known by arithmetic.

use std::ops::Range;

use rustix::process::{Pid, Signal, kill_process};

use crate::latency::Latencies;
use crate::schedule::Schedule;

/// One stop of a process by SIGSTOP. A value that is dropped lets it go on.
#[derive(Debug)]
pub struct Stop {
    pid: Pid,
    planned_ns: Range<u64>,
    /// From when the process was told to stop until it was told to go on.
    made_ns: Option<Range<u64>>,
    stopped: bool,
}

impl Stop {
    /// Of `pid`, in the middle of `measured_ns`.
    pub fn in_middle(pid: u32, measured_ns: &Range<u64>, for_ns: u64) -> Result<Self, String> {
        let length_ns = measured_ns.end - measured_ns.start;
        if for_ns * 2 > length_ns {
            return Err("the stop must not take more than half of the measured time".to_owned());
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no such process")?;
        let start_ns = measured_ns.start + (length_ns - for_ns) / 2;
        let planned_ns = start_ns..start_ns + for_ns;
        Ok(Self { pid, planned_ns, made_ns: None, stopped: false })
    }

    /// Stops it and lets it go on when it is time; `now_ns` is asked for the time after a signal.
    pub fn turn(&mut self, now_ns: impl Fn() -> u64) -> Result<(), String> {
        let now = now_ns();
        match &mut self.made_ns {
            None if now >= self.planned_ns.start => {
                self.signal(Signal::STOP)?;
                self.stopped = true;
                let from_ns = now_ns();
                self.made_ns = Some(from_ns..from_ns + self.planned_ns.end - self.planned_ns.start);
            }
            Some(made_ns) if self.stopped && now >= made_ns.end => {
                made_ns.end = now;
                self.stopped = false;
                self.signal(Signal::CONT)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// What the stop alone makes of the messages of `schedule` that are measured, `copies` deliveries
    /// each: those that fell due meanwhile wait for its end, and the others take no time.
    pub fn predicted(
        &self,
        schedule: &Schedule,
        measured_ns: &Range<u64>,
        copies: u64,
    ) -> Latencies {
        let mut latencies = Latencies::new();
        let numbers =
            schedule.numbered_before(measured_ns.start)..schedule.numbered_before(measured_ns.end);
        for due_ns in numbers.map(|number| schedule.due_ns(number)) {
            let made_ns = self.made_ns.as_ref().filter(|made_ns| made_ns.contains(&due_ns));
            let waited_ns = made_ns.map_or(0, |made_ns| made_ns.end - due_ns);
            (0..copies).for_each(|_| latencies.record(waited_ns));
        }
        latencies
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        kill_process(self.pid, signal).map_err(|error| format!("cannot stop the broker: {error}"))
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        if self.stopped {
            // It may be gone.
            let _ = self.signal(Signal::CONT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Quote;

    #[test]
    fn what_a_stop_of_500_ms_makes_of_5_s() {
        let measured_ns = 1_000_000_000..6_000_000_000;
        let mut stop = Stop::in_middle(std::process::id(), &measured_ns, 500_000_000).unwrap();
        assert_eq!(stop.planned_ns, 3_250_000_000..3_750_000_000);
        stop.made_ns = Some(stop.planned_ns.clone());
        let schedule = Schedule::lasting(0, 1_000.0, measured_ns.end);
        let latencies = stop.predicted(&schedule, &measured_ns, 2);
        assert_eq!(latencies.count(), 10_000);
        // The slowest 100 of 10 000 are the 50 messages that waited more than 450 ms.
        match latencies.quote(99_000) {
            Quote::Ns(ns) => assert!(ns.abs_diff(450_000_000) < 1_000_000, "{ns}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(latencies.quote(50_000), Quote::Ns(ns) if ns < 100), "the resolution");
        assert!(Stop::in_middle(1, &(0..100), 51).is_err());
    }
}
