//! Several data sets as one: the parts of one that are measured together, or one whose classes are numbered
//! as a network numbers them.

use sha2::Sha256;

use super::{Dataset, FileDetail, Groups, RegionRequest, Sample, Scratch, StoredFile};
use crate::error::DataError;
use crate::transform::pixels::Normalisation;

/// Data sets of the same classes, one after the other.
pub struct Joined {
    parts: Vec<Box<dyn Dataset>>,
    /// The first sample of each part, and the number of samples.
    firsts: Vec<usize>,
    /// The names of the classes, and for each class of the parts its number among them; empty where the parts
    /// number them.
    classes: Vec<String>,
    numbers: Vec<u32>,
    damaged: Vec<(u32, String)>,
}

impl Joined {
    /// One or several data sets.
    ///
    /// # Errors
    ///
    /// [`DataError::NoImages`]: there are none, or more images than can be counted.
    pub fn new(parts: Vec<Box<dyn Dataset>>) -> Result<Self, DataError> {
        let mut firsts = vec![0];
        let mut damaged = Vec::new();
        for part in &parts {
            let first = firsts[firsts.len() - 1];
            let moved = |(index, problem): &(u32, String)| (first as u32 + index, problem.clone());
            damaged.extend(part.damaged().iter().map(moved));
            firsts.push(first + part.len());
        }
        let count = firsts[firsts.len() - 1];
        if count == 0 || u32::try_from(count).is_err() {
            return Err(DataError::NoImages { count });
        }
        Ok(Self { parts, firsts, classes: Vec::new(), numbers: Vec::new(), damaged })
    }

    /// The same with these classes: class `i` of the parts, of images, becomes `numbers[i]`.
    ///
    /// # Errors
    ///
    /// [`DataError::LabelOutOfRange`]: a number is none of a class.
    pub fn numbered(mut self, classes: Vec<String>, numbers: Vec<u32>) -> Result<Self, DataError> {
        let is_wrong = |&(_, number): &(usize, &u32)| *number as usize >= classes.len();
        if let Some((index, &label)) = numbers.iter().enumerate().find(is_wrong) {
            let origin = self.parts[0].name().to_owned();
            return Err(DataError::LabelOutOfRange { origin, index, label, classes: classes.len() });
        }
        (self.classes, self.numbers) = (classes, numbers);
        Ok(self)
    }

    /// The part that holds a sample, and the sample's number in it.
    fn locate(&self, index: usize) -> Result<(&dyn Dataset, usize), DataError> {
        let len = self.len();
        if index >= len {
            return Err(DataError::NoSuchSample { dataset: self.name().to_owned(), index, len });
        }
        let part = self.firsts.partition_point(|&first| first <= index) - 1;
        Ok((self.parts[part].as_ref(), index - self.firsts[part]))
    }

    fn label_of(&self, label: u32) -> u32 {
        self.numbers.get(label as usize).copied().unwrap_or(label)
    }
}

/// Whether two data sets have the same samples, by their names.
#[must_use]
pub fn are_same(one: &dyn Dataset, other: &dyn Dataset) -> bool {
    one.len() == other.len() && (0..one.len()).all(|index| one.sample_name(index) == other.sample_name(index))
}

impl Dataset for Joined {
    fn name(&self) -> &str {
        self.parts[0].name()
    }

    fn len(&self) -> usize {
        self.firsts[self.parts.len()]
    }

    fn classes(&self) -> usize {
        if self.classes.is_empty() { self.parts[0].classes() } else { self.classes.len() }
    }

    fn class_name(&self, class: usize) -> String {
        if self.classes.is_empty() {
            return self.parts[0].class_name(class);
        }
        self.classes.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        let shape = self.parts[0].sample_shape();
        if self.parts.iter().all(|part| part.sample_shape() == shape) { shape } else { None }
    }

    fn sample_name(&self, index: usize) -> String {
        self.locate(index).map_or_else(|_| format!("sample {index}"), |(part, index)| part.sample_name(index))
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        let (part, index) = self.locate(index)?;
        Ok(self.label_of(part.label(index)?))
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let (part, index) = self.locate(index)?;
        let sample = part.read(index, scratch)?;
        Ok(Sample { label: self.label_of(sample.label), ..sample })
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        wanted: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        let (part, index) = self.locate(index)?;
        let sample = part.read_region(index, scratch, wanted)?;
        Ok(Sample { label: self.label_of(sample.label), ..sample })
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        let (part, index) = self.locate(index)?;
        part.encoded(index, scratch)
    }

    fn stored_files(
        &self,
        index: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        if let Ok((part, index)) = self.locate(index) {
            part.stored_files(index, scratch, detail, report);
        }
    }

    fn archives(&self) -> Vec<(String, u64, Option<String>)> {
        self.parts.iter().flat_map(|part| part.archives()).collect()
    }

    fn hash_memory(&self, hash: &mut Sha256) {
        self.parts.iter().for_each(|part| part.hash_memory(hash));
    }

    fn groups(&self) -> Option<Groups<'_>> {
        if let [only] = &self.parts[..] { only.groups() } else { None }
    }

    fn expect(&self, now: &[u32], next: &[u32]) {
        if let [only] = &self.parts[..] {
            only.expect(now, next);
        }
    }

    fn damaged(&self) -> &[(u32, String)] {
        &self.damaged
    }

    fn damaged_files(&self) -> Result<Vec<(String, String)>, DataError> {
        let files = self.parts.iter().map(|part| part.damaged_files());
        Ok(files.collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn assumed_upright(&self) -> usize {
        self.parts.iter().map(|part| part.assumed_upright()).sum()
    }

    fn masks(&self) -> bool {
        self.parts[0].masks()
    }

    fn normalisation(&self) -> Normalisation {
        self.parts[0].normalisation()
    }

    fn resident_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.resident_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasets::{OpenOptions, Split, open, synthetic};
    use std::path::Path;

    fn part(images: usize, split: Split) -> Box<dyn Dataset> {
        let size = synthetic::Size { images, validation_images: 2, classes: 3, ..Default::default() };
        let options = OpenOptions { shape: [1, 2, 2], synthetic: size, ..OpenOptions::default() };
        open("synthetic", Path::new(""), split, &options).unwrap()
    }

    #[test]
    fn samples_follow_each_other() {
        let parts = || vec![part(4, Split::Train), part(4, Split::Validation)];
        let joined = Joined::new(parts()).unwrap();
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
        assert!(are_same(train.as_ref(), train.as_ref()) && !are_same(&joined, train.as_ref()));
    }

    #[test]
    fn classes_are_numbered_as_a_network_numbers_them() {
        let parts = || vec![part(9, Split::Train)];
        let names: Vec<String> = ["ant", "bee", "cat", "dog"].map(str::to_owned).to_vec();
        let joined = Joined::new(parts()).unwrap().numbered(names.clone(), vec![3, 1, 0]).unwrap();
        let plain = &parts()[0];
        for index in 0..9 {
            let expected = [3, 1, 0][plain.label(index).unwrap() as usize];
            assert_eq!(joined.label(index).unwrap(), expected);
            assert_eq!(joined.read(index, &mut Scratch::default()).unwrap().label, expected);
        }
        assert_eq!((joined.classes(), joined.class_name(3)), (4, "dog".to_owned()));
        assert!(Joined::new(parts()).unwrap().numbered(names, vec![0, 1, 4]).is_err());
        assert!(Joined::new(Vec::new()).is_err());
    }
}
