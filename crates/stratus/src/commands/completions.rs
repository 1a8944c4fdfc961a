//! `stratus completions`: completion scripts of shells.

use crate::cli::Arguments;
use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Arguments of `stratus completions`.
#[derive(Args, Debug)]
pub struct CompletionsArguments {
    /// Shell to complete for
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Runs `stratus completions`.
///
/// # Errors
/// If standard output cannot be written to.
pub fn run(arguments: &CompletionsArguments, output: &Output) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "stratus", &mut script);
    let script = String::from_utf8(script).map_err(|error| Failure::failed(error.to_string()))?;
    output.print_verbatim(&script, || script.clone())
}
