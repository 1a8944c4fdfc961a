//! The summary of a plan: the work of a step, and memory by purpose.

use super::workers::WorkerShare;
use crate::output::{key_value_list, table};
use serde::Serialize;
use std::fmt;
use stratus_base::text::bytes;
use stratus_report::report::{BlockKind, MemoryMap};
use stratus_train::ResolvedProcess;
use stratus_train::compile::Plans;
use stratus_train::device::OpenDevice;
use stratus_train::input::HostMemory;

/// The maximum number of largest values shown.
const MAX_NAMED_VALUES: usize = 3;

/// The summary of a plan.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    network: String,
    data_set: String,
    device: String,
    precision: String,
    batch_size: usize,
    micro_batches: usize,
    /// Images of an epoch.
    images: usize,
    /// Iterations of an epoch.
    iterations_per_epoch: usize,
    /// Kernels of a training step.
    kernels: usize,
    /// Floating-point operations of a training step.
    flops: u64,
    /// Bytes that the kernels of a training step read and write.
    bytes: u64,
    /// Bytes allocated for parameters, activations and scratch.
    arena_bytes: usize,
    /// The content of the arena at its peak, by purpose.
    memory: Vec<MemoryItem>,
    /// The largest values at the peak.
    largest: Vec<MemoryItem>,
    /// The layer of the step at the peak.
    peak_layer: String,
    /// The memory of a run besides the arena.
    host_memory: HostMemory,
    /// The share of one worker, if there are several; the fields above then describe that worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<WorkerShare>,
    /// Free bytes of the device; `None` if unknown.
    free_bytes: Option<u64>,
    /// True if the arena fits; on the CPU, together with the other memory of the run. `None` if unknown.
    fits: Option<bool>,
}

/// An item of a list of memory.
#[derive(Clone, Debug, Serialize)]
struct MemoryItem {
    what: String,
    bytes: usize,
}

impl Summary {
    pub fn of(
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
        let shared = WorkerShare::of(resolved, plans);
        let exchange = shared.as_ref().map_or(0, |shared| shared.exchange_memory_bytes);
        let other_bytes = if device.is_accelerator { 0 } else { host_memory.bytes() + exchange };
        let needed = plans.arena_bytes as u64 + other_bytes;
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

/// Hints for next commands; `command` is the experiment and its settings.
pub(super) fn next_steps(command: &str) -> String {
    format!(
        "next: `stratus forecast {command} --on here` for the time,\n      \
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
            line("epoch", format!("{} steps, {} images", self.iterations_per_epoch, self.images)),
        ];
        lines.extend(self.shared.iter().flat_map(WorkerShare::summary_rows));
        let host = &self.host_memory;
        let exchange = self.shared.as_ref().map_or(0, |shared| shared.exchange_memory_bytes);
        let (other, contents) =
            (bytes(host.bytes() + exchange), if exchange > 0 { "data and exchange" } else { "data" });
        let free = self.free_bytes.map(bytes);
        let verdict = match (self.fits, free) {
            (Some(true), Some(free)) => format!(", of {free} free"),
            (Some(false), Some(free)) => format!(", exceeds the {free} free"),
            _ => String::new(),
        };
        lines.push(line(
            "memory",
            format!("{} for the network and {other} for {contents}{verdict}", bytes(self.arena_bytes as u64)),
        ));
        f.write_str(&key_value_list(&lines))?;
        let mut rows = vec![[format!("memory at its peak, in {}", self.peak_layer), String::new()]];
        let row = |part: &MemoryItem| [format!("  {}", part.what), bytes(part.bytes as u64)];
        rows.extend(self.memory.iter().map(row));
        rows.extend([
            [
                format!("  {} batches read ahead, of {}", host.batches, bytes(host.batch_bytes)),
                bytes(host.batch_bytes * host.batches as u64),
            ],
            ["  validation batches".to_owned(), bytes(host.validation_bytes)],
            ["  data sets".to_owned(), bytes(host.dataset_bytes)],
        ]);
        if exchange > 0 {
            rows.push(["  gradient exchange buffers".to_owned(), bytes(exchange)]);
        }
        if !self.largest.is_empty() {
            rows.push(["largest values".to_owned(), String::new()]);
            rows.extend(self.largest.iter().map(row));
        }
        let buckets =
            self.shared.as_ref().map_or(String::new(), |shared| format!("\n{}", shared.bucket_table()));
        write!(f, "\n{}{buckets}\n", table(&rows))
    }
}
