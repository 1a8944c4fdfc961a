//! Data sets with a class per image, seen as data sets with targets: one-hot labels, or the names of the
//! classes as numbers.

use std::marker::PhantomData;
use std::sync::Arc;

use sha2::Sha256;

use crate::dataset::{
    Dataset, FileDetail, Groups, IGNORED, MAX_LISTED_SAMPLES, RegionRequest, Sample, Scratch, StoredFile,
    TargetKind,
};
use crate::error::DataError;
use crate::ignored_files::IgnoredFiles;
use crate::transform::pixels::Normalisation;

/// The name of the target that [`NumbersOfClasses`] has.
pub const NUMBER_NAME: &str = "number";

/// A data set with a class per image whose targets are labels, one per class: 1 for the class of the image,
/// else 0. All are missing for images without a class.
pub type LabelsOfClasses = ClassTargets<OneHot>;

/// A data set with a class per image whose only target, [`NUMBER_NAME`], is the name of the class as a
/// number, such as the age in `<age>/<image>`. It is missing for images without a class.
pub type NumbersOfClasses = ClassTargets<Number>;

/// The encoding of [`LabelsOfClasses`].
#[derive(Debug)]
pub enum OneHot {}

/// The encoding of [`NumbersOfClasses`].
#[derive(Debug)]
pub enum Number {}

/// A data set with a class per image whose targets are made from the classes.
pub struct ClassTargets<E> {
    dataset: Arc<dyn Dataset>,
    kind: TargetKind,
    /// The targets of class `i` are the `targets` values from `first + i * step` on.
    values: Vec<f32>,
    first: usize,
    step: isize,
    /// The targets of images without a class.
    missing: Vec<f32>,
    encoding: PhantomData<fn() -> E>,
}

impl ClassTargets<OneHot> {
    /// The labels of a data set.
    #[must_use]
    pub fn new(dataset: Arc<dyn Dataset>) -> Self {
        let classes = dataset.classes();
        // The row of class `i` begins `i` values before the only 1, which is in the middle.
        let mut values = vec![0.0; (2 * classes).saturating_sub(1)];
        let first = classes.saturating_sub(1);
        if let Some(middle) = values.get_mut(first) {
            *middle = 1.0;
        }
        let missing = vec![f32::NAN; classes];
        Self { dataset, kind: TargetKind::Labels, values, first, step: -1, missing, encoding: PhantomData }
    }
}

impl ClassTargets<Number> {
    /// The numbers of a data set.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidOption`]: names of classes that are not finite numbers, or masks instead of
    /// classes.
    pub fn new(dataset: Arc<dyn Dataset>) -> Result<Self, DataError> {
        let invalid = |problem| Err(DataError::InvalidOption { key: "train.loss", problem });
        if dataset.has_masks() {
            return invalid(format!("`{}` has masks, but a loss of numbers needs targets", dataset.name()));
        }
        let number =
            |class| dataset.class_name(class).trim().parse().ok().filter(|number: &f32| number.is_finite());
        let numbers: Vec<Option<f32>> = (0..dataset.classes()).map(number).collect();
        let others = numbers.iter().enumerate().filter(|(_, number)| number.is_none());
        let listed: Vec<String> =
            others.clone().take(MAX_LISTED_SAMPLES).map(|(class, _)| dataset.class_name(class)).collect();
        if !listed.is_empty() {
            let more = if others.count() > listed.len() { ", …" } else { "" };
            return invalid(format!(
                "a loss of numbers needs classes whose names are numbers, but `{}` has the classes \
                 `{}`{more}; set it to cross_entropy",
                dataset.name(),
                listed.join("`, `")
            ));
        }
        Ok(Self {
            dataset,
            kind: TargetKind::Numbers,
            values: numbers.into_iter().flatten().collect(),
            first: 0,
            step: 1,
            missing: vec![f32::NAN],
            encoding: PhantomData,
        })
    }
}

impl<E> Dataset for ClassTargets<E> {
    fn name(&self) -> &str {
        self.dataset.name()
    }

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn classes(&self) -> usize {
        self.missing.len()
    }

    fn class_name(&self, class: usize) -> String {
        match self.kind {
            TargetKind::Labels => self.dataset.class_name(class),
            TargetKind::Numbers => NUMBER_NAME.to_owned(),
        }
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        self.dataset.sample_shape()
    }

    fn sample_name(&self, index: usize) -> String {
        self.dataset.sample_name(index)
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.dataset.label(index).map(|_| IGNORED)
    }

    fn target_kind(&self) -> Option<TargetKind> {
        Some(self.kind)
    }

    fn target_of_other_labels(&self) -> f32 {
        match self.kind {
            TargetKind::Labels => 0.0,
            TargetKind::Numbers => f32::NAN,
        }
    }

    fn targets(&self, index: usize) -> Result<&[f32], DataError> {
        let label = self.dataset.label(index)?;
        let first = isize::try_from(label).ok().and_then(|class| self.step.checked_mul(class));
        let first = first.and_then(|offset| self.first.checked_add_signed(offset));
        let row = first.and_then(|first| self.values.get(first..first.checked_add(self.missing.len())?));
        Ok(row.unwrap_or(&self.missing))
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        Ok(Sample { label: IGNORED, mask: None, ..self.dataset.read(index, scratch)? })
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        region: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        Ok(Sample { label: IGNORED, mask: None, ..self.dataset.read_region(index, scratch, region)? })
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        self.dataset.encoded(index, scratch)
    }

