//! Forecasts of time, memory and price of a training run on a machine.

use crate::bill::{self, BillLine, Epochs, RunConditions};
use crate::catalogue::{Gpu, HourlyPrice, Instance, Machine, Processor};
use crate::choice::{Source, Z_80, choose, choose_tensorflow};
use crate::error::Result;
use crate::model::{Bottleneck, Estimate, Framework, Terms};
use crate::peaks::{NumberFormat, peaks};
use crate::profile::{Interval, Profile};
use crate::supply::{self, ImageSupply, Limit};
use crate::work::Work;
use serde::Serialize;

/// The work of a training run with a batch size, in a number format, on a kind of machine.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingWork {
    /// The framework.
    pub framework: Framework,
    /// Images per training step.
    pub batch: u64,
    /// The work of a training step.
    pub train: Work,
    /// The work of a validation step.
    pub evaluate: Work,
    /// Images per validation step.
    pub validation_batch: u64,
    /// Planned memory.
    pub memory: PlannedMemory,
}

/// The memory of a plan, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedMemory {
    /// Parameters, activations, scratch, and batches on the device.
    pub device: u64,
    /// Bytes of `device` per image of a batch.
    pub per_image: u64,
    /// A batch as produced by the loader.
    pub batch_bytes: u64,
    /// Memory of the process except for `device` and libraries, if it was planned; otherwise it is estimated
    /// from the batches.
    pub planned_host_bytes: Option<u64>,
    /// A checkpoint.
    pub checkpoint_bytes: u64,
}

/// The length of a training run, and further conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingLength {
    /// Number of epochs.
    pub epochs: u64,
    /// Number of training images, if known.
    pub images: Option<u64>,
    /// Number of validation images, if known.
    pub validation_images: Option<u64>,
    /// Epochs between validations.
    pub validation_every: u64,
    /// Number of checkpoints that are kept.
    pub checkpoints: u64,
    /// Bytes of the data set that are kept in memory.
    pub resident: u64,
    /// Number of batches that are prefetched.
    pub batches_ahead: u64,
    /// The supply of images.
    pub supply: ImageSupply,
    /// The conditions of the bill.
    pub conditions: RunConditions,
}

/// A row of `stratus forecast`. Unknown values are `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// The machine.
    pub name: String,
    /// The GPU or CPU that computes.
    pub processor: String,
    /// The framework.
    pub framework: &'static str,
    /// The number format of convolutions.
    pub precision: &'static str,
    /// The source of the coefficients.
    pub source: Source,
    /// Images per step.
    pub batch: u64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Lower end of the 80 % interval of a step.
    pub low_s: f64,
    /// Upper end of the 80 % interval of a step.
    pub high_s: f64,
    /// Training images per second, with the supply of images.
    pub images_per_second: f64,
    /// The rate at the upper end of the 80 % interval of a batch with its supply.
    pub images_per_second_low: f64,
    /// The rate at the lower end.
    pub images_per_second_high: f64,
    /// Images per second that its cores decode, if they decode any.
    pub decoding_images_per_second: Option<f64>,
    /// Loader threads: as set, or those that decode as many images as the device trains; at most one per core
    /// of the machine, or per virtual CPU of an instance, if that number is known.
    pub loader_threads: u64,
    /// Images per second over the link, if images stream.
    pub link_images_per_second: Option<f64>,
    /// Seconds of an epoch, including its validation.
    pub epoch_s: Option<f64>,
    /// Total seconds of the bill.
    pub total_s: Option<f64>,
    /// Lower end of the 80 % interval of the total.
    pub total_low_s: Option<f64>,
    /// Upper end of the 80 % interval of the total.
    pub total_high_s: Option<f64>,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Estimated bytes of memory of the process.
    pub host_bytes: u64,
    /// Bytes of checkpoints.
    pub disk_bytes: u64,
    /// True if it fits in the memory of the device, and of the host if that is known.
    pub fits: Option<bool>,
    /// Remaining bytes of memory on the device; negative if memory is missing.
    pub spare_bytes: Option<i64>,
    /// The largest batch that fits in the memory of the device.
    pub largest_batch: Option<u64>,
    /// The part of the machine that a batch waits for.
    pub limit: Limit,
    /// False if Stratus has no kernels for the machine: the forecast is hypothetical.
    pub is_supported: bool,
    /// The number of GPUs that are charged, but not used.
    pub idle_gpus: u32,
    /// The price of the bill.
    #[serde(flatten)]
    pub cost: Cost,
    /// The energy of the total time.
    #[serde(flatten)]
    pub energy: MaxEnergy,
    /// The lines of the bill; empty if the number of images is unknown.
    pub bill: Vec<BillLine>,
    /// Caveats of the forecast.
    pub warnings: Vec<String>,
}

