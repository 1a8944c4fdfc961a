//! What a data set looks like in numbers: class frequencies, mean and deviation of its pixels.

use crate::datasets::{Dataset, Scratch};
use crate::error::DataError;
use crate::pixels::Normalisation;

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
/// The sums are exact integers: the result depends on nothing but the pixels.
///
/// # Errors
///
/// What reading a sample gives; [`DataError::SampleSize`]; [`DataError::Empty`].
pub fn channel_statistics(dataset: &dyn Dataset) -> Result<Normalisation, DataError> {
    let [channels, height, width] = dataset.sample_shape();
    let plane = height * width;
    let mut scratch = Scratch::default();
    let mut histograms = vec![[0u64; 256]; channels];
    for index in 0..dataset.len() {
        let pixels = dataset.read(index, &mut scratch)?.pixels;
        if pixels.len() != channels * plane {
            let (dataset, expected, found) = (dataset.name().to_owned(), channels * plane, pixels.len());
            return Err(DataError::SampleSize { dataset, index, expected, found });
        }
        for (histogram, pixels) in histograms.iter_mut().zip(pixels.chunks_exact(plane.max(1))) {
            for &pixel in pixels {
                histogram[usize::from(pixel)] += 1;
            }
        }
    }
    let count = dataset.len() as f64 * plane as f64;
    if count == 0.0 {
        return Err(DataError::Empty { origin: dataset.name().to_owned() });
    }
    let moment = |histogram: &[u64; 256], power: i32| {
        let sum: u128 = histogram
            .iter()
            .enumerate()
            .map(|(value, &n)| u128::from(n) * (value as u128).pow(power as u32))
            .sum();
        sum as f64 / count / 255f64.powi(power)
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
