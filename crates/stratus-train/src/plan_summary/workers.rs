//! The share of one of several workers: its parts of a batch, and its exchange of gradients.

use crate::compile::Plans;
use crate::exchange::exactness_note;
use crate::resolve::ResolvedProcess;
use serde::Serialize;
use stratus_engine::{Kernel, Plan};

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
    /// The dependence of results, if gradients are not summed exactly.
    #[serde(skip)]
    pub exactness_note: Option<&'static str>,
    /// The number format in which gradients travel.
    pub exchange_type: &'static str,
    /// Bytes of all buckets, as they travel.
    pub exchanged_bytes: u64,
    /// Bytes that a worker sends in a step.
    pub sent_bytes: u64,
    /// Bytes of send and receive buffers, besides the arena.
    pub exchange_memory_bytes: u64,
}

/// Gradients that are exchanged together.
#[derive(Clone, Debug, Serialize)]
pub struct GradientBucket {
    /// Their size in bytes, as they travel.
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
    pub fn new(resolved: &ResolvedProcess, plans: &Plans) -> Option<Self> {
        let (share, workers) = (resolved.batch_slice(), resolved.rank().world_size);
        if workers < 2 {
            return None;
        }
        let buckets = buckets(&plans.train);
        let exchanged_bytes: u64 = buckets.iter().map(|bucket| bucket.bytes).sum();
        Some(Self {
            workers,
            parts: share.parts,
            parts_of_each: share.count,
            images_of_part: resolved.settings().train.batch_size / share.parts,
            buckets,
            exactness_note: exactness_note(resolved.settings()),
            exchange_type: resolved.settings().train.exchange_type.as_str(),
            exchanged_bytes,
            // Reduce-scatter sends a half, a quarter, …; all-gather sends the same amount again.
            sent_bytes: 2 * (exchanged_bytes - exchanged_bytes / workers as u64),
            exchange_memory_bytes: plans.exchange_bytes(),
        })
    }
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
            let exchanges = |step: &stratus_engine::Step| matches!(step.kernel, Kernel::AllReduceBucket(_));
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