/// The price of a training run on an instance. All values are `None` if its price or the total time is
/// unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Total price of the bill.
    pub price: Option<f64>,
    /// Total price at the lower end of the interval.
    pub price_low: Option<f64>,
    /// Total price at the upper end of the interval.
    pub price_high: Option<f64>,
    /// The currency.
    pub currency: Option<String>,
    /// The date of the hourly price: `YYYY-MM` or `YYYY-MM-DD`.
    pub price_date: Option<String>,
    /// The region of the hourly price, if known.
    pub region: Option<String>,
    /// The cloud of the instance.
    pub cloud: Option<String>,
    /// The hourly price of the instance.
    pub per_hour: Option<f64>,
}

/// Upper estimates of the energy of a training run and of its emissions: one GPU at its maximum power for the
/// total time, without the rest of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MaxEnergy {
    /// kWh; `None` on a CPU, or if the power or the total time is unknown.
    pub energy_kwh: Option<f64>,
    /// kg of CO₂; not written if the emissions of the electricity are not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub co2_kg: Option<f64>,
}

impl MaxEnergy {
    fn new(machine: &Machine, total_s: Option<f64>, grid_g_per_kwh: Option<f64>) -> Self {
        let watts = match &machine.processor {
            Processor::Gpu(gpu) => gpu.tdp_watts,
            Processor::Cpu(_) => None,
        };
        let energy_kwh = watts.zip(total_s).map(|(watts, seconds)| watts * seconds / 3.6e6);
        Self { energy_kwh, co2_kg: energy_kwh.zip(grid_g_per_kwh).map(|(kwh, grams)| kwh * grams / 1e3) }
    }
}

impl Cost {
    fn new(instance: Option<&Instance>, hourly: Option<HourlyPrice<'_>>, total_s: [Option<f64>; 3]) -> Self {
        let (Some(instance), Some(hourly)) = (instance, hourly) else { return Self::default() };
        let [price_low, price, price_high] =
            total_s.map(|seconds| seconds.map(|seconds| hourly.per_hour * seconds / 3600.0));
        Self {
            price,
            price_low,
            price_high,
            currency: instance.currency.clone(),
            price_date: Some(instance.date.clone()),
            region: hourly.region.map(str::to_owned),
            cloud: Some(instance.cloud.clone()),
            per_hour: Some(hourly.per_hour),
        }
    }
}

/// The requested time, as a multiple of the upper bound of the interval.
const TIME_MARGIN_FACTOR: f64 = 1.2;
/// Seconds for starting the machine and installing the program, which are not in the bill.
const SETUP_S: f64 = 900.0;
/// The requested memory, as a multiple of the forecast.
const MEMORY_MARGIN_FACTOR: f64 = 1.25;

impl Forecast {
    /// The seconds to request for the run, with a margin; `None` if its length is unknown.
    #[must_use]
    pub fn requested_seconds(&self) -> Option<f64> {
        self.total_high_s.map(|high| TIME_MARGIN_FACTOR * high + SETUP_S)
    }

    /// The bytes of memory of the process to request, with a margin.
    #[must_use]
    pub fn requested_memory_bytes(&self) -> f64 {
        MEMORY_MARGIN_FACTOR * self.host_bytes as f64
    }
}

