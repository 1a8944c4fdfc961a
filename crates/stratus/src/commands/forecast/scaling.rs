//! Scaling over several devices: `--devices`.

use crate::errors::{Failure, Result};
use crate::output::Table;
use clap::Args;
use std::path::Path;
use stratus_base::text::{bytes, duration};
use stratus_experiment::ExchangeMode;
use stratus_forecast::catalogue::{Machine, Processor, THIS_MACHINE};
use stratus_forecast::forecast::Forecast;
use stratus_forecast::model::Framework;
use stratus_forecast::profile::Profile;
use stratus_forecast::scaling::{Between, Connection, DeviceStep, ScaledStep};
use stratus_forecast::text;
use stratus_train::bench::probe::ProbeReport;
use stratus_train::forecast::{Planner, RunTimes, step_from_probe, step_from_profile, step_from_run};

/// The maximum number of devices.
const MAX_DEVICES: u64 = 65_536;

/// Arguments for several devices.
#[derive(Args, Debug)]
pub(super) struct ScalingArguments {
    /// Numbers of devices to scale to on the chosen machine, powers of two, like 1,2,4,8
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=MAX_DEVICES)
    )]
    devices: Vec<u64>,
    /// Link between devices: nvlink, pcie, or a rate like 10Gbit/s or 25GB/s [default: the GPU's fastest]
    #[arg(long, value_name = "LINK", requires = "devices", allow_hyphen_values = true)]
    between: Option<String>,
    /// Bandwidth between machines, if devices are in several [default: the instance's]
    #[arg(long, value_name = "RATE", requires = "devices", allow_hyphen_values = true)]
    network: Option<String>,
    /// Devices of a machine [default: the GPUs of the instance]
    #[arg(
        long,
        value_name = "COUNT",
        requires = "devices",
        value_parser = clap::value_parser!(u64).range(1..=1024)
    )]
    per_machine: Option<u64>,
    /// Latency of every link, like 0.2ms or 5us [default: 10us for nvlink and pcie, otherwise 50us]
    #[arg(long, value_name = "TIME", requires = "devices", allow_hyphen_values = true)]
    latency: Option<String>,
    /// Copy gradients through host memory and add them there
    #[arg(long, requires = "devices")]
    staged: bool,
    /// Strong scaling: split one batch over the devices instead of one batch per device
    #[arg(long, requires = "devices")]
    strong: bool,
    /// Measured step of one device instead of the forecast one: a run of this experiment, or a time like
    /// 40.02ms
    #[arg(
        long,
        value_name = "RUN|TIME",
        requires = "devices",
        conflicts_with = "strong",
        allow_hyphen_values = true
    )]
    measured: Option<String>,
}

/// A measured step of one device.
enum MeasuredStep {
    /// The times of a run's layers.
    Run(RunTimes),
    /// Seconds of the step.
    Seconds(f64),
}

impl MeasuredStep {
    fn read(given: &str) -> Result<Self> {
        match text::latency("measured", given) {
            Ok(seconds) if seconds > 0.0 => Ok(Self::Seconds(seconds)),
            Ok(_) => Err(Failure::usage(format!("--measured {given}: must be above 0"))),
            Err(_) => Ok(Self::Run(RunTimes::read(Path::new(given))?)),
        }
    }

    fn seconds(&self) -> f64 {
        match self {
            Self::Run(run) => run.seconds(),
            Self::Seconds(seconds) => *seconds,
        }
    }
}

impl ScalingArguments {
    /// Checks the numbers of devices and how they are connected.
    pub fn check(&self) -> Result {
        let devices = self.devices.iter().map(|count| ("--devices", *count));
        let mut counts = devices.chain(self.per_machine.map(|count| ("--per-machine", count)));
        if let Some((option, count)) = counts.find(|(_, count)| !count.is_power_of_two()) {
            let problem = format!("{option} {count} is not a power of two");
            return Err(Failure::usage(problem)
                .with_hint("gradients are exchanged among powers of two: use 1, 2, 4, 8, …"));
        }
        let connection = self.connection(GRADIENT_BYTES)?;
        if self.staged && matches!(connection.between, Some(Between::Nvlink | Between::Pcie)) {
            return Err(Failure::usage(
                "--staged sends gradients between processes, not over NVLink or PCIe",
            )
            .with_hint("remove --staged, or give the rate between processes with --between"));
        }
        Ok(())
    }

