//! Augmentation: functions of (seed, epoch, sample), independent of threads and of interruptions.
//!
//! An image is changed in three steps, always in this order:
//!
//! 1. The view: a `Window` selects the crop of the stored image, possibly
//!    rotated about its centre. Cropping, resizing, zooming and rotating are a single interpolation.
//! 2. The colours of the sample's 8-bit pixels ([`ColourJitter`]).
//! 3. The [`Placement`]: the sample is mirrored, then shifted, then partly blanked, while it is normalised
//!    and written to the batch.
//!
//! View and placement are pure geometry, drawn once per sample: a mask gets the same two, without
//! interpolation.

use serde::{Deserialize, Serialize};
use stratus_random::{Purpose, Stream};

use crate::transform::colour::ColourJitter;

/// The maximum zoom factor, and the inverse of the minimum.
const MAX_ZOOM: f64 = 16.0;

/// Random augmentation in every epoch; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Augment {
    /// Pad by this many pixels on every side, then crop the original size at a random position: a
    /// translation, uniform over `-shift..=shift` along both axes; 0 is off.
    pub shift: u16,
    /// The content of the padding.
    pub padding: Padding,
    /// Mirror images left to right with probability one half.
    pub flip: bool,
    /// With `flip`: one half of the images is mirrored in even epochs, the other in odd ones, so that two
    /// epochs show every image both ways (K. Jordan: "94% on CIFAR-10 in 3.29 seconds on a single GPU",
    /// 2024).
    pub alternate_flip: bool,
    /// Cutout: the side in pixels of a square that is blanked to the mean at a random position (DeVries and
    /// Taylor, 2017); 0 is off.
    pub cutout: u16,
    /// Crop a random part of the stored image and resize it.
    pub resized_crop: Option<ResizedCrop>,
    /// Crop at a random position instead of the centre, uniform over whole pixels of the resized image.
    pub random_crop: bool,
    /// Rotate about the centre by an angle, uniform over ± this many degrees; 0 is off. Pixels outside the
    /// image get the mean.
    pub rotation: f64,
    /// The minimum and maximum factor to enlarge by, uniform between them, about the centre or with
    /// `random_crop` about a random position. Below 1 more of the image is visible, and pixels outside of it
    /// get the mean.
    pub zoom: Option<[f64; 2]>,
    /// Colour changes.
    pub colour: ColourJitter,
}

/// The content of pixels that a shift uncovers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Zero pixels; ignored in a mask.
    #[default]
    Zero,
    /// The image reflected at its outermost row and column, which are not repeated.
    Reflect,
}

/// A crop of random area and aspect ratio at a random position (Szegedy et al., "Going deeper with
/// convolutions", 2015).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResizedCrop {
    /// The minimum and maximum share of the image's area, 0 to 1.
    pub scale: [f64; 2],
    /// The minimum and maximum aspect ratio, width divided by height.
    pub ratio: [f64; 2],
}

impl Default for ResizedCrop {
    fn default() -> Self {
        Self { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] }
    }
}

impl ResizedCrop {
    /// Returns whether both ranges are valid.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let Self { scale: [min, max], ratio: [min_ratio, max_ratio] } = *self;
        0.0 < min && min <= max && max <= 1.0 && 0.0 < min_ratio && min_ratio <= max_ratio && max_ratio < 1e3
    }
}

impl Augment {
    /// Returns whether samples are random crops even if images have the requested size.
    #[must_use]
    pub(crate) fn crops_at_random(&self) -> bool {
        self.resized_crop.is_some() || self.rotation != 0.0 || self.zoom.is_some()
    }

