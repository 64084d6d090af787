//! The tasks of a client: one that does what its plan says, one that looks after its connection, and
//! two for each connection. They decide nothing about MQTT.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mqtt::wire::QoS;
use rt_abstract::{
    Address, AsyncRead, AsyncWrite, Closer, Instant, Notify, Runtime, Shared, Stream,
};

use super::Machine;
use crate::history::{Content, End, What};
use crate::record::Record;
use crate::workload::Action;

const LOOK_MS: u64 = 200;
const REST_MS: u64 = 300;
const PING_MS: u64 = 1_000;
/// How long a client waits for a CONNACK, or for the answer to a ping.
const PATIENCE_MS: u64 = 15_000;
const READ_BYTES: usize = 4_096;

/// What all clients of a world share.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where the broker is.
    pub address: Address,
    /// When the world began.
    pub start: Instant,
    /// Where everything that is seen goes.
    pub record: Shared<Record>,
    /// What all clients are to do.
    pub phase: Shared<Phase>,
}

/// What clients are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// What their plans say.
    Plan,
    /// Be connected, and take what comes.
    Back,
    /// Remove their sessions and go.
    Last,
    /// Nothing at all.
    End,
}

struct Hands<R: Runtime> {
    machine: Machine,
    place: Place,
    wanted: bool,
    left: bool,
    wires: Option<Wires<R>>,
    hold_until_ms: u64,
    pause_until_ms: u64,
    ended_ms: u64,
    pinged_ms: u64,
    /// Connections that have not ended, and were not cut after they were replaced.
    open: BTreeSet<u32>,
}

/// The newest connection.
struct Wires<R: Runtime> {
    number: u32,
    opened_ms: u64,
    closer: Option<<R::Stream as Stream>::Closer>,
    wake: Arc<Notify>,
    /// Set by whoever cuts it.
    end: Option<End>,
    leaving: bool,
}

type Hand<R> = Shared<Hands<R>>;

/// A client from outside of its tasks.
pub struct Remote<R: Runtime>(Hand<R>);

/// Starts a client that does `actions`, each at its time in milliseconds since the start, in order,
/// with numbers that grow.
pub fn run<R: Runtime>(
    place: &Place,
    machine: Machine,
    actions: Vec<(u64, u32, Action)>,
) -> Remote<R> {
    let hands = Hands {
        machine,
        place: place.clone(),
        wanted: false,
        left: false,
        wires: None,
        hold_until_ms: 0,
        pause_until_ms: 0,
        ended_ms: 0,
        pinged_ms: 0,
        open: BTreeSet::new(),
    };
    let hand = Shared::new(hands);
    drop(R::spawn(act::<R>(hand.clone(), place.start, actions)));
    drop(R::spawn(look_after::<R>(hand.clone())));
    Remote(hand)
}

impl<R: Runtime> Remote<R> {
    /// Connects, if it is not, and subscribes.
    pub fn subscribe(&self, filter: &str, qos: QoS) {
        enter(&self.0, |hands| hands.machine.subscribe(filter, qos));
    }

    /// Connects and stays so.
    pub fn connect(&self) {
        self.0.with(|hands| hands.wanted = true);
    }

    /// Publishes.
    pub fn publish(&self, number: u32, content: Content, bytes: usize) {
        enter(&self.0, |hands| hands.machine.publish(number, content, bytes));
    }

    /// Whether it has removed its session and gone.
    pub fn has_left(&self) -> bool {
        self.0.with(|hands| hands.left)
    }
}

/// Does something, and hands over what comes of it.
fn enter<R: Runtime, T>(hand: &Hand<R>, f: impl FnOnce(&mut Hands<R>) -> T) -> T {
    hand.with(|hands| {
        let result = f(hands);
        let at_us = since_us::<R>(hands.place.start);
        let events = hands.machine.take_events();
        if !events.is_empty() {
            hands.place.record.with(|record| {
                events.into_iter().for_each(|what| record.see(at_us, what));
            });
        }
        if let Some(wires) = &hands.wires {
            wires.wake.notify();
        }
        result
    })
}

fn since_us<R: Runtime>(start: Instant) -> u64 {
    R::now().saturating_since(start).as_nanos() as u64 / 1_000
}

async fn act<R: Runtime>(hand: Hand<R>, start: Instant, actions: Vec<(u64, u32, Action)>) {
    for (at_ms, number, action) in actions {
        let due = start + Duration::from_millis(at_ms);
        let now = R::now();
        if due > now {
            R::sleep(due - now).await;
        }
        if hand.with(|hands| hands.place.phase.with(|phase| *phase) != Phase::Plan) {
            return;
        }
        perform(&hand, number, action);
    }
}

