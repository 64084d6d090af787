//! The load itself: one thread, one epoll, messages out by schedule or window, every delivery and
//! acknowledgement into the books.

mod books;
mod inflight;
mod links;
mod outcome;
mod publish;
mod stop;

use std::io;
use std::ops::ControlFlow;

use mqtt::wire::{AckKind, Packet, QoS};

pub use books::Fault;
pub use outcome::Outcome;

use crate::client::{Client, READ_BYTES};
use crate::event::{Clock, Poller, Ready};
use crate::payload::Sizes;
use crate::plan::Plan;
use crate::process::{self, Look, Watched};
use crate::progress::Progress;
use crate::schedule::Schedule;
use books::Books;
use links::Links;
use publish::Flows;
use stop::Stop;

/// A generator with a CPU of its own does not sleep so shortly before a message is due: waking up
/// takes as long as many a delivery.
const SPIN_NS: u64 = 100_000;
/// A drain that goes on making progress is given up after this many quiet times.
const DRAIN_QUIET_TIMES: u64 = 12;

/// What is sent, and how.
#[derive(Clone, Debug)]
pub struct Load {
    /// Marks the messages of this run.
    pub run: u32,
    /// QoS of publishes.
    pub qos: QoS,
    /// Payload sizes.
    pub sizes: Sizes,
    /// Rate or window.
    pub pace: Pace,
    /// Unacknowledged messages of one publisher in the open loop.
    pub unacked: u16,
    /// Time before the measured time.
    pub warm_up_ns: u64,
    /// The measured time.
    pub measure_ns: u64,
    /// After this long without a delivery or acknowledgement what is missing is lost.
    pub quiet_ns: u64,
    /// Stops the broker so long in the middle of the measured time, with a rate only.
    pub stop_ns: Option<u64>,
}

/// When the next message goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Open loop: so many messages a second from all publishers together, whatever comes back.
    Rate(f64),
    /// Closed loop: each flow has so many under way. The times then say how long the window is.
    Full(u64),
    /// As `Full`, until each flow has sent `each` messages.
    Fill {
        /// Messages under way per flow.
        window: u64,
        /// Messages of each flow.
        each: u64,
    },
}

/// A run under way.
pub struct Traffic<'a> {
    plan: &'a Plan,
    load: &'a Load,
    clock: Clock,
    broker: Option<Watched>,
    links: Links,
    flows: Flows,
    books: Books,
    schedule: Option<Schedule>,
    scratch: Vec<u8>,
    marks: Marks,
    last_progress_ns: u64,
    stalled: bool,
    spin_ns: u64,
    stop: Option<Stop>,
}

/// The ends of the measured time, as they were met.
#[derive(Default)]
struct Marks {
    start_ns: u64,
    from: Option<(Look, u64, u64)>,
    to: Option<(Look, u64, u64)>,
    first_delivery_ns: Option<u64>,
    last_delivery_ns: u64,
    sent_all_ns: Option<u64>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            run: 0,
            qos: QoS::AtMostOnce,
            sizes: Sizes::default(),
            pace: Pace::Full(20),
            unacked: u16::MAX,
            warm_up_ns: 0,
            measure_ns: 1_000_000_000,
            quiet_ns: 5_000_000_000,
            stop_ns: None,
        }
    }
}

impl Load {
    /// Whether messages go by the clock; only then do latencies mean something.
    #[inline]
    pub fn open_loop(&self) -> bool {
        matches!(self.pace, Pace::Rate(_))
    }
}

impl<'a> Traffic<'a> {
    /// Has no connections yet. `broker` is the process to watch.
    pub fn new(plan: &'a Plan, load: &'a Load, broker: Option<Watched>) -> io::Result<Self> {
        Ok(Self {
            plan,
            load,
            clock: Clock::start(),
            broker,
            links: Links::new(Poller::new()?, plan),
            flows: Flows::new(plan, load),
            books: Books::new(plan),
            schedule: None,
            scratch: vec![0; READ_BYTES],
            marks: Marks::default(),
            last_progress_ns: 0,
            stalled: false,
            spin_ns: if process::is_pinned() { SPIN_NS } else { 0 },
            stop: None,
        })
    }

    /// Takes the publishers' connections, as many as the plan says.
    pub fn attach_publishers(&mut self, clients: Vec<Client>) -> io::Result<()> {
        for (number, client) in clients.into_iter().enumerate() {
            let unacked = self.flows.unacked_limit(self.plan, self.load);
            self.links.attach(number, client, unacked)?;
        }
        Ok(())
    }

