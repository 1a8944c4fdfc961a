//! Actions on runs: stop with a checkpoint, and continue.
//!
//! Nothing is written into a run. Stopping sends the signal that Ctrl-C sends, to a process that was verified
//! to hold the run's lock; continuing starts `stratus train RUN`. Of a launch, `stratus launch stop` is
//! called. What is under way is kept in memory and shown in the row of the run.

mod log;
mod offer;
mod process;

pub use log::Progress;
pub use offer::{Kind, Offer};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratus_run::RunDir;
use stratus_run::layout::LOCK;
use stratus_run::owner::{Owner, OwnerError};

use crate::index::{Entry, ItemId, check_files, stamp};
use log::ActionLog;
use offer::{Facts, check_launch};

/// The reason why an action was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionError {
    /// The server was started with `--read-only`.
    ReadOnly,
    /// The run does not permit it, or not any more.
    NotPossible(String),
}

/// The actions of a server.
#[derive(Debug, Default)]
pub struct Actions {
    /// The program that trains; `None` if the server offers no actions.
    program: Option<PathBuf>,
    log: Arc<ActionLog>,
}

impl Actions {
    /// Actions with a program that understands `train RUN` and `launch stop LAUNCH`; none without it.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self { program, log: Arc::default() }
    }

    /// Returns whether the server offers actions at all.
    pub fn are_offered(&self) -> bool {
        self.program.is_some()
    }

    /// The action that a run permits in its state.
    pub fn offer(&self, run: &RunDir, state: &str) -> Offer {
        if self.are_offered() { Facts::of(run, state).offer() } else { Offer::default() }
    }

    /// The progress of the last action on a run, which is in `state` now. `lock` is the time at which its
    /// lock was last acquired.
    pub fn progress(&self, id: &ItemId, state: &'static str, lock: Option<i128>) -> Option<Progress> {
        self.log.progress(id, state, lock)
    }

    /// Starts an action on a run that the page showed in the state `seen`. Only files in `roots` are opened.
    ///
    /// # Errors
    /// If the run is in another state by now, or does not permit the action.
    pub fn start(
        &self,
        kind: Kind,
        entry: &Entry,
        roots: &[PathBuf],
        seen: &str,
    ) -> Result<Progress, ActionError> {
        let program = self.program.as_ref().ok_or(ActionError::ReadOnly)?;
        let not_possible = |reason: String| ActionError::NotPossible(reason);
        check_files(&entry.path, roots).map_err(not_possible)?;
        let run = RunDir::open(&entry.path)
            .map_err(|_| not_possible("the run was moved or deleted meanwhile".to_owned()))?;
        let state = stratus_run::summary::Summary::read(&run.summary())
            .map_or(entry.row.state, |summary| stratus_report::status(&run, &summary).name());
        if state != seen {
            return Err(not_possible(format!("the run is {state} by now")));
        }
        let offer = Facts::of(&run, state).offer();
        if offer.kind != Some(kind) {
            let reason =
                offer.refusal.unwrap_or_else(|| format!("a run that is {state} cannot {}", kind.passive()));
            return Err(not_possible(reason));
        }
        if let Some(launch) = &offer.launch {
            check_launch(run.path(), launch).map_err(not_possible)?;
        }
        // As of now: the last scan may have seen an earlier process.
        let lock = stamp(&run.path().join(LOCK), roots).map_err(not_possible)?;
        let (id, lock) = (&entry.row.id, lock.map(|stamp| stamp.modified_ns));
        let progress = self.log.begin(id, kind, state, lock).map_err(not_possible)?;
        let started = match (&offer.launch, kind) {
            (Some(launch), _) => {
                process::Command::stop_launch(program, run.path(), launch).start(id, &self.log)
            }
            (None, Kind::Stop) => stop(run.path()),
            (None, Kind::Continue) => process::Command::train(program, run.path()).start(id, &self.log),
        };
        started.map(|()| progress).map_err(|reason| {
            self.log.forget(id);
            not_possible(reason)
        })
    }
}

/// Asks the process that trains a run to stop.
fn stop(run: &Path) -> Result<(), String> {
    Owner::find(run).and_then(|owner| owner.request_stop()).map_err(|error| match error {
        OwnerError::Ended => "the run ended meanwhile".to_owned(),
        other => other.to_string(),
    })
}
