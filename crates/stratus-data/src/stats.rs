//! Statistics of a data set: class counts, mean and deviation of pixels, image sizes, unreadable and empty
//! samples.

use serde::Serialize;
use stratus_measures::weights::median_frequency;

use crate::dataset::{Dataset, IGNORED, IGNORED_PIXEL, Sample, Scratch, TargetKind};
use crate::duplicates::HashedImage;
use crate::error::DataError;
use crate::parallel;
pub use crate::target_stats::{LabelPair, TargetStatistics, frequent_pairs, target_statistics};
use crate::transform::pixels::{Normalisation, PixelOrder};

/// Statistics of a data set. Damaged samples count only in [`samples`](Self::samples).
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetStats {
    /// The number of samples.
    pub samples: usize,
    /// Per class: the samples with this label, or with a mask pixel of this class. Per target: the samples
    /// with the label, or with a number.
    pub samples_per_class: Vec<u64>,
    /// The pixel counts of masks, if there are any.
    pub masks: Option<MaskCounts>,
    /// Mean and standard deviation of each channel over all pixels, scaled to 0…1; `None` if no sample can be
    /// read. Grey images among coloured ones count for every channel.
    pub channels: Option<Normalisation>,
    /// The sizes of upright images; `None` if no sample can be read.
    pub sizes: Option<ImageSizes>,
    /// Samples with unreadable image, label or mask, by index, with the problem.
    pub damaged: Vec<(u32, String)>,
    /// Readable samples without a class, a mask pixel of a class, or a target, by index.
    pub unlabelled: Vec<u32>,
}

/// Pixel counts of masks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskCounts {
    /// Per class: its pixels.
    pub pixels_per_class: Vec<u64>,
    /// Per class: all pixels of the images that contain it.
    pub pixels_of_samples: Vec<u64>,
    /// Ignored pixels.
    pub ignored: u64,
}

/// Image sizes (H, W) in pixels, ordered by area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ImageSizes {
    /// The smallest.
    pub smallest: [u32; 2],
    /// The median; for an even number of images the smaller of the middle two.
    pub median: [u32; 2],
    /// The largest.
    pub largest: [u32; 2],
}

impl DatasetStats {
    /// The classes without samples.
    pub fn empty_classes(&self) -> impl Iterator<Item = usize> {
        (0..self.samples_per_class.len()).filter(|&class| self.samples_per_class[class] == 0)
    }

    /// The pixels of each class, or its samples without masks, and the total including ignored ones.
    #[must_use]
    pub fn class_counts(&self) -> (&[u64], u64) {
        match &self.masks {
            Some(masks) => {
                let counts = &masks.pixels_per_class;
                (counts, counts.iter().sum::<u64>() + masks.ignored)
            }
            None => {
                let all = self.samples_per_class.iter().sum::<u64>() + self.unlabelled.len() as u64;
                (&self.samples_per_class, all)
            }
        }
    }

    /// The class weights of median frequency balancing ([`median_frequency`]). The frequency of a class is
    /// its share of the pixels of the images that contain it; without masks, its share of all samples. `None`
    /// for classes that do not occur.
    #[must_use]
    pub fn median_frequency_weights(&self) -> Vec<Option<f64>> {
        if let Some(masks) = &self.masks {
            return median_frequency(&masks.pixels_per_class, &masks.pixels_of_samples);
        }
        let all = self.samples_per_class.iter().sum();
        median_frequency(&self.samples_per_class, &vec![all; self.samples_per_class.len()])
    }
}

/// Computes statistics by reading every sample, on `threads` threads. All sums are exact integers: the result
/// depends only on the samples.
///
/// # Errors
///
/// If more than a single sample cannot be read.
pub fn compute_stats(dataset: &dyn Dataset, threads: usize) -> Result<DatasetStats, DataError> {
    Ok(compute(dataset, threads, false)?.0)
}

/// As [`compute_stats`], with the hashes of all readable images, sorted.
///
/// # Errors
///
/// If more than a single sample cannot be read.
pub fn compute_stats_and_hashes(
    dataset: &dyn Dataset,
    threads: usize,
) -> Result<(DatasetStats, Vec<HashedImage>), DataError> {
    compute(dataset, threads, true)
}