impl Forecast {
    /// Training images per second of the device alone.
    #[must_use]
    pub fn device_images_per_second(&self) -> f64 {
        self.batch as f64 / self.step_s
    }

    /// The rates of supply and device, if batches wait for their images.
    #[must_use]
    pub fn supply_note(&self) -> Option<String> {
        let device = self.device_images_per_second();
        let supply = match self.limit {
            Limit::Decoding => format!("its cores decode {:.0}", self.decoding_images_per_second?),
            Limit::Link => format!("the link delivers {:.0}", self.link_images_per_second?),
            _ => return None,
        };
        Some(format!("{supply} images/s, of {device:.0} that it could train"))
    }
}

/// Bytes of the context of the driver and of the scratch of kernels on a GPU. The plans of five networks on
/// an H100 had up to 200 MiB of scratch.
const GPU_CONTEXT_BYTES: u64 = 768 << 20;
/// The minimum compute capability for Stratus' kernels: Turing.
const MIN_COMPUTE_CAPABILITY: f64 = 7.5;
/// Bytes of libraries and code of a process that computes on a GPU, and of one that does not: ResNet-18 and
/// ResNet-50 took 73 to 87 MB more than planned (docs/benchmarks/forecast.md).
const LIBRARY_BYTES: [u64; 2] = [2 << 30, 80 << 20];
/// Standard deviation of the log ratio of the time of a step to the sum of its separately timed kernels.
const PROBE_LOG_STD: f64 = 0.08;
/// Minimum batch size without a warning.
const MIN_RELIABLE_BATCH: u64 = 4;

/// Forecasts a training run on a machine.
///
/// # Errors
/// If the machine does not support the format, there is no profile for it, or preemptions are given for
/// TensorFlow.
pub fn forecast(
    machine: &Machine,
    format: NumberFormat,
    plan: &TrainingWork,
    length: &TrainingLength,
    profiles: &[Profile],
) -> Result<Forecast> {
    length.conditions.check(plan.framework)?;
    let (profile, source) = choose_for(plan.framework, profiles, machine, format)?;
    let peaks = peaks(&machine.processor, format)?;
    let (step, Estimate { shares, .. }) = profile.estimate_work(&plan.train, &peaks);
    let (validation, _) = profile.estimate_work(&plan.evaluate, &peaks);
    let (framework, limit) = (profile.framework, shares.bottleneck());
    Ok(row(machine, plan, length, &StepTiming { framework, format, source, step, validation, limit }))
}

/// Times of a training and a validation step, from kernels timed on the machine itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbedStep {
    /// Seconds of a training step.
    pub step_s: f64,
    /// Seconds of a validation step.
    pub validation_s: f64,
    /// Seconds of convolutions and fully connected layers in a training step.
    pub arithmetic_s: f64,
    /// Relative spread of repeated times of the same kernel, if known.
    pub spread: Option<f64>,
}

/// The interval of a step that is the sum of the times of its kernels; `spread` as in [`ProbedStep`].
#[must_use]
pub fn probed_interval(seconds: f64, spread: Option<f64>) -> Interval {
    Interval::new(seconds, Z_80 * PROBE_LOG_STD.hypot(spread.unwrap_or(0.0)))
}

/// Forecasts a training run on the machine where its kernels were timed.
#[must_use]
pub fn forecast_from_probe(
    machine: &Machine,
    format: NumberFormat,
    plan: &TrainingWork,
    length: &TrainingLength,
    measured: &ProbedStep,
) -> Forecast {
    let interval = |seconds: f64| probed_interval(seconds, measured.spread);
    let is_arithmetic = measured.arithmetic_s > 0.5 * measured.step_s;
    let timed = StepTiming {
        framework: Framework::Stratus,
        format,
        source: Source::Measured,
        step: interval(measured.step_s),
        validation: interval(measured.validation_s),
        limit: if is_arithmetic { Bottleneck::Arithmetic } else { Bottleneck::Memory },
    };
    row(machine, plan, length, &timed)
}

