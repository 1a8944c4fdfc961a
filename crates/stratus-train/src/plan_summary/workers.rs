//! The share of one of several workers: its parts of a batch, and its exchange of gradients.

use crate::compile::Plans;
use crate::device::OpenDevice;
use crate::exchange::reproducibility_note;
use crate::resolve::ResolvedProcess;
use serde::Serialize;
use stratus_engine::{Kernel, Plan, Step};

/// The share of one worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerShare {
    /// The number of workers.
    pub workers: usize,
    /// Parts of a batch.
    pub parts: usize,
    /// Parts per worker.
    pub parts_of_each: usize,
    /// Images per part.
    pub images_of_part: usize,
    /// The gradient buckets, in order of completion.
    pub buckets: Vec<GradientBucket>,
    /// The dependence of results; `None` if they do not depend on the workers.
    #[serde(skip)]
    pub reproducibility_note: Option<&'static str>,
    /// The number format in which gradients are sent.
    pub exchange_type: &'static str,
    /// Bytes of all buckets, as they are sent.
    pub exchanged_bytes: u64,
    /// Bytes that a worker sends in a step.
    pub sent_bytes: u64,
    /// Bytes of send and receive buffers, besides the arena.
    pub exchange_memory_bytes: u64,
    /// Of a worker on a GPU, the bytes of pinned host memory for values that are exchanged through host
    /// memory.
    pub pinned_bytes: u64,
    /// Of a worker on a GPU, the bytes of its memory in which GPUs may sum directly.
    pub direct_sum_bytes: u64,
}

/// Gradients that are exchanged together.
#[derive(Clone, Debug, Serialize)]
pub struct GradientBucket {
    /// Their size in bytes, as they are sent.
    pub bytes: u64,
    /// The number of gradients.
    pub tensors: usize,
    /// The step, from 0, after which the bucket is complete and sent.
    #[serde(rename = "behind")]
    pub after_step: usize,
    /// The layer of that step.
    pub layer: String,
}

impl WorkerShare {
    /// The share of a worker; `None` for a single process.
    #[must_use]
    pub fn new(resolved: &ResolvedProcess, plans: &Plans, device: &OpenDevice) -> Option<Self> {
        let (share, workers) = (resolved.batch_slice(), resolved.rank().world_size);
        if workers < 2 {
            return None;
        }
        let buckets = buckets(&plans.train);
        let largest_bucket = plans_of(plans).map(Plan::largest_bucket_bytes).max().unwrap_or(0);
        let exchanged_bytes: u64 = buckets.iter().map(|bucket| bucket.bytes).sum();
        Some(Self {
            workers,
            parts: share.parts,
            parts_of_each: share.count,
            images_of_part: resolved.settings().train.batch_size / share.parts,
            buckets,
            reproducibility_note: reproducibility_note(resolved.settings()),
            exchange_type: resolved.settings().train.exchange_type.as_str(),
            exchanged_bytes,
            sent_bytes: sent_bytes(exchanged_bytes, workers),
            exchange_memory_bytes: plans.exchange_bytes(),
            pinned_bytes: match device.is_accelerator {
                // Every step that starts an exchange or a transfer has memory of its own.
                true => plans_of(plans).map(staged_bytes).sum(),
                false => 0,
            },
            direct_sum_bytes: device.backend.direct_sum_bytes(largest_bucket) as u64,
        })
    }
}

/// The exchange of gradients of one pipeline stage with the same stage of other pipelines.
#[derive(Clone, Debug, Serialize)]
pub struct GradientExchange {
    /// The number of buckets.
    pub buckets: usize,
    /// Bytes of all buckets, as they are sent.
    pub bytes: u64,
    /// Bytes that a worker sends in a step.
    pub sent_bytes: u64,
}

impl GradientExchange {
    /// The exchange of a stage among a number of pipelines; `None` for a single one.
    pub(super) fn new(plan: &Plan, pipelines: usize) -> Option<Self> {
        if pipelines < 2 {
            return None;
        }
        let buckets = buckets(plan);
        let bytes = buckets.iter().map(|bucket| bucket.bytes).sum();
        Some(Self { buckets: buckets.len(), bytes, sent_bytes: sent_bytes(bytes, pipelines) })
    }
}

/// The bytes that each of `workers` workers sends to exchange a number of bytes: a half, a quarter, … to add
/// them, and the same amount again to gather the sums.
fn sent_bytes(bytes: u64, workers: usize) -> u64 {
    2 * (bytes - bytes / workers as u64)
}

/// The plans that communicate with other workers.
fn plans_of(plans: &Plans) -> impl Iterator<Item = &Plan> {
    [Some(&plans.train), plans.tail.as_ref(), Some(&plans.evaluate)].into_iter().flatten()
}

/// The bytes of pinned host memory that the communication of a plan needs on a GPU.
pub(super) fn staged_bytes(plan: &Plan) -> u64 {
    let staged = plan.program.steps.iter().filter(|step| match step.kernel {
        Kernel::AllReduceBucket(kernel) => !kernel.waits,
        Kernel::StageTransfer(_) => true,
        _ => false,
    });
    staged.flat_map(Step::operands).map(|id| plan.placements[id.0].bytes as u64).sum()
}

fn buckets(plan: &Plan) -> Vec<GradientBucket> {
    let program = &plan.program;
    let starts = program.steps.iter().enumerate().filter_map(|(position, step)| match step.kernel {
        Kernel::AllReduceBucket(kernel) if !kernel.waits => Some((position, step, kernel.method)),
        _ => None,
    });
    starts
        .map(|(position, step, method)| {
            // Several buckets may start after one step.
            let exchanges = |step: &Step| matches!(step.kernel, Kernel::AllReduceBucket(_));
            let after_step = program.steps[..position].iter().rposition(|step| !exchanges(step)).unwrap_or(0);
            let bytes = step.inputs.iter().map(|id| plan.placements[id.0].bytes as u64).sum();
            GradientBucket {
                bytes: method.sent_bytes(bytes),
                tensors: step.inputs.len(),
                after_step,
                layer: program.layer_name(&program.steps[after_step]),
            }
        })
        .collect()
}
