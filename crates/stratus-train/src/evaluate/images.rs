//! Selects the images to evaluate on.

use crate::TrainError;
use crate::input::{open_options, open_split};
use crate::weights::are_numbers;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use stratus_data::datasets::concat::{ConcatDataset, have_same_samples};
use stratus_data::{DataError, Dataset, OpenOptions, Split, SplitMethod};
use stratus_experiment::Experiment;
use stratus_run::data::class_difference;

/// A split of a data set, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPart {
    /// One of the splits.
    Split(Split),
    /// Every image.
    All,
}

impl DataPart {
    /// The name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Split(split) => split.name(),
            Self::All => "all",
        }
    }
}

impl FromStr for DataPart {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "all" => Ok(Self::All),
            name => name.parse().map(Self::Split).map_err(|_| "use train, val, test or all".to_owned()),
        }
    }
}

/// The images to evaluate on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSelection {
    /// The folder of a data set; `None` for that of the experiment. Its own splits take precedence over
    /// `data.split_seed` and `data.lists`.
    pub path: Option<String>,
    /// The split; `None` for the validation images, or for all images if `path` is a folder of classes
    /// without splits.
    pub part: Option<DataPart>,
}

/// The images of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvaluatedImages {
    /// The data set's name.
    pub data: String,
    /// Its folder.
    pub path: String,
    /// `train`, `validation`, `test` or `all`.
    pub part: &'static str,
    /// The number of images.
    pub images: usize,
    /// `data.split_seed`, if the split follows from it.
    pub split_seed: Option<u64>,
    /// True if the test split is also the validation split, since the data set has only two splits.
    #[serde(rename = "validated_on")]
    pub is_validation_split: bool,
    /// The number of images that could not be decoded and were skipped (`data.on_bad_sample = "skip"`).
    #[serde(rename = "left_out", skip_serializing_if = "is_zero")]
    pub skipped: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl EvaluatedImages {
    /// Checks that at least one image could be decoded.
    ///
    /// # Errors
    /// If no image could be decoded.
    pub(super) fn check_any_decoded(&self) -> Result<(), TrainError> {
        if self.skipped < self.images {
            return Ok(());
        }
        Err(TrainError::Configuration {
            problem: format!("none of {self} can be decoded"),
            hint: "`stratus data check` lists the problems".to_owned(),
        })
    }

    /// A note on the origin of the split, if there is one.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        match self.split_seed {
            _ if self.is_validation_split => Some("also the validation split".to_owned()),
            Some(seed) => Some(format!("split by data.split_seed = {seed}")),
            None => None,
        }
    }
}

/// Displayed as `100 images of the validation split of photographs`.
impl fmt::Display for EvaluatedImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, part, images, .. } = self;
        let plural = if *images == 1 { "" } else { "s" };
        match *part {
            "all" => write!(f, "{images} image{plural}, all of {path}"),
            part => write!(f, "{images} image{plural} of the {part} split of {path}"),
        }
    }
}

/// The data set to evaluate on, and its description.
pub(super) struct OpenedImages {
    pub set: Arc<dyn Dataset>,
    pub images: EvaluatedImages,
}

impl ImageSelection {
    /// Opens the images for a network with the class names `names`, if they are known.
    ///
    /// # Errors
    /// If the images are missing or damaged, have no such split, or have classes that the network lacks.
    pub(super) fn open(
        &self,
        experiment: &Experiment,
        names: &[String],
        warn: &mut dyn FnMut(&str),
    ) -> Result<OpenedImages, TrainError> {
        let mut experiment = experiment.clone();
        if let Some(path) = &self.path {
            experiment.data.path = Some(path.clone());
        }
        let options = open_options(&experiment);
        let open = |split: Split, split_by: &SplitMethod| {
            let options = OpenOptions { split_method: split_by.clone(), ..options.clone() };
            open_split(&experiment, split, &options)
        };
        let one =
            |split: Split, split_by: &SplitMethod| Ok((DataPart::Split(split), vec![open(split, split_by)?]));
        let unsplit = || Ok((DataPart::All, vec![open(Split::Validation, &SplitMethod::Unsplit)?]));
        // Existing splits take precedence over those that the experiment would make.
        let given = if self.path.is_some() { &SplitMethod::Published } else { &options.split_method };
        let found = match self.part {
            Some(DataPart::All) if matches!(given, SplitMethod::Seeded(_)) => unsplit(),
            Some(DataPart::All) => all_parts(&|split| open(split, given)).map(|parts| (DataPart::All, parts)),
            Some(DataPart::Split(split)) => one(split, given),
            None => one(Split::Validation, given),
        };
        let has_no_splits = matches!(found, Err(TrainError::Data(DataError::MissingSplits { .. })));
        let ((part, parts), divided) = match self.part {
            Some(DataPart::Split(split)) if has_no_splits && *given != options.split_method => {
                (one(split, &options.split_method)?, &options.split_method)
            }
            None if has_no_splits && self.path.is_some() => (unsplit()?, &SplitMethod::Unsplit),
            Some(DataPart::All) if has_no_splits => (unsplit()?, &SplitMethod::Unsplit),
            _ => (found?, given),
        };
        let is_validation_split =
            part == DataPart::Split(Split::Test) && *divided == SplitMethod::Published && {
                let quick = OpenOptions {
                    verify: false,
                    skip_damaged: true,
                    split_method: SplitMethod::Published,
                    ..options.clone()
                };
                let validation = open_split(&experiment, Split::Validation, &quick);
                validation.is_ok_and(|set| have_same_samples(set.as_ref(), parts[0].as_ref()))
            };
        let split_seed = match divided {
            SplitMethod::Seeded(seed) if part != DataPart::All => Some(*seed),
            _ => None,
        };
        let path = experiment.data_path().display().to_string();
        let mapping = class_mapping(parts[0].as_ref(), names, &path)?;
        let joined = ConcatDataset::new(parts)?;
        let joined = match mapping {
            Some(mapping) => joined.with_class_map(names.to_vec(), mapping)?,
            None => joined,
        };
        joined.ignored_files().warning().iter().for_each(|warning| warn(warning));
        let images = EvaluatedImages {
            data: experiment.data.name.clone(),
            path,
            part: part.name(),
            images: joined.len(),
            split_seed,
            is_validation_split,
            skipped: 0,
        };
        Ok(OpenedImages { set: Arc::new(joined), images })
    }
}

