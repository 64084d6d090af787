//! `gearbox-lab`: experiments that need the runtimes in process. Each asks one question of the
//! broker's design, on one column; `experiment` runs all columns in turn and writes the pages.

mod backend;
mod cli;
mod config;
mod echo;
mod experiment;
mod files;
mod locks;
mod measure;

use std::process::ExitCode;

use clap::Parser;

// The program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gearbox-lab: {error}");
            ExitCode::FAILURE
        }
    }
}
