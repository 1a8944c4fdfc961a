//! The largest batch that fits.

use crate::errors::{Failure, Result};
use crate::output::bytes;
use serde::Serialize;
use stratus_graph::Graph;
use stratus_train::compile::{FittedRun, KernelSelection, fit, largest_batch};
use stratus_train::device::OpenDevice;
use stratus_train::input::{Datasets, HostMemory};
use stratus_train::{Resolved, TrainError};

/// The most plans that are made on the way to the largest that fits.
const ATTEMPTS: usize = 8;
/// The share of the limit that is near enough to it.
const CLOSE: f64 = 0.97;
/// Larger batches than this are tried in multiples of [`STEP`].
const COARSE: usize = 16;
const STEP: usize = 8;
/// The share of free memory that may be planned with: the process needs some itself.
const SHARE: f64 = 0.95;

/// What is searched for.
pub(super) struct Search<'a> {
    pub resolved: &'a Resolved,
    pub graph: &'a Graph,
    pub device: &'a OpenDevice,
    /// Bytes for the network; without it what is free, which has to hold the data too where it is the same
    /// memory.
    pub limit: Option<usize>,
}

/// The largest batch, as planned.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Largest {
    batch_size: usize,
    arena_bytes: usize,
    host_memory: HostMemory,
    limit_bytes: usize,
    /// Whether it is all that the data set has.
    is_whole_data_set: bool,
}

impl Search<'_> {
    /// Plans batches until one fits closely. Their kernels are not measured, which would take as long as
    /// many steps of training.
    pub fn find(&self, datasets: &Datasets, warn: &mut dyn FnMut(&str)) -> Result<Largest> {
        let free = self.device.memory_bytes.map(|bytes| (bytes as f64 * SHARE) as usize);
        let limit = self.limit.or(free).ok_or_else(|| {
            Failure::usage("this machine does not say how much memory is free")
                .hint("say how much may be used with --memory-limit SIZE")
        })?;
        let shares_memory = self.limit.is_none() && !self.device.beside_cores;
        let most = self.resolved.samples();
        // Programs need no less than this batch's, and kernels' scratch and layouts more.
        let mut too_large = most + 1;
        let first = largest_batch(self.resolved, self.graph, self.device, limit, most)?;
        let mut batch = first.ok_or_else(|| self.none(limit))?;
        let mut fitting: Option<Largest> = None;
        for _ in 0..ATTEMPTS {
            let resolved = self.resolved.with_batch_size(batch);
            let FittedRun { resolved, planned, .. } =
                fit(resolved, self.graph, self.device, &KernelSelection::Unmeasured, None, warn)?;
            let arena_bytes = planned.arena_bytes();
            let plans = planned.allocate(self.device.backend.as_ref())?.plans;
            let host_memory = HostMemory::of(&resolved, datasets, &plans.train, &plans.evaluate)?;
            let needed = arena_bytes + if shares_memory { host_memory.bytes() as usize } else { 0 };
            let used = needed as f64 / limit as f64;
            if used <= 1.0 {
                fitting = Some(Largest {
                    batch_size: batch,
                    arena_bytes,
                    host_memory,
                    limit_bytes: limit,
                    is_whole_data_set: batch == most,
                });
            } else {
                too_large = batch;
            }
            let smallest = fitting.map_or(1, |largest| largest.batch_size + 1);
            if smallest >= too_large || (CLOSE..=1.0).contains(&used) {
                break;
            }
            // What memory there is for each image, if all needed the same.
            let next = (batch as f64 / used) as usize;
            let next = if next > COARSE { next / STEP * STEP } else { next };
            batch = next.clamp(smallest, too_large - 1);
        }
        fitting.ok_or_else(|| self.none(limit))
    }

    fn none(&self, limit: usize) -> Failure {
        TrainError::Configuration {
            problem: format!(
                "no batch of {} fits {}",
                self.resolved.settings().model.name,
                bytes(limit as u64)
            ),
            hint: "take smaller images with --set data.shape=, or allow more with --memory-limit".to_owned(),
        }
        .into()
    }
}

impl Largest {
    /// As text; `command` is what the command line says of the training.
    pub(super) fn text(&self, command: &str) -> String {
        let Self { batch_size, arena_bytes, host_memory, limit_bytes, is_whole_data_set } = *self;
        let whole = if is_whole_data_set { ", the whole data set" } else { "" };
        format!(
            "largest batch  {batch_size} images{whole}\nmemory         {} for the network, {} for data; {} \
             may be used for the network\n\nTrain with it: --batch {batch_size}. The fastest batch is often \
             smaller: `stratus forecast {command} --batch 64,128,256 --on here` compares some. Kernels were \
             not measured: those that training chooses may need some per cent more or less.\n",
            bytes(arena_bytes as u64),
            bytes(host_memory.bytes()),
            bytes(limit_bytes as u64),
        )
    }
}
