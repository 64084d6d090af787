//! What became of every message, by its sequence number: lost, doubled or out of order, for each
//! flow and receiver.

use std::collections::VecDeque;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Gaps that a stream remembers. Past that the oldest gap is settled as lost; should its messages
/// come after all, they are counted as `unplaced`.
pub const MAX_GAPS: usize = 4_096;

/// What an arrival was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// For the first time.
    New,
    /// Again.
    Doubled,
    /// From a gap that had been settled as lost: late, or doubled.
    Unplaced,
}

/// The messages of one flow at one receiver.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// One past the highest number seen.
    next: u64,
    /// Numbers below `next` that have not come: `[from, to)`, ascending, at most [`MAX_GAPS`].
    gaps: VecDeque<(u64, u64)>,
    /// Below this, gaps are settled.
    horizon: u64,
    settled: u64,
    received: u64,
    doubled: u64,
    unplaced: u64,
}

/// What streams add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Messages published for the receiver.
    pub sent: u64,
    /// Different messages that it got.
    pub received: u64,
    /// Messages that it did not get.
    pub lost: u64,
    /// Arrivals of a message that had come before.
    pub doubled: u64,
    /// First arrivals after a later message of the same flow at the same subscriber.
    pub reordered: u64,
    /// Arrivals too late to be told apart: see [`MAX_GAPS`]. When 0, all other counts are exact.
    pub unplaced: u64,
}

/// All streams. A receiver is one subscriber, or a group whose members share the messages; order
/// is judged for each member by itself.
#[derive(Debug, Default)]
pub struct Ledger {
    receivers: Vec<Receiver>,
    streams: Vec<Stream>,
    /// For each member and flow, one past the highest number seen.
    heights: Vec<u64>,
    reordered: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Receiver {
    flows: usize,
    first_stream: usize,
    first_height: usize,
}

impl Stream {
    /// Takes one arrival.
    #[inline]
    pub fn arrive(&mut self, number: u64) -> Arrival {
        if number >= self.next {
            if number > self.next {
                self.open_gap(number);
            }
            self.next = number + 1;
            self.received += 1;
            return Arrival::New;
        }
        self.arrive_late(number)
    }

    /// Closes the account over `sent` messages.
    pub fn account(&self, sent: u64) -> Account {
        let open: u64 = self.gaps.iter().map(|(from, to)| to - from).sum();
        let missing = self.settled + open + sent.saturating_sub(self.next);
        Account {
            sent,
            received: self.received,
            lost: missing,
            doubled: self.doubled,
            reordered: 0,
            unplaced: self.unplaced,
        }
    }

    fn open_gap(&mut self, number: u64) {
        if self.gaps.len() == MAX_GAPS
            && let Some((from, to)) = self.gaps.pop_front()
        {
            self.settled += to - from;
            self.horizon = to;
        }
        self.gaps.push_back((self.next, number));
    }

    fn arrive_late(&mut self, number: u64) -> Arrival {
        if number < self.horizon {
            self.unplaced += 1;
            return Arrival::Unplaced;
        }
        let at = self.gaps.partition_point(|(_, to)| *to <= number);
        let Some(&(from, to)) = self.gaps.get(at).filter(|(from, _)| *from <= number) else {
            self.doubled += 1;
            return Arrival::Doubled;
        };
        match (number == from, number + 1 == to) {
            (true, true) => drop(self.gaps.remove(at)),
            (true, false) => self.gaps[at].0 = number + 1,
            (false, true) => self.gaps[at].1 = number,
            (false, false) => {
                self.gaps[at].1 = number;
                self.gaps.insert(at + 1, (number + 1, to));
            }
        }
        self.received += 1;
        Arrival::New
    }
}

impl Account {
    /// Whether everything came once and in turn.
    pub fn is_clean(&self) -> bool {
        (self.lost, self.doubled, self.reordered, self.unplaced) == (0, 0, 0, 0)
    }
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.reordered += other.reordered;
        self.unplaced += other.unplaced;
    }
}

impl Ledger {
    /// Adds a receiver of `flows` flows with `members` members.
    pub fn add_receiver(&mut self, flows: usize, members: usize) {
        self.receivers.push(Receiver {
            flows,
            first_stream: self.streams.len(),
            first_height: self.heights.len(),
        });
        self.streams.resize(self.streams.len() + flows, Stream::default());
        self.heights.resize(self.heights.len() + flows * members, 0);
        self.reordered.resize(self.streams.len(), 0);
    }