fn compute(
    dataset: &dyn Dataset,
    threads: usize,
    hashes_images: bool,
) -> Result<(DatasetStats, Vec<HashedImage>), DataError> {
    let classes = dataset.classes();
    let states = parallel::for_each_parallel(dataset.len(), threads, |worker: &mut WorkerCounts, index| {
        let WorkerCounts { scratch, counts } = worker;
        counts.begin(classes, dataset.has_masks());
        let read =
            dataset.read(index, scratch).and_then(|sample| sample.check(dataset, index).map(|()| sample));
        let counted = match &read {
            Ok(sample) => {
                let targets = dataset.targets(index)?;
                if hashes_images {
                    counts.hashes.push(HashedImage::new(sample, index as u32).with_targets(targets));
                }
                counts.count(sample, index as u32, dataset.target_kind(), targets)
            }
            Err(DataError::BadSample { problem, .. }) => Err(problem.clone()),
            Err(_) => return read.map(drop),
        };
        counts.damaged.extend(counted.err().map(|problem| (index as u32, problem)));
        Ok(())
    })?;
    let mut all = Counts::default();
    all.begin(classes, dataset.has_masks());
    states.into_iter().for_each(|worker| all.add(worker.counts));
    let mut hashes = std::mem::take(&mut all.hashes);
    hashes.sort_unstable();
    Ok((all.into_stats(dataset.len()), hashes))
}

/// The state of a thread.
#[derive(Default)]
struct WorkerCounts {
    scratch: Scratch,
    counts: Counts,
}

/// Sums over some of the samples.
#[derive(Default)]
struct Counts {
    samples_per_class: Vec<u64>,
    masks: Option<MaskCounts>,
    /// The histogram of the values of grey images.
    grey: Vec<[u64; 256]>,
    /// The histogram of each channel of the other images.
    coloured: Vec<[u64; 256]>,
    sizes: Vec<[u32; 2]>,
    damaged: Vec<(u32, String)>,
    unlabelled: Vec<u32>,
    hashes: Vec<HashedImage>,
}

impl Counts {
    /// Allocates counts for `classes` classes, once.
    fn begin(&mut self, classes: usize, masks: bool) {
        self.samples_per_class.resize(classes, 0);
        if masks {
            let masks = self.masks.get_or_insert_default();
            masks.pixels_per_class.resize(classes, 0);
            masks.pixels_of_samples.resize(classes, 0);
        }
    }

    fn count(
        &mut self,
        sample: &Sample<'_>,
        index: u32,
        kind: Option<TargetKind>,
        targets: &[f32],
    ) -> Result<(), String> {
        let classes = self.samples_per_class.len();
        let [channels, height, width] = sample.shape;
        if let Some(masks) = &mut self.masks {
            let mask = sample.mask.unwrap_or_default();
            if mask.len() != height * width {
                return Err(format!("the mask has {} pixels, but the image is {height}×{width}", mask.len()));
            }
            let mut counts = [0; 256];
            count_values(&mut counts, mask, 1);
            let out_of_range = (classes..usize::from(IGNORED_PIXEL)).find(|&class| counts[class] > 0);
            if let Some(class) = out_of_range {
                return Err(format!("mask class {class} is out of range: there are {classes} classes"));
            }
            for (class, &pixels) in counts[..classes].iter().enumerate().filter(|(_, pixels)| **pixels > 0) {
                self.samples_per_class[class] += 1;
                masks.pixels_per_class[class] += pixels;
                masks.pixels_of_samples[class] += mask.len() as u64;
            }
            let ignored = counts[usize::from(IGNORED_PIXEL)];
            masks.ignored += ignored;
            if ignored == mask.len() as u64 {
                self.unlabelled.push(index);
            }
        } else if let Some(kind) = kind {
            for (count, target) in self.samples_per_class.iter_mut().zip(targets) {
                *count += u64::from(match kind {
                    TargetKind::Labels => *target > 0.5,
                    TargetKind::Numbers => !target.is_nan(),
                });
            }
            if targets.iter().all(|target| target.is_nan()) {
                self.unlabelled.push(index);
            }
        } else if sample.label == IGNORED {
            self.unlabelled.push(index);
        } else {
            let count = self.samples_per_class.get_mut(sample.label as usize);
            *count.ok_or_else(|| {
                format!("label {} is out of range: there are {classes} classes", sample.label)
            })? += 1;
        }
        let histograms = if channels == 1 { &mut self.grey } else { &mut self.coloured };
        histograms.resize(channels.max(histograms.len()), [0; 256]);
        for (channel, histogram) in histograms.iter_mut().enumerate().take(channels) {
            match sample.order {
                PixelOrder::Planes => {
                    let plane = sample.pixels.len() / channels;
                    count_values(histogram, &sample.pixels[channel * plane..(channel + 1) * plane], 1);
                }
                PixelOrder::Interleaved => count_values(histogram, &sample.pixels[channel..], channels),
            }
        }
        // Sides fit 32 bits, because all pixels are in memory.
        self.sizes.push(sample.upright_size().map(|length| length as u32));
        Ok(())
    }

