//! The summary of a plan: the work of a step, and memory by purpose; the share of one of several workers, and
//! the stages of a pipeline.

mod stages;
mod workers;

pub use stages::{PipelineStage, PipelineStages};
pub use workers::{GradientBucket, GradientExchange, WorkerShare};

use crate::compile::Plans;
use crate::device::OpenDevice;
use crate::input::HostMemory;
use crate::resolve::ResolvedProcess;
use serde::Serialize;
use stratus_engine::memory_map::{BlockKind, MemoryMap};

/// The maximum number of largest values shown.
const MAX_NAMED_VALUES: usize = 3;

/// The summary of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanSummary {
    /// The network's name.
    pub network: String,
    /// The data set's name.
    pub data_set: String,
    /// The device, with its library.
    pub device: String,
    /// The precision.
    pub precision: String,
    /// Images of a batch.
    pub batch_size: usize,
    /// The parts that a batch is computed in, at least 1.
    pub micro_batches: usize,
    /// Images of an epoch.
    pub images: usize,
    /// Iterations of an epoch.
    pub iterations_per_epoch: usize,
    /// Kernels of a training step.
    pub kernels: usize,
    /// Floating-point operations of a training step.
    pub flops: u64,
    /// Bytes that the kernels of a training step read and write.
    pub bytes: u64,
    /// Bytes allocated for parameters, activations and scratch.
    pub arena_bytes: usize,
    /// The content of the arena at its peak, by purpose.
    pub memory: Vec<MemoryItem>,
    /// The largest values at the peak.
    pub largest: Vec<MemoryItem>,
    /// The layer of the step at the peak.
    pub peak_layer: String,
    /// The memory of a run besides the arena.
    pub host_memory: HostMemory,
    /// The share of one worker, if there are several; the fields above then describe that worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<WorkerShare>,
    /// Free bytes of the device; `None` if unknown.
    pub free_bytes: Option<u64>,
    /// True if the arena, and the memory in which GPUs of several workers may sum, fits; on the CPU, together
    /// with the other memory of the run. `None` if unknown.
    pub fits: Option<bool>,
}

/// An item of a list of memory.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryItem {
    /// The purpose, or the name of the value.
    pub what: String,
    /// Its size in bytes.
    pub bytes: usize,
}

impl PlanSummary {
    /// The summary of the plans of a run that needs `host_memory` besides the arena.
    #[must_use]
    pub fn new(
        resolved: &ResolvedProcess,
        plans: &Plans,
        device: &OpenDevice,
        host_memory: HostMemory,
    ) -> Self {
        let (settings, plan) = (resolved.settings(), &plans.train);
        let program = &plan.program;
        let map = MemoryMap::from_plan(plan);
        let alive = map.blocks.iter().filter(|block| (block.first..=block.last).contains(&map.peak_step));
        let of_kind = |kind: BlockKind| {
            let bytes = alive.clone().filter(|block| block.kind == kind).map(|block| block.bytes).sum();
            MemoryItem { what: kind.name().to_owned(), bytes }
        };
        let persistent =
            map.persistent.iter().map(|(what, bytes)| MemoryItem { what: (*what).to_owned(), bytes: *bytes });
        let mut memory: Vec<MemoryItem> = persistent.chain(BlockKind::ALL.map(of_kind)).collect();
        let named = memory.iter().map(|part| part.bytes).sum::<usize>();
        memory.push(MemoryItem {
            what: "gaps, padding and small values".to_owned(),
            bytes: plans.arena_bytes.saturating_sub(named),
        });
        memory.retain(|part| part.bytes > 0);
        let steps = 0..program.steps.len();
        let samples = resolved.samples();
        let batch = settings.train.batch_size;
        let iterations = if settings.data.drop_last { samples / batch } else { samples.div_ceil(batch) };
        let shared = WorkerShare::new(resolved, plans, device);
        let exchange = shared.as_ref().map_or(0, |shared| shared.exchange_memory_bytes);
        let other_bytes = if device.is_accelerator { 0 } else { host_memory.bytes() + exchange };
        let direct = shared.as_ref().map_or(0, |shared| shared.direct_sum_bytes);
        let needed = plans.arena_bytes as u64 + direct + other_bytes;
        Self {
            network: program.network.clone(),
            data_set: settings.data.name.clone(),
            device: device.backend.describe(),
            precision: program.precision.to_string(),
            batch_size: batch,
            micro_batches: settings.train.micro_batches.max(1),
            images: samples,
            iterations_per_epoch: iterations,
            kernels: program.steps.len(),
            flops: steps.clone().map(|step| program.step_flops(step)).sum(),
            bytes: steps.map(|step| plan.step_bytes(step)).sum(),
            arena_bytes: plans.arena_bytes,
            largest: alive
                .take(MAX_NAMED_VALUES)
                .map(|block| MemoryItem {
                    what: match block.kind {
                        BlockKind::Scratch => format!("{}, scratch", block.name),
                        _ => block.name.clone(),
                    },
                    bytes: block.bytes,
                })
                .collect(),
            peak_layer: program
                .steps
                .get(map.peak_step)
                .map_or(String::new(), |step| program.layer_name(step)),
            memory,
            host_memory,
            shared,
            free_bytes: device.memory_bytes,
            fits: device.memory_bytes.map(|free| needed <= free),
        }
    }
}
