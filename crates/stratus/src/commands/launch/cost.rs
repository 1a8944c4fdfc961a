//! What a launch is expected to take: it is said before anything begins, and what cannot fit is refused.

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

/// Says what a launch is expected to take. `left_s` are the seconds that the target may be used.
///
/// # Errors
/// Where it cannot fit, unless that is wanted anyway; where there is no such machine.
pub(super) fn of(
    settings: &Settings,
    experiment: &Experiment,
    repetitions: u64,
    (left_s, anyway): (Option<f64>, bool),
    output: &Output,
) -> Result<Cost> {
    let Some(machine) = &settings.machine else { return Ok(Cost::default()) };
    let row = expected(experiment, machine, output)?;
    // On Slurm and in clouds they need not wait for each other.
    let in_turn = match &settings.kind {
        Kind::Slurm(_) | Kind::Sky(_) => 1.0,
        Kind::Hosts(hosts) => (repetitions as f64 / hosts.hosts.len().max(1) as f64).ceil(),
        Kind::Local | Kind::Ssh(_) => repetitions as f64,
    };
    output.message(&said(settings, &row, repetitions, in_turn));
    if let Some(problem) = misfit(&row, left_s, in_turn).filter(|_| !anyway) {
        return Err(Failure::usage(format!("{}: {problem}", settings.name))
            .hint("a smaller batch, fewer epochs or another target; --anyway launches all the same"));
    }
    Ok(Cost { resources: resources(settings, experiment, &row), expected_s: row.total_s })
}

fn said(settings: &Settings, row: &Forecast, repetitions: u64, in_turn: f64) -> String {
    let mut text = format!("{}: forecast for {}:", settings.name, row.name);
    match (row.total_s, row.total_low_s, row.total_high_s) {
        (Some(total), Some(low), Some(high)) => {
            let times = |seconds: f64| duration(seconds * in_turn);
            text += &format!(" {} ({} to {})", times(total), times(low), times(high));
        }
        _ => text += &format!(" {} a step, of how many is not known", duration(row.step_s)),
    }
    text += &format!(", {} of the device's memory", bytes(row.device_bytes));
    if let (Some(price), Some(currency)) = (row.price, &row.currency) {
        let high = row.price_high.unwrap_or(price);
        let all = repetitions as f64;
        text += &format!(", {:.2} {currency} (up to {:.2})", price * all, high * all);
    }
    if repetitions > 1 {
        let how = match in_turn {
            turns if turns <= 1.0 => "at the same time".to_owned(),
            turns if turns >= repetitions as f64 => "one after the other".to_owned(),
            turns => format!("{turns:.0} one after the other"),
        };
        text += &format!("; {repetitions} repetitions, {how}");
    }
    text
}

/// Why it cannot fit.
fn misfit(row: &Forecast, left_s: Option<f64>, in_turn: f64) -> Option<String> {
    if row.fits == Some(false) {
        let missing = row
            .spare_bytes
            .filter(|spare| *spare < 0)
            .map_or(String::new(), |spare| format!(", {} more than there are", bytes(spare.unsigned_abs())));
        let largest = row.largest_batch.filter(|batch| *batch > 0);
        let largest = largest.map_or(String::new(), |batch| format!("; the largest batch is {batch}"));
        let needed = bytes(row.device_bytes);
        return Some(format!("it does not fit the memory of {}: {needed}{missing}{largest}", row.name));
    }
    let low = row.total_low_s? * in_turn;
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
