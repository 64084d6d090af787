//! `gearbox-bench`; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::main()
}
