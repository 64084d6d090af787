//! A session's sending side: into the queue, into the window, acknowledged out of it:
//! `cargo bench -p mqtt --bench session`. With `-- --test` everything runs once.

#![allow(missing_docs, reason = "the macros of criterion")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mqtt::session::{
    Delivery, Draft, Message, Outgoing, Place, PubRecOutcome, QueueBounds, QueueFull, Queued, Step,
};
use mqtt::wire::{PacketId, QoS};

criterion_group!(benches, passing, full_queue, resuming);
criterion_main!(benches);

const WINDOW: u16 = 64;

/// Through the window while it is always full: one comes, the oldest is acknowledged, one is sent.
fn passing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("through a full window of 64");
    group.throughput(Throughput::Elements(1));
    for (name, qos) in [("QoS 1", QoS::AtLeastOnce), ("QoS 2", QoS::ExactlyOnce)] {
        for depth in [0, 10_000] {
            group.bench_function(format!("{name}, {depth} behind"), |bencher| {
                let mut side = Side::new(qos, usize::from(WINDOW) + depth);
                bencher.iter(|| {
                    side.enqueue();
                    side.acknowledge_oldest();
                    let id = side.send().expect("the window has room");
                    side.sent.push_back(id);
                });
            });
        }
    }
    group.finish();
}

/// A queue at its bound, for both policies.
fn full_queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("into a full queue of 1000");
    group.throughput(Throughput::Elements(1));
    for (name, when_full) in [("drop-new", QueueFull::DropNew), ("drop-old", QueueFull::DropOld)] {
        group.bench_function(name, |bencher| {
            let mut side = Side::new(QoS::AtLeastOnce, 1_000 + usize::from(WINDOW));
            side.bounds = QueueBounds { max_messages: 1_000, when_full, ..side.bounds };
            bencher.iter(|| {
                let queued = side.queued();
                let full = side.outgoing.enqueue(queued, &side.bounds, &mut Vec::new());
                black_box(full.expect_err("one is dropped"));
            });
        });
    }
    group.finish();
}

/// A client comes back to a full window: all of it is owed again, in order.
fn resuming(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("resume");
    group.throughput(Throughput::Elements(WINDOW.into()));
    group.bench_function("a window of 64", |bencher| {
        let mut side = Side::new(QoS::AtLeastOnce, usize::from(WINDOW));
        bencher.iter(|| {
            side.outgoing.resume();
            for _ in 0..WINDOW {
                black_box(side.send().expect("it is owed again"));
            }
        });
    });
    group.finish();
}

/// The sending side of one session with its client's.
struct Side {
    outgoing: Outgoing,
    bounds: QueueBounds,
    message: Arc<Message>,
    qos: QoS,
    /// Sent and not acknowledged, oldest first.
    sent: VecDeque<PacketId>,
}

impl Side {
    /// With so many messages, of which the window's are sent.
    fn new(qos: QoS, messages: usize) -> Self {
        let draft = Draft {
            topic: "plant/hall-7/line-3/sensor-42/temperature",
            payload: &[b'x'; 128],
            owner: None,
            properties: &[],
            qos,
            retain: false,
            expires_at_ms: None,
            origin: 0,
        };
        let mut side = Self {
            outgoing: Outgoing::default(),
            bounds: QueueBounds {
                max_messages: usize::MAX,
                max_bytes: usize::MAX,
                when_full: QueueFull::DropNew,
            },
            message: Arc::new(Message::keep(&draft)),
            qos,
            sent: VecDeque::new(),
        };
        for _ in 0..messages {
            side.enqueue();
        }
        for _ in 0..messages.min(WINDOW.into()) {
            let id = side.send().expect("the window has room");
            side.sent.push_back(id);
        }
        assert!(side.send().is_none(), "the window is full, or nothing is left");
        side
    }

    fn queued(&self) -> Queued {
        let subscription_ids = Default::default();
        let delivery = Delivery { qos: self.qos, retain: false, subscription_ids, share: None };
        Queued::new(self.message.clone(), delivery)
    }

    fn enqueue(&mut self) {
        let queued = self.queued();
        self.outgoing.enqueue(queued, &self.bounds, &mut Vec::new()).expect("there is room");
    }

    fn send(&mut self) -> Option<PacketId> {
        let step = self.outgoing.next_step(
            WINDOW,
            &self.bounds,
            Place::PENDING,
            0,
            &mut 0,
            &mut Vec::new(),
        )?;
        let (Step::Publish { id, .. } | Step::Release(id)) = step;
        Some(id)
    }

    fn acknowledge_oldest(&mut self) {
        let id = self.sent.pop_front().expect("the window is full");
        let progress = &mut Vec::new();
        let over = match self.qos {
            QoS::ExactlyOnce => {
                let release = self.outgoing.on_pubrec(id, false, progress);
                release == PubRecOutcome::Release && self.outgoing.on_pubcomp(id, progress)
            }
            _ => self.outgoing.on_puback(id, progress),
        };
        assert!(over, "it was sent");
    }
}
