//! The latency of a predictor's network on random images: of whole batches, and of each of its steps.

use super::{Inference, Predictor};
use crate::TrainError;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use stratus_base::{median, quantile};
use stratus_data::memory::{ImagesInMemory, StoredImage};
use stratus_data::{BatchBuffer, Loader, LoaderError};
use stratus_engine::ops::KernelSpec;
use stratus_engine::{Clock, Phase};
use stratus_random::{Purpose, Stream};

/// The latency of a network at several batch sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InferenceLatency {
    /// The network.
    pub network: String,
    /// Element type.
    pub precision: String,
    /// The backend: library, instructions and threads.
    pub library: String,
    /// True on a GPU or another accelerator.
    pub is_accelerator: bool,
    /// Number of measured runs per batch size.
    pub runs: usize,
    /// The latency at each batch size.
    pub batches: Vec<BatchLatency>,
}

/// The latency at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchLatency {
    /// Images per batch.
    pub batch: usize,
    /// Milliseconds of a batch, median.
    pub ms_median: f64,
    /// The 90th percentile.
    pub ms_p90: f64,
    /// The 99th percentile.
    pub ms_p99: f64,
    /// Images per second at the median.
    pub images_per_second: f64,
    /// Bytes allocated for weights and feature maps.
    pub bytes: usize,
    /// The time of each step of the network in its order, medians.
    pub steps: Vec<StepLatency>,
}

/// The time of one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepLatency {
    /// The layers that it computes.
    pub layer: String,
    /// The kernel.
    pub kernel: String,
    /// The implementation's name.
    pub implementation: String,
    /// Milliseconds, median.
    pub ms: f64,
    /// Percent of the time of all steps.
    pub percent: f64,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes of its operands.
    pub bytes: u64,
}

#[cfg(test)]
impl BatchLatency {
    /// The latency of a network whose steps, named by their layers, take these milliseconds.
    pub(crate) fn of_steps(steps: &[(&str, f64)]) -> Self {
        let steps = steps.iter().map(|&(layer, ms)| StepLatency {
            layer: layer.to_owned(),
            kernel: String::new(),
            implementation: String::new(),
            ms,
            percent: 0.0,
            flops: 0,
            bytes: 0,
        });
        Self {
            batch: 1,
            ms_median: 0.0,
            ms_p90: 0.0,
            ms_p99: 0.0,
            images_per_second: 0.0,
            bytes: 0,
            steps: steps.collect(),
        }
    }
}

/// A network that is ready for batches of one size, with a batch of random images.
struct MeasuredNetwork<'a> {
    inference: Inference<'a>,
    images: BatchBuffer,
    /// Reads the time between steps.
    clock: Clock,
    seconds: Vec<f64>,
    /// The seconds of each step, by run.
    steps: Vec<Vec<f64>>,
}

/// Runs of a network in a row, after one that brings its weights into the caches and is not measured.
const RUNS_IN_A_ROW: usize = 10;

/// Measures networks at each of `batches`, `runs` times, ten of each in turn, so that other load on the
/// machine affects all of them equally. `stop` ends it between two rows of runs.
///
/// # Errors
/// As [`Predictor::prepare`], if a kernel fails, or if it was stopped.
pub fn measure_latency(
    predictors: &[&Predictor],
    batches: &[usize],
    runs: usize,
    stop: &AtomicBool,
    warn: &mut dyn FnMut(&str),
) -> Result<Vec<InferenceLatency>, TrainError> {
    let mut networks = Vec::new();
    for predictor in predictors {
        let mut measured = Vec::new();
        for &batch in batches {
            measured.push(MeasuredNetwork::new(predictor.prepare_batch(batch, warn)?, batch)?);
        }
        networks.push(measured);
    }
    for first in (0..runs).step_by(RUNS_IN_A_ROW) {
        for network in networks.iter_mut().flatten() {
            if stop.load(Ordering::Relaxed) {
                return Err(TrainError::Interrupted { activity: "measuring the latency" });
            }
            network.run(false)?;
            (first..runs.min(first + RUNS_IN_A_ROW)).try_for_each(|_| network.run(true))?;
        }
    }
    let latency = |(predictor, measured): (&&Predictor, Vec<MeasuredNetwork<'_>>)| {
        let first = measured.first();
        let precision = first.map(|c| c.inference.network.plan().program.precision.to_string());
        InferenceLatency {
            network: predictor.graph.name.clone(),
            precision: precision.unwrap_or_default(),
            library: first.map(|c| c.inference.library.clone()).unwrap_or_default(),
            is_accelerator: first.is_some_and(|c| !c.inference.network.session.device_slots().is_empty()),
            runs,
            batches: measured.into_iter().map(MeasuredNetwork::finish).collect(),
        }
    };
    Ok(predictors.iter().zip(networks).map(latency).collect())
}

