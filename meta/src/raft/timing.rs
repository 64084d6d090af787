//! The step clock of applying: one batch, from when it was asked for to its write.

use std::time::Duration;

use rt_abstract::Instant;

use crate::steps::{ApplyStep, Steps, Took};

/// The time that one batch takes. Running is the CPU time of the thread; what is missing to the time
/// that passed is waiting: for the core, or inside of the store.
pub(super) struct Timing {
    clock: fn() -> Duration,
    cpu_clock: fn() -> Duration,
    steps: [Option<Took>; 3],
    wall: Duration,
    cpu: Duration,
}

impl Timing {
    /// The first step waits since `asked`, if that is given.
    pub(super) fn begin(
        clock: fn() -> Duration,
        cpu_clock: fn() -> Duration,
        asked: Option<Duration>,
    ) -> Self {
        let wall = asked.unwrap_or_else(clock);
        Self { clock, cpu_clock, steps: [None; 3], wall, cpu: cpu_clock() }
    }

    /// All since the last call was `step`.
    pub(super) fn end(&mut self, step: ApplyStep) {
        let (wall, cpu) = ((self.clock)(), (self.cpu_clock)());
        let ran = cpu.saturating_sub(self.cpu);
        let waited = wall.saturating_sub(self.wall).saturating_sub(ran);
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.steps[step as usize] = Some(Took { ran_ns: ns(ran), waited_ns: ns(waited) });
        (self.wall, self.cpu) = (wall, cpu);
    }

    /// Adds the batch to `steps`, and logs it when it was slow.
    pub(super) fn finish(self, steps: &Steps, entries: usize) {
        let taken = self.steps.iter().enumerate();
        steps.record(0, taken.filter_map(|(step, took)| Some((step, (*took)?))));
        let total_ns = self.steps.iter().flatten().map(Took::total_ns).sum();
        let now = Instant::from_nanos(u64::try_from(self.wall.as_nanos()).unwrap_or(u64::MAX));
        if let Some(left_out) = steps.is_slow(total_ns, now) {
            let [route, membership, set_last_applied] =
                self.steps.map(|took| took.unwrap_or_default());
            tracing::warn!(
                total_us = total_ns / 1000,
                %route,
                %membership,
                %set_last_applied,
                entries,
                left_out,
                "slow apply"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::steps::{APPLY_STEPS, StepOptions};

    thread_local! {
        static WALL_US: Cell<u64> = const { Cell::new(0) };
        static CPU_US: Cell<u64> = const { Cell::new(0) };
    }

    fn pass(ran_us: u64, waited_us: u64) {
        CPU_US.set(CPU_US.get() + ran_us);
        WALL_US.set(WALL_US.get() + ran_us + waited_us);
    }

    #[test]
    fn running_and_waiting_are_told_apart() {
        let wall = || Duration::from_micros(WALL_US.get());
        let cpu = || Duration::from_micros(CPU_US.get());
        let asked = wall();
        pass(0, 500); // for the thread
        let mut timing = Timing::begin(wall, cpu, Some(asked));
        pass(30, 7);
        timing.end(ApplyStep::Route);
        pass(100, 1000);
        timing.end(ApplyStep::SetLastApplied);
        let us =
            |ran: u64, waited: u64| Some(Took { ran_ns: ran * 1000, waited_ns: waited * 1000 });
        assert_eq!(timing.steps, [us(30, 507), None, us(100, 1000)]);
        let steps = Steps::new(&APPLY_STEPS, 1, StepOptions::default());
        timing.finish(&steps, 1);
        let counts: Vec<u64> = steps.summaries().iter().map(|step| step.count).collect();
        assert_eq!(counts, [1, 0, 1]);
    }
}
