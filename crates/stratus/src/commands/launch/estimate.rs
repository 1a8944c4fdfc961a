//! The estimate of a launch, printed before anything is started; a launch that cannot fit is rejected.

use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::progress::Progress;
use stratus_forecast::forecast::Forecast;
use stratus_launch::{LaunchEstimate, LaunchSpec, Resources, RunForecast, TargetSettings};
use stratus_train::Observer;
use stratus_train::forecast::{LastDecoding, forecast_training};

/// Estimates a launch and prints the result: the resources to request for a repetition, and its expected
/// seconds. Both are empty if the target does not name a machine. `left_s` is the remaining time of the lease
/// in seconds.
///
/// # Errors
/// If the launch cannot fit and is not forced, or if the machine is not found.
pub(super) fn estimate_launch(
    settings: &TargetSettings,
    spec: &LaunchSpec,
    left_s: Option<f64>,
    force: bool,
    output: &Output,
) -> Result<(Resources, Option<f64>)> {
    let Some(machine) = &settings.machine else { return Ok(Default::default()) };
    let (mut rows, mut last) = (Vec::new(), LastDecoding::default());
    for cell in &spec.cells {
        // Shows the phase of the measurement on a terminal.
        let mut progress = Progress::new(*output);
        let monitor = progress.startup_monitor();
        let warn = &mut |text: &str| progress.warn(text);
        let (forecast, notes) = forecast_training(cell, machine, &monitor, warn, &mut last)?;
        drop(progress);
        notes.iter().for_each(|note| output.message(note));
        rows.push(run_forecast(forecast));
    }
    let estimate = LaunchEstimate::new(settings, &rows, spec.repetitions);
    output.message(&estimate.describe());
    if let Some(problem) = estimate.shortage(left_s).filter(|_| !force) {
        return Err(Failure::usage(format!("{}: {problem}", settings.name))
            .with_hint("use a smaller batch, fewer epochs or another target, or --force"));
    }
    Ok((estimate.resources(), estimate.expected_s()))
}

/// The numbers of a forecast that a launch needs.
fn run_forecast(forecast: Forecast) -> RunForecast {
    RunForecast {
        step_s: forecast.step_s,
        seconds: [forecast.total_low_s, forecast.total_s, forecast.total_high_s],
        price: forecast.cost.price.map(|price| [price, forecast.cost.price_high.unwrap_or(price)]),
        device_bytes: forecast.device_bytes,
        fits: forecast.fits,
        spare_bytes: forecast.spare_bytes,
        largest_batch: forecast.largest_batch,
        loader_threads: forecast.loader_threads,
        requested: Resources {
            seconds: forecast.requested_seconds().map(|seconds| seconds.ceil() as u64),
            memory_bytes: Some(forecast.requested_memory_bytes() as u64),
            cpus: None,
        },
        machine: forecast.name,
        currency: forecast.cost.currency,
    }
}
