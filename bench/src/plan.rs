//! Who publishes where and who receives it, before any socket is opened.

use std::ops::Range;

use mqtt::routing::slot_of;

/// The shape of a load. Flow `f` belongs to publisher `f % publishers`; messages go to the flows in
/// turn, so all publishers are busy at once.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Number of publishing connections.
    pub publishers: usize,
    /// All topics.
    pub topics: Vec<String>,
    /// All flows.
    pub flows: Vec<Flow>,
    /// All receivers.
    pub receivers: Vec<Receiver>,
    /// All subscribing connections.
    pub members: Vec<Member>,
    /// Where the clients of each pair are to belong; wherever, without.
    pub placement: Option<Placement>,
}

/// Which shards of Gearbox the clients of pairs belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Shards of the broker.
    pub shards: u32,
    /// A pair's publisher and subscriber belong to neighbours instead of to the same shard.
    pub apart: bool,
}

/// One sequence of messages: of one publisher, to one topic, or to many in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Indices of its topics: message `n` goes to the `n`th of them, and round again.
    pub topics: Range<usize>,
    /// Who gets each message.
    pub receivers: Range<usize>,
    /// Its place among the flows of its receivers.
    pub slot: usize,
}

/// A subscriber, or a group of which one member gets each message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Its flows are those whose `receivers` it lies in; this many.
    pub flows: usize,
    /// Its members.
    pub members: usize,
}

/// One subscribing connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its receiver.
    pub receiver: usize,
    /// Its number there.
    pub number: usize,
    /// What it subscribes to.
    pub filters: Vec<String>,
}

impl Placement {
    /// `name`, with what makes it belong to `shard` added. Publisher `n` goes to shard `n`, and round
    /// again.
    fn name(self, name: &str, shard: u32) -> String {
        let shard = shard % self.shards;
        let mut names = (0u32..).map(|attempt| format!("{name}-{attempt}"));
        let belongs = |name: &String| u32::from(slot_of(name)) % self.shards == shard;
        names.find(belongs).unwrap_or_else(|| name.to_owned())
    }
}

impl Plan {
    /// The client identifier of publisher `number`.
    pub fn publisher_name(&self, run: u32, number: usize) -> String {
        let name = format!("bench{run:08x}p{number}");
        match self.placement {
            Some(placement) => placement.name(&name, number as u32),
            None => name,
        }
    }

    /// The client identifier of member `number`.
    pub fn member_name(&self, run: u32, number: usize) -> String {
        let name = format!("bench{run:08x}s{number}");
        match self.placement {
            Some(placement) => placement.name(&name, number as u32 + u32::from(placement.apart)),
            None => name,
        }
    }

    /// `pairs` publishers with a topic and a subscriber each.
    pub fn pairs(run: u32, pairs: usize) -> Self {
        Self::by_topic(run, pairs, pairs, 1)
    }

    /// Every publisher to every subscriber, over one topic: fan-out, fan-in and what lies between.
    /// Without subscribers only acknowledgements come back.
    pub fn all_to_all(run: u32, publishers: usize, subscribers: usize) -> Self {
        let mut plan = Self::one_topic(run, publishers, subscribers);
        for receiver in 0..subscribers {
            plan.receivers.push(Receiver { flows: publishers, members: 1 });
            let filters = plan.topics.clone();
            plan.members.push(Member { receiver, number: 0, filters });
        }
        plan
    }

    /// Publishers to a shared subscription of `members` members.
    pub fn shared(run: u32, publishers: usize, members: usize) -> Self {
        let mut plan = Self::one_topic(run, publishers, 1);
        plan.receivers.push(Receiver { flows: publishers, members });
        for number in 0..members {
            let filters = vec![format!("$share/bench{run:08x}/{}", plan.topics[0])];
            plan.members.push(Member { receiver: 0, number, filters });
        }
        plan
    }

    /// Every producer to every topic, with one consumer for each topic.
    pub fn producers(run: u32, producers: usize, topics: usize) -> Self {
        Self::by_topic(run, producers, topics, producers)
    }

    /// `filters` subscriptions spread over `clients` connections, each of which matches one topic:
    /// a third exact, a third with `+`, a third with `#`. The publishers go through all topics.
    pub fn scattered(run: u32, filters: usize, clients: usize, publishers: usize) -> Self {
        let mut plan = Self { publishers, ..Self::default() };
        plan.receivers.push(Receiver { flows: publishers, members: clients });
        plan.members = (0..clients)
            .map(|number| Member { receiver: 0, number, filters: Vec::new() })
            .collect();
        for number in 0..filters {
            let (group, root) = (number % 1_000, format!("bench/{run:08x}/scattered"));
            plan.topics.push(format!("{root}/{group}/{number}/value"));
            plan.members[number % clients].filters.push(match number / clients % 3 {
                0 => format!("{root}/{group}/{number}/value"),
                1 => format!("{root}/+/{number}/value"),
                _ => format!("{root}/{group}/{number}/#"),
            });
        }
        plan.flows = (0..publishers)
            .map(|slot| Flow { topics: 0..filters, receivers: 0..1, slot })
            .collect();
        plan
    }

