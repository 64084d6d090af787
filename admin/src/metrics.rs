//! Prometheus' text format.

use std::fmt::Write;
use std::sync::Arc;

use broker_core::Messages;
use broker_core::stats::{Kind, Metric, Snapshot};
use rt_abstract::os::ProcessUsage;

use crate::ServerInfo;

/// The content type of [`render`]'s text.
pub(crate) const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics: each of the broker's per shard, then what is known about the journal and the process.
pub(crate) fn render(
    shards: &[Snapshot],
    info: &ServerInfo,
    process: ProcessUsage,
    messages: Option<&Arc<Messages>>,
) -> String {
    let mut out = String::with_capacity(4096 + shards.len() * 2048);
    let shards: Vec<Vec<Metric>> = shards.iter().map(|shard| shard.metrics().collect()).collect();
    for (index, Metric { name, kind, help, .. }) in shards.iter().flatten().enumerate() {
        if index == shards[0].len() {
            break; // every shard has the same metrics
        }
        let (kind, suffix) = kind_of(*kind);
        head(&mut out, &format!("gearbox_{name}{suffix}"), kind, help);
        for (shard, metrics) in shards.iter().enumerate() {
            let value = metrics[index].value;
            line(&mut out, format_args!("gearbox_{name}{suffix}{{shard=\"{shard}\"}} {value}"));
        }
    }
    head(&mut out, "gearbox_info", "gauge", "What runs; always 1");
    line(
        &mut out,
        format_args!(
            "gearbox_info{{version=\"{}\",runtime=\"{}\",scheduler=\"{}\",driver=\"{}\"}} 1",
            info.version, info.runtime, info.scheduler, info.driver
        ),
    );
    if let Some(messages) = messages {
        for Metric { name, kind, help, value } in messages.metrics() {
            let (kind, suffix) = kind_of(kind);
            head(&mut out, &format!("gearbox_{name}{suffix}"), kind, help);
            line(&mut out, format_args!("gearbox_{name}{suffix} {value}"));
        }
    }
    let started = info.started_ms as f64 / 1000.0;
    head(&mut out, "process_start_time_seconds", "gauge", "Start, in seconds since 1970");
    line(&mut out, format_args!("process_start_time_seconds {started}"));
    if let Some(bytes) = process.resident_bytes {
        head(&mut out, "process_resident_memory_bytes", "gauge", "Resident memory");
        line(&mut out, format_args!("process_resident_memory_bytes {bytes}"));
    }
    if let Some(seconds) = process.cpu_seconds {
        head(&mut out, "process_cpu_seconds_total", "counter", "CPU time, user and system");
        line(&mut out, format_args!("process_cpu_seconds_total {seconds}"));
    }
    out
}

fn kind_of(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Counter => ("counter", "_total"),
        Kind::Gauge => ("gauge", ""),
    }
}

pub(crate) fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    line(out, format_args!("# HELP {name} {help}"));
    line(out, format_args!("# TYPE {name} {kind}"));
}

pub(crate) fn line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(line);
    out.push('\n');
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn info() -> ServerInfo {
        ServerInfo {
            version: "1.2.3",
            runtime: "tokio",
            scheduler: "thread-per-core".into(),
            driver: "epoll",
            started_ms: 1500,
        }
    }

    #[test]
    fn every_metric_once_with_each_shard() {
        let shards = [
            Snapshot { connections: 3, ..Snapshot::default() },
            Snapshot { messages_sent: 7, ..Snapshot::default() },
        ];
        let process = ProcessUsage { resident_bytes: Some(4096), cpu_seconds: Some(0.5) };
        let text = render(&shards, &info(), process, None);
        for line in [
            "# TYPE gearbox_connections gauge",
            "gearbox_connections{shard=\"0\"} 3",
            "gearbox_connections{shard=\"1\"} 0",
            "# TYPE gearbox_messages_sent_total counter",
            "gearbox_messages_sent_total{shard=\"1\"} 7",
            "gearbox_info{version=\"1.2.3\",runtime=\"tokio\",scheduler=\"thread-per-core\",driver=\"epoll\"} 1",
            "process_start_time_seconds 1.5",
            "process_resident_memory_bytes 4096",
            "process_cpu_seconds_total 0.5",
        ] {
            assert_eq!(text.lines().filter(|other| *other == line).count(), 1, "{line}\n{text}");
        }
        let heads = text.lines().filter(|line| line.starts_with("# TYPE")).count();
        assert_eq!(heads, Snapshot::default().metrics().count() + 4);
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn no_shards_is_no_panic() {
        assert!(render(&[], &info(), ProcessUsage::default(), None).contains("gearbox_info"));
    }
}
