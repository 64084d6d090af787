//! What is kept of a run: everything that a report needs, in one JSON file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::StepTime;
use crate::compare::Comparison;
use crate::latency::{Encoded, Latencies, QUOTED, Quote};
use crate::ledger::Account;
use crate::machine::Machine;
use crate::process::Spent;
use crate::traffic::{Fault, Outcome};

/// Version of the files; readers refuse others.
pub const FORMAT: u32 = 2;

/// Name of the figure that counts most.
pub const PER_CPU_SECOND: &str = "messages per broker CPU-second";
/// Name of the figure for throughput.
pub const PER_SECOND: &str = "messages delivered";
/// Name of the figure for CPU time.
pub const CPU_PER_MESSAGE: &str = "broker CPU per message";
/// Name of the figure for how busy the broker was.
pub const BROKER_CPU: &str = "broker CPU";
/// Name of the figure for context switches.
pub const SWITCHES_PER_MESSAGE: &str = "broker context switches per message";
/// Name of the figure for system calls of all kinds.
pub const SYSCALLS_PER_MESSAGE: &str = "broker system calls per message";
/// Name of the figure for how well syncs are shared.
pub const PER_SYNC: &str = "messages per sync of the journal";
/// Name of the histogram of the generator's own lateness.
pub const LATENESS: &str = "lateness";
/// Name of the figure for the generator's own lateness, in comparisons.
pub const LATENESS_P99: &str = "generator's lateness, p99";
/// Name of the histogram of what a stop on purpose must make of deliveries.
pub const PREDICTED: &str = "delivery by arithmetic";
/// Name of the histogram from due to delivery.
pub const DELIVERY: &str = "delivery";

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum File {
    /// Of one run.
    Run(Box<Run>),
    /// Of a comparison with all its runs.
    Comparison(Box<Comparison>),
}

/// One run of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the scenario.
    pub scenario: String,
    /// The user's name for what was measured; runs with the same one are repetitions.
    pub label: String,
    /// The command line, passwords left out.
    pub command: Vec<String>,
    /// All parameters, defaults too.
    pub parameters: BTreeMap<String, Value>,
    /// Where.
    pub machine: Machine,
    /// When, in seconds since 1970.
    pub started_unix_s: u64,
    /// What came out.
    pub figures: Vec<Figure>,
    /// Latencies.
    pub histograms: Vec<Named>,
    /// What the broker says about its steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepTime>,
    /// What processes used in the measured time.
    pub spent: Option<Spent>,
    /// What became of all messages.
    pub account: Option<Account>,
    /// Accounts that are not clean, at most 1 000.
    pub faults: Vec<Fault>,
    /// What the broker did wrong.
    pub problems: Vec<String>,
    /// What throws doubt on the figures.
    pub doubts: Vec<String>,
}

/// A number that came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
}

/// A histogram that came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// What its clock measures.
    pub what: String,
    /// All samples.
    #[serde(flatten)]
    pub encoded: Encoded,
    /// The largest sample: one message.
    pub max_ns: u64,
    /// The percentiles that may be quoted, for readers without a histogram library.
    pub percentiles: Vec<(String, Quote)>,
}

