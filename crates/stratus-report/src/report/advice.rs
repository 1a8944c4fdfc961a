//! The sentence at the top of a report, and what to try next.

use stratus_run::timeline::Phase;

use super::RunReport;
use crate::accounting::Accounting;
use crate::text::bytes;

/// Percent of the processors' time that are worth saying when other programs had them.
const SHARED_PERCENT: f64 = 10.0;
/// From this share of the wall time on, in percent, something is worth a word.
const WORTH_PERCENT: f64 = 5.0;

/// Below this share of the roofline a kernel is called far from it.
const FAR: f64 = 0.4;

/// Advice at most.
const LINES: usize = 6;

/// Advice on single kernels at most.
const KERNELS: usize = 3;

/// Where the time of an iteration went, in one sentence.
pub(super) fn headline(accounting: &Accounting) -> String {
    if accounting.iterations == 0 {
        return "No training iteration is recorded yet.".to_owned();
    }
    let layers: f64 = accounting.layers.iter().map(|layer| layer.total.share_percent).sum();
    let longest = accounting.layers.iter().rev().max_by_key(|layer| layer.total.total_ns);
    let most = longest.map_or(String::new(), |layer| {
        format!(" (most of all {}, {:.1} %)", layer.layer, layer.total.share_percent)
    });
    let wait = share(accounting, Phase::DataWait);
    let rest = 100.0 - layers - wait - accounting.unattributed.share_percent;
    format!(
        "Of {} an iteration, layers take {layers:.1} %{most}, waiting for data {wait:.1} %, the loss, \
         layout changes \
         and bookkeeping {rest:.1} %; {:.3} % is not accounted for.",
        milliseconds(accounting.wall.mean_ms),
        positive_zero(accounting.unattributed.share_percent),
    )
}

fn milliseconds(ms: f64) -> String {
    if ms >= 10_000.0 { format!("{:.1} s", ms / 1000.0) } else { format!("{ms:.2} ms") }
}

/// Rounds to three decimals; negative zero becomes zero.
fn positive_zero(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0 + 0.0
}

fn share(accounting: &Accounting, phase: Phase) -> f64 {
    accounting.phases.iter().filter(|row| row.phase == phase).map(|row| row.cost.share_percent).sum()
}

