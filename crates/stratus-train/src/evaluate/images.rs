//! Which images weights are measured on.

use crate::input::{open_options, open_split};
use crate::weights::are_numbers;
use crate::{Experiment, TrainError};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use stratus_data::datasets::joined::{Joined, are_same};
use stratus_data::{DataError, Dataset, OpenOptions, Split, SplitBy};
use stratus_run::data::class_difference;

/// A part of a data set, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One of the parts.
    Split(Split),
    /// Every image.
    All,
}

impl Part {
    /// The name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Split(split) => split.name(),
            Self::All => "all",
        }
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "all" => Ok(Self::All),
            name => name.parse().map(Self::Split).map_err(|_| "give train, val, test or all".to_owned()),
        }
    }
}

/// Which images to measure on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageChoice {
    /// The folder of a data set; `None` for that of the experiment. Parts that it comes in go before
    /// `data.split_seed` and `data.lists`.
    pub path: Option<String>,
    /// The part. Without it the validation images; but all images of a folder of classes in `path` that does
    /// not come in parts.
    pub part: Option<Part>,
}

/// What was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeasuredImages {
    /// The data set's name.
    pub data: String,
    /// Where it is.
    pub path: String,
    /// `train`, `validation`, `test` or `all`.
    pub part: &'static str,
    /// The number of images.
    pub images: usize,
    /// `data.split_seed`, if it made the part.
    pub split_seed: Option<u64>,
    /// Whether the test part is the validation part too: the data set comes in two parts.
    pub validated_on: bool,
    /// The number of images among them that could not be decoded, and are left out
    /// (`data.on_bad_sample = "skip"`).
    #[serde(skip_serializing_if = "is_none_left_out")]
    pub left_out: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_none_left_out(count: &usize) -> bool {
    *count == 0
}

impl MeasuredImages {
    /// Checks that at least one image could be decoded.
    ///
    /// # Errors
    /// If no image could be decoded.
    pub(super) fn expect_some(&self) -> Result<(), TrainError> {
        if self.left_out < self.images {
            return Ok(());
        }
        Err(TrainError::Configuration {
            problem: format!("none of {self} can be decoded"),
            hint: "`stratus data check` lists what is wrong with them".to_owned(),
        })
    }

    /// What else is to be known of the part.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        match self.split_seed {
            _ if self.validated_on => Some("which is its validation part too".to_owned()),
            Some(seed) => Some(format!("divided by data.split_seed = {seed}")),
            None => None,
        }
    }
}

/// As a sentence's end: `100 images of the validation part of photographs`.
impl fmt::Display for MeasuredImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, part, images, .. } = self;
        let plural = if *images == 1 { "" } else { "s" };
        match *part {
            "all" => write!(f, "{images} image{plural}, all of {path}"),
            part => write!(f, "{images} image{plural} of the {part} part of {path}"),
        }
    }
}

/// Images to measure on.
pub(super) struct OpenImages {
    pub set: Arc<dyn Dataset>,
    pub measured: MeasuredImages,
}

impl ImageChoice {
    /// Opens the images for a network whose classes are called `names`, as far as that is known.
    ///
    /// # Errors
    /// If they are missing or damaged, do not come in such parts, or have classes that the network has not.
    pub(super) fn open(&self, experiment: &Experiment, names: &[String]) -> Result<OpenImages, TrainError> {
        let mut experiment = experiment.clone();
        if let Some(path) = &self.path {
            experiment.data.path = Some(path.clone());
        }
        let options = open_options(&experiment);
        let open = |split: Split, split_by: &SplitBy| {
            let options = OpenOptions { split_by: split_by.clone(), ..options.clone() };
            open_split(&experiment, split, &options)
        };
        let one = |split: Split, split_by: &SplitBy| Ok((Part::Split(split), vec![open(split, split_by)?]));
        let whole = || Ok((Part::All, vec![open(Split::Validation, &SplitBy::Whole)?]));
        // Parts that are there go before those that the experiment would make.
        let given = if self.path.is_some() { &SplitBy::Given } else { &options.split_by };
        let found = match self.part {
            Some(Part::All) if matches!(given, SplitBy::Seeded(_)) => whole(),
            Some(Part::All) => all_parts(&|split| open(split, given)).map(|parts| (Part::All, parts)),
            Some(Part::Split(split)) => one(split, given),
            None => one(Split::Validation, given),
        };
        let is_undivided = matches!(found, Err(TrainError::Data(DataError::Undivided { .. })));
        let ((part, parts), divided) = match self.part {
            Some(Part::Split(split)) if is_undivided && *given != options.split_by => {
                (one(split, &options.split_by)?, &options.split_by)
            }
            None if is_undivided && self.path.is_some() => (whole()?, &SplitBy::Whole),
            Some(Part::All) if is_undivided => (whole()?, &SplitBy::Whole),
            _ => (found?, given),
        };
        let validated_on = part == Part::Split(Split::Test) && *divided == SplitBy::Given && {
            let quick = OpenOptions {
                verify: false,
                skip_damaged: true,
                split_by: SplitBy::Given,
                ..options.clone()
            };
            let validation = open_split(&experiment, Split::Validation, &quick);
            validation.is_ok_and(|set| are_same(set.as_ref(), parts[0].as_ref()))
        };
        let split_seed = match divided {
            SplitBy::Seeded(seed) if part != Part::All => Some(*seed),
            _ => None,
        };
        let path = experiment.data_path().display().to_string();
        let numbers = numbers_of(parts[0].as_ref(), names, &path)?;
        let joined = Joined::new(parts)?;
        let joined = match numbers {
            Some(numbers) => joined.numbered(names.to_vec(), numbers)?,
            None => joined,
        };
        let measured = MeasuredImages {
            data: experiment.data.name.clone(),
            path,
            part: part.name(),
            images: joined.len(),
            split_seed,
            validated_on,
            left_out: 0,
        };
        Ok(OpenImages { set: Arc::new(joined), measured })
    }
}

