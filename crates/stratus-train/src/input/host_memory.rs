//! The host memory of a run.

use super::{BatchFormat, Datasets};
use crate::TrainError;
use crate::resolve::ResolvedProcess;
use serde::Serialize;
use std::sync::Arc;
use stratus_data::{Dataset, Loader, LoaderConfig};
use stratus_engine::Plan;
use stratus_run::csv::Task;

/// The host memory of a run besides its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostMemory {
    /// Number of training batches that are read ahead.
    pub batches: usize,
    /// Bytes of a training batch.
    pub batch_bytes: u64,
    /// Bytes of the batches that validation reads ahead, and of the outputs for labels or numbers that it
    /// gathers.
    pub validation_bytes: u64,
    /// Bytes of the data sets.
    pub dataset_bytes: u64,
}

impl HostMemory {
    /// The host memory of a run with these plans.
    ///
    /// # Errors
    /// As [`InputPipeline::read_ahead`](super::InputPipeline::read_ahead).
    pub fn for_run(
        resolved: &ResolvedProcess,
        datasets: &Datasets,
        train: &Plan,
        evaluate: &Plan,
    ) -> Result<Self, TrainError> {
        let Datasets { train: training, validation } = datasets;
        // A placeholder, which stands for both, has no images.
        let is_placeholder = Arc::ptr_eq(training, validation);
        let gathered = if is_placeholder { 0 } else { gathered_bytes(resolved, validation.as_ref()) };
        let input = resolved.input();
        let config = input.read_ahead(training.as_ref(), training_loader(resolved, train))?;
        let evaluation = input.evaluation(BatchFormat::from_plan(evaluate), evaluate.program.batch);
        Ok(Self {
            batches: config.slots,
            batch_bytes: Loader::batch_bytes(training.as_ref(), &config)?,
            validation_bytes: Loader::batch_bytes(validation.as_ref(), &evaluation)?
                * evaluation.slots as u64
                + gathered,
            dataset_bytes: training.resident_bytes() + validation.resident_bytes(),
        })
    }

    /// The share of `data.prefetch_mib` that the minimum number of batches needs; 0 if the key is unset.
    ///
    /// # Errors
    /// If the loader's settings are invalid for the data set.
    pub fn prefetch_share(
        resolved: &ResolvedProcess,
        datasets: &Datasets,
        train: &Plan,
    ) -> Result<f64, TrainError> {
        let config = training_loader(resolved, train);
        resolved.input().prefetch_share(datasets.train.as_ref(), &config)
    }

    /// The total bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.batch_bytes * self.batches as u64 + self.validation_bytes + self.dataset_bytes
    }
}

/// The bytes of the outputs and targets that a validation gathers: of labels and numbers, both in f32.
/// Several processes have up to three copies for a moment, while they exchange and merge them. Stages that
/// have no outputs send as many bytes as the last one.
pub(crate) fn gathered_bytes(resolved: &ResolvedProcess, validation: &dyn Dataset) -> u64 {
    let stages = resolved.stage().map_or(1, |stage| stage.count) as u64;
    let is_alone = resolved.rank().world_size == 1 && stages == 1;
    let copies = if is_alone { 1 } else { 3 * stages };
    match resolved.task() {
        Task::Classification | Task::Segmentation => 0,
        Task::MultiLabel | Task::Regression => copies * 8 * (validation.len() * validation.classes()) as u64,
    }
}

/// The loader's settings in a run with this plan, except the batches that it reads ahead.
fn training_loader(resolved: &ResolvedProcess, train: &Plan) -> LoaderConfig {
    LoaderConfig {
        workers: resolved.max_loader_threads(),
        slice: resolved.batch_slice(),
        ..resolved.input().training(BatchFormat::from_plan(train))
    }
}
