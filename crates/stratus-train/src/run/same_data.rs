//! Checks that a run is resumed on its own data set.

use crate::{Observer, TrainError};
use std::path::Path;
use stratus_base::text::shell_path;
use stratus_run::RunDir;
use stratus_run::checkpoint::State;
use stratus_run::data::{DataRecord, class_difference, iterations_difference};

/// The maximum number of differences in a message.
pub(super) const MAX_LISTED: usize = 6;

/// A run that was started before.
#[derive(Clone, Copy)]
pub(super) struct StartedRun<'a> {
    pub run: &'a RunDir,
    /// The state of its checkpoint, if it has one.
    pub state: Option<&'a State>,
}

impl StartedRun<'_> {
    /// Checks that the data set is the one that the run started with.
    ///
    /// # Errors
    /// If it has changed: [`TrainError::Configuration`] lists the first differences.
    pub fn check_same_data(&self, now: &DataRecord, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let mut differences = match DataRecord::read(&self.run.data())? {
            Some(recorded) => recorded.differences(now),
            None => {
                observer.info(&format!(
                    "{}: this run was started by an older version that did not record the data set; \
                     comparing only classes and iterations per epoch",
                    self.run.path().display()
                ));
                let classes = stratus_run::classes::read_names(&self.run.classes());
                classes.and_then(|classes| class_difference(&classes, &now.classes)).into_iter().collect()
            }
        };
        if differences.is_empty() {
            differences
                .extend(self.state.and_then(|state| epoch_length_difference(state, now.epoch_iterations)));
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(data_changed_error(self.run.path(), self.state.is_some(), &differences))
    }
}

/// The difference in iterations per epoch from a checkpoint, if it records them.
fn epoch_length_difference(state: &State, now: u64) -> Option<String> {
    let whole = state.iteration.saturating_sub(state.batch);
    match whole.checked_div(u64::from(state.epoch)) {
        Some(before) => iterations_difference(before, now),
        None => (state.batch >= now)
            .then(|| format!("iterations per epoch: {now}, but the first epoch already has {}", state.batch)),
    }
}

/// The error if the data set of a run has changed. A run without a checkpoint has no weights.
fn data_changed_error(run: &Path, has_weights: bool, differences: &[String]) -> TrainError {
    let (shown, run) = (run.display(), shell_path(run));
    let mut listed: String =
        differences.iter().take(MAX_LISTED).map(|difference| format!("\n  {difference}")).collect();
    if differences.len() > MAX_LISTED {
        listed += &format!("\n  and {} more", differences.len() - MAX_LISTED);
    }
    let new = if has_weights {
        format!("a new run from these weights: `stratus train {run}/experiment.toml --weights {run}`")
    } else {
        format!("a new run: `stratus train {run}/experiment.toml`")
    };
    TrainError::Configuration {
        problem: format!("{shown} cannot be resumed: its data set has changed since it was started{listed}"),
        hint: format!("restore the data set, or start {new}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_a_change_of_epoch_length_by_the_checkpoint() {
        let state = |epoch, batch, iteration| State { epoch, batch, iteration, ..State::default() };
        assert_eq!(epoch_length_difference(&state(2, 0, 12), 6), None);
        assert_eq!(epoch_length_difference(&state(2, 3, 15), 6), None);
        assert_eq!(epoch_length_difference(&state(2, 0, 12), 9).unwrap(), "iterations per epoch: 6 → 9");
        assert_eq!(epoch_length_difference(&state(0, 5, 5), 6), None);
        assert_eq!(
            epoch_length_difference(&state(0, 5, 5), 3).unwrap(),
            "iterations per epoch: 3, but the first epoch already has 5"
        );
        // Before the first iteration there is nothing to compare.
        assert_eq!(epoch_length_difference(&state(0, 0, 0), 3), None);
    }
}