    /// Takes the subscribers' connections, and what they have read already.
    pub fn attach_members(&mut self, clients: Vec<Client>) -> io::Result<()> {
        for (number, client) in clients.into_iter().enumerate() {
            let token = self.plan.publishers + number;
            self.links.attach(token, client, 0)?;
            self.read(token, true);
        }
        self.flows.deliveries_count = true;
        Ok(())
    }

    /// Publishes for the warm-up and the measured time, then waits for what is under way.
    pub fn publish(&mut self) -> io::Result<()> {
        let start_ns = self.clock.now_ns();
        let from_ns = start_ns + self.load.warm_up_ns;
        self.marks.start_ns = start_ns;
        self.books.measured_ns = from_ns..from_ns + self.load.measure_ns;
        if let Pace::Rate(per_second) = self.load.pace {
            let duration_ns = self.load.warm_up_ns + self.load.measure_ns;
            self.schedule = Some(Schedule::lasting(start_ns, per_second, duration_ns));
            self.stop = match (self.load.stop_ns, &self.broker) {
                (None, _) => None,
                (Some(for_ns), Some(broker)) => Some(
                    Stop::in_middle(broker.pid, &self.books.measured_ns, for_ns)
                        .map_err(io::Error::other)?,
                ),
                (Some(_), None) => return Err(io::Error::other("whom to stop? give --pid")),
            };
        } else {
            self.flows.offer_all();
        }
        self.run()
    }

    /// Sends nothing more; from now on what comes belongs to the drain.
    pub fn begin_drain(&mut self) {
        self.flows.stop();
        self.marks = Marks { start_ns: self.clock.now_ns(), ..Marks::default() };
        self.marks.from =
            Some((Look::now(self.marks.start_ns, self.broker.as_ref()), 0, self.flows.published));
        self.books.measured_ns = 0..0;
    }

    /// Waits for messages that were published before [`begin_drain`](Self::begin_drain).
    pub fn drain(&mut self) -> io::Result<()> {
        self.run()
    }

    fn run(&mut self) -> io::Result<()> {
        let mut ready: Vec<Ready> = Vec::new();
        let mut progress = Progress::new();
        self.last_progress_ns = self.clock.now_ns();
        let mut pinged_ns = None;
        loop {
            if let Some(stop) = &mut self.stop {
                stop.turn(|| self.clock.now_ns()).map_err(io::Error::other)?;
            }
            let now_ns = self.clock.now_ns();
            self.mark(now_ns);
            match pinged_ns {
                None if self.is_over(now_ns) => {
                    // What the broker sent before its answer has come by then.
                    self.mark_end(now_ns);
                    self.links.ping_members(self.plan);
                    pinged_ns = Some(now_ns);
                }
                Some(at) if self.links.all_answered() || now_ns - at > self.load.quiet_ns => {
                    progress.done();
                    return Ok(());
                }
                _ => {}
            }
            if pinged_ns.is_none() {
                self.flows.take_due(&mut self.schedule, now_ns, &self.links, self.plan);
                self.send_ready(now_ns);
            }
            self.links.flush(&mut self.flows, self.plan);
            let flushed_ns = self.clock.now_ns();
            self.flows.note_lateness(&mut self.books, flushed_ns);
            progress.tick(now_ns - self.marks.start_ns, || self.progress(now_ns));
            let timeout_ns = self.flows.wait_ns(&self.schedule, flushed_ns);
            self.links.poller.wait(timeout_ns.saturating_sub(self.spin_ns), &mut ready)?;
            for event in &ready {
                if event.writable {
                    self.links.make_dirty(event.token);
                }
                if event.readable {
                    self.read(event.token, false);
                }
            }
        }
    }

    /// Notes the ends of the measured time when they are met.
    fn mark(&mut self, now_ns: u64) {
        let mark = |it: &Self| {
            Some((Look::now(now_ns, it.broker.as_ref()), it.books.delivered, it.flows.published))
        };
        if self.marks.from.is_none() && now_ns >= self.books.measured_ns.start {
            self.marks.from = mark(self);
        }
        let lasting = matches!(self.load.pace, Pace::Rate(_) | Pace::Full(_));
        let measured = !self.books.measured_ns.is_empty();
        if self.marks.to.is_none() && lasting && measured && now_ns >= self.books.measured_ns.end {
            self.marks.to = mark(self);
            if !self.load.open_loop() {
                self.flows.stop();
            }
        }
        if self.marks.sent_all_ns.is_none() && self.flows.nothing_to_send(&self.schedule) {
            self.marks.sent_all_ns = Some(now_ns);
        }
    }

