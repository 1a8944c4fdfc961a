//! Concatenated data sets, optionally with classes mapped to a network's class indices.

use sha2::Sha256;

use crate::dataset::{Dataset, FileDetail, Groups, RegionRequest, Sample, Scratch, StoredFile, TargetKind};
use crate::datasets::target_rows::{TargetRows, TargetRowsBuilder};
use crate::error::DataError;
use crate::ignored_files::IgnoredFiles;
use crate::transform::pixels::Normalisation;

/// The maximum number of different targets of mapped samples: 4 GiB.
const MAX_MAPPED_TARGETS: usize = 1 << 30;

/// Data sets with the same classes, one after the other.
pub struct ConcatDataset {
    datasets: Vec<Box<dyn Dataset>>,
    /// The first sample of each data set, followed by the number of samples.
    starts: Vec<usize>,
    /// The class names that classes are mapped to; empty without a mapping.
    classes: Vec<String>,
    /// The index in `classes` of each class of the data sets; empty without a mapping.
    class_map: Vec<u32>,
    /// The targets of all samples in the order of `classes`; empty without a mapping.
    mapped_targets: TargetRows,
    damaged: Vec<(u32, String)>,
}

impl ConcatDataset {
    /// Concatenates one or several data sets.
    ///
    /// # Errors
    ///
    /// [`DataError::NoImages`]: no samples, or more than `u32::MAX`.
    pub fn new(datasets: Vec<Box<dyn Dataset>>) -> Result<Self, DataError> {
        let mut starts = vec![0];
        let mut damaged = Vec::new();
        for dataset in &datasets {
            let first = starts[starts.len() - 1];
            let shifted = |(index, problem): &(u32, String)| (first as u32 + index, problem.clone());
            damaged.extend(dataset.damaged().iter().map(shifted));
            starts.push(first + dataset.len());
        }
        let count = starts[starts.len() - 1];
        if count == 0 || u32::try_from(count).is_err() {
            return Err(DataError::NoImages { count });
        }
        Ok(Self {
            datasets,
            starts,
            classes: Vec::new(),
            class_map: Vec::new(),
            mapped_targets: TargetRows::default(),
            damaged,
        })
    }

    /// Maps the classes of images: class `i` becomes `class_map[i]` of `classes`. So do targets; those that
    /// the data sets do not have are [`Dataset::target_of_other_labels`].
    ///
    /// # Errors
    ///
    /// [`DataError::LabelOutOfRange`]: an element of `class_map` is not below the number of classes.
    /// [`DataError::TooManyTargets`]: the targets do not fit the memory.
    pub fn with_class_map(mut self, classes: Vec<String>, class_map: Vec<u32>) -> Result<Self, DataError> {
        let is_out_of_range = |&(_, class): &(usize, &u32)| *class as usize >= classes.len();
        if let Some((index, &label)) = class_map.iter().enumerate().find(is_out_of_range) {
            let origin = self.datasets[0].name().to_owned();
            return Err(DataError::LabelOutOfRange { origin, index, label, classes: classes.len() });
        }
        if self.target_kind().is_some() {
            let other = self.datasets[0].target_of_other_labels();
            let mut mapped = TargetRowsBuilder::new(classes.len(), MAX_MAPPED_TARGETS);
            let mut row = vec![f32::NAN; classes.len()];
            for index in 0..self.len() {
                let targets = self.targets(index)?;
                // A sample without any target has none of another label either.
                row.fill(if targets.iter().all(|target| target.is_nan()) { f32::NAN } else { other });
                for (&target, &class) in targets.iter().zip(&class_map) {
                    row[class as usize] = target;
                }
                mapped.push(&row).map_err(|_| DataError::TooManyTargets {
                    dataset: self.datasets[0].name().to_owned(),
                    max: MAX_MAPPED_TARGETS,
                })?;
            }
            self.mapped_targets = mapped.finish();
        }
        (self.classes, self.class_map) = (classes, class_map);
        Ok(self)
    }

    /// The data set that holds a sample, and the sample's index in it.
    fn locate(&self, index: usize) -> Result<(&dyn Dataset, usize), DataError> {
        let len = self.len();
        if index >= len {
            return Err(DataError::SampleOutOfRange { dataset: self.name().to_owned(), index, len });
        }
        let dataset = self.starts.partition_point(|&first| first <= index) - 1;
        Ok((self.datasets[dataset].as_ref(), index - self.starts[dataset]))
    }

    fn map_label(&self, label: u32) -> u32 {
        self.class_map.get(label as usize).copied().unwrap_or(label)
    }
}

/// Returns whether two data sets have samples of the same names.
#[must_use]
pub fn have_same_samples(one: &dyn Dataset, other: &dyn Dataset) -> bool {
    one.len() == other.len() && (0..one.len()).all(|index| one.sample_name(index) == other.sample_name(index))
}

impl Dataset for ConcatDataset {
    fn name(&self) -> &str {
        self.datasets[0].name()
    }

    fn len(&self) -> usize {
        self.starts[self.datasets.len()]
    }

    fn classes(&self) -> usize {
        if self.classes.is_empty() { self.datasets[0].classes() } else { self.classes.len() }
    }

    fn class_name(&self, class: usize) -> String {
        if self.classes.is_empty() {
            return self.datasets[0].class_name(class);
        }
        self.classes.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        let shape = self.datasets[0].sample_shape();
        if self.datasets.iter().all(|dataset| dataset.sample_shape() == shape) { shape } else { None }
    }

