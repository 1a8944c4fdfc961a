//! The answer to a request for completions: which argument the cursor is on, and its candidates.

use super::candidates::{Candidate, Candidates};
use clap::{Arg, Command};
use std::ffi::OsString;

/// Answers a request: a line for each candidate, `VALUE<tab>DESCRIPTION`, and the line `<tab>files` if the
/// shell shall add names of files. `words` are those after the program's name; the last one is to be
/// completed.
#[must_use]
pub fn answer(mut program: Command, words: impl Iterator<Item = OsString>) -> String {
    program.build();
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let found = complete(&program, &words);
    let mut text = String::new();
    for Candidate { value, help } in &found.values {
        text.push_str(&format!("{value}\t{help}\n"));
    }
    if found.with_files {
        text.push_str("\tfiles\n");
    }
    text
}

/// The state of the command line before the word to complete.
struct Line<'a> {
    command: &'a Command,
    /// The names of the command and its parents.
    path: Vec<&'a str>,
    /// The number of positional arguments before the word.
    positionals: usize,
    /// The option whose value the word is.
    option: Option<&'a Arg>,
    /// True after `--`.
    only_positionals: bool,
}

impl<'a> Line<'a> {
    fn new(program: &'a Command) -> Self {
        Line { command: program, path: Vec::new(), positionals: 0, option: None, only_positionals: false }
    }

    /// Takes a word before the one to complete.
    fn push(&mut self, word: &str) {
        if self.option.take().is_some() {
            return;
        }
        let is_option = word.starts_with('-') && word.len() > 1 && !self.only_positionals;
        if word == "--" && is_option {
            self.only_positionals = true;
        } else if let Some(name) = word.strip_prefix("--").filter(|_| is_option) {
            self.option = self.long(name).filter(|arg| takes_value(arg));
        } else if is_option {
            self.option = self.short(&word[1..]);
        } else if let Some(sub) = self.command.find_subcommand(word).filter(|_| self.positionals == 0) {
            self.command = sub;
            self.path.push(sub.get_name());
        } else {
            self.positionals += 1;
        }
    }

    /// The option with a long name.
    fn long(&self, name: &str) -> Option<&'a Arg> {
        self.command.get_arguments().find(|arg| {
            arg.get_long_and_visible_aliases().unwrap_or_default().contains(&name)
                || arg.get_all_aliases().unwrap_or_default().contains(&name)
        })
    }

    /// The option of a group of short flags whose value is the next word.
    fn short(&self, flags: &str) -> Option<&'a Arg> {
        let mut flags = flags.chars();
        let takes = |flag: char| {
            let named = |arg: &&Arg| arg.get_short_and_visible_aliases().unwrap_or_default().contains(&flag);
            self.command.get_arguments().find(named).filter(|arg| takes_value(arg))
        };
        let option = flags.by_ref().find_map(takes);
        // What follows the flag in the same word is its value.
        option.filter(|_| flags.as_str().is_empty())
    }

    /// The positional argument that the word is, if it is one.
    fn positional(&self) -> Option<&'a Arg> {
        let last = self.command.get_positionals().last();
        let has_many = |arg: &&Arg| arg.get_num_args().is_some_and(|count| count.max_values() > 1);
        self.command.get_positionals().nth(self.positionals).or(last.filter(has_many))
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// The candidates for the last word.
fn complete(program: &Command, words: &[String]) -> Candidates {
    let (word, before) = words.split_last().map_or(("", &[][..]), |(word, before)| (word.as_str(), before));
    let mut line = Line::new(program);
    before.iter().for_each(|word| line.push(word));
    if let Some(option) = line.option {
        return Candidates::of_argument(&line.path, option, word);
    }
    if word.starts_with('-') && !line.only_positionals {
        return match word.strip_prefix("--").and_then(|word| word.split_once('=')) {
            Some((name, value)) => match line.long(name).filter(|arg| takes_value(arg)) {
                Some(option) => {
                    Candidates::of_argument(&line.path, option, value).with_prefix(&format!("--{name}="))
                }
                None => Candidates::default(),
            },
            None => flags(line.command, word),
        };
    }
    let mut found = Candidates::default();
    if line.positionals == 0 && !line.only_positionals {
        for sub in line.command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let help = sub.get_about().map(ToString::to_string).unwrap_or_default();
            found.push(sub.get_name(), &help, word);
        }
    }
    if let Some(positional) = line.positional() {
        found.append(Candidates::of_argument(&line.path, positional, word));
    }
    found
}