/// The times of a forecast, with their source.
struct StepTiming {
    framework: Framework,
    format: NumberFormat,
    source: Source,
    step: Interval,
    validation: Interval,
    limit: Bottleneck,
}

fn row(machine: &Machine, plan: &TrainingWork, length: &TrainingLength, timed: &StepTiming) -> Forecast {
    let StepTiming { framework, format, source, step, validation, limit } = *timed;
    let conditions = &length.conditions;
    let is_here = source == Source::Measured;
    let supplied = length.supply.batch(machine, is_here, step, plan.batch as f64);
    let validated = length.supply.batch(machine, is_here, validation, plan.validation_batch as f64);
    let epochs = epochs(supplied.batch, validated.batch, plan, length);
    let (device, host) = memory(machine, plan, length);
    let fits = usable_memory(machine).map(|memory| fits(machine, memory, device, host));
    let instance = machine.instance.as_ref();
    let hourly = instance.and_then(|instance| instance.price(conditions.preemptions_per_hour > 0.0));
    let (bill, total) = epochs.map_or((Vec::new(), [None; 3]), |(_, all)| {
        bill::bill(
            &Epochs { startup_s: startup_s(machine, framework, conditions), ..all },
            conditions,
            hourly.map(|hourly| hourly.per_hour),
        )
    });
    let [total_low_s, total_s, total_high_s] = total;
    let mut warnings = warnings(machine, plan, source, conditions);
    if length.supply.decoding.is_some() && supply::cores(machine).is_none() {
        warnings.push("without decoding: the number of its host's cores is unknown".to_owned());
    }
    if !bill.is_empty() && total_high_s.is_none() {
        warnings
            .push("may never finish: restarts and lost work exceed the time between preemptions".to_owned());
    }
    Forecast {
        name: machine.name.clone(),
        processor: machine.processor.name().to_owned(),
        framework: framework.name(),
        precision: format.name(),
        source,
        batch: plan.batch,
        step_s: step.seconds,
        low_s: step.low,
        high_s: step.high,
        images_per_second: plan.batch as f64 / supplied.batch.seconds,
        images_per_second_low: plan.batch as f64 / supplied.batch.high,
        images_per_second_high: plan.batch as f64 / supplied.batch.low,
        loader_threads: supplied.loader_threads,
        decoding_images_per_second: supplied.decoding_rate,
        link_images_per_second: supplied.link_rate,
        epoch_s: epochs.map(|(epoch, _)| epoch.seconds),
        total_s,
        total_low_s,
        total_high_s,
        device_bytes: device,
        host_bytes: host,
        disk_bytes: plan.memory.checkpoint_bytes * (length.checkpoints + 1),
        fits,
        spare_bytes: usable_memory(machine).map(|memory| memory as i64 - device as i64),
        largest_batch: usable_memory(machine).map(|memory| max_batch(plan, device, memory)),
        limit: supplied.limit.unwrap_or(limit.into()),
        is_supported: is_supported(machine, plan.framework),
        idle_gpus: idle_gpus(machine),
        cost: Cost::new(instance, hourly, total),
        energy: MaxEnergy::new(machine, total_s, conditions.grid_g_per_kwh),
        bill,
        warnings,
    }
}

/// Seconds until the first iteration, if known.
fn startup_s(machine: &Machine, framework: Framework, conditions: &RunConditions) -> Option<f64> {
    let constant = match machine.processor {
        Processor::Gpu(_) => bill::GPU_STARTUP_S,
        Processor::Cpu(_) => bill::CPU_STARTUP_S,
    };
    (framework == Framework::Stratus).then(|| conditions.startup_s.unwrap_or(constant))
}

fn choose_for(
    framework: Framework,
    profiles: &[Profile],
    machine: &Machine,
    format: NumberFormat,
) -> Result<(Profile, Source)> {
    match framework {
        Framework::Stratus => choose(profiles, &machine.processor, format),
        Framework::Tensorflow => choose_tensorflow(profiles, &machine.processor, format),
    }
}

