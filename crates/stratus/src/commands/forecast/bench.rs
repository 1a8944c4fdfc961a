//! `stratus bench forecast`: cross-validates forecasts against held-out steps.

use crate::errors::Result;
use crate::output::{Output, table};
use stratus_forecast::held_out::{ForecastEvaluation, MemoryVerdicts};

/// Runs the evaluation.
///
/// # Errors
/// If a shipped file is damaged.
pub fn run(output: &Output) -> Result {
    let evaluated = ForecastEvaluation::of_shipped_measurements()?;
    output.print_wrapped(&evaluated, || render(&evaluated))
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
