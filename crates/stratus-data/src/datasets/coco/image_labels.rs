//! The class or the labels of images, from their objects.

use super::annotations::{Category, Image, ParsedRegion};
use crate::dataset::IGNORED;
use crate::datasets::target_rows::{TargetRows, TargetRowsBuilder};

/// The maximum number of labels of different images, 1 GiB.
const MAX_LABEL_VALUES: usize = 1 << 28;

/// The class of each image: the category with the largest area, or the first of those.
pub(super) fn image_classes(
    images: &[Image],
    categories: &[Category],
    regions: &[ParsedRegion],
) -> Result<Vec<u32>, String> {
    let mut areas = Vec::with_capacity(regions.len());
    for region in regions {
        let (image, class) = region.locate(images, categories)?;
        if !region.crowd {
            areas.push((image, class, region.area));
        }
    }
    areas.sort_unstable();
    let mut labels = vec![IGNORED; images.len()];
    for of_image in areas.chunk_by(|a, b| a.0 == b.0) {
        let mut max_area = None;
        for of_class in of_image.chunk_by(|a, b| a.1 == b.1) {
            let area = of_class.iter().fold(0u64, |sum, (_, _, area)| sum.saturating_add(*area));
            if max_area.is_none_or(|max| area > max) {
                let (image, class, _) = of_class[0];
                (max_area, labels[image]) = (Some(area), class as u32);
            }
        }
    }
    Ok(labels)
}

/// The labels of each image: 1 for the categories of its objects, without crowds.
pub(super) fn image_labels(
    images: &[Image],
    categories: &[Category],
    regions: &[ParsedRegion],
) -> Result<TargetRows, String> {
    let mut present = Vec::with_capacity(regions.len());
    for region in regions {
        let (image, class) = region.locate(images, categories)?;
        if !region.crowd {
            present.push((image, class));
        }
    }
    present.sort_unstable();
    let mut labels = TargetRowsBuilder::new(categories.len(), MAX_LABEL_VALUES);
    let mut row = vec![0.0; categories.len()];
    let mut rest = &present[..];
    for image in 0..images.len() {
        let (of_image, after) = rest.split_at(rest.partition_point(|(at, _)| *at <= image));
        rest = after;
        of_image.iter().for_each(|&(_, class)| row[class] = 1.0);
        labels.push(&row).map_err(|_| format!("more than {MAX_LABEL_VALUES} labels"))?;
        of_image.iter().for_each(|&(_, class)| row[class] = 0.0);
    }
    Ok(labels.finish())
}
