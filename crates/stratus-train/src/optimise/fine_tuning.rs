//! The training that follows the removal of channels: the end of the run's recipe.

use super::OptimiseRequest;
use crate::TrainError;
use stratus_experiment::{Experiment, Schedule};
use stratus_run::RunDir;

/// The experiment that trains the smaller network of `target`: as the run was trained, from its weights,
/// with the learning rate that the run had as many epochs before its end, which falls along a straight line
/// to the run's last one.
///
/// # Errors
/// If a key of the request is invalid.
pub(super) fn fine_tuning(
    experiment: &Experiment,
    request: &OptimiseRequest,
    target: &RunDir,
) -> Result<Experiment, TrainError> {
    /// Iterations of an epoch: their number does not change the shape of a schedule.
    const PER_EPOCH: u64 = 1000;
    let schedule = Schedule::from_experiment(experiment);
    let total = experiment.train.epochs * PER_EPOCH;
    let begin = experiment.train.epochs.saturating_sub(request.epochs) * PER_EPOCH;
    let rate = |iteration: u64| schedule.learning_rate(iteration, PER_EPOCH, total);
    let (first, last) = (rate(begin), rate(total.saturating_sub(1)));
    let mut tuned = experiment.clone();
    tuned.experiment.name = Some(format!("{}-pruned", experiment.name()));
    tuned.model.name = target.optimise_network().display().to_string();
    tuned.model.width = None;
    tuned.model.weights = Some(target.optimise_weights().display().to_string());
    tuned.first_stage.network = None;
    tuned.train.epochs = request.epochs;
    tuned.train.deadline = None;
    tuned.train.budget = None;
    let last = if last < first { last } else { 0.0 };
    let keys = [
        ("optimiser.learning_rate", first.to_string()),
        ("optimiser.learning_rate_batch", String::new()),
        ("schedule.name", "poly".to_owned()),
        ("schedule.power", "1".to_owned()),
        ("schedule.final_learning_rate", last.to_string()),
        ("schedule.warmup_epochs", "0".to_owned()),
    ];
    Ok(tuned.with_overrides(&keys)?.with_overrides(&request.set)?)
}
