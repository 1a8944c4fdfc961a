//! Statistics of a data set: class counts, mean and deviation of pixels, image sizes, unreadable and empty
//! samples.

use serde::Serialize;
use stratus_measures::weights::median_frequency;

use crate::datasets::{Dataset, IGNORED, IGNORED_PIXEL, Sample, Scratch};
use crate::error::DataError;
use crate::parallel;
use crate::transform::pixels::{Normalisation, PixelOrder};

/// What [`survey`] finds. Damaged samples count for nothing but [`samples`](Self::samples).
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// All samples.
    pub samples: usize,
    /// Of every class the samples that have it: that are labelled so, or whose mask has a pixel of it.
    pub samples_per_class: Vec<u64>,
    /// What the masks hold, where there are any.
    pub masks: Option<MaskCounts>,
    /// Mean and standard deviation of every channel over all pixels, of values scaled to 0…1; `None` where no
    /// sample can be read. Grey images among coloured ones count for every channel.
    pub channels: Option<Normalisation>,
    /// The upright images' sizes; `None` where no sample can be read.
    pub sizes: Option<Sizes>,
    /// Samples that cannot be read, or whose label or mask cannot be, by index, and what is wrong with them.
    pub damaged: Vec<(u32, String)>,
    /// Samples that can be read and belong to no class, nor does a pixel of them, by index.
    pub unlabelled: Vec<u32>,
}

/// Pixels of masks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskCounts {
    /// Of every class its pixels.
    pub pixels_per_class: Vec<u64>,
    /// Of every class all pixels of the samples that have it, those of other classes and of none too.
    pub pixels_of_samples: Vec<u64>,
    /// Pixels of no class.
    pub ignored: u64,
}

/// Sizes (H, W) in pixels, by their area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// The smallest.
    pub smallest: [u32; 2],
    /// Half of the images are at most as large; of an even number the smaller of the middle two.
    pub median: [u32; 2],
    /// The largest.
    pub largest: [u32; 2],
}

impl Survey {
    /// Classes that no sample has.
    pub fn empty_classes(&self) -> impl Iterator<Item = usize> {
        (0..self.samples_per_class.len()).filter(|&class| self.samples_per_class[class] == 0)
    }

    /// The pixels of each class, or without masks its samples; and all of them, those of no class too.
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

    /// The weights of classes that make up for some being rarer than others
    /// ([`median_frequency`]). A class's frequency is the share
    /// of its pixels among those of the samples that have it; without masks, of its samples among all. `None`
    /// for classes that are not met.
    #[must_use]
    pub fn median_frequency_weights(&self) -> Vec<Option<f64>> {
        if let Some(masks) = &self.masks {
            return median_frequency(&masks.pixels_per_class, &masks.pixels_of_samples);
        }
        let all = self.samples_per_class.iter().sum();
        median_frequency(&self.samples_per_class, &vec![all; self.samples_per_class.len()])
    }
}

/// Reads every sample, on `threads` threads. All sums are exact integers: the result depends on nothing but
/// the samples.
///
/// # Errors
///
/// What is wrong with more than a sample.
pub fn survey(dataset: &dyn Dataset, threads: usize) -> Result<Survey, DataError> {
    let classes = dataset.classes();
    let states = parallel::share_out(dataset.len(), threads, |tally: &mut WorkerCounts, index| {
        let WorkerCounts { scratch, counts } = tally;
        counts.begin(classes, dataset.masks());
        let read =
            dataset.read(index, scratch).and_then(|sample| sample.check(dataset, index).map(|()| sample));
        let counted = match &read {
            Ok(sample) => counts.count(sample, index as u32),
            Err(DataError::BadSample { problem, .. }) => Err(problem.clone()),
            Err(_) => return read.map(drop),
        };
        counts.damaged.extend(counted.err().map(|problem| (index as u32, problem)));
        Ok(())
    })?;
    let mut all = Counts::default();
    all.begin(classes, dataset.masks());
    states.into_iter().for_each(|tally| all.add(tally.counts));
    Ok(all.into_survey(dataset.len()))
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
    /// How often each value is met: in grey images, and in each channel of the others.
    grey: Vec<[u64; 256]>,
    coloured: Vec<[u64; 256]>,
    sizes: Vec<[u32; 2]>,
    damaged: Vec<(u32, String)>,
    unlabelled: Vec<u32>,
}

impl Counts {
    /// Makes room for so many classes, once.
    fn begin(&mut self, classes: usize, masks: bool) {
        self.samples_per_class.resize(classes, 0);
        if masks {
            let masks = self.masks.get_or_insert_default();
            masks.pixels_per_class.resize(classes, 0);
            masks.pixels_of_samples.resize(classes, 0);
        }
    }

