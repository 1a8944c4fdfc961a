//! Splits of a data set, and how samples are assigned to them.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use stratus_base::{did_you_mean, nearest};
use stratus_random::{Purpose, Stream};
use thiserror::Error;

/// A split of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// For training.
    Train,
    /// For validation after each epoch. If a data set is published in two splits, the second.
    Validation,
    /// For the final test. If a data set is published in two splits, the second.
    Test,
}

impl Split {
    const ALL: [Self; 3] = [Self::Train, Self::Validation, Self::Test];

    /// The name in configurations and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validation => "validation",
            Self::Test => "test",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a name that is not that of a split.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown split `{name}`{}; available: train, validation, test", did_you_mean(.nearest.as_deref()))]
pub struct UnknownSplit {
    /// The requested name.
    pub name: String,
    /// The most similar known name, if any.
    pub nearest: Option<String>,
}

impl FromStr for Split {
    type Err = UnknownSplit;

    fn from_str(name: &str) -> Result<Self, UnknownSplit> {
        if ["val", "valid"].contains(&name) {
            return Ok(Self::Validation);
        }
        Self::ALL.into_iter().find(|split| split.name() == name).ok_or_else(|| UnknownSplit {
            name: name.to_owned(),
            nearest: nearest(name, Self::ALL.map(Self::name)).map(str::to_owned),
        })
    }
}

/// The minimum number of images per class for which [`SplitMethod::Seeded`] assigns at least one to this
/// split.
#[must_use]
pub(super) fn min_images_per_class(split: Split) -> usize {
    match split {
        Split::Train => 1,
        Split::Validation => 3,
        Split::Test => 5,
    }
}

/// The method of assigning samples to splits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SplitMethod {
    /// As published: by folders or lists.
    #[default]
    Published,
    /// 60 % training, 20 % validation and 20 % test, for each class separately: a function of this seed and
    /// the file names.
    Seeded(u64),
    /// By list files: training, validation and optionally test.
    Lists(Vec<PathBuf>),
    /// None: every split holds all samples. Data sets with published splits keep theirs.
    Unsplit,
}

impl SplitMethod {
    /// The list file of a split, if the method has lists.
    pub(super) fn list_of(&self, split: Split) -> Option<&Path> {
        let Self::Lists(lists) = self else { return None };
        let list = match split {
            Split::Train => lists.first(),
            Split::Validation => lists.get(1),
            Split::Test => lists.get(2).or(lists.get(1)),
        };
        list.map(PathBuf::as_path)
    }
}

/// The indices of a split's samples among `names`, in ascending order.
///
/// Each sample gets a random number from the seed and its name. Samples are sorted by it, and the splits are
/// consecutive ranges. So the split does not depend on the folder, the order of files or the machine, and
/// adding a few files moves few samples. The training split is rounded up: it is the last to become empty.
pub(super) fn seeded_split<'a>(
    seed: u64,
    split: Split,
    names: impl Iterator<Item = Cow<'a, str>>,
) -> Vec<u32> {
    let mut sorted: Vec<([u32; 4], u32)> = names
        .zip(0..)
        .map(|(name, index)| {
            let digest = Sha256::digest(name.as_bytes());
            let number = digest.iter().take(8).fold(0u64, |all, &byte| all << 8 | u64::from(byte));
            // 128 bits: collisions do not occur in practice; they would keep the order of `names`.
            (Stream::new(seed, Purpose::Split, number, 0).block(0), index)
        })
        .collect();
    sorted.sort_unstable();
    let end_of_fifths = |fifths: usize| (sorted.len() * fifths).div_ceil(5);
    let range = match split {
        Split::Train => 0..end_of_fifths(3),
        Split::Validation => end_of_fifths(3)..end_of_fifths(4),
        Split::Test => end_of_fifths(4)..sorted.len(),
    };
    let mut part: Vec<u32> = sorted[range].iter().map(|(_, index)| *index).collect();
    part.sort_unstable();
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("image_{number}.png")).collect()
    }

    fn part(seed: u64, split: Split, names: &[String]) -> Vec<String> {
        let part = seeded_split(seed, split, names.iter().map(|name| Cow::Borrowed(name.as_str())));
        part.into_iter().map(|index| names[index as usize].clone()).collect()
    }

    #[test]
    fn splits_60_20_20_without_overlap() {
        for count in [0, 1, 2, 3, 4, 5, 10, 701] {
            let names = names(count);
            let parts = [Split::Train, Split::Validation, Split::Test].map(|split| part(1, split, &names));
            let lengths = parts.each_ref().map(Vec::len);
            let first = (count * 3).div_ceil(5);
            assert_eq!(lengths, [first, (count * 4).div_ceil(5) - first, count / 5]);
            let mut all = parts.concat();
            all.sort_unstable();
            let mut expected = names.clone();
            expected.sort_unstable();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn splits_depend_on_seed_and_names_only() {
        let names = names(200);
        let mut reversed = names.clone();
        reversed.reverse();
        let sorted = |mut part: Vec<String>| {
            part.sort_unstable();
            part
        };
        let train = sorted(part(3, Split::Train, &names));
        assert_eq!(sorted(part(3, Split::Train, &reversed)), train);
        assert_ne!(sorted(part(4, Split::Train, &names)), train);
        // An additional sample moves at most one other.
        let more: Vec<String> = names.iter().cloned().chain(["another.png".to_owned()]).collect();
        let with_one_more = part(3, Split::Train, &more);
        assert!(train.iter().filter(|name| !with_one_more.contains(name)).count() <= 1);
    }
}
