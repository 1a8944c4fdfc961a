//! Decides when training ends: a signal, the requested epoch, early stopping, a deadline or budget, a loss
//! that is no longer finite.

use super::RunOptions;
use super::best::EarlyStoppingTracker;
use super::first_stage;
use super::loss_monitor::LossMonitor;
use super::recorder::IterationOutcome;
use super::run_position::RunPosition;
use super::run_time::RunTime;
use super::setup::RunSetup;
use super::time_estimator::TimeEstimator;
use super::worker_role::Decision;
use crate::TrainError;
use crate::run_limits::RunLimits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stratus_engine::Role;
use stratus_run::RunDir;
use stratus_run::csv::EpochRow;
use stratus_run::summary::StoppedEarly;

/// The reason to stop before the end of training, with a checkpoint from which it resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interruption {
    /// The deadline or the budget is reached.
    Limit,
    /// A worker was asked to stop.
    Signal,
}

/// Decides when training ends.
pub(super) struct StopPolicy {
    /// Set by another thread to stop after the current iteration.
    signal: Arc<AtomicBool>,
    /// The epoch to stop after, counted from 1.
    until_epoch: Option<u64>,
    early_stopping: EarlyStoppingTracker,
    loss_monitor: LossMonitor,
    time: RunTime,
    /// Measures iterations, and compares the remaining time with deadline and budget.
    pub estimator: TimeEstimator,
}

impl StopPolicy {
    /// The policy of a run after the epochs of `rows`.
    ///
    /// # Errors
    /// If the deadline or the budget has passed.
    pub fn new(
        setup: &RunSetup,
        run: &RunDir,
        options: &RunOptions,
        time: RunTime,
        rows: &[EpochRow],
    ) -> Result<Self, TrainError> {
        Ok(Self {
            signal: Arc::clone(&options.stop),
            until_epoch: options.until_epoch,
            early_stopping: EarlyStoppingTracker::new(setup.resolved.settings(), rows),
            loss_monitor: LossMonitor::default(),
            estimator: time_estimator(setup, run, time, options)?,
            time,
        })
    }

    /// The decision of this worker before the next iteration, apart from checkpoints. Only the first worker
    /// decides on anything that depends on time.
    pub fn decide(&self, position: RunPosition, is_first: bool) -> Decision {
        let is_unfinished = !position.is_complete();
        Decision {
            stop: is_unfinished && self.is_signalled(),
            save: false,
            limit: is_unfinished && is_first && self.would_exceed_limit(position),
            early: is_first && self.stopped_early(position).is_some(),
        }
    }

    fn is_signalled(&self) -> bool {
        self.signal.load(Ordering::Relaxed)
    }

    /// Returns whether another iteration could exceed the deadline or the budget.
    fn would_exceed_limit(&self, position: RunPosition) -> bool {
        let next = RunPosition { iteration: position.iteration + 1, ..position };
        let validates = position.validates(next.epochs_done());
        self.estimator.must_stop(self.time.process_s(), next.is_epoch_end(), validates)
    }

    /// The reason why training stops before its last epoch, if it does.
    pub fn stopped_early(&self, position: RunPosition) -> Option<StoppedEarly> {
        self.early_stopping.stopped_early().filter(|_| !position.is_complete())
    }

    /// The epoch that training was requested to stop after, once it is done.
    pub fn requested_epoch(&self, position: RunPosition) -> Option<u64> {
        self.until_epoch.filter(|epoch| position.iteration >= epoch * position.iterations_per_epoch)
    }

    /// The reason to stop now, as all workers decided. A run that is asked to stop before its first iteration
    /// runs that one.
    pub fn interruption(&self, decision: Decision, position: RunPosition) -> Option<Interruption> {
        match decision {
            Decision { limit: true, .. } => Some(Interruption::Limit),
            Decision { stop: true, .. } if position.iteration > 0 => Some(Interruption::Signal),
            _ => None,
        }
    }

    /// The message of a stop at the deadline or the budget.
    pub fn limit_reached(&self, position: RunPosition) -> String {
        let label = self.estimator.limit().map_or("limit of another worker", |limit| limit.label.as_str());
        format!("stopped after iteration {}: {label} reached", position.iteration)
    }

    /// A message about whether the run will finish within deadline and budget, if the answer changed.
    pub fn limit_message(&mut self, position: RunPosition) -> Option<String> {
        let (now_s, remaining) = (self.time.process_s(), position.remaining());
        let message = self.estimator.limit_message(now_s, remaining, position.epochs);
        message.filter(|_| remaining.iterations > 0)
    }

    /// Checks that the loss of an iteration is finite.
    ///
    /// # Errors
    /// If it is not.
    pub fn check_loss(&self, outcome: &IterationOutcome) -> Result<(), TrainError> {
        let &IterationOutcome { epoch, iteration, .. } = outcome;
        match outcome.metrics.loss {
            loss if loss.is_finite() => Ok(()),
            loss => Err(TrainError::Diverged { loss, iteration, epoch }),
        }
    }

    /// A warning if the loss has risen far above its initial value.
    pub fn loss_warning(&mut self, outcome: &IterationOutcome) -> Option<String> {
        self.loss_monitor.add(outcome.metrics.loss, outcome.learning_rate)
    }

    /// Adds the end of an epoch.
    pub fn epoch(&mut self, row: &EpochRow) {
        self.early_stopping.add(row);
    }
}

/// The time estimator of a run.
fn time_estimator(
    setup: &RunSetup,
    run: &RunDir,
    time: RunTime,
    options: &RunOptions,
) -> Result<TimeEstimator, TrainError> {
    let first_stage_s = first_stage::read_summary(run).map_or(0.0, |stage| stage.total_s);
    let RunTime { started, previous_s } = time;
    let settings = setup.resolved.settings();
    let limits = RunLimits::new(settings, previous_s + first_stage_s, [started, options.since(started)])?;
    let is_saved = |role: Role| {
        matches!(role, Role::Parameter | Role::Frozen | Role::Buffer | Role::OptimiserState | Role::Average)
    };
    let values = &setup.compiled.plans.train.program.values;
    let bytes = values.iter().filter(|value| is_saved(value.role)).map(|value| value.bytes() as u64).sum();
    Ok(TimeEstimator::new(setup.step_forecast, limits, bytes))
}
