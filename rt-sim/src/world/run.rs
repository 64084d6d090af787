//! The loop: who runs next, and when time goes on.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::RngExt;

use crate::config::{Config, nanos};
use crate::control::Control;
use crate::world::events::Event;
use crate::world::nodes::NodeId;
use crate::world::random::chance;
use crate::world::tasks::{self, Place, ROOT, TaskId, Work};
use crate::world::{State, begin, end, exists, with};

/// A world on this thread, until it is dropped. There is one per thread at a time.
///
/// The same seed, configuration and calls give the same history, to the last bit.
#[derive(Debug)]
pub struct World {
    /// It cannot leave its thread.
    here: PhantomData<*const ()>,
}

/// Why a world did not come to the end that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// Nobody is ready and nothing will happen any more.
    #[error("nobody is ready and nothing will happen any more")]
    Deadlock,
    /// `Config::max_polls` are used up.
    #[error("too many polls")]
    TooManyPolls,
}

/// What the loop found to do.
enum Step {
    Root(Waker),
    Task(TaskId, Place, Work, Waker),
    Nothing,
    Stuck(Stuck),
}

impl World {
    /// A world at its beginning, with nothing in it.
    ///
    /// # Panics
    /// When this thread has one already.
    pub fn new(seed: u64, config: Config) -> Self {
        assert!(!exists(), "one world per thread at a time");
        begin(seed, config);
        Self { here: PhantomData }
    }

    /// What steers it.
    pub fn control(&self) -> Control {
        Control::new()
    }

    /// Runs until `future` is ready. It is a task of [`NodeId::CLIENTS`], may borrow, and may steer
    /// the world through [`Control`]. Tasks that still run then go on with the next call.
    ///
    /// # Errors
    /// [`Stuck`].
    ///
    /// # Panics
    /// When the future does.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Stuck> {
        run(NodeId::CLIENTS, future)
    }

    /// Runs until `time` after the world's start, or until nothing will happen before.
    ///
    /// # Errors
    /// [`Stuck::TooManyPolls`].
    pub fn run_until(&self, time: Duration) -> Result<(), Stuck> {
        drive(nanos(time), &mut None::<Pin<&mut std::future::Pending<()>>>, None).map(drop)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        end();
    }
}

/// Runs a future as a task of `node`.
pub(crate) fn run<F: Future>(node: NodeId, future: F) -> Result<F::Output, Stuck> {
    let (place, waker) = with(|state| {
        state.last_run += 1;
        let run = state.last_run;
        (state.place(node, run, 0), state.tasks.root_waker())
    });
    let output = {
        let mut future = Some(pin!(future));
        drive(u64::MAX, &mut future, Some((place, waker)))
    };
    output.map(|output| output.expect("a world without a limit of time runs until the future ends"))
}

/// Runs until the root is ready, or until `until_ns`.
fn drive<F: Future>(
    until_ns: u64,
    root: &mut Option<Pin<&mut F>>,
    root_place: Option<(Place, Waker)>,
) -> Result<Option<F::Output>, Stuck> {
    loop {
        match with(|state| state.step(until_ns, root_place.as_ref().map(|(_, waker)| waker))) {
            Step::Nothing => return Ok(None),
            Step::Stuck(stuck) => return Err(stuck),
            Step::Root(waker) => {
                let Some((place, _)) = &root_place else { continue };
                let Some(root) = root else { continue };
                let mut context = Context::from_waker(&waker);
                let polled = tasks::at(*place, ROOT, || root.as_mut().poll(&mut context));
                if let Poll::Ready(output) = polled {
                    return Ok(Some(output));
                }
            }
            Step::Task(id, place, work, waker) => run_task(id, place, work, &waker),
        }
    }
}

fn run_task(id: TaskId, place: Place, mut work: Work, waker: &Waker) {
    let mut context = Context::from_waker(waker);
    let polled = tasks::at(place, id, || {
        // Panics of tasks are caught where their results are kept; one from elsewhere is the world's.
        catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut context)))
    });
    match polled {
        Ok(Poll::Pending) => {
            let unwanted = with(|state| match state.tasks.get(id) {
                Some(task) => {
                    task.work = Some(work);
                    None
                }
                // Its node crashed meanwhile, by its own hand.
                None => Some(work),
            });
            tasks::at(place, id, || drop(unwanted));
        }
        Ok(Poll::Ready(())) => {
            let task = with(|state| state.tasks.remove(id));
            tasks::at(place, id, || drop((task, work)));
        }
        Err(panic) => resume_unwind(panic),
    }
}

impl State {
    fn step(&mut self, until_ns: u64, root: Option<&Waker>) -> Step {
        loop {
            while let Some(event) = self.events.pop_due(self.now_ns) {
                self.happen(event);
            }
            self.tasks.collect();
            self.tasks.next_round();
            if let Some(id) = self.choose() {
                if let Some(step) = self.begin_poll(id, root) {
                    return step;
                }
                continue;
            }
            let Some(next) = self.events.next_at() else {
                return match root {
                    Some(_) => Step::Stuck(Stuck::Deadlock),
                    None => Step::Nothing,
                };
            };
            if next > until_ns {
                self.now_ns = self.now_ns.max(until_ns);
                return Step::Nothing;
            }
            self.now_ns = self.now_ns.max(next);
        }
    }

    fn choose(&mut self) -> Option<TaskId> {
        let ready = &mut self.tasks.ready;
        if ready.len() > 1 && chance(&mut self.random.schedule, self.config.disorder) {
            let index = self.random.schedule.random_range(0..ready.len());
            return ready.remove(index);
        }
        ready.pop_front()
    }

    fn begin_poll(&mut self, id: TaskId, root: Option<&Waker>) -> Option<Step> {
        if self.polls >= self.config.max_polls {
            return Some(Step::Stuck(Stuck::TooManyPolls));
        }
        self.tasks.round = self.tasks.round.saturating_sub(1);
        if id == ROOT {
            self.tasks.begin_root();
            return root.map(|waker| self.polled(ROOT, Step::Root(waker.clone())));
        }
        let node = self.tasks.get(id)?.place.node;
        let paused_until_ns = self.machines.get(node).paused_until_ns;
        if paused_until_ns > self.now_ns {
            // Still queued, but in time instead of the line.
            self.events.plan(paused_until_ns, Event::Ready(id));
            return None;
        }
        let (place, work, waker) = self.tasks.begin(id)?;
        Some(self.polled(id, Step::Task(id, place, work, waker)))
    }

    fn polled(&mut self, id: TaskId, step: Step) -> Step {
        self.polls += 1;
        self.now_ns += self.config.poll_ns.max(1);
        self.saw(crate::world::Seen::Poll, id, &[]);
        step
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake(waker) => waker.wake(),
            Event::Ready(id) => self.tasks.ready.push_back(id),
            Event::Arrive(end) => self.arrive(end),
            Event::Knock(end, attempt) => self.knock(end, attempt),
            Event::Answer(end, result) => self.answer(end, result),
            Event::Reset(end) => self.reset_end(end, std::io::ErrorKind::ConnectionReset),
            Event::Disk(op) => self.finish_disk_op(op),
        }
    }
}
