//! The latency of a predictor's network on random images: of whole batches, and of each of its steps.

use super::{Inference, Predictor};
use crate::TrainError;
use serde::Serialize;
use std::sync::Arc;
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
    /// Library and threads.
    pub library: String,
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

/// A network that is ready for batches of one size, with a batch of random images.
struct Candidate<'a> {
    inference: Inference<'a>,
    images: BatchBuffer,
    /// Reads the time between steps.
    clock: Clock,
    seconds: Vec<f64>,
    /// The seconds of each step, by run.
    steps: Vec<Vec<f64>>,
}

/// Measures networks at each of `batches`, all in turn, `runs` times after a run to warm up. Other load on
/// the machine affects all of them equally.
///
/// # Errors
/// As [`Predictor::prepare`], or if a kernel fails.
pub fn measure_latency(
    predictors: &[&Predictor],
    batches: &[usize],
    runs: usize,
    warn: &mut dyn FnMut(&str),
) -> Result<Vec<InferenceLatency>, TrainError> {
    let mut networks = Vec::new();
    for predictor in predictors {
        let mut candidates = Vec::new();
        for &batch in batches {
            candidates.push(Candidate::new(predictor.prepare_batch(batch, warn)?, batch)?);
        }
        networks.push(candidates);
    }
    for run in 0..=runs {
        for candidate in networks.iter_mut().flatten() {
            candidate.run(run > 0)?;
        }
    }
    let latency = |(predictor, candidates): (&&Predictor, Vec<Candidate<'_>>)| {
        let first = candidates.first();
        let precision = first.map(|c| c.inference.network.plan().program.precision.to_string());
        InferenceLatency {
            network: predictor.graph.name.clone(),
            precision: precision.unwrap_or_default(),
            library: first.map(|c| c.inference.library.clone()).unwrap_or_default(),
            runs,
            batches: candidates.into_iter().map(Candidate::finish).collect(),
        }
    };
    Ok(predictors.iter().zip(networks).map(latency).collect())
}

impl<'a> Candidate<'a> {
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
        let mut images = images.ok_or(TrainError::Loader(LoaderError::Stopped))?;
        images.labels.fill(0);
        let clock = Clock::new(inference.network.session.slots(inference.network.program));
        let steps = vec![Vec::new(); inference.network.plan().program.steps.len()];
        Ok(Self { inference, images, clock, seconds: Vec::new(), steps })
    }

    fn run(&mut self, is_measured: bool) -> Result<(), TrainError> {
        let Self { inference, images, clock, seconds, steps } = self;
        let labels = bytemuck::cast_slice_mut(&mut images.labels);
        let network = &mut inference.network;
        clock.begin_iteration();
        clock.restart();
        let started = Instant::now();
        network.session.run(network.program, &mut images.images, labels, clock, 0)?;
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
        self.seconds.sort_by(f64::total_cmp);
        let at = |share| quantile(&self.seconds, share).unwrap_or(0.0) * 1e3;
        let ms_median = at(0.5);
        BatchLatency {
            batch,
            ms_median,
            ms_p90: at(0.9),
            ms_p99: at(0.99),
            images_per_second: batch as f64 * 1e3 / ms_median.max(f64::MIN_POSITIVE),
            bytes: self.inference.network.session.arena_bytes(),
            steps,
        }
    }
}
