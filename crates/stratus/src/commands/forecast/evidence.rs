//! The evidence behind forecasts: `--evidence`, and published times that add to it: `--published`.

use crate::commands::target::RunOrExperiment;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::{Output, Table};
use std::path::Path;
use stratus_forecast::catalogue::{Machine, THIS_MACHINE};
use stratus_forecast::choice::{Evidence, Source};
use stratus_forecast::profile::{Profile, Validation};
use stratus_forecast::published;
use stratus_train::bench::probe::ProbeReport;
use stratus_train::forecast::{Planner, correct_by_published, evidence_of};

/// The evidence behind the forecast of each machine.
///
/// # Errors
/// If a machine is not suitable.
pub(super) fn collect(
    machines: &[Machine],
    names: &[&str],
    planner: &Planner,
    profiles: &[Profile],
    probes: &[ProbeReport],
) -> Result<Vec<Evidence>> {
    let mut all = Vec::new();
    for machine in machines.iter().filter(|machine| names.contains(&machine.name.as_str())) {
        if machine.name != THIS_MACHINE {
            all.push(evidence_of(machine, planner, profiles)?);
            continue;
        }
        all.extend(probes.iter().map(|probed| Evidence {
            name: machine.name.clone(),
            precision: probed.precision.to_string(),
            source: Source::Measured,
            measured_on: Some(machine.name.clone()),
            data: format!(
                "{} timings of {} kernels of batch {}, just now; errors: docs/benchmarks/forecast.md",
                probed.timings, probed.kinds, probed.batch
            ),
            validation: None,
        }));
    }
    Ok(all)
}

/// Renders the evidence as a table.
pub(super) fn render(evidence: &[Evidence], width: Option<usize>) -> String {
    let heading =
        ["machine", "source", "steps", "networks", "left-out error", "in 80 % interval", "measured"];
    let rows = evidence.iter().map(|row| {
        let known = |text: fn(Validation) -> String| row.validation.map_or_else(|| "–".to_owned(), text);
        let on = row.measured_on.as_deref().unwrap_or("several machines");
        [
            format!("{} {}", row.name, row.precision),
            row.source.name().to_owned(),
            known(|found| found.steps.to_string()),
            known(|found| found.networks.to_string()),
            known(|found| format!("{:.1} %", found.mean_percent)),
            known(|found| format!("{:.0} %", found.covered_percent)),
            match row.source {
                Source::DataSheet => {
                    format!("on {on}: {}; wider interval, as this machine was not", row.data)
                }
                _ => format!("on {on}: {}", row.data),
            },
        ]
    });
    let rows: Vec<_> = [heading.map(str::to_owned)].into_iter().chain(rows).collect();
    format!("\n{}", Table::new(&rows).wrap_last_column().max_width(width, &["networks", "in 80 % interval"]))
}

/// Reads published times of the only named machine and puts the profile that they give before the others.
///
/// # Errors
/// If the file is invalid, names an unknown network, or there is not exactly one machine.
pub(super) fn add_published(
    path: &Path,
    machines: &[Machine],
    planner: &Planner,
    profiles: &mut Vec<Profile>,
    output: &Output,
) -> Result {
    let machine = match machines {
        [machine] if machine.name != THIS_MACHINE => machine,
        _ => {
            return Err(Failure::usage("--published needs --on with the one machine of the published times")
                .with_hint("for example --on rtx-4090"));
        }
    };
    let name = path.display();
    let mut steps = Vec::new();
    for step in published::read(path)? {
        // The overrides are those of the forecast experiment.
        let globals = Globals::default();
        let experiment = RunOrExperiment::resolve(&step.network, &globals)
            .and_then(|found| found.experiment(&globals))
            .map_err(|failure| Failure::usage(format!("{name}, line {}: {}", step.line, failure.error)))?;
        steps.push((experiment, step));
    }
    let format = planner.format(machine)?;
    let data = format!("{} published steps of {name}", steps.len());
    let (profile, ratios) = correct_by_published(machine, format, &steps, profiles, &data)?;
    let mut sorted = ratios;
    sorted.sort_by(f64::total_cmp);
    let ends = [sorted.first(), sorted.get(sorted.len() / 2), sorted.last()];
    if let [Some(low), Some(median), Some(high)] = ends {
        output.message(&format!(
            "{name}: published times are {low:.2} to {high:.2} times those of the data sheet (median \
             {median:.2}, {} rows); forecasts in {format} are corrected",
            sorted.len()
        ));
    }
    profiles.insert(0, profile);
    Ok(())
}
