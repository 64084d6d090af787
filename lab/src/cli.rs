//! The command line.

use clap::{Parser, Subcommand};

use crate::{config, echo, experiment, files, locks};

#[derive(Parser)]
#[command(version, about = "Experiments on the runtimes of Gearbox, in process")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Shared maps, nested and flat, against maps that belong to cores.
    Locks(locks::Args),
    /// A configuration behind an async lock, as a snapshot, and as copies.
    Config(config::Args),
    /// Reading and writing files, from 1 to 64 streams.
    Files(files::Args),
    /// Bytes sent back, through the traits and without them.
    Echo(echo::Args),
    /// One of these on all columns in turn, and a report.
    Experiment(experiment::Args),
    /// The report again, from a folder with what an experiment measured.
    Report(experiment::ReportArgs),
    /// Inserts into a map while walking over it: ends at once or never.
    #[command(hide = true)]
    Reentry(locks::ReentryArgs),
    /// The server of `echo`.
    #[command(hide = true)]
    EchoServer(echo::ServerArgs),
}

/// Runs a command.
pub fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Locks(args) => locks::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Files(args) => files::run(&args),
        Command::Echo(args) => echo::run(&args),
        Command::Experiment(args) => experiment::run(&args),
        Command::Report(args) => experiment::report(&args),
        Command::Reentry(args) => locks::reentry(&args),
        Command::EchoServer(args) => echo::serve(&args),
    }
}

/// A number above 0, ten million at most.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1e7 => Ok(value),
        Ok(_) => Err("must lie above 0 and be 10 000 000 at most".to_owned()),
        Err(_) => Err("is no number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        for bad in ["0", "-1", "x", "inf", "1e9"] {
            assert!(positive(bad).is_err(), "{bad}");
        }
    }
}
