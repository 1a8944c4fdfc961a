//! `stratus bench forecast --here`: forecasts from kernels timed alone, against whole steps on this machine.

use crate::cli::Globals;
use crate::commands::target::Target;
use crate::errors::Result;
use crate::output::{Output, table};
use serde::Serialize;
use stratus_engine::Precision;
use stratus_train::bench::Bench;
use stratus_train::bench::probe::{Probed, probe};
use stratus_train::experiment::Experiment;
use stratus_train::input::open_datasets;

/// Seconds of whole steps for each cell, and how many there are at least.
const SECONDS: f64 = 4.0;
const FEWEST: usize = 3;

/// A network at a batch size in a number format.
#[derive(Serialize)]
struct Cell {
    network: String,
    batch: usize,
    precision: Precision,
    forecast_s: f64,
    measured_s: f64,
    /// Of the measured step.
    error_percent: f64,
    /// How many steps were measured.
    steps: usize,
    /// Half of what the middle half of the measured steps spans, of the median.
    measured_spread_percent: f64,
    planning_s: f64,
    probing_s: f64,
}

/// All cells.
#[derive(Serialize)]
struct Evaluated {
    library: String,
    cells: Vec<Cell>,
    mean_percent: f64,
    worst_percent: f64,
}

/// What is compared.
pub struct Asked<'a> {
    /// Experiments.
    pub experiments: &'a [String],
    /// Batch sizes; none: that of each experiment.
    pub batches: &'a [u32],
    /// Number formats; none: what the experiment asks for.
    pub precisions: &'a [String],
}

/// Forecasts and measures each cell in turn, on synthetic images.
///
/// # Errors
/// Where an experiment is not in order, or does not fit.
pub fn run(asked: &Asked<'_>, globals: &Globals, output: &Output) -> Result {
    let (mut cells, mut library) = (Vec::new(), String::new());
    for name in asked.experiments {
        let experiment = Target::find(name, globals)?.experiment(globals)?;
        let batches: Vec<usize> = match asked.batches {
            [] => vec![experiment.train.batch_size],
            batches => batches.iter().map(|&batch| batch as usize).collect(),
        };
        let own = [experiment.train.precision.to_string()];
        let precisions = if asked.precisions.is_empty() { &own[..] } else { asked.precisions };
        for precision in precisions {
            let key = ("train.precision".to_owned(), precision.clone());
            let experiment = experiment.clone().with_overrides(&[key])?;
            for &batch in &batches {
                let (cell, with) = cell(&experiment, batch, output)?;
                output.message(&format!(
                    "{} {} batch {batch}: {:.1} ms forecast, {:.1} ms measured, {:+.1} %",
                    cell.network,
                    cell.precision,
                    cell.forecast_s * 1e3,
                    cell.measured_s * 1e3,
                    cell.error_percent
                ));
                cells.push(cell);
                library = with;
            }
        }
    }
    let errors = cells.iter().map(|cell| cell.error_percent.abs());
    let evaluated = Evaluated {
        library,
        mean_percent: errors.clone().sum::<f64>() / cells.len().max(1) as f64,
        worst_percent: errors.fold(0.0, f64::max),
        cells,
    };
    output.result(&evaluated, || render(&evaluated))
}

fn cell(experiment: &Experiment, batch: usize, output: &Output) -> Result<(Cell, String)> {
    let mut experiment = experiment.clone();
    experiment.train.batch_size = batch;
    // Nothing of a step depends on what the images show.
    experiment.data.name = "synthetic".to_owned();
    experiment.data.path = None;
    experiment.synthetic.images = 2 * batch;
    experiment.synthetic.validation_images = batch;
    let mut warn = |text: &str| output.warning(text);
    let probed: Probed = probe(&experiment, &open_datasets(&experiment)?, &mut warn)?;
    let mut measured = Bench::new(&experiment, &mut warn)?.steps_for(SECONDS, FEWEST)?;
    measured.sort_by(f64::total_cmp);
    let at = |part: f64| measured[(part * (measured.len() - 1) as f64).round() as usize];
    let (median, steps) = (at(0.5), measured.len());
    let cell = Cell {
        network: probed.network,
        batch,
        precision: probed.precision,
        forecast_s: probed.step_s,
        measured_s: median,
        error_percent: 100.0 * (probed.step_s / median - 1.0),
        steps,
        measured_spread_percent: 50.0 * (at(0.75) - at(0.25)) / median,
        planning_s: probed.planning_s,
        probing_s: probed.probing_s,
    };
    Ok((cell, probed.library))
}

fn render(evaluated: &Evaluated) -> String {
    let heading = [
        "network",
        "type",
        "batch",
        "forecast, ms",
        "measured, ms",
        "error",
        "steps",
        "planned, s",
        "timed, s",
    ];
    let rows = evaluated.cells.iter().map(|cell| {
        vec![
            cell.network.clone(),
            cell.precision.to_string(),
            cell.batch.to_string(),
            format!("{:.1}", cell.forecast_s * 1e3),
            format!("{:.1} ± {:.1} %", cell.measured_s * 1e3, cell.measured_spread_percent),
            format!("{:+.1} %", cell.error_percent),
            cell.steps.to_string(),
            format!("{:.1}", cell.planning_s),
            format!("{:.1}", cell.probing_s),
        ]
    });
    let heading = heading.map(str::to_owned).to_vec();
    let Evaluated { library, mean_percent, worst_percent, .. } = evaluated;
    format!(
        "{}{library}: mean error {mean_percent:.1} %, worst {worst_percent:.1} %\n",
        table(&[heading].into_iter().chain(rows).collect::<Vec<_>>())
    )
}