    fn add(&mut self, other: Self) {
        let add = |sums: &mut [u64], more: &[u64]| {
            for (sum, more) in sums.iter_mut().zip(more) {
                *sum += more;
            }
        };
        add(&mut self.samples_per_class, &other.samples_per_class);
        if let (Some(masks), Some(more)) = (&mut self.masks, &other.masks) {
            add(&mut masks.pixels_per_class, &more.pixels_per_class);
            add(&mut masks.pixels_of_samples, &more.pixels_of_samples);
            masks.ignored += more.ignored;
        }
        for (all, more) in [(&mut self.grey, other.grey), (&mut self.coloured, other.coloured)] {
            all.resize(all.len().max(more.len()), [0; 256]);
            for (all, more) in all.iter_mut().zip(more) {
                all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
            }
        }
        self.sizes.extend(other.sizes);
        self.damaged.extend(other.damaged);
        self.unlabelled.extend(other.unlabelled);
        self.hashes.extend(other.hashes);
    }

    fn into_stats(mut self, samples: usize) -> DatasetStats {
        let mut histograms = self.coloured;
        match (self.grey.first(), histograms.is_empty()) {
            (Some(_), true) => histograms = self.grey,
            (Some(grey), false) => {
                histograms
                    .iter_mut()
                    .for_each(|all| all.iter_mut().zip(grey).for_each(|(all, more)| *all += more));
            }
            (None, _) => {}
        }
        let (mean, std): (Vec<f32>, Vec<f32>) = histograms.iter().map(mean_and_std).unzip();
        self.sizes
            .sort_unstable_by_key(|&[height, width]| (u64::from(height) * u64::from(width), height, width));
        let at = |index: usize| self.sizes.get(index).copied();
        let last = self.sizes.len().saturating_sub(1);
        let sizes = at(0).zip(at(last / 2)).zip(at(last));
        self.damaged.sort_unstable();
        self.unlabelled.sort_unstable();
        DatasetStats {
            samples,
            samples_per_class: self.samples_per_class,
            masks: self.masks,
            channels: (!mean.is_empty()).then_some(Normalisation { mean, std }),
            sizes: sizes.map(|((smallest, median), largest)| ImageSizes { smallest, median, largest }),
            damaged: self.damaged,
            unlabelled: self.unlabelled,
        }
    }
}

/// Mean and standard deviation of a histogram, scaled to 0…1.
fn mean_and_std(histogram: &[u64; 256]) -> (f32, f32) {
    let moment = |power: u32| {
        let sum: u128 =
            histogram.iter().zip(0u128..).map(|(&count, value)| u128::from(count) * value.pow(power)).sum();
        let count: u64 = histogram.iter().sum();
        sum as f64 / count as f64 / 255f64.powi(power as i32)
    };
    let mean = moment(1);
    (mean as f32, (moment(2) - mean * mean).max(0.0).sqrt() as f32)
}

/// Adds every `step`-th value to a histogram.
fn count_values(histogram: &mut [u64; 256], values: &[u8], step: usize) {
    values.iter().step_by(step).for_each(|&value| histogram[usize::from(value)] += 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(samples_per_class: &[u64], masks: Option<MaskCounts>) -> Vec<Option<f64>> {
        let stats = DatasetStats {
            samples: 1,
            samples_per_class: samples_per_class.to_vec(),
            masks,
            channels: None,
            sizes: None,
            damaged: Vec::new(),
            unlabelled: Vec::new(),
        };
        stats.median_frequency_weights()
    }

    #[test]
    fn rare_classes_get_larger_weights() {
        // Frequencies 1/8, 1/2, 1/4 and none; their median is 1/4.
        let masks = MaskCounts {
            pixels_per_class: vec![10, 40, 5, 0],
            pixels_of_samples: vec![80, 80, 20, 0],
            ignored: 25,
        };
        assert_eq!(weights(&[4, 4, 1, 0], Some(masks)), [Some(2.0), Some(0.5), Some(1.0), None]);
        // 1/8, 5/8, 2/8: the median of an even number of frequencies is the mean of the middle two.
        assert_eq!(weights(&[1, 5, 2], None), [Some(2.0), Some(0.4), Some(1.0)]);
        assert_eq!(weights(&[1, 3], None), [Some(2.0), Some(2.0 / 3.0)]);
        assert_eq!(weights(&[0, 0], None), [None, None]);
        assert_eq!(weights(&[], None), []);
    }
}