/// The parts of a data set, each once; without one that has no labels.
fn all_parts(
    open: &dyn Fn(Split) -> Result<Box<dyn Dataset>, TrainError>,
) -> Result<Vec<Box<dyn Dataset>>, TrainError> {
    let mut parts = vec![open(Split::Train)?, open(Split::Validation)?];
    match open(Split::Test) {
        Ok(test) if !are_same(test.as_ref(), parts[1].as_ref()) => parts.push(test),
        Ok(_) | Err(TrainError::Data(DataError::Unlabelled { .. })) => {}
        Err(error) => return Err(error),
    }
    Ok(parts)
}

/// Checks that a data set has as many classes as a network whose weights record no names.
///
/// # Errors
/// Where there are fewer, and which they are cannot be known.
pub(super) fn expect_known(set: &dyn Dataset, classes: usize, path: &str) -> Result<(), TrainError> {
    let own: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
    if own.len() == classes || set.masks() || are_numbers(&own) {
        return Ok(());
    }
    Err(TrainError::Configuration {
        problem: format!(
            "{path} has {} classes, the network {classes}, and the weights record no names of classes: which \
             of them these are is not known",
            own.len()
        ),
        hint: "measure on a folder of all its classes, or export the weights with their names: \
               `stratus model export RUN --safetensors FILE`"
            .to_owned(),
    })
}

/// For each class of a data set its number in the network, by the names; `None` where the numbers are the
/// same, or either's classes have no names.
fn numbers_of(set: &dyn Dataset, names: &[String], path: &str) -> Result<Option<Vec<u32>>, TrainError> {
    let own: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
    if own == names || are_numbers(&own) || are_numbers(names) {
        return Ok(None);
    }
    if set.masks() {
        // The pixels of a mask have the data set's numbers.
        if own.iter().zip(names).all(|(own, name)| own == name) {
            return Ok(None);
        }
        let difference = class_difference(names, &own).unwrap_or_default();
        return Err(TrainError::Configuration {
            problem: format!("{path}: its masks have other classes than the network: {difference}"),
            hint: "measure on masks with the classes that the network was trained on".to_owned(),
        });
    }
    let number = |name: &String| {
        let number = names.iter().position(|known| known == name).and_then(|at| u32::try_from(at).ok());
        number.ok_or_else(|| {
            let known: Vec<&str> = names.iter().take(10).map(String::as_str).collect();
            let more = if names.len() > known.len() { ", …" } else { "" };
            TrainError::Configuration {
                problem: format!(
                    "{path}: class `{name}` is none that the network knows: {}{more}",
                    known.join(", ")
                ),
                hint: "name the classes to measure, one a line, with --set data.classes=FILE".to_owned(),
            }
        })
    };
    own.iter().map(number).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_a_sentence() {
        let measured = |part: &str, images, split_seed, validated_on| {
            let part = part.parse::<Part>().unwrap().name();
            let (data, path) = ("folder".to_owned(), "photographs".to_owned());
            let measured = MeasuredImages { data, path, part, images, split_seed, validated_on, left_out: 0 };
            format!("{measured}; {}", measured.note().unwrap_or_default())
        };
        assert_eq!(measured("val", 1, None, false), "1 image of the validation part of photographs; ");
        assert_eq!(measured("all", 100, None, false), "100 images, all of photographs; ");
        assert_eq!(
            measured("test", 20, Some(0), false),
            "20 images of the test part of photographs; divided by data.split_seed = 0"
        );
        assert_eq!(
            measured("test", 20, None, true),
            "20 images of the test part of photographs; which is its validation part too"
        );
        assert!("tset".parse::<Part>().is_err());
    }
}