    fn sample_name(&self, index: usize) -> String {
        self.locate(index)
            .map_or_else(|_| format!("sample {index}"), |(dataset, index)| dataset.sample_name(index))
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        let (dataset, index) = self.locate(index)?;
        Ok(self.map_label(dataset.label(index)?))
    }

    fn target_kind(&self) -> Option<TargetKind> {
        self.datasets[0].target_kind()
    }

    fn targets(&self, index: usize) -> Result<&[f32], DataError> {
        let (dataset, index_in_part) = self.locate(index)?;
        match self.mapped_targets.row(index) {
            [] => dataset.targets(index_in_part),
            mapped => Ok(mapped),
        }
    }

    fn target_of_other_labels(&self) -> f32 {
        self.datasets[0].target_of_other_labels()
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let (dataset, index) = self.locate(index)?;
        let sample = dataset.read(index, scratch)?;
        Ok(Sample { label: self.map_label(sample.label), ..sample })
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        region: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        let (dataset, index) = self.locate(index)?;
        let sample = dataset.read_region(index, scratch, region)?;
        Ok(Sample { label: self.map_label(sample.label), ..sample })
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        let (dataset, index) = self.locate(index)?;
        dataset.encoded(index, scratch)
    }

    fn stored_files(
        &self,
        index: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        if let Ok((dataset, index)) = self.locate(index) {
            dataset.stored_files(index, scratch, detail, report);
        }
    }

    fn archives(&self) -> Vec<(String, u64, Option<String>)> {
        self.datasets.iter().flat_map(|dataset| dataset.archives()).collect()
    }

    fn hash_memory(&self, hash: &mut Sha256) {
        self.datasets.iter().for_each(|dataset| dataset.hash_memory(hash));
    }

    fn groups(&self) -> Option<Groups<'_>> {
        if let [only] = &self.datasets[..] { only.groups() } else { None }
    }

    fn announce_groups(&self, now: &[u32], next: &[u32]) {
        if let [only] = &self.datasets[..] {
            only.announce_groups(now, next);
        }
    }

    fn damaged(&self) -> &[(u32, String)] {
        &self.damaged
    }

    fn ignored_files(&self) -> IgnoredFiles {
        let mut all = IgnoredFiles::default();
        self.datasets.iter().for_each(|dataset| all.extend(&dataset.ignored_files()));
        all
    }

    fn warnings(&self) -> Vec<String> {
        self.datasets.iter().flat_map(|dataset| dataset.warnings()).collect()
    }

    fn verify_files(&self) -> Result<Vec<(String, String)>, DataError> {
        let files = self.datasets.iter().map(|dataset| dataset.verify_files());
        Ok(files.collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn assumed_upright(&self) -> usize {
        self.datasets.iter().map(|dataset| dataset.assumed_upright()).sum()
    }

    fn has_masks(&self) -> bool {
        self.datasets[0].has_masks()
    }

    fn normalisation(&self) -> Normalisation {
        self.datasets[0].normalisation()
    }

    fn resident_bytes(&self) -> u64 {
        let mapped = self.mapped_targets.memory_bytes();
        mapped + self.datasets.iter().map(|dataset| dataset.resident_bytes()).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasets::entry::{OpenOptions, SyntheticOptions};
    use crate::datasets::open;
    use crate::datasets::split::Split;
    use std::path::Path;

    fn part(images: usize, split: Split) -> Box<dyn Dataset> {
        let size = SyntheticOptions { images, validation_images: 2, classes: 3, ..Default::default() };
        let options = OpenOptions { shape: [1, 2, 2], synthetic: size, ..OpenOptions::default() };
        open("synthetic", Path::new(""), split, &options).unwrap()
    }

    #[test]
    fn concatenates_samples_in_order() {
        let parts = || vec![part(4, Split::Train), part(4, Split::Validation)];
        let joined = ConcatDataset::new(parts()).unwrap();
        assert_eq!((joined.len(), joined.classes(), joined.sample_shape()), (6, 3, Some([1, 2, 2])));
        let [train, validation] = &parts()[..] else { panic!("two parts") };
        let (mut one, mut other) = (Scratch::default(), Scratch::default());
        for (index, (part, at)) in
            [(0, (train, 0)), (3, (train, 3)), (4, (validation, 0)), (5, (validation, 1))]
        {
            assert_eq!(joined.read(index, &mut one).unwrap(), part.read(at, &mut other).unwrap());
            assert_eq!(joined.label(index).unwrap(), part.label(at).unwrap());
            assert_eq!(joined.sample_name(index), part.sample_name(at));
        }
        assert!(joined.read(6, &mut one).is_err());
        assert!(
            have_same_samples(train.as_ref(), train.as_ref()) && !have_same_samples(&joined, train.as_ref())
        );
    }

    #[test]
    fn maps_classes_to_a_networks_indices() {
        let parts = || vec![part(9, Split::Train)];
        let names: Vec<String> = ["ant", "bee", "cat", "dog"].map(str::to_owned).to_vec();
        let joined =
            ConcatDataset::new(parts()).unwrap().with_class_map(names.clone(), vec![3, 1, 0]).unwrap();
        let plain = &parts()[0];
        for index in 0..9 {
            let expected = [3, 1, 0][plain.label(index).unwrap() as usize];
            assert_eq!(joined.label(index).unwrap(), expected);
            assert_eq!(joined.read(index, &mut Scratch::default()).unwrap().label, expected);
        }
        assert_eq!((joined.classes(), joined.class_name(3)), (4, "dog".to_owned()));
        assert!(ConcatDataset::new(parts()).unwrap().with_class_map(names, vec![0, 1, 4]).is_err());
        assert!(ConcatDataset::new(Vec::new()).is_err());
    }
}
