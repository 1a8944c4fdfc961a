//! `stratus bench forecast`: cross-validates forecasts against held-out steps.

use crate::errors::Result;
use crate::output::{Output, table};
use serde::Serialize;
use stratus_forecast::catalogue::Catalogue;
use stratus_forecast::evaluate::{CrossValidation, Evaluation, HeldOutPrediction, validation};
use stratus_forecast::measured::StepRecords;
use stratus_forecast::memory::{leave_one_machine_out, memory_cases};
use stratus_forecast::model::Framework;
use stratus_forecast::shipped;
use stratus_forecast::steps::StepTable;
use stratus_forecast::work::layers;

/// A row of the evaluation.
#[derive(Serialize)]
struct EvaluationRow {
    what: String,
    machine: String,
    steps: usize,
    mean_percent: f64,
    worst_percent: f64,
    covered_percent: f64,
    networks: Vec<(String, f64, f64)>,
}

/// The evaluation.
#[derive(Serialize)]
struct ForecastEvaluation {
    times: Vec<EvaluationRow>,
    memory: MemoryVerdicts,
}

/// The accuracy of the forecasts of whether a cell fits in memory.
#[derive(Serialize)]
struct MemoryVerdicts {
    cells: usize,
    right_percent: f64,
    near_cells: usize,
    near_right_percent: f64,
    wrongly_fits: usize,
    wrongly_fits_by_far: usize,
    wrongly_refused: usize,
}

/// Runs the evaluation.
///
/// # Errors
/// If a shipped file is damaged.
pub fn run(output: &Output) -> Result {
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
    let evaluated = ForecastEvaluation { times, memory: evaluate_memory(&tensorflow, &catalogue)? };
    output.print_wrapped(&evaluated, || render(&evaluated))
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

fn render(evaluated: &ForecastEvaluation) -> String {
    let heading = ["held out", "machine", "steps", "mean", "worst", "in 80 % interval"].map(str::to_owned);
    let rows = evaluated.times.iter().map(|line| {
        [
            line.what.clone(),
            line.machine.clone(),
            line.steps.to_string(),
            format!("{:.1} %", line.mean_percent),
            format!("{:.1} %", line.worst_percent),
            format!("{:.1} %", line.covered_percent),
        ]
    });
    let mut text = table(&[heading].into_iter().chain(rows).collect::<Vec<_>>());
    text += "\nmean error (and percent within the interval) by network\n";
    for line in &evaluated.times {
        let networks: Vec<String> = line
            .networks
            .iter()
            .map(|(name, mean, covered)| format!("{name} {mean:.1} ({covered:.0})"))
            .collect();
        text += &format!("{}, {}: {}\n", line.what, line.machine, networks.join(", "));
    }
    let MemoryVerdicts { cells, right_percent, near_cells, near_right_percent, .. } = evaluated.memory;
    let MemoryVerdicts { wrongly_fits, wrongly_fits_by_far, wrongly_refused, .. } = evaluated.memory;
    text += &format!(
        "\nTensorFlow's memory, machine held out: {right_percent:.1} % of {cells} cells right, \
         {near_right_percent:.1} % of the {near_cells} that need half to twice the memory\n\
         wrongly forecast to fit: {wrongly_fits}, with 20 % to spare: {wrongly_fits_by_far}; \
         wrongly forecast not to fit: {wrongly_refused}\n"
    );
    text
}
