//! What a broker says about itself at its admin address: the times of its steps, and its counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Steps that are taken over; a broker has some ten.
const MAX_STEPS: usize = 100;

/// What took how long inside of the broker, by its own clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    /// `connect.session_process` for instance, with `, running` or `, waiting` where these are told
    /// apart.
    pub step: String,
    /// How often.
    pub count: u64,
    /// Microseconds by the name of a percentile, as the broker names them: `p50`, `p99`, `max`.
    pub us: BTreeMap<String, f64>,
}

/// The steps that a broker lists, those that were never taken left out.
pub fn steps(address: SocketAddr) -> Result<Vec<StepTime>, String> {
    let text = get(address, "/steps")?;
    let value = serde_json::from_str(&text).map_err(|error| format!("/steps: {error}"))?;
    Ok(steps_in(&value))
}

/// The sum over all labels of a metric; `None` when the broker has none of that name.
pub fn metric(address: SocketAddr, name: &str) -> Result<Option<f64>, String> {
    Ok(metric_in(&get(address, "/metrics")?, name))
}

fn get(address: SocketAddr, path: &str) -> Result<String, String> {
    let url = format!("http://{address}{path}");
    let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).build();
    ureq::Agent::from(config)
        .get(&url)
        .call()
        .and_then(|mut response| response.body_mut().read_to_string())
        .map_err(|error| format!("{url}: {error}"))
}

/// `{"connect": [{"step": .., "count": .., "p99_us": ..}], ..}`, or with the times in objects
/// `running` and `waiting` of each step.
fn steps_in(value: &Value) -> Vec<StepTime> {
    let mut all = Vec::new();
    for (of, list) in value.as_object().into_iter().flatten() {
        for item in list.as_array().into_iter().flatten() {
            let count = item.get("count").and_then(Value::as_u64).unwrap_or(0);
            let Some(step) = item.get("step").and_then(Value::as_str).filter(|_| count > 0) else {
                continue;
            };
            let name = format!("{of}.{step}");
            let parts = ["running", "waiting"].into_iter();
            let parts: Vec<_> =
                parts.filter_map(|part| Some((part, times_in(item.get(part)?)))).collect();
            match parts.is_empty() {
                true => all.push(StepTime { step: name, count, us: times_in(item) }),
                false => all.extend(parts.into_iter().map(|(part, us)| StepTime {
                    step: format!("{name}, {part}"),
                    count,
                    us,
                })),
            }
        }
    }
    all.truncate(MAX_STEPS);
    all
}

fn times_in(item: &Value) -> BTreeMap<String, f64> {
    let fields = item.as_object().into_iter().flatten();
    fields
        .filter_map(|(name, value)| Some((name.strip_suffix("_us")?.to_owned(), value.as_f64()?)))
        .collect()
}

fn metric_in(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        if !rest.starts_with(['{', ' ']) {
            return None;
        }
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    });
    values.reduce(|sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_both_shapes() {
        let value = serde_json::json!({
            "connect": [
                {"step": "a", "count": 3, "running": {"p99_us": 2.5}, "waiting": {"p99_us": 7.0}},
                {"step": "never", "count": 0, "running": {}, "waiting": {}},
            ],
            "apply": [{"step": "route", "count": 1, "p50_us": 1.0, "max_us": 4.0}],
            "uptime_s": 5,
        });
        let found = steps_in(&value);
        let names: Vec<_> = found.iter().map(|it| it.step.as_str()).collect();
        assert_eq!(names, ["apply.route", "connect.a, running", "connect.a, waiting"]);
        assert_eq!(found[0].us["max"], 4.0);
        assert_eq!((found[2].count, found[2].us["p99"]), (3, 7.0));
        assert!(steps_in(&serde_json::json!([1, 2])).is_empty());
    }

    #[test]
    fn metrics_are_summed_over_their_labels() {
        let text = "# TYPE x_total counter\nx_total{shard=\"0\"} 3\nx_total{shard=\"1\"} 4\n\
                    x_total_more 9\ny 1.5\n";
        assert_eq!(metric_in(text, "x_total"), Some(7.0));
        assert_eq!(metric_in(text, "y"), Some(1.5));
        assert_eq!(metric_in(text, "z"), None);
    }

    #[test]
    fn nobody_there_is_an_error() {
        assert!(steps(SocketAddr::from(([127, 0, 0, 1], 1))).unwrap_err().contains("/steps"));
    }
}
