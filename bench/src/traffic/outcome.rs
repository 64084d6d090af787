//! What a run showed.

use super::{Fault, Traffic};
use crate::latency::{Latencies, QUOTED, Quote};
use crate::ledger::Account;
use crate::process::Spent;

/// The books of a run, closed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was used in the measured time.
    pub spent: Spent,
    /// Different messages delivered in the measured time.
    pub delivered: u64,
    /// Messages published in the measured time.
    pub published: u64,
    /// From when a message was due to its delivery; empty in the closed loop.
    pub delivery: Latencies,
    /// From when a message was due to its acknowledgement; empty in the closed loop.
    pub acknowledgement: Latencies,
    /// From when a message was due until it was sent: the generator's own lateness.
    pub lateness: Latencies,
    /// What [`Load::stop_ns`](super::Load::stop_ns) must make of `delivery` by arithmetic.
    pub predicted: Option<Latencies>,
    /// All messages of the whole run.
    pub account: Account,
    /// Flows and receivers whose accounts are not clean.
    pub faults: Vec<Fault>,
    /// Messages that were due and never went out.
    pub unsent: u64,
    /// Messages that were never acknowledged.
    pub unacked: u64,
    /// Messages that the broker held back: it took no bytes, or owed acknowledgements.
    pub held_back: u64,
    /// Publishes that the broker refused.
    pub refused: u64,
    /// Deliveries that nobody asked for.
    pub foreign: u64,
    /// Deliveries of a wrong size.
    pub damaged: u64,
    /// Acknowledgements of nothing.
    pub stray_acknowledgements: u64,
    /// Connections that ended, and why the first did.
    pub closed: (u64, Option<String>),
    /// Whether everything stood still before all was sent.
    pub stalled: bool,
    /// From the start of publishing or draining to the first delivery.
    pub first_delivery_ns: Option<u64>,
    /// To the last one.
    pub last_delivery_ns: Option<u64>,
    /// To the last message sent, with what had to come back before.
    pub sent_all_ns: Option<u64>,
}

impl Traffic<'_> {
    /// Closes connections and books.
    pub fn finish(mut self) -> Outcome {
        self.links.close_all();
        self.outcome()
    }

    /// The books as they stand.
    pub fn outcome(&self) -> Outcome {
        let Self { plan, flows, books, marks, links, .. } = self;
        let (spent, delivered, published) = match (&marks.from, &marks.to) {
            (Some(from), Some(to)) => (to.0.since(&from.0), to.1 - from.1, to.2 - from.2),
            _ => (Spent::default(), 0, 0),
        };
        let mut delivery = books.delivery.clone();
        let mut acknowledgement = books.acknowledgement.clone();
        if let Some(schedule) = &self.schedule {
            let measured = schedule.numbered_before(books.measured_ns.end)
                - schedule.numbered_before(books.measured_ns.start);
            if flows.deliveries_count {
                delivery.missing =
                    (measured * plan.copies(0)).saturating_sub(books.delivery.count());
            }
            if self.load.qos != mqtt::wire::QoS::AtMostOnce {
                acknowledgement.missing = measured.saturating_sub(books.acknowledgement.count());
            }
        }
        let predicted =
            self.stop.as_ref().zip(self.schedule.as_ref()).map(|(stop, schedule)| {
                stop.predicted(schedule, &books.measured_ns, plan.copies(0))
            });
        let (account, faults) = books.close(plan, |flow| flows.sent(flow));
        let since_start = |at_ns: u64| at_ns.saturating_sub(marks.start_ns);
        Outcome {
            spent,
            delivered,
            published,
            delivery,
            acknowledgement,
            lateness: books.lateness.clone(),
            predicted,
            account,
            faults,
            unsent: flows.unsent(),
            unacked: links.unacked,
            held_back: books.held_back,
            refused: books.refused,
            foreign: books.foreign,
            damaged: books.damaged,
            stray_acknowledgements: books.stray_acknowledgements,
            closed: (links.closed, links.first_closed.clone()),
            stalled: self.stalled,
            first_delivery_ns: marks.first_delivery_ns.map(since_start),
            last_delivery_ns: marks.first_delivery_ns.map(|_| since_start(marks.last_delivery_ns)),
            sent_all_ns: marks.sent_all_ns.map(since_start),
        }
    }
}

impl Outcome {
    /// What the broker did that it should not have, for people; empty when there is nothing.
    pub fn problems(&self) -> Vec<String> {
        let counts = [
            (self.account.lost, "messages lost"),
            (self.account.doubled, "deliveries doubled"),
            (self.account.reordered, "messages out of order"),
            (self.account.unplaced, "deliveries too late to be told apart"),
            (self.unsent, "messages due and never sent"),
            (self.unacked, "messages never acknowledged"),
            (self.refused, "messages refused"),
            (self.foreign, "deliveries that nobody asked for"),
            (self.damaged, "deliveries of a wrong size"),
            (self.stray_acknowledgements, "acknowledgements of nothing"),
            (self.closed.0, "connections ended by the broker"),
        ];
        let mut problems: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if let Some(reason) = &self.closed.1 {
            problems.push(format!("first end: {reason}"));
        }
        if self.stalled {
            problems.push("everything stood still before all was sent".to_owned());
        }
        problems
    }

    /// What throws doubt on the figures, without being the broker's fault.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        // In the open loop its lateness tells, and it may spin.
        let closed_loop = self.lateness.count() == 0;
        let share = self.spent.generator_share().filter(|share| closed_loop && *share > 0.9);
        if let Some(share) = share {
            doubts.push(format!(
                "the generator used {:.0} % of a core: the limit may be its own",
                share * 100.0
            ));
        }
        if let Some(share) = self.spent.others_share().filter(|share| *share > 0.1) {
            doubts.push(format!(
                "other work used {:.0} % of a core meanwhile, interrupts included",
                share * 100.0
            ));
        }
        let most = QUOTED.iter().find(|(_, parts)| {
            match (self.lateness.quote(*parts), self.delivery.quote(*parts)) {
                (Quote::Ns(late_ns), Quote::Ns(delivery_ns)) => late_ns * 2 > delivery_ns,
                _ => false,
            }
        });
        if let Some((name, _)) = most {
            doubts.push(format!(
                "the generator's lateness is over half of {name}: that says more of this machine \
                 than of the broker"
            ));
        }
        if self.held_back > 0 {
            doubts.push(format!(
                "{} messages waited for the broker to take bytes or acknowledge; their waiting \
                 counts as latency",
                self.held_back
            ));
        }
        doubts
    }
}
