//! The `gearbox` program: command line, configuration, and the assembly of broker and admin
//! address on the selected runtime.

mod backend;
mod beside;
mod cli;
mod config;
mod ctl;
mod data_dir;
mod log;
mod metadata;
mod passwd;
mod process;
mod repair;
mod restore;
mod runtimes;
mod serve;
mod signals;
mod users_file;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command, ConfigCommand};

// The switch of the allocator: without these two lines it is the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A wrong command line ends here, with exit code 2.
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => code,
        Err(error) => {
            let line = error.lines().map(str::trim).collect::<Vec<_>>().join("; ");
            let _ = writeln!(std::io::stderr(), "gearbox: error: {line}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, String> {
    match &cli.command {
        Command::Serve(args) => serve::serve(args)?,
        Command::Runtimes => print(&runtimes::table(&backend::probe_all())),
        Command::Passwd(args) => print(&passwd::passwd(args)?),
        Command::Ctl(args) => print(&ctl::ctl(args)?),
        Command::Restore(args) => print(&restore::restore(args)?),
        Command::Repair(args) => {
            let (text, sound) = repair::repair(args)?;
            print(&text);
            if !sound {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Config { command } => {
            let (ConfigCommand::Check(args) | ConfigCommand::Show(args)) = command;
            let file = args.config.as_deref();
            let settings = config::load(file, environment()).map_err(|error| error.to_string())?;
            if let (ConfigCommand::Check(_), Some(users)) = (command, settings.auth.users_file()) {
                users_file::load(users).map_err(|error| format!("auth.users_file: {error}"))?;
            }
            match command {
                ConfigCommand::Show(_) => print(&config::show(&settings)),
                ConfigCommand::Check(_) => {
                    let name = file.map_or("defaults and environment".into(), |file| {
                        file.display().to_string()
                    });
                    print(&format!("{name}: ok\n"));
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The environment, without variables that are not text: none of ours can be one.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Prints to standard output at once; a reader that went away is no reason to fail.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