    fn count(&mut self, sample: &Sample<'_>, index: u32) -> Result<(), String> {
        let classes = self.samples_per_class.len();
        let [channels, height, width] = sample.shape;
        if let Some(masks) = &mut self.masks {
            let mask = sample.mask.unwrap_or_default();
            if mask.len() != height * width {
                return Err(format!("its mask has {} pixels, but the image is {height}×{width}", mask.len()));
            }
            let mut met = [0; 256];
            tally(&mut met, mask, 1);
            let wrong = (classes..usize::from(IGNORED_PIXEL)).find(|&class| met[class] > 0);
            if let Some(class) = wrong {
                return Err(format!("class {class} in its mask is out of range: there are {classes}"));
            }
            for (class, &pixels) in met[..classes].iter().enumerate().filter(|(_, pixels)| **pixels > 0) {
                self.samples_per_class[class] += 1;
                masks.pixels_per_class[class] += pixels;
                masks.pixels_of_samples[class] += mask.len() as u64;
            }
            let ignored = met[usize::from(IGNORED_PIXEL)];
            masks.ignored += ignored;
            if ignored == mask.len() as u64 {
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
                    tally(histogram, &sample.pixels[channel * plane..(channel + 1) * plane], 1);
                }
                PixelOrder::Interleaved => tally(histogram, &sample.pixels[channel..], channels),
            }
        }
        // Sides have 32 bits at most: all pixels lie in memory.
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
    }

    fn into_survey(mut self, samples: usize) -> Survey {
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
        let (mean, std): (Vec<f32>, Vec<f32>) = histograms.iter().map(moments).unzip();
        self.sizes
            .sort_unstable_by_key(|&[height, width]| (u64::from(height) * u64::from(width), height, width));
        let at = |index: usize| self.sizes.get(index).copied();
        let last = self.sizes.len().saturating_sub(1);
        let sizes = at(0).zip(at(last / 2)).zip(at(last));
        self.damaged.sort_unstable();
        self.unlabelled.sort_unstable();
        Survey {
            samples,
            samples_per_class: self.samples_per_class,
            masks: self.masks,
            channels: (!mean.is_empty()).then_some(Normalisation { mean, std }),
            sizes: sizes.map(|((smallest, median), largest)| Sizes { smallest, median, largest }),
            damaged: self.damaged,
            unlabelled: self.unlabelled,
        }
    }
}

/// Mean and standard deviation of values that are met so often, scaled to 0…1.
fn moments(histogram: &[u64; 256]) -> (f32, f32) {
    let moment = |power: u32| {
        let sum: u128 =
            histogram.iter().zip(0u128..).map(|(&count, value)| u128::from(count) * value.pow(power)).sum();
        let count: u64 = histogram.iter().sum();
        sum as f64 / count as f64 / 255f64.powi(power as i32)
    };
    let mean = moment(1);
    (mean as f32, (moment(2) - mean * mean).max(0.0).sqrt() as f32)
}

/// Counts every `step`-th value.
fn tally(histogram: &mut [u64; 256], values: &[u8], step: usize) {
    values.iter().step_by(step).for_each(|&value| histogram[usize::from(value)] += 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples_per_class: &[u64], masks: Option<MaskCounts>) -> Vec<Option<f64>> {
        let survey = Survey {
            samples: 1,
            samples_per_class: samples_per_class.to_vec(),
            masks,
            channels: None,
            sizes: None,
            damaged: Vec::new(),
            unlabelled: Vec::new(),
        };
        survey.median_frequency_weights()
    }

    #[test]
    fn rare_classes_weigh_more() {
        // Frequencies 1/8, 1/2, 1/4 and none; their median is 1/4.
        let masks = MaskCounts {
            pixels_per_class: vec![10, 40, 5, 0],
            pixels_of_samples: vec![80, 80, 20, 0],
            ignored: 25,
        };
        assert_eq!(of(&[4, 4, 1, 0], Some(masks)), [Some(2.0), Some(0.5), Some(1.0), None]);
        // 1/8, 5/8, 2/8: the median of an even number lies between the middle two.
        assert_eq!(of(&[1, 5, 2], None), [Some(2.0), Some(0.4), Some(1.0)]);
        assert_eq!(of(&[1, 3], None), [Some(2.0), Some(2.0 / 3.0)]);
        assert_eq!(of(&[0, 0], None), [None, None]);
        assert_eq!(of(&[], None), []);
    }
}
