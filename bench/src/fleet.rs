//! Opens many connections at once or at a rate, subscribes, and times each step.

use std::io;
use std::ops::ControlFlow;

use mqtt::wire::{FilterBuf, Packet, PacketId, Properties, QoS, Subscribe, SubscribeOptions};

use crate::client::{Client, READ_BYTES, Target};
use crate::event::{Clock, Poller, Ready};
use crate::latency::Latencies;
use crate::progress::Progress;
use crate::schedule::Schedule;

/// Filters in one SUBSCRIBE; the next goes out when the last was acknowledged.
const FILTERS_AT_ONCE: usize = 100;
/// Connections begun between two looks at the sockets.
const STARTS_PER_TURN: usize = 64;
/// Connections under way when a fleet is only opened to be used.
const SETUP_UNDER_WAY: usize = 100;

/// A client to be opened.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// Its name.
    pub client_id: String,
    /// Whether to begin a new session.
    pub clean: bool,
    /// How long the session outlives the connection; version 5 only.
    pub expiry_s: u32,
    /// What it subscribes to.
    pub filters: Vec<String>,
    /// At which QoS.
    pub qos: QoS,
}

/// How clients come.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// All are due at once, and as many are under way as this.
    AtOnce(usize),
    /// So many a second.
    Rate(f64),
}

/// A fleet and what opening it took.
pub struct Fleet {
    /// In the order of the asks; `None` failed.
    pub clients: Vec<Option<Client>>,
    /// From when a client was due to CONNACK.
    pub from_due: Latencies,
    /// From the client's own connect() to CONNACK.
    pub from_connect: Latencies,
    /// From each SUBSCRIBE to its SUBACK.
    pub subscribed: Latencies,
    /// Sessions that were resumed.
    pub resumed: u64,
    /// Why the first failed, if any did.
    pub first_failure: Option<String>,
    /// From the start to the last CONNACK.
    pub connecting_ns: u64,
    /// From the first SUBSCRIBE to the last SUBACK.
    pub subscribing_ns: u64,
}

impl Arrivals {
    /// For a fleet that is opened to be used, not to be measured.
    pub const SETUP: Self = Self::AtOnce(SETUP_UNDER_WAY);
}

impl Fleet {
    /// Opens all of `asks`. A client that the broker refuses is a failure of that client; an error
    /// is the machine's, such as too few descriptors.
    pub fn open(target: &Target, asks: &[Ask], arrivals: Arrivals) -> io::Result<Self> {
        let mut opening = Opening::new(target, asks, arrivals)?;
        opening.run()?;
        Ok(opening.fleet)
    }

    /// Clients that could not be opened.
    pub fn failures(&self) -> usize {
        self.clients.iter().filter(|client| client.is_none()).count()
    }

    /// All clients, or why the first is missing.
    pub fn all(self) -> Result<Vec<Client>, String> {
        let failed = self.failures();
        let clients: Option<Vec<_>> = self.clients.into_iter().collect();
        clients.ok_or_else(|| {
            let reason = self.first_failure.unwrap_or_default();
            format!("{failed} clients could not be opened: {reason}")
        })
    }

    /// Says goodbye to all.
    pub fn close(self) {
        self.clients.into_iter().flatten().for_each(Client::close);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Connecting,
    Greeting,
    /// Filters that were asked for so far.
    Subscribing(usize),
    Done,
}

struct Slot {
    state: State,
    due_ns: u64,
    started_ns: u64,
    asked_ns: u64,
}

struct Opening<'a> {
    target: &'a Target,
    asks: &'a [Ask],
    schedule: Option<Schedule>,
    under_way_limit: usize,
    poller: Poller,
    clock: Clock,
    slots: Vec<Slot>,
    started: usize,
    finished: usize,
    /// All before it are done: those that started first are the first to be late.
    oldest: usize,
    first_subscribe_ns: Option<u64>,
    scratch: Vec<u8>,
    fleet: Fleet,
}

