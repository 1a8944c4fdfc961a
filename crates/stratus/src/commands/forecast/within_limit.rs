//! What a machine could do within a deadline or budget that it exceeds.

use super::Report;
use crate::errors::Result;
use serde::Serialize;
use stratus_base::text::duration;
use stratus_forecast::catalogue::Machine;
use stratus_forecast::forecast::Forecast;
use stratus_forecast::objective::Objective;
use stratus_forecast::profile::Profile;
use stratus_train::TrainError;
use stratus_train::bench::probe::ProbeReport;
use stratus_train::forecast::{Planner, forecast_from_probe, forecast_on};

/// What a machine could do within a deadline or budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct WithinLimit {
    /// The machine.
    name: String,
    /// Images per iteration.
    batch: u64,
    /// The number of epochs whose upper bound keeps the limit; 0 if one epoch exceeds it.
    epochs: u64,
}

impl WithinLimit {
    /// Finds the number of epochs by bisection; `None` if the objective has no limit or the total is unknown.
    ///
    /// # Errors
    /// If the machine cannot be forecast.
    pub fn find(
        objective: Objective,
        row: &Forecast,
        machine: &Machine,
        planner: &mut Planner,
        (profiles, probed): (&[Profile], Option<&ProbeReport>),
    ) -> Result<Option<Self>> {
        let keeps = |row: &Forecast| match objective {
            Objective::Deadline(max) => row.total_high_s.is_some_and(|seconds| seconds <= max),
            Objective::Budget(max) => row.cost.price_high.is_some_and(|price| price <= max),
            _ => false,
        };
        let has_limit = match objective {
            Objective::Deadline(_) => row.total_high_s.is_some(),
            Objective::Budget(_) => row.cost.price_high.is_some(),
            _ => false,
        };
        if !has_limit {
            return Ok(None);
        }
        let all = planner.length().epochs;
        let (mut enough, mut too_many) = (0, all);
        while too_many - enough > 1 {
            let epochs = enough + (too_many - enough) / 2;
            planner.set_epochs(epochs);
            let shorter = match probed {
                Some(probed) => forecast_from_probe(machine, probed, planner)?,
                None => {
                    forecast_on(machine, row.batch as usize, planner, profiles).map_err(TrainError::from)?
                }
            };
            match keeps(&shorter) {
                true => enough = epochs,
                false => too_many = epochs,
            }
        }
        planner.set_epochs(all);
        Ok(Some(Self { name: row.name.clone(), batch: row.batch, epochs: enough }))
    }

    /// A sentence.
    pub fn describe(&self, report: &Report) -> String {
        let limit = match report.objective {
            Objective::Deadline(seconds) => duration(seconds),
            Objective::Budget(price) => format!("{price} {}", self.currency(report)),
            _ => return String::new(),
        };
        match self.epochs {
            0 => format!("there, {limit} is not enough for one epoch: use fewer or smaller images"),
            epochs => format!(
                "there, {limit} is enough for {epochs} of {} epochs: --epochs {epochs}",
                report.epochs
            ),
        }
    }

    fn currency<'a>(&self, report: &'a Report) -> &'a str {
        let row = report.machines.iter().find(|row| row.name == self.name);
        row.and_then(|row| row.cost.currency.as_deref()).unwrap_or("")
    }
}
