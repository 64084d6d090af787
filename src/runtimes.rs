//! `gearbox runtimes`: a table of the backends.

use rt_abstract::Probe;

use crate::backend::{self, Backend};

/// The table, with a line break at its end.
pub fn table(probes: &[(Backend, Option<Probe>)]) -> String {
    let best = backend::best(probes);
    let mut rows =
        vec![["RUNTIME", "BUILT IN", "DRIVER", "SCHEDULERS", "DEFAULT", "NOTE"].map(String::from)];
    for (backend, probe) in probes {
        let name = backend.name();
        let default = if best == Some(*backend) { "yes" } else { "" };
        rows.push(match probe {
            None => [name, "no", "-", "-", "", &format!("build with --features rt-{name}")]
                .map(String::from),
            Some(probe) => {
                let schedulers: Vec<_> = probe.schedulers.iter().map(ToString::to_string).collect();
                let note = match (&probe.fallback_reason, probe.completion) {
                    (Some(reason), _) => format!("no io_uring: {reason}"),
                    (None, true) => "completion I/O".into(),
                    (None, false) => "readiness I/O".into(),
                };
                [name, "yes", probe.driver, &schedulers.join(", "), default, &note]
                    .map(String::from)
            }
        });
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rt_abstract::Scheduler;

    #[test]
    fn lines_up() {
        let tokio = Probe {
            driver: "epoll",
            completion: false,
            fallback_reason: None,
            schedulers: vec![Scheduler::ThreadPerCore, Scheduler::WorkStealing],
        };
        let table = table(&[(Backend::Tokio, Some(tokio)), (Backend::Monoio, None)]);
        assert_eq!(
            table,
            "RUNTIME  BUILT IN  DRIVER  SCHEDULERS                      DEFAULT  NOTE\n\
             tokio    yes       epoll   thread-per-core, work-stealing  yes      readiness I/O\n\
             monoio   no        -       -                                        \
             build with --features rt-monoio\n"
        );
    }
}
