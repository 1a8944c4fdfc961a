//! Measuring what brings a network its images: the loader alone, with everything that the configuration asks of it.

use crate::compile::open_dataset;
use crate::feed::{self, Form};
use crate::{Experiment, TrainError};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;
use stratus_data::{Dataset, Element, Layout, Loader, LoaderConfig, Scratch, Split};
use stratus_engine::Precision;

/// How fast images are made ready, in images a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataRate {
    /// The data set.
    pub dataset: String,
    /// Channels, height, width of a batch's images.
    pub shape: [usize; 3],
    /// The type of their elements.
    pub precision: Precision,
    /// Threads that make them ready.
    pub workers: usize,
    /// Images of a round.
    pub images: usize,
    /// What decodes the JPEG files among them; `None` where there are none.
    pub jpeg: Option<String>,
    /// Each round: reading and decoding whole images on one thread, nothing else.
    pub decoded: Vec<f64>,
    /// Each round, right after: whole batches, by all workers.
    pub delivered: Vec<f64>,
}

impl DataRate {
    /// The medians of the rounds: images decoded, and delivered.
    #[must_use]
    pub fn medians(&self) -> [f64; 2] {
        [&self.decoded, &self.delivered].map(|rounds| {
            let mut rounds = rounds.clone();
            rounds.sort_by(f64::total_cmp);
            rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
        })
    }
}

/// Measures `rounds` rounds of at least `images` images of an experiment's training data, in channels-last batches of `precision`. In every round
/// a batch or more for each worker is thrown away first, so that none was made ready before.
///
/// # Errors
/// Where the data set cannot be opened or read.
pub fn data(
    experiment: &Experiment,
    precision: Precision,
    images: usize,
    rounds: usize,
) -> Result<DataRate, TrainError> {
    let (dataset, shape) = open_dataset(experiment, Split::Train)?;
    let element = if precision == Precision::Bf16 { Element::Bf16 } else { Element::F32 };
    let mut config = feed::training(experiment, shape, Form { element, layout: Layout::Nhwc });
    config.batch_size = config.batch_size.min(dataset.len());
    config.slots = config.workers + 1;
    let batches = images.div_ceil(config.batch_size);
    let mut rate = DataRate {
        dataset: dataset.name().to_owned(),
        shape,
        precision,
        workers: config.workers,
        images: batches * config.batch_size,
        jpeg: None,
        decoded: Vec::new(),
        delivered: Vec::new(),
    };
    for _ in 0..rounds {
        let mut scratch = Scratch::default();
        rate.decoded.push(decoded(dataset.as_ref(), rate.images, &mut scratch)?);
        rate.jpeg = scratch.images.jpeg_library().map(ToString::to_string);
        rate.delivered.push(delivered(&dataset, &config, batches)?);
    }
    Ok(rate)
}

fn decoded(dataset: &dyn Dataset, images: usize, scratch: &mut Scratch) -> Result<f64, TrainError> {
    let begun = Instant::now();
    for image in 0..images {
        std::hint::black_box(dataset.read(image % dataset.len(), scratch)?.pixels);
    }
    Ok(images as f64 / begun.elapsed().as_secs_f64())
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
    // From here on as many batches are under way at the end of the time as at its beginning.
    deliver(config.slots)?;
    let begun = Instant::now();
    let samples = deliver(batches)?;
    Ok(samples as f64 / begun.elapsed().as_secs_f64())
}
