//! Synthetic images of any shape: every network can be trained and measured without files, at the same small
//! cost per image.
//!
//! An image is the pattern of its class, with a strength that varies by image, plus noise: a function of
//! (seed, sample) only. The pattern is coarse, so that it survives pooling and networks can learn it.

use std::thread;
use std::time::Duration;

use stratus_random::{Purpose, Stream};

use crate::dataset::{Dataset, Sample, Scratch};
use crate::datasets::entry::{DatasetEntry, OpenOptions, SyntheticOptions};
use crate::datasets::split::Split;
use crate::error::DataError;
use crate::geometry::{Orientation, shape_text};
use crate::transform::pixels::{Normalisation, PixelOrder};

const NAME: &str = "synthetic";
/// The number of cells of a pattern along either side, for each channel.
const PATTERN_CELLS: usize = 4;
/// The length of the shared noise table. Each image starts at a random offset: fresh noise would cost more
/// than a small network.
const NOISE_LEN: usize = 1 << 16;
/// The maximum number of elements of an image.
const MAX_IMAGE_ELEMENTS: usize = 1 << 30;

/// The registry entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "synthetic images of any shape, size and number of classes; needs no files",
    open: |_, split, options| Ok(Box::new(Synthetic::new(split, options)?)),
    files: &[],
    mirrors: &[],
};

/// Synthetic images.
#[derive(Clone, Debug)]
pub struct Synthetic {
    images: usize,
    classes: usize,
    shape: [usize; 3],
    seed: u64,
    delay: Duration,
    /// The index of the first image, among the images of all splits.
    first: u64,
    /// Values of −31 to 32, read cyclically from any offset.
    noise: Vec<i8>,
}

impl Synthetic {
    /// Creates a split of the data set that the options describe. No two splits share an image.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidOption`]: an invalid shape or number.
    pub fn new(split: Split, options: &OpenOptions) -> Result<Self, DataError> {
        let SyntheticOptions { images, validation_images, classes, delay } = options.synthetic;
        let (key, images, part) = match split {
            Split::Train => ("data.synthetic.images", images, 0),
            Split::Validation => ("data.synthetic.validation_images", validation_images, 1),
            Split::Test => ("data.synthetic.validation_images", validation_images, 2),
        };
        for (key, number) in [(key, images), ("data.synthetic.classes", classes)] {
            if u32::try_from(number).is_err() || number == 0 {
                let problem = format!("is {number}, expected 1 to {}", u32::MAX);
                return Err(DataError::InvalidOption { key, problem });
            }
        }
        let bytes = options.shape.iter().try_fold(1usize, |bytes, &length| bytes.checked_mul(length));
        if !bytes.is_some_and(|bytes| (1..=MAX_IMAGE_ELEMENTS).contains(&bytes)) {
            let problem = format!(
                "is {}, but an image must have 1 to {MAX_IMAGE_ELEMENTS} elements",
                shape_text(options.shape)
            );
            return Err(DataError::InvalidOption { key: "data.shape", problem });
        }
        let mut stream = Stream::new(options.seed, Purpose::Synthetic, u64::MAX, 0);
        let noise = (0..NOISE_LEN).map(|_| (stream.below(64) as i8) - 31).collect();
        let (shape, seed) = (options.shape, options.seed);
        Ok(Self { images, classes, shape, seed, delay, first: part << 32, noise })
    }

    /// Classes alternate, so that all have equally many images.
    fn class_of(&self, index: usize) -> usize {
        index % self.classes
    }

    fn check_index(&self, index: usize) -> Result<(), DataError> {
        if index < self.images {
            return Ok(());
        }
        Err(DataError::SampleOutOfRange { dataset: NAME.to_owned(), index, len: self.images })
    }
}

impl Dataset for Synthetic {
    fn name(&self) -> &str {
        NAME
    }

    fn len(&self) -> usize {
        self.images
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        Some(self.shape)
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.check_index(index)?;
        Ok(self.class_of(index) as u32)
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.check_index(index)?;
        if !self.delay.is_zero() {
            thread::sleep(self.delay);
        }
        let [channels, height, width] = self.shape;
        let class = self.class_of(index);
        let mut image = Stream::new(self.seed, Purpose::Synthetic, self.first + index as u64, 1);
        // Half to full strength.
        let strength = 128 + image.below(129) as i32;
        let mut at = image.below(NOISE_LEN as u32) as usize;
        let pixels = &mut scratch.decoded;
        pixels.clear();
        pixels.reserve(channels * height * width);
        for channel in 0..channels {
            for row in 0..height {
                let cell_row = row * PATTERN_CELLS / height;
                for cell in 0..PATTERN_CELLS {
                    let cell_index = ((channel * PATTERN_CELLS + cell_row) * PATTERN_CELLS + cell) as u32;
                    let pattern =
                        Stream::new(self.seed, Purpose::Synthetic, class as u64, 2).block(cell_index)[0];
                    let level = (128 + ((((pattern >> 26) as i32 - 32) * strength) >> 8)) as i16;
                    // The columns x whose cell, x × `PATTERN_CELLS` / width, is this one.
                    let columns =
                        (cell * width).div_ceil(PATTERN_CELLS)..((cell + 1) * width).div_ceil(PATTERN_CELLS);
                    let mut left = columns.len();
                    while left > 0 {
                        let noise = &self.noise[at..NOISE_LEN.min(at + left)];
                        pixels.extend(noise.iter().map(|&noise| (level + i16::from(noise)) as u8));
                        left -= noise.len();
                        at = (at + noise.len()) % NOISE_LEN;
                    }
                }
            }
        }
        Ok(Sample {
            pixels: &scratch.decoded,
            shape: self.shape,
            dct_scaled: None,
            order: PixelOrder::Planes,
            orientation: Orientation::default(),
            label: class as u32,
            mask: None,
        })
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation { mean: vec![0.5; self.shape[0]], std: vec![0.1; self.shape[0]] }
    }

