//! A forecast: time, memory and price of one training at one batch size on one machine.

use crate::bill::{self, Conditions, Epochs, Part};
use crate::catalogue::{Machine, Processor};
use crate::choice::{Source, WIDTH, choose, choose_tensorflow};
use crate::error::Result;
use crate::model::{Estimate, Framework, Shares, Terms};
use crate::peaks::{Format, peaks};
use crate::profile::{Interval, Profile};
use crate::work::Work;
use serde::Serialize;

/// What a training does at one batch size, in one number format, on one kind of machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Whose.
    pub framework: Framework,
    /// Images of a step.
    pub batch: u64,
    /// A training step.
    pub train: Work,
    /// A step of validation.
    pub evaluate: Work,
    /// Images of that.
    pub validation_batch: u64,
    /// Bytes of parameters, activations and scratch.
    pub memory: Memory,
}

/// The bytes of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Parameters, activations, scratch, and batches on the device.
    pub device: u64,
    /// Of `device`, what each image of a batch takes.
    pub per_image: u64,
    /// A batch as the loader makes it.
    pub batch: u64,
    /// What the process holds beside `device` and its libraries, where that was planned; else batches are
    /// counted.
    pub beside: Option<u64>,
    /// A checkpoint.
    pub checkpoint: u64,
}

/// How long the training is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Length {
    /// Epochs.
    pub epochs: u64,
    /// Training images, where known.
    pub images: Option<u64>,
    /// Validation images, where known.
    pub validation_images: Option<u64>,
    /// Epochs from one validation to the next.
    pub validation_every: u64,
    /// Checkpoints that are kept.
    pub checkpoints: u64,
    /// Bytes of the data set that are held in memory.
    pub resident: u64,
    /// Batches that are made ahead.
    pub batches_ahead: u64,
    /// What else the bill depends on.
    pub conditions: Conditions,
}

/// What limits a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Operations.
    Arithmetic,
    /// Bytes.
    Memory,
    /// Starting kernels.
    Launch,
}

impl Limit {
    fn of(shares: &Shares) -> Self {
        if shares.host || shares.launch > shares.arithmetic.max(shares.memory) {
            Self::Launch
        } else if shares.memory > shares.arithmetic {
            Self::Memory
        } else {
            Self::Arithmetic
        }
    }

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Arithmetic => "arithmetic",
            Self::Memory => "memory",
            Self::Launch => "launch",
        }
    }
}

/// One row of `stratus forecast`. What is not known is `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// The machine.
    pub name: String,
    /// Whose time it is.
    pub framework: &'static str,
    /// What convolutions are computed in.
    pub precision: &'static str,
    /// Where the coefficients are from.
    pub source: Source,
    /// Images of a step.
    pub batch: u64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Four times of five it takes at least this.
    pub low_s: f64,
    /// And at most this.
    pub high_s: f64,
    /// Training images a second.
    pub images_per_second: f64,
    /// Seconds of an epoch, its validation included.
    pub epoch_s: Option<f64>,
    /// Seconds of the whole bill.
    pub total_s: Option<f64>,
    /// The lower end of its interval.
    pub total_low_s: Option<f64>,
    /// The upper end of its interval.
    pub total_high_s: Option<f64>,
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes of the process's memory: an estimate.
    pub host_bytes: u64,
    /// Bytes of checkpoints.
    pub disk_bytes: u64,
    /// Whether it fits the device; and the host, where its memory is known.
    pub fits: Option<bool>,
    /// Bytes of the device's memory that are left; below 0 what is missing.
    pub spare_bytes: Option<i64>,
    /// The largest batch that fits the device.
    pub largest_batch: Option<u64>,
    /// What takes most of a step.
    pub limit: Limit,
    /// The price of the whole bill.
    pub price: Option<f64>,
    /// At the upper end of the interval.
    pub price_high: Option<f64>,
    /// Of the price.
    pub currency: Option<String>,
    /// What time and price are made of; empty where the number of images is unknown.
    pub bill: Vec<Part>,
    /// What to be careful about.
    pub warnings: Vec<String>,
}