    /// How the devices are connected; a gradient is sent in `value_bytes` bytes.
    fn connection(&self, value_bytes: f64) -> Result<Connection> {
        let network = self.network.as_deref().map(|given| text::bytes_per_second("network", given));
        let latency = self.latency.as_deref().map(|given| text::latency("latency", given));
        Ok(Connection {
            between: self.between.as_deref().map(Between::parse).transpose()?,
            network: network.transpose()?,
            devices_per_machine: self.per_machine,
            latency_s: latency.transpose()?,
            is_staged: self.staged,
            value_bytes,
        })
    }

    /// Refuses a rate of the network between machines if all devices are in one machine.
    fn check_network(&self, connection: &Connection, machine: &Machine) -> Result {
        let has_network = |&devices: &u64| {
            devices > 1 && connection.model(machine, devices).is_ok_and(|model| model.network.is_some())
        };
        if self.network.is_none() || self.devices.iter().any(has_network) {
            return Ok(());
        }
        Err(Failure::usage("--network has no effect: all devices are in one machine")
            .with_hint("set the number of devices of a machine with --per-machine"))
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
        if self.devices.is_empty() {
            return Ok(Vec::new());
        }
        check_experiment(planner)?;
        let connection = self.connection(GRADIENT_BYTES * planner.sent_fraction())?;
        self.check_network(&connection, machine)?;
        let is_cpu = matches!(machine.processor, Processor::Cpu(_));
        if is_cpu && connection.between.is_none() && !self.staged {
            return Err(Failure::usage("--devices needs --between, the bandwidth between the machines")
                .with_hint("for 10-gigabit Ethernet, add `--between 10Gbit/s`"));
        }
        let measured = self.measured.as_deref().map(MeasuredStep::read).transpose()?;
        if let Some(MeasuredStep::Run(run)) = &measured {
            check_run(run, row, is_cpu)?;
        }
        let step_s = measured.as_ref().map_or(row.step_s, MeasuredStep::seconds);
        let single_rate = row.batch as f64 / step_s;
        let mut all = Vec::new();
        for &devices in &self.devices {
            if devices == 1 {
                all.push(ScaledStep::single(row.batch, step_s, row.device_bytes));
                continue;
            }
            let model = connection.model(machine, devices)?;
            if self.strong && !row.batch.is_multiple_of(devices) {
                let problem = format!("batch {} is not divisible by {devices} devices", row.batch);
                return Err(Failure::usage(problem).with_hint("set a divisible batch size with --batch"));
            }
            let batch = if self.strong { row.batch / devices } else { row.batch };
            let step: DeviceStep = match &measured {
                Some(MeasuredStep::Run(run)) => step_from_run(machine, run, planner)?,
                _ if machine.name == THIS_MACHINE => {
                    let probed = probes.iter().find(|probed| probed.batch as u64 == batch);
                    step_from_probe(machine, probed.ok_or_else(|| batch_not_timed_error(batch))?, planner)?
                }
                _ => step_from_profile(machine, batch, planner, profiles)?,
            };
            let step = match measured {
                Some(MeasuredStep::Seconds(seconds)) => step.slower_by(seconds / row.step_s),
                _ => step,
            };
            all.push(step.scale_to(devices, &model, single_rate));
        }
        Ok(all)
    }
}

/// The bytes of a gradient.
const GRADIENT_BYTES: f64 = 4.0;