/// The splits of a data set, each once, except unlabelled ones.
fn all_parts(
    open: &dyn Fn(Split) -> Result<Box<dyn Dataset>, TrainError>,
) -> Result<Vec<Box<dyn Dataset>>, TrainError> {
    let mut parts = vec![open(Split::Train)?, open(Split::Validation)?];
    match open(Split::Test) {
        Ok(test) if !have_same_samples(test.as_ref(), parts[1].as_ref()) => parts.push(test),
        Ok(_) | Err(TrainError::Data(DataError::Unlabelled { .. })) => {}
        Err(error) => return Err(error),
    }
    Ok(parts)
}

/// Checks that a data set has the number of classes of a network whose weights record no class names.
///
/// # Errors
/// If it has another number, since their mapping is unknown.
pub(super) fn check_known(set: &dyn Dataset, classes: usize, path: &str) -> Result<(), TrainError> {
    let set_names: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
    if set_names.len() == classes || set.has_masks() || are_numbers(&set_names) {
        return Ok(());
    }
    Err(TrainError::Configuration {
        problem: format!(
            "{path} has {} classes, but the network has {classes}, and the weights record no class names to \
             match them by",
            set_names.len()
        ),
        hint: "evaluate on a folder with all its classes, or export the weights with class names: \
               `stratus model export RUN --safetensors FILE`"
            .to_owned(),
    })
}

/// The network's class for each class of a data set, by their names; `None` if the numbers are the same, or
/// either has no class names.
///
/// # Errors
/// If the data set has classes that the network lacks.
fn class_mapping(set: &dyn Dataset, names: &[String], path: &str) -> Result<Option<Vec<u32>>, TrainError> {
    let set_names: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
    if set_names == names || are_numbers(&set_names) || are_numbers(names) {
        return Ok(None);
    }
    if set.has_masks() {
        // Masks contain the data set's class numbers, which cannot be mapped.
        if set_names.iter().zip(names).all(|(set_name, name)| set_name == name) {
            return Ok(None);
        }
        let difference = class_difference(names, &set_names).unwrap_or_default();
        return Err(TrainError::Configuration {
            problem: format!("{path}: its masks have different classes than the network: {difference}"),
            hint: "evaluate on masks with the classes that the network was trained on".to_owned(),
        });
    }
    let number = |name: &String| {
        let number = names.iter().position(|known| known == name).and_then(|at| u32::try_from(at).ok());
        number.ok_or_else(|| {
            let known: Vec<&str> = names.iter().take(10).map(String::as_str).collect();
            let more = if names.len() > known.len() { ", …" } else { "" };
            TrainError::Configuration {
                problem: format!(
                    "{path}: class `{name}` is not a class of the network: {}{more}",
                    known.join(", ")
                ),
                hint: match set.target_kind() {
                    None => "list the classes to evaluate, one per line, with --set data.classes=FILE",
                    Some(_) => "select columns of the network with --set 'data.columns=[…]'",
                }
                .to_owned(),
            }
        })
    };
    set_names.iter().map(number).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_the_evaluated_images() {
        let describe = |part: &str, images, split_seed, is_validation_split| {
            let part = part.parse::<DataPart>().unwrap().name();
            let (data, path) = ("folder".to_owned(), "photographs".to_owned());
            let images =
                EvaluatedImages { data, path, part, images, split_seed, is_validation_split, skipped: 0 };
            format!("{images}; {}", images.note().unwrap_or_default())
        };
        assert_eq!(describe("val", 1, None, false), "1 image of the validation split of photographs; ");
        assert_eq!(describe("all", 100, None, false), "100 images, all of photographs; ");
        assert_eq!(
            describe("test", 20, Some(0), false),
            "20 images of the test split of photographs; split by data.split_seed = 0"
        );
        assert_eq!(
            describe("test", 20, None, true),
            "20 images of the test split of photographs; also the validation split"
        );
        assert!("tset".parse::<DataPart>().is_err());
    }
}
