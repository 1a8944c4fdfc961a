//! The accuracy of forecasts: the shipped measurements, each forecast without itself.

use crate::Result;
use crate::catalogue::Catalogue;
use crate::evaluate::{CrossValidation, Evaluation, HeldOutPrediction, validation};
use crate::measured::StepRecords;
use crate::memory::{leave_one_machine_out, memory_cases};
use crate::model::Framework;
use crate::shipped;
use crate::steps::StepTable;
use crate::work::layers;
use serde::Serialize;

/// A row of the evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluationRow {
    /// The measurements, and what was held out.
    pub what: String,
    /// The machine, or `all`.
    pub machine: String,
    /// The number of forecast steps.
    pub steps: usize,
    /// The mean absolute error, in percent.
    pub mean_percent: f64,
    /// The largest absolute error, in percent.
    pub worst_percent: f64,
    /// The percentage of steps within their 80 % interval.
    pub covered_percent: f64,
    /// Each network with its mean absolute error and the percentage of steps within the interval.
    pub networks: Vec<(String, f64, f64)>,
}

/// The evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ForecastEvaluation {
    /// The step times.
    pub times: Vec<EvaluationRow>,
    /// The memory.
    pub memory: MemoryVerdicts,
}

/// The accuracy of the forecasts of whether a cell fits in memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryVerdicts {
    /// The number of cells.
    pub cells: usize,
    /// The percentage of right verdicts.
    pub right_percent: f64,
    /// The cells that need half to twice the memory.
    pub near_cells: usize,
    /// The percentage of right verdicts among them.
    pub near_right_percent: f64,
    /// Cells wrongly forecast to fit.
    pub wrongly_fits: usize,
    /// Those among them with 20 % to spare.
    pub wrongly_fits_by_far: usize,
    /// Cells wrongly forecast not to fit.
    pub wrongly_refused: usize,
}

impl ForecastEvaluation {
    /// Cross-validates the forecasts of the shipped measurements against steps that were held out.
    ///
    /// # Errors
    /// If a shipped file is damaged.
    pub fn of_shipped_measurements() -> Result<Self> {
        let tensorflow = shipped::tensorflow()?;
        let evaluation = Evaluation::new(&tensorflow, Framework::Tensorflow, true, false);
        let mut times = Vec::new();
        let networks = evaluation.leave_one_network_out()?;
        times.extend(rows("TensorFlow f32, network held out", &tensorflow, &networks.predictions));
        let machines = evaluation.leave_one_machine_out()?;
        times.extend(rows("TensorFlow f32, machine held out", &tensorflow, &machines.predictions));
        let catalogue = Catalogue::builtin()?;
        let steps = StepTable::parse(shipped::STRATUS_STEPS_NAME, shipped::STRATUS_STEPS)?;
        for kind in steps.groups(&catalogue)? {
            let measured = steps.records(&kind, &catalogue)?;
            let evaluation = Evaluation::new(&measured, Framework::Stratus, kind.gpu, kind.matrix_units);
            let title = |how: &str| format!("Stratus {}, {how}", kind.format);
            times.extend(rows(&title("data sheet alone"), &measured, &evaluation.predict_from_prior()));
            let CrossValidation { predictions: judged, .. } = evaluation.leave_one_network_out_shared()?;
            times.extend(rows(&title("network held out"), &measured, &judged));
        }
        Ok(Self { times, memory: evaluate_memory(&tensorflow, &catalogue)? })
    }
}

/// Returns one row per machine, and one for all machines if there are several.
fn rows(title: &str, measured: &StepRecords, judged: &[HeldOutPrediction]) -> Vec<EvaluationRow> {
    let line = |machine: Option<usize>, name: &str| {
        let kept: Vec<&HeldOutPrediction> = judged
            .iter()
            .filter(|judged| machine.is_none_or(|machine| measured.steps[judged.step].machine == machine))
            .collect();
        let all = validation(kept.iter().copied())?;
        let networks = measured.networks.iter().enumerate().filter_map(|(network, name)| {
            let steps = kept.iter().copied().filter(|judged| measured.steps[judged.step].network == network);
            validation(steps).map(|found| (name.clone(), found.mean_percent, found.covered_percent))
        });
        Some(EvaluationRow {
            what: title.to_owned(),
            machine: name.to_owned(),
            steps: all.steps,
            mean_percent: all.mean_percent,
            worst_percent: kept.iter().map(|judged| judged.percent_error()).fold(0.0, f64::max),
            covered_percent: all.covered_percent,
            networks: networks.collect(),
        })
    };
    let machines = measured.machines.iter().enumerate();
    let mut lines: Vec<EvaluationRow> =
        machines.filter_map(|(machine, name)| line(Some(machine), name)).collect();
    if measured.machines.len() > 1 {
        lines.extend(line(None, "all"));
    }
    lines
}

/// Evaluates the memory forecasts: batches that are missing from a machine's table ran out of memory.
fn evaluate_memory(measured: &StepRecords, catalogue: &Catalogue) -> Result<MemoryVerdicts> {
    let networks = layers::parse(shipped::LAYERS_NAME, shipped::LAYERS)?;
    let cases = memory_cases(measured, &networks, catalogue)?;
    let scores = leave_one_machine_out(&cases, measured.machines.len());
    let [near, near_correct] = scores.near_limit;
    let percent = |part: usize, all: usize| 100.0 * part as f64 / all.max(1) as f64;
    Ok(MemoryVerdicts {
        cells: scores.cases,
        right_percent: percent(scores.correct, scores.cases),
        near_cells: near,
        near_right_percent: percent(near_correct, near),
        wrongly_fits: scores.false_fits,
        wrongly_fits_by_far: scores.clear_false_fits,
        wrongly_refused: scores.false_rejections,
    })
}
