//! Splits of a data set, and how samples are assigned to them.

mod seeded;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stratus_base::nearest;

pub(super) use self::seeded::seeded_split;
use crate::error::DataError;

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

impl FromStr for Split {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        if ["val", "valid"].contains(&name) {
            return Ok(Self::Validation);
        }
        Self::ALL.into_iter().find(|split| split.name() == name).ok_or_else(|| DataError::UnknownSplit {
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