fn perform<R: Runtime>(hand: &Hand<R>, number: u32, action: Action) {
    match action {
        Action::Connect => {
            let open = enter(hand, |hands| {
                hands.wanted = true;
                hands.wires.is_none()
            });
            if open {
                self::open(hand, false, false);
            }
        }
        Action::Takeover => {
            enter(hand, |hands| hands.wanted = true);
            open(hand, false, false);
        }
        Action::Fresh => {
            enter(hand, |hands| hands.wanted = true);
            open(hand, true, false);
        }
        Action::Leave(with_will) => enter(hand, |hands| hands.leave(with_will)),
        Action::Vanish => enter(hand, |hands| {
            hands.wanted = false;
            hands.cut(End::ByClient);
        }),
        Action::Reconnect => enter(hand, |hands| hands.cut(End::ByClient)),
        Action::Subscribe(filter, qos) => {
            enter(hand, |hands| hands.machine.subscribe(&filter, qos));
        }
        Action::Unsubscribe(filter) => enter(hand, |hands| hands.machine.unsubscribe(&filter)),
        Action::Publish(content, bytes) => {
            enter(hand, |hands| hands.machine.publish(number, content, bytes));
        }
        Action::HoldAnswers(for_ms) => enter(hand, |hands| {
            hands.hold_until_ms = hands.now_ms() + for_ms;
            hands.machine.hold_answers(true);
        }),
        Action::ReadNothing(for_ms) => enter(hand, |hands| {
            hands.pause_until_ms = hands.now_ms() + for_ms;
        }),
    }
}

impl<R: Runtime> Hands<R> {
    fn now_ms(&self) -> u64 {
        since_us::<R>(self.place.start) / 1_000
    }

    fn leave(&mut self, with_will: bool) {
        self.wanted = false;
        if self.machine.is_connected() {
            self.machine.leave(with_will);
            if let Some(wires) = &mut self.wires {
                wires.leaving = true;
            }
        } else {
            self.cut(End::ByClient);
        }
    }

    fn cut(&mut self, end: End) {
        if let Some(wires) = &mut self.wires {
            wires.end.get_or_insert(end);
            if let Some(closer) = &wires.closer {
                closer.kill();
            }
        }
    }

    /// What time brings. Whether a connection is to be opened, and whether it is the last.
    fn look(&mut self) -> Option<bool> {
        let now_ms = self.now_ms();
        let phase = self.place.phase.with(|phase| *phase);
        if phase != Phase::Plan {
            (self.hold_until_ms, self.pause_until_ms) = (0, 0);
            self.wanted = phase == Phase::Back;
        }
        if self.hold_until_ms <= now_ms {
            self.machine.hold_answers(false);
        }
        let Some(wires) = &self.wires else {
            let last = phase == Phase::Last && !self.left;
            let rested = now_ms >= self.ended_ms + REST_MS;
            return (rested && (self.wanted || last)).then_some(last);
        };
        let connected = self.machine.is_connected();
        if !connected && now_ms >= wires.opened_ms + PATIENCE_MS {
            self.cut(End::Unanswered);
        }
        let oldest_ms = self.machine.oldest_ping_us().map(|at_us| at_us / 1_000);
        if oldest_ms.is_some_and(|at_ms| now_ms >= at_ms + PATIENCE_MS) {
            self.cut(End::Unanswered);
        } else if connected && now_ms >= self.pinged_ms + PING_MS {
            self.pinged_ms = now_ms;
            self.machine.ping(since_us::<R>(self.place.start));
        }
        None
    }
}

async fn look_after<R: Runtime>(hand: Hand<R>) {
    loop {
        R::sleep(Duration::from_millis(LOOK_MS)).await;
        let phase = hand.with(|hands| hands.place.phase.with(|phase| *phase));
        if phase == Phase::End {
            return;
        }
        if let Some(last) = enter(&hand, Hands::look) {
            open(&hand, false, last);
        } else if phase == Phase::Last && hand.with(|hands| !hands.left && hands.wires.is_some()) {
            // The session goes with a connection of its own.
            enter(&hand, |hands| hands.last_turn());
        }
    }
}

impl<R: Runtime> Hands<R> {
    /// Leaves in order, first the connection that there was and then the last one.
    fn last_turn(&mut self) {
        let leaving = self.wires.as_ref().is_some_and(|wires| wires.leaving);
        if !leaving && (self.machine.is_connected() || !self.machine.is_last()) {
            self.leave(false);
        }
    }
}

