//! What a launch is expected to take: it is said before anything begins, and what cannot fit is refused.

use super::work::Work;
use crate::commands::forecast::expected::expected;
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes};
use stratus_forecast::forecast::Forecast;
use stratus_forecast::text::duration;
use stratus_launch::{Kind, Resources, Settings};
use stratus_train::Experiment;

/// By how much more time is asked for than the upper end of the interval.
const TIME_MARGIN: f64 = 1.2;
/// Seconds for starting and planning.
const SETTING_UP: f64 = 900.0;
/// By how much more memory is asked for than is expected.
const MEMORY_MARGIN: f64 = 1.25;

/// What a launch is expected to take, where its target names a machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// What is asked of a queue for a repetition.
    pub resources: Resources,
    /// Seconds of a repetition.
    pub expected_s: Option<f64>,
}

/// What all runs of a launch are expected to take.
struct Sum {
    /// Seconds, at best, as expected and at worst; none where the experiment does not say how many steps.
    seconds: Option<[f64; 3]>,
    /// The same in money, as expected and at worst.
    price: Option<([f64; 2], String)>,
    device_bytes: u64,
}

/// Says what a launch is expected to take. `left_s` are the seconds that the target may be used.
///
/// # Errors
/// Where it cannot fit, unless that is wanted anyway; where there is no such machine.
pub(super) fn of(
    settings: &Settings,
    work: &Work,
    (left_s, anyway): (Option<f64>, bool),
    output: &Output,
) -> Result<Cost> {
    let Some(machine) = &settings.machine else { return Ok(Cost::default()) };
    let mut rows = Vec::new();
    for cell in &work.cells {
        rows.push(expected(cell, machine, output)?);
    }
    let sum = sum(&rows, work, &settings.kind);
    output.message(&said(settings, &rows, &sum, work));
    if let Some(problem) = misfit(&rows, &sum, left_s).filter(|_| !anyway) {
        return Err(Failure::usage(format!("{}: {problem}", settings.name))
            .hint("a smaller batch, fewer epochs or another target; --anyway launches all the same"));
    }
    let mut resources = Resources::default();
    for (cell, row) in work.cells.iter().zip(&rows) {
        let one = self::resources(settings, cell, row);
        resources.seconds = resources.seconds.max(one.seconds);
        resources.memory_bytes = resources.memory_bytes.max(one.memory_bytes);
        resources.cpus = resources.cpus.max(one.cpus);
    }
    // Of a sweep each run takes another time.
    let expected_s = if let [row] = &rows[..] { row.total_s } else { None };
    Ok(Cost { resources, expected_s })
}

/// How many runs of a launch are trained at a time.
fn at_a_time(kind: &Kind, runs: u64) -> u64 {
    match kind {
        // They need not wait for each other.
        Kind::Slurm(_) | Kind::Sky(_) => runs,
        Kind::Hosts(hosts) => (hosts.hosts.len() as u64).clamp(1, runs),
        Kind::Local | Kind::Ssh(_) => 1,
    }
}

fn sum(rows: &[Forecast], work: &Work, kind: &Kind) -> Sum {
    let runs = work.runs();
    let of_all = |times: fn(&Forecast) -> Option<f64>| -> Option<f64> {
        let times: Option<Vec<f64>> = rows.iter().map(times).collect();
        let times = times?;
        let longest = times.iter().copied().fold(0.0, f64::max);
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        // Side by side, whole runs after each other.
        let in_turn = runs.div_ceil(at_a_time(kind, runs).max(1));
        Some(if in_turn == 1 { longest } else { (mean * in_turn as f64).max(longest) })
    };
    let seconds = of_all(|row| row.total_low_s)
        .zip(of_all(|row| row.total_s))
        .zip(of_all(|row| row.total_high_s))
        .map(|((low, expected), high)| [low, expected, high]);
    let each = work.repetitions as f64;
    let prices: Option<Vec<[f64; 2]>> =
        rows.iter().map(|row| row.price.map(|price| [price, row.price_high.unwrap_or(price)])).collect();
    let currency = rows.first().and_then(|row| row.currency.clone());
    let price = prices.zip(currency).map(|(prices, currency)| {
        let all = prices.iter().fold([0.0, 0.0], |all, one| [all[0] + one[0] * each, all[1] + one[1] * each]);
        (all, currency)
    });
    let device_bytes = rows.iter().map(|row| row.device_bytes).max().unwrap_or(0);
    Sum { seconds, price, device_bytes }
}

fn said(settings: &Settings, rows: &[Forecast], sum: &Sum, work: &Work) -> String {
    let name = rows.first().map_or("", |row| row.name.as_str());
    let mut text = format!("{}: forecast for {name}:", settings.name);
    match (sum.seconds, rows) {
        (Some([low, expected, high]), _) => {
            text += &format!(" {} ({} to {})", duration(expected), duration(low), duration(high));
        }
        (None, [row]) => text += &format!(" {} a step, of how many is not known", duration(row.step_s)),
        (None, _) => text += " of how many steps is not known",
    }
    let most = if rows.len() > 1 { "up to " } else { "" };
    text += &format!(", {most}{} of the device's memory", bytes(sum.device_bytes));
    if let Some(([price, high], currency)) = &sum.price {
        text += &format!(", {price:.2} {currency} (up to {high:.2})");
    }
    let runs = work.runs();
    if runs > 1 {
        let how = match at_a_time(&settings.kind, runs) {
            1 => "one after the other".to_owned(),
            count if count == runs => "at the same time".to_owned(),
            count => format!("{} one after the other", runs.div_ceil(count)),
        };
        let what = if rows.len() > 1 { "runs" } else { "repetitions" };
        text += &format!("; {runs} {what}, {how}");
    }
    text
}

/// Why it cannot fit.
fn misfit(rows: &[Forecast], sum: &Sum, left_s: Option<f64>) -> Option<String> {
    if let Some(row) = rows.iter().find(|row| row.fits == Some(false)) {
        let missing = row
            .spare_bytes
            .filter(|spare| *spare < 0)
            .map_or(String::new(), |spare| format!(", {} more than there are", bytes(spare.unsigned_abs())));
        let largest = row.largest_batch.filter(|batch| *batch > 0);
        let largest = largest.map_or(String::new(), |batch| format!("; the largest batch is {batch}"));
        let needed = bytes(row.device_bytes);
        return Some(format!("it does not fit the memory of {}: {needed}{missing}{largest}", row.name));
    }
    let [low, ..] = sum.seconds?;
    let left = left_s.filter(|left| low > *left)?;
    Some(format!("even at best it takes {}, and --until leaves {}", duration(low), duration(left)))
}

fn resources(settings: &Settings, experiment: &Experiment, row: &Forecast) -> Resources {
    let on_gpu = match &settings.kind {
        Kind::Slurm(slurm) => slurm.has_gpu(),
        Kind::Sky(sky) => sky.gpus.is_some(),
        Kind::Local | Kind::Ssh(_) | Kind::Hosts(_) => false,
    };
    // Images are decoded beside the program; on a processor as many as the cluster gives.
    let cpus = on_gpu.then(|| experiment.data.workers.unwrap_or(1) as u64 + 1);
    Resources {
        seconds: row.total_high_s.map(|high| (TIME_MARGIN * high + SETTING_UP).ceil() as u64),
        memory_bytes: Some((MEMORY_MARGIN * row.host_bytes as f64) as u64),
        cpus,
    }
}