/// The interval of an epoch with its part of validation, and the times of all epochs.
fn epochs(
    step: Interval,
    validation: Interval,
    plan: &TrainingWork,
    length: &TrainingLength,
) -> Option<(Interval, Epochs)> {
    let images = length.images?;
    // The smaller last batch counts proportionally.
    let training = step.times(images as f64 / plan.batch.max(1) as f64);
    let every = length.validation_every.max(1);
    // The last epoch is always validated.
    let validations = length.epochs.div_ceil(every);
    let batches = |images: u64| images as f64 / plan.validation_batch.max(1) as f64;
    let validated = length.validation_images.map(|images| validation.times(batches(images)));
    let epoch = validated.map_or(training, |validated| training.plus(validated.times(1.0 / every as f64)));
    let all = Epochs {
        count: length.epochs,
        training: training.times(length.epochs as f64),
        validation: validated.map(|validated| validated.times(validations as f64)),
        startup_s: None,
        checkpoint: (plan.framework == Framework::Stratus).then_some(plan.memory.checkpoint_bytes),
    };
    Some((epoch, all))
}

/// Bytes on the device and of the process.
fn memory(machine: &Machine, plan: &TrainingWork, length: &TrainingLength) -> (u64, u64) {
    let batches = plan.memory.batch_bytes * (length.batches_ahead + 1) + length.resident;
    let ahead = plan.memory.planned_host_bytes.unwrap_or(batches);
    match machine.processor {
        // The estimate for TensorFlow includes the context and scratch.
        Processor::Gpu(_) if plan.framework == Framework::Tensorflow => {
            (plan.memory.device, LIBRARY_BYTES[0] + ahead)
        }
        Processor::Gpu(_) => (plan.memory.device + GPU_CONTEXT_BYTES, LIBRARY_BYTES[0] + ahead),
        Processor::Cpu(_) => (plan.memory.device, LIBRARY_BYTES[1] + ahead + plan.memory.device),
    }
}

/// Bytes of a GPU's memory besides the arena of a session: the driver's context and scratch.
#[must_use]
pub fn context_bytes(machine: &Machine) -> u64 {
    match machine.processor {
        Processor::Gpu(_) => GPU_CONTEXT_BYTES,
        Processor::Cpu(_) => 0,
    }
}

/// Bytes of memory that programs can use on the device, if known.
fn usable_memory(machine: &Machine) -> Option<u64> {
    match &machine.processor {
        Processor::Gpu(gpu) => Some(gpu.usable_bytes()),
        Processor::Cpu(cpu) => cpu.memory_gib.map(|gib| (gib * f64::from(1 << 30)) as u64),
    }
}

fn fits(machine: &Machine, memory: u64, device: u64, host: u64) -> bool {
    let ram_gib = machine.instance.as_ref().and_then(|instance| instance.ram_gib);
    let ram = ram_gib.map(|gib| (gib * f64::from(1 << 30)) as u64);
    match machine.processor {
        Processor::Gpu(_) => device <= memory && ram.is_none_or(|ram| host <= ram),
        Processor::Cpu(_) => host <= memory,
    }
}

/// The largest batch that fits, with a constant part of memory and one per image.
fn max_batch(plan: &TrainingWork, device: u64, memory: u64) -> u64 {
    let per_image = plan.memory.per_image.max(1);
    let constant = device.saturating_sub(per_image * plan.batch);
    memory.saturating_sub(constant) / per_image
}

/// Returns whether the framework has kernels for the machine.
fn is_supported(machine: &Machine, framework: Framework) -> bool {
    let is_old = |gpu: &Gpu| gpu.compute_capability < MIN_COMPUTE_CAPABILITY;
    framework != Framework::Stratus || !matches!(&machine.processor, Processor::Gpu(gpu) if is_old(gpu))
}

/// The number of GPUs of an instance that are charged, but not used.
fn idle_gpus(machine: &Machine) -> u32 {
    match (&machine.processor, &machine.instance) {
        (Processor::Gpu(_), Some(instance)) => instance.gpus.saturating_sub(1),
        _ => 0,
    }
}

