//! Several devices that train together: `--devices`.

use super::planning::Planner;
use crate::errors::{Failure, Result};
use crate::output::Table;
use clap::Args;
use stratus_forecast::catalogue::{HERE, Machine};
use stratus_forecast::forecast::{self, Forecast};
use stratus_forecast::model::Framework;
use stratus_forecast::profile::Profile;
use stratus_forecast::scaling::{Link, Scaled, Step};
use stratus_forecast::text::{self, duration};
use stratus_forecast::work::Kind;
use stratus_train::bench::probe::Probed;

/// Seconds until the first byte where nothing else is said: between machines of one room.
const LATENCY: f64 = 50e-6;

/// What says how many, and how they are connected.
#[derive(Args, Debug)]
pub(super) struct ScalingArguments {
    /// Numbers of devices of the recommended machine that train together, like 1,2,4,8
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        requires = "between",
        value_parser = clap::value_parser!(u64).range(1..=65_536)
    )]
    devices: Vec<u64>,
    /// How fast gradients travel between two of them, like 10Gbit/s or 25GB/s
    #[arg(long, value_name = "RATE", requires = "devices", allow_hyphen_values = true)]
    between: Option<String>,
    /// How long the first byte takes, like 0.2ms or 5us; without it 50us
    #[arg(long, value_name = "TIME", requires = "devices", allow_hyphen_values = true)]
    latency: Option<String>,
    /// Share one batch out among them, rather than give each a batch
    #[arg(long, requires = "devices")]
    strong: bool,
}

impl ScalingArguments {
    fn link(&self) -> Result<Option<Link>> {
        let Some(between) = &self.between else { return Ok(None) };
        let bytes_per_s = text::bytes_per_second("between", between)?;
        let latency_s =
            self.latency.as_deref().map_or(Ok(LATENCY), |given| text::latency("latency", given))?;
        Ok(Some(Link { bytes_per_s, latency_s }))
    }

    /// What numbers of devices come to; empty where none was asked for.
    pub fn scaled(
        &self,
        row: &Forecast,
        machine: &Machine,
        planner: &mut Planner,
        profiles: &[Profile],
        probes: &[Probed],
    ) -> Result<Vec<Scaled>> {
        let Some(link) = self.link()? else { return Ok(Vec::new()) };
        if planner.framework() == Framework::Tensorflow {
            return Err(Failure::usage(
                "how TensorFlow exchanges gradients is not known: --devices is for Stratus",
            )
            .hint("leave out --framework tensorflow"));
        }
        let one = row.images_per_second;
        let mut all = Vec::new();
        for &devices in &self.devices {
            let batch = if self.strong { row.batch / devices } else { row.batch };
            if batch == 0 || self.strong && !row.batch.is_multiple_of(devices) {
                return Err(Failure::usage(format!(
                    "a batch of {} cannot be shared out among {devices} devices",
                    row.batch
                ))
                .hint("take a batch that they divide, with --batch"));
            }
            let step = if machine.name == HERE {
                let probed = probes.iter().find(|probed| probed.batch as u64 == batch);
                here(probed.ok_or_else(|| other_batch(batch))?, planner)?
            } else {
                elsewhere(machine, batch, planner, profiles)?
            };
            all.push(step.scaled(devices, batch, &link, one));
        }
        Ok(all)
    }
}

fn other_batch(batch: u64) -> Failure {
    Failure::usage(format!("a step of {batch} images was not timed here"))
        .hint(format!("time it too: --batch with {batch} among the sizes"))
}

/// As the kernels that were timed take it.
fn here(probed: &Probed, planner: &Planner) -> Result<Step> {
    let is_update = |phase: &str| phase == "update";
    let kernels = probed.kernels.iter().filter(|kernel| !is_update(kernel.phase));
    let update_s =
        probed.kernels.iter().filter(|kernel| is_update(kernel.phase)).map(|kernel| kernel.seconds);
    let kernels = kernels.map(|kernel| (kernel.layer.as_str(), kernel.seconds));
    Ok(Step::new(kernels, &planner.gradients()?, update_s.sum()))
}

/// As a profile has it.
fn elsewhere(machine: &Machine, batch: u64, planner: &mut Planner, profiles: &[Profile]) -> Result<Step> {
    let format = planner.format(machine)?;
    let plan = planner.plan(&machine.processor, format, batch as usize)?;
    let seconds = forecast::kernels(machine, format, (plan.framework, &plan.train), profiles)?;
    let all = || plan.train.kernels.iter().zip(&seconds);
    let is_update = |kind: Kind| kind == Kind::Update;
    let update_s = all().filter(|(kernel, _)| is_update(kernel.kind)).map(|(_, seconds)| seconds).sum();
    let kernels = all().filter(|(kernel, _)| !is_update(kernel.kind));
    let kernels = kernels.map(|(kernel, &seconds)| (kernel.layer.as_str(), seconds));
    Ok(Step::new(kernels, &planner.gradients()?, update_s))
}

/// The numbers of devices as a table; `epoch` are the images of an epoch.
pub(super) fn render(scaled: &[Scaled], [images, epochs]: [Option<u64>; 2], width: Option<usize>) -> String {
    let heading = [
        "devices",
        "batch of each",
        "step, ms",
        "images/s",
        "speed-up",
        "efficiency",
        "exchange, ms",
        "hidden",
        "total",
    ]
    .map(str::to_owned);
    let total = |scaled: &Scaled| {
        let all = images? as f64 * epochs? as f64;
        Some(duration(all / scaled.images_per_second))
    };
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let rows = scaled.iter().map(|scaled| {
        [
            scaled.devices.to_string(),
            scaled.batch.to_string(),
            format!("{:.1}", 1e3 * scaled.step_s),
            format!("{:.0}", scaled.images_per_second),
            format!("{:.2}", scaled.speed_up),
            percent(scaled.efficiency),
            format!("{:.1}", 1e3 * scaled.exchange_s),
            scaled.hidden.map_or_else(|| "–".to_owned(), percent),
            total(scaled).unwrap_or_else(|| "–".to_owned()),
        ]
    });
    let rows: Vec<_> = [heading].into_iter().chain(rows).collect();
    Table::new(&rows).within(width, &["exchange, ms", "batch of each", "efficiency"]).to_string()
}
