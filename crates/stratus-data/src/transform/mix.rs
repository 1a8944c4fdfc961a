//! Mixup and CutMix: blend two images of a batch, or paste a rectangle of one into the other, and combine
//! their labels.
//!
//! A sample is mixed with its predecessor in the batch, the first with the last; shuffling makes these random
//! pairs. Mixing comes last, on normalised and augmented images, and uses both images as they were before
//! mixing. The mixing of a sample is a function of (seed, epoch, sample), its partner a function of (seed,
//! epoch, batch). Targets are blended like the images: `(1 - share)·target + share·other`.

use bytemuck::Pod;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use stratus_random::{Purpose, Stream};

use crate::buffer::IGNORED_LABEL;
use crate::transform::augment::PixelRect;
use crate::transform::pixels::{BatchElement, Element, Layout};
use stratus_base::AlignedBytes;

/// Labels per mixed sample: its class, the other class, and the share of the other in units of
/// 1/[`FULL_SHARE`].
pub const LABELS_PER_SAMPLE: usize = 3;

/// The share that means 100 %.
pub const FULL_SHARE: i32 = 1 << 24;

/// The maximum parameter of the beta distribution; above it every share is practically one half.
const MAX_ALPHA: f64 = 1e4;

/// The mixing of images; off by default. If both kinds are on, each sample gets one of them with equal
/// probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// Mixup: blend the images. The share is drawn from Beta(α, α), with this number as α (Zhang et al.,
    /// "mixup: beyond empirical risk minimization", 2018). 0 is off.
    pub mixup: f64,
    /// `CutMix`: paste a rectangle of the other image at the same position. Its area is drawn like the share
    /// of mixup, its centre is uniform, and the part inside the image determines the share (Yun et al.,
    /// "`CutMix`: regularization strategy to train strong classifiers with localizable features", 2019). 0 is
    /// off.
    pub cutmix: f64,
    /// The probability that a sample is mixed.
    #[serde(rename = "of_samples")]
    pub probability: f64,
}

impl Default for Mix {
    fn default() -> Self {
        Self { mixup: 0.0, cutmix: 0.0, probability: 1.0 }
    }
}

/// The mixing of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blend {
    Unmixed,
    /// Blend with this share of the other image, in units of 1/[`FULL_SHARE`].
    Mixup(i32),
    /// Take this rectangle from the other image.
    CutMix(PixelRect),
}

impl Mix {
    /// Returns whether samples are mixed; each then has [`LABELS_PER_SAMPLE`] labels.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.mixup != 0.0 || self.cutmix != 0.0
    }

    /// The first problem of the parameters, with a hint.
    pub(crate) fn validate(&self) -> Option<String> {
        let Self { mixup, cutmix, probability } = *self;
        for (name, parameter) in [("mixup", mixup), ("cutmix", cutmix)] {
            if !(0.0..=MAX_ALPHA).contains(&parameter) {
                return Some(format!("{name} is {parameter}, expected 0 to {MAX_ALPHA}"));
            }
        }
        (!(0.0..=1.0).contains(&probability))
            .then(|| format!("share of mixed samples is {probability}, expected 0 to 1"))
    }

    /// Draws the mixing of `sample` in `epoch`; its size is (H, W).
    fn blend(&self, seed: u64, epoch: u32, sample: u32, [height, width]: [usize; 2]) -> Blend {
        let mut stream = Stream::new(seed, Purpose::Mix, u64::from(sample), epoch);
        if f64::from(stream.uniform()) >= self.probability {
            return Blend::Unmixed;
        }
        let pastes = match (self.mixup > 0.0, self.cutmix > 0.0) {
            (true, true) => stream.below(2) == 1,
            (_, cutmix) => cutmix,
        };
        if !pastes {
            return Blend::Mixup((stream.beta(self.mixup) * f64::from(FULL_SHARE)).round() as i32);
        }
        let side = stream.beta(self.cutmix).sqrt();
        let mut range = |length: usize| {
            let part = (length as f64 * side) as i64;
            let first = i64::from(stream.below(length as u32)) - part / 2;
            let inside = |end: i64| end.clamp(0, length as i64) as usize;
            [inside(first), inside(first + part)]
        };
        Blend::CutMix(PixelRect { rows: range(height), columns: range(width) })
    }
}

/// Mixes batches of one shape and type.
#[derive(Clone, Debug)]
pub(crate) struct Mixer {
    pub mix: Mix,
    pub seed: u64,
    pub element: Element,
    pub layout: Layout,
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// The number of targets per sample; `None` for classes.
    pub targets: Option<usize>,
}

