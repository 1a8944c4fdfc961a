//! `stratus completions`: what shells complete its commands with.

use crate::cli::Arguments;
use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Arguments of `stratus completions`.
#[derive(Args, Debug)]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Runs `stratus completions`.
///
/// # Errors
/// Where standard output cannot be written.
pub fn run(arguments: &CompletionsArguments, output: &Output) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "stratus", &mut script);
    let script = String::from_utf8(script).map_err(|error| Failure::failed(error.to_string()))?;
    output.document(&script, || script.clone())
}
