//! The summary of a plan as text.

use super::workers;
use crate::output::{key_value_list, table};
use stratus_base::text::{bytes, counted};
use stratus_train::plan_summary::{MemoryItem, PlanSummary};

/// Hints for next commands; `command` is the experiment and its settings.
pub(super) fn next_steps(command: &str) -> String {
    format!(
        "next: `stratus forecast {command} --on here` for the time,\n      \
         `--largest-batch` for the largest batch that fits,\n      `--dump plan` for every kernel\n"
    )
}

/// Renders the summary: a line per quantity, and the memory at its peak.
pub(super) fn render(summary: &PlanSummary) -> String {
    let line = |name: &str, value: String| (name.to_owned(), value);
    let parts = match summary.micro_batches {
        1 => String::new(),
        parts => format!(", computed in {parts} parts"),
    };
    let step = format!(
        "{} kernels, {:.1} GFLOP, {:.1} MB read and written",
        summary.kernels,
        summary.flops as f64 * 1e-9,
        summary.bytes as f64 * 1e-6
    );
    let mut lines = vec![
        line("network", format!("{} on {}, {}", summary.network, summary.data_set, summary.precision)),
        line("device", summary.device.clone()),
        line("batch", format!("{}{parts}", counted(summary.batch_size as u64, "image"))),
        line("step", step),
        line(
            "epoch",
            format!(
                "{}, {}",
                counted(summary.iterations_per_epoch as u64, "iteration"),
                counted(summary.images as u64, "image")
            ),
        ),
    ];
    lines.extend(summary.shared.iter().flat_map(workers::summary_rows));
    let host = &summary.host_memory;
    let shared = summary.shared.as_ref();
    let (exchange, pinned) =
        shared.map_or((0, 0), |shared| (shared.exchange_memory_bytes, shared.pinned_bytes));
    let direct = shared.map_or(0, |shared| shared.direct_sum_bytes);
    let contents = if exchange > 0 { "data and exchange" } else { "data" };
    let other = bytes(host.bytes() + exchange + pinned);
    let free = summary.free_bytes.map(bytes);
    let verdict = match (summary.fits, free) {
        (Some(true), Some(free)) => format!(", of {free} free"),
        (Some(false), Some(free)) => format!(", exceeds the {free} free"),
        _ => String::new(),
    };
    lines.push(line(
        "memory",
        format!(
            "{} for the network and {other} for {contents}{verdict}",
            bytes(summary.arena_bytes as u64 + direct)
        ),
    ));
    let mut rows = vec![[format!("memory at its peak, in {}", summary.peak_layer), String::new()]];
    let row = |part: &MemoryItem| [format!("  {}", part.what), bytes(part.bytes as u64)];
    rows.extend(summary.memory.iter().map(row));
    if direct > 0 {
        rows.push(["  sums between GPUs, with NCCL only".to_owned(), bytes(direct)]);
    }
    rows.extend([
        [
            format!(
                "  {} {} read ahead, of {}",
                host.batches,
                if host.batches == 1 { "batch" } else { "batches" },
                bytes(host.batch_bytes)
            ),
            bytes(host.batch_bytes * host.batches as u64),
        ],
        ["  validation batches".to_owned(), bytes(host.validation_bytes)],
        ["  data sets".to_owned(), bytes(host.dataset_bytes)],
    ]);
    if exchange > 0 {
        rows.push(["  gradient exchange buffers".to_owned(), bytes(exchange)]);
    }
    if pinned > 0 {
        rows.push(["  pinned memory, for exchange through host memory only".to_owned(), bytes(pinned)]);
    }
    if !summary.largest.is_empty() {
        rows.push(["largest values".to_owned(), String::new()]);
        rows.extend(summary.largest.iter().map(row));
    }
    let buckets = summary
        .shared
        .as_ref()
        .map_or(String::new(), |shared| format!("\n{}", workers::bucket_table(shared)));
    format!("{}\n{}{buckets}\n", key_value_list(&lines), table(&rows))
}
