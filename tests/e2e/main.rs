//! End-to-end tests: the real `gearbox` program, driven by real clients over TCP.
//!
//! Every case runs once per column (build + runtime + scheduler), each time against a broker of
//! its own, so cases run in parallel and a column's name stands in the test's name. The programs
//! under test are named by `GEARBOX_BIN_TOKIO` (built with tokio alone) and `GEARBOX_BIN_ALL`
//! (all three runtimes); without them the program cargo just built stands in for whichever of the
//! two it is. `GEARBOX_REQUIRE_ALL=1` turns a column that could not run into a failure;
//! so does naming a program that does not hold it.
//! `PYTHON` names an interpreter that can import `paho.mqtt` (default `python3`).

mod broker;
mod cases;
mod column;
mod gate;
mod process;
mod raw;
mod rumqtt;
mod wait;

use libtest_mimic::{Arguments, Failed, Trial};

/// One test body, run once per column.
struct Case {
    /// Name within the column, such as `mosquitto::retained`.
    name: &'static str,
    /// The body; it panics when the broker misbehaves.
    run: fn(&column::Column),
    /// Whether it also runs on the fallback drivers, where only a small smoke does.
    smoke: bool,
}

impl Case {
    const fn new(name: &'static str, run: fn(&column::Column)) -> Self {
        Self { name, run, smoke: false }
    }

    const fn smoke(name: &'static str, run: fn(&column::Column)) -> Self {
        Self { name, run, smoke: true }
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let found = column::discover();
    let mut trials = Vec::new();
    // Cases in the outer loop: the long ones come first and run side by side.
    for case in cases::all() {
        for column in &found.ready {
            if column.fallback && !case.smoke {
                continue;
            }
            let column = column.clone();
            trials.push(Trial::test(format!("{}::{}", column.name, case.name), move || {
                (case.run)(&column);
                Ok(())
            }));
        }
    }
    for column::Missing { name, why, fails } in found.missing {
        if fails {
            let name = format!("{name}::column_is_available");
            trials.push(Trial::test(name, move || Err(Failed::from(why))));
        } else if !arguments.list {
            eprintln!("NOT RUN: column {name}: {why}");
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