impl<'a> Opening<'a> {
    fn new(target: &'a Target, asks: &'a [Ask], arrivals: Arrivals) -> io::Result<Self> {
        let clock = Clock::start();
        let (schedule, under_way_limit) = match arrivals {
            Arrivals::AtOnce(under_way) => (None, under_way.max(1)),
            Arrivals::Rate(rate) => (Some(Schedule::new(0, rate, asks.len() as u64)), asks.len()),
        };
        let slot = |_| Slot { state: State::Waiting, due_ns: 0, started_ns: 0, asked_ns: 0 };
        Ok(Self {
            target,
            asks,
            schedule,
            under_way_limit,
            poller: Poller::new()?,
            clock,
            slots: (0..asks.len()).map(slot).collect(),
            started: 0,
            finished: 0,
            oldest: 0,
            first_subscribe_ns: None,
            scratch: vec![0; READ_BYTES],
            fleet: Fleet {
                clients: asks.iter().map(|_| None).collect(),
                from_due: Latencies::new(),
                from_connect: Latencies::new(),
                subscribed: Latencies::new(),
                resumed: 0,
                first_failure: None,
                connecting_ns: 0,
                subscribing_ns: 0,
            },
        })
    }

    /// Ends at the latest one timeout after the last client was started.
    fn run(&mut self) -> io::Result<()> {
        let mut ready: Vec<Ready> = Vec::new();
        let mut progress = Progress::new();
        while self.finished < self.asks.len() {
            let now_ns = self.clock.now_ns();
            let timeout_ns = self.start_due(now_ns)?;
            self.give_up_on_the_late(now_ns)?;
            progress
                .tick(now_ns, || format!("{} of {} clients open", self.finished, self.asks.len()));
            self.poller.wait(timeout_ns, &mut ready)?;
            for event in &ready {
                self.step(event.token)?;
            }
        }
        progress.done();
        Ok(())
    }

    /// Starts what is due and says how long to wait for the next.
    fn start_due(&mut self, now_ns: u64) -> io::Result<u64> {
        for _ in 0..STARTS_PER_TURN {
            let free = self.started - self.finished < self.under_way_limit;
            if self.started == self.asks.len() || !free {
                return Ok(u64::MAX);
            }
            let due_ns = match &mut self.schedule {
                None => 0,
                Some(schedule) => match schedule.take(now_ns) {
                    Some(due) => due.at_ns,
                    None => return Ok(schedule.next_due_ns().map_or(u64::MAX, |at| at - now_ns)),
                },
            };
            self.start(due_ns)?;
        }
        Ok(0)
    }