/// Bytes that a driver's context and the scratch of kernels take on a GPU. Of five networks on an H100 the
/// plans had up to 200 MiB of scratch.
const CONTEXT: u64 = 768 << 20;
/// The compute capability that Stratus' kernels are compiled from: Turing's.
const TURING: f64 = 7.5;
/// Bytes of libraries and code of a process that computes on a GPU, and of one that does not: ResNet-18 and
/// ResNet-50 had 73 to 87 MB more than was planned (docs/benchmarks/forecast.md).
const LIBRARIES: [u64; 2] = [2 << 30, 80 << 20];
/// How far a step lies from the sum of its kernels, timed alone: the deviation of the logarithm.
const MEASURED_SPREAD: f64 = 0.08;
/// Below this a batch is no longer worth a warning.
const FEW_IMAGES: u64 = 4;

/// Forecasts a training on a machine.
///
/// # Errors
/// Where the machine does not compute in the format, or there is no profile of it; preemptions of
/// TensorFlow's training.
pub fn forecast(
    machine: &Machine,
    format: Format,
    plan: &Plan,
    length: &Length,
    profiles: &[Profile],
) -> Result<Forecast> {
    length.conditions.check(plan.framework)?;
    let (profile, source) = choose_for(plan.framework, profiles, machine, format)?;
    let peaks = peaks(&machine.processor, format)?;
    let (step, Estimate { shares, .. }) = profile.work(&plan.train, &peaks);
    let (validation, _) = profile.work(&plan.evaluate, &peaks);
    let (framework, limit) = (profile.framework, Limit::of(&shares));
    Ok(row(machine, plan, length, &Timed { framework, format, source, step, validation, limit }))
}

/// Seconds of a training step and of one of validation whose kernels were timed on the machine itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredStep {
    /// A training step.
    pub step_s: f64,
    /// A step of validation.
    pub validation_s: f64,
    /// Of the step, what convolutions and fully connected layers take.
    pub arithmetic_s: f64,
    /// How far times of the same kernel lay apart, in parts of them; where known.
    pub spread: Option<f64>,
}

/// The interval of a step that is the sum of its kernels' times; `spread` as in [`MeasuredStep`].
#[must_use]
pub fn measured_interval(seconds: f64, spread: Option<f64>) -> Interval {
    Interval::new(seconds, WIDTH * MEASURED_SPREAD.hypot(spread.unwrap_or(0.0)))
}

/// Forecasts a training on the machine on which its kernels were timed.
#[must_use]
pub fn measured(
    machine: &Machine,
    format: Format,
    plan: &Plan,
    length: &Length,
    measured: &MeasuredStep,
) -> Forecast {
    let interval = |seconds: f64| measured_interval(seconds, measured.spread);
    let arithmetic = measured.arithmetic_s > 0.5 * measured.step_s;
    let timed = Timed {
        framework: Framework::Stratus,
        format,
        source: Source::Measured,
        step: interval(measured.step_s),
        validation: interval(measured.validation_s),
        limit: if arithmetic { Limit::Arithmetic } else { Limit::Memory },
    };
    row(machine, plan, length, &timed)
}

/// The times of a row.
struct Timed {
    framework: Framework,
    format: Format,
    source: Source,
    step: Interval,
    validation: Interval,
    limit: Limit,
}