    /// The publisher of a flow.
    #[inline]
    pub fn publisher(&self, flow: usize) -> usize {
        flow % self.publishers
    }

    /// The topic of message `number` of a flow.
    #[inline]
    pub fn topic(&self, flow: usize, number: u64) -> &str {
        let flow = &self.flows[flow];
        let topics = &self.topics[flow.topics.clone()];
        // Flows that share topics begin at different ones.
        &topics[((number + flow.slot as u64 * 7_919) % topics.len() as u64) as usize]
    }

    /// Deliveries that each message of a flow is to give.
    #[inline]
    pub fn copies(&self, flow: usize) -> u64 {
        self.flows[flow].receivers.len() as u64
    }

    fn one_topic(run: u32, publishers: usize, receivers: usize) -> Self {
        let flow = |slot| Flow { topics: 0..1, receivers: 0..receivers, slot };
        Self {
            publishers,
            topics: vec![format!("bench/{run:08x}/all")],
            flows: (0..publishers).map(flow).collect(),
            ..Self::default()
        }
    }

    /// One receiver for each topic, with `flows_each` flows; flows are ordered by topic.
    fn by_topic(run: u32, publishers: usize, topics: usize, flows_each: usize) -> Self {
        let mut plan = Self { publishers, ..Self::default() };
        for topic in 0..topics {
            plan.topics.push(format!("bench/{run:08x}/topic/{topic}"));
            plan.receivers.push(Receiver { flows: flows_each, members: 1 });
            let filters = vec![plan.topics[topic].clone()];
            plan.members.push(Member { receiver: topic, number: 0, filters });
            plan.flows.extend((0..flows_each).map(|slot| Flow {
                topics: topic..topic + 1,
                receivers: topic..topic + 1,
                slot,
            }));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use mqtt::topic::{is_valid_filter, is_valid_topic, matches, parse_filter};

    use super::*;

    /// What every plan must keep: each message has its receivers and nobody else.
    fn check(plan: &Plan) {
        for (flow, it) in plan.flows.iter().enumerate() {
            for number in 0..it.topics.len() as u64 {
                let topic = plan.topic(flow, number);
                assert!(is_valid_topic(topic));
                for (receiver, has) in plan.receivers.iter().enumerate() {
                    let members = plan.members.iter().filter(|member| member.receiver == receiver);
                    let filters: Vec<_> = members.flat_map(|member| &member.filters).collect();
                    let hits = filters
                        .iter()
                        .map(|filter| parse_filter(filter).unwrap())
                        .filter(|filter| matches(filter.filter, topic))
                        .count();
                    let shared = filters[0].starts_with("$share/");
                    let wanted = if shared { has.members } else { 1 };
                    let mine = it.receivers.contains(&receiver);
                    assert_eq!(hits, if mine { wanted } else { 0 }, "{topic}");
                    assert!(!mine || it.slot < has.flows);
                }
            }
        }
        assert!(plan.members.iter().flat_map(|member| &member.filters).all(|f| is_valid_filter(f)));
    }

    #[test]
    fn each_message_reaches_its_receivers_alone() {
        let plans = [
            (Plan::pairs(1, 5), 5, 5, 5),
            (Plan::all_to_all(1, 1, 7), 1, 7, 7),
            (Plan::all_to_all(1, 7, 1), 7, 1, 1),
            (Plan::all_to_all(1, 3, 0), 3, 0, 0),
            (Plan::shared(1, 3, 4), 3, 1, 4),
            (Plan::producers(1, 2, 3), 6, 3, 3),
            (Plan::scattered(1, 50, 4, 2), 2, 1, 4),
        ];
        for (plan, flows, receivers, members) in &plans {
            let found = (plan.flows.len(), plan.receivers.len(), plan.members.len());
            assert_eq!(found, (*flows, *receivers, *members));
            check(plan);
        }
    }

    #[test]
    fn pairs_are_together_or_apart() {
        for (apart, shards) in [(false, 1), (false, 4), (true, 2), (true, 5)] {
            let placement = Some(Placement { shards, apart });
            let plan = Plan { placement, ..Plan::pairs(9, 40) };
            let shard = |name: String| u32::from(slot_of(&name)) % shards;
            let mut used = std::collections::BTreeSet::new();
            for number in 0..40 {
                let publisher = shard(plan.publisher_name(9, number));
                let member = shard(plan.member_name(9, number));
                assert_eq!(publisher != member, apart);
                used.insert(publisher);
            }
            assert_eq!(used.len(), shards as usize, "all shards have work");
        }
    }

    #[test]
    fn every_producer_writes_to_every_topic() {
        let plan = Plan::producers(1, 2, 3);
        let mut pairs: Vec<_> =
            (0..6).map(|flow| (plan.publisher(flow), plan.topic(flow, 0))).collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), 6);
        assert!((0..6).all(|flow| plan.copies(flow) == 1));
    }

    #[test]
    fn scattered_filters_are_of_all_three_kinds() {
        let plan = Plan::scattered(1, 300, 10, 1);
        let filters: Vec<_> = plan.members.iter().flat_map(|member| &member.filters).collect();
        let with = |sign| filters.iter().filter(|filter| filter.contains(sign)).count();
        assert_eq!((with('+'), with('#')), (100, 100));
    }
}
