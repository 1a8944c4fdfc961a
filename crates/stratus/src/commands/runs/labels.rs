//! `stratus runs tag`, `note` and `name`: changes the labels of runs.

use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_run::RunDir;
use stratus_run::labels::{LabelError, RunLabels};

/// Maximum length of a note in a message, in characters.
const MAX_SHOWN_NOTE_CHARS: usize = 60;

/// Arguments of `stratus runs tag`.
#[derive(Args, Debug)]
pub struct TagArguments {
    /// Run directories
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Tag to add; repeatable
    #[arg(long, short, value_name = "TAG", required_unless_present = "remove")]
    pub add: Vec<String>,
    /// Tag to remove; repeatable
    #[arg(long, short, value_name = "TAG")]
    pub remove: Vec<String>,
}

/// Arguments of `stratus runs note`.
#[derive(Args, Debug)]
pub struct NoteArguments {
    /// Run directory
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Note, which replaces that of the run; "" removes it
    #[arg(value_name = "TEXT", required = true, allow_hyphen_values = true)]
    pub text: Vec<String>,
}

/// Arguments of `stratus runs name`.
#[derive(Args, Debug)]
pub struct NameArguments {
    /// Run directory
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Name, which replaces that of the run; "" removes it
    #[arg(value_name = "NAME", required = true, allow_hyphen_values = true)]
    pub name: Vec<String>,
}

/// The labels of a run after a change.
#[derive(Serialize)]
struct Labelled {
    path: PathBuf,
    labels: RunLabels,
}

/// Adds tags to runs, and removes some.
///
/// # Errors
/// If a path is not a run, a tag is invalid, or the labels cannot be written.
pub(super) fn tag(arguments: &TagArguments, output: &Output) -> Result {
    let TagArguments { runs, add, remove } = arguments;
    let mut lacking = Vec::new();
    change(runs, output, |run, labels| {
        for tag in remove {
            if !labels.remove_tag(tag) {
                lacking.push(format!("{} has no tag `{}`", run.display(), stratus_base::printable(tag)));
            }
        }
        add.iter().try_for_each(|tag| labels.add_tag(tag))
    })?;
    lacking.iter().for_each(|text| output.warning(text));
    Ok(())
}

/// Replaces the note of a run.
///
/// # Errors
/// As [`tag`].
pub(super) fn note(arguments: &NoteArguments, output: &Output) -> Result {
    let text = arguments.text.join(" ");
    change(std::slice::from_ref(&arguments.run), output, |_, labels| labels.set_note(&text))
}

/// Replaces the name of a run.
///
/// # Errors
/// As [`tag`].
pub(super) fn name(arguments: &NameArguments, output: &Output) -> Result {
    let text = arguments.name.join(" ");
    change(std::slice::from_ref(&arguments.run), output, |_, labels| labels.set_name(&text))
}

/// Changes the labels of runs, and prints them. All changes are checked before the first one is written.
fn change(
    paths: &[PathBuf],
    output: &Output,
    mut change: impl FnMut(&Path, &mut RunLabels) -> std::result::Result<(), LabelError>,
) -> Result {
    let mut changed = Vec::new();
    for path in paths {
        let run = open_local(path)?;
        let mut labels = RunLabels::read(&run.labels())?;
        change(path, &mut labels).map_err(Failure::usage)?;
        changed.push((run, labels));
    }
    for (run, labels) in &changed {
        labels.write(&run.labels())?;
    }
    let all: Vec<Labelled> =
        changed.into_iter().map(|(run, labels)| Labelled { path: run.path().to_owned(), labels }).collect();
    if output.json() {
        return output.print_verbatim(&all, String::new);
    }
    all.iter().for_each(|run| output.message(&describe(run)));
    Ok(())
}

/// Opens a run directory. Runs are folders of this machine, also those that were trained elsewhere.
fn open_local(path: &Path) -> Result<RunDir> {
    if path.to_string_lossy().contains("://") {
        let failure = Failure::usage(format!("{} is an address, not a run directory", path.display()));
        return Err(failure.with_hint(
            "name the run directory on this machine; `stratus launch fetch` fetches those that were launched",
        ));
    }
    RunDir::open(path).map_err(Failure::usage)
}

/// The labels of a run in a line.
fn describe(run: &Labelled) -> String {
    let RunLabels { name, tags, .. } = &run.labels;
    let tags = Some(tags.join(", ")).filter(|tags| !tags.is_empty());
    let note = run.labels.note_line(MAX_SHOWN_NOTE_CHARS);
    let parts = [("name", name), ("tags", &tags), ("note", &note)];
    let parts: Vec<String> =
        parts.iter().filter_map(|(label, text)| Some(format!("{label} {}", text.as_ref()?))).collect();
    let text = if parts.is_empty() { "no labels".to_owned() } else { parts.join("; ") };
    format!("{}: {text}", run.path.display())
}
