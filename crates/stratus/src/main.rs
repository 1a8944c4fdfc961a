//! The `stratus` command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    stratus::main()
}