/// The flags of a command that begin with `word`.
fn flags(command: &Command, word: &str) -> Candidates {
    let mut found = Candidates::default();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        if let Some(long) = arg.get_long() {
            found.push(&format!("--{long}"), &help, word);
        } else if let Some(short) = arg.get_short() {
            found.push(&format!("-{short}"), &help, word);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::cli::Arguments;

    fn values(line: &str) -> Vec<String> {
        let words = line.split(' ').map(Into::into);
        let text = super::answer(Arguments::program(), words);
        text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    }

    fn has(line: &str, value: &str) -> bool {
        values(line).iter().any(|found| found == value)
    }

    #[test]
    fn commands_flags_and_values_are_completed_where_they_belong() {
        assert_eq!(values("tra"), ["train"]);
        assert!(has("", "launch") && !has("", "--json"));
        assert_eq!(values("train --epo"), ["--epochs"]);
        assert!(has("train --", "--set") && !has("train --", "--stop-with-stdin"));
        assert_eq!(values("data chec"), ["check"]);
        assert_eq!(values("report --format m"), ["md"]);
        assert_eq!(values("report --format=m"), ["--format=md"]);
        assert_eq!(values("runs --sort s"), ["score", "speed"]);
        assert!(has("runs rm -", "--yes"));
        // The value of an option is not a positional argument, nor is what follows it in the same word.
        assert!(has("train --out x resnet5", "resnet50"));
        assert!(has("train --out=x resnet5", "resnet50"));
        assert!(has("-q train resnet5", "resnet50"));
        assert!(!has("train --out resnet5", "resnet50"));
        assert!(values("no such command ").is_empty());
    }

    #[test]
    fn experiments_networks_keys_and_data_sets_are_known() {
        assert!(
            has("train dig", "digits") && has("plan dig", "digits") && has("train camvid-", "camvid-erfnet")
        );
        assert!(has("launch local dig", "digits"));
        assert_eq!(values("launch loc"), ["local"]);
        assert!(has("model show vgg1", "vgg16"));
        assert_eq!(values("train digits --set train.epo"), ["train.epochs="]);
        assert_eq!(values("train digits --set=train.epo"), ["--set=train.epochs="]);
        assert_eq!(values("train digits --set data.name=mni"), ["data.name=mnist"]);
        assert_eq!(values("train digits --set schedule.name=one"), ["schedule.name=one_cycle"]);
        assert_eq!(values("train digits --set data.verify="), ["data.verify=true", "data.verify=false"]);
        assert_eq!(values("train digits --set data.path="), [""], "names of files");
        assert!(has("runs --where train.batch_si", "train.batch_size="));
        assert!(values("train digits --set no.such=").is_empty());
        assert!(has("train digits --device ", "gpu") && has("train digits --device ", "onednn"));
    }

    #[test]
    fn no_line_panics() {
        for line in [
            "--",
            "-- -",
            "-",
            "train -",
            "--=",
            "--set",
            "--set =",
            "train --set =x",
            "-qq -",
            "é=",
            "\u{1b}",
        ] {
            values(line);
            let words = line.split(' ').map(Into::into);
            assert!(!super::answer(Arguments::program(), words).contains('\u{1b}'));
        }
        assert!(!super::answer(Arguments::program(), std::iter::empty()).is_empty());
    }
}