impl Run {
    /// An empty one. `parameters` is the arguments of the scenario.
    pub fn new(scenario: &str, label: &str, parameters: &impl Serialize) -> Self {
        let parameters = match serde_json::to_value(parameters) {
            Ok(Value::Object(map)) => map.into_iter().collect(),
            _ => BTreeMap::new(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            format: FORMAT,
            scenario: scenario.to_owned(),
            label: label.to_owned(),
            command: without_passwords(std::env::args()),
            parameters,
            machine: Machine::here(),
            started_unix_s: now.as_secs(),
            ..Self::default()
        }
    }

    /// Adds a number, unless it is none.
    pub fn figure(&mut self, name: &str, value: f64, unit: &str) {
        if value.is_finite() {
            self.figures.push(Figure { name: name.to_owned(), value, unit: unit.to_owned() });
        }
    }

    /// A number that came out.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    /// Adds latencies, unless there are none.
    pub fn histogram(
        &mut self,
        name: &str,
        what: &str,
        latencies: &Latencies,
    ) -> Result<(), String> {
        if latencies.count() + latencies.missing == 0 {
            return Ok(());
        }
        let quoted = QUOTED.iter().map(|(name, at)| ((*name).to_owned(), latencies.quote(*at)));
        self.histograms.push(Named {
            name: name.to_owned(),
            what: what.to_owned(),
            encoded: latencies.encode()?,
            max_ns: latencies.max_ns(),
            percentiles: quoted.collect(),
        });
        Ok(())
    }

    /// What a comparison keeps of it: of the histograms the one that it quotes, and nothing that the
    /// comparison says itself.
    pub fn kept(mut self, histogram: Option<&str>) -> Self {
        if let Some(Quote::Ns(ns)) = self.quote(LATENESS, "p99") {
            self.figure(LATENESS_P99, ns as f64 / 1e3, "us");
        }
        self.histograms.retain(|it| Some(it.name.as_str()) == histogram);
        self.command.clear();
        self.parameters.clear();
        self.machine = Machine::default();
        self
    }

    /// A percentile that came out, by the names of histogram and percentile.
    pub fn quote(&self, histogram: &str, percentile: &str) -> Option<Quote> {
        let named = self.histograms.iter().find(|it| it.name == histogram)?;
        named.percentiles.iter().find(|(name, _)| name == percentile).map(|(_, quote)| *quote)
    }

    /// Latencies that came out.
    pub fn latencies(&self, name: &str) -> Option<Result<Latencies, String>> {
        let named = self.histograms.iter().find(|histogram| histogram.name == name)?;
        Some(Latencies::decode(&named.encoded))
    }

    /// Adds what a traffic run showed.
    pub fn outcome(&mut self, outcome: &Outcome) -> Result<(), String> {
        let (spent, delivered) = (&outcome.spent, outcome.delivered as f64);
        self.figure(PER_SECOND, delivered / spent.seconds, "/s");
        self.figure("messages published", outcome.published as f64 / spent.seconds, "/s");
        // Where nobody subscribes, a message is done when it is published.
        let messages = if outcome.account.sent > 0 { delivered } else { outcome.published as f64 };
        self.broker_figures(spent, messages, PER_CPU_SECOND, "message");
        if outcome.held_back > 0 {
            self.figure("held back by the broker", outcome.held_back as f64, "messages");
        }
        self.histogram(DELIVERY, "from due to delivered", &outcome.delivery)?;
        if let Some(predicted) = &outcome.predicted {
            self.histogram(PREDICTED, "what the stop alone must make of it", predicted)?;
        }
        let acknowledgement = &outcome.acknowledgement;
        self.histogram("acknowledgement", "from due to acknowledged", acknowledgement)?;
        self.histogram(LATENESS, "from due to sent: the generator's own", &outcome.lateness)?;
        self.spent = Some(*spent);
        self.account = Some(outcome.account);
        self.faults.clone_from(&outcome.faults);
        self.problems.extend(outcome.problems());
        self.doubts.extend(outcome.doubts());
        Ok(())
    }

    /// Adds what the broker used for each of `count` things.
    pub fn broker_figures(&mut self, spent: &Spent, count: f64, per_second: &str, thing: &str) {
        let Some(broker) = spent.broker else { return };
        if let Some(cpu_us) = broker.known_cpu_us() {
            self.figure(per_second, count / cpu_us * 1e6, "/s");
            self.figure(&format!("broker CPU per {thing}"), cpu_us / count, "us");
            self.figure(BROKER_CPU, cpu_us / 1e4 / spent.seconds, "% of a core");
        } else {
            self.doubts.push("the broker used too little CPU time for a figure".to_owned());
        }
        let switches = (broker.voluntary_switches + broker.involuntary_switches) as f64;
        self.figure(&format!("broker context switches per {thing}"), switches / count, "");
        if let Some(calls) = broker.syscalls {
            let name = format!("broker system calls per {thing}");
            self.figure(&name, calls as f64 / count, "");
        }
        if let Some(calls) = broker.read_write_calls.filter(|calls| *calls > 0) {
            let name = format!("broker read and write calls per {thing}");
            self.figure(&name, calls as f64 / count, "(send, recv, epoll, io_uring not counted)");
        }
    }
}

impl File {
    /// Reads a file; `None` when it is JSON of another kind.
    pub fn read(path: &Path) -> Result<Option<Self>, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        if value.get("kind").is_none() {
            return Ok(None);
        }
        let format = value.get("format").and_then(Value::as_u64);
        if format != Some(FORMAT.into()) {
            return Err(format!("{}: not of format {FORMAT}", path.display()));
        }
        let file = serde_json::from_value(value);
        file.map(Some).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Writes a file.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let text = match self {
            Self::Run(_) => serde_json::to_string_pretty(self),
            // Hundreds of runs.
            Self::Comparison(_) => serde_json::to_string(self),
        };
        let text = text.map_err(|error| error.to_string())?;
        fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The command line as it may be shown.
pub fn without_passwords(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut shown = Vec::new();
    let mut secret = false;
    for argument in arguments {
        if secret {
            shown.push("***".to_owned());
        } else if argument.starts_with("--password=") {
            shown.push("--password=***".to_owned());
        } else {
            shown.push(argument.clone());
        }
        secret = argument == "--password";
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_comes_back_from_its_file() {
        let mut run = Run::new("pubsub", "here", &serde_json::json!({"pairs": 3}));
        run.figure("speed", 12.5, "/s");
        run.figure("nonsense", f64::NAN, "/s");
        let mut latencies = Latencies::new();
        (1..=20_000).for_each(|us| latencies.record(us * 1_000));
        run.histogram(DELIVERY, "of a test", &latencies).unwrap();
        run.histogram("empty", "of a test", &Latencies::new()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        File::Run(Box::new(run.clone())).write(&path).unwrap();
        assert_eq!(File::read(&path).unwrap(), Some(File::Run(Box::new(run.clone()))));
        assert_eq!((run.figures.len(), run.histograms.len()), (1, 1));
        assert_eq!(run.value("speed"), Some(12.5));
        let back = run.latencies(DELIVERY).unwrap().unwrap();
        assert_eq!(back.quote(99_000), latencies.quote(99_000));
        assert_eq!(run.parameters["pairs"], 3);
    }

    #[test]
    fn other_files_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            File::read(&path)
        };
        assert_eq!(read("{\"a\": 1}"), Ok(None));
        assert!(read("{").is_err());
        assert!(read("{\"kind\": \"run\", \"format\": 99}").unwrap_err().contains("format"));
    }

    #[test]
    fn passwords_are_not_kept() {
        let line = ["x", "--password", "geheim", "--password=geheim", "y"].map(str::to_owned);
        let shown = without_passwords(line.into_iter()).join(" ");
        assert_eq!(shown, "x --password *** --password=*** y");
    }
}
