//! Some samples of a data set, in a given order.

use std::sync::Arc;

use crate::dataset::{Dataset, RegionRequest, Sample, Scratch, TargetKind};
use crate::error::DataError;
use crate::transform::pixels::Normalisation;

/// Samples of a data set by their indices. They have no groups, so a loader of them announces none: it does
/// not disturb other loaders of the data set.
pub struct SelectedSamples {
    dataset: Arc<dyn Dataset>,
    indices: Vec<u32>,
}

impl SelectedSamples {
    /// The samples `indices` of `dataset`, which may repeat. One out of range is an error when it is read.
    #[must_use]
    pub fn new(dataset: Arc<dyn Dataset>, indices: Vec<u32>) -> Self {
        Self { dataset, indices }
    }

    /// The index in the data set of the sample at `position`.
    fn index(&self, position: usize) -> Result<usize, DataError> {
        self.indices.get(position).map(|&index| index as usize).ok_or_else(|| DataError::SampleOutOfRange {
            dataset: self.name().to_owned(),
            index: position,
            len: self.indices.len(),
        })
    }
}

impl Dataset for SelectedSamples {
    fn name(&self) -> &str {
        self.dataset.name()
    }

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn classes(&self) -> usize {
        self.dataset.classes()
    }

    fn class_name(&self, class: usize) -> String {
        self.dataset.class_name(class)
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        self.dataset.sample_shape()
    }

    fn sample_name(&self, position: usize) -> String {
        self.index(position)
            .map_or_else(|_| format!("sample {position}"), |index| self.dataset.sample_name(index))
    }

    fn label(&self, position: usize) -> Result<u32, DataError> {
        self.dataset.label(self.index(position)?)
    }

    fn target_kind(&self) -> Option<TargetKind> {
        self.dataset.target_kind()
    }

    fn target_of_other_labels(&self) -> f32 {
        self.dataset.target_of_other_labels()
    }

    fn targets(&self, position: usize) -> Result<&[f32], DataError> {
        self.dataset.targets(self.index(position)?)
    }

    fn read<'a>(&'a self, position: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.dataset.read(self.index(position)?, scratch)
    }

    fn read_region<'a>(
        &'a self,
        position: usize,
        scratch: &'a mut Scratch,
        region: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        self.dataset.read_region(self.index(position)?, scratch, region)
    }

    fn has_masks(&self) -> bool {
        self.dataset.has_masks()
    }

    fn normalisation(&self) -> Normalisation {
        self.dataset.normalisation()
    }

    fn resident_bytes(&self) -> u64 {
        self.dataset.resident_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{ImagesInMemory, StoredImage};

    #[test]
    fn samples_are_those_of_the_indices() {
        let image = |value: u8| StoredImage::interleaved(vec![value; 3], [3, 1, 1]);
        let all = ImagesInMemory::new((0..5).map(image).collect(), 2, false).unwrap();
        let some = SelectedSamples::new(Arc::new(all), vec![3, 1, 3, 9]);
        let value = |position| some.read(position, &mut Scratch::default()).unwrap().pixels[0];
        assert_eq!([value(0), value(1), value(2)], [3, 1, 3]);
        assert_eq!((some.len(), some.sample_name(1)), (4, "sample 1".to_owned()));
        for position in [3, 4] {
            assert!(some.read(position, &mut Scratch::default()).is_err());
        }
    }
}
