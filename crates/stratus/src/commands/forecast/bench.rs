//! `stratus bench forecast`: how good forecasts are, by steps that they did not see.

use crate::errors::Result;
use crate::output::{Output, table};
use serde::Serialize;
use stratus_forecast::catalogue::Catalogue;
use stratus_forecast::evaluate::{Evaluation, Judged, LeftOut, validation};
use stratus_forecast::measured::Measured;
use stratus_forecast::memory::{Verdicts, cells, leave_out};
use stratus_forecast::model::Framework;
use stratus_forecast::shipped;
use stratus_forecast::steps::StepTable;
use stratus_forecast::work::layers;

/// A line of the evaluation.
#[derive(Serialize)]
struct Line {
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
struct Evaluated {
    times: Vec<Line>,
    memory: Memory,
}

/// Cells that ran out of memory, or did not.
#[derive(Serialize)]
struct Memory {
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
/// Where a shipped file is damaged.
pub fn run(output: &Output) -> Result {
    let tensorflow = shipped::tensorflow()?;
    let evaluation = Evaluation::new(&tensorflow, Framework::Tensorflow, true, false);
    let mut times = Vec::new();
    let networks = evaluation.without_network()?;
    times.extend(lines("TensorFlow f32, network left out", &tensorflow, &networks.judged));
    let machines = evaluation.without_machine()?;
    times.extend(lines("TensorFlow f32, machine left out", &tensorflow, &machines.judged));
    let catalogue = Catalogue::builtin()?;
    let steps = StepTable::parse(shipped::STRATUS_STEPS_NAME, shipped::STRATUS_STEPS)?;
    for kind in steps.kinds(&catalogue)? {
        let measured = steps.measured(&kind, &catalogue)?;
        let evaluation = Evaluation::new(&measured, Framework::Stratus, kind.gpu, kind.matrix_units);
        let what = |how: &str| format!("Stratus {}, {how}", kind.format);
        times.extend(lines(&what("data sheet alone"), &measured, &evaluation.unfitted()));
        let LeftOut { judged, .. } = evaluation.without_network_shared()?;
        times.extend(lines(&what("network left out"), &measured, &judged));
    }
    let evaluated = Evaluated { times, memory: memory(&tensorflow, &catalogue)? };
    output.result(&evaluated, || render(&evaluated))
}

/// A line a machine, and one for all where there are several.
fn lines(what: &str, measured: &Measured, judged: &[Judged]) -> Vec<Line> {
    let line = |machine: Option<usize>, name: &str| {
        let kept: Vec<&Judged> = judged
            .iter()
            .filter(|judged| machine.is_none_or(|machine| measured.steps[judged.step].machine == machine))
            .collect();
        let all = validation(kept.iter().copied())?;
        let networks = measured.networks.iter().enumerate().filter_map(|(network, name)| {
            let of = kept.iter().copied().filter(|judged| measured.steps[judged.step].network == network);
            validation(of).map(|of| (name.clone(), of.mean_percent, of.covered_percent))
        });
        Some(Line {
            what: what.to_owned(),
            machine: name.to_owned(),
            steps: all.steps,
            mean_percent: all.mean_percent,
            worst_percent: kept.iter().map(|judged| judged.percent()).fold(0.0, f64::max),
            covered_percent: all.covered_percent,
            networks: networks.collect(),
        })
    };
    let machines = measured.machines.iter().enumerate();
    let mut lines: Vec<Line> = machines.filter_map(|(machine, name)| line(Some(machine), name)).collect();
    if measured.machines.len() > 1 {
        lines.extend(line(None, "all"));
    }
    lines
}

/// Batches that a machine's table lacks ran out of memory.
fn memory(measured: &Measured, catalogue: &Catalogue) -> Result<Memory> {
    let networks = layers::parse(shipped::LAYERS_NAME, shipped::LAYERS)?;
    let cells = cells(measured, &networks, catalogue)?;
    let Verdicts { cells, right, near, wrongly_fits, wrongly_fits_by_far, wrongly_refused } =
        leave_out(&cells, measured.machines.len());
    let percent = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
    Ok(Memory {
        cells,
        right_percent: percent(right, cells),
        near_cells: near[0],
        near_right_percent: percent(near[1], near[0]),
        wrongly_fits,
        wrongly_fits_by_far,
        wrongly_refused,
    })
}

fn render(evaluated: &Evaluated) -> String {
    let heading = ["what was not seen", "machine", "steps", "mean", "worst", "in 80 %"].map(str::to_owned);
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
    let Memory { cells, right_percent, near_cells, near_right_percent, .. } = evaluated.memory;
    let Memory { wrongly_fits, wrongly_fits_by_far, wrongly_refused, .. } = evaluated.memory;
    text += &format!(
        "\nTensorFlow's memory, machine left out: {right_percent:.1} % of {cells} cells right, \
         {near_right_percent:.1} % of the {near_cells} that need half to twice of what there is\n\
         said to fit and did not run: {wrongly_fits}, with 20 % to spare: {wrongly_fits_by_far}; \
         refused and ran: {wrongly_refused}\n"
    );
    text
}
