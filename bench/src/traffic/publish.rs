//! The flows: which message is next, and whether it may go.

use std::collections::VecDeque;

use mqtt::wire::QoS;

use super::books::Books;
use super::inflight::Unacked;
use super::links::Links;
use super::{Load, Pace};
use crate::payload::{STAMP_BYTES, Stamp};
use crate::plan::Plan;
use crate::schedule::Schedule;

/// Unwritten bytes at which a publisher waits for the broker. Messages that fall due meanwhile are
/// numbers, not bytes: they wait in the schedule, and their clocks run.
pub const OUTPUT_LIMIT_BYTES: usize = 256 << 10;
/// Messages taken from the schedule in one turn.
const DUE_PER_TURN: usize = 4_096;
/// Messages of one flow in one turn.
const BURST: usize = 256;

/// All flows of a run.
pub struct Flows {
    /// Messages published.
    pub published: u64,
    /// Whether subscribers are there: deliveries are awaited, and windows wait for them.
    pub deliveries_count: bool,
    flows: Vec<Flow>,
    ready: VecDeque<usize>,
    /// Due times of what was sent in this turn and not held back.
    sent_now: Vec<u64>,
    filler: Vec<u8>,
    copies: u64,
    window: u64,
    /// Messages that flows of connected publishers owe: due and unsent, or not yet filled in.
    owed: u64,
    delivered: u64,
    stopped: bool,
    fill: bool,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    sent: u64,
    delivered: u64,
    unacked: u64,
    owed: u64,
    /// How many of the owed ones the broker has held back.
    held: u64,
    queued: bool,
    blocked: bool,
}

impl Flows {
    /// Nothing sent yet.
    pub fn new(plan: &Plan, load: &Load) -> Self {
        let (window, each) = match load.pace {
            Pace::Rate(_) => (u64::MAX, 0),
            Pace::Full(window) => (window, 0),
            Pace::Fill { window, each } => (window, each),
        };
        Self {
            published: 0,
            deliveries_count: false,
            flows: vec![Flow { owed: each, ..Flow::default() }; plan.flows.len()],
            ready: VecDeque::with_capacity(plan.flows.len()),
            sent_now: Vec::with_capacity(DUE_PER_TURN),
            filler: vec![b'.'; load.sizes.max() - STAMP_BYTES],
            copies: plan.copies(0),
            window,
            owed: each * plan.flows.len() as u64,
            delivered: 0,
            stopped: false,
            fill: matches!(load.pace, Pace::Fill { .. }),
        }
    }

    /// Identifiers that a publisher of `plan` needs.
    pub fn unacked_limit(&self, plan: &Plan, load: &Load) -> u16 {
        if load.qos == QoS::AtMostOnce {
            return 0;
        }
        let flows = plan.flows.len().div_ceil(plan.publishers) as u64;
        let all = self.window.saturating_mul(flows).min(u64::from(u16::MAX)) as u16;
        all.min(load.unacked)
    }

    /// Messages that a flow has published.
    pub fn sent(&self, flow: usize) -> u64 {
        self.flows[flow].sent
    }

    /// Messages that were due, or to be filled in, and never went out.
    pub fn unsent(&self) -> u64 {
        self.flows.iter().map(|flow| flow.owed).sum()
    }

    /// Deliveries that are still to come.
    pub fn awaited(&self) -> u64 {
        if !self.deliveries_count {
            return 0;
        }
        (self.published * self.copies).saturating_sub(self.delivered)
    }

    /// Lets every flow send.
    pub fn offer_all(&mut self) {
        (0..self.flows.len()).for_each(|flow| self.offer(flow));
    }

    /// Ends the closed loop.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether everything has been sent that is to be.
    pub fn nothing_to_send(&self, schedule: &Option<Schedule>) -> bool {
        match schedule {
            Some(schedule) => schedule.next_due_ns().is_none() && self.owed == 0,
            None => self.stopped || self.fill && self.owed == 0,
        }
    }

