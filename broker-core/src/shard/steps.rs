//! The step clock of a CONNECT: from accept until a writer takes the CONNACK, each step's running
//! apart from its waiting.
//!
//! What the client takes its time for, between accept and the last byte of its CONNECT and between
//! two AUTH packets, is no step. A CONNECT that is refused counts as far as it came; one without an
//! answer (the socket ended, the timeout came first) is not counted.

use std::sync::Arc;
use std::time::Duration;

use meta::steps::{Steps, Took};
use rt_abstract::Instant;

use super::{ConnKey, Shard};

/// The steps of a CONNECT; names as in logs and metrics, in the order of [`ConnectStep`].
pub const CONNECT_STEPS: [&str; 7] = [
    "get_cluster",
    "check_limit",
    "login_check",
    "build_conn",
    "session_process",
    "add_cache",
    "st_report",
];

/// One of [`CONNECT_STEPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectStep {
    /// Decoding the CONNECT and finding the shard that owns the client. Waits while the socket is on
    /// its way there.
    GetCluster,
    /// The rate of CONNECTs, and what a will may be.
    CheckLimit,
    /// Who the client is. Waits for the thread that verifies a password.
    LoginCheck,
    /// The connection's place in the shard, once more after a hand-off. Waits for its task to run.
    BuildConn,
    /// The session: opened, resumed or taken over. Waits for the commit of a durable one.
    SessionProcess,
    /// What is known of the session comes back to memory: its subscriptions, its presence, its will.
    AddCache,
    /// Encoding the CONNACK. Waits for a writer to take it.
    StReport,
}

/// What one CONNECT takes.
#[derive(Debug)]
pub struct ConnectTimes {
    steps: [Option<Took>; CONNECT_STEPS.len()],
    doing: Doing,
    since: Instant,
    /// Of the time that is being waited, what another thread ran for it.
    elsewhere_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Runs(ConnectStep),
    Waits(ConnectStep),
    /// It is the client's turn.
    Rests,
}

/// Where a shard reads the time for its steps, and writes them.
#[derive(Debug)]
pub(super) struct StepClock {
    now: fn() -> Instant,
    steps: Arc<Steps>,
}

impl ConnectTimes {
    /// All since the last change is what was being done.
    fn change(&mut self, doing: Doing, now: Instant) {
        let passed_ns = now.as_nanos().saturating_sub(self.since.as_nanos());
        self.since = now;
        match std::mem::replace(&mut self.doing, doing) {
            Doing::Runs(step) => self.took(step).ran_ns += passed_ns,
            Doing::Waits(step) => {
                let ran_ns = std::mem::take(&mut self.elsewhere_ns).min(passed_ns);
                let took = self.took(step);
                took.ran_ns += ran_ns;
                took.waited_ns += passed_ns - ran_ns;
            }
            Doing::Rests => {}
        }
    }

    fn took(&mut self, step: ConnectStep) -> &mut Took {
        self.steps[step as usize].get_or_insert_default()
    }
}

impl Shard {
    /// Measures the steps of CONNECTs by the clock `now` from here on, if `steps` is on.
    pub fn measure_steps(&mut self, now: fn() -> Instant, steps: Arc<Steps>) {
        self.step_clock = steps.is_on().then_some(StepClock { now, steps });
    }

    /// A turn begins: what is done until [`Shard::end_turn`] begins now.
    #[inline]
    pub fn begin_turn(&mut self, now: Instant) {
        self.turn_began = Some(now);
    }

    /// A socket was accepted, and waits for a task.
    pub(super) fn begin_times(&mut self) -> Option<Box<ConnectTimes>> {
        let since = self.look()?;
        Some(Box::new(ConnectTimes {
            steps: Default::default(),
            doing: Doing::Waits(ConnectStep::BuildConn),
            since,
            elsewhere_ns: 0,
        }))
    }

    /// Its task runs, here or on another shard than before.
    pub fn begin_building(
        &mut self,
        mut times: Option<Box<ConnectTimes>>,
    ) -> Option<Box<ConnectTimes>> {
        if let Some(times) = times.as_mut()
            && let Some(now) = self.look()
        {
            times.change(Doing::Runs(ConnectStep::BuildConn), now);
        }
        times
    }

    /// Its connection has a place, and waits for its CONNECT.
    pub fn set_times(&mut self, key: ConnKey, times: Option<Box<ConnectTimes>>) {
        if let Some(conn) = self.conn(key) {
            conn.times = times;
            self.step_rests(key);
        }
    }

    /// It goes to another shard.
    pub fn take_times(&mut self, key: ConnKey) -> Option<Box<ConnectTimes>> {
        self.change(key, Doing::Waits(ConnectStep::GetCluster));
        self.conn(key)?.times.take()
    }

    /// Of the time that it waits, another thread ran for it so long.
    pub fn ran_elsewhere(&mut self, key: ConnKey, ran: Duration) {
        if let Some(times) = self.conn(key).and_then(|conn| conn.times.as_mut()) {
            times.elsewhere_ns = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
        }
    }

    /// The step runs; what was done before is over.
    #[inline]
    pub(super) fn step(&mut self, key: ConnKey, step: ConnectStep) {
        self.change(key, Doing::Runs(step));
    }

    /// The step that ran goes on when somebody else has done something, or lets it run.
    pub(super) fn step_waits(&mut self, key: ConnKey) {
        let times = self.conn(key).and_then(|conn| conn.times.as_ref());
        if let Some(Doing::Runs(step)) = times.map(|times| times.doing) {
            self.change(key, Doing::Waits(step));
        }
    }

    /// It is the client's turn.
    pub(super) fn step_rests(&mut self, key: ConnKey) {
        self.change(key, Doing::Rests);
    }

    #[inline]
    fn change(&mut self, key: ConnKey, doing: Doing) {
        let times = self.conns.get(key.0 as usize).and_then(|conn| conn.times.as_ref());
        if times.is_none_or(|times| times.doing == doing) {
            return;
        }
        if let Some(now) = self.look()
            && let Some(times) = self.conn(key).and_then(|conn| conn.times.as_mut())
        {
            times.change(doing, now);
        }
    }

    /// `None` when steps are not measured.
    fn look(&mut self) -> Option<Instant> {
        let clock = self.step_clock.as_ref()?;
        Some(self.turn_began.take().unwrap_or_else(clock.now))
    }

    /// A writer takes what the connection has: its CONNACK, if that is among it, ends the CONNECT.
    pub(super) fn end_connect(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key.0 as usize) else { return };
        let answered =
            |times: &mut Box<ConnectTimes>| times.doing == Doing::Waits(ConnectStep::StReport);
        let Some(mut times) = conn.times.take_if(answered) else { return };
        let Some(now) = self.look() else { return };
        let Some(clock) = &self.step_clock else { return };
        times.change(Doing::Rests, now);
        let taken = times.steps.iter().enumerate();
        clock.steps.record(self.id.into(), taken.filter_map(|(step, took)| Some((step, (*took)?))));
        let total_ns = times.steps.iter().flatten().map(Took::total_ns).sum();
        if let Some(left_out) = clock.steps.is_slow(total_ns, now) {
            let [
                get_cluster,
                check_limit,
                login_check,
                build_conn,
                session_process,
                add_cache,
                st_report,
            ] = times.steps.map(|took| took.unwrap_or_default());
            tracing::warn!(
                client = self.client_of(key),
                total_us = total_ns / 1000,
                %get_cluster,
                %check_limit,
                %login_check,
                %build_conn,
                %session_process,
                %add_cache,
                %st_report,
                left_out,
                "slow CONNECT"
            );
        }
    }
}
