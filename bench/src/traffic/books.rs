//! What is written down about every message, apart from any socket.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Load;
use crate::latency::Latencies;
use crate::ledger::{Account, Arrival, Ledger};
use crate::payload::Stamp;
use crate::plan::Plan;

/// Faulty accounts that a result lists; the sum holds all.
const FAULTS_LISTED: usize = 1_000;

/// The books of one run.
pub struct Books {
    ledger: Ledger,
    /// The times at which measured messages are due.
    pub measured_ns: Range<u64>,
    /// From when a message was due to its delivery, in the open loop.
    pub delivery: Latencies,
    /// From when a message was due to PUBACK or PUBCOMP, in the open loop.
    pub acknowledgement: Latencies,
    /// From when a message was due until it was given to the kernel; of those that the broker did
    /// not hold back. This is the generator's own doing.
    pub lateness: Latencies,
    /// Different messages delivered.
    pub delivered: u64,
    /// Publishes that the broker refused with a reason code.
    pub refused: u64,
    /// Deliveries that are not of this run or not for this receiver.
    pub foreign: u64,
    /// Deliveries of another size than was sent.
    pub damaged: u64,
    /// Acknowledgements of nothing that was under way.
    pub stray_acknowledgements: u64,
    /// Messages that waited because the broker took no bytes or owed acknowledgements.
    pub held_back: u64,
}

/// An account that is not clean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Number of the publisher.
    pub publisher: usize,
    /// Number of the subscriber, or of the group.
    pub receiver: usize,
    /// The topic, or the first of them.
    pub topic: String,
    /// What became of the messages.
    pub account: Account,
}

impl Books {
    /// Empty ones.
    pub fn new(plan: &Plan) -> Self {
        let mut ledger = Ledger::default();
        for receiver in &plan.receivers {
            ledger.add_receiver(receiver.flows, receiver.members);
        }
        Self {
            ledger,
            measured_ns: 0..0,
            delivery: Latencies::new(),
            acknowledgement: Latencies::new(),
            lateness: Latencies::new(),
            delivered: 0,
            refused: 0,
            foreign: 0,
            damaged: 0,
            stray_acknowledgements: 0,
            held_back: 0,
        }
    }

    /// Takes a delivery to a member of `plan`; gives the flow when it came for the first time.
    #[inline]
    pub fn deliver(
        &mut self,
        plan: &Plan,
        load: &Load,
        member: usize,
        payload: &[u8],
        now_ns: u64,
    ) -> Option<usize> {
        let member = &plan.members[member];
        let stamp = Stamp::of(payload).filter(|stamp| stamp.run == load.run);
        let flow = stamp.and_then(|stamp| plan.flows.get(stamp.flow as usize));
        let (Some(stamp), Some(flow)) = (stamp, flow) else {
            self.foreign += 1;
            return None;
        };
        if !flow.receivers.contains(&member.receiver) {
            self.foreign += 1;
            return None;
        }
        if payload.len() != load.sizes.of(stamp.flow, stamp.number) {
            self.damaged += 1;
        }
        let arrival = self.ledger.arrive(member.receiver, member.number, flow.slot, stamp.number);
        if arrival != Arrival::New {
            return None;
        }
        self.delivered += 1;
        if load.open_loop() && self.measured_ns.contains(&stamp.due_ns) {
            self.delivery.record(now_ns.saturating_sub(stamp.due_ns));
        }
        Some(stamp.flow as usize)
    }

    /// Takes an acknowledgement of a message that was due then.
    #[inline]
    pub fn acknowledge(&mut self, load: &Load, due_ns: u64, now_ns: u64) {
        if load.open_loop() && self.measured_ns.contains(&due_ns) {
            self.acknowledgement.record(now_ns.saturating_sub(due_ns));
        }
    }

    /// The sum of all accounts, and those that are not clean. `sent` gives what a flow published.
    pub fn close(&self, plan: &Plan, sent: impl Fn(usize) -> u64) -> (Account, Vec<Fault>) {
        let mut sum = Account::default();
        let mut faults = Vec::new();
        for (flow, it) in plan.flows.iter().enumerate() {
            for receiver in it.receivers.clone() {
                let account = self.ledger.account(receiver, it.slot, sent(flow));
                sum += account;
                if !account.is_clean() && faults.len() < FAULTS_LISTED {
                    let topic = plan.topic(flow, 0).to_owned();
                    faults.push(Fault {
                        publisher: plan.publisher(flow),
                        receiver,
                        topic,
                        account,
                    });
                }
            }
        }
        (sum, faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Pace;

    #[test]
    fn tells_its_own_messages_from_others() {
        let plan = Plan::pairs(9, 2);
        let load = Load { run: 9, pace: Pace::Rate(1.0), ..Load::default() };
        let mut books = Books::new(&plan);
        books.measured_ns = 100..200;
        let mut deliver = |member, run, flow, number, due_ns, size| {
            let mut payload = Stamp { run, flow, number, due_ns }.to_bytes().to_vec();
            payload.resize(size, 0);
            books.deliver(&plan, &load, member, &payload, 1_000_100)
        };
        assert_eq!(deliver(0, 9, 0, 0, 100, 128), Some(0));
        assert_eq!(deliver(1, 9, 1, 1, 50, 128), Some(1), "before the measured time");
        assert_eq!(deliver(0, 9, 0, 0, 100, 128), None, "doubled");
        assert_eq!(deliver(0, 8, 0, 1, 100, 128), None, "another run");
        assert_eq!(deliver(0, 9, 1, 1, 100, 128), None, "not for this one");
        assert_eq!(deliver(0, 9, 7, 1, 100, 128), None, "no such flow");
        assert_eq!(deliver(0, 9, 0, 1, 100, 129), Some(0), "another size");
        assert_eq!(books.deliver(&plan, &load, 0, b"short", 0), None);
        assert_eq!((books.delivered, books.foreign, books.damaged), (3, 4, 1));
        assert_eq!((books.delivery.count(), books.delivery.max_ns() / 10_000), (2, 100));
        let (sum, faults) = books.close(&plan, |_| 2);
        assert_eq!(sum, Account { sent: 4, received: 3, lost: 1, doubled: 1, ..sum });
        assert_eq!(faults.len(), 2);
        let lost = Account { sent: 2, received: 1, lost: 1, ..Account::default() };
        assert_eq!((faults[1].publisher, faults[1].receiver, faults[1].account), (1, 1, lost));
    }
}
