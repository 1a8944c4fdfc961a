//! The command line: the only crate that prints, parses arguments and decides exit codes.
//!
//! Arguments ([`cli`]) → a command ([`commands`], one file each) → its result, printed by [`output`].
//! Results go to standard output, everything else to standard error.

pub mod brief_help;
pub mod cli;
pub mod commands;
pub mod errors;
pub mod examples;
pub mod globals;
pub mod output;
pub mod outputs;
pub mod progress;
pub mod signals;
pub mod workers;

use commands::completions;
use std::io::Write;
use std::process::ExitCode;

/// Parses the arguments, runs the command and renders its error.
pub fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == completions::REQUEST) {
        let answer = completions::answer(cli::Arguments::program(), words);
        // Fails if the shell has stopped reading.
        let _ = std::io::stdout().write_all(answer.as_bytes());
        return ExitCode::SUCCESS;
    }
    let arguments = match cli::Arguments::read(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => {
            let explained = cli::explain_foreign_flag(&error).or_else(|| cli::explain_nested_command(&error));
            if let Some(failure) = explained {
                output::Output::default().failure(&failure);
                return ExitCode::from(failure.code);
            }
            // Printing fails if the reader has closed the pipe; the exit code is the same.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(errors::USAGE));
        }
    };
    let output = output::Output::new(arguments.globals.json, arguments.globals.quiet);
    match arguments.command.run(&arguments.globals, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code)
        }
    }
}
