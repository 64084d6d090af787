//! Filters and topics of a large building site, the same in every run.

use std::collections::HashSet;

const BUILDINGS: u64 = 500;
const FLOORS: u64 = 20;
const SENSORS: u64 = 150;
const METRICS: [&str; 4] = ["temperature", "humidity", "co2", "battery"];

/// Filters to subscribe to and topics to match.
pub struct Workload {
    /// What it is called in the results.
    pub name: &'static str,
    /// All different.
    pub filters: Vec<Box<str>>,
    /// A thousand topics.
    pub hot: Vec<Box<str>>,
    /// So many topics that their paths through a structure do not stay in any cache.
    pub random: Vec<Box<str>>,
}

impl Workload {
    /// Filters without wildcards.
    pub fn exact(count: usize) -> Self {
        Self::new("exact", count, |numbers, _| numbers.topic())
    }

    /// 80 % exact, 15 % with a `+` somewhere, 5 % with `#` at the end.
    pub fn mix(count: usize) -> Self {
        Self::new("mix", count, |numbers, at| {
            let [b, f, s, m] = numbers.place();
            let metric = METRICS[m as usize];
            match at % 100 {
                0..80 => topic([b, f, s, m]),
                80..90 => format!("building/{b}/floor/{f}/sensor/{s}/+"),
                90..93 => format!("building/{b}/floor/+/sensor/{s}/{metric}"),
                // There are not many of these two.
                93 | 94 if at % 200 < 100 => format!("building/{b}/floor/{f}/sensor/+/{metric}"),
                93 | 94 if at % 400 < 200 => format!("building/+/floor/{f}/sensor/{s}/{metric}"),
                93 | 94 => format!("building/{b}/+/{f}/sensor/{s}/{metric}"),
                95 if at % 10_000 < 100 => format!("building/{b}/#"),
                95 => format!("building/{b}/floor/{f}/#"),
                _ => format!("building/{b}/floor/{f}/sensor/{s}/#"),
            }
        })
    }

    /// Wildcards in any of the seven levels: more shapes than the tables take, so that the trees
    /// are walked as well. What a hostile client can do.
    pub fn many_shapes(count: usize) -> Self {
        Self::new("many shapes", count, |numbers, _| {
            let topic = numbers.topic();
            let wild = numbers.below(128);
            let levels = topic.split('/').enumerate();
            let levels = levels.map(|(at, level)| if wild >> at & 1 == 1 { "+" } else { level });
            levels.collect::<Vec<_>>().join("/")
        })
    }

    fn new(name: &'static str, count: usize, make: impl Fn(&mut Numbers, usize) -> String) -> Self {
        let mut numbers = Numbers(0x5eed);
        let mut known = HashSet::new();
        let mut filters: Vec<Box<str>> = Vec::with_capacity(count);
        while filters.len() < count {
            let mut filter = make(&mut numbers, filters.len());
            while !known.insert(filter.clone()) {
                // That one is taken, and perhaps all of its kind: an exact one instead.
                filter = numbers.topic();
            }
            filters.push(filter.into());
        }
        // Every other one has a subscriber of its own.
        let mut topics = |count: usize| -> Vec<Box<str>> {
            let known = |at: usize| {
                filters[at..].iter().find(|filter| !filter.contains(['+', '#'])).cloned()
            };
            (0..count)
                .map(|at| {
                    let start = numbers.below(filters.len() as u64) as usize;
                    let known = if at % 2 == 0 { known(start) } else { None };
                    known.unwrap_or_else(|| numbers.topic().into())
                })
                .collect()
        };
        let (hot, random) = (topics(1000), topics(300_000));
        Self { name, filters, hot, random }
    }
}

fn topic([building, floor, sensor, metric]: [u64; 4]) -> String {
    let metric = METRICS[metric as usize];
    format!("building/{building}/floor/{floor}/sensor/{sensor}/{metric}")
}

/// Numbers without order (xorshift64*), always the same.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }

    fn place(&mut self) -> [u64; 4] {
        [self.below(BUILDINGS), self.below(FLOORS), self.below(SENSORS), self.below(4)]
    }

    fn topic(&mut self) -> String {
        topic(self.place())
    }
}
