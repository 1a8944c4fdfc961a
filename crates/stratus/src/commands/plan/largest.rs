//! The largest batch that fits into memory.

use crate::errors::{Failure, Result};
use crate::output::bytes;
use serde::Serialize;
use stratus_graph::Graph;
use stratus_train::compile::{FittedRun, KernelSelection, fit, largest_batch};
use stratus_train::device::OpenDevice;
use stratus_train::input::{Datasets, HostMemory};
use stratus_train::{Resolved, TrainError};

/// The maximum number of plans that the search makes.
const MAX_ATTEMPTS: usize = 8;
/// The search ends with a batch that needs at least this fraction of the limit.
const CLOSE_ENOUGH_SHARE: f64 = 0.97;
/// The batch size above which the search tries multiples of [`COARSE_STEP`].
const COARSE_ABOVE: usize = 16;
/// The step of the search for large batches.
const COARSE_STEP: usize = 8;
/// The fraction of free memory that a plan may use; the rest is for the process.
const USABLE_MEMORY_SHARE: f64 = 0.95;

/// A search for the largest batch.
pub(super) struct LargestBatchSearch<'a> {
    pub resolved: &'a Resolved,
    pub graph: &'a Graph,
    pub device: &'a OpenDevice,
    /// The memory limit of the network in bytes. `None` means the free memory, which must also hold the data
    /// if the device shares the host's memory.
    pub limit: Option<usize>,
}

/// The plan of the largest batch.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct LargestBatch {
    batch_size: usize,
    arena_bytes: usize,
    host_memory: HostMemory,
    limit_bytes: usize,
    /// True if the batch is the whole data set.
    is_whole_data_set: bool,
}

impl LargestBatchSearch<'_> {
    /// Plans batches until one nearly fills the limit. Kernels are not measured, since that would take too
    /// long.
    pub fn find(&self, datasets: &Datasets, warn: &mut dyn FnMut(&str)) -> Result<LargestBatch> {
        let free = self.device.memory_bytes.map(|bytes| (bytes as f64 * USABLE_MEMORY_SHARE) as usize);
        let limit = self.limit.or(free).ok_or_else(|| {
            Failure::usage("cannot determine free memory").with_hint("set --memory-limit SIZE")
        })?;
        let shares_memory = self.limit.is_none() && !self.device.is_accelerator;
        let samples = self.resolved.samples();
        // The first guess ignores scratch and kernel layouts, so it is an upper bound.
        let mut too_large = samples + 1;
        let first = largest_batch(self.resolved, self.graph, self.device, limit, samples)?;
        let mut batch = first.ok_or_else(|| self.nothing_fits_error(limit))?;
        let mut fitting: Option<LargestBatch> = None;
        for _ in 0..MAX_ATTEMPTS {
            let resolved = self.resolved.with_batch_size(batch);
            let FittedRun { resolved, planned, .. } =
                fit(&resolved, self.graph, self.device, &KernelSelection::FirstSupported, None, warn)?;
            let arena_bytes = planned.arena_bytes();
            let plans = planned.allocate(self.device.backend.as_ref())?.plans;
            let host_memory = HostMemory::for_run(&resolved, datasets, &plans.train, &plans.evaluate)?;
            let needed = arena_bytes + if shares_memory { host_memory.bytes() as usize } else { 0 };
            let used = needed as f64 / limit as f64;
            if used <= 1.0 {
                fitting = Some(LargestBatch {
                    batch_size: batch,
                    arena_bytes,
                    host_memory,
                    limit_bytes: limit,
                    is_whole_data_set: batch == samples,
                });
            } else {
                too_large = batch;
            }
            let smallest = fitting.map_or(1, |largest| largest.batch_size + 1);
            if smallest >= too_large || (CLOSE_ENOUGH_SHARE..=1.0).contains(&used) {
                break;
            }
            // The next guess assumes equal memory per image.
            let next = (batch as f64 / used) as usize;
            let next = if next > COARSE_ABOVE { next / COARSE_STEP * COARSE_STEP } else { next };
            batch = next.clamp(smallest, too_large - 1);
        }
        fitting.ok_or_else(|| self.nothing_fits_error(limit))
    }

    fn nothing_fits_error(&self, limit: usize) -> Failure {
        TrainError::Configuration {
            problem: format!(
                "no batch of {} fits in {}",
                self.resolved.settings().model.name,
                bytes(limit as u64)
            ),
            hint: "use smaller images with --set data.shape=, or a higher --memory-limit".to_owned(),
        }
        .into()
    }
}

impl LargestBatch {
    /// Renders the result; `command` is the experiment and its settings, for the hint.
    pub(super) fn render(&self, command: &str) -> String {
        let Self { batch_size, arena_bytes, host_memory, limit_bytes, is_whole_data_set } = *self;
        let whole = if is_whole_data_set { ", the whole data set" } else { "" };
        format!(
            "largest batch  {batch_size} images{whole}\nmemory         {} for the network, {} for data; \
             limit for the network {}\n\nTo train with it, use --batch {batch_size}. The fastest batch is \
             often smaller: compare with `stratus forecast {command} --batch 64,128,256 --on here`. Kernels \
             were not measured; those of the training run may need a few per cent more or less memory.\n",
            bytes(arena_bytes as u64),
            bytes(host_memory.bytes()),
            bytes(limit_bytes as u64),
        )
    }
}