    /// Takes what is due from the schedule.
    pub fn take_due(
        &mut self,
        schedule: &mut Option<Schedule>,
        now_ns: u64,
        links: &Links,
        plan: &Plan,
    ) {
        let Some(schedule) = schedule else { return };
        for _ in 0..DUE_PER_TURN {
            let Some(due) = schedule.take(now_ns) else { return };
            let number = (due.number % self.flows.len() as u64) as usize;
            let flow = &mut self.flows[number];
            flow.owed += 1;
            if links.is_open(plan.publisher(number)) {
                self.owed += 1;
                flow.held += u64::from(flow.blocked);
                self.offer(number);
            }
        }
    }

    /// Sends what may go now. A flow that has more comes again in the next turn.
    pub fn send_ready(
        &mut self,
        links: &mut Links,
        plan: &Plan,
        load: &Load,
        books: &mut Books,
        schedule: Option<&Schedule>,
        now_ns: u64,
    ) {
        for _ in 0..self.ready.len() {
            let Some(flow) = self.ready.pop_front() else { return };
            self.flows[flow].queued = false;
            self.send_flow(flow, links, plan, load, books, schedule, now_ns);
        }
    }

    /// Writes down how late the messages of this turn were, now that they are written.
    pub fn note_lateness(&mut self, books: &mut Books, now_ns: u64) {
        for due_ns in self.sent_now.drain(..) {
            if books.measured_ns.contains(&due_ns) {
                books.lateness.record(now_ns.saturating_sub(due_ns));
            }
        }
    }

    /// How long nothing has to be sent.
    pub fn wait_ns(&self, schedule: &Option<Schedule>, now_ns: u64) -> u64 {
        if !self.ready.is_empty() {
            return 0;
        }
        let next_ns = schedule.as_ref().and_then(Schedule::next_due_ns);
        next_ns.map_or(u64::MAX, |next_ns| next_ns.saturating_sub(now_ns))
    }

    /// Takes a first delivery.
    #[inline]
    pub fn delivered(&mut self, flow: usize) {
        self.delivered += 1;
        self.flows[flow].delivered += 1;
        self.offer_in_closed_loop(flow);
    }

    /// Takes an acknowledgement.
    #[inline]
    pub fn acknowledged(&mut self, flow: usize) {
        self.flows[flow].unacked -= 1;
        self.offer_in_closed_loop(flow);
    }

    /// Lets a flow go on that waited for its connection.
    pub fn unblocked(&mut self, flow: usize) {
        self.flows[flow].blocked = false;
        self.offer(flow);
    }

    /// Waits no longer for what a publisher was to send.
    pub fn publisher_gone(&mut self, publisher: usize, plan: &Plan) {
        let flows = self.flows.iter().skip(publisher).step_by(plan.publishers);
        self.owed -= flows.map(|flow| flow.owed).sum::<u64>();
    }

    fn offer_in_closed_loop(&mut self, flow: usize) {
        if self.window != u64::MAX && !self.flows[flow].blocked {
            self.offer(flow);
        }
    }

    fn offer(&mut self, flow: usize) {
        let it = &mut self.flows[flow];
        if !it.queued && !it.blocked {
            it.queued = true;
            self.ready.push_back(flow);
        }
    }