    fn resident_bytes(&self) -> u64 {
        self.noise.capacity() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats;

    fn options(shape: [usize; 3]) -> OpenOptions {
        let synthetic =
            SyntheticOptions { images: 40, validation_images: 20, classes: 4, ..SyntheticOptions::default() };
        OpenOptions { shape, synthetic, ..OpenOptions::default() }
    }

    fn pixels(set: &Synthetic, index: usize) -> Vec<u8> {
        let mut scratch = Scratch::default();
        let sample = set.read(index, &mut scratch).unwrap();
        sample.check(set, index).unwrap();
        sample.pixels.to_vec()
    }

    #[test]
    fn pixels_are_a_function_of_seed_split_and_index() {
        let set = Synthetic::new(Split::Train, &options([3, 9, 7])).unwrap();
        assert_eq!((set.len(), set.classes(), set.sample_shape()), (40, 4, Some([3, 9, 7])));
        assert_eq!(stats::compute_stats(&set, 2).unwrap().samples_per_class, [10; 4]);
        let again = Synthetic::new(Split::Train, &options([3, 9, 7])).unwrap();
        let mut seen = std::collections::HashSet::new();
        for index in 0..40 {
            assert_eq!(pixels(&set, index), pixels(&again, index));
            assert!(seen.insert(pixels(&set, index)));
        }
        let validation = Synthetic::new(Split::Validation, &options([3, 9, 7])).unwrap();
        assert_eq!(validation.len(), 20);
        assert!((0..20).all(|index| seen.insert(pixels(&validation, index))));
        let other = Synthetic::new(Split::Train, &OpenOptions { seed: 2, ..options([3, 9, 7]) }).unwrap();
        assert!((0..40).all(|index| seen.insert(pixels(&other, index))));
    }

    #[test]
    fn fills_every_shape_without_wrapping_values() {
        for shape in [[1, 1, 1], [3, 2, 3], [1, 28, 28], [4, 33, 65], [3, 300, 400]] {
            let set = Synthetic::new(Split::Train, &options(shape)).unwrap();
            let measured = stats::compute_stats(&set, 2).unwrap().channels.unwrap();
            assert_eq!(pixels(&set, 39).len(), shape.iter().product::<usize>());
            assert!(pixels(&set, 3).iter().all(|pixel| (64..=192).contains(pixel)), "{shape:?}");
            assert!(measured.mean.iter().all(|mean| (0.35..0.65).contains(mean)), "{measured:?}");
        }
    }

    /// The nearest class mean predicts the class of new images.
    #[test]
    fn classes_are_learnable() {
        let set = Synthetic::new(Split::Train, &options([3, 16, 16])).unwrap();
        let mut means = vec![vec![0f64; 3 * 256]; 4];
        for index in 0..40 {
            for (mean, pixel) in means[index % 4].iter_mut().zip(pixels(&set, index)) {
                *mean += f64::from(pixel) / 10.0;
            }
        }
        let validation = Synthetic::new(Split::Validation, &options([3, 16, 16])).unwrap();
        let right = (0..20).filter(|&index| {
            let image = pixels(&validation, index);
            let distance = |mean: &Vec<f64>| -> f64 {
                mean.iter().zip(&image).map(|(mean, &pixel)| (mean - f64::from(pixel)).powi(2)).sum()
            };
            let nearest = (0..4).min_by(|&a, &b| distance(&means[a]).total_cmp(&distance(&means[b])));
            nearest == Some(index % 4)
        });
        assert_eq!(right.count(), 20);
    }

    #[test]
    fn rejects_invalid_options_by_key() {
        let error = |options: OpenOptions| Synthetic::new(Split::Train, &options).unwrap_err().to_string();
        let none = SyntheticOptions { images: 0, ..SyntheticOptions::default() };
        assert_eq!(
            error(OpenOptions { synthetic: none, ..OpenOptions::default() }),
            "data.synthetic.images: is 0, expected 1 to 4294967295"
        );
        assert_eq!(
            error(OpenOptions { shape: [3, usize::MAX, 2], ..OpenOptions::default() }),
            format!("data.shape: is 3×{}×2, but an image must have 1 to 1073741824 elements", usize::MAX)
        );
    }
}
