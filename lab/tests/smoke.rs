//! Each experiment on each column of this build, with sizes that prove only that it runs and that its
//! result has what the pages show.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is the report

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bench::{File, Run};
use tempfile::tempdir_in;

const PROGRAM: &str = env!("CARGO_BIN_EXE_gearbox-lab");
/// (runtime, scheduler, compiled in). Work-stealing is there in the build with tokio alone, and even
/// there not when another crate of the same build has made futures local: asked at run time.
const COLUMNS: [(&str, &str, bool); 4] = [
    ("tokio", "work-stealing", cfg!(feature = "rt-tokio")),
    ("tokio", "thread-per-core", cfg!(feature = "rt-tokio")),
    ("monoio", "thread-per-core", cfg!(feature = "rt-monoio")),
    ("compio", "thread-per-core", cfg!(feature = "rt-compio")),
];
/// A walk takes microseconds, or never ends.
const WALK_LIMIT: Duration = Duration::from_secs(2);

/// Runs an experiment on every column and gives its results to `check`.
fn on_each_column(arguments: &[&str], check: impl Fn(&Run)) {
    let mut ran = 0;
    for (runtime, scheduler, compiled_in) in COLUMNS {
        let folder = tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let json = folder.path().join("run.json");
        let output = command(arguments)
            .args(["--runtime", runtime, "--scheduler", scheduler, "--json"])
            .arg(&json)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if !compiled_in || (scheduler == "work-stealing" && errors.contains("has no")) {
            assert!(!output.status.success(), "{runtime} is not in this build");
            continue;
        }
        assert!(output.status.success(), "{runtime} {scheduler}: {errors}");
        check(&read(&json));
        ran += 1;
    }
    assert!(ran > 0);
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments);
    command
}

fn read(path: &Path) -> Run {
    match File::read(path) {
        Ok(Some(File::Run(run))) => *run,
        other => panic!("no run: {other:?}"),
    }
}

/// All figures with this measure are there, `count` of them, and none is 0.
fn positive(run: &Run, measure: &str, count: usize) {
    let end = format!("; {measure}");
    let values: Vec<f64> =
        run.figures.iter().filter(|it| it.name.ends_with(&end)).map(|it| it.value).collect();
    assert_eq!(values.len(), count, "{measure} in {:?}", run.figures);
    assert!(values.iter().all(|&value| value > 0.0), "{measure}: {values:?}");
}

#[test]
fn locks_runs() {
    let arguments = ["locks", "--seconds", "0.03", "--clients", "100", "--tenants", "1,7"];
    on_each_column(&arguments, |run| {
        positive(run, "registrations", 16);
        positive(run, "CPU per registration", 16);
        assert_eq!(run.histograms.len(), 16);
    });
}

#[test]
fn config_runs() {
    let arguments =
        ["config", "--seconds", "0.05", "--clients", "20", "--step-us", "5", "--change-ms", "5"];
    on_each_column(&arguments, |run| {
        positive(run, "CONNECTs", 4);
        positive(run, "changes", 4);
        assert_eq!(run.histograms.len(), 8);
    });
}

#[test]
fn files_runs() {
    let folder = tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().to_str().unwrap();
    on_each_column(&["files", "--mib", "1", "--streams", "1,5", "--dir", dir], |run| {
        positive(run, "throughput", 10);
        assert_eq!(run.histograms.len(), 10);
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing stays");
}

#[test]
fn echo_runs() {
    for server in ["null-broker", "epoll", "io-uring"] {
        let arguments = [
            "echo",
            "--server",
            server,
            "--connections",
            "3",
            "--seconds",
            "0.3",
            "--rate",
            "500",
            "--rate-seconds",
            "0.3",
            "--server-cpu",
            "0",
            "--load-cpu",
            "0",
        ];
        on_each_column(&arguments, |run| positive(run, "messages", 3));
    }
}

#[test]
fn walking_and_inserting_ends_without_locks_alone() {
    assert!(!walk_ends("nested", WALK_LIMIT));
    assert!(!walk_ends("flat-locked", WALK_LIMIT));
    assert!(walk_ends("flat-lock-free", 30 * WALK_LIMIT));
}

/// Whether a walk ends within `limit`; it is stopped if not.
fn walk_ends(map: &str, limit: Duration) -> bool {
    let mut walk = command(&["reentry", "--map", map]).stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if let Some(status) = walk.try_wait().unwrap() {
            assert!(status.success(), "{map}");
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    walk.kill().unwrap();
    walk.wait().unwrap();
    false
}

#[test]
fn an_experiment_writes_its_pages() {
    let column = match () {
        () if cfg!(feature = "rt-tokio") => "thread-per-core",
        () if cfg!(feature = "rt-monoio") => "monoio",
        () => "compio",
    };
    let folder = tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (out, page) = (folder.path().join("out"), folder.path().join("page.md"));
    std::fs::write(&page, "# T\n<!-- figures -->\n<!-- end of figures -->\nend\n").unwrap();
    let output = command(&["experiment", "config", "--rounds", "2", "--columns", column])
        .args(["--tokio-build", PROGRAM, "--all-build", PROGRAM, "--out"])
        .arg(&out)
        .arg("--page")
        .arg(&page)
        .args(["--", "--seconds", "0.05", "--clients", "20", "--step-us", "5", "--change-ms", "5"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = std::fs::read_to_string(&page).unwrap();
    assert!(shown.contains("| 20 clients | atomic snapshot |"), "{shown}");
    assert!(shown.contains("\n2 rounds") && shown.ends_with("end\n"));
    let report = std::fs::read_to_string(out.join("report.html")).unwrap();
    std::fs::remove_file(out.join("report.html")).unwrap();
    let again = command(&["report"]).arg(&out).output().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(std::fs::read_to_string(out.join("report.html")).unwrap(), report);
}

#[test]
fn a_run_that_fails_ends_the_experiment() {
    let folder = tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = command(&["experiment", "files", "--rounds", "1"])
        .args(["--tokio-build", "/bin/false", "--all-build", "/bin/false", "--out"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(!folder.path().join("data.json").exists(), "no page of half a comparison");
}
