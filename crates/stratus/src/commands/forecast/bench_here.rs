//! `stratus bench forecast --here`: compares forecasts with measured steps on this machine.

use crate::commands::target::RunOrExperiment;
use crate::errors::Result;
use crate::globals::Globals;
use crate::output::{Output, table};
use std::path::Path;
use stratus_forecast::calibration::Calibration;
use stratus_train::bench::forecast::{ForecastCase, StepEvaluation, with_synthetic_data};

/// The cases to compare.
pub struct HereOptions<'a> {
    /// The experiments.
    pub experiments: &'a [String],
    /// The batch sizes; if empty, each experiment's.
    pub batches: &'a [u32],
    /// The precisions; if empty, each experiment's.
    pub precisions: &'a [String],
    /// A calibration file, whose forecasts are compared instead of timing kernels.
    pub calibrated: Option<&'a Path>,
    /// Repetitions, of which the medians count.
    pub rounds: u32,
}

/// Forecasts and measures each case in turn, on synthetic images.
///
/// # Errors
/// If an experiment is invalid, or does not fit into memory.
pub fn run(options: &HereOptions<'_>, globals: &Globals, output: &Output) -> Result {
    let calibrated = options.calibrated.map(Calibration::read).transpose()?;
    let mut all = Vec::new();
    for name in options.experiments {
        let experiment = RunOrExperiment::resolve(name, globals)?.experiment(globals)?;
        let default = [experiment.train.precision.to_string()];
        let precisions = if options.precisions.is_empty() { &default[..] } else { options.precisions };
        for precision in precisions {
            let key = ("train.precision".to_owned(), precision.clone());
            let experiment = experiment.clone().with_overrides(&[key])?;
            let batches = options.batches.iter().map(|&batch| batch as usize);
            let batches = if options.batches.is_empty() {
                vec![experiment.train.batch_size]
            } else {
                batches.collect()
            };
            for batch in batches {
                all.push(with_synthetic_data(&experiment, batch)?);
            }
        }
    }
    let mut show = |cell: &ForecastCase| {
        let ForecastCase { network, precision, batch, forecast_s, measured, error_percent, .. } = cell;
        output.message(&format!(
            "{network} {precision} batch {batch}: {:.1} ms forecast, {:.1} ms measured, \
             {error_percent:+.1} %",
            forecast_s * 1e3,
            measured.measured_s * 1e3
        ));
    };
    let mut warn = |text: &str| output.warning(text);
    let evaluated = StepEvaluation::new(&all, calibrated.as_ref(), options.rounds, &mut show, &mut warn)?;
    output.print_wrapped(&evaluated, || render(&evaluated))
}

fn render(evaluated: &StepEvaluation) -> String {
    let heading = [
        "network",
        "precision",
        "batch",
        "forecast, ms",
        "measured, ms",
        "error",
        "at speed",
        "speed",
        "steps",
        "planning, s",
        "probing, s",
    ];
    let rows = evaluated.cells.iter().map(|cell| {
        vec![
            cell.network.clone(),
            cell.precision.clone(),
            cell.batch.to_string(),
            format!("{:.1}", cell.forecast_s * 1e3),
            format!("{:.1} ± {:.1} %", cell.measured.measured_s * 1e3, cell.measured.measured_spread_percent),
            format!("{:+.1} %", cell.error_percent),
            cell.error_at_speed_percent.map_or("–".to_owned(), |error| format!("{error:+.1} %")),
            cell.speed.map_or("–".to_owned(), |speed| format!("{speed:.2}")),
            cell.measured.steps.to_string(),
            format!("{:.1}", cell.planning_s),
            format!("{:.1}", cell.probing_s),
        ]
    });
    let heading = heading.map(str::to_owned).to_vec();
    let StepEvaluation { library, mean_percent, worst_percent, covered_percent, .. } = evaluated;
    let at_speed = evaluated.at_speed_percent.map_or_else(String::new, |[mean, worst]| {
        format!(
            "at the machine's speed when the step was measured: mean error {mean:.1} %, worst {worst:.1} %\n"
        )
    });
    let repeats = evaluated.repeat_deviation_percent.map_or_else(String::new, |percent| {
        format!("the same step, measured again: {percent:.1} % from its median\n")
    });
    let [lowest, highest] = evaluated.reference_times;
    format!(
        "{}{library}: mean error {mean_percent:.1} %, worst {worst_percent:.1} %; \
         {covered_percent:.0} % within the interval\n\
         {at_speed}{repeats}a reference step took {lowest:.2} to {highest:.2} of its median time\n",
        table(&[heading].into_iter().chain(rows).collect::<Vec<_>>())
    )
}