fn warnings(
    machine: &Machine,
    plan: &TrainingWork,
    source: Source,
    conditions: &RunConditions,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if source == Source::DataSheet {
        warnings.push("from its data sheet: no step was measured on this kind of machine".to_owned());
    }
    let is_stratus = plan.framework == Framework::Stratus;
    if !is_supported(machine, plan.framework) {
        warnings.push("hypothetical: Stratus needs Turing or later".to_owned());
    }
    if let (Processor::Gpu(_), Some(instance)) = (&machine.processor, &machine.instance) {
        if idle_gpus(machine) > 0 {
            warnings.push(
                "one of its GPUs is used, but all are charged; --devices shows how several would scale"
                    .to_owned(),
            );
        }
        let is_preempted = conditions.preemptions_per_hour > 0.0;
        match (instance.on_demand_per_hour, instance.spot_per_hour) {
            (None, Some(_)) if !is_preempted => {
                warnings.push("at the price of a preemptible instance".to_owned());
            }
            (Some(_), None) if is_preempted => warnings.push(
                "at its on-demand price: its spot price is unknown; add a row in a file with --machines"
                    .to_owned(),
            ),
            _ => {}
        }
    }
    if !is_stratus {
        warnings.push("memory is an estimate from TensorFlow's layers".to_owned());
    }
    if plan.batch < MIN_RELIABLE_BATCH && source != Source::Measured {
        warnings.push("the batch is smaller than any measured one".to_owned());
    }
    warnings
}

/// Seconds of each kernel of a step alone, and of the step.
fn kernel_seconds(
    machine: &Machine,
    format: NumberFormat,
    (framework, work): (Framework, &Work),
    profiles: &[Profile],
) -> Result<(Vec<f64>, f64)> {
    let (profile, _) = choose_for(framework, profiles, machine, format)?;
    let peaks = peaks(&machine.processor, format)?;
    let seconds = |kernel| {
        let (step, _) = profile.estimate_step(&Terms::for_kernel(kernel, &peaks));
        step.seconds * profile.correction.log_factor(kernel).exp() * profile.run_correction()
    };
    let (step, _) = profile.estimate_work(work, &peaks);
    Ok((work.kernels.iter().map(seconds).collect(), step.seconds))
}

/// Seconds of each kernel of a step, in order, scaled to sum to the forecast of the step.
///
/// # Errors
/// See [`forecast()`].
pub fn kernels(
    machine: &Machine,
    format: NumberFormat,
    work: (Framework, &Work),
    profiles: &[Profile],
) -> Result<Vec<f64>> {
    let (mut kernels, step_s) = kernel_seconds(machine, format, work, profiles)?;
    let factor = step_s / kernels.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    kernels.iter_mut().for_each(|seconds| *seconds *= factor);
    Ok(kernels)
}

/// Seconds of each layer of a step, in order of their first kernels.
///
/// # Errors
/// See [`forecast()`].
pub fn layers(
    machine: &Machine,
    format: NumberFormat,
    (framework, work): (Framework, &Work),
    profiles: &[Profile],
) -> Result<Vec<LayerForecast>> {
    let (seconds, _) = kernel_seconds(machine, format, (framework, work), profiles)?;
    let mut layers: Vec<LayerForecast> = Vec::new();
    for (kernel, seconds) in work.kernels.iter().zip(seconds) {
        let at = layers.iter().position(|layer| layer.layer == kernel.layer).unwrap_or_else(|| {
            layers.push(LayerForecast { layer: kernel.layer.clone(), ..LayerForecast::default() });
            layers.len() - 1
        });
        let layer = &mut layers[at];
        layer.kernels += 1;
        layer.flops += kernel.flops;
        layer.bytes += kernel.bytes;
        layer.seconds += seconds;
    }
    Ok(layers)
}

/// The work and time of a layer in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayerForecast {
    /// The name of the layer.
    pub layer: String,
    /// Number of kernels.
    pub kernels: usize,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Seconds.
    pub seconds: f64,
}
