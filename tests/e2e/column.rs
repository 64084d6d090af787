//! The columns of the comparison, and which of them the given programs can run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One way to run the broker.
#[derive(Clone, Debug)]
pub struct Column {
    /// Name in test names and in `known_failures.txt`.
    pub name: &'static str,
    /// Value of `--runtime`.
    pub runtime: &'static str,
    /// Value of `--scheduler`.
    pub scheduler: &'static str,
    /// Whether the runtime is told to use its readiness driver instead of io_uring.
    pub fallback: bool,
    /// The program to run.
    pub program: PathBuf,
}

/// What can run here.
pub struct Found {
    /// Columns to test.
    pub ready: Vec<Column>,
    /// Columns that cannot be tested.
    pub missing: Vec<Missing>,
}

/// A column that cannot be tested.
pub struct Missing {
    pub name: &'static str,
    pub why: String,
    /// Whether that is a failure: all columns are required, or this one's program was named.
    pub fails: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Build {
    /// tokio alone: futures are Send, both schedulers exist.
    TokioAlone,
    /// Several runtimes: futures are local.
    All,
}

/// (name, build, runtime, scheduler, fallback driver)
const COLUMNS: [(&str, Build, &str, &str, bool); 7] = [
    ("tokio_ws", Build::TokioAlone, "tokio", "work-stealing", false),
    ("tokio_tpc", Build::TokioAlone, "tokio", "thread-per-core", false),
    ("tokio_tpc_all", Build::All, "tokio", "thread-per-core", false),
    ("monoio", Build::All, "monoio", "thread-per-core", false),
    ("compio", Build::All, "compio", "thread-per-core", false),
    ("monoio_fallback", Build::All, "monoio", "thread-per-core", true),
    ("compio_fallback", Build::All, "compio", "thread-per-core", true),
];

/// Asks the programs what they hold and sorts the columns by it.
pub fn discover() -> Found {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_gearbox"));
    let built_build = kind(&compiled_in(&built).unwrap_or_default());
    let require_all = std::env::var_os("GEARBOX_REQUIRE_ALL").is_some_and(|v| v == "1");
    let mut found = Found { ready: Vec::new(), missing: Vec::new() };
    for (name, build, runtime, scheduler, fallback) in COLUMNS {
        let variable = match build {
            Build::TokioAlone => "GEARBOX_BIN_TOKIO",
            Build::All => "GEARBOX_BIN_ALL",
        };
        let named = std::env::var_os(variable).map(PathBuf::from);
        let fails = require_all || named.is_some();
        let program = named.or_else(|| (built_build == build).then(|| built.clone()));
        let checked = program.ok_or_else(|| format!("{variable} is not set")).and_then(|program| {
            let runtimes = compiled_in(&program)?;
            let place = program.display();
            if kind(&runtimes) != build {
                return Err(format!("{place} is not the build that {variable} asks for"));
            }
            let Some((_, driver)) = runtimes.iter().find(|(name, _)| name == runtime) else {
                return Err(format!("{place} was built without {runtime}"));
            };
            if !fallback && runtime != "tokio" && driver != "io_uring" {
                eprintln!("NOTE: column {name} runs on {driver} here: io_uring is refused");
            }
            Ok(program)
        });
        match checked {
            Ok(program) => {
                found.ready.push(Column { name, runtime, scheduler, fallback, program });
            }
            Err(why) => found.missing.push(Missing { name, why, fails }),
        }
    }
    found
}

/// The runtimes that `program` says it was built with, each with its driver on this machine.
fn compiled_in(program: &Path) -> Result<Vec<(String, String)>, String> {
    let output = Command::new(program)
        .arg("runtimes")
        .output()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("`{} runtimes` ended with {}", program.display(), output.status));
    }
    // A row is: name, "yes" or "no", driver, and more that is of no matter here.
    let row = |row: &str| {
        let mut words = row.split_whitespace().map(str::to_owned);
        let (name, built_in, driver) = (words.next()?, words.next()?, words.next()?);
        (built_in == "yes").then_some((name, driver))
    };
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(row).collect())
}

fn kind(runtimes: &[(String, String)]) -> Build {
    let alone = runtimes.iter().all(|(name, _)| name == "tokio");
    if alone { Build::TokioAlone } else { Build::All }
}
