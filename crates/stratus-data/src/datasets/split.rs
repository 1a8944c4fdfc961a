//! Splits of a data set, and how samples are assigned to them.

mod seeded;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stratus_base::nearest;

pub(super) use self::seeded::part_of;
use crate::error::DataError;

/// A split of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// For training.
    Train,
    /// For validation after each epoch. The second part of data sets that are published in two parts.
    Validation,
    /// For the final test. The second part of data sets that are published in two parts.
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

/// The fewest images of a class of which [`SplitBy::Seeded`] gives each split one.
#[must_use]
pub(super) fn least_images(split: Split) -> usize {
    match split {
        Split::Train => 1,
        Split::Validation => 3,
        Split::Test => 5,
    }
}

/// How the samples of a data set of image files are assigned to splits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SplitBy {
    /// As published: by folders or lists.
    #[default]
    Given,
    /// 60 % training, 20 % validation and 20 % test, separately in the folder of each class. A function of
    /// this seed and the file names.
    Seeded(u64),
    /// By list files: training, validation, and optionally test.
    Listed(Vec<PathBuf>),
    /// Not at all: each split is all that could be divided. Data sets that are published in parts have them.
    Whole,
}

impl SplitBy {
    /// The list file of a split, where there are lists.
    pub(super) fn list_of(&self, split: Split) -> Option<&Path> {
        let Self::Listed(lists) = self else { return None };
        let list = match split {
            Split::Train => lists.first(),
            Split::Validation => lists.get(1),
            Split::Test => lists.get(2).or(lists.get(1)),
        };
        list.map(PathBuf::as_path)
    }
}