    #[inline]
    fn may_send(&self, flow: usize, load: &Load) -> bool {
        let it = &self.flows[flow];
        match load.pace {
            Pace::Rate(_) => return it.owed > 0,
            Pace::Full(_) if self.stopped => return false,
            Pace::Fill { .. } if it.owed == 0 => return false,
            _ => {}
        }
        let under_way = it.sent * self.copies - it.delivered;
        let delivered = !self.deliveries_count || under_way < self.window * self.copies.max(1);
        delivered && it.unacked < self.window
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one run, borrowed apart")]
    fn send_flow(
        &mut self,
        flow: usize,
        links: &mut Links,
        plan: &Plan,
        load: &Load,
        books: &mut Books,
        schedule: Option<&Schedule>,
        now_ns: u64,
    ) {
        let token = plan.publisher(flow);
        for _ in 0..BURST {
            if !self.may_send(flow, load) {
                return;
            }
            let Some((client, inflight)) = links.both(token) else { return };
            let number = self.flows[flow].sent;
            let due_ns = match schedule {
                Some(schedule) => schedule.due_ns(number * self.flows.len() as u64 + flow as u64),
                None => now_ns,
            };
            let message = Unacked { due_ns, flow: flow as u32 };
            let full = client.backlog_bytes() > OUTPUT_LIMIT_BYTES;
            let packet_id = match load.qos {
                QoS::AtMostOnce => None,
                _ if full => None,
                _ => inflight.take(message),
            };
            if full || packet_id.is_some() != (load.qos != QoS::AtMostOnce) {
                let it = &mut self.flows[flow];
                (it.blocked, it.held) = (true, it.owed);
                links.block(token, flow);
                return;
            }
            let stamp = Stamp { run: load.run, flow: flow as u32, number, due_ns };
            let size = load.sizes.of(stamp.flow, number);
            let topic = plan.topic(flow, number);
            client.publish(topic, load.qos, packet_id, stamp, size, &self.filler);
            links.make_dirty(token);
            links.unacked += u64::from(packet_id.is_some());
            self.count_sent(flow, packet_id.is_some(), due_ns, schedule.is_some(), books);
        }
        self.offer(flow);
    }

    #[inline]
    fn count_sent(
        &mut self,
        flow: usize,
        acknowledged: bool,
        due_ns: u64,
        scheduled: bool,
        books: &mut Books,
    ) {
        self.published += 1;
        let it = &mut self.flows[flow];
        it.sent += 1;
        it.unacked += u64::from(acknowledged);
        if it.owed > 0 {
            it.owed -= 1;
            self.owed -= 1;
        }
        if it.held > 0 {
            it.held -= 1;
            books.held_back += u64::from(scheduled);
        } else if scheduled {
            self.sent_now.push(due_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use mqtt::wire::{Frame, Packet, PacketId, Version, decode_from_client, peek};

    use super::*;
    use crate::client::{Client, Target};
    use crate::event::Poller;

    const MS: u64 = 1_000_000;

    /// One publisher of 1 000 messages/s on a real socket, under a clock of the test's own.
    struct Bench {
        plan: Plan,
        load: Load,
        flows: Flows,
        links: Links,
        books: Books,
        schedule: Option<Schedule>,
        broker: TcpStream,
    }

    impl Bench {
        fn new(qos: QoS, unacked: u16) -> Self {
            let plan = Plan::pairs(1, 1);
            let load = Load { run: 1, qos, pace: Pace::Rate(1_000.0), ..Load::default() };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let target = Target::new(listener.local_addr().unwrap());
            let client = Client::connect(&target, 0).unwrap();
            let broker = listener.accept().unwrap().0;
            broker.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut links = Links::new(Poller::new().unwrap(), &plan);
            links.attach(0, client, unacked).unwrap();
            let mut books = Books::new(&plan);
            books.measured_ns = 0..u64::MAX;
            let flows = Flows::new(&plan, &load);
            let schedule = Some(Schedule::new(0, 1_000.0, 1_000));
            Self { plan, load, flows, links, books, schedule, broker }
        }

        /// One turn of the loop at `now_ns`, whose writes end `wrote_ns` later.
        fn turn(&mut self, now_ns: u64, wrote_ns: u64) {
            let Self { plan, load, flows, links, books, schedule, .. } = self;
            flows.take_due(schedule, now_ns, links, plan);
            loop {
                flows.send_ready(links, plan, load, books, schedule.as_ref(), now_ns);
                if flows.ready.is_empty() {
                    break;
                }
            }
            links.flush(flows, plan);
            flows.note_lateness(books, now_ns + wrote_ns);
        }

        /// The due times of the next `count` messages that reach the broker.
        fn arrived(&mut self, count: usize) -> Vec<u64> {
            let (mut input, mut due) = (Vec::new(), Vec::new());
            let mut buffer = [0; 4_096];
            while due.len() < count {
                let read = self.broker.read(&mut buffer).unwrap();
                input.extend_from_slice(&buffer[..read]);
                while let Frame::Complete { total_bytes, .. } = peek(&input, u32::MAX).unwrap() {
                    let packet = decode_from_client(&input[..total_bytes], Version::V3_1_1);
                    let Packet::Publish(publish) = packet.unwrap() else { panic!("no publish") };
                    due.push(Stamp::of(publish.payload).unwrap().due_ns);
                    input.drain(..total_bytes);
                }
            }
            due
        }
    }

    #[test]
    fn a_late_generator_says_so_and_its_messages_keep_their_due_times() {
        let mut bench = Bench::new(QoS::AtMostOnce, 0);
        bench.turn(0, 0);
        assert_eq!(bench.arrived(1), [0]);
        // It was away until 400 ms, and writing took 2 ms.
        bench.turn(400 * MS, 2 * MS);
        let expected: Vec<u64> = (1..=400).map(|ms| ms * MS).collect();
        assert_eq!(bench.arrived(400), expected);
        let lateness = &bench.books.lateness;
        assert_eq!(lateness.count(), 401);
        // 200 of 401 were later than 200 ms, on top of the 2 ms.
        let crate::latency::Quote::Ns(median_ns) = lateness.quote(50_000) else { panic!() };
        assert!(median_ns.abs_diff(201 * MS) < 2 * MS, "{median_ns}");
        assert!(lateness.max_ns().abs_diff(401 * MS) < MS);
        assert_eq!((bench.books.held_back, bench.flows.unsent()), (0, 0));
    }

    #[test]
    fn what_a_stopped_broker_holds_back_keeps_its_due_time_and_is_no_lateness() {
        // One message may be unacknowledged. The broker stops for 500 ms.
        let mut bench = Bench::new(QoS::AtLeastOnce, 1);
        for ms in 0..500 {
            bench.turn(ms * MS, 0);
        }
        assert_eq!(bench.arrived(1), [0]);
        assert_eq!((bench.flows.unsent(), bench.flows.published), (499, 1));
        for ms in 1..500 {
            let (_, inflight) = bench.links.both(0).unwrap();
            let message = inflight.release(PacketId::MIN).unwrap();
            assert_eq!(message.due_ns, (ms - 1) * MS);
            bench.flows.acknowledged(message.flow as usize);
            bench.links.unacked -= 1;
            bench.links.unblock(0, 1, &mut bench.flows);
            bench.turn(499 * MS, 0);
            // Sent at 499 ms at the earliest, and still due when it was.
            assert_eq!(bench.arrived(1), [ms * MS]);
        }
        assert_eq!(bench.flows.unsent(), 0);
        assert_eq!(bench.books.held_back, 499);
        assert_eq!(bench.books.lateness.count(), 1, "only the first was up to the generator");
    }

    #[test]
    fn the_closed_loop_keeps_its_window_and_a_fill_its_count() {
        let mut bench = Bench::new(QoS::AtMostOnce, 0);
        bench.load.pace = Pace::Fill { window: 3, each: 5 };
        bench.flows = Flows::new(&bench.plan, &bench.load);
        bench.flows.deliveries_count = true;
        bench.schedule = None;
        bench.flows.offer_all();
        bench.turn(7 * MS, 0);
        assert_eq!(bench.arrived(3), [7 * MS; 3]);
        assert_eq!((bench.flows.awaited(), bench.flows.nothing_to_send(&None)), (3, false));
        bench.flows.delivered(0);
        bench.turn(8 * MS, 0);
        assert_eq!(bench.arrived(1), [8 * MS]);
        for _ in 0..3 {
            bench.flows.delivered(0);
        }
        bench.turn(9 * MS, 0);
        assert_eq!(bench.arrived(1), [9 * MS]);
        assert_eq!((bench.flows.published, bench.flows.nothing_to_send(&None)), (5, true));
        assert_eq!((bench.flows.awaited(), bench.books.lateness.count()), (1, 0));
    }

    #[test]
    fn a_publisher_that_is_gone_is_not_waited_for() {
        let mut bench = Bench::new(QoS::AtLeastOnce, 1);
        bench.turn(10 * MS, 0);
        assert_eq!((bench.links.unacked, bench.flows.unsent()), (1, 10));
        bench.links.close(0, "a test", &mut bench.flows, &bench.plan);
        bench.turn(1_000 * MS, 0);
        assert!(bench.flows.nothing_to_send(&bench.schedule));
        assert_eq!((bench.links.unacked, bench.links.closed, bench.flows.unsent()), (0, 1, 999));
    }
}
