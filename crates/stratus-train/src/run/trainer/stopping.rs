//! Stopping before a deadline or a budget is exceeded, and what is said of it.

use super::super::Options;
use super::super::first_stage;
use super::super::outlook::{Left, Outlook};
use super::super::setup::RunSetup;
use super::Trainer;
use crate::allowance::Allowance;
use crate::{Observer, TrainError};
use std::time::Instant;
use stratus_engine::Role;
use stratus_run::RunDir;

/// The outlook of a run that has taken `earlier_s` before the process that began at `begun`.
pub(super) fn outlook(
    setup: &RunSetup,
    run: &RunDir,
    earlier_s: f64,
    begun: Instant,
    options: &Options,
) -> Result<Outlook, TrainError> {
    let first_stage_s = first_stage::summary_of(run).map_or(0.0, |stage| stage.total_s);
    let settings = setup.resolved.settings();
    let allowance = Allowance::of(settings, earlier_s + first_stage_s, [begun, options.since(begun)])?;
    let is_saved = |role: Role| {
        matches!(role, Role::Parameter | Role::Frozen | Role::Buffer | Role::Momentum | Role::Average)
    };
    let values = &setup.compiled.plans.train.program.values;
    let bytes = values.iter().filter(|value| is_saved(value.role)).map(|value| value.bytes() as u64).sum();
    Ok(Outlook::new(setup.foreseen, allowance, bytes))
}

impl Trainer<'_> {
    /// What is left to train.
    pub(super) fn left(&self) -> Left {
        self.left_after(self.iteration)
    }

    /// All of it.
    pub(super) fn all(&self) -> Left {
        self.left_after(0)
    }

    fn left_after(&self, iteration: u64) -> Left {
        let settings = self.setup.resolved.settings();
        let (epochs, every) = (settings.train.epochs, settings.validation.every_epochs);
        let done = iteration / self.loader.batches_per_epoch().max(1);
        let last = u64::from(!epochs.is_multiple_of(every) && done < epochs);
        Left {
            iterations: (epochs * self.loader.batches_per_epoch()).saturating_sub(iteration),
            validations: epochs / every - done / every + last,
            epochs: epochs.saturating_sub(done),
        }
    }

    fn process_s(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Says whether deadline and budget will hold, where that is news.
    pub(super) fn say_outlook(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let epochs = self.setup.resolved.settings().train.epochs;
        let (now_s, left) = (self.process_s(), self.left());
        if let Some(text) = self.outlook.verdict(now_s, left, epochs).filter(|_| left.iterations > 0) {
            self.log.say(&text)?;
            observer.say(&text);
        }
        Ok(())
    }

    /// Whether another iteration could exceed the deadline or the budget.
    pub(super) fn is_over(&self) -> bool {
        let settings = self.setup.resolved.settings();
        let per_epoch = self.loader.batches_per_epoch();
        let next = self.iteration + 1;
        let epoch = next / per_epoch;
        let validates =
            epoch.is_multiple_of(settings.validation.every_epochs) || epoch == settings.train.epochs;
        self.outlook.is_over(self.process_s(), next.is_multiple_of(per_epoch), validates)
    }

    /// Saves the state, and says why training stops.
    pub(super) fn stop_for_limit(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let per_epoch = self.loader.batches_per_epoch();
        if self.saved_at != Some(self.iteration) {
            self.save(self.iteration / per_epoch, self.iteration % per_epoch)?;
        }
        let what = self.outlook.limit().map_or("another worker".to_owned(), |limit| limit.what.clone());
        let text = format!("stopped after iteration {}: {what} allows no further one", self.iteration);
        self.log.say(&text)?;
        observer.say(&text);
        Ok(())
    }
}
