//! The help of `-h` for commands with many options: the common ones, a line each. `--help` shows all.

use clap::{Arg, Command};
use std::ffi::OsStr;

/// The brief help of a command.
struct BriefHelp {
    command: &'static str,
    /// The arguments that are left out.
    hidden: &'static [&'static str],
    /// Arguments with a shorter text than in the full help.
    texts: &'static [(&'static str, &'static str)],
}

const BRIEF_HELP: &[BriefHelp] = &[
    BriefHelp {
        command: "train",
        hidden: &[
            "settings",
            "seed",
            "until_epoch",
            "extend_to",
            "deadline",
            "budget",
            "remeasure",
            "memory_limit",
            "note",
            "hosts",
        ],
        texts: &[
            ("target", "Experiment (like digits), file, or run directory to resume"),
            ("lr", "Learning rate"),
            ("weights", "Initial weights: a file, or another run"),
            ("out", "Run directory"),
            ("workers", "Number of processes"),
            ("name", "Name of the run"),
        ],
    },
    BriefHelp {
        command: "launch",
        hidden: &["seed", "workers", "remote_data", "same_cpu", "force", "note"],
        texts: &[
            ("target", "`local`, or a name from targets.toml"),
            ("experiment", "Experiment, file, sweep, or run to resume"),
            ("lr", "Learning rate"),
            ("until", "Lease: end time, or duration like 6h"),
            ("name", "Name of the runs"),
        ],
    },
    BriefHelp {
        command: "sweep",
        hidden: &["seed"],
        texts: &[
            ("target", "Sweep file, built-in sweep, or directory of a sweep to resume"),
            ("lr", "Learning rate"),
        ],
    },
];

/// Returns whether the words of a command line ask for the brief help.
pub fn is_asked_for(words: &[impl AsRef<OsStr>]) -> bool {
    let mut flags = words.iter().map(AsRef::as_ref).take_while(|word| *word != "--");
    flags.any(|word| word == "-h")
}

/// The program with brief help of the commands in `BRIEF_HELP`.
#[must_use]
pub fn shorten(program: Command) -> Command {
    BRIEF_HELP.iter().fold(program, |program, BriefHelp { command: name, hidden, texts }| {
        program.mut_subcommand(name, |command| {
            let shorten = |arg: Arg| {
                let id = arg.get_id().as_str();
                if hidden.contains(&id) {
                    return arg.hide(true);
                }
                match texts.iter().find(|(name, _)| *name == id) {
                    Some((_, text)) => arg.help(*text),
                    None => arg,
                }
            };
            command.after_help(format!("`stratus {name} --help` explains all options.")).mut_args(shorten)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Arguments;

    /// The width of a small terminal.
    const MAX_COLUMNS: usize = 80;

    fn help(name: &str, flag: &str) -> String {
        let words = ["stratus", name, flag];
        let program = Arguments::program().term_width(MAX_COLUMNS);
        let program = if is_asked_for(&words) { shorten(program) } else { program };
        program.try_get_matches_from(words).unwrap_err().to_string()
    }

    #[test]
    fn brief_help_fits_a_screen() {
        for (name, lines) in [("train", 28), ("launch", 38), ("sweep", 26)] {
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
    fn arguments_of_brief_help_exist() {
        let program = Arguments::program();
        for BriefHelp { command: name, hidden, texts } in BRIEF_HELP {
            let command = program.find_subcommand(name).unwrap();
            for id in hidden.iter().chain(texts.iter().map(|(id, _)| id)) {
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