    fn start(&mut self, due_ns: u64) -> io::Result<()> {
        let token = self.started;
        self.started += 1;
        let slot = &mut self.slots[token];
        (slot.state, slot.due_ns, slot.started_ns) =
            (State::Connecting, due_ns, self.clock.now_ns());
        match Client::connect(self.target, token) {
            Ok(client) => {
                self.poller.add(&client, token, true)?;
                self.fleet.clients[token] = Some(client);
                Ok(())
            }
            // What the machine lacks, the next client would lack as well.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
                Err(error)
            }
            Err(error) => self.fail(token, &error.to_string()),
        }
    }

    fn give_up_on_the_late(&mut self, now_ns: u64) -> io::Result<()> {
        while self.oldest < self.started {
            let slot = &self.slots[self.oldest];
            if slot.state != State::Done {
                if now_ns.saturating_sub(slot.started_ns) < self.target.timeout_ns {
                    break;
                }
                self.fail(self.oldest, &format!("no answer in time ({:?})", slot.state))?;
            }
            self.oldest += 1;
        }
        Ok(())
    }

    fn step(&mut self, token: usize) -> io::Result<()> {
        if let Err(reason) = self.try_step(token) {
            self.fail(token, &reason)?;
        }
        Ok(())
    }

    fn try_step(&mut self, token: usize) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let Some(client) = &mut self.fleet.clients[token] else { return Ok(()) };
        let (slot, ask) = (&mut self.slots[token], &self.asks[token]);
        if slot.state == State::Connecting {
            client.connected().map_err(text)?;
            client.greet(self.target, &ask.client_id, ask.clean, ask.expiry_s);
            slot.state = State::Greeting;
            // A CONNECT fits into the buffer of a new socket.
            client.flush().map_err(text)?;
            return self.poller.set(&*client, token, false).map_err(text);
        }
        let mut answer = None;
        let mut receive_maximum = None;
        client
            .read(&mut self.scratch, |packet, _| {
                answer = match packet {
                    Packet::ConnAck(ack) if ack.reason.is_error() => {
                        Some(Err(format!("refused: {:?}", ack.reason)))
                    }
                    Packet::ConnAck(ack) => {
                        receive_maximum = ack.properties.receive_maximum();
                        Some(Ok(ack.session_present))
                    }
                    Packet::SubAck(ack) if ack.codes.iter().any(|code| *code >= 0x80) => {
                        Some(Err("a subscription was refused".to_owned()))
                    }
                    Packet::SubAck(_) => Some(Ok(false)),
                    Packet::Disconnect(bye) => Some(Err(format!("sent away: {:?}", bye.reason))),
                    // A publish that a resumed session had waiting would come after CONNACK.
                    _ => return ControlFlow::Continue(()),
                };
                ControlFlow::Break(())
            })
            .map_err(text)?;
        client.receive_maximum = receive_maximum.unwrap_or(client.receive_maximum);
        let Some(resumed) = answer.transpose()? else { return Ok(()) };
        let now_ns = self.clock.now_ns();
        let asked = match slot.state {
            State::Subscribing(asked) => {
                self.fleet.subscribed.record(now_ns - slot.asked_ns);
                let first_ns = self.first_subscribe_ns.unwrap_or(now_ns);
                self.fleet.subscribing_ns = now_ns - first_ns;
                asked
            }
            _ => {
                self.fleet.from_due.record(now_ns.saturating_sub(slot.due_ns));
                self.fleet.from_connect.record(now_ns - slot.started_ns);
                self.fleet.connecting_ns = now_ns;
                self.fleet.resumed += u64::from(resumed);
                0
            }
        };
        if asked < ask.filters.len() {
            let next = (asked + FILTERS_AT_ONCE).min(ask.filters.len());
            subscribe(client, &ask.filters[asked..next], ask.qos, asked / FILTERS_AT_ONCE);
            slot.state = State::Subscribing(next);
            slot.asked_ns = now_ns;
            // Only a client that goes on getting answers stays young.
            slot.started_ns = now_ns;
            self.first_subscribe_ns.get_or_insert(now_ns);
            let done = client.flush().map_err(text)?;
            return if done { Ok(()) } else { Err("the socket takes no SUBSCRIBE".to_owned()) };
        }
        slot.state = State::Done;
        self.finished += 1;
        self.poller.remove(&*client).map_err(text)
    }

    fn fail(&mut self, token: usize, reason: &str) -> io::Result<()> {
        let slot = &mut self.slots[token];
        if slot.state != State::Done {
            slot.state = State::Done;
            self.finished += 1;
        }
        if let Some(client) = self.fleet.clients[token].take() {
            self.poller.remove(&client)?;
        }
        let first = &mut self.fleet.first_failure;
        first.get_or_insert_with(|| format!("{}: {reason}", self.asks[token].client_id));
        Ok(())
    }
}

fn subscribe(client: &mut Client, filters: &[String], qos: QoS, chunk: usize) {
    let mut list = FilterBuf::for_subscribe();
    for filter in filters {
        list.push(filter, SubscribeOptions { qos, ..SubscribeOptions::default() });
    }
    client.send(&Packet::Subscribe(Subscribe {
        packet_id: PacketId::new((chunk % 65_535 + 1) as u16).unwrap_or(PacketId::MIN),
        properties: Properties::EMPTY,
        filters: list.as_filters(),
    }));
}
