//! The samples of a split, in compact form: names in one buffer, and byte ranges for samples in an archive.

/// The byte range of a file in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    /// Its offset in bytes.
    pub offset: u64,
    /// Its length.
    pub bytes: u32,
}

/// Samples sorted by class and then by name.
#[derive(Debug)]
pub(super) struct Index {
    /// The classes' names: label 0, 1, ….
    classes: Vec<String>,
    /// The first sample of each class, and the number of samples.
    firsts: Vec<u32>,
    /// All file names, concatenated.
    names: String,
    /// The end of each name.
    ends: Vec<u32>,
    /// Offset and length of each file; empty for files on disk.
    offsets: Vec<u64>,
    lengths: Vec<u32>,
}

/// More samples, or longer names, than an index can hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

impl Index {
    pub(super) fn new(classes: Vec<String>) -> Self {
        let firsts = vec![0; 1];
        Self {
            classes,
            firsts,
            names: String::new(),
            ends: Vec::new(),
            offsets: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// Adds a sample to the class that is being filled.
    pub(super) fn push(&mut self, name: &str, range: Option<ByteRange>) -> Result<(), TooLarge> {
        self.names.push_str(name);
        let end = u32::try_from(self.names.len()).map_err(|_| TooLarge)?;
        if self.ends.len() >= u32::MAX as usize {
            return Err(TooLarge);
        }
        self.ends.push(end);
        if let Some(ByteRange { offset, bytes }) = range {
            self.offsets.push(offset);
            self.lengths.push(bytes);
        }
        Ok(())
    }

    /// Goes on to the next class.
    pub(super) fn end_class(&mut self) {
        self.firsts.push(self.ends.len() as u32);
    }

    /// Gives back memory that is not needed.
    pub(super) fn shrink(&mut self) {
        self.names.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.offsets.shrink_to_fit();
        self.lengths.shrink_to_fit();
    }

    /// The same with these samples alone, ascending, and of each class the first `most` of them.
    pub(super) fn part(&self, samples: &[u32], most: usize) -> Self {
        let mut part = Self::new(self.classes.clone());
        let mut left = samples.iter().map(|&sample| sample as usize).peekable();
        for &end in &self.firsts[1..] {
            let mut taken = 0;
            while let Some(sample) = left.next_if(|&sample| sample < end as usize) {
                taken += 1;
                if taken <= most {
                    // A part is not larger than the whole.
                    let _ = part.push(self.name(sample), self.range(sample));
                }
            }
            part.end_class();
        }
        part.shrink();
        part
    }

    /// The samples of a class.
    pub(super) fn samples(&self, class: usize) -> std::ops::Range<usize> {
        self.firsts[class] as usize..self.firsts[class + 1] as usize
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The class of a sample that is there.
    pub(super) fn class(&self, index: usize) -> usize {
        self.firsts.partition_point(|&first| first as usize <= index) - 1
    }

    /// The file name of a sample that is there.
    pub(super) fn name(&self, index: usize) -> &str {
        let begin = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.names[begin..self.ends[index] as usize]
    }

    /// Where a sample that is there lies in the archive.
    pub(super) fn range(&self, index: usize) -> Option<ByteRange> {
        Some(ByteRange { offset: *self.offsets.get(index)?, bytes: *self.lengths.get(index)? })
    }

    pub(super) fn empty_classes(&self) -> impl Iterator<Item = &str> {
        let is_empty = |(_, bounds): &(&String, &[u32])| bounds[0] == bounds[1];
        self.classes.iter().zip(self.firsts.windows(2)).filter(is_empty).map(|(class, _)| class.as_str())
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        let classes: usize =
            self.classes.iter().map(|class| class.capacity() + size_of::<String>()).sum::<usize>();
        (classes
            + self.names.capacity()
            + 4 * (self.firsts.capacity() + self.ends.capacity() + self.lengths.capacity())
            + 8 * self.offsets.capacity()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_their_class_name_and_place() {
        let mut index = Index::new(vec!["a".into(), "b".into(), "c".into(), "d".into()]);
        index.end_class();
        index.push("one", Some(ByteRange { offset: 512, bytes: 7 })).unwrap();
        index.push("", Some(ByteRange { offset: 1024, bytes: 8 })).unwrap();
        index.end_class();
        index.end_class();
        index.push("zwölf", Some(ByteRange { offset: 1 << 40, bytes: 9 })).unwrap();
        index.end_class();
        assert_eq!((0..3).map(|sample| index.class(sample)).collect::<Vec<_>>(), [1, 1, 3]);
        assert_eq!((0..3).map(|sample| index.name(sample)).collect::<Vec<_>>(), ["one", "", "zwölf"]);
        assert_eq!(index.range(2), Some(ByteRange { offset: 1 << 40, bytes: 9 }));
        assert_eq!(index.empty_classes().collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn a_part_keeps_classes_names_and_places() {
        let mut index = Index::new(vec!["a".into(), "b".into(), "c".into()]);
        for (class, count) in [3u32, 0, 2].into_iter().enumerate() {
            for sample in 0..count {
                let range = ByteRange { offset: u64::from(sample), bytes: class as u32 };
                index.push(&format!("{class}{sample}"), Some(range)).unwrap();
            }
            index.end_class();
        }
        assert_eq!([0, 1, 2].map(|class| index.samples(class)), [0..3, 3..3, 3..5]);
        let part = index.part(&[0, 2, 4], usize::MAX);
        assert_eq!((0..3).map(|sample| part.name(sample)).collect::<Vec<_>>(), ["00", "02", "21"]);
        assert_eq!((0..3).map(|sample| part.class(sample)).collect::<Vec<_>>(), [0, 0, 2]);
        assert_eq!(part.range(2), Some(ByteRange { offset: 1, bytes: 2 }));
        let fewer = index.part(&[0, 2, 3, 4], 1);
        assert_eq!((0..fewer.len()).map(|sample| fewer.name(sample)).collect::<Vec<_>>(), ["00", "20"]);
    }

    /// ImageNet: 1.3 million samples in 1,000 classes, in an archive, which needs most.
    #[test]
    fn over_a_million_samples_fit_into_sixty_megabytes() {
        let mut index = Index::new((0..1000).map(|class| format!("n{class:08}")).collect());
        for class in 0..1000 {
            for sample in 0..1300u32 {
                let name = format!("n{class:08}_{sample}.JPEG");
                let range = ByteRange { offset: u64::from(sample) * 110_000, bytes: 110_000 };
                index.push(&name, Some(range)).unwrap();
            }
            index.end_class();
        }
        index.shrink();
        assert_eq!(
            (index.len(), index.class(1_299_999), index.name(1300)),
            (1_300_000, 999, "n00000001_0.JPEG")
        );
        // 4 + 8 + 4 bytes a sample, and its name of 19 bytes at most.
        assert!(index.bytes() < 1_300_000 * 35 + 100_000, "{}", index.bytes());
    }
}
