//! `stratus completions`: completion scripts of shells.

use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::{Args, Command};
use clap_complete::Shell;

/// Arguments of `stratus completions`.
#[derive(Args, Debug)]
pub struct CompletionsArguments {
    /// Shell to complete for
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Runs `stratus completions`; `program` has all commands.
///
/// # Errors
/// If standard output cannot be written to.
pub fn run(arguments: &CompletionsArguments, program: &mut Command, output: &Output) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, program, "stratus", &mut script);
    let script = String::from_utf8(script).map_err(|error| Failure::failed(error.to_string()))?;
    output.print_verbatim(&script, || script.clone())
}