/// What to try next, the most promising first. Each line says why, with the figure that it rests on.
pub(super) fn advice(report: &RunReport) -> Vec<String> {
    let accounting = &report.accounting;
    if accounting.iterations == 0 {
        return Vec::new();
    }
    let key = |table: &str, name: &str| -> Option<&serde_json::Value> {
        report.experiment.configuration.get(table)?.get(name)
    };
    // Percent of the wall time that could be gained at most, and the line.
    let mut found: Vec<(f64, String)> = Vec::new();
    let wait = share(accounting, Phase::DataWait);
    if wait >= WORTH_PERCENT {
        let in_use = report.experiment.summary.as_ref().map(|summary| u64::from(summary.data_workers));
        let set = key("data", "workers").and_then(serde_json::Value::as_u64);
        let workers = set.or(in_use.filter(|&workers| workers > 0)).unwrap_or(1);
        found.push((
            wait,
            format!(
                "Training waits for data {wait:.1} % of the time with data.workers = {workers}: raise it, \
                 pack the \
                 images (`stratus data shard`), or measure the loader alone (`stratus bench data`)."
            ),
        ));
    }
    for (phase, remedy) in [
        (Phase::Layout, "layouts were chosen by measuring: `stratus plan --remeasure` measures them again"),
        (Phase::Checkpoint, "raise checkpoint.every_seconds"),
        (
            Phase::Idle,
            "the device waits for the process: a larger train.batch_size gives it more to do at a time",
        ),
        (Phase::Bookkeeping, "a larger train.batch_size needs fewer iterations"),
    ] {
        let percent = share(accounting, phase);
        if percent >= WORTH_PERCENT {
            found.push((
                percent,
                format!("{} takes {percent:.1} % of the time: {remedy}.", title(phase.name())),
            ));
        }
    }
    let others = report.experiment.summary.as_ref().and_then(|summary| summary.usage.stolen_percent);
    if let Some(percent) = others.filter(|percent| *percent >= SHARED_PERCENT) {
        found.push((
            percent,
            format!(
                "Other programs had {percent:.0} % of the processors' time: set train.threads to what is \
                 left for this run, or run it where they are not."
            ),
        ));
    }
    if let Some(work) = &report.work {
        let wall = accounting.wall.median_ms.max(f64::MIN_POSITIVE);
        let mut kernels = Vec::new();
        for point in &work.points {
            let Some(efficiency) = point.efficiency.filter(|efficiency| *efficiency < FAR) else { continue };
            let percent = 100.0 * point.ms / wall;
            if percent >= WORTH_PERCENT {
                kernels.push((
                    percent * (1.0 - efficiency),
                    format!(
                        "{} of {} takes {percent:.1} % of an iteration at {:.0} % of what the roofline \
                         allows ({:.0} GFLOP/s at {:.1} FLOP per byte): `stratus bench kernels {}` shows \
                         whether it is as slow alone.",
                        title(point.phase),
                        point.layer,
                        100.0 * efficiency,
                        point.gflops_per_s,
                        point.intensity,
                        report.experiment.path.display()
                    ),
                ));
            }
        }
        kernels.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.extend(kernels.into_iter().take(KERNELS));
    }
    if let Some(summary) = &report.experiment.summary {
        let validation = 100.0 * summary.time.validation_s / summary.time.total_s.max(f64::MIN_POSITIVE);
        if validation >= 4.0 * WORTH_PERCENT {
            found.push((
                validation,
                format!(
                    "Validation takes {validation:.0} % of the run's time: validate less often with \
                     validation.every_epochs."
                ),
            ));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut lines: Vec<String> = found.into_iter().map(|(_, line)| line).collect();
    lines.truncate(LINES - 1);
    lines.extend(larger_batch(report));
    lines
}

/// The batch sizes that would still fit this machine's memory, by the plan of this one.
fn larger_batch(report: &RunReport) -> Option<String> {
    let memory = report.memory.as_ref()?;
    let machine = report.experiment.machine.as_ref()?;
    let work = report.work.as_ref()?;
    let (place, there) = match machine.devices.first() {
        Some(device) => (device.name.as_str(), device.memory_bytes?),
        None => ("this machine", machine.ram_bytes?),
    };
    let summary = report.experiment.summary.as_ref()?;
    let images = summary.iterations / u64::from(summary.epochs.max(1)) * summary.batch_size;
    // Everything transient grows with the batch; a fifth is left to libraries, loader and system.
    let room = (there / 5 * 4).checked_sub(memory.persistent_bytes as u64)?;
    let per_sample = (memory.transient_bytes + memory.input_bytes) as u64 / work.batch.max(1) as u64;
    let largest = (room / per_sample.max(1)).min(images);
    let larger = largest.checked_ilog2().map_or(0, |power| 1_u64 << power);
    let run = report.experiment.path.display();
    (larger > work.batch as u64).then(|| {
        format!(
            "A batch of {larger} would still fit {place} ({} there; {} a sample): `stratus plan {run} \
             --set train.batch_size={larger}` says exactly.",
            bytes(there),
            bytes(per_sample)
        )
    })
}

/// A phase's name as the beginning of a sentence.
fn title(name: &str) -> String {
    let text = name.replace('_', " ");
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_titles() {
        assert_eq!(title("backward_data"), "Backward data");
        assert_eq!(title(""), "");
        assert_eq!(positive_zero(-0.0000001).to_string(), "0");
    }

    #[test]
    fn nothing_recorded_is_said() {
        assert_eq!(headline(&Accounting::default()), "No training iteration is recorded yet.");
    }
}