/// The last sample of a group before mixing: scratch memory.
#[derive(Debug, Default)]
pub(crate) struct LastSample {
    image: AlignedBytes,
    labels: Vec<i32>,
}

impl Mixer {
    /// Mixes the samples of a batch, within groups of `group`. `labels` has [`LABELS_PER_SAMPLE`] elements
    /// per sample; on entry the first N are the classes, and the rest is ignored. Samples without a class are
    /// neither mixed nor used. Targets, the bits of `[N, T]` numbers, are blended in place: the result is
    /// missing if a target with a share above 0 is.
    pub(crate) fn mix(
        &self,
        images: &mut [u8],
        labels: &mut [i32],
        indices: &[u32],
        (epoch, group): (u32, usize),
        last: &mut LastSample,
    ) {
        let (samples, group) = (indices.len(), group.max(1));
        if samples == 0 {
            return;
        }
        let bytes = images.len() / samples;
        if last.image.len() != bytes {
            // The allocation has the size of an image in the batch.
            last.image = AlignedBytes::zeroed(bytes, "the last image").unwrap_or_default();
        }
        let width = self.targets.unwrap_or(1);
        // From the last to the first, so that the predecessor is still unmixed, and its class is still stored
        // in front of the written labels.
        for (sample, &index) in indices.iter().enumerate().rev() {
            if sample + 1 == samples || (sample + 1).is_multiple_of(group) {
                last.image.copy_from_slice(&images[sample * bytes..][..bytes]);
                last.labels.clear();
                last.labels.extend_from_slice(&labels[sample * width..][..width]);
            }
            let (previous, rest) = images.split_at_mut(sample * bytes);
            let (labels_before, labels_from) = labels.split_at_mut(sample * width);
            let (other_image, other) = match sample.checked_sub(1) {
                Some(other) if !sample.is_multiple_of(group) => {
                    (&previous[other * bytes..], &labels_before[other * width..])
                }
                _ => (&*last.image, &last.labels[..]),
            };
            let own = &mut labels_from[..width];
            let is_mixable = group > 1 && has_sample(own) && has_sample(other);
            let share = if is_mixable {
                let [_, height, width] = self.shape;
                let blend = self.mix.blend(self.seed, epoch, index, [height, width]);
                self.apply(blend, &mut rest[..bytes], other_image)
            } else {
                0
            };
            if self.targets.is_some() {
                blend_targets(own, other, share);
                continue;
            }
            let (class, other_class) = (own[0], other[0]);
            let second = if share > 0 { other_class } else { class };
            labels[sample * LABELS_PER_SAMPLE..][..LABELS_PER_SAMPLE]
                .copy_from_slice(&[class, second, share]);
        }
    }

    /// Mixes an image; returns the share of the other one.
    fn apply(&self, blend: Blend, image: &mut [u8], other: &[u8]) -> i32 {
        match blend {
            Blend::Unmixed => 0,
            Blend::Mixup(share) => {
                match self.element {
                    Element::F32 => mixup::<f32>(image, other, share),
                    Element::Bf16 => mixup::<bf16>(image, other, share),
                    Element::F16 => mixup::<f16>(image, other, share),
                    // The loader rejects this: mixed bytes would be rounded to pixel values.
                    Element::U8 => mixup::<u8>(image, other, share),
                }
                share
            }
            Blend::CutMix(part) => self.paste(part, image, other),
        }
    }

    fn paste(&self, PixelRect { rows, columns }: PixelRect, image: &mut [u8], other: &[u8]) -> i32 {
        let [channels, height, width] = self.shape;
        let (planes, pixel) = match self.layout {
            Layout::Nchw => (channels, self.element.bytes()),
            Layout::Nhwc => (1, channels * self.element.bytes()),
        };
        for row in (0..planes).flat_map(|plane| (rows[0]..rows[1]).map(move |row| plane * height + row)) {
            let part = (row * width + columns[0]) * pixel..(row * width + columns[1]) * pixel;
            image[part.clone()].copy_from_slice(&other[part]);
        }
        let (area, whole) = ((rows[1] - rows[0]) * (columns[1] - columns[0]), height * width);
        (area as f64 / whole as f64 * f64::from(FULL_SHARE)).round() as i32
    }
}

/// Returns whether a row of labels belongs to a sample that was decoded. A decoded sample whose targets are
/// all missing has the bits of `f32::NAN`, not those of [`IGNORED_LABEL`].
fn has_sample(labels: &[i32]) -> bool {
    labels.iter().any(|&label| label != IGNORED_LABEL)
}

