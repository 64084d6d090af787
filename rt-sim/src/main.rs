//! The simulation as a program.

use std::process::ExitCode;

use clap::Parser;
use rt_sim::cli::{self, Cli};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::main(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rt-sim: error: {error}");
            ExitCode::from(2)
        }
    }
}
