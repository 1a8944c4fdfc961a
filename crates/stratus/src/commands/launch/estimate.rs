//! The forecast of a launch, printed before anything is started; a launch that cannot fit is rejected.

use super::spec::LaunchSpec;
use crate::commands::forecast::request::{MEMORY_MARGIN_FACTOR, SETUP_S, TIME_MARGIN_FACTOR};
use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::progress::Progress;
use stratus_base::text::{bytes, duration};
use stratus_experiment::Experiment;
use stratus_forecast::forecast::Forecast;
use stratus_launch::{Resources, TargetKind, TargetSettings};
use stratus_train::Observer;
use stratus_train::forecast::forecast_training;

/// The forecast of a launch; empty if its target does not name a machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaunchEstimate {
    /// The resources to request for a repetition.
    pub resources: Resources,
    /// The expected seconds of a repetition.
    pub expected_s: Option<f64>,
}

/// The totals over all runs of a launch.
struct EstimateTotals {
    /// Seconds: lower bound, expected, upper bound; `None` if the number of steps is unknown.
    seconds: Option<[f64; 3]>,
    /// Price, expected and upper bound, and currency.
    price: Option<([f64; 2], String)>,
    device_bytes: u64,
}

/// Forecasts a launch and prints the result. `left_s` is the remaining time of the lease in seconds.
///
/// # Errors
/// If the launch cannot fit and is not forced, or if the machine is not found.
pub(super) fn estimate_launch(
    settings: &TargetSettings,
    spec: &LaunchSpec,
    (left_s, force): (Option<f64>, bool),
    output: &Output,
) -> Result<LaunchEstimate> {
    let Some(machine) = &settings.machine else { return Ok(LaunchEstimate::default()) };
    let mut rows = Vec::new();
    for cell in &spec.cells {
        // Shows the phase of the measurement on a terminal.
        let mut progress = Progress::new(*output);
        let (row, notes) = forecast_training(cell, machine, &mut |text| progress.warn(text))?;
        drop(progress);
        notes.iter().for_each(|note| output.message(note));
        rows.push(row);
    }
    let totals = totals(&rows, spec, &settings.kind);
    output.message(&describe(settings, &rows, &totals, spec));
    if let Some(problem) = why_it_cannot_fit(&rows, &totals, left_s).filter(|_| !force) {
        return Err(Failure::usage(format!("{}: {problem}", settings.name))
            .with_hint("use a smaller batch, fewer epochs or another target, or --force"));
    }
    let mut resources = Resources::default();
    for (cell, row) in spec.cells.iter().zip(&rows) {
        let needed = self::resources(settings, cell, row);
        resources.seconds = resources.seconds.max(needed.seconds);
        resources.memory_bytes = resources.memory_bytes.max(needed.memory_bytes);
        resources.cpus = resources.cpus.max(needed.cpus);
    }
    // The runs of a sweep take different times, so there is no common expected time.
    let expected_s = if let [row] = &rows[..] { row.total_s } else { None };
    Ok(LaunchEstimate { resources, expected_s })
}

/// The number of runs of a launch that are trained at the same time.
fn concurrent_runs(kind: &TargetKind, runs: u64) -> u64 {
    match kind {
        // A queue runs them in parallel.
        TargetKind::Slurm(_) | TargetKind::Sky(_) => runs,
        TargetKind::Hosts(hosts) => (hosts.hosts.len() as u64).clamp(1, runs),
        TargetKind::Local | TargetKind::Ssh(_) => 1,
    }
}