/// Blends each target with that of the other sample. NaN, a missing target, stays NaN.
fn blend_targets(targets: &mut [i32], others: &[i32], share: i32) {
    let weight = share as f32 / FULL_SHARE as f32;
    for (target, &other) in targets.iter_mut().zip(others) {
        let [from, to] = [*target, other].map(|bits| f32::from_bits(bits.cast_unsigned()));
        let blended = match share {
            0 => continue,
            FULL_SHARE => to,
            _ => from * (1.0 - weight) + to * weight,
        };
        *target = blended.to_bits().cast_signed();
    }
}

/// Blends each element with that of the other image.
fn mixup<T: BatchElement + Pod + Into<f32>>(image: &mut [u8], other: &[u8], share: i32) {
    let share = share as f32 / FULL_SHARE as f32;
    let other: &[T] = bytemuck::pod_align_to(other).1;
    for (element, &other) in bytemuck::pod_align_to_mut::<_, T>(image).1.iter_mut().zip(other) {
        let (from, to): (f32, f32) = ((*element).into(), other.into());
        *element = T::store(from * (1.0 - share) + to * share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: [usize; 2] = [32, 24];

    fn blends(mix: Mix, epoch: u32) -> Vec<Blend> {
        (0..20_000).map(|sample| mix.blend(7, epoch, sample, SIZE)).collect()
    }

    fn share(blend: Blend) -> f64 {
        match blend {
            Blend::Unmixed => 0.0,
            Blend::Mixup(share) => f64::from(share) / f64::from(FULL_SHARE),
            Blend::CutMix(PixelRect { rows, columns }) => {
                ((rows[1] - rows[0]) * (columns[1] - columns[0])) as f64 / (32.0 * 24.0)
            }
        }
    }

    #[test]
    fn mixes_the_configured_fraction_half_of_it_each_way() {
        let mix = Mix { mixup: 0.2, cutmix: 1.0, probability: 0.5 };
        let blends = blends(mix, 3);
        let count = |kind: fn(&Blend) -> bool| blends.iter().filter(|blend| kind(blend)).count();
        assert!((9_700..10_300).contains(&count(|blend| *blend == Blend::Unmixed)));
        assert!((4_800..5_200).contains(&count(|blend| matches!(blend, Blend::Mixup(_)))));
    }

    #[test]
    fn uses_the_only_enabled_kind() {
        let mixup = blends(Mix { mixup: 0.2, ..Mix::default() }, 0);
        assert!(mixup.iter().all(|blend| matches!(blend, Blend::Mixup(0..=FULL_SHARE))));
        let cutmix = blends(Mix { cutmix: 0.2, ..Mix::default() }, 0);
        assert!(cutmix.iter().all(|blend| matches!(blend, Blend::CutMix(_))));
    }

    /// The mean of uniform shares is a half; rectangles are clipped at the edges of the image.
    #[test]
    fn shares_have_the_expected_mean() {
        let mean = |mix: Mix| {
            let blends = blends(mix, 1);
            blends.iter().map(|&blend| share(blend)).sum::<f64>() / blends.len() as f64
        };
        let mixup = mean(Mix { mixup: 1.0, ..Mix::default() });
        assert!((mixup - 0.5).abs() < 0.01, "{mixup}");
        // The mean clipped length of a side over all centres.
        let inside = |length: i64, side: f64| {
            let part = (length as f64 * side) as i64;
            let of_middle = |middle: i64| {
                (middle - part / 2 + part).clamp(0, length) - (middle - part / 2).clamp(0, length)
            };
            (0..length).map(of_middle).sum::<i64>() as f64 / (length * length) as f64
        };
        let areas = (0..1000).map(|step| (f64::from(step) + 0.5) / 1000.0);
        let expected =
            areas.map(|area| inside(32, area.sqrt()) * inside(24, area.sqrt())).sum::<f64>() / 1000.0;
        let cutmix = mean(Mix { cutmix: 1.0, ..Mix::default() });
        assert!((cutmix - expected).abs() < 0.01, "{cutmix} {expected}");
    }

    #[test]
    fn cutmix_rectangles_stay_inside_and_reach_every_corner() {
        let mut corners = [false; 4];
        for blend in blends(Mix { cutmix: 1.0, ..Mix::default() }, 2) {
            let Blend::CutMix(PixelRect { rows, columns }) = blend else { panic!("{blend:?}") };
            assert!(rows[0] <= rows[1] && rows[1] <= 32 && columns[0] <= columns[1] && columns[1] <= 24);
            if rows[0] < rows[1] && columns[0] < columns[1] {
                corners[0] |= rows[0] == 0 && columns[0] == 0;
                corners[1] |= rows[0] == 0 && columns[1] == 24;
                corners[2] |= rows[1] == 32 && columns[0] == 0;
                corners[3] |= rows[1] == 32 && columns[1] == 24;
            }
        }
        assert_eq!(corners, [true; 4]);
    }

    #[test]
    fn draws_differ_by_epoch_and_sample() {
        let mix = Mix { mixup: 1.0, ..Mix::default() };
        assert_eq!(blends(mix, 1), blends(mix, 1));
        assert_ne!(blends(mix, 1), blends(mix, 2));
        let drawn = blends(mix, 1);
        assert!(drawn.windows(2).filter(|pair| pair[0] == pair[1]).count() < 5);
    }

    fn mixer(mix: Mix, element: Element, layout: Layout) -> Mixer {
        Mixer { mix, seed: 5, element, layout, shape: [2, 4, 3], targets: None }
    }

    /// Images with one value each, 0, 1, 2, and so on; sample 2 has no class.
    fn mixed<T: BatchElement + Pod + Into<f32>>(mixer: &Mixer, samples: usize) -> (Vec<f32>, Vec<i32>) {
        let mut images = AlignedBytes::zeroed(samples * 24 * size_of::<T>(), "a test").unwrap();
        for (at, value) in images.elements_mut::<T>().iter_mut().enumerate() {
            *value = T::store((at / 24) as f32);
        }
        let mut labels = vec![99; samples * LABELS_PER_SAMPLE];
        (0..samples).for_each(|sample| labels[sample] = if sample == 2 { -1 } else { 10 + sample as i32 });
        let indices: Vec<u32> = (0..samples as u32).map(|sample| 50 - sample).collect();
        mixer.mix(&mut images, &mut labels, &indices, (4, indices.len()), &mut LastSample::default());
        (images.elements::<T>().iter().map(|&value| value.into()).collect(), labels)
    }

    fn check(samples: usize, images: &[f32], labels: &[i32], tolerance: f32) {
        let mut shares = 0.0;
        for sample in 0..samples {
            let before = (sample + samples - 1) % samples;
            let [class, other, share] = labels[sample * LABELS_PER_SAMPLE..][..LABELS_PER_SAMPLE] else {
                unreachable!()
            };
            let image = &images[sample * 24..][..24];
            let expected_class = if sample == 2 { -1 } else { 10 + sample as i32 };
            assert_eq!(class, expected_class);
            if sample == 2 || before == 2 || samples == 1 || share == 0 {
                assert_eq!((other, share), (class, 0));
                assert!(image.iter().all(|&value| value == sample as f32));
                continue;
            }
            assert_eq!(other, 10 + before as i32);
            let share = share as f32 / FULL_SHARE as f32;
            let expected = sample as f32 * (1.0 - share) + before as f32 * share;
            let mean = image.iter().sum::<f32>() / 24.0;
            assert!((mean - expected).abs() < tolerance, "{sample}: {mean}, not {expected}");
            shares += share;
        }
        assert!(samples < 4 || shares > 0.2, "hardly anything was mixed: {shares}");
    }

    #[test]
    fn mixes_the_previous_image_and_label_in_every_layout_and_type() {
        let (mixup, cutmix) = (Mix { mixup: 1.0, ..Mix::default() }, Mix { cutmix: 1.0, ..Mix::default() });
        for (mix, layout) in
            [(mixup, Layout::Nchw), (mixup, Layout::Nhwc), (cutmix, Layout::Nchw), (cutmix, Layout::Nhwc)]
        {
            for samples in [1, 2, 3, 8] {
                let (images, labels) = mixed::<f32>(&mixer(mix, Element::F32, layout), samples);
                check(samples, &images, &labels, 1e-5);
                let (images, labels) = mixed::<bf16>(&mixer(mix, Element::Bf16, layout), samples);
                check(samples, &images, &labels, 0.02);
                let (images, labels) = mixed::<f16>(&mixer(mix, Element::F16, layout), samples);
                check(samples, &images, &labels, 0.003);
            }
        }
    }

    /// The same pixels of both channels, in either layout.
    #[test]
    fn cutmix_pastes_a_rectangle() {
        let mix = Mix { cutmix: 1.0, ..Mix::default() };
        let (planes, labels) = mixed::<f32>(&mixer(mix, Element::F32, Layout::Nchw), 8);
        let (pixels, same) = mixed::<f32>(&mixer(mix, Element::F32, Layout::Nhwc), 8);
        assert_eq!(labels, same);
        for sample in 0..8 {
            let (planes, pixels) = (&planes[sample * 24..][..24], &pixels[sample * 24..][..24]);
            let is_other = |row: usize, column: usize| planes[row * 3 + column] != sample as f32;
            for (row, column) in (0..4).flat_map(|row| (0..3).map(move |column| (row, column))) {
                let at = row * 3 + column;
                assert_eq!([planes[at], planes[12 + at]], pixels[at * 2..][..2]);
                let in_row = (0..3).any(|column| is_other(row, column));
                let in_column = (0..4).any(|row| is_other(row, column));
                assert_eq!(is_other(row, column), in_row && in_column);
            }
        }
    }

    /// Targets of all samples: mixed by the same shares as the images, and missing if one with a share is.
    #[test]
    fn blends_targets_like_images() {
        for mix in [Mix { mixup: 1.0, ..Mix::default() }, Mix { cutmix: 1.0, ..Mix::default() }] {
            let with_classes = mixer(mix, Element::F32, Layout::Nchw);
            let with_targets = Mixer { targets: Some(2), ..with_classes.clone() };
            let samples = 8;
            let images = || {
                let mut images = AlignedBytes::zeroed(samples * 24 * 4, "a test").unwrap();
                for (at, value) in images.elements_mut::<f32>().iter_mut().enumerate() {
                    *value = (at / 24) as f32;
                }
                images
            };
            let indices: Vec<u32> = (0..samples as u32).collect();
            // Sample 2 could not be decoded; the second target of sample 4 is missing.
            let mut classes = vec![0; samples * LABELS_PER_SAMPLE];
            (0..samples).for_each(|sample| classes[sample] = if sample == 2 { -1 } else { sample as i32 });
            let before = |sample: usize| match sample {
                2 => [IGNORED_LABEL; 2],
                4 => [40.0f32, f32::NAN].map(|target| target.to_bits().cast_signed()),
                _ => [10.0 * sample as f32, -(sample as f32)].map(|target| target.to_bits().cast_signed()),
            };
            let mut targets: Vec<i32> = (0..samples).flat_map(before).collect();
            let (mut one, mut other) = (images(), images());
            let last = &mut LastSample::default();
            with_classes.mix(&mut one, &mut classes, &indices, (4, samples), last);
            with_targets.mix(&mut other, &mut targets, &indices, (4, samples), last);
            assert!(one.iter().eq(other.iter()), "the images are mixed alike");
            let number = |bits: i32| f32::from_bits(bits.cast_unsigned());
            for sample in 0..samples {
                let share = classes[sample * LABELS_PER_SAMPLE + 2] as f32 / FULL_SHARE as f32;
                let partner = before((sample + samples - 1) % samples);
                for target in 0..2 {
                    let (own, other) = (number(before(sample)[target]), number(partner[target]));
                    let found = targets[sample * 2 + target];
                    if share == 0.0 {
                        assert_eq!(found, before(sample)[target]);
                        continue;
                    }
                    let expected = own * (1.0 - share) + other * share;
                    let found = number(found);
                    assert_eq!(found.is_nan(), expected.is_nan(), "{sample} {target}");
                    assert!(found.is_nan() || (found - expected).abs() < 1e-4, "{found} {expected}");
                }
            }
        }
        let bits = |numbers: [f32; 2]| numbers.map(|number| number.to_bits().cast_signed());
        let mut targets = bits([f32::NAN, 1.0]);
        blend_targets(&mut targets, &bits([3.0, f32::NAN]), FULL_SHARE);
        assert_eq!(f32::from_bits(targets[0].cast_unsigned()), 3.0);
        assert!(f32::from_bits(targets[1].cast_unsigned()).is_nan());
    }

    #[test]
    fn rejects_invalid_alphas() {
        assert_eq!(Mix::default().validate(), None);
        for mix in [
            Mix { mixup: -0.1, ..Mix::default() },
            Mix { cutmix: f64::NAN, ..Mix::default() },
            Mix { mixup: 1e5, ..Mix::default() },
            Mix { probability: 1.1, ..Mix::default() },
        ] {
            assert!(mix.validate().is_some(), "{mix:?}");
        }
    }
}
