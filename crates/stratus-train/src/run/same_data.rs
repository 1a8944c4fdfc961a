//! Checks that a run that is continued is continued on its own data set.

use crate::{Observer, TrainError};
use std::path::Path;
use stratus_run::RunDir;
use stratus_run::checkpoint::State;
use stratus_run::data::{DataRecord, class_difference, iterations_difference};

/// The most differences that a message lists.
pub(super) const MAX_LISTED: usize = 6;

/// A run that has begun.
#[derive(Clone, Copy)]
pub(super) struct Begun<'a> {
    pub run: &'a RunDir,
    /// The state of its checkpoint, if it has one.
    pub state: Option<&'a State>,
}

impl Begun<'_> {
    /// Checks that the data set is, as it is `now`, the one that the run began with.
    ///
    /// # Errors
    /// [`TrainError::Configuration`], with the first differences.
    pub fn expect_same_data(&self, now: &DataRecord, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let mut differences = match DataRecord::read(&self.run.data())? {
            Some(recorded) => recorded.differences(now),
            None => {
                observer.say(&format!(
                    "{}: an older version of the program began this run and did not record its data set: \
                     only the classes and the iterations of an epoch can be compared",
                    self.run.path().display()
                ));
                let classes = stratus_run::classes::read_names(&self.run.classes());
                classes.and_then(|classes| class_difference(&classes, &now.classes)).into_iter().collect()
            }
        };
        if differences.is_empty() {
            differences.extend(self.state.and_then(|state| place_difference(state, now.epoch_iterations)));
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(other_data(self.run.path(), self.state.is_some(), &differences))
    }
}

/// How the iterations of an epoch differ from those that a checkpoint was made with, where it records them.
fn place_difference(state: &State, now: u64) -> Option<String> {
    let whole = state.iteration.saturating_sub(state.batch);
    match whole.checked_div(u64::from(state.epoch)) {
        Some(before) => iterations_difference(before, now),
        None => (state.batch >= now).then(|| {
            format!("iterations of an epoch: {now}, and the first epoch has had {} already", state.batch)
        }),
    }
}

/// The error for a run whose data set has changed. Only one that has a checkpoint has weights.
fn other_data(run: &Path, has_weights: bool, differences: &[String]) -> TrainError {
    let run = run.display();
    let mut listed: String =
        differences.iter().take(MAX_LISTED).map(|difference| format!("\n  {difference}")).collect();
    if differences.len() > MAX_LISTED {
        listed += &format!("\n  and {} more", differences.len() - MAX_LISTED);
    }
    let new = if has_weights {
        format!("a new run with these weights: `stratus train {run}/experiment.toml --weights {run}`")
    } else {
        format!("a new run: `stratus train {run}/experiment.toml`")
    };
    TrainError::Configuration {
        problem: format!("{run} cannot be continued: its data set has changed since it began{listed}"),
        hint: format!("restore the data set, or begin {new}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_tells_the_iterations_of_an_epoch() {
        let state = |epoch, batch, iteration| State { epoch, batch, iteration, ..State::default() };
        assert_eq!(place_difference(&state(2, 0, 12), 6), None);
        assert_eq!(place_difference(&state(2, 3, 15), 6), None);
        assert_eq!(place_difference(&state(2, 0, 12), 9).unwrap(), "iterations of an epoch: 6 → 9");
        assert_eq!(place_difference(&state(0, 5, 5), 6), None);
        assert_eq!(
            place_difference(&state(0, 5, 5), 3).unwrap(),
            "iterations of an epoch: 3, and the first epoch has had 5 already"
        );
        // Before the first iteration nothing is known.
        assert_eq!(place_difference(&state(0, 0, 0), 3), None);
    }
}
