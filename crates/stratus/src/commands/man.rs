//! `stratus man`: the manual pages, one for each command.

use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::{Args, Command};
use std::fs;
use std::path::PathBuf;

/// Arguments of `stratus man`.
#[derive(Args, Debug)]
pub struct ManArguments {
    /// Output folder, like /usr/local/share/man/man1; existing pages are replaced
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Runs `stratus man`; `program` has all commands.
///
/// # Errors
/// If a page cannot be written.
pub fn run(arguments: &ManArguments, program: Command, output: &Output) -> Result {
    let ManArguments { folder } = arguments;
    let refused = |error| Failure::failed(format!("cannot write to {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(refused)?;
    clap_mangen::generate_to(program, folder).map_err(refused)?;
    output.message(&format!("{0}: read them with `man -l {0}/stratus.1`", folder.display()));
    Ok(())
}
