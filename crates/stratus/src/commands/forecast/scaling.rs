//! Scaling over several devices: `--devices`.

use crate::errors::{Failure, Result};
use crate::output::Table;
use clap::Args;
use stratus_base::text::duration;
use stratus_forecast::catalogue::{Machine, THIS_MACHINE};
use stratus_forecast::forecast::Forecast;
use stratus_forecast::model::Framework;
use stratus_forecast::profile::Profile;
use stratus_forecast::scaling::{Link, ScaledStep};
use stratus_forecast::text;
use stratus_train::bench::probe::ProbeReport;
use stratus_train::forecast::{Planner, step_from_probe, step_from_profile};

/// The default latency in seconds, typical of machines in the same room.
const DEFAULT_LATENCY_S: f64 = 50e-6;

/// Arguments for several devices.
#[derive(Args, Debug)]
pub(super) struct ScalingArguments {
    /// Numbers of devices to scale to on the chosen machine, like 1,2,4,8
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=65_536)
    )]
    devices: Vec<u64>,
    /// Bandwidth between devices, like 10Gbit/s or 25GB/s
    #[arg(long, value_name = "RATE", requires = "devices", allow_hyphen_values = true)]
    between: Option<String>,
    /// Latency between devices, like 0.2ms or 5us [default: 50us]
    #[arg(long, value_name = "TIME", requires = "devices", allow_hyphen_values = true)]
    latency: Option<String>,
    /// Strong scaling: split one batch over the devices instead of one batch per device
    #[arg(long, requires = "devices")]
    strong: bool,
}

impl ScalingArguments {
    /// Checks that the devices of `--devices` are connected.
    pub fn check(&self) -> Result {
        self.link().map(|_| ())
    }

    fn link(&self) -> Result<Option<Link>> {
        let Some(between) = &self.between else {
            return match self.devices.as_slice() {
                [] => Ok(None),
                _ => Err(Failure::usage("--devices needs --between, the bandwidth between the devices")
                    .with_hint(
                        "for 10-gigabit Ethernet, add `--between 10Gbit/s`; for PCIe 4.0, `--between 25GB/s`",
                    )),
            };
        };
        let bytes_per_s = text::bytes_per_second("between", between)?;
        let latency_s =
            self.latency.as_deref().map_or(Ok(DEFAULT_LATENCY_S), |given| text::latency("latency", given))?;
        Ok(Some(Link { bytes_per_s, latency_s }))
    }

    /// The forecast for each number of devices; empty without `--devices`.
    pub fn scaled(
        &self,
        row: &Forecast,
        machine: &Machine,
        planner: &mut Planner,
        profiles: &[Profile],
        probes: &[ProbeReport],
    ) -> Result<Vec<ScaledStep>> {
        let Some(link) = self.link()? else { return Ok(Vec::new()) };
        if planner.framework() == Framework::Tensorflow {
            return Err(Failure::usage("--devices does not support TensorFlow")
                .with_hint("remove --framework tensorflow"));
        }
        let single_rate = row.device_images_per_second();
        let mut all = Vec::new();
        for &devices in &self.devices {
            let batch = if self.strong { row.batch / devices } else { row.batch };
            if batch == 0 || self.strong && !row.batch.is_multiple_of(devices) {
                return Err(Failure::usage(format!(
                    "batch {} is not divisible by {devices} devices",
                    row.batch
                ))
                .with_hint("set a divisible batch size with --batch"));
            }
            let step = if machine.name == THIS_MACHINE {
                let probed = probes.iter().find(|probed| probed.batch as u64 == batch);
                step_from_probe(probed.ok_or_else(|| batch_not_timed_error(batch))?, planner)?
            } else {
                step_from_profile(machine, batch, planner, profiles)?
            };
            all.push(step.scale_to(devices, batch, &link, single_rate));
        }
        Ok(all)
    }
}

fn batch_not_timed_error(batch: u64) -> Failure {
    Failure::usage(format!("a step of {batch} images was not timed here"))
        .with_hint(format!("add {batch} to the sizes of --batch"))
}

/// Renders the forecasts by number of devices as a table.
pub(super) fn render(
    scaled: &[ScaledStep],
    [images, epochs]: [Option<u64>; 2],
    width: Option<usize>,
) -> String {
    let heading = [
        "devices",
        "batch/device",
        "step, ms",
        "images/s",
        "speed-up",
        "efficiency",
        "exchange, ms",
        "overlapped",
        "total",
    ]
    .map(str::to_owned);
    let total = |scaled: &ScaledStep| {
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
    Table::new(&rows).max_width(width, &["exchange, ms", "batch/device", "efficiency"]).to_string()
}
