//! Calibration: runs a trained network on training images, to learn the ranges of its maps, and how much its
//! predictions change if layers run in int8.

use crate::compile::{EvaluationSession, InferenceForm, inference_session};
use crate::device::{self, OpenDevice};
use crate::input::{BatchFormat, open_datasets};
use crate::resolve::ResolvedProcess;
use crate::{Observer, TrainError};
use std::collections::BTreeMap;
use std::sync::Arc;
use stratus_base::AlignedBytes;
use stratus_data::{Loader, LoaderConfig, Order};
use stratus_engine::{Clock, EngineError, Phase, Program, Role};
use stratus_experiment::Experiment;
use stratus_optimise::Model;
use stratus_optimise::quantise::Histogram;
use stratus_run::quantisation::Quantisation;

/// Images per batch: all maps of a batch are in memory at once.
const BATCH: usize = 4;

/// The number of pixels of an image whose predictions are compared, spread evenly.
const MAX_COMPARED_PIXELS: usize = 1 << 14;

/// A network in inference form with calibration images.
pub(super) struct Calibration<'a> {
    model: &'a Model,
    resolved: ResolvedProcess,
    device: OpenDevice,
    batches: Vec<Batch>,
}

/// A batch of images in the format of the program.
struct Batch {
    images: AlignedBytes,
    labels: Vec<i32>,
    samples: usize,
}

/// The logits of calibration images, `[images, classes, pixels]`.
pub(super) struct Logits {
    values: Vec<f32>,
    classes: usize,
    pixels: usize,
}

impl<'a> Calibration<'a> {
    /// Reads `images` training images, drawn by the experiment's seed, as in validation.
    ///
    /// # Errors
    /// If the data or the device cannot be opened.
    pub fn new(
        experiment: &Experiment,
        model: &'a Model,
        images: usize,
        observer: &mut dyn Observer,
    ) -> Result<Self, TrainError> {
        let mut experiment = experiment.clone().with_overrides(&[("train.precision", "f32")])?;
        experiment.validation.batch_size = Some(BATCH);
        let train = open_datasets(&experiment)?.train;
        let device = device::open(&experiment.train)?;
        let resolved = ResolvedProcess::new(&experiment, train.as_ref(), &model.graph, &device)?;
        if images > train.len() {
            observer.warn(&format!("calibration uses all {} training images", train.len()));
        }
        let mut calibration = Self { model, resolved, device, batches: Vec::new() };
        let EvaluationSession { session, evaluate, .. } = calibration.session(None, false)?;
        let format = BatchFormat::from_plan(session.plan(evaluate));
        drop(session);
        let config = LoaderConfig {
            order: Order::Shuffled,
            epochs: Some(1),
            ..calibration.resolved.input().evaluation(format, BATCH)
        };
        let mut loader = Loader::new(Arc::clone(&train), config)?;
        for _ in 0..images.div_ceil(BATCH) {
            let Some(batch) = loader.next()? else { break };
            let bytes = batch.images.elements::<u8>();
            let copy = AlignedBytes::zeroed(bytes.len(), "calibration images");
            let mut images = copy.map_err(|error| TrainError::Configuration {
                problem: error.to_string(),
                hint: "use fewer images with --calibration-images".to_owned(),
            })?;
            images.as_mut_slice().copy_from_slice(bytes);
            let labels = bytemuck::cast_slice(&batch.labels).to_vec();
            calibration.batches.push(Batch { images, labels, samples: batch.samples });
            loader.recycle(batch);
        }
        Ok(calibration)
    }

    /// A session with kernels that are not measured.
    fn session(
        &self,
        quantisation: Option<&Quantisation>,
        observes_maps: bool,
    ) -> Result<EvaluationSession, TrainError> {
        let form = InferenceForm {
            quantisation,
            separates_steps: true,
            observes_maps,
            first_kernels: true,
            ..InferenceForm::default()
        };
        // The warnings are those of the training, which has printed them.
        inference_session(&self.resolved, self.model, &self.device, form, &mut |_| ())
    }

    /// The number of images.
    pub fn images(&self) -> usize {
        self.batches.iter().map(|batch| batch.samples).sum()
    }

    /// The program in single precision.
    ///
    /// # Errors
    /// As [`inference_session`].
    pub fn program(&self) -> Result<Program, TrainError> {
        let EvaluationSession { session, evaluate, .. } = self.session(None, false)?;
        Ok(session.plan(evaluate).program.clone())
    }

