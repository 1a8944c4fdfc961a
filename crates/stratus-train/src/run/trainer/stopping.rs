//! Stops before a deadline or a budget is exceeded, and reports it.

use super::super::RunOptions;
use super::super::first_stage;
use super::super::setup::RunSetup;
use super::super::time_estimator::{RemainingWork, TimeEstimator};
use super::Trainer;
use crate::run_limits::RunLimits;
use crate::{Observer, TrainError};
use std::time::Instant;
use stratus_engine::Role;
use stratus_run::RunDir;

/// The time estimator of a run that took `previous_s` seconds before this process (re)started it at
/// `started`.
pub(super) fn time_estimator(
    setup: &RunSetup,
    run: &RunDir,
    previous_s: f64,
    started: Instant,
    options: &RunOptions,
) -> Result<TimeEstimator, TrainError> {
    let first_stage_s = first_stage::read_summary(run).map_or(0.0, |stage| stage.total_s);
    let settings = setup.resolved.settings();
    let limits = RunLimits::new(settings, previous_s + first_stage_s, [started, options.since(started)])?;
    let is_saved = |role: Role| {
        matches!(role, Role::Parameter | Role::Frozen | Role::Buffer | Role::OptimiserState | Role::Average)
    };
    let values = &setup.compiled.plans.train.program.values;
    let bytes = values.iter().filter(|value| is_saved(value.role)).map(|value| value.bytes() as u64).sum();
    Ok(TimeEstimator::new(setup.step_forecast, limits, bytes))
}

impl Trainer<'_> {
    /// The work that remains.
    pub(super) fn remaining(&self) -> RemainingWork {
        self.remaining_after(self.iteration)
    }

    /// The work of the whole training.
    pub(super) fn total_work(&self) -> RemainingWork {
        self.remaining_after(0)
    }

    fn remaining_after(&self, iteration: u64) -> RemainingWork {
        let settings = self.setup.resolved.settings();
        let (epochs, every) = (settings.train.epochs, settings.validation.every_epochs);
        let done = iteration / self.loader.batches_per_epoch().max(1);
        let last = u64::from(!epochs.is_multiple_of(every) && done < epochs);
        RemainingWork {
            iterations: (epochs * self.loader.batches_per_epoch()).saturating_sub(iteration),
            validations: epochs / every - done / every + last,
            epochs: epochs.saturating_sub(done),
        }
    }

    fn process_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Reports whether the run will finish within deadline and budget, if the answer changed.
    pub(super) fn report_time_limit(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let epochs = self.setup.resolved.settings().train.epochs;
        let (now_s, remaining) = (self.process_s(), self.remaining());
        if let Some(text) =
            self.time_estimator.limit_message(now_s, remaining, epochs).filter(|_| remaining.iterations > 0)
        {
            self.log.write(&text)?;
            observer.info(&text);
        }
        Ok(())
    }

    /// Returns whether another iteration could exceed the deadline or the budget.
    pub(super) fn would_exceed_limit(&self) -> bool {
        let settings = self.setup.resolved.settings();
        let per_epoch = self.loader.batches_per_epoch();
        let next = self.iteration + 1;
        let epoch = next / per_epoch;
        let validates =
            epoch.is_multiple_of(settings.validation.every_epochs) || epoch == settings.train.epochs;
        self.time_estimator.must_stop(self.process_s(), next.is_multiple_of(per_epoch), validates)
    }

    /// Saves a checkpoint, and reports why training stops.
    pub(super) fn stop_for_limit(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let per_epoch = self.loader.batches_per_epoch();
        if self.saved_iteration != Some(self.iteration) {
            self.save(self.iteration / per_epoch, self.iteration % per_epoch)?;
        }
        let label =
            self.time_estimator.limit().map_or("limit of another worker", |limit| limit.label.as_str());
        let text = format!("stopped after iteration {}: {label} reached", self.iteration);
        self.log.write(&text)?;
        observer.info(&text);
        Ok(())
    }
}
