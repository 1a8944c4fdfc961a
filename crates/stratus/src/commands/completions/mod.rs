//! `stratus completions`: completion scripts of shells.
//!
//! The scripts for bash, zsh and fish ask the program itself, by `stratus __complete WORDS`, which knows
//! experiments, networks, keys, targets and runs. Where that fails, bash and zsh use the list of flags in the
//! script.

mod candidates;
mod request;

pub use request::answer;

use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::{Args, Command};
use clap_complete::Shell;

/// The first word of a request for completions, in the scripts.
pub const REQUEST: &str = "__complete";

const BASH: &str = include_str!("stratus.bash");
const ZSH: &str = include_str!("stratus.zsh");
const FISH: &str = include_str!("stratus.fish");

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
    let script = match arguments.shell {
        Shell::Bash => format!("{script}\n{BASH}"),
        // The end of the generated script registers its function; the program's own one replaces it.
        Shell::Zsh => {
            let end = script.rfind("\nif [ ").unwrap_or(script.len());
            format!("{}\n{ZSH}", script[..end].trim_end())
        }
        // With the flags of the generated script, fish would not ask for their values.
        Shell::Fish => FISH.to_owned(),
        _ => script,
    };
    output.print_verbatim(&script, || script.clone())
}
