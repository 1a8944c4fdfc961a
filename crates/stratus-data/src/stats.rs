//! What a data set looks like in numbers: class frequencies, mean and deviation of its pixels, samples that cannot be decoded.

use std::thread;

use crate::datasets::{Dataset, Scratch};
use crate::error::DataError;
use crate::pixels::{Normalisation, PixelOrder};

/// Samples of each class: `dataset.classes()` numbers.
///
/// # Errors
///
/// What reading a label gives; [`DataError::LabelOutOfRange`].
pub fn class_frequencies(dataset: &dyn Dataset) -> Result<Vec<u64>, DataError> {
    let mut counts = vec![0; dataset.classes()];
    for index in 0..dataset.len() {
        let label = dataset.label(index)?;
        match counts.get_mut(label as usize) {
            Some(count) => *count += 1,
            None => {
                return Err(DataError::LabelOutOfRange {
                    origin: dataset.name().to_owned(),
                    index,
                    label,
                    classes: dataset.classes(),
                });
            }
        }
    }
    Ok(counts)
}

/// Mean and standard deviation of every channel over all pixels of all samples, of values scaled to 0…1.
///
/// The sums are exact integers: the result depends on nothing but the pixels. Grey images among coloured ones count for every channel.
///
/// # Errors
///
/// What reading a sample gives; [`DataError::SampleSize`]; [`DataError::Empty`].
pub fn channel_statistics(dataset: &dyn Dataset) -> Result<Normalisation, DataError> {
    let mut scratch = Scratch::default();
    let mut histograms: Vec<[u64; 256]> = Vec::new();
    for index in 0..dataset.len() {
        let sample = dataset.read(index, &mut scratch)?;
        sample.check(dataset, index)?;
        let channels = sample.shape[0];
        if histograms.len() < channels {
            // Grey images met before count for every channel.
            let grey = histograms.first().copied().unwrap_or([0; 256]);
            histograms.resize(channels, grey);
        }
        let repeated = histograms.len() / channels;
        for (channel, histogram) in histograms.iter_mut().enumerate() {
            let channel = if repeated > 1 { 0 } else { channel };
            match sample.order {
                PixelOrder::Planes => {
                    let plane = sample.pixels.len() / channels;
                    count(histogram, &sample.pixels[channel * plane..(channel + 1) * plane], 1);
                }
                PixelOrder::Interleaved => count(histogram, &sample.pixels[channel..], channels),
            }
        }
    }
    if histograms.iter().flatten().all(|&count| count == 0) {
        return Err(DataError::Empty { origin: dataset.name().to_owned() });
    }
    let moment = |histogram: &[u64; 256], power: i32| {
        let sum: u128 = histogram
            .iter()
            .enumerate()
            .map(|(value, &n)| u128::from(n) * (value as u128).pow(power as u32))
            .sum();
        let count: u64 = histogram.iter().sum();
        sum as f64 / count as f64 / 255f64.powi(power)
    };
    let (mean, std) = histograms
        .iter()
        .map(|histogram| {
            let mean = moment(histogram, 1);
            (mean as f32, (moment(histogram, 2) - mean * mean).max(0.0).sqrt() as f32)
        })
        .unzip();
    Ok(Normalisation { mean, std })
}

/// Decodes every sample, on `threads` threads, and gives those that cannot be: index and problem, in order.
///
/// # Errors
///
/// What is wrong with more than a sample.
pub fn damaged_samples(dataset: &dyn Dataset, threads: usize) -> Result<Vec<(u32, String)>, DataError> {
    let threads = threads.clamp(1, dataset.len().max(1));
    let look = |first: usize| {
        let mut scratch = Scratch::default();
        let mut damaged = Vec::new();
        for index in (first..dataset.len()).step_by(threads) {
            let outcome = dataset.read(index, &mut scratch).and_then(|sample| sample.check(dataset, index));
            match outcome {
                Ok(()) => {}
                Err(DataError::BadSample { problem, .. }) => damaged.push((index as u32, problem)),
                Err(error) => return Err(error),
            }
        }
        Ok(damaged)
    };
    let mut damaged = thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|first| scope.spawn(move || look(first))).collect();
        let mut all = look(0)?;
        for worker in workers {
            // A panic goes on in this thread.
            all.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok::<_, DataError>(all)
    })?;
    damaged.sort_unstable_by_key(|(index, _)| *index);
    Ok(damaged)
}

fn count(histogram: &mut [u64; 256], pixels: &[u8], step: usize) {
    pixels.iter().step_by(step).for_each(|&pixel| histogram[usize::from(pixel)] += 1);
}
