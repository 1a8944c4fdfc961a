//! The headline of a report, and suggestions.

use stratus_run::timeline::Phase;

use super::gpus::{GpuSuggestion, gpu_suggestions};
use super::run::RunReport;
use crate::accounting::Accounting;
use stratus_base::text::{bytes, shell_path};

/// Minimum percent of CPU time of other programs for a suggestion.
const MIN_CONTENTION_PERCENT: f64 = 10.0;
/// Minimum percent of the wall time for a suggestion.
const MIN_SHARE_PERCENT: f64 = 5.0;

/// Fraction of the roofline below which a kernel counts as inefficient.
const LOW_EFFICIENCY: f64 = 0.4;

/// Maximum number of suggestions.
const MAX_LINES: usize = 6;

/// Maximum number of suggestions on single kernels.
const MAX_KERNEL_LINES: usize = 3;

/// A summary of the time of an iteration in one sentence.
pub(super) fn headline(accounting: &Accounting) -> String {
    if accounting.iterations == 0 {
        return "No training iteration is recorded yet.".to_owned();
    }
    let layers: f64 = accounting.layers.iter().map(|layer| layer.total.share_percent).sum();
    let longest = accounting.layers.iter().rev().max_by_key(|layer| layer.total.total_ns);
    let longest = longest.map_or(String::new(), |layer| {
        format!(" (longest {}, {:.1} %)", layer.layer, layer.total.share_percent)
    });
    let wait = phase_percent(accounting, Phase::DataWait);
    let rest = 100.0 - layers - wait - accounting.unattributed.share_percent;
    format!(
        "An iteration takes {}: layers {layers:.1} %{longest}, waiting for data {wait:.1} %, loss, layout \
         changes and bookkeeping {rest:.1} %, unattributed {:.3} %.",
        milliseconds(accounting.wall.mean_ms),
        positive_zero(accounting.unattributed.share_percent),
    )
}

fn milliseconds(ms: f64) -> String {
    if ms >= 10_000.0 { format!("{:.1} s", ms / 1000.0) } else { format!("{ms:.2} ms") }
}

/// Rounds to three decimals, without negative zero.
fn positive_zero(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0 + 0.0
}

fn phase_percent(accounting: &Accounting, phase: Phase) -> f64 {
    accounting.phases.iter().filter(|row| row.phase == phase).map(|row| row.cost.share_percent).sum()
}

/// Suggestions, the most promising first, each with its reason and figure.
pub(super) fn advice(report: &RunReport) -> Vec<String> {
    let accounting = &report.accounting;
    if accounting.iterations == 0 {
        return Vec::new();
    }
    let key = |table: &str, name: &str| -> Option<&serde_json::Value> {
        report.record.configuration.get(table)?.get(name)
    };
    // The maximum gain in percent of the wall time, and the line.
    let mut found: Vec<(f64, String)> = Vec::new();
    let wait = phase_percent(accounting, Phase::DataWait);
    if wait >= MIN_SHARE_PERCENT {
        let in_use = report.record.summary.as_ref().map(|summary| u64::from(summary.data_workers));
        let set = key("data", "workers").and_then(serde_json::Value::as_u64);
        let workers = set.or(in_use.filter(|&workers| workers > 0)).unwrap_or(1);
        found.push((
            wait,
            format!(
                "Training waits for data {wait:.1} % of the time with data.workers = {workers}: increase \
                 it, pack the images (`stratus data shard`), or measure the loader alone (`stratus bench \
                 data`)."
            ),
        ));
    }
    for (phase, remedy) in [
        (Phase::Layout, "layouts were chosen by measurement: `stratus plan --remeasure` repeats it"),
        (Phase::Checkpoint, "increase checkpoint.every_seconds"),
        (
            Phase::Idle,
            "the device waits for the process: a larger train.batch_size gives it more work at a time",
        ),
        (Phase::Bookkeeping, "a larger train.batch_size needs fewer iterations"),
    ] {
        let percent = phase_percent(accounting, phase);
        if percent >= MIN_SHARE_PERCENT {
            found.push((
                percent,
                format!("{} takes {percent:.1} % of the time: {remedy}.", title(phase.name())),
            ));
        }
    }
    let others = report.record.summary.as_ref().and_then(|summary| summary.usage.stolen_percent);
    if let Some(percent) = others.filter(|percent| *percent >= MIN_CONTENTION_PERCENT) {
        found.push((
            percent,
            format!(
                "Other programs used {percent:.0} % of CPU time: set train.threads to the number of CPUs \
                 available to this run, or run it on an idle machine."
            ),
        ));
    }
    if let Some(work) = &report.work {
        let wall = accounting.wall.median_ms.max(f64::MIN_POSITIVE);
        let mut kernels = Vec::new();
        for point in &work.points {
            let Some(efficiency) = point.efficiency.filter(|efficiency| *efficiency < LOW_EFFICIENCY) else {
                continue;
            };
            let percent = 100.0 * point.ms / wall;
            if percent >= MIN_SHARE_PERCENT {
                kernels.push((
                    percent * (1.0 - efficiency),
                    format!(
                        "{} of {} takes {percent:.1} % of an iteration at {:.0} % of the roofline ({:.0} \
                         GFLOP/s at {:.1} FLOP per byte): `stratus bench kernels {}` shows whether it is as \
                         slow alone.",
                        title(point.phase),
                        point.layer,
                        100.0 * efficiency,
                        point.gflops_per_s,
                        point.intensity,
                        shell_path(&report.record.path)
                    ),
                ));
            }
        }
        kernels.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.extend(kernels.into_iter().take(MAX_KERNEL_LINES));
    }
    if let Some(summary) = &report.record.summary {
        let validation = 100.0 * summary.time.validation_s / summary.time.total_s.max(f64::MIN_POSITIVE);
        if validation >= 4.0 * MIN_SHARE_PERCENT {
            found.push((
                validation,
                format!(
                    "Validation takes {validation:.0} % of the run's time: validate less often with \
                     validation.every_epochs."
                ),
            ));
        }
    }
    let gpus = report.usage.as_ref().map(|usage| usage.gpus.as_slice()).unwrap_or_default();
    let gpus = gpu_suggestions(gpus, report.record.machine.as_ref(), &report.record.path);
    let mut lines = most_promising(found, gpus);
    lines.extend(larger_batch(report));
    lines
}