    fn stored_files(
        &self,
        index: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        self.dataset.stored_files(index, scratch, detail, report);
    }

    fn archives(&self) -> Vec<(String, u64, Option<String>)> {
        self.dataset.archives()
    }

    fn hash_memory(&self, hash: &mut Sha256) {
        self.dataset.hash_memory(hash);
    }

    fn groups(&self) -> Option<Groups<'_>> {
        self.dataset.groups()
    }

    fn announce_groups(&self, now: &[u32], next: &[u32]) {
        self.dataset.announce_groups(now, next);
    }

    fn damaged(&self) -> &[(u32, String)] {
        self.dataset.damaged()
    }

    fn ignored_files(&self) -> IgnoredFiles {
        self.dataset.ignored_files()
    }

    fn warnings(&self) -> Vec<String> {
        self.dataset.warnings()
    }

    fn verify_files(&self) -> Result<Vec<(String, String)>, DataError> {
        self.dataset.verify_files()
    }

    fn assumed_upright(&self) -> usize {
        self.dataset.assumed_upright()
    }

    fn normalisation(&self) -> Normalisation {
        self.dataset.normalisation()
    }

    fn resident_bytes(&self) -> u64 {
        self.dataset.resident_bytes() + 4 * (self.values.capacity() + self.missing.capacity()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasets::concat::ConcatDataset;
    use crate::datasets::entry::{OpenOptions, SyntheticOptions};
    use crate::datasets::{SplitMethod, open, split::Split};
    use crate::memory::{ImagesInMemory, StoredImage};

    fn synthetic(classes: usize) -> Arc<dyn Dataset> {
        let synthetic = SyntheticOptions { images: 9, classes, ..SyntheticOptions::default() };
        let options = OpenOptions { shape: [1, 2, 2], synthetic, ..OpenOptions::default() };
        Arc::from(open("synthetic", std::path::Path::new(""), Split::Train, &options).unwrap())
    }

    #[test]
    fn labels_are_one_hot() {
        for classes in [1, 2, 5] {
            let plain = synthetic(classes);
            let set = LabelsOfClasses::new(Arc::clone(&plain));
            assert_eq!((set.classes(), set.len(), set.target_kind()), (classes, 9, Some(TargetKind::Labels)));
            for index in 0..9 {
                let class = plain.label(index).unwrap() as usize;
                let expected: Vec<f32> = (0..classes).map(|at| f32::from(u8::from(at == class))).collect();
                assert_eq!(set.targets(index).unwrap(), expected);
                assert_eq!(set.read(index, &mut Scratch::default()).unwrap().label, IGNORED);
                assert_eq!(set.label(index).unwrap(), IGNORED);
            }
            assert!(set.targets(9).is_err());
        }
    }

    #[test]
    fn images_without_a_class_have_missing_targets() {
        let image = StoredImage::interleaved(vec![0; 3], [3, 1, 1]);
        let set = ImagesInMemory::new(vec![image], 2, true).unwrap();
        let set = LabelsOfClasses::new(Arc::new(set));
        assert!(set.targets(0).unwrap().iter().all(|target| target.is_nan()));
        assert_eq!(set.targets(0).unwrap().len(), 2);
    }

    #[test]
    fn numbers_are_the_names_of_classes() {
        let folder = tempfile::tempdir().unwrap();
        let put = |class: &str| {
            std::fs::create_dir_all(folder.path().join(class)).unwrap();
            std::fs::write(folder.path().join(class).join("a.png"), "").unwrap();
        };
        let opened = || -> Arc<dyn Dataset> {
            let options =
                OpenOptions { verify: false, split_method: SplitMethod::Unsplit, ..OpenOptions::default() };
            Arc::from(open("folder", folder.path(), Split::Train, &options).unwrap())
        };
        ["-1.5", "007", "3e2"].iter().for_each(|class| put(class));
        let set = NumbersOfClasses::new(opened()).unwrap();
        let numbers: Vec<f32> = (0..3).map(|index| set.targets(index).unwrap()[0]).collect();
        assert_eq!(numbers, [-1.5, 7.0, 300.0]);
        assert_eq!((set.classes(), set.class_name(0)), (1, NUMBER_NAME.to_owned()));
        assert_eq!(set.target_kind(), Some(TargetKind::Numbers));
        ["inf", "cat"].iter().for_each(|class| put(class));
        let message = NumbersOfClasses::new(opened()).map(drop).unwrap_err().to_string();
        assert_eq!(
            message,
            "train.loss: a loss of numbers needs classes whose names are numbers, but `folder` has the \
             classes `cat`, `inf`; set it to cross_entropy"
        );
    }

    #[test]
    fn a_class_map_moves_targets() {
        let plain = synthetic(2);
        let joined = ConcatDataset::new(vec![Box::new(LabelsOfClasses::new(Arc::clone(&plain)))]).unwrap();
        assert_eq!(joined.targets(1).unwrap().len(), 2);
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mapped = joined.with_class_map(names, vec![2, 0]).unwrap();
        for index in 0..9 {
            let targets = mapped.targets(index).unwrap();
            let is_first = plain.label(index).unwrap() == 0;
            assert_eq!([targets[2], targets[0]], if is_first { [1.0, 0.0] } else { [0.0, 1.0] });
            // The class of the image is another one.
            assert_eq!(targets[1], 0.0);
        }
        assert!(mapped.targets(9).is_err());
    }
}