/// Refuses experiments whose step on several devices is not computed.
fn check_experiment(planner: &Planner) -> Result {
    let train = &planner.experiment().train;
    let refused = |problem: String, hint: &str| Err(Failure::usage(problem).with_hint(hint.to_owned()));
    if planner.framework() == Framework::Tensorflow {
        return refused("--devices does not support TensorFlow".to_owned(), "remove --framework tensorflow");
    }
    if train.parts > 1 {
        return refused(
            format!("--devices computes one part of a batch per device, but train.parts is {}", train.parts),
            "add --set train.parts=0; with --batch, set the images of each part",
        );
    }
    if train.micro_batches > 1 {
        return refused(
            format!("train.micro_batches = {} is not supported with --devices", train.micro_batches),
            "add --set train.micro_batches=1",
        );
    }
    if train.stages > 1 {
        return refused(
            format!("train.stages = {} is not supported with --devices", train.stages),
            "add --set train.stages=1",
        );
    }
    if train.exchange == ExchangeMode::Fast {
        return refused(
            format!("train.exchange = \"{}\" is not supported with --devices", train.exchange.as_str()),
            "add --set train.exchange=exact",
        );
    }
    if train.synchronise_batch_norm {
        return refused(
            "train.synchronise_batch_norm is not supported with --devices".to_owned(),
            "add --set train.synchronise_batch_norm=false",
        );
    }
    if planner.experiment().first_stage().is_some() {
        return refused(
            "an experiment with a pre-training stage cannot train on several devices".to_owned(),
            "forecast its two networks separately",
        );
    }
    Ok(())
}

/// Refuses a run whose times are not those of the forecast step.
fn check_run(run: &RunTimes, row: &Forecast, is_cpu: bool) -> Result {
    let path = run.path.display();
    let (found, batch) = (run.batch, row.batch);
    if found != batch {
        let problem = format!("{path} has batches of {found} images, not {batch}");
        return Err(Failure::usage(problem).with_hint(format!("forecast --batch {found}")));
    }
    if run.format.name() != row.precision {
        let (measured, forecast) = (run.format.name(), row.precision);
        let problem = format!("{path} was trained in {measured}, but the forecast is for {forecast}");
        return Err(Failure::usage(problem).with_hint(format!("forecast --set train.precision={measured}")));
    }
    if run.is_on_gpu == is_cpu {
        let [measured, forecast] = [run.is_on_gpu, !is_cpu].map(|gpu| if gpu { "GPU" } else { "CPU" });
        let problem = format!("{path} was trained on a {measured}, but the forecast is for a {forecast}");
        return Err(Failure::usage(problem).with_hint("measure a run on such a device"));
    }
    Ok(())
}

fn batch_not_timed_error(batch: u64) -> Failure {
    Failure::usage(format!("a step of {batch} images was not timed here"))
        .with_hint(format!("add {batch} to the sizes of --batch"))
}

/// Renders the forecasts by number of devices as a table, and what they exchange.
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
        "hidden, ms",
        "exposed, ms",
        "memory",
        "total",
    ]
    .map(str::to_owned);
    let total = |scaled: &ScaledStep| {
        let all = images? as f64 * epochs? as f64;
        Some(duration(all / scaled.images_per_second))
    };
    let dash = || "–".to_owned();
    let milliseconds = |seconds: f64| format!("{:.1}", 1e3 * seconds);
    let rows = scaled.iter().map(|scaled| {
        let exchanged = |seconds: f64| match scaled.hidden_fraction {
            Some(_) => milliseconds(seconds),
            None => dash(),
        };
        [
            scaled.devices.to_string(),
            scaled.batch.to_string(),
            milliseconds(scaled.step_s),
            format!("{:.0}", scaled.images_per_second),
            format!("{:.2}", scaled.speed_up),
            format!("{:.0} %", 100.0 * scaled.efficiency),
            exchanged(scaled.exchange_s),
            exchanged(scaled.hidden_s),
            exchanged(scaled.exposed_s),
            bytes(scaled.device_bytes),
            total(scaled).unwrap_or_else(dash),
        ]
    });
    let rows: Vec<_> = [heading].into_iter().chain(rows).collect();
    let optional = ["memory", "hidden, ms", "batch/device", "efficiency"];
    let mut text = Table::new(&rows).max_width(width, &optional).to_string();
    if let Some(largest) =
        scaled.iter().filter(|scaled| scaled.devices > 1).max_by_key(|scaled| scaled.devices)
    {
        let ScaledStep { devices, buckets, exchanged_bytes, sent_bytes, pinned_bytes, .. } = *largest;
        let pinned = match pinned_bytes {
            0 => String::new(),
            _ => format!(", through {} of pinned memory", bytes(pinned_bytes)),
        };
        text += &format!(
            "exchanged: {} in {buckets} buckets; each of {devices} devices sends {} per step{pinned}\n",
            bytes(exchanged_bytes),
            bytes(sent_bytes)
        );
    }
    text
}