/// The lines with the largest gains, in this order, and in any case all on GPUs that were throttled.
fn most_promising(mut found: Vec<(f64, String)>, gpus: Vec<GpuSuggestion>) -> Vec<String> {
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.truncate((MAX_LINES - 1).saturating_sub(gpus.len()));
    found.extend(gpus.into_iter().map(|GpuSuggestion { gain_percent, line }| (gain_percent, line)));
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, line)| line).collect()
}

/// The largest power-of-two batch size that would fit into memory, according to the plan.
fn larger_batch(report: &RunReport) -> Option<String> {
    let memory = report.memory.as_ref()?;
    let machine = report.record.machine.as_ref()?;
    let work = report.work.as_ref()?;
    let (machine_name, available) = match machine.devices.first() {
        Some(device) => (device.name.as_str(), device.memory_bytes?),
        None => ("this machine", machine.ram_bytes?),
    };
    let summary = report.record.summary.as_ref()?;
    let images = summary.iterations / u64::from(summary.epochs.max(1)) * summary.batch_size;
    // Everything transient grows with the batch; a fifth is reserved for libraries, loader and system.
    let free = (available / 5 * 4).checked_sub(memory.persistent_bytes as u64)?;
    let per_sample = (memory.transient_bytes + memory.input_bytes) as u64 / work.batch.max(1) as u64;
    let largest = (free / per_sample.max(1)).min(images);
    let larger = largest.checked_ilog2().map_or(0, |power| 1_u64 << power);
    let run = shell_path(&report.record.path);
    (larger > work.batch as u64).then(|| {
        format!(
            "A batch of {larger} would fit {machine_name} ({} of memory; {} per sample): `stratus plan {run} \
             --set train.batch_size={larger}` shows the exact memory.",
            bytes(available),
            bytes(per_sample)
        )
    })
}

/// The name of a phase at the start of a sentence.
fn title(name: &str) -> String {
    let text = name.replace('_', " ");
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_names_as_titles() {
        assert_eq!(title("backward_data"), "Backward data");
        assert_eq!(title(""), "");
        assert_eq!(positive_zero(-0.0000001).to_string(), "0");
    }

    #[test]
    fn gpus_that_were_throttled_are_always_reported() {
        let found = || (1..=7).map(|gain| (f64::from(gain), format!("line {gain}"))).collect::<Vec<_>>();
        let gpu = |gain_percent: f64| GpuSuggestion { gain_percent, line: format!("GPU {gain_percent}") };
        let lines = |gpus| most_promising(found(), gpus).join(", ");
        assert_eq!(lines(vec![]), "line 7, line 6, line 5, line 4, line 3");
        assert_eq!(lines(vec![gpu(6.5), gpu(0.5)]), "line 7, GPU 6.5, line 6, line 5, GPU 0.5");
        assert_eq!(most_promising(found(), (0..6).map(|gain| gpu(gain.into())).collect()).len(), 6);
    }

    #[test]
    fn headline_reports_that_nothing_is_recorded() {
        assert_eq!(headline(&Accounting::default()), "No training iteration is recorded yet.");
    }
}