impl<'a> MeasuredNetwork<'a> {
    fn new(inference: Inference<'a>, batch: usize) -> Result<Self, TrainError> {
        let [channels, height, width] = inference.input.shape;
        let noise = |index: usize| {
            let mut stream = Stream::new(0, Purpose::Synthetic, index as u64, 0);
            let pixels = (0..channels * height * width).map(|_| stream.below(256) as u8).collect();
            StoredImage::interleaved(pixels, [channels, height, width])
        };
        let predictor = inference.predictor;
        let images = (0..batch).map(noise).collect();
        let images = ImagesInMemory::new(images, predictor.classes(), predictor.has_masks())?;
        let config = inference.input.evaluation(inference.format, batch);
        let images = Loader::new(Arc::new(images), config)?.next()?;
        let images = images.ok_or(TrainError::Loader(LoaderError::Stopped))?;
        let clock = Clock::new(inference.network.session.slots(inference.network.program));
        let steps = vec![Vec::new(); inference.network.plan().program.steps.len()];
        Ok(Self { inference, images, clock, seconds: Vec::new(), steps })
    }

    fn run(&mut self, is_measured: bool) -> Result<(), TrainError> {
        let Self { inference, images, clock, seconds, steps } = self;
        let network = &mut inference.network;
        clock.begin_iteration();
        clock.restart();
        let started = Instant::now();
        network.session.run(network.program, &mut images.images, &mut network.labels, clock, 0)?;
        if is_measured {
            seconds.push(started.elapsed().as_secs_f64());
            for (times, &nanoseconds) in steps.iter_mut().zip(clock.slots()) {
                times.push(nanoseconds as f64 * 1e-9);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> BatchLatency {
        let plan = self.inference.network.plan();
        let batch = plan.program.batch;
        let medians: Vec<f64> = self.steps.iter_mut().map(|times| median(times).unwrap_or(0.0)).collect();
        let sum: f64 = medians.iter().sum();
        let steps = plan.program.steps.iter().zip(&medians).enumerate().map(|(position, (step, seconds))| {
            let kernel = step.kernel.name().to_owned();
            StepLatency {
                layer: plan.program.layer_name(step),
                kernel: if step.phase == Phase::Layout { format!("{kernel} (layout)") } else { kernel },
                implementation: plan.steps[position].implementation.clone(),
                ms: seconds * 1e3,
                percent: 100.0 * seconds / sum.max(f64::MIN_POSITIVE),
                flops: plan.program.step_flops(position),
                bytes: plan.step_bytes(position),
            }
        });
        let steps = steps.collect();
        let ms_median = median(&mut self.seconds).unwrap_or(0.0) * 1e3;
        BatchLatency {
            batch,
            ms_median,
            ms_p90: quantile(&self.seconds, 0.9).unwrap_or(0.0) * 1e3,
            ms_p99: quantile(&self.seconds, 0.99).unwrap_or(0.0) * 1e3,
            images_per_second: batch as f64 * 1e3 / ms_median.max(f64::MIN_POSITIVE),
            bytes: self.inference.network.session.arena_bytes(),
            steps,
        }
    }
}