    /// Takes message `number` of the receiver's flow `slot` at its member.
    #[inline]
    pub fn arrive(&mut self, receiver: usize, member: usize, slot: usize, number: u64) -> Arrival {
        let it = self.receivers[receiver];
        let stream = it.first_stream + slot;
        let height = &mut self.heights[it.first_height + member * it.flows + slot];
        let arrival = self.streams[stream].arrive(number);
        if number >= *height {
            *height = number + 1;
        } else if arrival == Arrival::New {
            self.reordered[stream] += 1;
        }
        arrival
    }

    /// The account of the receiver's flow `slot`, of which `sent` messages were published.
    pub fn account(&self, receiver: usize, slot: usize, sent: u64) -> Account {
        let stream = self.receivers[receiver].first_stream + slot;
        let account = self.streams[stream].account(sent);
        Account { reordered: self.reordered[stream], ..account }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn account(arrivals: &[u64], sent: u64) -> Account {
        let mut ledger = Ledger::default();
        ledger.add_receiver(1, 1);
        for number in arrivals {
            ledger.arrive(0, 0, 0, *number);
        }
        ledger.account(0, 0, sent)
    }

    #[test]
    fn names_each_fault() {
        let clean = Account { sent: 4, received: 4, ..Account::default() };
        assert_eq!(account(&[0, 1, 2, 3], 4), clean);
        let lost = Account { sent: 6, received: 3, lost: 3, ..Account::default() };
        assert_eq!(account(&[0, 2, 4], 6), lost, "first, middle and last");
        let doubled = Account { sent: 3, received: 3, doubled: 2, ..Account::default() };
        assert_eq!(account(&[0, 1, 1, 2, 0], 3), doubled);
        let swapped = Account { sent: 4, received: 4, reordered: 1, ..Account::default() };
        assert_eq!(account(&[0, 2, 1, 3], 4), swapped);
        let all = Account { sent: 7, received: 5, lost: 2, doubled: 1, reordered: 4, unplaced: 0 };
        assert_eq!(account(&[5, 1, 1, 2, 4, 3], 7), all);
    }

    #[test]
    fn members_of_a_group_are_in_order_each_by_itself() {
        let mut ledger = Ledger::default();
        ledger.add_receiver(1, 1);
        ledger.add_receiver(2, 2);
        for (member, number) in [(0, 1), (1, 0), (1, 2), (0, 5), (0, 3), (1, 4)] {
            assert_eq!(ledger.arrive(1, member, 1, number), Arrival::New);
        }
        assert_eq!(ledger.arrive(1, 0, 1, 4), Arrival::Doubled, "the other member had it");
        let expected =
            Account { sent: 6, received: 6, doubled: 1, reordered: 1, ..Account::default() };
        assert_eq!(ledger.account(1, 1, 6), expected);
        assert_eq!(ledger.account(1, 0, 0), Account::default());
    }

    #[test]
    fn past_its_bound_it_says_so() {
        let mut stream = Stream::default();
        for gap in 0..=MAX_GAPS as u64 {
            stream.arrive(2 * gap + 1);
        }
        assert_eq!(stream.gaps.len(), MAX_GAPS);
        assert_eq!(stream.arrive(0), Arrival::Unplaced);
        assert_eq!(stream.arrive(2), Arrival::New);
        let sent = 2 * (MAX_GAPS as u64 + 1);
        let account = stream.account(sent);
        assert_eq!((account.lost, account.unplaced), (MAX_GAPS as u64, 1));
        assert_eq!(account.received + account.lost, sent);
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(arrivals in prop::collection::vec(0u64..200, 0..400)) {
            let mut seen = HashSet::new();
            let (mut highest, mut doubled, mut reordered) = (None, 0, 0);
            for number in &arrivals {
                if !seen.insert(*number) {
                    doubled += 1;
                } else if highest.is_some_and(|highest| *number < highest) {
                    reordered += 1;
                }
                highest = highest.max(Some(*number));
            }
            let received = seen.len() as u64;
            let expected =
                Account { sent: 200, received, lost: 200 - received, doubled, reordered, unplaced: 0 };
            prop_assert_eq!(account(&arrivals, 200), expected);
        }
    }
}
