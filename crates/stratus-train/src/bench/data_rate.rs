//! Measures the input pipeline alone: reading, decoding, augmentation, batches.

use crate::TrainError;
use crate::device::OpenDevice;
use crate::input::{BatchFormat, InputPipeline, open_dataset};
use crate::resolve::engine_precision;
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;
use stratus_data::{Dataset, Element, Layout, Loader, LoaderConfig, Scratch, Split};
use stratus_engine::DType;
use stratus_experiment::Experiment;

/// Throughput of the input pipeline, in images per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataRate {
    /// The data set.
    pub dataset: String,
    /// The number of samples.
    pub samples: usize,
    /// Seconds that opening it took.
    pub open_s: f64,
    /// Bytes of memory that the open data set takes.
    pub resident_bytes: u64,
    /// Channels, height, width of a batch's images.
    pub shape: [usize; 3],
    /// The type of their elements.
    pub precision: DType,
    /// Loader threads.
    pub workers: usize,
    /// Batches that are read ahead.
    pub batches: usize,
    /// Images per round.
    pub images: usize,
    /// The JPEG decoder; `None` without JPEG files.
    pub jpeg: Option<String>,
    /// Reading and decoding whole images on one thread, per round. Empty if epochs were measured.
    pub decoded: Vec<f64>,
    /// Whole batches by all loader threads, per round.
    pub delivered: Vec<f64>,
    /// Seconds until the first batch, per epoch. Empty unless epochs were measured.
    pub first_batch_s: Vec<f64>,
    /// Throughput after the first batch, per epoch.
    pub after_first: Vec<f64>,
}

impl DataRate {
    /// The median over rounds.
    #[must_use]
    pub fn median(rounds: &[f64]) -> f64 {
        stratus_base::median(&mut rounds.to_vec()).unwrap_or(f64::NAN)
    }
}

/// Measures `rounds` rounds of at least `images` training images, in NHWC batches for `device`. Each round
/// first discards at least a batch per loader thread, since these were started before the clock.
///
/// # Errors
/// If the data set cannot be opened or read.
pub fn measure_rounds(
    experiment: &Experiment,
    device: &OpenDevice,
    images: usize,
    rounds: usize,
) -> Result<DataRate, TrainError> {
    let (dataset, config, mut rate) = open(experiment, device)?;
    let batches = images.div_ceil(config.batch_size);
    rate.images = batches * config.batch_size;
    for _ in 0..rounds {
        let mut scratch = Scratch::default();
        rate.decoded.push(decoded(dataset.as_ref(), rate.images, &mut scratch)?);
        rate.jpeg = scratch.images.jpeg_library().map(ToString::to_string);
        rate.delivered.push(delivered(&dataset, &config, batches)?);
    }
    Ok(rate)
}

/// Measures `rounds` epochs of training data, each from the start of its loader, so that fetching remote data
/// is included. Nothing is read before the first round.
///
/// # Errors
/// As [`measure_rounds`].
pub fn measure_epochs(
    experiment: &Experiment,
    device: &OpenDevice,
    rounds: usize,
) -> Result<DataRate, TrainError> {
    let (dataset, mut config, mut rate) = open(experiment, device)?;
    for round in 0..rounds {
        config.start.epoch = round as u32;
        config.epochs = Some(config.start.epoch + 1);
        let started = Instant::now();
        let mut loader = Loader::new(Arc::clone(&dataset), config.clone())?;
        let mut first = None;
        rate.images = 0;
        while let Some(batch) = loader.next()? {
            rate.images += batch.samples;
            first.get_or_insert((started.elapsed().as_secs_f64(), batch.samples));
            loader.recycle(batch);
        }
        let seconds = started.elapsed().as_secs_f64();
        rate.jpeg = loader.jpeg_library().map(ToString::to_string);
        let (first_s, samples) = first.unwrap_or_default();
        rate.delivered.push(rate.images as f64 / seconds);
        rate.first_batch_s.push(first_s);
        rate.after_first.push((rate.images - samples) as f64 / (seconds - first_s));
    }
    Ok(rate)
}

