//! The size of an experiment: the memory that this machine lacks, the largest batch that fits, the bytes of
//! its checkpoints.

mod batch_search;

use crate::compile::{FittedRun, KernelSelection, batch_divisor, fit, largest_batch, min_bytes, programs};
use crate::device::OpenDevice;
use crate::input::{Datasets, HostMemory, open_datasets};
use crate::network::Network;
use crate::{ResolvedProcess, TrainError, device};
use serde::Serialize;
use stratus_base::text::bytes;
use stratus_experiment::Experiment;
use stratus_graph::Graph;

use batch_search::BatchSearch;

/// The fraction of free memory that a plan may use; the rest is for the process.
const USABLE_MEMORY_SHARE: f64 = 0.95;

/// The maximum number of weight-sized tensors in a checkpoint: weights, two moments, moving average.
const MAX_WEIGHT_SIZED_TENSORS: u64 = 4;

/// A search for the largest batch.
pub struct LargestBatchSearch<'a> {
    /// The experiment, with any batch size.
    pub resolved: &'a ResolvedProcess,
    /// Its network.
    pub graph: &'a Graph,
    /// Its device.
    pub device: &'a OpenDevice,
    /// The memory limit of the network in bytes. `None` means the free memory, which must also hold the data
    /// if the device shares the host's memory.
    pub limit: Option<usize>,
}

/// The plan of the largest batch.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LargestBatch {
    /// Images of the batch.
    pub batch_size: usize,
    /// Bytes of parameters, activations and scratch.
    pub arena_bytes: usize,
    /// The memory of a run besides the arena.
    pub host_memory: HostMemory,
    /// The memory limit of the network in bytes.
    pub limit_bytes: usize,
    /// True if the batch is the whole data set.
    pub is_whole_data_set: bool,
}

impl LargestBatchSearch<'_> {
    /// Plans batches until one nearly fills the limit. Kernels are not measured, since that would take too
    /// long.
    ///
    /// # Errors
    /// If free memory is unknown and there is no limit, no batch fits, or a plan cannot be made.
    pub fn find(&self, datasets: &Datasets, warn: &mut dyn FnMut(&str)) -> Result<LargestBatch, TrainError> {
        let free = self.device.memory_bytes.map(|bytes| (bytes as f64 * USABLE_MEMORY_SHARE) as usize);
        let limit = self.limit.or(free).ok_or_else(|| TrainError::Configuration {
            problem: "cannot determine free memory".to_owned(),
            hint: "set --memory-limit SIZE".to_owned(),
        })?;
        let shares_memory = self.limit.is_none() && !self.device.is_accelerator;
        let samples = self.resolved.samples();
        // The first guess ignores scratch and kernel layouts.
        let first = largest_batch(self.resolved, self.graph, self.device, limit, samples)?;
        let mut batch = first.ok_or_else(|| self.nothing_fits_error(limit))?;
        let mut fitting: Option<LargestBatch> = None;
        // The search counts in units of the number that must divide a batch.
        let divisor = batch_divisor(self.resolved);
        let mut search = BatchSearch::new(samples / divisor);
        loop {
            let resolved = self.resolved.with_batch_size(batch);
            let FittedRun { resolved, planned, .. } =
                fit(&resolved, self.graph, self.device, &KernelSelection::FirstSupported, None, warn)?;
            let arena_bytes = planned.session_bytes();
            let plans = planned.allocate(self.device.backend.as_ref())?.plans;
            // The batches that are read ahead have a limit of their own, `data.prefetch_mib`.
            let mut used = HostMemory::prefetch_share(&resolved, datasets, &plans.train)?;
            if used <= 1.0 {
                let host_memory = HostMemory::for_run(&resolved, datasets, &plans.train, &plans.evaluate)?;
                let needed = arena_bytes + if shares_memory { host_memory.bytes() as usize } else { 0 };
                used = used.max(needed as f64 / limit as f64);
                if used <= 1.0 && fitting.is_none_or(|largest| largest.batch_size < batch) {
                    fitting = Some(LargestBatch {
                        batch_size: batch,
                        arena_bytes,
                        host_memory,
                        limit_bytes: limit,
                        is_whole_data_set: batch == samples,
                    });
                }
            } else if batch == divisor {
                // The error names the key.
                HostMemory::for_run(&resolved, datasets, &plans.train, &plans.evaluate)?;
            }
            match search.next(batch / divisor, used) {
                Some(next) => batch = next * divisor,
                None => break,
            }
        }
        fitting.ok_or_else(|| self.nothing_fits_error(limit))
    }

    fn nothing_fits_error(&self, limit: usize) -> TrainError {
        TrainError::Configuration {
            problem: format!(
                "no batch of {} fits in {}",
                self.resolved.settings().model.name,
                bytes(limit as u64)
            ),
            hint: "use smaller images with --set data.shape=, or a higher --memory-limit".to_owned(),
        }
    }
}

/// The reason that an experiment does not fit into this machine's memory; `None` if it fits.
///
/// A lower bound is checked before the plan, since planning measures kernels.
///
/// # Errors
/// As planning a run.
pub fn memory_shortage(experiment: &Experiment) -> Result<Option<String>, TrainError> {
    let dataset = open_datasets(experiment)?.train;
    let graph = Network::for_dataset(experiment, dataset.as_ref())?.graph;
    let device = device::open(&experiment.train)?;
    let Some(available) = device.memory_bytes else { return Ok(None) };
    let resolved = ResolvedProcess::for_training(experiment, dataset.as_ref(), &graph, &device)?;
    let short = |needs: usize, word: &str| {
        let needed = needs as u64;
        (needed > available).then(|| format!("needs {word}{}, {} available", bytes(needed), bytes(available)))
    };
    if experiment.train.memory_limit_mib.is_none() {
        let programs = programs(&resolved, &graph, &device)?;
        if let Some(reason) = short(min_bytes(&programs, device.backend.as_ref()), "at least ") {
            return Ok(Some(reason));
        }
    }
    let fitted = fit(&resolved, &graph, &device, &KernelSelection::Cached, None, &mut |_| {})?;
    let FittedRun { planned, .. } = fitted;
    Ok(short(planned.session_bytes(), ""))
}

/// The maximum number of bytes to fetch of a run: its checkpoints, and one that is being written.
///
/// # Errors
/// If the network is not found.
pub fn max_run_bytes(experiment: &Experiment) -> Result<u64, TrainError> {
    let parameters = Network::as_published(experiment)?.graph.trained_parameters() as u64;
    Ok(parameters * 4 * MAX_WEIGHT_SIZED_TENSORS * (experiment.checkpoint.keep as u64 + 1))
}