fn row(machine: &Machine, plan: &Plan, length: &Length, timed: &Timed) -> Forecast {
    let Timed { framework, format, source, step, validation, limit } = *timed;
    let conditions = &length.conditions;
    let epochs = epochs(step, validation, plan, length);
    let (device, host) = memory(machine, plan, length);
    let fits = room(machine).map(|room| fits(machine, room, device, host));
    let instance = machine.instance.as_ref();
    let hourly = instance.and_then(|instance| match conditions.preemptions > 0.0 {
        true => instance.spot_per_hour.or(instance.on_demand_per_hour),
        false => instance.on_demand_per_hour.or(instance.spot_per_hour),
    });
    let price = |seconds: f64| hourly.map(|hourly| hourly * seconds / 3600.0);
    let (bill, [total_low_s, total_s, total_high_s]) = epochs.map_or((Vec::new(), [None; 3]), |(_, all)| {
        bill::bill(&Epochs { set_up: set_up(machine, framework, conditions), ..all }, conditions, hourly)
    });
    let mut warnings = warnings(machine, plan, source, conditions);
    if !bill.is_empty() && total_high_s.is_none() {
        warnings
            .push("taken away so often, it may never be done: starts and lost work take longer".to_owned());
    }
    Forecast {
        name: machine.name.clone(),
        framework: framework.name(),
        precision: format.name(),
        source,
        batch: plan.batch,
        step_s: step.seconds,
        low_s: step.low,
        high_s: step.high,
        images_per_second: plan.batch as f64 / step.seconds,
        epoch_s: epochs.map(|(epoch, _)| epoch.seconds),
        total_s,
        total_low_s,
        total_high_s,
        device_bytes: device,
        host_bytes: host,
        disk_bytes: plan.memory.checkpoint * (length.checkpoints + 1),
        fits,
        spare_bytes: room(machine).map(|room| room as i64 - device as i64),
        largest_batch: room(machine).map(|room| largest(plan, device, room)),
        limit,
        price: total_s.and_then(price),
        price_high: total_high_s.and_then(price),
        currency: instance.filter(|_| hourly.is_some()).and_then(|instance| instance.currency.clone()),
        bill,
        warnings,
    }
}

/// Seconds until the first iteration, where they are known.
fn set_up(machine: &Machine, framework: Framework, conditions: &Conditions) -> Option<f64> {
    let constant = match machine.processor {
        Processor::Gpu(_) => bill::SET_UP_GPU,
        Processor::Cpu(_) => bill::SET_UP_CPU,
    };
    (framework == Framework::Stratus).then(|| conditions.set_up.unwrap_or(constant))
}

fn choose_for(
    framework: Framework,
    profiles: &[Profile],
    machine: &Machine,
    format: Format,
) -> Result<(Profile, Source)> {
    match framework {
        Framework::Stratus => choose(profiles, &machine.processor, format),
        Framework::Tensorflow => choose_tensorflow(profiles, &machine.processor, format),
    }
}

/// An epoch with its share of validation, and all of them.
fn epochs(step: Interval, validation: Interval, plan: &Plan, length: &Length) -> Option<(Interval, Epochs)> {
    let images = length.images?;
    // The last, smaller batch counts for its part.
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
        set_up: None,
        checkpoint: (plan.framework == Framework::Stratus).then_some(plan.memory.checkpoint),
    };
    Some((epoch, all))
}

/// Bytes on the device and of the process.
fn memory(machine: &Machine, plan: &Plan, length: &Length) -> (u64, u64) {
    let batches = plan.memory.batch * (length.batches_ahead + 1) + length.resident;
    let ahead = plan.memory.beside.unwrap_or(batches);
    match machine.processor {
        // TensorFlow's estimate has both.
        Processor::Gpu(_) if plan.framework == Framework::Tensorflow => {
            (plan.memory.device, LIBRARIES[0] + ahead)
        }
        Processor::Gpu(_) => (plan.memory.device + CONTEXT, LIBRARIES[0] + ahead),
        Processor::Cpu(_) => (plan.memory.device, LIBRARIES[1] + ahead + plan.memory.device),
    }
}

/// Bytes that the device has for programs, where known.
fn room(machine: &Machine) -> Option<u64> {
    match &machine.processor {
        Processor::Gpu(gpu) => Some(gpu.usable_bytes()),
        Processor::Cpu(cpu) => cpu.memory_gib.map(|gib| (gib * f64::from(1 << 30)) as u64),
    }
}