/// The seconds that a core takes to read, decode and augment a training image, until it is in a batch:
/// batches of one loader thread until half a second has passed.
///
/// # Errors
/// If the data set cannot be opened or read.
pub fn measure_core_seconds(experiment: &Experiment, device: &OpenDevice) -> Result<f64, TrainError> {
    const MEASURED_S: f64 = 0.5;
    const MAX_BATCH: usize = 32;
    let mut experiment = experiment.clone();
    experiment.data.workers = Some(1);
    experiment.train.batch_size = experiment.train.batch_size.min(MAX_BATCH);
    let (dataset, config, _) = open(&experiment, device)?;
    let mut loader = Loader::new(dataset, config)?;
    let mut next = || -> Result<usize, TrainError> {
        let Some(batch) = loader.next()? else { return Ok(0) };
        let samples = batch.samples;
        loader.recycle(batch);
        Ok(samples)
    };
    // The thread starts, and the first files are opened.
    next()?;
    let started = Instant::now();
    let mut images = 0;
    while started.elapsed().as_secs_f64() < MEASURED_S {
        match next()? {
            0 => break,
            samples => images += samples,
        }
    }
    Ok(started.elapsed().as_secs_f64() / images.max(1) as f64)
}

/// Opens the training data; returns its loader's configuration, and a rate without rounds.
fn open(
    experiment: &Experiment,
    device: &OpenDevice,
) -> Result<(Arc<dyn Dataset>, LoaderConfig, DataRate), TrainError> {
    let started = Instant::now();
    let dataset = open_dataset(experiment, Split::Train)?;
    let input = InputPipeline::new(experiment, dataset.as_ref());
    let open_s = started.elapsed().as_secs_f64();
    let takes_bytes = device.backend.prefers_byte_images() && input.training_scale_shifts().is_some();
    let facts = device.facts();
    let precision = engine_precision(facts.precision(experiment.train.precision)?).compute();
    let (precision, element) = match precision {
        _ if takes_bytes => (DType::U8, Element::U8),
        DType::Bf16 => (precision, Element::Bf16),
        DType::F16 => (precision, Element::F16),
        _ => (DType::F32, Element::F32),
    };
    let mut config = input.training(BatchFormat { element, layout: Layout::Nhwc });
    config.workers = experiment.data.workers.or(facts.loader_threads).unwrap_or(1);
    config.batch_size = config.batch_size.min(dataset.len());
    let config = input.read_ahead(dataset.as_ref(), config)?;
    let rate = DataRate {
        dataset: dataset.name().to_owned(),
        samples: dataset.len(),
        open_s,
        resident_bytes: dataset.resident_bytes(),
        shape: input.shape,
        precision,
        workers: config.workers,
        batches: config.slots,
        images: 0,
        jpeg: None,
        decoded: Vec::new(),
        delivered: Vec::new(),
        first_batch_s: Vec::new(),
        after_first: Vec::new(),
    };
    Ok((dataset, config, rate))
}

fn decoded(dataset: &dyn Dataset, images: usize, scratch: &mut Scratch) -> Result<f64, TrainError> {
    let started = Instant::now();
    for image in 0..images {
        std::hint::black_box(dataset.read(image % dataset.len(), scratch)?.pixels);
    }
    Ok(images as f64 / started.elapsed().as_secs_f64())
}

fn delivered(dataset: &Arc<dyn Dataset>, config: &LoaderConfig, batches: usize) -> Result<f64, TrainError> {
    let mut loader = Loader::new(Arc::clone(dataset), config.clone())?;
    let mut deliver = |batches: usize| -> Result<usize, TrainError> {
        let mut samples = 0;
        for _ in 0..batches {
            let Some(batch) = loader.next()? else { break };
            samples += batch.samples;
            loader.recycle(batch);
        }
        Ok(samples)
    };
    // From here on the number of batches in progress is the same at the start and the end of the measurement.
    deliver(config.slots)?;
    let started = Instant::now();
    let samples = deliver(batches)?;
    Ok(samples as f64 / started.elapsed().as_secs_f64())
}
