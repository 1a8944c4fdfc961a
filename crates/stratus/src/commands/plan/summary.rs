//! What a plan comes to: the work of a step, and memory by what it is for.

use super::workers::Shared;
use crate::output::{bytes, pairs, table};
use serde::Serialize;
use std::fmt;
use stratus_report::report::{BlockKind, MemoryMap};
use stratus_train::Resolved;
use stratus_train::compile::Plans;
use stratus_train::device::OpenDevice;
use stratus_train::input::HostMemory;

/// The largest blocks that are named.
const NAMED: usize = 3;

/// A plan in short.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    network: String,
    data_set: String,
    device: String,
    precision: String,
    batch_size: usize,
    micro_batches: usize,
    /// Images of an epoch, and its iterations.
    images: usize,
    iterations_per_epoch: usize,
    /// Kernels of a training step.
    kernels: usize,
    /// Floating-point operations of a training step.
    flops: u64,
    /// Bytes that its kernels read and write.
    bytes: u64,
    /// Bytes allocated for parameters, activations and scratch.
    arena_bytes: usize,
    /// What the arena holds where most is alive, by what it is for.
    memory: Vec<Part>,
    /// The largest values that are alive there.
    largest: Vec<Part>,
    /// The layer of that step.
    peak_layer: String,
    /// What a run takes beside it.
    host_memory: HostMemory,
    /// What one of several workers has of it: all of the above is that worker's.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<Shared>,
    /// Bytes that the device has free; `None` where that is not known.
    free_bytes: Option<u64>,
    /// Whether the arena, and where it is the same memory the rest too, is no more than that.
    fits: Option<bool>,
}

/// A part of memory.
#[derive(Clone, Debug, Serialize)]
struct Part {
    what: String,
    bytes: usize,
}

impl Summary {
    pub fn of(resolved: &Resolved, plans: &Plans, device: &OpenDevice, host_memory: HostMemory) -> Self {
        let (settings, plan) = (resolved.settings(), &plans.train);
        let program = &plan.program;
        let map = MemoryMap::of(plan);
        let alive = map.blocks.iter().filter(|block| (block.first..=block.last).contains(&map.peak_step));
        let of_kind = |kind: BlockKind| {
            let bytes = alive.clone().filter(|block| block.kind == kind).map(|block| block.bytes).sum();
            Part { what: kind.name().to_owned(), bytes }
        };
        let persistent =
            map.persistent.iter().map(|(what, bytes)| Part { what: (*what).to_owned(), bytes: *bytes });
        let mut memory: Vec<Part> = persistent.chain(BlockKind::ALL.map(of_kind)).collect();
        let named = memory.iter().map(|part| part.bytes).sum::<usize>();
        memory.push(Part {
            what: "gaps, padding and small values".to_owned(),
            bytes: plans.arena_bytes.saturating_sub(named),
        });
        memory.retain(|part| part.bytes > 0);
        let steps = 0..program.steps.len();
        let samples = resolved.samples();
        let batch = settings.train.batch_size;
        let iterations = if settings.data.drop_last { samples / batch } else { samples.div_ceil(batch) };
        let shared = Shared::of(resolved, plans);
        let exchange = shared.as_ref().map_or(0, |shared| shared.exchange_memory_bytes);
        let beside = if device.beside_cores { 0 } else { host_memory.bytes() + exchange };
        let needed = plans.arena_bytes as u64 + beside;
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
                .take(NAMED)
                .map(|block| Part {
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

/// What to ask next; `command` is what the command line says of the training.
pub(super) fn next(command: &str) -> String {
    format!(
        "next: `stratus forecast {command} --on here` for the time it takes,\n      \
         `--largest-batch` for the largest batch that fits,\n      `--dump plan` for every kernel\n"
    )
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let parts = match self.micro_batches {
            1 => String::new(),
            parts => format!(", computed in {parts} parts"),
        };
        let step = format!(
            "{} kernels, {:.1} GFLOP, {:.1} MB read and written",
            self.kernels,
            self.flops as f64 * 1e-9,
            self.bytes as f64 * 1e-6
        );
        let mut lines = vec![
            line("network", format!("{} on {}, {}", self.network, self.data_set, self.precision)),
            line("device", self.device.clone()),
            line("batch", format!("{} images{parts}", self.batch_size)),
            line("step", step),
            line("epoch", format!("{} steps of {} images in all", self.iterations_per_epoch, self.images)),
        ];
        lines.extend(self.shared.iter().flat_map(Shared::lines));
        let host = &self.host_memory;
        let exchange = self.shared.as_ref().map_or(0, |shared| shared.exchange_memory_bytes);
        let (beside, what) =
            (bytes(host.bytes() + exchange), if exchange > 0 { "data and exchange" } else { "data" });
        let free = self.free_bytes.map(bytes);
        let verdict = match (self.fits, free) {
            (Some(true), Some(free)) => format!(", of {free} free"),
            (Some(false), Some(free)) => format!(", MORE than {free} free"),
            _ => String::new(),
        };
        lines.push(line(
            "memory",
            format!("{} for the network and {beside} for {what}{verdict}", bytes(self.arena_bytes as u64)),
        ));
        f.write_str(&pairs(&lines))?;
        let mut rows = vec![[format!("memory, at its peak in {}", self.peak_layer), String::new()]];
        let row = |part: &Part| [format!("  {}", part.what), bytes(part.bytes as u64)];
        rows.extend(self.memory.iter().map(row));
        rows.extend([
            [
                format!("  {} batches read ahead, of {}", host.batches, bytes(host.batch_bytes)),
                bytes(host.batch_bytes * host.batches as u64),
            ],
            ["  batches of validation".to_owned(), bytes(host.validation_bytes)],
            ["  data sets".to_owned(), bytes(host.dataset_bytes)],
        ]);
        if exchange > 0 {
            rows.push(["  what is exchanged, and what others send".to_owned(), bytes(exchange)]);
        }
        if !self.largest.is_empty() {
            rows.push(["the largest values among them".to_owned(), String::new()]);
            rows.extend(self.largest.iter().map(row));
        }
        let buckets = self.shared.as_ref().map_or(String::new(), |shared| format!("\n{}", shared.table()));
        write!(f, "\n{}{buckets}\n", table(&rows))
    }
}
