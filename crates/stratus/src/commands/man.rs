//! `stratus man`: the manual pages, one for each command, or all of them as one Markdown page.

use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::{Args, Command};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;

/// Arguments of `stratus man`.
#[derive(Args, Debug)]
pub struct ManArguments {
    /// Output folder, like /usr/local/share/man/man1; existing pages are replaced
    #[arg(value_name = "FOLDER", required_unless_present = "markdown")]
    pub folder: Option<PathBuf>,
    /// Print the help of all commands as one Markdown page instead
    #[arg(long, conflicts_with = "folder")]
    pub markdown: bool,
}

/// The result of `stratus man --markdown`.
#[derive(Serialize)]
struct Reference {
    markdown: String,
}

/// The width of the help in the Markdown page, in columns.
const MARKDOWN_COLUMNS: usize = 100;

/// Runs `stratus man`; `program` has all commands.
///
/// # Errors
/// If a page cannot be written.
pub fn run(arguments: &ManArguments, program: Command, output: &Output) -> Result {
    let Some(folder) = &arguments.folder else {
        let reference = Reference { markdown: markdown(&program) };
        return output.print_verbatim(&reference, || reference.markdown.clone());
    };
    let refused = |error| Failure::failed(format!("cannot write to {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(refused)?;
    clap_mangen::generate_to(program, folder).map_err(refused)?;
    output.message(&format!("{0}: read them with `man -l {0}/stratus.1`", folder.display()));
    Ok(())
}

/// The help of all commands as Markdown, a section for each.
fn markdown(program: &Command) -> String {
    let mut page =
        "# Commands\n\n`stratus man --markdown` prints this page; `stratus help COMMAND` prints one \
                    section. Every\ncommand takes the global options of the first.\n"
            .to_owned();
    add_sections(&program.clone().term_width(MARKDOWN_COLUMNS), program, &[program.get_name()], &mut page);
    page
}

/// Adds the section of a command and those of its subcommands. `path` is the name of the command.
fn add_sections(program: &Command, command: &Command, path: &[&str], page: &mut String) {
    let help = match program.clone().try_get_matches_from(path.iter().chain(&["--help"])) {
        Err(help) => help.render().to_string(),
        Ok(_) => String::new(),
    };
    let is_whole_program = path.len() == 1;
    let (options, examples) = help.split_once("\nGlobal options:").unwrap_or((help.as_str(), ""));
    let text = match examples.find("\nExamples:").filter(|_| !is_whole_program) {
        Some(at) => format!("{options}{}", &examples[at..]),
        None => help.clone(),
    };
    // Some lines of clap's help end with spaces.
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    page.push_str(&format!("\n## {}\n\n```\n{}\n```\n", path.join(" "), lines.join("\n")));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add_sections(program, sub, &[path, &[sub.get_name()]].concat(), page);
    }
}
