//! `stratus bench forecast`: cross-validates forecasts against held-out steps, and compares those of several
//! devices with published speeds.

use crate::errors::Result;
use crate::output::{Output, table};
use stratus_forecast::held_out::{ForecastEvaluation, MemoryVerdicts};
use stratus_train::bench::devices::{DevicesComparison, SpeedUps, compare_devices};

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

/// Compares the forecasts of several devices with published speeds.
///
/// # Errors
/// If a shipped file is damaged.
pub fn run_devices(output: &Output) -> Result {
    let compared = compare_devices()?;
    output.print_wrapped(&compared, || render_devices(&compared))
}

fn render_devices(compared: &[DevicesComparison]) -> String {
    let heading = [
        "published",
        "network",
        "machine",
        "precision",
        "batch",
        "devices",
        "speed-up: published, \
                   forecast",
        "error of the last",
    ];
    let numbers = |numbers: &mut dyn Iterator<Item = String>| numbers.collect::<Vec<_>>().join(", ");
    let rows = compared.iter().map(|DevicesComparison { table, rows: all }| {
        let rows = all.iter();
        [
            table.source.clone(),
            table.network.clone(),
            table.machine.clone(),
            table.precision.clone(),
            table.batch.to_string(),
            numbers(&mut rows.clone().map(|row| row.devices.to_string())),
            numbers(&mut rows.clone().map(|row| format!("{:.2} {:.2}", row.published, row.forecast))),
            all.last().map_or_else(String::new, |row| format!("{:+.1} %", row.error_percent())),
        ]
    });
    let mut text = table(&[heading.map(str::to_owned)].into_iter().chain(rows).collect::<Vec<_>>());
    let errors = |select: &dyn Fn(&DevicesComparison, &SpeedUps) -> bool| {
        let all = compared.iter().flat_map(|table| table.rows.iter().map(move |row| (table, row)));
        let selected = all.filter(|(table, row)| select(table, row));
        selected.map(|(_, row)| row.error_percent()).collect::<Vec<f64>>()
    };
    let mut line = |name: &str, errors: Vec<f64>| {
        if !errors.is_empty() {
            let count = errors.len();
            let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / count as f64;
            let worst = errors.iter().copied().max_by(|one, other| one.abs().total_cmp(&other.abs()));
            let worst = worst.unwrap_or_default();
            text += &format!("{name}: {count} speed-ups, mean error {mean:.1} %, worst {worst:+.1} %\n");
        }
    };
    line("all", errors(&|_, _| true));
    let largest = compared.iter().flat_map(|table| &table.rows).map(|row| row.devices).max().unwrap_or(0);
    for devices in
        std::iter::successors(Some(2), |count| Some(count * 2)).take_while(|count| *count <= largest)
    {
        line(&format!("{devices} devices"), errors(&|_, row| row.devices == devices));
    }
    text
}
