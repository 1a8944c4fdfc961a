//! What one of several workers does and holds: its parts of a batch, and what it exchanges with the others.

use crate::output::{bytes, table};
use serde::Serialize;
use stratus_engine::{Kernel, Plan};
use stratus_train::Resolved;
use stratus_train::compile::Plans;

/// The share of one worker.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Shared {
    pub workers: usize,
    /// Into how many parts a batch is cut, how many of them a worker has, and the images of one.
    pub parts: usize,
    pub parts_of_each: usize,
    pub images_of_part: usize,
    /// What travels together, in the order in which it is made.
    pub buckets: Vec<Bucket>,
    /// Bytes of them all, and those that a worker sends in a step.
    pub exchanged_bytes: u64,
    pub sent_bytes: u64,
    /// Bytes beside the arena in which they travel, and into which those of others are received.
    pub exchange_memory_bytes: u64,
}

/// Sums that are exchanged together.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Bucket {
    pub bytes: u64,
    pub tensors: usize,
    /// The kernel behind which it is complete and on its way, from 0, and that one's layer.
    pub behind: usize,
    pub layer: String,
}

impl Shared {
    /// `None` where one process has it all.
    pub fn of(resolved: &Resolved, plans: &Plans) -> Option<Self> {
        let (share, workers) = (resolved.share(), resolved.place().workers);
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
            exchanged_bytes,
            // Halves with a neighbour, quarters with the next, and the same on the way back.
            sent_bytes: 2 * (exchanged_bytes - exchanged_bytes / workers as u64),
            exchange_memory_bytes: plans.exchange_bytes(),
        })
    }

    /// The lines of a summary.
    pub fn lines(&self) -> [(String, String); 2] {
        let Self { workers, parts, parts_of_each, images_of_part, .. } = self;
        [
            (
                "workers".to_owned(),
                format!("{workers}, each with {parts_of_each} of {parts} parts of {images_of_part} images"),
            ),
            (
                "exchange".to_owned(),
                format!(
                    "{} in {} buckets, of which a worker sends {} a step",
                    bytes(self.exchanged_bytes),
                    self.buckets.len(),
                    bytes(self.sent_bytes)
                ),
            ),
        ]
    }

    /// A row for each bucket.
    pub fn table(&self) -> String {
        let row = |(number, bucket): (usize, &Bucket)| {
            [
                format!(
                    "  {number}, {} tensors, behind step {} ({})",
                    bucket.tensors, bucket.behind, bucket.layer
                ),
                bytes(bucket.bytes),
            ]
        };
        let mut rows = vec![["buckets, on their way as soon as they are complete".to_owned(), String::new()]];
        rows.extend(self.buckets.iter().enumerate().map(row));
        table(&rows)
    }
}

fn buckets(plan: &Plan) -> Vec<Bucket> {
    let program = &plan.program;
    let starts = program.steps.iter().enumerate().filter_map(|(position, step)| match step.kernel {
        Kernel::ExchangeSums(kernel) if !kernel.waits => Some((position, step)),
        _ => None,
    });
    starts
        .map(|(position, step)| {
            // Several buckets may start behind one step.
            let exchanges = |step: &stratus_engine::Step| matches!(step.kernel, Kernel::ExchangeSums(_));
            let behind = program.steps[..position].iter().rposition(|step| !exchanges(step)).unwrap_or(0);
            Bucket {
                bytes: step.inputs.iter().map(|id| plan.placements[id.0].bytes as u64).sum(),
                tensors: step.inputs.len(),
                behind,
                layer: program.layer_name(&program.steps[behind]),
            }
        })
        .collect()
}