    /// The first option that blanks pixels. They are 0 after normalisation: the mean, which is not a pixel
    /// value.
    #[must_use]
    pub(crate) fn blanking_option(&self) -> Option<&'static str> {
        let fields =
            [("cutout", self.cutout > 0), ("rotation", self.rotation != 0.0), ("zoom", self.zoom.is_some())];
        fields.into_iter().find_map(|(field, is_on)| is_on.then_some(field))
    }

    /// The first problem for images of `size` (H, W), with a hint.
    pub(crate) fn validate(&self, [height, width]: [usize; 2]) -> Option<String> {
        let Self { shift, rotation, colour, .. } = *self;
        if usize::from(shift) >= height.min(width) {
            return Some(format!(
                "shift is {shift} pixels, but images are {height}×{width}; set less than {}",
                height.min(width)
            ));
        }
        if self.padding == Padding::Reflect && 2 * usize::from(shift) >= height.min(width) {
            return Some(format!(
                "shift is {shift} pixels with reflected padding, but images are {height}×{width}; set at \
                 most {}, or padding to \"zero\"",
                (height.min(width) - 1) / 2
            ));
        }
        if let Some(ResizedCrop { scale, ratio }) = self.resized_crop.filter(|crop| !crop.is_valid()) {
            return Some(format!(
                "resized_crop has scale {scale:?} and ratio {ratio:?}; expected a minimum and a maximum \
                 each, the scale above 0 and at most 1"
            ));
        }
        if self.random_crop && self.resized_crop.is_some() {
            return Some("random_crop and resized_crop are mutually exclusive".to_owned());
        }
        if !(0.0..=180.0).contains(&rotation) {
            return Some(format!("rotation is {rotation} degrees, expected 0 to 180"));
        }
        if let Some([min, max]) = self.zoom
            && !(1.0 / MAX_ZOOM <= min && min <= max && max <= MAX_ZOOM)
        {
            return Some(format!(
                "zoom is [{min}, {max}]; expected a minimum and a maximum between {} and {MAX_ZOOM}",
                1.0 / MAX_ZOOM
            ));
        }
        let ColourJitter { brightness, contrast, saturation, hue } = colour;
        (!colour.is_valid()).then(|| {
            format!(
                "colour has brightness {brightness}, contrast {contrast}, saturation {saturation} and hue \
                 {hue}; expected 0 to 16 for the first three, 0 to 0.5 for hue"
            )
        })
    }

    /// Draws the placement of `sample` in `epoch`; its size is (H, W).
    #[must_use]
    pub fn placement(&self, seed: u64, epoch: u32, sample: u32, [height, width]: [usize; 2]) -> Placement {
        let stream = |purpose| Stream::new(seed, purpose, u64::from(sample), epoch);
        let mut placement = Placement::default();
        if self.shift > 0 {
            let mut stream = stream(Purpose::Shift);
            let mut draw = || stream.below(2 * u32::from(self.shift) + 1) as i32 - i32::from(self.shift);
            placement.shift = Shift { rows: draw(), columns: draw() };
            placement.padding = self.padding;
        }
        if self.flip {
            let (drawn, inverted) = if self.alternate_flip { (0, epoch % 2 == 1) } else { (epoch, false) };
            let mut stream = Stream::new(seed, Purpose::Flip, u64::from(sample), drawn);
            placement.flip = (stream.next_u32() >> 31 == 1) != inverted;
        }
        if self.cutout > 0 {
            let mut stream = stream(Purpose::Cutout);
            let mut draw = |length: usize| {
                // The centre of the square is anywhere in the image, so the square may extend beyond the
                // edge.
                let centre = i64::from(stream.below(length as u32));
                let first = centre - i64::from(self.cutout / 2);
                let last = (first + i64::from(self.cutout)).min(length as i64);
                [first.max(0) as usize, last.max(0) as usize]
            };
            placement.cutout = Some(PixelRect { rows: draw(height), columns: draw(width) });
        }
        placement
    }
}

/// The placement of a sample in the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// True if the sample is mirrored left to right, before it is shifted.
    pub flip: bool,
    /// The shift.
    pub shift: Shift,
    /// The content of uncovered pixels. A reflection needs shifts below half of each axis.
    pub padding: Padding,
    /// The blanked rectangle, applied last.
    pub cutout: Option<PixelRect>,
}

