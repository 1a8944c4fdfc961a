//! The flags that label a new run.

use crate::errors::{Failure, Result};
use clap::Args;
use std::path::Path;
use stratus_run::git::GitCommit;
use stratus_run::labels::{LabelError, RunLabels};

/// Flags that label a new run.
#[derive(Args, Debug, Default)]
pub struct LabelArguments {
    /// Name of the run, for people; `stratus runs` shows it, and `runs find` finds it
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Note on the run
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Tag of the run; repeatable
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
}

impl LabelArguments {
    /// The first flag on the command line, if there is one.
    #[must_use]
    pub fn first_flag(&self) -> Option<&'static str> {
        let Self { name, note, tag } = self;
        let given = [("--name", name.is_some()), ("--note", note.is_some()), ("--tag", !tag.is_empty())];
        given.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag))
    }

    /// The labels, without the commit of the working folder.
    ///
    /// # Errors
    /// If a label is invalid.
    pub fn labels(&self) -> Result<RunLabels> {
        let mut labels = RunLabels::default();
        self.add_to(&mut labels).map_err(Failure::usage)?;
        Ok(labels)
    }

    /// The labels, with the commit of the working folder.
    ///
    /// # Errors
    /// If a label is invalid.
    pub fn labels_with_commit(&self) -> Result<RunLabels> {
        Ok(RunLabels { git: GitCommit::of_folder(Path::new(".")), ..self.labels()? })
    }

    fn add_to(&self, labels: &mut RunLabels) -> std::result::Result<(), LabelError> {
        self.name.as_deref().map_or(Ok(()), |name| labels.set_name(name))?;
        self.note.as_deref().map_or(Ok(()), |note| labels.set_note(note))?;
        self.tag.iter().try_for_each(|tag| labels.add_tag(tag))
    }
}
