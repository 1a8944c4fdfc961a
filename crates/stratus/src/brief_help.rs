//! The help of `-h` for commands with many options: the common ones, a line each. `--help` shows all.

use clap::builder::StyledStr;
use clap::{Arg, Command};
use std::ffi::OsStr;

/// The options that `-h` leaves out, by command.
const HIDDEN: &[(&str, &[&str])] = &[
    (
        "train",
        &[
            "settings",
            "seed",
            "until_epoch",
            "extend_to",
            "deadline",
            "budget",
            "remeasure",
            "memory_limit",
            "note",
        ],
    ),
    ("launch", &["seed", "workers", "remote_data", "same_cpu", "force", "note"]),
    ("sweep", &[]),
];

/// The width of a terminal for which lines are shortened, in columns.
const MAX_COLUMNS: usize = 80;

/// Returns whether the words of a command line ask for the brief help.
pub fn is_asked_for(words: &[impl AsRef<OsStr>]) -> bool {
    let mut flags = words.iter().map(AsRef::as_ref).take_while(|word| *word != "--");
    flags.any(|word| word == "-h")
}

/// The program with brief help of the commands in [`HIDDEN`].
#[must_use]
pub fn shorten(program: Command) -> Command {
    HIDDEN.iter().fold(program, |program, (name, hidden)| {
        program.mut_subcommand(name, |command| {
            let options = command.get_arguments().filter(|arg| is_shown(arg, hidden)).map(usage_columns);
            let columns = options.max().unwrap_or(0);
            let text = format!("`stratus {name} --help` explains all options, with examples.");
            command.after_help(text).mut_args(|arg| {
                if !is_shown(&arg, hidden) {
                    return arg.hide(true);
                }
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let help = first_clause(&help, MAX_COLUMNS.saturating_sub(columns));
                arg.help(StyledStr::from(help)).hide_default_value(true)
            })
        })
    })
}

fn is_shown(arg: &Arg, hidden: &[&str]) -> bool {
    !arg.is_hide_set() && !hidden.contains(&arg.get_id().as_str())
}

/// The columns before the help of an argument, as clap aligns them.
fn usage_columns(arg: &Arg) -> usize {
    let value = arg.get_value_names().and_then(|names| names.first()).map_or(0, |name| name.len() + 3);
    let value = if arg.get_action().takes_values() { value } else { 0 };
    match arg.get_long() {
        Some(long) => 8 + long.len() + value + 2,
        None => 2 + value + 1,
    }
}

/// The part of a help text up to the first mark at which it may end, if it is too long for `columns`. Names of
/// aliases count, which clap adds.
fn first_clause(help: &str, columns: usize) -> String {
    let fits = |text: &str| text.chars().count() <= columns;
    let marks = ["; ", " (", ": ", ", like", ", or"];
    let mut text = help;
    for mark in marks {
        if fits(text) {
            break;
        }
        text = text.find(mark).map_or(text, |at| &text[..at]);
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Arguments;

    fn help(name: &str, flag: &str) -> String {
        let words = ["stratus", name, flag];
        let program = Arguments::program().term_width(MAX_COLUMNS);
        let program = if is_asked_for(&words) { shorten(program) } else { program };
        program.try_get_matches_from(words).unwrap_err().to_string()
    }

    #[test]
    fn brief_help_fits_a_screen() {
        for (name, lines) in [("train", 27), ("launch", 36), ("sweep", 24)] {
            let brief = help(name, "-h");
            assert!(brief.lines().count() <= lines, "{brief}");
            assert!(brief.lines().all(|line| line.chars().count() <= MAX_COLUMNS), "{brief}");
            assert!(brief.contains(&format!("`stratus {name} --help`")), "{brief}");
            assert!(brief.contains("--epochs") && brief.contains("--set"), "{brief}");
        }
        assert!(
            help("train", "--help").contains("--memory-limit") && !help("train", "-h").contains("--memory")
        );
    }

    #[test]
    fn hidden_options_exist() {
        let program = Arguments::program();
        for (name, hidden) in HIDDEN {
            let command = program.find_subcommand(name).unwrap();
            for id in *hidden {
                assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{name} {id}");
            }
        }
    }

    #[test]
    fn flag_after_two_dashes_is_an_argument() {
        assert!(is_asked_for(&["stratus", "train", "-h"]));
        assert!(!is_asked_for(&["stratus", "train", "--", "-h"]) && !is_asked_for(&["stratus", "--help"]));
    }
}