/// A translation: output (y, x) is input (y + rows, x + columns), or padding outside of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// Rows further down in the input.
    pub rows: i32,
    /// Columns further right in the input.
    pub columns: i32,
}

/// A rectangle of pixels: first and one past the last row and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelRect {
    /// Rows.
    pub rows: [usize; 2],
    /// Columns.
    pub columns: [usize; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: [usize; 2] = [32, 24];

    #[test]
    fn off_by_default() {
        assert_eq!(Augment::default().placement(1, 2, 3, SIZE), Placement::default());
    }

    #[test]
    fn shifts_are_uniform() {
        let augment = Augment { shift: 2, ..Augment::default() };
        let mut counts = [[0u32; 5]; 5];
        for sample in 0..25_000 {
            let shift = augment.placement(7, 3, sample, SIZE).shift;
            counts[(shift.rows + 2) as usize][(shift.columns + 2) as usize] += 1;
        }
        assert!(counts.iter().flatten().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn mirrors_half_of_the_images() {
        let augment = Augment { flip: true, ..Augment::default() };
        let mirrored = (0..10_000).filter(|&sample| augment.placement(7, 3, sample, SIZE).flip).count();
        assert!((4_800..5_200).contains(&mirrored), "{mirrored}");
    }

    #[test]
    fn alternate_flip_mirrors_each_half_in_turn() {
        let augment = Augment { flip: true, alternate_flip: true, ..Augment::default() };
        let mirrored = |epoch| {
            (0..10_000).map(|sample| augment.placement(7, epoch, sample, SIZE).flip).collect::<Vec<_>>()
        };
        let first = mirrored(0);
        assert!((4_800..5_200).contains(&first.iter().filter(|&&flip| flip).count()));
        assert!(mirrored(1).iter().zip(&first).all(|(now, then)| now != then));
        assert_eq!(mirrored(6), first);
        let random = Augment { alternate_flip: false, ..augment };
        assert_eq!(
            (0..100).map(|sample| random.placement(7, 0, sample, SIZE).flip).collect::<Vec<_>>(),
            first[..100]
        );
        let off = Augment { flip: false, ..augment };
        assert!(!(0..100).any(|sample| off.placement(7, 1, sample, SIZE).flip));
    }

    #[test]
    fn cutout_is_centred_anywhere_and_stays_inside() {
        let augment = Augment { cutout: 9, ..Augment::default() };
        let mut middles = [[false; 24]; 32];
        for sample in 0..20_000 {
            let Some(PixelRect { rows, columns }) = augment.placement(7, 3, sample, SIZE).cutout else {
                panic!("no cutout");
            };
            assert!(rows[0] < rows[1] && rows[1] <= 32 && columns[0] < columns[1] && columns[1] <= 24);
            assert!(rows[1] - rows[0] <= 9 && columns[1] - columns[0] <= 9);
            let middle = |[first, last]: [usize; 2]| if first > 0 { first + 4 } else { last - 5 };
            middles[middle(rows)][middle(columns)] = true;
        }
        assert!(middles.iter().flatten().all(|&seen| seen));
    }

    #[test]
    fn placements_depend_on_seed_epoch_and_sample_only() {
        let augment = Augment { shift: 100, flip: true, cutout: 5, ..Augment::default() };
        let all = |augment: Augment, seed, epoch| {
            (0..8).map(|sample| augment.placement(seed, epoch, sample, SIZE)).collect::<Vec<_>>()
        };
        assert_eq!(all(augment, 1, 2), all(augment, 1, 2));
        assert_ne!(all(augment, 1, 2), all(augment, 2, 2));
        assert_ne!(all(augment, 1, 2), all(augment, 1, 3));
        assert_ne!(all(augment, 1, 2)[0], all(augment, 1, 2)[1]);
        let alone = all(Augment { shift: 100, ..Augment::default() }, 1, 2);
        assert!(all(augment, 1, 2).iter().zip(&alone).all(|(all, alone)| all.shift == alone.shift));
    }
}
