//! The candidates for the value of an argument, by the name of its value.

use clap::Arg;
use std::fs;
use std::path::{Path, PathBuf};
use stratus_data::datasets;
use stratus_experiment::{Experiment, KEYS, Key, ValueKind};
use stratus_graph::zoo;
use stratus_launch::LaunchRecord;
use stratus_run::RunDir;
use stratus_run::labels::RunLabels;
use stratus_run::layout::RUNS;

/// The maximum number of runs that are listed, the newest of each experiment first.
const MAX_RUNS: usize = 500;
/// The maximum length of a description in characters.
const MAX_HELP_CHARS: usize = 80;

/// A candidate with its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub value: String,
    pub help: String,
}

/// The candidates for a word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Candidates {
    pub values: Vec<Candidate>,
    /// True if the word may also be the path of a file or folder.
    pub with_files: bool,
}

impl Candidates {
    /// The candidates for the value of an argument of the command `path` that begin with `word`.
    pub fn of_argument(path: &[&str], arg: &Arg, word: &str) -> Self {
        let mut found = Self::default();
        for value in arg.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            found.push(value.get_name(), &help, word);
        }
        let names = arg.get_value_names().unwrap_or_default();
        match (path, names.first().map_or("", |name| name.as_str())) {
            (["data", "fetch" | "stats" | "show" | "check", ..], _) if arg.is_positional() => {
                found.add_data_sets("", word);
                found.with_files = true;
            }
            (["data", "shard"], "NAME") => found.add_data_sets("", word),
            (_, "KEY=VALUE") => found.add_key_value(word),
            (_, "TARGET") => found.add_all(target_names(), word),
            (_, "ID") => found.add_launches(word),
            (_, "DEVICE") => found.add_choices("train.device", word),
            (_, name) => found.add_alternatives(name, word),
        }
        found
    }

    /// Adds the candidates for a name such as `EXPERIMENT|RUN`.
    fn add_alternatives(&mut self, name: &str, word: &str) {
        for alternative in name.split('|') {
            match alternative {
                "EXPERIMENT" | "EXPERIMENTS" => {
                    self.add_all(Experiment::builtin_names().map(str::to_owned), word);
                    self.with_files = true;
                }
                "NETWORK" => {
                    zoo::NETWORKS
                        .iter()
                        .for_each(|network| self.push(network.name, network.description, word));
                }
                "SWEEP" => {
                    stratus_sweep::BUILTIN
                        .iter()
                        .for_each(|sweep| self.push(sweep.name, "built-in sweep", word));
                    self.with_files = true;
                }
                "RUN" => {
                    self.add_runs(word);
                    self.with_files = true;
                }
                _ if is_path(alternative) => self.with_files = true,
                _ => {}
            }
        }
    }

    /// Adds a candidate if it begins with `word`. Names that a shell would interpret are left out: they come
    /// from folders of unknown origin, and bash inserts candidates as they are.
    pub fn push(&mut self, value: &str, help: &str, word: &str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=+@,:".contains(c);
        if value.starts_with(word) && value.chars().all(is_plain) {
            let help = help.lines().next().unwrap_or_default();
            let help = help.chars().filter(|c| !c.is_control()).take(MAX_HELP_CHARS).collect();
            self.values.push(Candidate { value: value.to_owned(), help });
        }
    }

    /// Adds other candidates.
    pub fn append(&mut self, mut other: Self) {
        self.values.append(&mut other.values);
        self.with_files |= other.with_files;
    }

    /// The candidates with a text before each.
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.values.iter_mut().for_each(|candidate| candidate.value.insert_str(0, prefix));
        self
    }

    fn add_all(&mut self, values: impl IntoIterator<Item = String>, word: &str) {
        values.into_iter().for_each(|value| self.push(&value, "", word));
    }

    fn add_data_sets(&mut self, prefix: &str, word: &str) {
        for entry in datasets::REGISTRY {
            self.push(&format!("{prefix}{}", entry.name), entry.summary, word);
        }
    }

    /// Adds the words that a key accepts.
    fn add_choices(&mut self, name: &str, word: &str) {
        if let Some(ValueKind::Choice(words)) = KEYS.iter().find(|key| key.name == name).map(|key| key.kind) {
            words.iter().for_each(|value| self.push(value, "", word));
        }
    }

    /// Adds configuration keys, or the values of a key.
    fn add_key_value(&mut self, word: &str) {
        let Some((name, _)) = word.split_once('=') else {
            KEYS.iter().for_each(|key| self.push(&format!("{}=", key.name), key.doc.trim(), word));
            return;
        };
        let Some(key) = KEYS.iter().find(|key| key.name == name) else { return };
        let prefix = format!("{name}=");
        match (key.kind, name) {
            (ValueKind::Choice(words), _) => {
                words.iter().for_each(|value| self.push(&format!("{prefix}{value}"), "", word));
            }
            (ValueKind::Bool, _) => {
                ["true", "false"].iter().for_each(|value| self.push(&format!("{prefix}{value}"), "", word));
            }
            (_, "data.name") => self.add_data_sets(&prefix, word),
            (_, "model.name") => {
                for network in zoo::NETWORKS {
                    self.push(&format!("{prefix}{}", network.name), network.description, word);
                }
                self.with_files = true;
            }
            _ => self.with_files = names_files(key),
        }
    }

    /// Adds the runs in `runs/`, the newest of each experiment first.
    fn add_runs(&mut self, word: &str) {
        let mut experiments = names(Path::new(RUNS));
        experiments.sort_unstable();
        let mut count = 0;
        for experiment in experiments {
            let folder = format!("{RUNS}/{experiment}/");
            if !folder.starts_with(word) && !word.starts_with(&folder) {
                continue;
            }
            let mut numbers: Vec<u64> =
                names(Path::new(&folder)).iter().filter_map(|name| name.parse().ok()).collect();
            numbers.sort_unstable_by(|a, b| b.cmp(a));
            let paths = numbers.iter().map(|number| format!("{folder}{number}"));
            for path in paths.filter(|path| path.starts_with(word)) {
                if count == MAX_RUNS {
                    return;
                }
                let Ok(run) = RunDir::open(Path::new(&path)) else { continue };
                let labels = RunLabels::read(&run.labels()).unwrap_or_default();
                self.push(&path, labels.name.as_deref().unwrap_or_default(), word);
                count += 1;
            }
        }
    }

    /// Adds the launches, newest first, and their runs.
    fn add_launches(&mut self, word: &str) {
        let records = LaunchRecord::all(Path::new(RUNS)).unwrap_or_default();
        for record in records.iter().rev().take(MAX_RUNS) {
            self.push(&record.id, &format!("on {}", record.target), word);
        }
        let runs = records.iter().rev().flat_map(|record| &record.runs);
        runs.take(MAX_RUNS).for_each(|run| self.push(&run.display().to_string(), "", word));
    }
}

/// Returns whether the values with this name are paths of files or folders.
fn is_path(name: &str) -> bool {
    let names = ["FILE", "DIR", "FOLDER", "PATH", "SRC", "DST", "IMAGE", "VIDEO"];
    names.iter().any(|path| name == *path || name.starts_with(&format!("{path}.")))
}

/// Returns whether the values of a key are paths.
fn names_files(key: &Key) -> bool {
    let (_, name) = key.split();
    key.kind == ValueKind::String && ["path", "weights", "cache", "classes"].contains(&name)
}

/// The names of the targets in the files that `stratus launch` reads.
fn target_names() -> Vec<String> {
    let files = std::iter::once(PathBuf::from(stratus_launch::TARGETS_FILE));
    stratus_launch::target_names(&files.chain(stratus_launch::user_targets_file()).collect::<Vec<_>>())
}

/// The names of the folders in a folder, except hidden ones; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect()
}