fn fits(machine: &Machine, room: u64, device: u64, host: u64) -> bool {
    let ram = machine.instance.as_ref().map(|instance| (instance.ram_gib * f64::from(1 << 30)) as u64);
    match machine.processor {
        Processor::Gpu(_) => device <= room && ram.is_none_or(|ram| host <= ram),
        Processor::Cpu(_) => host <= room,
    }
}

/// The largest batch, memory being a constant and so much an image.
fn largest(plan: &Plan, device: u64, room: u64) -> u64 {
    let per_image = plan.memory.per_image.max(1);
    let constant = device.saturating_sub(per_image * plan.batch);
    room.saturating_sub(constant) / per_image
}

fn warnings(machine: &Machine, plan: &Plan, source: Source, conditions: &Conditions) -> Vec<String> {
    let mut warnings = Vec::new();
    if source == Source::DataSheet {
        warnings.push("from its data sheet: no step was measured on such a machine".to_owned());
    }
    let ours = plan.framework == Framework::Stratus;
    if matches!(&machine.processor, Processor::Gpu(gpu) if ours && gpu.compute_capability < TURING) {
        warnings.push("Stratus' kernels are made for Turing and later: what it would take here".to_owned());
    }
    if let (Processor::Gpu(gpu), Some(instance)) = (&machine.processor, &machine.instance) {
        if instance.gpus > 1 {
            let (name, gpus) = (&gpu.name, instance.gpus);
            warnings.push(format!("one of its {gpus} GPUs ({name}) computes, all are paid for"));
        }
        let taken_away = conditions.preemptions > 0.0;
        match (instance.on_demand_per_hour, instance.spot_per_hour) {
            (None, Some(_)) if !taken_away => {
                warnings.push("at the price of an instance that may be taken away".to_owned());
            }
            (Some(_), None) if taken_away => warnings.push(
                "at its price on demand: a spot price is not known, a row in a file with --machines gives it"
                    .to_owned(),
            ),
            _ => {}
        }
    }
    if !ours {
        warnings.push("memory is an estimate from TensorFlow's layers".to_owned());
    }
    if plan.batch < FEW_IMAGES && source != Source::Measured {
        warnings.push("so small a batch is outside of what was measured".to_owned());
    }
    warnings
}

/// Seconds of each kernel of a step by itself, and of the step.
fn alone(
    machine: &Machine,
    format: Format,
    (framework, work): (Framework, &Work),
    profiles: &[Profile],
) -> Result<(Vec<f64>, f64)> {
    let (profile, _) = choose_for(framework, profiles, machine, format)?;
    let peaks = peaks(&machine.processor, format)?;
    let seconds = |kernel| {
        let (step, _) = profile.step(&Terms::of_kernel(kernel, &peaks));
        step.seconds * profile.correction.of(kernel).exp() * profile.of_runs()
    };
    let (step, _) = profile.work(work, &peaks);
    Ok((work.kernels.iter().map(seconds).collect(), step.seconds))
}

/// Seconds of each kernel of a step, in order, so that all together take what the step is forecast to.
///
/// # Errors
/// As [`forecast`].
pub fn kernels(
    machine: &Machine,
    format: Format,
    work: (Framework, &Work),
    profiles: &[Profile],
) -> Result<Vec<f64>> {
    let (mut kernels, step_s) = alone(machine, format, work, profiles)?;
    let factor = step_s / kernels.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    kernels.iter_mut().for_each(|seconds| *seconds *= factor);
    Ok(kernels)
}

/// Seconds of each layer of a step, in the order in which they begin.
///
/// # Errors
/// As [`forecast`].
pub fn layers(
    machine: &Machine,
    format: Format,
    (framework, work): (Framework, &Work),
    profiles: &[Profile],
) -> Result<Vec<LayerForecast>> {
    let (seconds, _) = alone(machine, format, (framework, work), profiles)?;
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

/// What a layer does in a step, and how long.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayerForecast {
    /// Its name.
    pub layer: String,
    /// Its kernels.
    pub kernels: usize,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Seconds.
    pub seconds: f64,
}