    /// A run that has no fixed end is measured until it is over.
    fn mark_end(&mut self, now_ns: u64) {
        if self.marks.to.is_none() {
            let look = Look::now(now_ns, self.broker.as_ref());
            self.marks.to = Some((look, self.books.delivered, self.flows.published));
        }
    }

    fn is_over(&mut self, now_ns: u64) -> bool {
        let quiet = now_ns.saturating_sub(self.last_progress_ns) > self.load.quiet_ns;
        let end_ns = self.books.measured_ns.end.max(self.marks.start_ns);
        let lasting = matches!(self.load.pace, Pace::Rate(_) | Pace::Full(_));
        let too_long = lasting && now_ns > end_ns + DRAIN_QUIET_TIMES * self.load.quiet_ns;
        if self.flows.nothing_to_send(&self.schedule) {
            let complete = self.flows.awaited() == 0 && self.links.unacked == 0;
            return complete || quiet || too_long;
        }
        // A slow schedule is quiet by itself.
        let scheduled = self.schedule.as_ref().is_some_and(|it| it.next_due_ns().is_some());
        self.stalled = too_long || quiet && !scheduled;
        self.stalled
    }

    fn send_ready(&mut self, now_ns: u64) {
        let Self { flows, links, plan, load, books, schedule, .. } = self;
        flows.send_ready(links, plan, load, books, schedule.as_ref(), now_ns);
    }

    /// Reads from a connection; one that has ended is taken out and counted.
    fn read(&mut self, token: usize, only_pending: bool) {
        let Self { plan, load, links, flows, books, scratch, marks, .. } = self;
        let now_ns = self.clock.now_ns();
        let mut progress = false;
        let mut answered = false;
        let mut said = None;
        let Some((client, inflight)) = links.both(token) else { return };
        let publishers = plan.publishers;
        let mut acknowledged = 0;
        let found = |packet: &Packet<'_>, answers: &mut crate::client::Answers<'_>| {
            match packet {
                Packet::Publish(publish) if token >= publishers => {
                    if let Some(id) = publish.packet_id {
                        let exactly = publish.qos == QoS::ExactlyOnce;
                        let kind = if exactly { AckKind::PubRec } else { AckKind::PubAck };
                        answers.acknowledge(kind, id);
                        answered = true;
                    }
                    let member = token - publishers;
                    let flow = books.deliver(plan, load, member, publish.payload, now_ns);
                    if let Some(flow) = flow {
                        flows.delivered(flow);
                    }
                    progress = true;
                }
                Packet::Ack(ack) if token >= publishers && ack.kind == AckKind::PubRel => {
                    answers.acknowledge(AckKind::PubComp, ack.packet_id);
                    answered = true;
                }
                Packet::Ack(_) if token >= publishers => {}
                Packet::Ack(ack) => {
                    progress = true;
                    let refused = ack.reason.is_error();
                    if ack.kind == AckKind::PubRec && !refused {
                        answers.acknowledge(AckKind::PubRel, ack.packet_id);
                        answered = true;
                    } else if let Some(message) = inflight.release(ack.packet_id) {
                        acknowledged += 1;
                        books.refused += u64::from(refused);
                        if !refused {
                            books.acknowledge(load, message.due_ns, now_ns);
                        }
                        flows.acknowledged(message.flow as usize);
                    } else {
                        books.stray_acknowledgements += 1;
                    }
                }
                Packet::PingResp => said = Some(Ok(())),
                Packet::Disconnect(bye) => said = Some(Err(format!("{:?}", bye.reason))),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        let result = if only_pending { client.pending(found) } else { client.read(scratch, found) };
        links.unacked -= acknowledged;
        if acknowledged > 0 {
            links.unblock(token, acknowledged as usize, flows);
        }
        if progress {
            self.last_progress_ns = now_ns;
            if token >= publishers {
                marks.first_delivery_ns.get_or_insert(now_ns);
                marks.last_delivery_ns = now_ns;
            }
        }
        if answered {
            links.make_dirty(token);
        }
        match (result, said) {
            (_, Some(Err(reason))) => {
                links.close(token, &format!("sent away: {reason}"), flows, plan);
            }
            (Err(error), _) => links.close(token, &error.to_string(), flows, plan),
            (Ok(()), Some(Ok(()))) => links.answered(token),
            (Ok(()), None) => {}
        }
    }

    fn progress(&self, now_ns: u64) -> String {
        let seconds = (now_ns - self.marks.start_ns) / 1_000_000_000;
        format!(
            "{seconds} s: {} published, {} delivered, {} awaited",
            self.flows.published,
            self.books.delivered,
            self.flows.awaited(),
        )
    }
}
