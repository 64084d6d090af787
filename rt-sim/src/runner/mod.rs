//! Runs plans: a world with nodes and clients per plan, many plans one after the other, and the smallest
//! part of a plan that still breaks a promise.

mod fate;
mod life;
mod many;
mod node;
mod shrink;

use std::panic::{AssertUnwindSafe, catch_unwind};

use rt_abstract::{Runtime, Shared};

use crate::history::Event;
use crate::oracle::{Oracle, Promises, Rule, Violation};
use crate::record::Record;
use crate::workload::Plan;
use crate::{Config, Coverage, Sim, World};

pub use many::{Report, run_all};
pub use shrink::shrink;

/// Polls after which a plan is given up.
const MAX_POLLS: u64 = 20_000_000;

/// How one plan went.
#[derive(Debug)]
pub struct Outcome {
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// Over everything that could be observed.
    pub digest: u64,
    /// What was seen, if it was to be kept.
    pub events: Vec<Event>,
    /// How many events that are.
    pub seen: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Which faults took effect.
    pub coverage: Coverage,
}

/// Runs one plan from its beginning to its end. The same plan always comes to the same.
pub fn run(plan: &Plan, keep: bool) -> Outcome {
    let config = Config { max_polls: MAX_POLLS, ..Config::default() };
    let world = World::new(plan.seed, config);
    let control = world.control();
    let record = Shared::new(Record::new(Oracle::new(Promises::of(plan)), keep));
    let lived = catch_unwind(AssertUnwindSafe(|| world.block_on(life::live(plan, record.clone()))));
    let broken = match lived {
        Ok(Ok(())) => None,
        Ok(Err(stuck)) => Some(format!("the world came to no end: {stuck:?}")),
        Err(panic) => Some(format!("a panic: {}", panic_text(&*panic))),
    };
    let (virtual_ms, polls) = (control.now().as_millis() as u64, control.polls());
    let coverage = control.coverage();
    record.with(|record| {
        control.observe(&record.digest().to_le_bytes());
        let of_world = || broken.map(|text| Violation { rule: Rule::Stuck, text });
        Outcome {
            violation: record.violation().cloned().or_else(of_world),
            digest: control.digest(),
            events: record.events().to_vec(),
            seen: record.seen(),
            virtual_ms,
            polls,
            coverage,
        }
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// True time since a moment of the world, in milliseconds.
fn since_ms(start: rt_abstract::Instant) -> u64 {
    Sim::now().saturating_since(start).as_millis() as u64
}
