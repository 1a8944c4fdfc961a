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
pub(super) struct SampleIndex {
    /// The names of the classes: label 0, 1, ….
    classes: Vec<String>,
    /// The first sample of each class, followed by the number of samples.
    class_starts: Vec<u32>,
    /// All file names, concatenated.
    names: String,
    /// The end of each name.
    name_ends: Vec<u32>,
    /// Offset and length of each file; empty for files on disk.
    offsets: Vec<u64>,
    lengths: Vec<u32>,
}

/// The error for more samples, or longer names, than an index can hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IndexFull;

impl SampleIndex {
    pub(super) fn new(classes: Vec<String>) -> Self {
        let class_starts = vec![0; 1];
        Self {
            classes,
            class_starts,
            names: String::new(),
            name_ends: Vec::new(),
            offsets: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// Adds a sample to the current class.
    pub(super) fn push(&mut self, name: &str, range: Option<ByteRange>) -> Result<(), IndexFull> {
        self.names.push_str(name);
        let end = u32::try_from(self.names.len()).map_err(|_| IndexFull)?;
        if self.name_ends.len() >= u32::MAX as usize {
            return Err(IndexFull);
        }
        self.name_ends.push(end);
        if let Some(ByteRange { offset, bytes }) = range {
            self.offsets.push(offset);
            self.lengths.push(bytes);
        }
        Ok(())
    }

    /// Ends the current class and begins the next.
    pub(super) fn finish_class(&mut self) {
        self.class_starts.push(self.name_ends.len() as u32);
    }

    /// Frees unused capacity.
    pub(super) fn shrink(&mut self) {
        self.names.shrink_to_fit();
        self.name_ends.shrink_to_fit();
        self.offsets.shrink_to_fit();
        self.lengths.shrink_to_fit();
    }

    /// The subset with `samples` (ascending), at most `max_per_class` per class.
    pub(super) fn subset(&self, samples: &[u32], max_per_class: usize) -> Self {
        let mut subset = Self::new(self.classes.clone());
        let mut remaining = samples.iter().map(|&sample| sample as usize).peekable();
        for &end in &self.class_starts[1..] {
            let mut taken = 0;
            while let Some(sample) = remaining.next_if(|&sample| sample < end as usize) {
                taken += 1;
                if taken <= max_per_class {
                    // A subset always fits.
                    let _ = subset.push(self.name(sample), self.range(sample));
                }
            }
            subset.finish_class();
        }
        subset.shrink();
        subset
    }

    /// The samples of a class.
    pub(super) fn samples(&self, class: usize) -> std::ops::Range<usize> {
        self.class_starts[class] as usize..self.class_starts[class + 1] as usize
    }

    pub(super) fn len(&self) -> usize {
        self.name_ends.len()
    }

    pub(super) fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The class of an existing sample.
    pub(super) fn class(&self, index: usize) -> usize {
        self.class_starts.partition_point(|&first| first as usize <= index) - 1
    }

    /// The file name of an existing sample.
    pub(super) fn name(&self, index: usize) -> &str {
        let begin = if index == 0 { 0 } else { self.name_ends[index - 1] as usize };
        &self.names[begin..self.name_ends[index] as usize]
    }

    /// The byte range of an existing sample in the archive.
    pub(super) fn range(&self, index: usize) -> Option<ByteRange> {
        Some(ByteRange { offset: *self.offsets.get(index)?, bytes: *self.lengths.get(index)? })
    }

    pub(super) fn empty_classes(&self) -> impl Iterator<Item = &str> {
        let is_empty = |(_, bounds): &(&String, &[u32])| bounds[0] == bounds[1];
        self.classes
            .iter()
            .zip(self.class_starts.windows(2))
            .filter(is_empty)
            .map(|(class, _)| class.as_str())
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let classes: usize =
            self.classes.iter().map(|class| class.capacity() + size_of::<String>()).sum::<usize>();
        (classes
            + self.names.capacity()
            + 4 * (self.class_starts.capacity() + self.name_ends.capacity() + self.lengths.capacity())
            + 8 * self.offsets.capacity()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_returns_class_name_and_byte_range() {
        let mut index = SampleIndex::new(vec!["a".into(), "b".into(), "c".into(), "d".into()]);
        index.finish_class();
        index.push("one", Some(ByteRange { offset: 512, bytes: 7 })).unwrap();
        index.push("", Some(ByteRange { offset: 1024, bytes: 8 })).unwrap();
        index.finish_class();
        index.finish_class();
        index.push("zwölf", Some(ByteRange { offset: 1 << 40, bytes: 9 })).unwrap();
        index.finish_class();
        assert_eq!((0..3).map(|sample| index.class(sample)).collect::<Vec<_>>(), [1, 1, 3]);
        assert_eq!((0..3).map(|sample| index.name(sample)).collect::<Vec<_>>(), ["one", "", "zwölf"]);
        assert_eq!(index.range(2), Some(ByteRange { offset: 1 << 40, bytes: 9 }));
        assert_eq!(index.empty_classes().collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn subset_keeps_classes_names_and_byte_ranges() {
        let mut index = SampleIndex::new(vec!["a".into(), "b".into(), "c".into()]);
        for (class, count) in [3u32, 0, 2].into_iter().enumerate() {
            for sample in 0..count {
                let range = ByteRange { offset: u64::from(sample), bytes: class as u32 };
                index.push(&format!("{class}{sample}"), Some(range)).unwrap();
            }
            index.finish_class();
        }
        assert_eq!([0, 1, 2].map(|class| index.samples(class)), [0..3, 3..3, 3..5]);
        let part = index.subset(&[0, 2, 4], usize::MAX);
        assert_eq!((0..3).map(|sample| part.name(sample)).collect::<Vec<_>>(), ["00", "02", "21"]);
        assert_eq!((0..3).map(|sample| part.class(sample)).collect::<Vec<_>>(), [0, 0, 2]);
        assert_eq!(part.range(2), Some(ByteRange { offset: 1, bytes: 2 }));
        let fewer = index.subset(&[0, 2, 3, 4], 1);
        assert_eq!((0..fewer.len()).map(|sample| fewer.name(sample)).collect::<Vec<_>>(), ["00", "20"]);
    }

    /// ImageNet: 1.3 million samples in 1,000 classes, in an archive, which needs the most memory.
    #[test]
    fn a_million_samples_fit_in_sixty_megabytes() {
        let mut index = SampleIndex::new((0..1000).map(|class| format!("n{class:08}")).collect());
        for class in 0..1000 {
            for sample in 0..1300u32 {
                let name = format!("n{class:08}_{sample}.JPEG");
                let range = ByteRange { offset: u64::from(sample) * 110_000, bytes: 110_000 };
                index.push(&name, Some(range)).unwrap();
            }
            index.finish_class();
        }
        index.shrink();
        assert_eq!(
            (index.len(), index.class(1_299_999), index.name(1300)),
            (1_300_000, 999, "n00000001_0.JPEG")
        );
        // 4 + 8 + 4 bytes per sample, and a name of at most 19 bytes.
        assert!(index.memory_bytes() < 1_300_000 * 35 + 100_000, "{}", index.memory_bytes());
    }
}