fn open<R: Runtime>(hand: &Hand<R>, fresh: bool, last: bool) {
    let wake = Arc::new(Notify::new());
    let (number, place) = enter(hand, |hands| {
        let number = hands.machine.open(fresh, last);
        let opened_ms = hands.now_ms();
        let (closer, wake) = (None, wake.clone());
        let (end, leaving) = (None, false);
        hands.open.insert(number);
        hands.wires = Some(Wires { number, opened_ms, closer, wake, end, leaving });
        (number, hands.place.clone())
    });
    drop(R::spawn(connection::<R>(hand.clone(), place, number, wake)));
}

async fn connection<R: Runtime>(hand: Hand<R>, place: Place, number: u32, wake: Arc<Notify>) {
    let stream = match R::connect(&place.address).await {
        Ok(stream) => stream,
        Err(_) => return over(&hand, number, End::Broken),
    };
    let closer = stream.closer();
    let (mut reader, writer) = stream.into_split();
    let go_on = hand.with(|hands| match &mut hands.wires {
        Some(wires) if wires.number == number && wires.end.is_none() => {
            wires.closer = Some(closer.clone());
            true
        }
        // It was given up, or replaced before it began.
        Some(wires) => wires.number != number,
        None => false,
    });
    if !go_on {
        return over(&hand, number, End::ByClient);
    }
    drop(R::spawn(outlive::<R>(hand.clone(), number, closer.clone())));
    let stop = rt_abstract::Shutdown::new();
    drop(R::spawn(write::<R>(hand.clone(), number, writer, wake.clone(), stop.clone())));
    let mut input = Vec::new();
    let end = loop {
        while hand.with(|hands| hands.is_paused(number)) {
            R::sleep(Duration::from_millis(LOOK_MS)).await;
        }
        input.reserve(READ_BYTES);
        let (result, buffer) = reader.read(input).await;
        input = buffer;
        match result {
            Ok(0) => break End::ByBroker,
            Ok(_) => enter(&hand, |hands| hands.machine.on_bytes(number, &mut input)),
            Err(_) => break End::Broken,
        }
    };
    closer.kill();
    stop.trigger();
    wake.notify();
    over(&hand, number, end);
}

/// Cuts a connection some time after it was replaced: it is for the broker to end it before.
async fn outlive<R: Runtime>(hand: Hand<R>, number: u32, closer: <R::Stream as Stream>::Closer) {
    let mut left_ms = PATIENCE_MS;
    while left_ms > 0 {
        R::sleep(Duration::from_millis(LOOK_MS)).await;
        let (gone, replaced) = hand.with(|hands| {
            let newer = hands.wires.as_ref().is_some_and(|wires| wires.number > number);
            (!hands.open.contains(&number), newer && hands.machine.is_connected())
        });
        if gone {
            return;
        }
        if replaced {
            left_ms = left_ms.saturating_sub(LOOK_MS);
        }
    }
    hand.with(|hands| hands.open.remove(&number));
    closer.kill();
}

impl<R: Runtime> Hands<R> {
    fn is_paused(&self, number: u32) -> bool {
        let newest = self.wires.as_ref().is_some_and(|wires| wires.number == number);
        newest && self.pause_until_ms > self.now_ms()
    }
}

fn over<R: Runtime>(hand: &Hand<R>, number: u32, end: End) {
    enter(hand, |hands| {
        let mut end = end;
        if let Some(wires) = hands.wires.take_if(|wires| wires.number == number) {
            end = wires.end.unwrap_or(end);
            hands.left |= wires.leaving && hands.machine.is_last();
            hands.ended_ms = hands.now_ms();
        } else if !hands.open.contains(&number) {
            end = End::Unanswered;
        }
        hands.open.remove(&number);
        hands.machine.ended(number, end);
    });
}

async fn write<R: Runtime>(
    hand: Hand<R>,
    number: u32,
    mut writer: <R::Stream as Stream>::WriteHalf,
    wake: Arc<Notify>,
    stop: rt_abstract::Shutdown,
) {
    while !stop.is_triggered() {
        let (output, leaving) = hand.with(|hands| {
            let leaving = hands.wires.as_ref().is_some_and(|it| it.number == number && it.leaving);
            (hands.machine.take_output(number), leaving)
        });
        if !output.is_empty() {
            let (result, _) = writer.write_all(output).await;
            if result.is_err() {
                return;
            }
        } else if leaving {
            let _ = writer.shutdown().await;
            return;
        } else {
            wake.notified().await;
        }
    }
}

/// What a world says about itself, beside its clients.
pub fn see<R: Runtime>(place: &Place, what: What) {
    let at_us = since_us::<R>(place.start);
    place.record.with(|record| record.see(at_us, what));
}