    /// The numbers of all maps on all images, by the name of the value.
    ///
    /// # Errors
    /// If a kernel fails.
    pub fn histograms(
        &mut self,
        stopped: impl Fn() -> Result<(), TrainError>,
    ) -> Result<BTreeMap<String, Histogram>, TrainError> {
        let EvaluationSession { mut session, evaluate, .. } = self.session(None, true)?;
        let values = session.plan(evaluate).program.values.iter().enumerate();
        let maps = values.filter(|(_, value)| value.role == Role::Observed);
        let maps: Vec<(usize, String)> = maps.map(|(id, value)| (id, value.name.clone())).collect();
        let mut histograms = vec![Histogram::default(); maps.len()];
        let mut clock = Clock::disabled(session.slots(evaluate));
        for batch in &mut self.batches {
            stopped()?;
            let labels = bytemuck::cast_slice_mut(&mut batch.labels);
            session.run(evaluate, &mut batch.images, labels, &mut clock, 0)?;
            for ((id, _), histogram) in maps.iter().zip(&mut histograms) {
                // The order does not matter; padding holds zeros, and so do rows without an image.
                let bytes = session.raw_bytes(evaluate, *id)?;
                let images = bytes.len() / BATCH * batch.samples;
                histogram.add(bytemuck::cast_slice(&bytes[..images]));
            }
        }
        Ok(maps.into_iter().map(|(_, name)| name).zip(histograms).collect())
    }

    /// The logits of the first `images` images, rounded up to whole batches.
    ///
    /// # Errors
    /// If the network has no logits or a kernel fails.
    pub fn logits(
        &mut self,
        quantisation: Option<&Quantisation>,
        images: usize,
    ) -> Result<Logits, TrainError> {
        let EvaluationSession { mut session, evaluate, .. } = self.session(quantisation, false)?;
        let program = &session.plan(evaluate).program;
        let loss = program.steps.iter().find(|step| step.phase == Phase::Loss);
        let logits = loss.and_then(|step| step.inputs.first()).copied();
        let Some((id, &[_, classes, ref pixels @ ..])) = logits.map(|id| (id, &program.value(id).shape[..]))
        else {
            return Err(EngineError::InvalidRequest("the network has no predictions".to_owned()).into());
        };
        let mut logits = Logits { values: Vec::new(), classes, pixels: pixels.iter().product() };
        let mut clock = Clock::disabled(session.slots(evaluate));
        let mut memory = Vec::new();
        for batch in self.batches.iter_mut().take(images.div_ceil(BATCH)) {
            let labels = bytemuck::cast_slice_mut(&mut batch.labels);
            session.run(evaluate, &mut batch.images, labels, &mut clock, 0)?;
            session.read_f32(evaluate, id.0, &mut memory)?;
            logits.values.extend_from_slice(&memory[..memory.len() / BATCH * batch.samples]);
        }
        Ok(logits)
    }
}

impl Logits {
    /// The Kullback–Leibler divergence of other predictions from these, in nats per image or pixel.
    pub fn divergence(&self, other: &Self) -> f64 {
        let Self { classes, pixels, .. } = *self;
        let step = pixels.div_ceil(MAX_COMPARED_PIXELS).max(1);
        let (mut sum, mut count) = (0.0, 0_u64);
        let images =
            self.values.chunks_exact(classes * pixels).zip(other.values.chunks_exact(classes * pixels));
        for (these, others) in images {
            for pixel in (0..pixels).step_by(step) {
                let at = |image: &[f32], class: usize| f64::from(image[class * pixels + pixel]);
                let normaliser = |image: &[f32]| {
                    let largest = (0..classes).map(|class| at(image, class)).fold(f64::MIN, f64::max);
                    largest + (0..classes).map(|class| (at(image, class) - largest).exp()).sum::<f64>().ln()
                };
                let logs = [normaliser(these), normaliser(others)];
                for class in 0..classes {
                    let log = at(these, class) - logs[0];
                    sum += log.exp() * (log - (at(others, class) - logs[1]));
                }
                count += 1;
            }
        }
        let mean = sum / count.max(1) as f64;
        // Predictions that are not finite are the worst.
        if mean.is_nan() { f64::INFINITY } else { mean }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_that_of_the_probabilities() {
        let logits = |values: &[f32]| Logits { values: values.to_vec(), classes: 2, pixels: 1 };
        // Probabilities 1/4 and 3/4 against 1/2 each, whatever is added to all logits.
        let one = logits(&[0.0, 3.0_f32.ln()]);
        let other = logits(&[7.0, 7.0]);
        let expected = 0.25 * 0.5_f64.ln() + 0.75 * 1.5_f64.ln();
        assert!((one.divergence(&other) - expected).abs() < 1e-6);
        assert!(one.divergence(&one).abs() < 1e-12);
    }
}
