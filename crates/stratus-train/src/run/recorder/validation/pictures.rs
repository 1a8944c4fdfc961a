//! The pictures of validations, drawn from the images as the network sees them.

use super::super::super::setup::RunSetup;
use crate::evaluate::collector::{CollectedPredictions, MAX_MASK_SIDE_PIXELS, MaskPrediction};
use crate::evaluate::mistakes::read_images;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use stratus_data::buffer::IGNORED_LABEL;
use stratus_data::contact_sheet::{ClassPalette, RgbImage, grid, grid_of_masks, mask_to_png, resized};
use stratus_run::validation::{CLASS_COLUMNS, CORRECT_COLOUR, MASK_COLUMNS, WRONG_COLOUR};

/// The maximum side of the pictures of classified images.
const MAX_CLASS_SIDE_PIXELS: usize = 80;
/// The maximum number of colours of a file with a palette, besides that of ignored pixels.
const MAX_PALETTE_COLOURS: usize = u8::MAX as usize;

/// The images that the last validation showed, by their indices.
#[derive(Default)]
pub(super) struct ShownImages {
    images: BTreeMap<u32, ShownImage>,
}

/// An image as the network sees it, made small.
struct ShownImage {
    picture: RgbImage,
    /// The labels of its pixels, in the size of the picture; empty for classification.
    labels: Vec<i32>,
}

impl ShownImage {
    /// `None` for an image that is not complete.
    fn new(picture: &RgbImage, labels: &[i32], mask_size: Option<[usize; 2]>) -> Option<Self> {
        if picture.pixels.len() != 3 * picture.height * picture.width {
            return None;
        }
        Some(match mask_size {
            None => Self { picture: picture.shrunk_to(MAX_CLASS_SIDE_PIXELS), labels: Vec::new() },
            Some(mask_size) => {
                let picture = picture.shrunk_to(MAX_MASK_SIDE_PIXELS);
                let labels = resized(labels, mask_size, [picture.height, picture.width]);
                Self { picture, labels }
            }
        })
    }
}

impl ShownImages {
    /// Reads the images that are shown now and were not shown before, and forgets the others. Returns the
    /// reasons why images could not be read.
    pub fn read(&mut self, predictions: &CollectedPredictions, setup: &RunSetup) -> Vec<String> {
        let (shown, mask_size): (BTreeSet<u32>, _) = match predictions {
            CollectedPredictions::Classes { mistakes, samples, .. } => {
                (mistakes.iter().chain(samples).map(|image| image.index).collect(), None)
            }
            CollectedPredictions::Masks { samples, size } => {
                (samples.iter().map(|image| image.index).collect(), Some(*size))
            }
            CollectedPredictions::Targets { mistakes, .. } => {
                (mistakes.iter().map(|(index, _)| *index).collect(), None)
            }
        };
        self.images.retain(|index, _| shown.contains(index));
        let new: Vec<u32> = shown.into_iter().filter(|index| !self.images.contains_key(index)).collect();
        let mut problems = Vec::new();
        let images = read_images(setup.resolved.input(), &setup.datasets.validation, &new);
        for (&index, image) in new.iter().zip(images) {
            match image {
                Ok((picture, labels)) => {
                    let image = ShownImage::new(&picture, &labels, mask_size);
                    self.images.extend(image.map(|image| (index, image)));
                }
                Err(error) => problems.push(format!("validation/ lacks an image: {error}")),
            }
        }
        problems
    }

    /// Those of `all` whose image could be read.
    pub fn known<T>(&self, all: Vec<T>, index: impl Fn(&T) -> u32) -> Vec<T> {
        all.into_iter().filter(|image| self.images.contains_key(&index(image))).collect()
    }

    /// Height and width of a picture; all have the same.
    pub fn size(&self) -> [usize; 2] {
        self.images.values().next().map_or([0; 2], |image| [image.picture.height, image.picture.width])
    }

    /// The file of these classified images.
    pub fn class_pictures(&self, indices: &[u32]) -> Result<Vec<u8>, io::Error> {
        let pictures = indices.iter().filter_map(|index| self.images.get(index));
        let pictures: Vec<&RgbImage> = pictures.map(|image| &image.picture).collect();
        grid(&pictures, self.size(), CLASS_COLUMNS).to_png().map_err(io::Error::other)
    }
}

/// Draws the pictures of segmented images.
pub(super) struct MaskPictures<'a> {
    pub images: &'a ShownImages,
    pub palette: ClassPalette,
    pub classes: usize,
}

impl MaskPictures<'_> {
    /// The file of images with their truth.
    pub fn images_and_truth(&self, indices: &[u32]) -> Result<Vec<u8>, io::Error> {
        let size = self.images.size();
        let images: Vec<&ShownImage> =
            indices.iter().filter_map(|index| self.images.images.get(index)).collect();
        let truth: Vec<RgbImage> =
            images.iter().map(|image| RgbImage::of_mask(&image.labels, size, &self.palette)).collect();
        let pairs = images.iter().zip(&truth).flat_map(|(image, truth)| [&image.picture, truth]);
        grid(&pairs.collect::<Vec<_>>(), size, MASK_COLUMNS).to_png().map_err(io::Error::other)
    }

    /// The file of predicted masks, with their differences from the truth.
    pub fn predictions_and_differences(&self, samples: &[&MaskPrediction]) -> Result<Vec<u8>, io::Error> {
        let size = self.images.size();
        let mut masks = Vec::new();
        for sample in samples {
            let labels = self.images.images.get(&sample.index).map_or(&[][..], |image| &image.labels);
            let different = difference(labels, &sample.mask, self.classes);
            masks.extend([sample.mask.clone(), different]);
        }
        let palette = self.palette.followed_by(self.classes, &[CORRECT_COLOUR, WRONG_COLOUR]);
        let (mask, size) = grid_of_masks(&masks, size, MASK_COLUMNS);
        let file = if self.classes + 2 <= MAX_PALETTE_COLOURS {
            mask_to_png(&mask, size, Some(&palette))
        } else {
            RgbImage::of_mask(&mask, size, &palette).to_png()
        };
        file.map_err(io::Error::other)
    }
}

/// The picture of a difference as a mask: `classes` for a correct pixel, the next number for a wrong one.
fn difference(labels: &[i32], predicted: &[i32], classes: usize) -> Vec<i32> {
    let correct = i32::try_from(classes).unwrap_or(i32::MAX - 1);
    let pixel = |(&label, &predicted): (&i32, &i32)| match label {
        IGNORED_LABEL => IGNORED_LABEL,
        label => correct + i32::from(label != predicted),
    };
    labels.iter().zip(predicted).map(pixel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_correct_wrong_or_ignored() {
        assert_eq!(difference(&[0, 1, IGNORED_LABEL, 2], &[0, 2, 1, 2], 3), [3, 4, IGNORED_LABEL, 3]);
    }
}