fn totals(rows: &[Forecast], spec: &LaunchSpec, kind: &TargetKind) -> EstimateTotals {
    let runs = spec.runs();
    let total = |times: fn(&Forecast) -> Option<f64>| -> Option<f64> {
        let times: Option<Vec<f64>> = rows.iter().map(times).collect();
        let times = times?;
        let longest = times.iter().copied().fold(0.0, f64::max);
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        // Runs are trained in rounds of concurrent runs.
        let rounds = runs.div_ceil(concurrent_runs(kind, runs).max(1));
        Some(if rounds == 1 { longest } else { (mean * rounds as f64).max(longest) })
    };
    let seconds = total(|row| row.total_low_s)
        .zip(total(|row| row.total_s))
        .zip(total(|row| row.total_high_s))
        .map(|((low, expected), high)| [low, expected, high]);
    let repetitions = spec.repetitions as f64;
    let prices: Option<Vec<[f64; 2]>> =
        rows.iter().map(|row| row.price.map(|price| [price, row.price_high.unwrap_or(price)])).collect();
    let currency = rows.first().and_then(|row| row.currency.clone());
    let price = prices.zip(currency).map(|(prices, currency)| {
        let sum =
            |bound: usize| prices.iter().map(|price| price[bound] * repetitions).fold(0.0, |a, b| a + b);
        ([sum(0), sum(1)], currency)
    });
    let device_bytes = rows.iter().map(|row| row.device_bytes).max().unwrap_or(0);
    EstimateTotals { seconds, price, device_bytes }
}

fn describe(
    settings: &TargetSettings,
    rows: &[Forecast],
    totals: &EstimateTotals,
    spec: &LaunchSpec,
) -> String {
    let name = rows.first().map_or("", |row| row.name.as_str());
    let mut text = format!("{}: forecast for {name}:", settings.name);
    match (totals.seconds, rows) {
        (Some([low, expected, high]), _) => {
            text += &format!(" {} ({} to {})", duration(expected), duration(low), duration(high));
        }
        (None, [row]) => text += &format!(" {} per step (number of steps unknown)", duration(row.step_s)),
        (None, _) => text += " (number of steps unknown)",
    }
    let up_to = if rows.len() > 1 { "up to " } else { "" };
    text += &format!(", {up_to}{} of the device's memory", bytes(totals.device_bytes));
    if let Some(([price, high], currency)) = &totals.price {
        text += &format!(", {price:.2} {currency} (up to {high:.2})");
    }
    let runs = spec.runs();
    if runs > 1 {
        let how = match concurrent_runs(&settings.kind, runs) {
            1 => "one after the other".to_owned(),
            count if count == runs => "at the same time".to_owned(),
            count => format!("{} one after the other", runs.div_ceil(count)),
        };
        let unit = if rows.len() > 1 { "runs" } else { "repetitions" };
        text += &format!("; {runs} {unit}, {how}");
    }
    text
}

/// The reason that a launch cannot fit; `None` if it may fit.
fn why_it_cannot_fit(rows: &[Forecast], totals: &EstimateTotals, left_s: Option<f64>) -> Option<String> {
    if let Some(row) = rows.iter().find(|row| row.fits == Some(false)) {
        let missing = row
            .spare_bytes
            .filter(|spare| *spare < 0)
            .map_or(String::new(), |spare| format!(", {} more than available", bytes(spare.unsigned_abs())));
        let largest = row.largest_batch.filter(|batch| *batch > 0);
        let largest = largest.map_or(String::new(), |batch| format!("; the largest batch is {batch}"));
        let needed = bytes(row.device_bytes);
        return Some(format!("does not fit the memory of {}: needs {needed}{missing}{largest}", row.name));
    }
    let [low, ..] = totals.seconds?;
    let left = left_s.filter(|left| low > *left)?;
    Some(format!("needs at least {}, and --until leaves {}", duration(low), duration(left)))
}

fn resources(settings: &TargetSettings, experiment: &Experiment, row: &Forecast) -> Resources {
    let on_gpu = match &settings.kind {
        TargetKind::Slurm(slurm) => slurm.has_gpu(),
        TargetKind::Sky(sky) => sky.gpus.is_some(),
        TargetKind::Local | TargetKind::Ssh(_) | TargetKind::Hosts(_) => false,
    };
    // On a GPU: one CPU for the program, the others decode images. On CPUs: as many as the cluster gives.
    let cpus = on_gpu.then(|| experiment.data.workers.unwrap_or(1) as u64 + 1);
    Resources {
        seconds: row.total_high_s.map(|high| (TIME_MARGIN_FACTOR * high + SETUP_S).ceil() as u64),
        memory_bytes: Some((MEMORY_MARGIN_FACTOR * row.host_bytes as f64) as u64),
        cpus,
    }
}
